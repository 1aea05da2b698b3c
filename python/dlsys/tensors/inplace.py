"""Leaves written in place: `x[0] = 1`, `x += 1`, `x.zero_()`.

Computed tensors are not written: `y += 1` is `y = y + 1`, and for the rest there are `where`, `masked_fill` and
`clone`. A view of a leaf is a value.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn, Self, cast

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
    """Give the leaf another array: a copy of the value, cast to its dtype. Raises ShapeError for another shape."""
    cell = node.cell
    given = host_array(value, cell.dtype)
    if given.shape != cell.shape:
        raise shape_error(node, f"{node.name} has shape {cell.shape}, the value {given.shape}")
    ctx = cell.content.context if isinstance(cell.content, Array) else cpu()
    cell.give(to_array(np.array(given, cell.dtype, order="C"), ctx))


def _gets_history(node: TensorNode, changed: TensorNode) -> bool:
    """Whether a leaf with this value would have a history, or none that can be computed."""
    if not is_grad_enabled():
        return False
    return node.wants_grad or not changed.is_data or bool(leaves_that_require_grad(changed))


def augmented(node: TensorNode, changed: Node) -> Node:
    """The tensor that stands for the node behind `+=` and its like: a leaf whose new value has no history takes it and
    stays; else it is the new node. Raises GraphError for a leaf that requires a gradient, outside of no_grad()."""
    if not isinstance(changed, TensorNode) or node.cell is None:
        return changed
    require_no_history(node)
    if _gets_history(node, changed):
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


def _key(key: Index) -> tuple[Any, ...]:
    """The key with tensors as arrays."""
    items = key if isinstance(key, tuple) else (key,)
    return tuple(np.asarray(item) if isinstance(item, Node) else item for item in items)


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
    """Set indexed values of a leaf, by NumPy's rules, cast to its dtype.

    Raises GraphError for a computed tensor, for a leaf that requires a gradient, outside of no_grad(), and for a value
    that has a history; IndexRangeError and ShapeError for what does not fit.
    """
    require_writable(node)
    require_no_history(node)
    if isinstance(value, Node) and is_grad_enabled() and leaves_that_require_grad(value):
        _refuse_history(node)
    place, given = _key(key), host_array(value, None)
    with changing:
        values = array_of(node).numpy()
        _place(node, values, place, given)
        write(node, values)


def _augmented_by(function: Callable[..., Node], node: TensorNode, other: ArrayLike) -> Tensor:
    """`node += other` and its like: no thread writes between."""
    with changing:
        return cast("Tensor", augmented(node, function(node, other)))


def _changed_by(function: Callable[..., Node], node: TensorNode, other: ArrayLike) -> Tensor:
    """`node.add_(other)` and its like. Raises GraphError for what is no operand."""
    require_operand(other)
    with changing:
        return cast("Tensor", changed_in_place(node, function(node, other)))


class InPlace(TensorNode):
    """Methods that change leaves, and `clone`, which makes what may be changed."""

    __slots__ = ()

    __setitem__ = setitem

    def __iadd__(self, other: ArrayLike) -> Tensor:  # type: ignore[misc]
        """A leaf takes the value self + other; of what is computed, and of what gets a history, a new tensor."""
        return _augmented_by(operator.add, self, other)

    def __isub__(self, other: ArrayLike) -> Tensor:  # type: ignore[misc]
        """As `+=`, with self - other."""
        return _augmented_by(operator.sub, self, other)

    def __imul__(self, other: ArrayLike) -> Tensor:  # type: ignore[misc]
        """As `+=`, with self * other."""
        return _augmented_by(operator.mul, self, other)

    def __itruediv__(self, other: ArrayLike) -> Tensor:  # type: ignore[misc]
        """As `+=`, with self / other."""
        return _augmented_by(operator.truediv, self, other)

    def __ipow__(self, other: ArrayLike) -> Tensor:  # type: ignore[misc]
        """As `+=`, with self ** other."""
        return _augmented_by(operator.pow, self, other)

    def __iand__(self, other: ArrayLike) -> Tensor:  # type: ignore[misc]
        """As `+=`, with self & other."""
        return _augmented_by(operator.and_, self, other)

    def __ior__(self, other: ArrayLike) -> Tensor:  # type: ignore[misc]
        """As `+=`, with self | other."""
        return _augmented_by(operator.or_, self, other)

    def __ixor__(self, other: ArrayLike) -> Tensor:  # type: ignore[misc]
        """As `+=`, with self ^ other."""
        return _augmented_by(operator.xor, self, other)

    def add_(self, other: ArrayLike, *, alpha: float = 1) -> Tensor:
        """self + alpha * other, in place; itself. Raises GraphError for what is computed, and where the value would
        have a history; ShapeError where the shape would change; DTypeError where floats would become integers."""
        return _changed_by(operator.add, self, other if alpha == 1 else other * alpha)  # type: ignore[operator]

    def sub_(self, other: ArrayLike) -> Tensor:
        """self - other, in place; itself. Raises as `add_`."""
        return _changed_by(operator.sub, self, other)

    def mul_(self, other: ArrayLike) -> Tensor:
        """self * other, in place; itself. Raises as `add_`."""
        return _changed_by(operator.mul, self, other)

    def div_(self, other: ArrayLike) -> Tensor:
        """self / other, in place; itself. Raises as `add_`."""
        return _changed_by(operator.truediv, self, other)

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
