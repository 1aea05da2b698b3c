"""The executor: infers shapes, plans memory, compiles and runs a graph, again and again. What it shows of each stage is
in `inspect.stages`."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from .compiler import Arena, Plan, TypedGraph, analyse, feed_type, make_plan, needed_feeds, select, unrolled
from .compiler.indices import fed_indices
from .devices import Array, Context, Staging, copied, cpu, host_array, lies_on, to_array
from .devices import named as context_named
from .errors import DeviceError, DTypeError, FeedError, GraphError
from .graph import FLOATS, Handle, Node, Shape, find_topo_sort, handle_of, is_node, named, require_type
from .inspect.stages import Stages
from .kernels import tell_of_shapes
from .ops.state import array_on, give
from .ops.types import number_of
from .planner import MemoryPlan
from .system import collecting_later, lazy

MOST_KEYS = 64  # sets of fed nodes whose needed nodes are cached
MOST_PLANS = 256  # that an executor caches
MOST_SHOWN = 4  # nodes that an executor's repr names
Signature = tuple[tuple[int, Shape, str], ...]


class Executor(Stages):
    """Evaluates nodes of a graph, compiled for a context.

    There is one plan (shapes, memory, kernels) per signature, which is the set of fed nodes with their shapes and
    dtypes. After the first run with a signature, `run` neither compiles nor allocates device memory. The plans used
    last are cached, up to 256; kernels and the arena are shared by all plans. A plan that was dropped is made again,
    with the kernels that the process has. Any node may be fed, not only a variable: nodes that only it needs are then
    not computed. An executor may be used from several threads, which take turns.

    Attributes:
        eval_node_list: the nodes, in the order of `run`'s results.
        ctx: the `Context`.
        topo_order: the whole graph, inputs first.
        node_to_shape_map, node_to_dtype_map: of the latest signature, for every node whose shape is needed.
        node_to_arr_map: the Array of each node that is computed, filled by `memory_plan` and `run`.
        node_to_compiled_func: the kernel of each node that has one, filled by `compile_funcs` and `run`.
        compilations: how many plans were compiled.
        allocations: how many device buffers were allocated for the plans, which share one arena.
    """

    def __init__(
        self, eval_node_list: Sequence[Node], ctx: Any = None, passes: Any = None, *, arena: Arena | None = None
    ) -> None:
        """Args:
            eval_node_list: the nodes whose values `run` returns.
            ctx: where to run: `dlsys.cpu()`, `dlsys.cuda(0)`, `dlsys.numpy()`, a TVM device, a string; None is the CPU.
            passes: names of the passes to use (`dlsys.compiler.NAMES`), all for None; none of them changes a result by
                more than rounding. The `numpy` context uses none.
            arena: memory to share with other executors of this context, which then take turns; None for its own.

        Raises GraphError for an argument that is no list of nodes and for an unknown pass, DeviceError for an absent
        device. For an absent GPU only `run` raises it: its code can be generated and read.
        """
        if is_node(eval_node_list) or not isinstance(eval_node_list, Sequence):
            raise GraphError("Executor: eval_node_list must be a list of nodes")
        for node in eval_node_list:
            if not is_node(node):
                raise GraphError(f"Executor: eval_node_list must hold nodes, not {type(node).__name__}")
            if node.op.immediate:
                raise GraphError(f"Executor: the number {node!r} has a dtype only beside another operand")
        self.eval_node_list: list[Any] = list(eval_node_list)
        self._roots: list[Node] = named(self.eval_node_list)
        self.ctx: Context = context_named(ctx)
        if self.ctx.kind != "cuda":  # a GPU may be absent: see above
            self.ctx.require()
        self.passes: tuple[str, ...] = select(passes)
        self._order: list[Node] = find_topo_sort(self._roots)
        self.node_to_shape_map: dict[Node, Shape] = {}
        self.node_to_dtype_map: dict[Node, str] = {}
        self._is_numpy = self.ctx.kind == "numpy"
        self._position = {node: position for position, node in enumerate(self._order)}
        self._needed: dict[tuple[int, ...], tuple[Node, ...]] = {}  # the fed nodes that are needed, by the ids of all
        self._plans: OrderedDict[Signature, Plan] = OrderedDict()  # the one used last is the last
        self._analysed: dict[Plan, TypedGraph] = {}  # the graph before the passes
        self._held: dict[Any, Staging] = {}  # for a GPU, the arrays to which feeds from host memory are copied
        self._current: Plan | None = None
        self._compiled_before = 0  # plans that were dropped since
        self._planned_before = 0  # sets of shapes, counted until the hint about them
        self._arena = arena or Arena(self.ctx)
        self._lock = self._arena.lock

    def __reduce__(self) -> Any:
        """Copies and pickles have the nodes, the context and the passes; plans are made anew, in an arena of their
        own. All nodes come first, inputs before what reads them, so that no depth of the graph is too large."""
        ctx = f"{self.ctx.kind}:{self.ctx.index}"  # of a context there is one object
        return _remade, (type(self), self._order, self._roots, ctx, self.passes)

    def __repr__(self) -> str:
        """Its first nodes, its context, and the numbers of its nodes and plans."""
        names = [node.name for node in self.eval_node_list]
        shown = ", ".join(names[:MOST_SHOWN]) + (f" and {rest} more" if (rest := len(names) - MOST_SHOWN) > 0 else "")
        plans = f"{len(self._plans)} plan{'s' if len(self._plans) != 1 else ''}"
        return f"<Executor of {shown or 'nothing'} on {self.ctx}, {len(self._order)} nodes, {plans}>"

    @lazy
    def topo_order(self) -> list[Any]:
        """The whole graph, inputs first."""
        return [handle_of(node) for node in self._order]

    @property
    def compilations(self) -> int:
        """How many plans were compiled."""
        return self._compiled_before + sum(plan.is_compiled for plan in list(self._plans.values()))

    @property
    def allocations(self) -> int:
        """How many device buffers were allocated for the plans: the arena, and a new one each time that it grew."""
        return self._arena.allocations

    @property
    def node_to_arr_map(self) -> dict[Node, Array]:
        """The Array of each node that the latest plan computes; empty before `memory_plan` or `run`."""
        with self._lock:
            plan = self._current
            found = _by_user_node(plan, plan.arrays, self._position) if plan is not None and plan.is_placed else {}
            return self._by_handle(found)

    @property
    def node_to_compiled_func(self) -> dict[Node, Any]:
        """The kernel of each node that has one in the latest plan; empty before `compile_funcs` or `run`."""
        with self._lock:
            plan = self._current
            found = _by_user_node(plan, plan.kernels, self._position) if plan is not None and plan.is_compiled else {}
            return self._by_handle(found)

    def _by_handle(self, found: Mapping[Node, Any]) -> dict[Any, Any]:
        """The same by the handles that users have."""
        self.topo_order  # noqa: B018 - which keeps one handle of each node
        return {handle_of(node): value for node, value in found.items()}

    def run(self, feed_dict: Mapping[Node, Any], convert_to_numpy_ret_vals: bool = False) -> list[Any]:
        """The values of `eval_node_list`.

        Args:
            feed_dict: a value for every variable that is needed; other entries are not read. NumPy, dlsys or TVM
                arrays, objects with `__dlpack__`, Python numbers and lists of them (float32 unless the variable
                declares its dtype). An array on the device is not copied, if it is contiguous and the run does not
                overwrite it, as it does the last result.
            convert_to_numpy_ret_vals: return copies, as `np.ndarray`.

        Returns Arrays that are valid until the next run of this executor, which writes the same memory; equal results
        may share memory. The result of an assignment is in its parameter's memory, that of a group is None. In the
        `numpy` context, `np.ndarray`s.

        Raises FeedError for a missing feed or one that is no array, ShapeError and DTypeError for types that do not
        fit, DeviceError for an array on another device, IndexRangeError for indices out of range in a feed from host
        memory. The executor stays usable.
        """
        lock = self._lock
        lock.acquire()  # `with` would take 50 ns longer
        try:
            plan, feeds = self._current, self._by_node(feed_dict)
            results = None if plan is None or self._is_numpy else plan.run(feeds)
            if results is None:
                results = self._run(feeds)
            if convert_to_numpy_ret_vals:
                return [value.numpy() if isinstance(value, Array) else value for value in results]
            return [*results]
        finally:
            lock.release()

    def run_copied(self, feed_dict: Mapping[Node, Any]) -> list[Any]:
        """As `run`, with results in memory of their own. Indices are not checked: those of tensors have been."""
        with self._lock:
            feeds = self._by_node(feed_dict)
            results = None if self._current is None else self._current.run(feeds, checks=False)
            if results is None:
                results = self._run(feeds, checks=False)
            found = [copied(value) if isinstance(value, Array) else value for value in results]
            if self._current is not None:
                self._current.let_go()
            return found

    def _run(self, feed_dict: Mapping[Node, Any], checks: bool = True) -> list[Any]:
        """A run that looks up the plan and converts each feed, where the latest plan does not take the feeds as they
        are."""
        if self.ctx.kind == "numpy":
            return self._run_numpy(feed_dict)
        plan, feeds = self._prepare(feed_dict)
        if checks:
            plan.require_in_range(feed_dict)
        results = plan.run(feeds, checks=False)
        assert results is not None, "these feeds have the plan's types"
        return results

    def infer_shape(self, feed_shapes: Mapping[Node, Any]) -> dict[Node, Shape]:
        """The shape of every node that is needed, given the feeds' shapes; also `node_to_shape_map`.

        Feeds have the dtype that the variable declares, or that of the graph's parameters of floats, or float32; an
        array in place of a shape gives both. Raises
        FeedError, ShapeError, DTypeError.
        """
        with self._lock:
            of_floats = (node.dtype for node in self._order if node.op.leaf and node.dtype in FLOATS)
            default = next(of_floats, FLOATS[0])
            items = self._items(self._by_node(feed_shapes))
            self._plan({node: feed_type(node, value, default) for node, value in items})
            return self.node_to_shape_map

    def memory_plan(self, feed_shapes: Mapping[Node, Any]) -> MemoryPlan:
        """Plan and allocate the memory for feeds of these shapes (see `infer_shape`); `print` the result."""
        with self._lock:
            self.infer_shape(feed_shapes)
            plan = self.latest_plan()
            if self.ctx.kind != "numpy":
                plan.arrays  # noqa: B018 - allocates the arena
            return plan.memory

    def compile_funcs(self, feed_shapes: Mapping[Node, Any]) -> dict[Node, Any]:
        """Compile every kernel for feeds of these shapes (see `infer_shape`), so that the first run need not; each
        node's kernel. The `numpy` context has no kernels.
        """
        with self._lock:
            self.infer_shape(feed_shapes)
            if self.ctx.kind != "numpy":
                self.latest_plan().kernel_of  # noqa: B018 - compiles them
            return self.node_to_compiled_func

    def plan_for(self, feed_shapes: Mapping[Node, Any] | None, kernels: bool = True) -> Plan:
        """The plan for feeds of these shapes, or the latest. Raises DeviceError where there are no kernels, unless none
        are needed."""
        with self._lock:
            if kernels:
                self._check_kernels()
            if feed_shapes is not None:
                self.infer_shape(feed_shapes)
            return self.latest_plan()

    def _check_kernels(self) -> None:
        """Raises DeviceError in the `numpy` context, which has no kernels."""
        if self.ctx.kind == "numpy":
            raise DeviceError(
                "the numpy context computes node by node, without kernels and plans: use dlsys.cpu(0)"
            )

    def _prepare(self, feed_dict: Mapping[Node, Any]) -> tuple[Plan, Mapping[Node, Array]]:
        """The plan, and an Array for each feed that it needs."""
        feeds = {node: self._feed(node, value) for node, value in self._items(self._by_node(feed_dict))}
        return self._plan({node: (value.shape, value.dtype) for node, value in feeds.items()}), feeds

    def latest_plan(self) -> Plan:
        """The plan of the latest signature. Raises FeedError where there is none."""
        if self._current is None:
            raise FeedError("Executor: no shapes are known yet: pass feed_shapes, or run first")
        return self._current

    def _plan(self, fed: Mapping[Node, tuple[Shape, str]]) -> Plan:
        """The signature's plan, from the cache or new; it becomes the latest."""
        position = self._position
        signature = tuple([(position[node], *of) for node, of in fed.items()])  # in topological order
        plan = self._plans.get(signature)
        if plan is None:
            with collecting_later():
                graph = analyse(self._order, self._roots, fed)
                graph = unrolled(graph) if self.ctx.kind == "numpy" else graph
                leaves = {node: graph.leaf_of(node) for node in fed}
                indices = fed_indices(graph, {leaf: node for node, leaf in leaves.items()})
                plan = make_plan(graph, self.passes, self.ctx.kind)
                plan = replace(plan, ctx=self.ctx, arena=self._arena, indices=indices, leaves=leaves)
            self._plans[signature], self._analysed[plan] = plan, graph
            self._planned_before += 1
            if self.ctx.kind != "numpy":
                tell_of_shapes(self._planned_before, repr(self))
            self._drop_plans()
        if plan is not self._current:
            self._plans.move_to_end(signature)
            if self._current is not None:
                self._current.rest()
            self._current = plan
            graph = self._analysed[plan]
            self.topo_order  # noqa: B018 - which keeps one handle of each node
            types = {handle_of(node): of for node, of in graph.types(self._order).items()}
            self.node_to_shape_map = {node: of.shape for node, of in types.items()}
            self.node_to_dtype_map = {node: of.dtype for node, of in types.items()}
        return plan

    def _drop_plans(self) -> None:
        """Drop the plan used longest ago if there are too many, and arrays for feeds that no other plan needs."""
        if len(self._plans) > MOST_PLANS:
            _, plan = self._plans.popitem(last=False)
            del self._analysed[plan]
            self._compiled_before += plan.is_compiled
            fed = {(self._order[at], shape, dtype) for signature in self._plans for at, shape, dtype in signature}
            self._held = {key: staging for key, staging in self._held.items() if key in fed}

    def _by_node(self, feeds: Any) -> Any:
        """Feeds by the graph's nodes: of a handle by that which it names, or named as the graph was made."""
        if not isinstance(feeds, (dict, Mapping)):
            return feeds
        found = {}
        for key, value in feeds.items():
            node = key.node if isinstance(key, Handle) else key
            if node not in self._position and isinstance(key, Handle):
                node = next((own for own in self._order if own.op.leaf and own.owner and own.owner() is key), node)
            found[node] = value
        return found

    def _items(self, feeds: Any) -> list[tuple[Node, Any]]:
        """The feeds that the run needs, with their nodes, in topological order. Others are not read, so that one
        dictionary may serve training and prediction. Raises FeedError for a key that is no node."""
        if not isinstance(feeds, dict) and not isinstance(feeds, Mapping):
            raise FeedError(f"feeds must be a dictionary from nodes, not {type(feeds).__name__}")
        given = tuple(map(id, feeds))
        needed = self._needed.get(given)
        if needed is None:
            needed = self._needed_of(feeds)
            if len(self._needed) < MOST_KEYS:
                self._needed[given] = needed  # the graph keeps its nodes alive, so no other object has their ids
        return [(node, feeds[node]) for node in needed]

    def _needed_of(self, feeds: Mapping[Any, Any]) -> tuple[Node, ...]:
        """The fed nodes whose values the outputs need, in the graph's order. Raises FeedError for a key that is no
        node."""
        for node in feeds:
            if not isinstance(node, Node):
                raise FeedError(f"feeds must be a dictionary from nodes; {node!r} is not a node")
        fed = frozenset(node for node in feeds if node in self._position)
        known = needed_feeds(self._order, self._roots, fed)
        return tuple(sorted(known, key=self._position.__getitem__))

    def _feed(self, node: Node, value: Any) -> Array:
        """The array of a feed on the executor's device; from host memory to a GPU it goes through pinned memory. Raises
        DTypeError and DeviceError, which name the feed."""
        dtype = node.attrs.get("dtype") or np.float32
        try:
            if self.ctx.kind != "cuda" or lies_on(value).kind == "cuda":
                found = to_array(value, self.ctx, dtype)
                found.context = self.ctx  # an equal one, which a plan tells apart
                return found
            host = host_array(value, dtype)
            if host.size == 0:
                return to_array(host, self.ctx)
            held = self._held.get(key := (node, host.shape, str(host.dtype)))
            if held is None:
                held = self._held[key] = Staging(self.ctx, *key[1:])
            return held.put(host)
        except (DTypeError, DeviceError) as error:
            raise type(error)(f"feed of {node.name}: {error} {_at(node)}") from None

    def _run_numpy(self, feed_dict: Mapping[Node, Any]) -> list[Any]:
        """The results by the operators' NumPy references, in new memory."""
        values: dict[Node, np.ndarray] = {}
        for node, value in self._items(feed_dict):
            try:
                values[node] = host_array(value, node.attrs.get("dtype") or np.float32)
            except DTypeError as error:
                raise DTypeError(f"feed of {node.name}: {error} {_at(node)}") from None
        with self._lock:
            plan = self._plan({n: (v.shape, str(v.dtype)) for n, v in values.items()})
            plan.require_in_range(values)
            graph = self._analysed[plan]
            values = {graph.leaf_of(node): value for node, value in values.items()}
            for node in graph.fed - values.keys():
                if node.op.leaf:
                    values[node] = array_on(node, self.ctx)
            borrowed = list(values.values())
            with np.errstate(all="ignore"):
                for node in graph.nodes:
                    inputs = [
                        number_of(value) if value.op.immediate
                        else values[value] if value in values else _stand_in(graph, value)
                        for value in node.inputs
                    ]  # fmt: skip
                    values[node] = value = node.op.numpy(node, inputs)
                    given = value.shape, str(value.dtype)
                    require_type(node, "reference", given, node.shape, node.dtype)

            def own(value: np.ndarray) -> np.ndarray:
                lent = any(np.may_share_memory(value, other) for other in borrowed)
                return np.array(value) if lent else value

            results = [None if node is None else own(values[node]) for node in graph.outputs]
            updates = [(parameter, np.array(values[value])) for parameter, value in graph.updates]
            for parameter, value in updates:  # after all have read the old values
                give(parameter, to_array(value, cpu()))
            return results


def _remade(kind: type[Executor], order: list[Node], nodes: list[Node], ctx: str, passes: Any) -> Executor:
    """The executor of a pickle or a copy; `order` was read before."""
    return kind(nodes, ctx, passes)


def _by_user_node(plan: Plan, found: Mapping[Node, Any], users: Container[Node]) -> dict[Node, Any]:
    """`found` by the user's nodes for which the graph's nodes stand, and by those that stand for none."""
    current = plan.graph.current
    of_users = {node: found[now] for node, now in current.items() if now in found and node in users}
    standing = {current[node] for node in of_users}
    return {**{node: value for node, value in found.items() if node in users or node not in standing}, **of_users}


def _stand_in(graph: TypedGraph, node: Node) -> np.ndarray:
    """An array of the node's shape for operators that read only its shape; takes no memory."""
    return np.broadcast_to(np.zeros((), node.dtype), node.shape)


def _at(node: Node) -> str:
    return f"[node {node.name}, made at {node.location}]"
