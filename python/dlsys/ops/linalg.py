"""Matrix multiplication, of matrices, vectors and batches of matrices.

matmul is bilinear in a and b. With <,> the sum of products, its gradients are defined by
<matmul(a, b), g> = <a, matmul_gradient(b, g)> = <b, matmul_gradient(a, g)>, from which the gradients of all follow.

A right operand that several products read is laid out once, by a pass, in the order in which their inner loops read it:
a panel holds `width` neighbouring columns of a (k, n) matrix row by row, P[j, i, c] = B[i, j width + c], zeros beyond
the last column. That is no operator of users', and has no gradient.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from .. import compute
from ..checks import flag, word
from ..errors import ShapeError
from ..graph import NUMBERS, Formula, Made, Node, Op, Shape, register, shape_error
from .rules import broadcast_rule, in_product_dtype, product_dtype
from .shape import reshape_op
from .types import known_shape


def _matmul(a: np.ndarray, b: np.ndarray, trans_a: bool, trans_b: bool) -> np.ndarray:
    a, b = in_product_dtype(a, b)
    return _swapped(a, trans_a) @ _swapped(b, trans_b)


def _matmul_gradient(
    other: np.ndarray, grad: np.ndarray, shape: Shape, left: bool, trans: bool, trans_other: bool
) -> np.ndarray:
    """Vectors are matrices of one row or column here; what broadcasting repeated is summed."""
    if len(shape) == 1:
        grad = np.expand_dims(grad, grad.ndim - (other.ndim > 1) if left else grad.ndim)
    if other.ndim == 1:
        grad = np.expand_dims(grad, grad.ndim if left else grad.ndim - 1)
        other = other[:, None] if left else other[None]
    other = _swapped(other, not trans_other)
    found = _swapped(grad @ other if left else other @ grad, trans)
    wide = ((1, *shape) if left else (*shape, 1)) if len(shape) == 1 else shape
    lead = found.ndim - len(wide)
    axes = [axis for axis in range(found.ndim - 2) if axis < lead or wide[axis - lead] != found.shape[axis]]
    return (found.sum(axis=tuple(axes), keepdims=True) if axes else found).reshape(shape)


def _pack_panels(b: np.ndarray, shape: Shape, trans: bool) -> np.ndarray:
    b, (count, k, width) = b.T if trans else b, shape
    return np.pad(b, ((0, 0), (0, -b.shape[1] % width))).reshape(k, count, width).transpose(1, 0, 2)


def _matmul_panels(a: np.ndarray, panels: np.ndarray, shape: Shape) -> np.ndarray:
    *lead, count, k, width = panels.shape
    return a @ np.moveaxis(panels, -3, -2).reshape(*lead, k, count * width)[..., : shape[-1]]


def _swapped(x: np.ndarray, swap: bool) -> np.ndarray:
    return x.swapaxes(-1, -2) if swap else x


def _flags(node: Node) -> tuple[bool, bool]:
    return node.attrs["trans_A"], node.attrs["trans_B"]


def _product_shape(node: Node, shape_a: Shape, shape_b: Shape) -> Shape:
    """The shape of matmul(a, b). Raises ShapeError."""
    flags = [name for name in ("trans_A", "trans_B") if node.attrs[name]]
    suffix = f" with {' and '.join(flags)}" if flags else ""
    both = f"{shape_a} x {shape_b}{suffix}"
    for name, shape in (("trans_A", shape_a), ("trans_B", shape_b)):
        if not shape:
            raise shape_error(node, f"operands must be vectors or matrices, not scalars: {both}")
        if len(shape) == 1 and name in flags:
            raise shape_error(node, f"a vector has no two axes to transpose: {both}")
    *m, k = shape_a[-2:][::-1] if node.attrs["trans_A"] else shape_a[-2:]
    k_b, *n = shape_b[-2:][::-1] if node.attrs["trans_B"] else shape_b[-2:]
    if k != k_b:
        raise shape_error(node, f"inner dimensions differ: {both}")
    try:
        lead = broadcast_rule(shape_a[:-2], shape_b[:-2])
    except ShapeError:
        raise shape_error(node, f"leading dimensions do not broadcast: {both}") from None
    return (*lead, *m, *n)


@register
class MatMul(Op):
    """C = op(A) op(B), where op transposes if trans_A, trans_B: (..., m, k) x (..., k, n) -> (..., m, n); of uint8 and
    int8 in int32."""

    name = "matmul"
    kind = "contraction"
    dtypes = NUMBERS
    formula: ClassVar[Formula] = compute.matmul
    reference: ClassVar[Formula] = _matmul
    takes: ClassVar[Sequence[str]] = ("trans_A", "trans_B")

    def infer_shape(self, node: Node, input_shapes: list[Shape]) -> Shape:
        return _product_shape(node, *input_shapes)

    def infer_dtype(self, node: Node, input_dtypes: list[str]) -> str:
        return product_dtype(self, node, input_dtypes)

    def flop(self, node: Node, input_shapes: list[Shape], shape: Shape) -> int:
        return 2 * math.prod(shape) * input_shapes[0][-2 if node.matmul_attr_trans_A else -1]

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        (a, b), flags = node.inputs, _flags(node)
        return [
            matmul_gradient_op(b, output_grad, a, "A", *flags),
            matmul_gradient_op(a, output_grad, b, "B", *flags),
        ]


@register
class MatMulGradient(Op):
    """From the other operand and the product's gradient that of operand "A" or "B", of like's shape.

    dA' = G B'^T and dB' = A'^T G for A' = op(A), B' = op(B), summed over what broadcasting repeated; transposed where
    A, B are. With known shapes it is a matmul where the sum is none, or can be part of the product: to the bit, but for
    the order in which one sum over batches is taken.
    """

    name = "matmul_gradient"
    kind = "contraction"
    dtypes = NUMBERS
    shape_only: ClassVar[Sequence[int]] = (2,)
    formula: ClassVar[Formula] = compute.matmul_gradient
    reference: ClassVar[Formula] = _matmul_gradient

    def infer_shape(self, node: Node, input_shapes: list[Shape]) -> Shape:
        other, grad, like = input_shapes
        a, b = (like, other) if node.attrs["operand"] == "A" else (other, like)
        expected = _product_shape(node, a, b)
        if grad != expected:
            raise shape_error(node, f"the product of {a} and {b} is {expected}, the gradient {grad}")
        return like

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        (other, g, _), flags, v = node.inputs, _flags(node), output_grad
        left = node.attrs["operand"] == "A"
        product = matmul_op(*((v, other) if left else (other, v)), *flags)
        return [matmul_gradient_op(v, g, other, "B" if left else "A", *flags), product, None]

    def adds_up(self, node: Node, like: Node) -> bool:
        rank, of_other = (len(known_shape(value) or ()) for value in (like, node.inputs[0]))
        return node.inputs[2] is like and 2 <= rank <= of_other

    def arguments(self, node: Node, shapes: list[Shape], shape: Shape) -> tuple[Any, ...]:
        left, flags = node.attrs["operand"] == "A", _flags(node)
        return shape, left, *(flags if left else flags[::-1])

    def known(self, node: Node, shapes: Sequence[Shape], dtypes: Sequence[str]) -> Node | None:
        """A product of batches where no operand was broadcast; of matrices, with all batches in one longer sum, where
        the right operand was. None elsewhere: it sums over batches itself."""
        (other, grad, _), (others, lead, shape) = node.inputs, shapes
        left, (trans_a, trans_b) = node.attrs["operand"] == "A", _flags(node)
        a, b = (shape, others) if left else (others, shape)
        lead = lead[: len(lead) - (len(a) > 1) - (len(b) > 1)]
        # A vector is a matrix of one row or column, and so is the gradient of its product.
        m = 1 if len(a) == 1 else a[-1 if trans_a else -2]
        n = 1 if len(b) == 1 else b[-2 if trans_b else -1]
        k = a[-2 if trans_a else -1]
        if len(others) == 1:
            other = reshape_op(other, (k, 1) if left else (1, k))
        if len(a) == 1 or len(b) == 1:
            grad = reshape_op(grad, (*lead, m, n))
        if math.prod(shape[:-2]) != math.prod(lead):
            if left or trans_a or math.prod(shape[:-2]) != 1 or math.prod(others[:-2]) != math.prod(lead):
                return None
            rows = math.prod(lead) * m
            other, grad = reshape_op(other, (rows, k)), reshape_op(grad, (rows, n))
        own, trans_other = (trans_a, trans_b) if left else (trans_b, trans_a)
        # Of a transposed operand the product's transpose: of both factors, in the other order.
        grad_first, flags = left != own, (own, trans_other == own)
        product = (grad, other, *flags) if grad_first else (other, grad, *flags[::-1])
        return reshape_op(matmul_op(*product), shape)


def matmul_op(a: Node, b: Node, trans_A: bool = False, trans_B: bool = False) -> Made:
    """The product of matrices, (..., m, k) x (..., k, n) -> (..., m, n), each transposed first if its flag says so.

    As np.matmul: leading axes broadcast, and a vector is a row on the left, a column on the right, whose other axis
    is not there in the result. Of uint8 and int8 the result is int32, exactly, by the CPU's dot products of bytes.
    """
    flags = {"trans_A": flag("matmul", "trans_A", trans_A), "trans_B": flag("matmul", "trans_B", trans_B)}
    return MatMul.make([a, b], flags)


def matmul_gradient_op(
    other: Node, grad: Node, like: Node, operand: str, trans_A: bool = False, trans_B: bool = False
) -> Made:
    """The gradient of matmul_op with respect to operand "A" or "B", of like's shape, from the other operand and the
    product's gradient. Raises GraphError for another operand."""
    name = "matmul_gradient"
    flags = {"trans_A": flag(name, "trans_A", trans_A), "trans_B": flag(name, "trans_B", trans_B)}
    attrs = {"operand": word(name, "operand", operand, ("A", "B")), **flags}
    return MatMulGradient.make([other, grad, like], attrs)


@register
class PackPanels(Op):
    """(k, n), with trans (n, k) -> (ceil(n / width), k, width)."""

    name = "pack_panels"
    flops = 0
    formula: ClassVar[Formula] = compute.pack_panels
    reference: ClassVar[Formula] = _pack_panels
    takes: ClassVar[Sequence[str]] = ("shape", "trans")

    def infer_shape(self, node: Node, input_shapes: list[Shape]) -> Shape:
        if len(input_shapes[0]) != 2:
            raise shape_error(node, f"the input must be a matrix, not {input_shapes[0]}")
        k, n = input_shapes[0][::-1] if node.attrs["trans"] else input_shapes[0]
        if n != node.attrs["n"]:
            raise shape_error(node, f"the matrix {input_shapes[0]} has {n} columns, not {node.attrs['n']}")
        return (-(-n // node.attrs["width"]), k, node.attrs["width"])


@register
class MatMulPanels(Op):
    """(..., m, k) x (panels, k, width) -> (..., m, n): the product with what lies in the panels; with (b, panels, k,
    width) that of (b, m, k) with b matrices."""

    name = "matmul_panels"
    kind = "contraction"
    formula: ClassVar[Formula] = compute.matmul_panels
    reference: ClassVar[Formula] = _matmul_panels
    takes: ClassVar[Sequence[str]] = ("shape",)

    def infer_shape(self, node: Node, input_shapes: list[Shape]) -> Shape:
        a, panels = input_shapes
        count, width = -(-node.attrs["n"] // node.attrs["width"]), node.attrs["width"]
        if len(panels) < 3 or (panels[-3], panels[-1]) != (count, width):
            raise shape_error(node, f"{panels} are no panels of {width} columns of {node.attrs['n']}")
        if len(a) < 2 or a[-1] != panels[-2] or (len(panels) == 4 and a[:-2] != panels[:1]) or len(panels) > 4:
            raise shape_error(node, f"inner dimensions differ: {a} x {panels}")
        return (*a[:-1], node.attrs["n"])

    def flop(self, node: Node, input_shapes: list[Shape], shape: Shape) -> int:
        return 2 * math.prod(shape) * input_shapes[0][-1]


def pack_panels_op(node: Node, width: int, n: int, trans: bool = False) -> Made:
    """The matrix (k, n), or with trans (n, k), in panels of `width` columns."""
    return PackPanels.make([node], {"width": width, "n": n, "trans": trans})


def matmul_panels_op(a: Node, panels: Node, n: int, width: int) -> Made:
    """The product of a (..., m, k) and the (k, n) matrix in panels of `width` columns, or of a (b, m, k) and b
    matrices."""
    return MatMulPanels.make([a, panels], {"n": n, "width": width})
