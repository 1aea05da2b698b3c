"""Modules and executors as shared libraries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..autodiff import Executor
from ..nn import Module
from .network import traced


def export(
    model: Module | Executor,
    path: Any,
    feed_shapes: Mapping[Any, Any] | None = None,
    *,
    constants: bool = False,
    mcpu: str | None = None,
) -> str:
    """Writes a run as the function `step` of a shared library, with a header for C and the parameters' values in a
    safetensors file beside it. Returns what `Executor.export` does.

    Args:
        model: a module, which is run in evaluation and whose parameters have their dotted names, `0.weight`; or an
            executor.
        path: of the library.
        feed_shapes: for a module a shape or an array for each argument of `forward`, in order, by the name that it
            shall have; a Network has its own. For an executor see `infer_shape`.
        constants: whether the values become part of the library.
        mcpu: the CPU by LLVM's name; None for this one.

    Raises GraphError for another model, and what `Executor.export` and `to_onnx` raise.
    """
    if isinstance(model, Executor):
        return model.export(path, feed_shapes, constants=constants, mcpu=mcpu)
    inputs, outputs, names = traced("export", model, feed_shapes)
    shapes = {node: node.attrs["shape"] for node in inputs}
    return Executor(outputs).export(path, shapes, constants=constants, mcpu=mcpu, names=names)
