"""Convolution and pooling of volumes (N, C, D, H, W), of known shapes, by the names of torch.nn.functional.

They are those of images: a convolution reads the depths of each window as channels, and pooling goes over rows and
columns first, then over depths. N may be left out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .. import autodiff as ad
from ..autodiff import Node
from ..errors import GraphError, ShapeError
from .checks import extents, shape_of
from .functional_windows import (
    adaptive_avg_pool2d,
    avg_pool2d,
    batched,
    conv2d,
    max_pool2d,
    padded,
    per_channel,
    word_padding,
)


def conv3d(
    input: Node,
    weight: Node,
    bias: Node | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Node:
    """Cross-correlation of volumes (N, C, D, H, W) with weight (O, C / groups, d, h, w), plus bias (O,); padding as in
    conv2d. It takes memory for each window's depths: d times the input. Raises GraphError, ShapeError."""
    filters = shape_of("conv3d", weight)
    if len(filters) != 5:
        raise ShapeError(f"conv3d: the weight must be (O, C / groups, d, h, w), not {filters}")
    (step, *steps), (hole, *holes) = (
        extents("conv3d", name, value, 1, 3) for name, value in (("stride", stride), ("dilation", dilation))
    )
    if isinstance(padding, str):
        around = word_padding("conv3d", weight, padding, stride, dilation, 3)
    else:
        around = [(p, p) for p in extents("conv3d", "padding", padding, 0, 3)]
    depth = filters[2]

    def of_batch(x: Node) -> Node:
        x = padded(x, around)
        shape = shape_of("conv3d", x)
        if len(shape) != 5:
            raise ShapeError(f"conv3d: takes volumes (N, C, D, H, W) or (C, D, H, W), not {shape}")
        count = (shape[2] - hole * (depth - 1) - 1) // step + 1
        if count < 1:
            raise ShapeError(f"conv3d: windows of depth {hole * (depth - 1) + 1} in a volume of depth {shape[2]}")
        parts = [x[:, :, i * hole : i * hole + step * (count - 1) + 1 : step] for i in range(depth)]
        images = ad.transpose_op(ad.stack_op(parts, 2), (0, 3, 1, 2, 4, 5))  # (N, D', C, d, H, W)
        images = ad.reshape_op(images, (shape[0] * count, shape[1] * depth, *shape[3:]))
        flat = ad.reshape_op(weight, (filters[0], filters[1] * depth, *filters[3:]))
        y = conv2d(images, flat, None, tuple(steps), 0, tuple(holes), groups)
        rows, columns = shape_of("conv3d", y)[2:]
        y = ad.swapaxes_op(ad.reshape_op(y, (shape[0], count, filters[0], rows, columns)), 1, 2)
        return y if bias is None else y + per_channel(bias, 3)

    return batched(input, 3, of_batch)


def _over_axes(op: str, input: Node, images: Callable[[Node], Node], depths: Callable[[Node], Node]) -> Node:
    """What is done to rows and columns as of images, and then to depths as of images of one column."""

    def of_batch(x: Node) -> Node:
        shape = shape_of(op, x)
        if len(shape) != 5:
            raise ShapeError(f"{op}: takes volumes (N, C, D, H, W) or (C, D, H, W), not {shape}")
        n, c, d = shape[:3]
        y = images(ad.reshape_op(x, (n, c * d, *shape[3:])))
        rows, columns = shape_of(op, y)[2:]
        y = depths(ad.reshape_op(y, (n, c, d, rows * columns)))
        return ad.reshape_op(y, (n, c, shape_of(op, y)[2], rows, columns))

    return batched(input, 3, of_batch)


def _windows(op: str, kernel_size: Any, stride: Any, padding: Any) -> list[tuple[int, ...]]:
    kernel, before = extents(op, "kernel_size", kernel_size, 1, 3), extents(op, "padding", padding, 0, 3)
    return [kernel, kernel if stride is None else extents(op, "stride", stride, 1, 3), before]


def _apart(parts: list[tuple[int, ...]], alone: tuple[int, ...]) -> tuple[list[Any], list[Any]]:
    """Settings of three axes as those of rows and columns, and those of depths beside an axis that stays."""
    return [part[1:] for part in parts], [(part[0], at) for part, at in zip(parts, alone, strict=True)]


def max_pool3d(
    input: Node, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
) -> Node:
    """The maxima of windows of volumes, as `max_pool2d`; without their places. Raises GraphError, ShapeError."""
    parts = [*_windows("max_pool3d", kernel_size, stride, padding), extents("max_pool3d", "dilation", dilation, 1, 3)]
    flat, deep = _apart(parts, (1, 1, 0, 1))
    return _over_axes(
        "max_pool3d",
        input,
        lambda x: max_pool2d(x, *(*flat, ceil_mode)),
        lambda x: max_pool2d(x, *(*deep, ceil_mode)),
    )


def avg_pool3d(
    input: Node,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Node:
    """The means of windows of volumes, as `avg_pool2d`. Raises GraphError, ShapeError."""
    parts = _windows("avg_pool3d", kernel_size, stride, padding)
    flat, deep = _apart(parts, (1, 1, 0))
    more: Any = (ceil_mode, count_include_pad)
    return _over_axes(
        "avg_pool3d", input, lambda x: avg_pool2d(x, *flat, *more), lambda x: avg_pool2d(x, *deep, *more)
    )


def adaptive_avg_pool3d(input: Node, output_size: Any) -> Node:
    """The means of windows that share volumes out evenly: (N, C, *output_size), of which None keeps the extent. Raises
    GraphError, ShapeError."""
    op = "adaptive_avg_pool3d"
    given = tuple(output_size) if isinstance(output_size, (tuple, list)) else (output_size,) * 3
    if len(given) != 3:
        raise GraphError(f"{op}: output_size must be an integer or three, not {output_size!r}")
    own = shape_of(op, input)[-3:]
    wanted = [n if out is None else out for out, n in zip(given, own, strict=True)]
    depth, *flat = extents(op, "output_size", wanted, 1, 3)
    return _over_axes(
        op,
        input,
        lambda x: adaptive_avg_pool2d(x, flat),
        lambda x: adaptive_avg_pool2d(x, (depth, shape_of(op, x)[3])),
    )
