"""From nodes to a Relax module, with a call for each operator; its kernel is the plain loops of the formula."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

import tvm
from tvm import relax

from .. import compute
from ..compiler import PASSES, TypedGraph, analyse, feed_type, run_passes, unrolled
from ..compiler.groups import kernel_spec, single_groups
from ..devices import copied, cpu
from ..errors import FeedError, GraphError
from ..graph import Node, error_at, find_topo_sort
from ..kernels import KernelSpec
from ..kernels.build import prim_func
from ..kernels.export import identifiers

PARAMS = ("inputs", "constants")
COPY = "copy"
OPAQUE = 8  # of TVM's kinds of operators: not to be fused


def to_relax(
    nodes: Node | Sequence[Node],
    feed_shapes: Mapping[Node, Any],
    params: str = "inputs",
    *,
    names: Mapping[Node, str] | None = None,
) -> tvm.IRModule:
    """A module whose function `main` takes the feeds, then the parameters, and returns the nodes' values, then the new
    values of the assigned parameters: one value, or a tuple of several.

    Args:
        nodes: the nodes to compute. Groups of updates have no value, but are executed.
        feed_shapes: a shape or array for every variable that is needed; float32 unless it declares its dtype.
        params: "inputs" for parameters as inputs, with copies of their values in `main.attrs["params"]` and the number
            of feeds in `main.attrs["num_input"]`, as TVM's importers have it; "constants" for constants of the module.
        names: of nodes, in place of their own.

    Assigned parameters are overwritten, by calls in place after all others.

    Raises GraphError for an argument that is no node, for other `params`, and for an assigned constant; FeedError,
    ShapeError, DTypeError as `Executor.infer_shape` does.
    """
    roots = [nodes] if isinstance(nodes, Node) or not isinstance(nodes, Sequence) else list(nodes)
    for node in roots:
        if not isinstance(node, Node):
            raise GraphError(f"to_relax: takes nodes, not {type(node).__name__}")
    if params not in PARAMS:
        raise GraphError(f"to_relax: params is one of {', '.join(PARAMS)}, not {params!r}")
    if not isinstance(feed_shapes, Mapping):
        raise FeedError(f"to_relax: feed_shapes is a dictionary from nodes, not {type(feed_shapes).__name__}")
    order = find_topo_sort(roots)
    known = set(order)
    fed = {node: feed_type(node, value) for node, value in feed_shapes.items() if node in known}
    graph = run_passes(unrolled(analyse(order, roots, fed)), PASSES)
    if params == "constants" and graph.updates:
        raise error_at(graph.updates[0][0], GraphError, "is assigned, so it cannot be a constant")
    leaves = [node for node in order if node in graph.fed and node not in fed]
    own = {graph.leaf_of(node): name for node, name in (names or {}).items()}
    return _Translation(graph, [graph.leaf_of(node) for node in fed], leaves, params == "constants", own).module


class _Translation:
    """The translation of one graph."""

    def __init__(
        self, graph: TypedGraph, feeds: list[Node], leaves: list[Node], bound: bool, own: Mapping[Node, str]
    ) -> None:
        self._graph, self._builder = graph, relax.BlockBuilder()
        self._functions: dict[Hashable, Any] = {}
        values = [copied(leaf.cell.on(cpu())).tensor for leaf in leaves]
        inputs = feeds if bound else [*feeds, *leaves]
        names = identifiers([own.get(node, node.name) for node in inputs])
        self._of: dict[Node, Any] = {
            node: relax.Var(name, self._type(node)) for node, name in zip(inputs, names, strict=True)
        }
        if bound:
            self._of.update({leaf: relax.const(value) for leaf, value in zip(leaves, values, strict=True)})
        attributes = {"num_input": len(feeds), **({} if bound else {"params": values})}
        with self._builder.function("main", [self._of[node] for node in inputs], attributes):
            with self._builder.dataflow():
                results = self._results()
                result = self._builder.emit_output(results[0] if len(results) == 1 else relax.Tuple(results))
            self._builder.emit_func_output(result)
        self.module = self._builder.get()

    def _type(self, node: Node) -> relax.TensorType:
        return relax.TensorType(self._graph.shapes[node], self._graph.dtypes[node])

    def _results(self) -> list[Any]:
        """Emit all calls; the values that `main` returns. Parameters are written after everything that reads them; a
        result that is a view of an assigned parameter is copied first."""
        graph, of = self._graph, self._of
        for group in single_groups(graph, frozenset(node for node in graph.nodes if self._is_view(node))):
            self._views(group.inputs)
            (node,) = group.outputs
            spec = kernel_spec(group, graph, in_place=False)
            function = self._function(node.op.name, spec)
            of[node] = self._emit(relax.call_tir(function, [of[v] for v in group.inputs], self._type(node)), node)
        self._views(graph.roots)
        assigned = {parameter for parameter, _ in graph.updates}
        kept = {}
        for node in graph.roots:
            kept[node] = of[node]
            if self._owner(node) in assigned:
                kept[node] = self._emit(relax.call_tir(self._copy(node), [of[node]], self._type(node)), node)
        new = []
        for parameter, value in graph.updates:
            call = relax.op.call_tir_inplace(
                self._copy(parameter), [kept[value], of[parameter]], [1], self._type(parameter)
            )
            new.append(self._emit(call, parameter))
        return [*(kept[node] for node in graph.outputs if node is not None), *new]

    def _is_view(self, node: Node) -> bool:
        """Whether the node is Relax's `reshape`, in which an extent of 0 has another meaning."""
        return node.op.kind == "view" and 0 not in self._graph.shapes[node]

    def _views(self, values: Iterable[Node]) -> None:
        """Emit the values that are views, and the views below them."""
        for value in values:
            chain = []
            while value not in self._of:
                chain.append(value)
                value = value.inputs[0]
            for node in reversed(chain):
                shape = self._graph.shapes[node]
                self._of[node] = self._emit(relax.op.reshape(self._of[node.inputs[0]], shape), node)

    def _owner(self, node: Node) -> Node:
        """The node in whose memory a value is."""
        while node not in self._graph.fed and self._is_view(node):
            node = node.inputs[0]
        return node

    def _copy(self, node: Node) -> Any:
        """The function that copies values of the node's type."""
        shape, dtype = self._graph.shapes[node], self._graph.dtypes[node]
        spec = KernelSpec(COPY, COPY, ((shape, dtype),), compute.copy, outputs=((shape, dtype),))
        return self._function(COPY, spec)

    def _function(self, name: str, spec: KernelSpec) -> Any:
        """The module's function of a formula, made once."""
        key = (spec.key, spec.inputs)
        if key not in self._functions:
            function = prim_func(spec).without_attr("global_symbol")
            if name == COPY:  # must not be fused with readers of the memory that it overwrites
                function = function.with_attr("op_pattern", OPAQUE)
            self._functions[key] = self._builder.add_func(function, name)
        return self._functions[key]

    def _emit(self, call: Any, node: Node) -> Any:
        return self._builder.emit(call, name_hint=identifiers([node.name])[0])
