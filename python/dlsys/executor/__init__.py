"""The executor: infers shapes, plans memory, compiles and runs a graph, again and again."""

from __future__ import annotations

import operator
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..device import Array, context, host_array, to_array
from ..errors import DeviceError, DTypeError, FeedError, GraphError, ShapeError
from ..graph import Node, Shape, find_topo_sort, format_graph
from ..planner import MemoryPlan
from .plan import Plan
from .program import Program, analyse

__all__ = ["Executor", "Plan", "Program"]

Signature = tuple[tuple[int, Shape, str], ...]


class Executor:
    """Evaluates nodes of a graph, compiled for a context.

    Plans (shapes, arena, kernels) are kept per signature, which is the set of fed nodes with their shapes and
    dtypes; after the first run of a signature, `run` neither compiles nor allocates device memory. Any node
    may be fed, not only a variable: what only led to it is then not computed. One executor may be used from
    several threads, which take turns.

    Attributes:
        eval_node_list: the nodes, in the order of `run`'s results.
        ctx: the `Context`.
        topo_order: the whole graph, inputs first.
        node_to_shape_map, node_to_dtype_map: of the latest signature, for every node whose shape is needed.
        node_to_arr_map: the Array of each node that is computed, filled by `memory_plan`, `run`.
        node_to_compiled_func: the kernel of each node that has one, filled by `compile_funcs`, `run`.
        compilations: how many plans were compiled.
        allocations: how many device buffers the plans own.
    """

    def __init__(self, eval_node_list: Sequence[Node], ctx: Any = None) -> None:
        """Raises GraphError for what is no list of nodes, DeviceError for a context that is not there."""
        if isinstance(eval_node_list, Node) or not isinstance(eval_node_list, Sequence):
            raise GraphError("Executor: eval_node_list must be a list of nodes")
        for node in eval_node_list:
            if not isinstance(node, Node):
                raise GraphError(f"Executor: eval_node_list must hold nodes, not {type(node).__name__}")
        self.eval_node_list = list(eval_node_list)
        self.ctx = context(ctx)
        self.topo_order = find_topo_sort(self.eval_node_list)
        self.node_to_shape_map: dict[Node, Shape] = {}
        self.node_to_dtype_map: dict[Node, str] = {}
        self.node_to_arr_map: dict[Node, Array] = {}
        self.node_to_compiled_func: dict[Node, Any] = {}
        self._position = {node: position for position, node in enumerate(self.topo_order)}
        self._plans: dict[Signature, Plan] = {}
        self._current: Plan | None = None
        self._lock = threading.RLock()

    @property
    def compilations(self) -> int:
        """How many plans were compiled."""
        return sum(plan.is_compiled for plan in list(self._plans.values()))

    @property
    def allocations(self) -> int:
        """How many device buffers the plans own."""
        return sum(plan.allocations for plan in list(self._plans.values()))

    def run(self, feed_dict: Mapping[Node, Any], convert_to_numpy_ret_vals: bool = False) -> list[Any]:
        """The values of `eval_node_list`.

        Args:
            feed_dict: a value for every variable that is needed: NumPy, dlsys or TVM arrays, anything with
                `__dlpack__` (memory is shared, not copied, where it is contiguous and on the device), Python
                numbers and lists of them (float32 unless the variable declares its dtype).
            convert_to_numpy_ret_vals: return copies, as `np.ndarray`.

        Returns Arrays that are valid until the next run of this executor, which writes the same memory; two
        results may share memory where they are the same value. In the `numpy` context, `np.ndarray`s.

        Raises FeedError, ShapeError, DTypeError, DeviceError; the executor stays usable.
        """
        if self.ctx.kind == "numpy":
            return self._run_numpy(feed_dict)
        with self._lock:
            feeds = {node: self._feed(node, value) for node, value in self._items(feed_dict)}
            plan = self._plan({node: (value.shape, value.dtype) for node, value in feeds.items()})
            results = plan.run(feeds)
            self._show(plan)
            return [value.numpy() for value in results] if convert_to_numpy_ret_vals else list(results)

    def infer_shape(self, feed_shapes: Mapping[Node, Any]) -> dict[Node, Shape]:
        """The shape of every node that is needed, given the feeds' shapes; also `node_to_shape_map`.

        Feeds are taken as float32 unless the variable declares its dtype; an array in place of a shape says
        both. Raises FeedError, ShapeError, DTypeError.
        """
        with self._lock:
            self._plan({node: self._feed_shape(node, value) for node, value in self._items(feed_shapes)})
            return self.node_to_shape_map

    def memory_plan(self, feed_shapes: Mapping[Node, Any]) -> MemoryPlan:
        """Plan and allocate the memory for feeds of these shapes (see `infer_shape`); `print` the result."""
        with self._lock:
            self.infer_shape(feed_shapes)
            plan = self._latest()
            if self.ctx.kind != "numpy":
                self.node_to_arr_map = plan.arrays
            return plan.memory

    def compile_funcs(self, feed_shapes: Mapping[Node, Any]) -> dict[Node, Any]:
        """Compile every kernel for feeds of these shapes (see `infer_shape`), so that the first run need not.

        The `numpy` context has no kernels.
        """
        with self._lock:
            self.infer_shape(feed_shapes)
            if self.ctx.kind != "numpy":
                self.node_to_compiled_func = self._latest().kernels
            return self.node_to_compiled_func

    def memory_report(self, feed_shapes: Mapping[Node, Any] | None = None) -> str:
        """The memory plan as text, for feeds of these shapes, or of the latest signature.

        Raises FeedError where there is none yet.
        """
        with self._lock:
            if feed_shapes is not None:
                self.infer_shape(feed_shapes)
            return str(self._latest().memory)

    def graph(self) -> str:
        """The graph as text, a line a node."""
        return format_graph(self.eval_node_list)

    def _latest(self) -> Plan:
        if self._current is None:
            raise FeedError("Executor: no shapes are known yet: pass feed_shapes, or run first")
        return self._current

    def _plan(self, fed: Mapping[Node, tuple[Shape, str]]) -> Plan:
        """The signature's plan, from the cache or new; it becomes the latest."""
        position = self._position
        signature = tuple(sorted((position[node], shape, dtype) for node, (shape, dtype) in fed.items()))
        plan = self._plans.get(signature)
        if plan is None:
            plan = Plan(analyse(self.topo_order, self.eval_node_list, fed), self.ctx)
            self._plans[signature] = plan
        if plan is not self._current:
            self._current = plan
            self.node_to_shape_map = plan.program.shapes
            self.node_to_dtype_map = plan.program.dtypes
            self.node_to_arr_map = {}
            self.node_to_compiled_func = {}
        return plan

    def _show(self, plan: Plan) -> None:
        self.node_to_arr_map = plan.arrays
        self.node_to_compiled_func = plan.kernels

    def _items(self, feeds: Any) -> list[tuple[Node, Any]]:
        """The feeds' items. Raises FeedError for a key that is no node of the graph."""
        if not isinstance(feeds, Mapping):
            raise FeedError(f"feeds must be a dictionary from nodes, not {type(feeds).__name__}")
        for node in feeds:
            if not isinstance(node, Node):
                raise FeedError(f"feeds must be a dictionary from nodes; {node!r} is none")
            if node not in self._position:
                raise FeedError(f"{node.name} is fed, but not in the graph {_at(node)}")
        return list(feeds.items())

    def _feed(self, node: Node, value: Any) -> Array:
        try:
            return to_array(value, self.ctx, node.attrs.get("dtype") or np.float32)
        except (DTypeError, DeviceError) as error:
            raise type(error)(f"feed of {node.name}: {error} {_at(node)}") from None

    def _feed_shape(self, node: Node, value: Any) -> tuple[Shape, str]:
        if hasattr(value, "shape") and hasattr(value, "dtype"):
            return tuple(value.shape), str(value.dtype)
        try:
            shape = tuple(operator.index(extent) for extent in value)
        except TypeError:
            shape = (-1,)
        if min(shape, default=0) < 0:
            raise ShapeError(f"the feed's shape must be a tuple of extents, not {value!r} {_at(node)}")
        return shape, str(node.attrs.get("dtype") or "float32")

    def _run_numpy(self, feed_dict: Mapping[Node, Any]) -> list[np.ndarray]:
        """By the operators' NumPy rules, in fresh memory."""
        values: dict[Node, np.ndarray] = {}
        for node, value in self._items(feed_dict):
            try:
                values[node] = host_array(value, node.attrs.get("dtype") or np.float32)
            except DTypeError as error:
                raise DTypeError(f"feed of {node.name}: {error} {_at(node)}") from None
        with self._lock:
            program = self._plan({n: (v.shape, str(v.dtype)) for n, v in values.items()}).program
        borrowed = list(values.values())
        with np.errstate(all="ignore"):
            for node in program.steps:
                inputs = [
                    values[value] if value in values else _stand_in(program, value) for value in node.inputs
                ]
                values[node] = node.op.numpy(node, inputs)
        results = [values[node] for node in program.results]
        return [
            np.array(result) if any(np.may_share_memory(result, feed) for feed in borrowed) else result
            for result in results
        ]


def _stand_in(program: Program, node: Node) -> np.ndarray:
    """An array of the node's shape for who reads nothing else of it; takes no memory."""
    return np.broadcast_to(np.zeros((), program.dtypes[node]), program.shapes[node])


def _at(node: Node) -> str:
    return f"[node {node.name}, made at {node.location}]"
