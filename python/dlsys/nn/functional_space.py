"""What moves or repeats the values of images and sequences: padding, resizing, channels to pixels; by the names and in
the argument order of torch.nn.functional. The shape of what they are given must be known at the call."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import autodiff as ad
from ..autodiff import Node
from ..eager import dtype_of, tensor
from ..errors import GraphError, ShapeError
from ..graph import Shape
from .checks import checked_extent, extents, pair, shape_of
from .functional_windows import adaptive_avg_pool1d, adaptive_avg_pool2d, batched

PAD_MODES = ("constant", "reflect", "replicate", "circular")


def pad(input: Node, pad: Sequence[int], mode: str = "constant", value: float | None = 0.0) -> Node:
    """The input with more around it: pad is (before, after) of the last axis, then of the one before, ...

    mode: "constant", `value`; "reflect", the values mirrored at the outermost one; "replicate", the outermost one;
    "circular", those of the other end. Less than 0 takes values away. Raises GraphError; ShapeError for more than the
    values of "reflect" and "circular".
    """
    if mode not in PAD_MODES:
        known = ", ".join(f'"{name}"' for name in PAD_MODES)
        raise GraphError(f"pad: mode must be one of {known}, not {mode!r}")
    shape = shape_of("pad", input)
    if len(pad) % 2 or len(pad) > 2 * len(shape):
        raise GraphError(f"pad: {tuple(pad)} are not pairs for the last of {len(shape)} axes")
    widths = [checked_extent("pad", "a width", width, -(2**31)) for width in pad]
    pairs = [(0, 0)] * (len(shape) - len(widths) // 2) + list(zip(widths[-2::-2], widths[::-2], strict=True))
    for axis, (before, after) in enumerate(pairs):
        if min(before, after) < 0:
            kept = slice(max(-before, 0), shape[axis] - max(-after, 0))
            if kept.start > kept.stop:
                raise ShapeError(f"pad: {shape} has no {max(-before, 0)} and {max(-after, 0)} to lose at axis {axis}")
            input = _part(input, axis, kept)
    pairs = [(max(before, 0), max(after, 0)) for before, after in pairs]
    if not any(map(any, pairs)):
        return input
    if mode == "constant":
        return ad.pad_op(input, pairs, 0.0 if value is None else value)
    for axis, (before, after) in enumerate(pairs):
        if before or after:
            input = _continued(input, axis, before, after, mode)
    return input


def _part(x: Node, axis: int, kept: slice) -> Node:
    return ad.slice_op(x, (*[slice(None)] * axis, kept))


def _continued(x: Node, axis: int, before: int, after: int, mode: str) -> Node:
    """x with what its own values say before and behind it. Raises ShapeError."""
    shape = shape_of("pad", x)
    extent = shape[axis]
    limit = {"reflect": extent - 1, "circular": extent, "replicate": math.inf if extent else 0}[mode]
    if max(before, after) > limit:
        raise ShapeError(f"pad: {mode!r} continues axis {axis} of {shape} by {limit} at most, not {max(before, after)}")
    if mode == "circular":
        first, last = _part(x, axis, slice(extent - before, extent)), _part(x, axis, slice(0, after))
    elif mode == "reflect":
        first = ad.flip_op(_part(x, axis, slice(1, before + 1)), axis)
        last = ad.flip_op(_part(x, axis, slice(extent - 1 - after, extent - 1)), axis)
    else:
        first, last = (
            ad.broadcast_shape_op(_part(x, axis, edge), (*shape[:axis], width, *shape[axis + 1 :]))
            for edge, width in ((slice(0, 1), before), (slice(extent - 1, extent), after))
        )
    return ad.concatenate_op([*[first] * bool(before), x, *[last] * bool(after)], axis)


# Resizing --------------------------------------------------------------------------------------------------

LINEAR = {"linear": 1, "bilinear": 2, "bicubic": 2}
"""Modes between pixels, and the number of their axes."""


def interpolate(
    input: Node,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Node:
    """(N, C, *space) in another size: `size`, or floor(extent * scale_factor), each one number or one of each axis.

    mode: "nearest", "nearest-exact" or "area" of any space, "linear" of (N, C, L), "bilinear" and "bicubic" of
    (N, C, H, W). align_corners: whether the outermost values' centres stay where they are, rather than their edges.
    Raises GraphError, ShapeError.
    """
    shape = shape_of("interpolate", input)
    axes = len(shape) - 2
    if mode not in ("nearest", "nearest-exact", "area", *LINEAR):
        raise GraphError(f"interpolate: unknown mode {mode!r}")
    if axes < 1 or 0 in shape[2:] or axes != LINEAR.get(mode, axes) or (mode == "area" and axes > 2):
        raise ShapeError(f"interpolate: mode {mode!r} does not fit {shape}")
    if align_corners is not None and mode not in LINEAR:
        raise GraphError(f"interpolate: align_corners is of {', '.join(LINEAR)}, not of {mode!r}")
    if antialias:
        raise GraphError("interpolate: antialias is not supported")
    if (size is None) == (scale_factor is None):
        raise GraphError("interpolate: give either size or scale_factor")
    if size is not None:
        target = extents("interpolate", "size", size, 1, axes)
        scales = [n / m for n, m in zip(shape[2:], target, strict=True)]
    else:
        factors = _factors(scale_factor, axes)
        target = tuple(math.floor(n * factor) for n, factor in zip(shape[2:], factors, strict=True))
        scales = [1 / factor for factor in factors]
        if recompute_scale_factor:
            scales = [n / m for n, m in zip(shape[2:], target, strict=True)]
        if not min(target):
            raise ShapeError(f"interpolate: {shape} times {scale_factor!r} is nothing")
    if mode == "area":
        pools = {1: adaptive_avg_pool1d, 2: adaptive_avg_pool2d}
        return pools[axes](input, target)
    whole = [n / m for n, m in zip(shape[2:], target, strict=True)] == scales
    if mode == "nearest" and whole and all(m % n == 0 for m, n in zip(target, shape[2:], strict=True)):
        return _repeated(input, shape, target)
    for axis, (extent, scale) in enumerate(zip(target, scales, strict=True), 2):
        if mode in LINEAR or extent != shape[axis] or scale != 1:
            taps = _taps(mode, shape[axis], extent, scale, bool(align_corners))
            input = _sampled(input, axis, len(shape), taps)
    return input


def _factors(scale_factor: Any, axes: int) -> list[float]:
    given = list(scale_factor) if isinstance(scale_factor, (tuple, list)) else [scale_factor] * axes
    fits = all(isinstance(n, (int, float)) and not isinstance(n, bool) and 0 < n < math.inf for n in given)
    if len(given) != axes or not fits:
        raise GraphError(f"interpolate: scale_factor must be a number > 0, or {axes} of them, not {scale_factor!r}")
    return [float(n) for n in given]


def _repeated(x: Node, shape: Shape, target: Sequence[int]) -> Node:
    """Every value several times."""
    apart = [n for extent in shape[2:] for n in (extent, 1)]
    wide = [n for extent, m in zip(shape[2:], target, strict=True) for n in (extent, m // extent)]
    repeated = ad.broadcast_shape_op(ad.reshape_op(x, (*shape[:2], *apart)), (*shape[:2], *wide))
    return ad.reshape_op(repeated, (*shape[:2], *target))


Taps = list[tuple[np.ndarray, np.ndarray | None]]
"""Which values make a result, and the weight of each; None is 1."""


def _taps(mode: str, extent: int, target: int, scale: float, align_corners: bool) -> Taps:
    at: np.ndarray = np.arange(target)
    if mode in ("nearest", "nearest-exact"):  # PyTorch rounds to float32, on which the pixel can depend
        edge = at.astype("float32") + np.float32(0 if mode == "nearest" else 0.5)
        return [(np.minimum(np.floor(edge * np.float32(scale)), extent - 1), None)]
    if align_corners:
        place = at * ((extent - 1) / (target - 1) if target > 1 else 0.0)
    else:
        place = (at + 0.5) * scale - 0.5
    if mode != "bicubic":
        place = np.clip(place, 0, extent - 1)
        first = np.floor(place)
        way = place - first
        return [(first, 1 - way), (np.minimum(first + 1, extent - 1), way)]
    first = np.floor(place)
    return [
        (np.clip(first + step, 0, extent - 1), _cubic(np.abs(place - first - step))) for step in (-1, 0, 1, 2)
    ]


def _cubic(d: np.ndarray) -> np.ndarray:
    """Keys' kernel (1981) with a = -0.75 at the distances d in [0, 2]."""
    a = -0.75
    inner = ((a + 2) * d - (a + 3)) * d * d + 1
    return np.where(d <= 1, inner, ((d - 5) * d + 8) * d * a - 4 * a)


def _sampled(x: Node, axis: int, rank: int, taps: Taps) -> Node:
    parts = []
    for indices, weights in taps:
        part = ad.take_op(x, tensor(indices.astype("int64")), axis)
        if weights is not None:
            part = part * tensor(weights.reshape(-1, *(1,) * (rank - axis - 1)), dtype_of(x))
        parts.append(part)
    return ad.sum_node_list(parts)


# Channels and pixels -----------------------------------------------------------------------------------------


def pixel_shuffle(input: Node, upscale_factor: int) -> Node:
    """(..., C r r, H, W) -> (..., C, H r, W r), r squares of channels becoming squares of pixels: Shi et al. (2016).
    Raises GraphError, ShapeError."""
    r = checked_extent("pixel_shuffle", "upscale_factor", upscale_factor)
    *batch, channels, height, width = _images("pixel_shuffle", input)
    if channels % (r * r):
        raise ShapeError(f"pixel_shuffle: {channels} channels are no multiple of {r} x {r}")
    apart = ad.reshape_op(input, (math.prod(batch) * channels // (r * r), r, r, height, width))
    return ad.reshape_op(
        ad.transpose_op(apart, (0, 3, 1, 4, 2)), (*batch, channels // (r * r), height * r, width * r)
    )


def pixel_unshuffle(input: Node, downscale_factor: int) -> Node:
    """(..., C, H r, W r) -> (..., C r r, H, W), the inverse of `pixel_shuffle`. Raises GraphError, ShapeError."""
    r = checked_extent("pixel_unshuffle", "downscale_factor", downscale_factor)
    *batch, channels, height, width = _images("pixel_unshuffle", input)
    if height % r or width % r:
        raise ShapeError(f"pixel_unshuffle: {height} x {width} pixels do not divide by {r}")
    apart = ad.reshape_op(input, (math.prod(batch) * channels, height // r, r, width // r, r))
    return ad.reshape_op(
        ad.transpose_op(apart, (0, 2, 4, 1, 3)), (*batch, channels * r * r, height // r, width // r)
    )


def channel_shuffle(input: Node, groups: int) -> Node:
    """(N, C, *space) with the channels of `groups` groups dealt out in turn. Raises GraphError, ShapeError."""
    groups = checked_extent("channel_shuffle", "groups", groups)
    shape = shape_of("channel_shuffle", input)
    if len(shape) < 3 or shape[1] % groups:
        raise ShapeError(f"channel_shuffle: the channels of {shape} do not divide into {groups} groups")
    apart = ad.reshape_op(input, (shape[0], groups, shape[1] // groups, -1))
    return ad.reshape_op(ad.swapaxes_op(apart, 1, 2), shape)


def _images(function: str, x: Node) -> Shape:
    shape = shape_of(function, x)
    if len(shape) < 3:
        raise ShapeError(f"{function}: needs images (..., C, H, W), not {shape}")
    return shape


# Windows as columns ------------------------------------------------------------------------------------------


def unfold(input: Node, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1) -> Node:
    """Images (N, C, H, W) as the columns of their windows: (N, C h w, number of windows). Raises GraphError,
    ShapeError."""
    kernel, holes, around, step = _geometry("unfold", kernel_size, dilation, padding, stride)

    def of_batch(x: Node) -> Node:
        x = ad.pad_op(x, [(0, 0), (0, 0), *[(p, p) for p in around]]) if any(around) else x
        shape = _images("unfold", x)
        keys, count = _windows("unfold", shape[-2:], kernel, holes, step)
        parts = [ad.reshape_op(ad.slice_op(x, key), (*shape[:2], count)) for key in keys]
        return ad.reshape_op(ad.stack_op(parts, 2), (shape[0], shape[1] * len(parts), count))

    return batched(input, 2, of_batch)


def fold(
    input: Node, output_size: Any, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1
) -> Node:
    """The sums of columns (N, C h w, number of windows) where their windows lie in images (N, C, *output_size). Raises
    GraphError, ShapeError."""
    kernel, holes, around, step = _geometry("fold", kernel_size, dilation, padding, stride)
    space = pair("fold", "output_size", output_size, 1)
    full = tuple(n + 2 * p for n, p in zip(space, around, strict=True))

    def of_batch(x: Node) -> Node:
        shape = shape_of("fold", x)
        keys, count = _windows("fold", full, kernel, holes, step)
        if len(shape) != 3 or shape[1] % len(keys) or shape[2] != count:
            raise ShapeError(f"fold: {shape} are no {count} columns of windows {kernel} in images of {space}")
        batch, channels = shape[0], shape[1] // len(keys)
        each = ad.reshape_op(x, (batch, channels, len(keys), *_counts(full, kernel, holes, step)))
        parts = []
        for number, key in enumerate(keys):
            part = ad.slice_op(each, (slice(None), slice(None), number))
            for axis, apart in zip((2, 3), step, strict=True):
                part = ad.dilate_op(part, axis, apart - 1) if apart > 1 else part
            spans = [slice(0, at.stop - at.start) for at in key[2:]]  # without the zeros behind the last
            beside = [(at.start, n - at.stop) for at, n in zip(key[2:], full, strict=True)]
            parts.append(ad.pad_op(ad.slice_op(part, (slice(None), slice(None), *spans)), [(0, 0), (0, 0), *beside]))
        inner = tuple(slice(p, n + p) for n, p in zip(space, around, strict=True))
        return ad.slice_op(ad.sum_node_list(parts), (slice(None), slice(None), *inner))

    return batched(input, 1, of_batch)


def _geometry(op: str, kernel: Any, dilation: Any, padding: Any, stride: Any) -> list[tuple[int, int]]:
    given = (("kernel_size", kernel, 1), ("dilation", dilation, 1), ("padding", padding, 0), ("stride", stride, 1))
    return [pair(op, name, value, least) for name, value, least in given]


def _counts(space: Sequence[int], kernel: Sequence[int], holes: Sequence[int], step: Sequence[int]) -> list[int]:
    return [(n - d * (k - 1) - 1) // s + 1 for n, k, d, s in zip(space, kernel, holes, step, strict=True)]


def _windows(
    op: str, space: Sequence[int], kernel: Sequence[int], holes: Sequence[int], step: Sequence[int]
) -> tuple[list[tuple[slice, ...]], int]:
    """For each place in a window what all windows read there, and how many windows there are. Raises ShapeError."""
    counts = _counts(space, kernel, holes, step)
    if min(counts) < 1:
        raise ShapeError(f"{op}: windows {tuple(kernel)} do not fit images of {tuple(space)}, padding included")
    rows, columns = (
        [slice(i * d, i * d + s * (count - 1) + 1, s) for i in range(k)]
        for k, d, s, count in zip(kernel, holes, step, counts, strict=True)
    )
    return [(slice(None), slice(None), row, column) for row in rows for column in columns], math.prod(counts)
