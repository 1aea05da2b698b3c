"""`export`: a module or an executor's run as the function of a shared library."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..autodiff import Executor
from ..checks import flag
from ..devices import cpu
from ..errors import DeviceError, GraphError
from ..graph import Node, error_at, handle_of, named
from ..kernels import Place
from ..nn import Module
from ..ops.state import array_on
from ..tvm_import import with_compiler
from .network import traced

if TYPE_CHECKING:
    from .library import Exported


def export(
    model: Module | Executor,
    path: Any,
    feed_shapes: Mapping[Any, Any] | None = None,
    *,
    constants: bool = False,
    mcpu: str | None = None,
) -> str:
    """Writes a run as the function `step` of a shared library, which needs TVM's runtime and no dlsys.

    Beside `step.so` it writes `step.h`, which declares the function for C, and `step.safetensors`, the values of the
    parameters. Returns two lines: the arrays with which `step` is called (the feeds in the order of `feed_shapes`, the
    parameters, the arena, if it needs one, and an array for each result), and the CPU for which it was compiled.
    Assigned parameters are overwritten, and are no results.

    Args:
        model: a module, which is run in evaluation and whose parameters have their dotted names, `0.weight`; or an
            executor.
        path: of the library.
        feed_shapes: for a module a shape or an array for each argument of `forward`, in order, by the name that it
            shall have; a Network has its own. For an executor see `Executor.infer_shape`; None for those of its latest
            run.
        constants: whether the parameters' values become part of the library: `step` does not take them then.
        mcpu: the CPU by LLVM's name, such as "x86-64-v3"; None for this one.

    Raises DlsysError for a path that cannot be written, TargetError for a CPU that LLVM does not know, DeviceError
    for an executor of another context than the CPU, GraphError for another model and for assigned constants.
    """
    constants = flag("export", "constants", constants)
    if isinstance(model, Executor):
        return str(exported(model, path, feed_shapes, mcpu, constants)[0])
    inputs, outputs, names = traced("export", model, feed_shapes)
    shapes = {node: node.attrs["shape"] for node in inputs}
    return str(exported(Executor(outputs), path, shapes, mcpu, constants, names)[0])


def exported(
    executor: Executor,
    path: Any,
    feed_shapes: Mapping[Node, Any] | None,
    mcpu: Any,
    constants: bool = False,
    names: Mapping[Node, str] | None = None,
) -> tuple[Exported, list[Node]]:
    """The same of an executor, for a `TargetName` too; returns the `library.Exported`, and the nodes that `step` takes,
    with `constants` all of them. `names`: of nodes, in place of their own."""
    if executor.ctx.kind == "cuda":
        raise DeviceError("export: only code for the CPU can be exported")
    plan, names, feed_shapes = executor.plan_for(feed_shapes), named(dict(names or {})), named(dict(feed_shapes or {}))
    for node in plan.graph.nodes:
        if node.op.by_numpy:
            raise error_at(node, GraphError, "NumPy computes it on the host, which a library cannot")
    updated = {parameter: None for parameter, _ in plan.graph.updates}
    if constants and updated:
        raise error_at(next(iter(updated)), GraphError, "is assigned, so it cannot be a constant")
    stands_for = {plan.leaves.get(node, node): node for node in (*feed_shapes, *plan.leaves)}
    given = dict.fromkeys(plan.given)
    fed = {leaf: None for leaf in stands_for if leaf in given}
    number = {node: i for i, node in enumerate(fed | given)}

    def taken(leaf: Node) -> Any:
        node = stands_for.get(leaf, leaf)
        value = None if leaf in stands_for or not leaf.op.leaf else np.asarray(array_on(leaf, cpu()))
        name = names.get(node, names.get(leaf, leaf.name))
        return library.Given(name, (leaf.shape, leaf.dtype), leaf in updated, value)

    def place(node: Node) -> Place:
        return Place(number[node], 0, node.shape, node.dtype)

    library = with_compiler("deploy.library")
    stored = [node for node in plan.results if node is not None and plan.memory.at(node)[0] not in updated]
    results, calls = [plan.place(node, place) for node in stored], plan.calls_at(place, plan.specs)
    kernels, arena = list(plan.specs.values()), plan.memory.bytes_planned
    made = library.export(kernels, calls, list(map(taken, number)), results, arena, Path(path), mcpu, constants)
    return made, [handle_of(stands_for.get(leaf, leaf)) for leaf in number]
