"""Matrix multiplication."""

from __future__ import annotations

import numpy as np

from .. import compute
from ..compute import Tensor
from ..graph import Node, Op, Shape, register, shape_error


@register
class MatMul(Op):
    """C = op(A) op(B), where op transposes if trans_A, trans_B: (m, k) x (k, n) -> (m, n)."""

    name = "matmul"
    contraction = True

    def infer_shape(self, node: Node, input_shapes: list[Shape]) -> Shape:
        shape_a, shape_b = input_shapes
        if len(shape_a) != 2 or len(shape_b) != 2:
            raise shape_error(node, f"both operands must be matrices, not {shape_a} x {shape_b}")
        m, k = shape_a[::-1] if node.matmul_attr_trans_A else shape_a
        k_b, n = shape_b[::-1] if node.matmul_attr_trans_B else shape_b
        if k != k_b:
            flags = [flag for flag in ("trans_A", "trans_B") if node.attrs[flag]]
            suffix = f" with {' and '.join(flags)}" if flags else ""
            raise shape_error(node, f"inner dimensions differ: {shape_a} x {shape_b}{suffix}")
        return (m, n)

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        # From dA' = G B'^T and dB' = A'^T G for A' = op(A), B' = op(B); transposed where A, B are.
        (a, b), g = node.inputs, output_grad
        trans_a, trans_b = node.matmul_attr_trans_A, node.matmul_attr_trans_B
        grad_a = matmul_op(b, g, trans_b, True) if trans_a else matmul_op(g, b, False, not trans_b)
        grad_b = matmul_op(g, a, True, trans_a) if trans_b else matmul_op(a, g, not trans_a, False)
        return [grad_a, grad_b]

    def te(self, node: Node, inputs: list[Tensor], shape: Shape, dtype: str) -> Tensor:
        a, b = inputs
        return compute.matmul(a, b, node.matmul_attr_trans_A, node.matmul_attr_trans_B)

    def numpy(self, node: Node, inputs: list[np.ndarray]) -> np.ndarray:
        a, b = inputs
        return (a.T if node.matmul_attr_trans_A else a) @ (b.T if node.matmul_attr_trans_B else b)


def matmul_op(a: Node, b: Node, trans_A: bool = False, trans_B: bool = False) -> Node:
    """The product of two matrices, each transposed first if its flag says so."""
    return MatMul.make([a, b], {"trans_A": bool(trans_A), "trans_B": bool(trans_B)})
