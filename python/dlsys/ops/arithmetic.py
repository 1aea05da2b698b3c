"""Arithmetic of nodes with nodes, broadcast as NumPy does, and of nodes with Python constants.

Constants are weakly typed: they take the node's dtype. Sums, differences and products are also of integers, of which
unsigned ones wrap around; quotients and powers are not. The gradients of broadcast operands are summed back
to their shapes by `sum_to_like`, which is the identity where nothing was broadcast.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from .. import compute
from ..compute import Tensor
from ..errors import DTypeError
from ..graph import INTEGERS, NUMBERS, OPS, Node, Op, Shape, error_at, register
from .rules import broadcast_operands, real_constant
from .shape import sum_to_like_op
from .types import dtype_of


class BroadcastBinary(Op):
    """An operator of two operands, broadcast."""

    broadcasts = True
    elementwise = True
    _te: ClassVar[Callable[..., Tensor]]
    _numpy: ClassVar[Callable[..., np.ndarray]]

    def _partials(self, node: Node, a: Node, b: Node, g: Node) -> tuple[Node, Node]:
        """The operands' gradients in the output's shape, before they are summed back."""
        raise NotImplementedError

    def infer_shape(self, node: Node, input_shapes: list[Shape]) -> Shape:
        return broadcast_operands(node, *input_shapes)

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        a, b = node.inputs
        grad_a, grad_b = self._partials(node, a, b, output_grad)
        return [sum_to_like_op(grad_a, a), sum_to_like_op(grad_b, b)]

    def te(self, node: Node, inputs: list[Tensor], shape: Shape, dtype: str) -> Tensor:
        return type(self)._te(*inputs)

    def numpy(self, node: Node, inputs: list[np.ndarray]) -> np.ndarray:
        return np.asarray(type(self)._numpy(*inputs))


@register
class Add(BroadcastBinary):
    """a + b."""

    name, _te, _numpy = "add", compute.add, np.add
    commutative = True
    dtypes = NUMBERS

    def _partials(self, node: Node, a: Node, b: Node, g: Node) -> tuple[Node, Node]:
        return g, g


@register
class Sub(BroadcastBinary):
    """a - b."""

    name, _te, _numpy = "sub", compute.sub, np.subtract
    dtypes = NUMBERS

    def _partials(self, node: Node, a: Node, b: Node, g: Node) -> tuple[Node, Node]:
        return g, neg_op(g)


@register
class Mul(BroadcastBinary):
    """a * b."""

    name, _te, _numpy = "mul", compute.mul, np.multiply
    commutative = True
    dtypes = NUMBERS

    def _partials(self, node: Node, a: Node, b: Node, g: Node) -> tuple[Node, Node]:
        return mul_op(g, b), mul_op(g, a)


@register
class Div(BroadcastBinary):
    """a / b; d/da = 1 / b, d/db = -(a / b) / b."""

    name, _te, _numpy = "div", compute.div, np.divide

    def _partials(self, node: Node, a: Node, b: Node, g: Node) -> tuple[Node, Node]:
        by_a = div_op(g, b)
        return by_a, neg_op(mul_op(by_a, node))


class _ByConst(Op):
    """An operator of one node and the constant `attrs["const"]`."""

    elementwise = True
    lifts = True
    _te: ClassVar[Callable[..., Tensor]]
    _numpy: ClassVar[Callable[..., np.ndarray]]

    def infer_shape(self, node: Node, input_shapes: list[Shape]) -> Shape:
        return input_shapes[0]

    def te(self, node: Node, inputs: list[Tensor], shape: Shape, dtype: str) -> Tensor:
        return type(self)._te(inputs[0], node.attrs["const"])

    def numpy(self, node: Node, inputs: list[np.ndarray]) -> np.ndarray:
        return np.asarray(type(self)._numpy(inputs[0], _rounded(node.attrs["const"], inputs[0].dtype)))

    def numbers(self, node: Node) -> tuple[Any, Sequence[Any]]:
        return None, (node.attrs["const"],)

    def number(self, node: Node, which: int) -> np.ndarray:
        return _rounded(node.attrs["const"], dtype_of(node.inputs[0]))

    def lifted(self, node: Node, inputs: list[Node], numbers: dict[int, Node]) -> Node:
        return self._of_nodes(inputs[0], numbers[0])

    def _of_nodes(self, x: Node, const: Node) -> Node:
        """The same with a node for the constant."""
        raise NotImplementedError


def _rounded(const: float, dtype: Any) -> np.ndarray:
    """The constant in a dtype; beyond its range it is infinite."""
    with np.errstate(over="ignore"):
        return np.asarray(const, dtype)


def require_constant(node: Node, const: float, dtype: str) -> None:
    """Raises DTypeError for a constant that an integer dtype does not hold."""
    if dtype not in INTEGERS:
        return
    limits = np.iinfo(dtype)
    if not (const.is_integer() and int(limits.min) <= const <= int(limits.max)):
        raise error_at(node, DTypeError, f"the constant {const:g} is no {dtype}, which {node.inputs[0].name} is")


class _NumberByConst(_ByConst):
    """Of integers too, with constants of their dtype."""

    dtypes = NUMBERS

    def infer_dtype(self, node: Node, input_dtypes: list[str]) -> str:
        dtype = super().infer_dtype(node, input_dtypes)
        require_constant(node, node.attrs["const"], dtype)
        return dtype


@register
class AddByConst(_NumberByConst):
    """x + const."""

    name, _te, _numpy = "add_byconst", compute.add_by_const, np.add

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        return [output_grad]

    def _of_nodes(self, x: Node, const: Node) -> Node:
        return add_op(x, const)


@register
class MulByConst(_NumberByConst):
    """x * const."""

    name, _te, _numpy = "mul_byconst", compute.mul_by_const, np.multiply

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        return [mul_byconst_op(output_grad, node.attrs["const"])]

    def _of_nodes(self, x: Node, const: Node) -> Node:
        return mul_op(x, const)


@register
class DivByConst(_ByConst):
    """x / const."""

    name, _te, _numpy = "div_byconst", compute.div_by_const, np.divide

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        return [div_byconst_op(output_grad, node.attrs["const"])]

    def _of_nodes(self, x: Node, const: Node) -> Node:
        return div_op(x, const)


@register
class ConstDiv(_ByConst):
    """const / x; d/dx = -(const / x) / x."""

    name = "const_div"

    @staticmethod
    def _te(x: Tensor, const: float) -> Tensor:
        return compute.const_div(const, x)

    @staticmethod
    def _numpy(x: np.ndarray, const: np.ndarray) -> np.ndarray:
        return np.divide(const, x)

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        return [neg_op(mul_op(output_grad, div_op(node, node.inputs[0])))]

    def _of_nodes(self, x: Node, const: Node) -> Node:
        return div_op(const, x)


@register
class PowerByConst(_ByConst):
    """x ** const; d/dx = const * x ** (const - 1)."""

    name, _te, _numpy = "power_byconst", compute.power_by_const, np.power

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        const = node.attrs["const"]
        if const == 0:  # 0 * x ** -1 would be NaN at 0
            return [None]
        if const == 1:
            return [output_grad]
        return [mul_op(output_grad, mul_byconst_op(power_byconst_op(node.inputs[0], const - 1), const))]

    def _of_nodes(self, x: Node, const: Node) -> Node:
        return OPS["power"].make([x, const])


@register
class Neg(Op):
    """-x."""

    name = "neg"
    dtypes = NUMBERS
    elementwise = True

    def infer_shape(self, node: Node, input_shapes: list[Shape]) -> Shape:
        return input_shapes[0]

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        return [neg_op(output_grad)]

    def te(self, node: Node, inputs: list[Tensor], shape: Shape, dtype: str) -> Tensor:
        return compute.neg(inputs[0])

    def numpy(self, node: Node, inputs: list[np.ndarray]) -> np.ndarray:
        return np.asarray(np.negative(inputs[0]))


def add_op(a: Node, b: Node) -> Node:
    """a + b, broadcast."""
    return Add.make([a, b])


def sub_op(a: Node, b: Node) -> Node:
    """a - b, broadcast."""
    return Sub.make([a, b])


def mul_op(a: Node, b: Node) -> Node:
    """a * b, broadcast."""
    return Mul.make([a, b])


def div_op(a: Node, b: Node) -> Node:
    """a / b, broadcast."""
    return Div.make([a, b])


def neg_op(node: Node) -> Node:
    """-node."""
    return Neg.make([node])


def add_byconst_op(node: Node, const: float) -> Node:
    """node + const. Raises GraphError for a constant that is no real number."""
    return AddByConst.make([node], {"const": real_constant("add_byconst", const)})


def mul_byconst_op(node: Node, const: float) -> Node:
    """node * const. Raises GraphError for a constant that is no real number."""
    return MulByConst.make([node], {"const": real_constant("mul_byconst", const)})


def div_byconst_op(node: Node, const: float) -> Node:
    """node / const. Raises GraphError for a constant that is no real number."""
    return DivByConst.make([node], {"const": real_constant("div_byconst", const)})


def const_div_op(const: float, node: Node) -> Node:
    """const / node. Raises GraphError for a constant that is no real number."""
    return ConstDiv.make([node], {"const": real_constant("const_div", const)})


def reciprocal_op(node: Node) -> Node:
    """1 / node."""
    return const_div_op(1.0, node)


def power_byconst_op(node: Node, const: float) -> Node:
    """node ** const. Raises GraphError for a constant that is no real number."""
    return PowerByConst.make([node], {"const": real_constant("power_byconst", const)})
