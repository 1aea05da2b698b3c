"""Matrix products whose right operand lies in panels already: what passes make of a matrix that several products read.

A panel holds `width` neighbouring columns of a (k, n) matrix row by row, which is the order in which the products'
inner loop reads it: P[j, i, c] = B[i, j width + c], zeros beyond the last column.
"""

from __future__ import annotations

import math

import numpy as np

from .. import compute
from ..compute import Tensor
from ..errors import GraphError
from ..graph import Node, Op, Shape, error_at, register, shape_error


@register
class PackPanels(Op):
    """(k, n), with trans (n, k) -> (ceil(n / width), k, width)."""

    name = "pack_panels"
    flops = 0

    def infer_shape(self, node: Node, input_shapes: list[Shape]) -> Shape:
        if len(input_shapes[0]) != 2:
            raise shape_error(node, f"the input must be a matrix, not {input_shapes[0]}")
        k, n = input_shapes[0][::-1] if node.attrs["trans"] else input_shapes[0]
        if n != node.attrs["n"]:
            raise shape_error(node, f"the matrix {input_shapes[0]} has {n} columns, not {node.attrs['n']}")
        return (-(-n // node.attrs["width"]), k, node.attrs["width"])

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        raise _made_later(node)

    def te(self, node: Node, inputs: list[Tensor], shape: Shape, dtype: str) -> Tensor:
        return compute.pack_panels(inputs[0], shape, node.attrs["trans"])

    def numpy(self, node: Node, inputs: list[np.ndarray]) -> np.ndarray:
        b, width = inputs[0].T if node.attrs["trans"] else inputs[0], node.attrs["width"]
        k, n = b.shape
        padded = np.pad(b, ((0, 0), (0, -n % width)))
        return np.ascontiguousarray(padded.reshape(k, -(-n // width), width).transpose(1, 0, 2))


@register
class MatMulPanels(Op):
    """(m, k) x (panels, k, width) -> (m, n): the product with what lies in the panels."""

    name = "matmul_panels"
    contraction = True

    def infer_shape(self, node: Node, input_shapes: list[Shape]) -> Shape:
        a, panels = input_shapes
        _require_panels(node, panels, node.attrs["n"])
        if len(a) != 2 or a[1] != panels[1]:
            raise shape_error(node, f"inner dimensions differ: {a} x {panels}")
        return (a[0], node.attrs["n"])

    def flop(self, node: Node, input_shapes: list[Shape], shape: Shape) -> int:
        return 2 * math.prod(shape) * input_shapes[0][1]

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        raise _made_later(node)

    def te(self, node: Node, inputs: list[Tensor], shape: Shape, dtype: str) -> Tensor:
        return compute.matmul_panels(inputs[0], inputs[1], shape)

    def numpy(self, node: Node, inputs: list[np.ndarray]) -> np.ndarray:
        return inputs[0] @ _matrix(inputs[1], node.attrs["n"])


def _made_later(node: Node) -> GraphError:
    return error_at(node, GraphError, "a pass makes it of a product whose gradients are there already: it has none")


def _require_panels(node: Node, shape: Shape, n: int) -> None:
    if len(shape) != 3 or shape[2] != node.attrs["width"] or shape[0] != -(-n // shape[2]):
        raise shape_error(node, f"{shape} are no panels of {node.attrs['width']} columns of {n}")


def _matrix(panels: np.ndarray, n: int) -> np.ndarray:
    """The (k, n) matrix that lies in panels."""
    count, k, width = panels.shape
    return panels.transpose(1, 0, 2).reshape(k, count * width)[:, :n]


def pack_panels_op(node: Node, width: int, n: int, trans: bool = False) -> Node:
    """The matrix (k, n), or with trans (n, k), in panels of `width` columns."""
    return PackPanels.make([node], {"width": width, "n": n, "trans": trans})


def matmul_panels_op(a: Node, panels: Node, n: int, width: int) -> Node:
    """The product of a (m, k) and the (k, n) matrix that lies in panels of `width` columns."""
    return MatMulPanels.make([a, panels], {"n": n, "width": width})
