"""Leaves written in place: `x[0] = 1`, `x += 1`, `x.zero_()`.

Computed tensors are not written: `y += 1` is `y = y + 1`, and for the rest there are `where`, `masked_fill` and
`clone`. A view of a leaf is a value.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Self, cast

import numpy as np

from .. import ops
from ..checks import number, real
from ..devices import Array, copied, cpu, host_array, to_array
from ..errors import DTypeError, GraphError, IndexRangeError, ShapeError
from ..graph import FLOATS, Node, shape_error
from ..hooks import hooks
from ..ops import dtype_of, shape_of
from ..scopes import is_grad_enabled, scopes
from .arguments import node_of, require_operand
from .creation import leaf
from .elementwise import OfTwo
from .node import TensorNode
from .state import changing
from .typing import ArrayLike, Index, Nested
from .values import array_of, leaves_that_require_grad

if TYPE_CHECKING:
    from .base import Tensor


def require_writable(node: Node) -> None:
    """Raises GraphError for what is no leaf."""
    if node.cell is None:
        raise GraphError(
            f"{node.name} is computed, and only leaves are written: where() and masked_fill() give another tensor, "
            f"{node.name}.clone().detach() is a leaf (made at {node.location})"
        )


def require_no_history(node: TensorNode) -> None:
    """Raises GraphError for a leaf whose change would have to be differentiated."""
    if node.wants_grad and is_grad_enabled():
        raise GraphError(f"{node.name} is a leaf that requires a gradient: change it within no_grad()")


def write(node: Node, value: Nested) -> None:
    """Give the leaf another array: a copy of the value, cast to its dtype. Raises GraphError for what is no leaf,
    ShapeError for another shape."""
    require_writable(node)
    cell = node.cell
    given = host_array(value, cell.dtype)
    if given.shape != cell.shape:
        raise shape_error(node, f"{node.name} has shape {cell.shape}, the value {given.shape}")
    ctx = cell.content.context if isinstance(cell.content, Array) else cpu()
    cell.give(to_array(np.array(given, cell.dtype, order="C"), ctx))


def augmented(node: TensorNode, changed: Node) -> Node:
    """The tensor that stands for the node behind `+=` and its like: a leaf whose new value has no history takes it and
    stays; else it is the new node. Raises GraphError for a leaf that requires a gradient, outside of no_grad()."""
    if not isinstance(changed, TensorNode) or node.cell is None:
        return changed
    require_no_history(node)
    if is_grad_enabled() and (node.wants_grad or not changed.is_data or leaves_that_require_grad(changed)):
        return changed
    write(node, array_of(_as_dtype_of(node, changed)))
    return node


def changed_in_place(node: TensorNode, changed: Node) -> Node:
    """The leaf, with the new value, as by a method like `add_`. Raises GraphError for what is no leaf, and for a value
    that has a history; ShapeError for a shape that changes."""
    require_writable(node)
    if shape_of(changed) != shape_of(node):
        raise ShapeError(
            f"{node.name} has shape {shape_of(node)}, and in place it would become {shape_of(changed)}"
        )
    if augmented(node, _as_dtype_of(node, changed)) is not node:
        _refuse_history(node)
    return node


def _refuse_history(node: Node) -> NoReturn:
    """Raises GraphError: what is written into a leaf has no history."""
    raise GraphError(
        f"{node.name} is a leaf, and what is written has a history that gradients go through: "
        "where(), cat() and stack() make tensors of tensors; .detach() has no history"
    )


def _as_dtype_of(node: Node, changed: Node) -> Node:
    """The new value in the node's dtype. Raises DTypeError where floats would become integers, as PyTorch does."""
    before, after = dtype_of(node), dtype_of(changed)
    if before == after:
        return changed
    if after in FLOATS and before not in FLOATS:
        raise DTypeError(f"{node.name} is {before}, and in place it cannot become {after}")
    return ops.cast_op(changed, before)


def _place(node: Node, target: np.ndarray, key: tuple[Any, ...], value: np.ndarray) -> None:
    """target[key] = value, with errors that name the tensor. Raises IndexRangeError, ShapeError."""
    try:
        with np.errstate(over="ignore", invalid="ignore"):
            target[key] = value
    except IndexError as error:
        raise IndexRangeError(f"{node.name}[...] = value: {error} (its shape is {target.shape})") from None
    except (TypeError, ValueError) as error:
        given = np.shape(value)
        try:
            fits = f"{target[key].shape} of {node.name}, whose shape is {target.shape}"
        except (IndexError, TypeError, ValueError):
            raise IndexRangeError(f"{node.name}[...] = value: {error}") from None
        raise ShapeError(f"a value of shape {given} cannot be set into the indexed {fits}") from None


def setitem(node: TensorNode, key: Index, value: Nested) -> None:
    """Set indexed values of a leaf, by NumPy's rules, cast to its dtype. Raises GraphError for a computed tensor, for a
    leaf that requires a gradient, outside of no_grad(), and for a value that has a history; IndexRangeError and
    ShapeError for what does not fit."""
    require_writable(node)
    require_no_history(node)
    if isinstance(value, Node) and is_grad_enabled() and leaves_that_require_grad(value):
        _refuse_history(node)
    items = key if isinstance(key, tuple) else (key,)
    place, given = tuple(np.asarray(x) if isinstance(x, Node) else x for x in items), host_array(value, None)
    with changing:
        values = array_of(node).numpy()
        _place(node, values, place, given)
        write(node, values)


def _augmented_by(symbol: str, function: Callable[..., Node]) -> OfTwo:
    """`node += other` and its like as a method: no thread writes between."""

    def apply(self: ArrayLike, other: ArrayLike) -> Tensor:
        node = cast(TensorNode, self)
        with changing:
            return cast("Tensor", augmented(node, function(node, other)))

    new = "of what is computed, and of what gets a history, a new tensor"
    apply.__name__ = f"__i{function.__name__.strip('_')}__"
    apply.__doc__ = f"A leaf takes the value self {symbol} other; {new}."
    return apply


def _changed_by(name: str, symbol: str, function: Callable[..., Node]) -> OfTwo:
    """`node.sub_(other)` and its like as a method."""

    def apply(self: ArrayLike, other: ArrayLike) -> Tensor:
        node = cast(TensorNode, self)
        require_operand(other)
        with changing:
            return cast("Tensor", changed_in_place(node, function(node, other)))

    apply.__name__, apply.__doc__ = name, f"self {symbol} other, in place; itself. Raises as `add_`."
    return apply


_added = _changed_by("add_", "+", operator.add)


class InPlace(TensorNode):
    """Methods that change leaves, and `clone`, which makes what may be changed."""

    __slots__ = ()

    __setitem__ = setitem

    __iadd__: ClassVar[OfTwo] = _augmented_by("+", operator.add)
    __isub__: ClassVar[OfTwo] = _augmented_by("-", operator.sub)
    __imul__: ClassVar[OfTwo] = _augmented_by("*", operator.mul)
    __itruediv__: ClassVar[OfTwo] = _augmented_by("/", operator.truediv)
    __ipow__: ClassVar[OfTwo] = _augmented_by("**", operator.pow)
    __iand__: ClassVar[OfTwo] = _augmented_by("&", operator.and_)
    __ior__: ClassVar[OfTwo] = _augmented_by("|", operator.or_)
    __ixor__: ClassVar[OfTwo] = _augmented_by("^", operator.xor)

    def add_(self, other: ArrayLike, *, alpha: float = 1) -> Tensor:
        """self + alpha * other, in place; itself. Raises GraphError for what is computed, and where the value would
        have a history; ShapeError where the shape would change; DTypeError where floats would become integers."""
        return _added(self, other if alpha == 1 else other * alpha)  # type: ignore[operator]

    sub_: ClassVar[OfTwo] = _changed_by("sub_", "-", operator.sub)
    mul_: ClassVar[OfTwo] = _changed_by("mul_", "*", operator.mul)
    div_: ClassVar[OfTwo] = _changed_by("div_", "/", operator.truediv)

    def clamp_(self, min: ArrayLike | None = None, max: ArrayLike | None = None) -> Tensor:
        """`clamp` in place; itself."""
        with changing:
            return cast("Tensor", changed_in_place(self, cast("Tensor", self).clamp(min, max)))

    def masked_fill_(self, mask: ArrayLike, value: ArrayLike) -> Tensor:
        """`masked_fill` in place; itself."""
        with changing:
            return cast("Tensor", changed_in_place(self, cast("Tensor", self).masked_fill(mask, value)))

    def uniform_(self, low: float = 0.0, high: float = 1.0, /) -> Self:
        """Set all values to numbers drawn from [low, high); itself. Raises GraphError for high below low."""
        low, high = real("uniform_", "low", low), real("uniform_", "high", high)
        if high < low:
            raise GraphError(f"uniform_: high must not be below low, {low:g}, as {high:g} is")
        return self.copy_(hooks.random_numbers().uniform(low, high, shape_of(self)))

    def normal_(self, mean: float = 0.0, std: float = 1.0) -> Self:
        """Set all values to normally distributed numbers; itself. Raises GraphError for a negative `std`."""
        mean, std = real("normal_", "mean", mean), number("normal_", "std", std)
        return self.copy_(hooks.random_numbers().normal(mean, std, shape_of(self)))

    def copy_(self, source: Nested) -> Self:
        """Set all values, broadcast and cast to the shape and dtype; itself."""
        setitem(self, ..., source)
        return self

    def fill_(self, value: Nested) -> Self:
        """Set all values to one; itself."""
        return self.copy_(value)

    def zero_(self) -> Self:
        """Set all values to 0; itself."""
        return self.copy_(0)

    def clone(self: ArrayLike) -> Tensor:
        """The values in memory of their own. What no gradient goes through is computed now, and the clone is a leaf,
        which can be written; not within a module, which may make the graph of a program for other values."""
        node = node_of(self)
        if not node.is_data or scopes.part is not None or (is_grad_enabled() and leaves_that_require_grad(node)):
            return ops.copy_op(node)
        return leaf(copied(array_of(node)), name=f"{node.name}.clone")
