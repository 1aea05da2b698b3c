"""From nodes to a Relax module, with a call for each operator, and its kernels fused by Relax's passes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tvm
from tvm import relax, tirx
from tvm.relax import transform
from tvm.relax.backend.cpu_generic.pipeline import legalize_passes
from tvm.target import Target

from .. import compute
from ..compiler import PASSES, TypedGraph, analyse, feed_type, run_passes, unrolled
from ..compiler.groups import kernel_spec, single_groups
from ..deploy.library import identifiers
from ..deploy.network import traced
from ..devices import copied, cpu
from ..errors import FeedError, GraphError
from ..graph import Node, error_at, find_topo_sort, is_node, named
from ..kernels import KernelSpec
from ..kernels.build import any_alignment, prim_func
from ..ops.state import array_on
from ..schedule.common import blocks_of
from .machine import MAIN

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
    values of the assigned parameters: one value, or a tuple of several. Each operator is a call of its formula's loops.

    Args:
        nodes: the nodes to compute. Groups of updates have no value, but are executed.
        feed_shapes: a shape or array for every variable that is needed; float32 unless it declares its dtype.
        params: "inputs" for parameters as inputs, with copies of their values in `main.attrs["params"]` and the number
            of feeds in `main.attrs["num_input"]`, as TVM's importers have it; "constants" for constants of the module.
        names: of nodes, in place of `node.name`.

    Assigned parameters are overwritten, by calls in place after all others. Raises GraphError for what is not a node,
    for other `params`, and for an assigned constant; FeedError, ShapeError, DTypeError as `Executor.infer_shape` does.
    """
    roots = [nodes] if is_node(nodes) or not isinstance(nodes, Sequence) else list(nodes)
    for node in roots:
        if not is_node(node):
            raise GraphError(f"to_relax: takes nodes, not {type(node).__name__}")
    if params not in ("inputs", "constants"):
        raise GraphError(f"to_relax: params is 'inputs' or 'constants', not {params!r}")
    if not isinstance(feed_shapes, Mapping):
        raise FeedError(f"to_relax: feed_shapes is a dictionary from nodes, not {type(feed_shapes).__name__}")
    roots, names = named(roots), named(dict(names or {}))
    order = find_topo_sort(roots)
    needed = set(order)
    fed = {node: feed_type(node, value) for node, value in named(dict(feed_shapes)).items() if node in needed}
    graph = run_passes(unrolled(analyse(order, roots, fed)), PASSES)
    if params == "constants" and graph.updates:
        raise error_at(graph.updates[0][0], GraphError, "is assigned, so it cannot be a constant")

    given = [graph.leaf_of(node) for node in fed]
    place = {node: number for number, node in enumerate(order)}  # a replayed function may have leaves of its own
    leaves = sorted(graph.fed.difference(given), key=lambda node: (place.get(node, len(order)), node.id))
    inputs = [*given, *leaves]
    renamed = {graph.leaf_of(node): name for node, name in names.items()}
    unique = identifiers([renamed.get(node, node.name) for node in inputs])
    values = [copied(array_on(leaf, cpu())).tensor for leaf in leaves]
    attributes = {"num_input": len(fed), **({"params": values} if params == "inputs" else {})}
    module = _translated(graph, dict(zip(inputs, unique, strict=True)), attributes)
    bound = transform.BindParams(MAIN, dict(zip(unique[len(fed) :], values, strict=True)))
    return bound(module) if params == "constants" else module


def _translated(graph: TypedGraph, names: Mapping[Node, str], attributes: dict[str, Any]) -> tvm.IRModule:
    """The module of a graph, whose function `main` takes the nodes of `names`."""
    builder = relax.BlockBuilder()
    groups = {group.outputs[0]: group for group in single_groups(graph)}
    views = {node for node in graph.nodes if node.op.kind == "view" and 0 not in node.shape}  # for Relax 0 means -1

    def type_of(node: Node) -> relax.TensorType:
        return relax.TensorType(node.shape, node.dtype)

    def emit(node: Node, call: Any) -> Any:
        return builder.emit(call, name_hint=identifiers([node.name])[0])

    def kernel(spec: KernelSpec) -> Any:
        """The module's function of a formula; the builder adds equal ones once."""
        function = prim_func(spec).without_attr("global_symbol")
        if spec.name == COPY:  # fused, it would overwrite a parameter while the others still read it
            function = function.with_attr("op_pattern", OPAQUE)
        return builder.add_func(function, spec.name)

    def copy(node: Node, value: Any, *into: Any) -> Any:
        """A copy of a value of the node's type, in new memory or in that of a parameter."""
        types = ((node.shape, node.dtype),)
        function = kernel(KernelSpec(COPY, COPY, types, compute.copy, outputs=types))
        if into:
            return emit(node, relax.op.call_tir_inplace(function, [value, *into], [1], type_of(node)))
        return emit(node, relax.call_tir(function, [value], type_of(node)))

    of = {node: relax.Var(name, type_of(node)) for node, name in names.items()}
    with builder.function(MAIN, list(of.values()), attributes):
        with builder.dataflow():
            for node in graph.nodes:
                if node in views:
                    call = relax.op.reshape(of[node.inputs[0]], node.shape)
                else:
                    function = kernel(kernel_spec(groups[node], in_place=False, flat=False))
                    call = relax.call_tir(function, [of[value] for value in groups[node].inputs], type_of(node))
                of[node] = emit(node, call)
            kept = dict(of)
            for node in graph.roots if graph.updates else ():  # in memory that may be written below
                if node in graph.fed or node in views:
                    kept[node] = copy(node, of[node])
            written = [copy(parameter, kept[value], of[parameter]) for parameter, value in graph.updates]
            results = [*(kept[node] for node in graph.outputs if node is not None), *written]
            result = builder.emit_output(results[0] if len(results) == 1 else relax.Tuple(results))
        builder.emit_func_output(result)
    return builder.get()


def fused(
    function: str,
    what: Any,
    target: Target,
    feed_shapes: Mapping[Any, Any] | None,
    params: str = "inputs",
    fuse: bool = True,
) -> tuple[tvm.IRModule, tvm.IRModule]:
    """The Relax module of nodes, an `nn.Module` or a Relax module, and the same with calls of kernels alone, which are
    fused if `fuse`. Raises GraphError, by the name `function`, for another argument, a module without `main` or with
    unknown extents."""
    if isinstance(what, tvm.IRModule):
        module = what
    elif is_node(what) or isinstance(what, Sequence):
        module = to_relax(what, feed_shapes or {}, params)
    else:
        inputs, outputs, names = traced(function, what, feed_shapes)
        module = to_relax(outputs, {node: node.attrs["shape"] for node in inputs}, params, names=names)
    functions = [name.name_hint for name in module.get_global_vars()]
    if MAIN not in functions:
        raise GraphError(f"{function}: the module has no function {MAIN}, but {', '.join(functions) or 'none'}")
    legalize = transform.LegalizeOps(skip_ops=["relax.reshape"])  # which the virtual machine executes without a copy
    passes = [legalize, *(legalize_passes(target)[1:] if fuse else ()), transform.DeadCodeElimination()]
    with target:
        joined = tvm.transform.Sequential(passes)(module)
    for name, kernel in kernels_of(joined).items():
        extents = [extent for value in kernel.params if tirx.is_buffer_var(value) for extent in value.shape]
        if not all(isinstance(extent, tirx.IntImm) for extent in extents):
            raise GraphError(f"{function}: {name.name_hint} takes arrays of unknown extents: {extents}")
        joined[name] = any_alignment(_narrow(kernel))
    return module, joined


def _narrow(kernel: tirx.PrimFunc) -> tirx.PrimFunc:
    """A kernel with indices of int32, as ours have and our rule for products takes; TVM's pass refuses int64 arrays."""
    arrays = [*kernel.params, *kernel.body.block.alloc_buffers]
    is_narrow = not any(str(v.var.ty) == "int64" for block in blocks_of(kernel) for v in block.iter_vars)
    if is_narrow or any(str(array.dtype) == "int64" for array in arrays if tirx.is_buffer_var(array)):
        return kernel
    return tirx.transform.ForceNarrowIndexToInt32()(tvm.IRModule({MAIN: kernel}))[MAIN]


def kernels_of(module: tvm.IRModule) -> dict[Any, tirx.PrimFunc]:
    """The module's kernels, by their global variables."""
    return {name: kernel for name, kernel in module.functions_items() if isinstance(kernel, tirx.PrimFunc)}
