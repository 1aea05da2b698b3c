"""Compiling ahead: what a function of tensors computes, for several shapes at once, before any of them is needed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import numpy as np

from ..compiler import Plan, compile_plans
from ..devices import Array, host_array
from ..errors import GraphError
from ..graph import FLOATS, Node, Shape
from .base import Tensor
from .creation import tensor, tensors_in
from .differentiate import compiled_backward
from .state import changing
from .trace import Trace
from .values import compiled_values

Argument = Shape | np.ndarray | Tensor
"""What stands for an argument: a shape, of float32, or an array, of whose shape and dtype it is."""


def precompile(fn: Callable[..., object], shapes: Sequence[Argument | Sequence[Argument]]) -> None:
    """Compile what `fn` computes for each of several shapes, all kernels together, on all cores, so that later calls
    compile nothing.

        dl.precompile(model, [(n, 784) for n in (16, 64, 256)])
        labels = np.zeros(64, "int64")
        dl.precompile(lambda x, y: F.cross_entropy(model(x), y), [[(64, 784), labels]])

    Args:
        fn: a module or function of tensors that returns tensors, in tuples, lists and dictionaries too. It is called
            with zeros. What it returns is compiled and not computed; a result of one element that requires a gradient
            is compiled as its `backward` runs it. State that the call changed, as a batch norm's, is set back.
        shapes: for each call the shape of the one argument, or a list of the arguments' shapes; an array in place of a
            shape gives the dtype too.

    Raises GraphError for a result without tensors and for shapes that are no list, and what `fn` raises.
    """
    if not callable(fn):
        raise GraphError(f"precompile: takes a function or module, not {type(fn).__name__}")
    if not isinstance(shapes, Sequence) or isinstance(shapes, str):
        raise GraphError(f"precompile: shapes must be a list, as [(16, 784), (64, 784)], not {shapes!r}")
    plans: list[Plan] = []
    for given in shapes:
        alone = _is_array(given) or all(isinstance(extent, (int, np.integer)) for extent in cast(Shape, given))
        arguments = [given] if alone else list(cast(Sequence[Argument], given))
        with changing:
            plans += _plans_of(fn(*map(_zeros, arguments)))
    compile_plans(plans)


def _is_array(given: object) -> bool:
    return isinstance(given, (np.ndarray, Node, Array))


def _zeros(argument: object) -> Tensor:
    """Zeros of an array's shape and dtype, or of a shape, as float32."""
    if _is_array(argument):
        like = host_array(argument, np.float32)
        return tensor(np.zeros(like.shape, like.dtype))
    return tensor(np.zeros(cast(Shape, argument), np.float32))


def _plans_of(result: object) -> list[Plan]:
    """The plans by which results are computed, of each that is differentiated its own."""
    roots = list(tensors_in(result))
    if not roots:
        raise GraphError("precompile: the function must return tensors")
    losses = [root for root in roots if root.numel() == 1 and root.dtype in FLOATS and root.requires_grad]
    others = [root for root in roots if not any(root is loss for loss in losses)]
    traces = [Trace([loss], differentiated=True) for loss in losses] + ([Trace(others)] if others else [])
    made = [compiled_backward(loss, None, found) for loss, found in zip(losses, traces, strict=False)]
    if others and traces[-1].outputs:
        made.append(compiled_values(traces[-1]))
    for found in traces:
        for change in reversed(found.changes):  # the cell holds again what the change has read
            change.inputs[0].cell.content = change.read[0]
    return [plan for compiled, given in made for plan in compiled.plans(given)]
