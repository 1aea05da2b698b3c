"""Images of other sizes: padded, resized, their channels as pixels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ... import autodiff as ad
from ...checks import flag, integer, integers, number, real, word
from ...errors import GraphError, ShapeError
from ...graph import Node
from ...ops.replay import function
from ...tensors import Tensor, tensor
from ...tensors.arguments import node_of, require_float


@function(on_tensors=True)
def pad(input: Node, pad: Sequence[int], mode: str = "constant", value: float | None = 0.0) -> Tensor:
    """The input with `value` around it, or, for the modes "reflect" and "replicate", its own elements,
    mirrored at the first and the last, or these; pad is (before, after) of the last axis, then of the one before, ...
    Raises GraphError."""
    word("pad", "mode", mode, ("constant", "reflect", "replicate"))
    shape = input.shape
    if not isinstance(pad, (tuple, list)):
        raise GraphError(f"pad: takes a list of widths, not {pad!r}")
    if len(pad) % 2 or len(pad) > 2 * len(shape):
        raise GraphError(f"pad: {tuple(pad)} are not pairs for the last of {len(shape)} axes")
    flat = [integer("pad", "a width", width, 0) for width in pad]
    pairs = [(0, 0)] * (len(shape) - len(flat) // 2) + list(zip(flat[-2::-2], flat[::-2], strict=True))
    if mode == "constant":
        return ad.pad_op(input, pairs, 0.0 if value is None else value) if any(map(any, pairs)) else node_of(input)
    if value is not None and real("pad", "value", value):
        raise GraphError(f'pad: mode "{mode}" takes no value, and there is {value!r}')
    for axis, (extent, widths) in enumerate(zip(shape, pairs, strict=True)):
        if any(widths):
            if max(widths) >= extent and (mode == "reflect" or extent == 0):
                raise ShapeError(f"pad: {widths} are too many to {mode} axis {axis} of {input.name} of shape {shape}")
            places = np.pad(np.arange(extent), widths, mode="reflect" if mode == "reflect" else "edge")
            input = ad.take_op(input, tensor(places), axis)
    return node_of(input)


@function(on_tensors=True)
def interpolate(
    input: Node,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
) -> Tensor:
    """x (N, C, *space) with its space in another size, given or `scale_factor` times its own.

    Args:
        mode: "nearest" takes the element before each place, "bilinear", of floats and two axes, weighs the two beside
            it along each axis.
        align_corners: whether the outermost elements, not their edges, keep their places; of "bilinear".
        recompute_scale_factor: whether the distance of places is that of the sizes, not 1 / scale_factor.

    Raises DTypeError, GraphError, ShapeError.
    """
    if word("interpolate", "mode", mode, ("nearest", "bilinear")) == "bilinear":
        require_float("interpolate", input)
    shape = input.shape
    space = shape[2:]
    if not space or 0 in space or (mode == "bilinear" and len(space) != 2):
        raise ShapeError(f"interpolate: {input.name} has shape {shape}, which mode {mode!r} does not take")
    if (size is None) == (scale_factor is None):
        raise GraphError(f"interpolate: takes either a size or a scale_factor, not {size!r} and {scale_factor!r}")
    if align_corners is not None and mode == "nearest":
        raise GraphError('interpolate: align_corners is of mode "bilinear"')
    if size is None:
        given = scale_factor if isinstance(scale_factor, (tuple, list)) else (scale_factor,) * len(space)
        if len(given) != len(space):
            raise GraphError(f"interpolate: scale_factor must be a number or {len(space)} of them, not {given!r}")
        factors = [number("interpolate", "scale_factor", factor) for factor in given]
        size = [math.floor(n * factor) for n, factor in zip(space, factors, strict=True)]
    size = integers("interpolate", "size", size, 1, len(space))
    keeps = scale_factor is not None and not flag("interpolate", "recompute_scale_factor", recompute_scale_factor)
    for axis, (old, new) in enumerate(zip(space, size, strict=True)):
        step = 1 / factors[axis] if keeps else old / new
        input = _resized(input, axis + 2, old, new, step, mode, flag("interpolate", "align_corners", align_corners))
    return node_of(input)


def _resized(x: Node, axis: int, old: int, new: int, step: float, mode: str, corners: bool) -> Tensor:
    """x with `new` elements along an axis, at places `step` apart."""
    if mode == "nearest":
        places = np.floor(np.arange(new, dtype="float32") * np.float32(step)).astype("int64")
        return ad.take_op(x, tensor(np.minimum(places, old - 1)), axis)
    at = np.arange(new) * ((old - 1) / max(new - 1, 1)) if corners else (np.arange(new) + 0.5) * step - 0.5
    before = np.minimum(np.floor(np.maximum(at, 0.0)).astype("int64"), old - 1)
    shares = (np.maximum(at, 0.0) - before).reshape(-1, *(1,) * (len(x.shape) - axis - 1))
    low, high = (ad.take_op(x, tensor(np.minimum(before + more, old - 1)), axis) for more in (0, 1))
    return low + (high - low) * ad.cast_like_op(tensor(shares), x)


@function(on_tensors=True)
def pixel_shuffle(input: Node, upscale_factor: int) -> Tensor:
    """(..., C r^2, H, W) as (..., C, H r, W r), r being the factor: the channels of a pixel become its
    rows and columns. Raises GraphError, ShapeError."""
    r = integer("pixel_shuffle", "upscale_factor", upscale_factor, 1)
    shape = input.shape
    if len(shape) < 3 or shape[-3] % (r * r):
        raise ShapeError(f"pixel_shuffle: {input.name} of shape {shape} has no multiple of {r * r} channels")
    *lead, channels, rows, columns = shape
    parts = ad.reshape_op(input, (-1, channels // (r * r), r, r, rows, columns))
    moved = ad.transpose_op(parts, (0, 1, 4, 2, 5, 3))
    return ad.reshape_op(moved, (*lead, channels // (r * r), rows * r, columns * r))
