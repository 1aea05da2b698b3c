"""Transposed convolution: conv2d's gradient of its images as an operator of its own, which enlarges them."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import compute
from ..compute import Tensor
from ..errors import GraphError
from ..graph import Node, Op, Shape, register, shape_error
from .conv import (
    conv2d_filter_gradient_op,
    conv2d_op,
    conv_attributes,
    conv_output_shape,
    geometry_of,
    input_gradient,
)
from .rules import pair_attribute


@register
class ConvTranspose2d(Op):
    """out = conv2d_input_gradient(f, x), of the smallest images that give x, and output_padding rows and columns more.

    From <conv_transpose2d(x, f), g> = <x, conv2d(g, f)>: dx = conv2d(g, f), df = conv2d_filter_gradient(g, x).
    """

    name = "conv_transpose2d"
    contraction = True

    def infer_shape(self, node: Node, input_shapes: list[Shape]) -> Shape:
        x, f = input_shapes
        stride, padding, dilation, groups = geometry_of(node)
        if len(x) != 4 or len(f) != 4:
            raise shape_error(node, f"images and filters have four dimensions, not {x} and {f}")
        if x[1] != f[0]:
            raise shape_error(node, f"channels differ: images {x}, filters {f}")
        extents = zip(x[2:], f[2:], stride, padding, dilation, node.attrs["output_padding"], strict=True)
        space = [(n - 1) * s - 2 * p + d * (k - 1) + more + 1 for n, k, s, p, d, more in extents]
        if min(*x[2:], *f[2:], *space) < 1:
            raise shape_error(node, f"images {x} with filters {f} and padding {padding} give {tuple(space)}")
        shape = (x[0], f[1] * groups, space[0], space[1])
        conv_output_shape(node, shape, f)
        return shape

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        (x, f), geometry = node.inputs, geometry_of(node)
        return [conv2d_op(output_grad, f, *geometry), conv2d_filter_gradient_op(output_grad, x, f, *geometry)]

    def te(self, node: Node, inputs: list[Tensor], shape: Shape, dtype: str) -> Tensor:
        x, f = inputs
        return compute.conv2d_input_gradient(f, x, shape, *geometry_of(node))

    def numpy(self, node: Node, inputs: list[np.ndarray]) -> np.ndarray:
        x, f = inputs
        return input_gradient(node, f, x, self.infer_shape(node, [x.shape, f.shape]))


def conv_transpose2d_op(
    x: Node,
    f: Node,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Node:
    """Transposed convolution of images x (N, C, H, W) with filters f (C, O / groups, h, w) -> (N, O, H', W').

    H' = (H - 1) stride - 2 padding + dilation (h - 1) + output_padding + 1. All are ints or pairs (rows, columns) but
    groups; output_padding is less than stride. GraphError for anything else.
    """
    attrs = conv_attributes("conv_transpose2d", stride, padding, dilation, groups)
    attrs["output_padding"] = more = pair_attribute("conv_transpose2d", "output_padding", output_padding, 0)
    if any(rest >= step for rest, step in zip(more, attrs["stride"], strict=True)):
        raise GraphError(
            f"conv_transpose2d: output_padding {more} must be less than stride {attrs['stride']}"
        )
    return ConvTranspose2d.make([x, f], attrs)
