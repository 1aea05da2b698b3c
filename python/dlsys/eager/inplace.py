"""Tensors written in place: leaves, whose values change, and computed tensors, which come to mean another computation.
A leaf that is written with what has a history becomes a computed tensor, as `out = zeros(n); out[0] = w.sum()`.

`y[0] = v` makes of a computed y the node that has v there, with gradients to both, y's old meaning and v; what has read
y before keeps the old meaning. Views of y, as `y[0]`, `y.T` and `y.view(-1)`, mean elements of y whatever y means, and
what is written to them is written to y. A view of a leaf is written so too, but does not show what is written to the
leaf later.
"""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy as np

from .. import autodiff as ad
from ..autodiff import Node, Parameter
from ..device import host_array
from ..errors import DTypeError, GraphError, IndexRangeError, ShapeError
from ..graph import FLOATS, is_grad_enabled, stamp
from ..ops import dtype_of, known_dtype, known_shape, shape_of
from .creation import leaf
from .functions import node_of
from .leaves import Leaf
from .running import array_of, is_data, leaves_that_require_grad, renamed
from .views import base_of, is_view, key_of, require_no_copy, restored

_STATE = ("assign", "group", "latest")


def clone(x: Any) -> Node:
    """The values in memory of their own."""
    return ad.copy_op(node_of(x))


def require_writable(node: Node) -> None:
    """Raises GraphError for what is no leaf."""
    if not isinstance(node, Parameter):
        where = f"(made at {node.location})"
        raise GraphError(f"{node.name} is computed, and only leaves have memory to be written {where}")


def _is_writable(node: Node) -> bool:
    """Whether a node that is no leaf may come to mean something else: it is computed from others, and no state."""
    return bool(node.inputs) and node.op.name not in _STATE


def _require_in_place(node: Node) -> None:
    """Raises GraphError for a node that is neither a leaf nor computed, and for one with a history that a change
    without gradients would cut off."""
    if not _is_writable(node):
        raise GraphError(
            f"{node.name} is no leaf and not computed: write to {node.name}.clone() (made at {node.location})"
        )
    if not is_grad_enabled() and is_data(node) and leaves_that_require_grad(node):
        raise GraphError(
            f"{node.name} has a history of gradients, and within no_grad() what is written has none: "
            f"write to {node.name}.detach() (made at {node.location})"
        )


def require_no_history(node: Parameter) -> None:
    """Raises GraphError for a leaf whose change would have to be differentiated."""
    if node.requires_grad and is_grad_enabled():
        raise GraphError(f"{node.name} is a leaf that requires a gradient: change it within no_grad()")


def write(node: Parameter, value: Any) -> None:
    """Set the leaf's values, and those of the leaf for which it stands."""
    owner = getattr(node, "owner", None)
    if owner is not None:
        if not node.is_current():  # type: ignore[attr-defined]
            raise GraphError(f"{owner.name} was changed since its .data was taken: take it again")
        write(owner, value)
    node.value = value
    if owner is not None:
        node.follow(owner)  # type: ignore[attr-defined]


def _gets_history(node: Parameter, changed: Node) -> bool:
    """Whether a leaf with this value would have a history, or none that can be computed."""
    if not is_grad_enabled():
        return False
    return node.requires_grad or not is_data(changed) or bool(leaves_that_require_grad(changed))


def augmented(node: Any, changed: Any) -> Any:
    """What stands for the node behind `+=` and its like: a leaf that has no history takes the value and stays, as does
    a view of one; a computed node comes to mean it; else it is the new node, as where shapes are not known. Of
    `x[0] += 1` the second half, `x[0] = ...`, is then nothing."""
    if not isinstance(changed, Node):
        return changed
    if isinstance(node, Parameter):
        require_no_history(node)
        if not _gets_history(node, changed):
            write(node, array_of(changed))
            return node
        return changed
    base = base_of(node)
    if isinstance(base, Parameter):
        return changed if _gets_history(base, changed) else _assign(node, changed)
    if not _is_writable(base) or known_shape(node) is None or known_shape(changed) is None:
        return changed
    return _assign(node, changed)


def changed_in_place(node: Any, changed: Node) -> Any:
    """What a method as `add_` makes of the node: a leaf takes the value, a computed node comes to mean it, and so a
    leaf that gets a history. Raises GraphError for any other, and for a shape that changes."""
    if shape_of(changed) != shape_of(node):
        raise ShapeError(
            f"{node.name} has shape {shape_of(node)}, and in place it would become {shape_of(changed)}"
        )
    if augmented(node, _as_dtype_of(node, changed)) is not node:
        base = base_of(node)
        if isinstance(base, Parameter):
            require_no_history(base)
            if base is not node:
                _refuse_history(base)
            _computed(node)
            return _become(node, changed)
        _require_in_place(base)
    return node


def _refuse_history(node: Parameter) -> None:
    raise GraphError(
        f"{node.name} is a leaf, and what is written has a history that gradients go through: "
        f"write to {node.name}.clone(), or write the value's .detach()"
    )


def _as_dtype_of(node: Node, changed: Node) -> Node:
    """The new value in the node's dtype. Raises DTypeError where floats would become integers, as PyTorch does."""
    before, after = dtype_of(node), dtype_of(changed)
    if before == after:
        return changed
    if after in FLOATS and before not in FLOATS:
        raise DTypeError(f"{node.name} is {before}, and in place it cannot become {after}")
    return ad.cast_op(changed, before)


def _become(node: Node, changed: Node, as_view: bool = False) -> Node:
    """Let a computed node mean what `changed` does. What read it before, `changed` too, reads its old meaning; views of
    it follow. `as_view`: whether the node is then a view, if `changed` is."""
    changed = _as_dtype_of(node, changed)
    if shape_of(changed) != shape_of(node):
        raise ShapeError(
            f"{node.name} has shape {shape_of(node)}, and in place it would become {shape_of(changed)}"
        )
    if changed is node or isinstance(changed, Parameter) or (is_view(changed) and not as_view):
        changed = ad.copy_op(changed)
    following = _leave(node)
    node.op, node.inputs, node.attrs = changed.op, changed.inputs, changed.attrs
    node.location, node.no_grad, node.id = changed.location, changed.no_grad, stamp()
    node._value, node._hooks = changed._value, None
    for value in node.inputs:
        value.read_by(node)
    for view in following:  # each behind what it is of
        view.id, view._value, view._hooks = stamp(), None, None
    return node


def _leave(node: Node) -> list[Node]:
    """Give what has read the node another that means what it did so far; but views of it, and what they are of: the
    views follow, inputs first."""
    following: list[Node] = []
    earlier: dict[Node, Node] = {}
    stack = [node]
    while stack:
        current = stack.pop()
        inputs = [earlier.get(value, value) for value in current.inputs]
        before = earlier[current] = Node(current.op, inputs, current.attrs, current.name)
        for kept in ("id", "location", "no_grad", "_value", "_shape", "_dtype", "_hooks"):
            setattr(before, kept, getattr(current, kept))
        renamed(current, before)
        readers, current._readers = current.readers(), None
        for reader in readers:
            if is_view(reader) and reader.inputs[0] is current:
                current.read_by(reader)
                following.append(reader)
                stack.append(reader)
            elif reader is not before:
                reader.inputs = [before if value is current else value for value in reader.inputs]
                before.read_by(reader)
    return following


def _computed(node: Parameter) -> None:
    """Let a leaf that is to get a history be a computed node, of a leaf of its values, which what has read it reads
    from now on. Raises GraphError for a Parameter of a module, and for what stands for another leaf."""
    if type(node) is not Leaf or node.owner is not None:
        _refuse_history(node)
    before = Leaf.of(node._array, node.name)
    before.id, before._changed, before._before = node.id, node._changed, node._before
    for reader in node.readers():
        reader.inputs = [before if value is node else value for value in reader.inputs]
        before.read_by(reader)
    made = ad.copy_op(before)
    node.__class__ = Node  # type: ignore[assignment]
    node.op, node.inputs, node.attrs, node.id = made.op, made.inputs, made.attrs, stamp()
    node.location, node.no_grad, node._readers = made.location, made.no_grad, None
    before.read_by(node)


def _assign(node: Node, changed: Node) -> Node:
    """Let a computed node or a view be `changed`, and so what the view is of."""
    if not is_view(node):
        _require_in_place(node)
        return _become(node, changed)
    base, rest, attrs = node.inputs[0], node.inputs[1:], node.attrs
    require_no_copy(node)
    if isinstance(base, Parameter):
        require_no_history(base)
        if base.seen_by(node) is not base._array:
            raise GraphError(f"{base.name} was changed since its view {node.name} was taken: take it again")
        if _gets_history(base, changed):
            _refuse_history(base)
    changed = _as_dtype_of(node, changed)
    if shape_of(changed) != shape_of(node):
        raise ShapeError(
            f"{node.name} has shape {shape_of(node)}, and in place it would become {shape_of(changed)}"
        )
    if node.op.name == "slice":
        setitem(base, key_of(node), changed)
    elif isinstance(base, Parameter):
        setitem(base, ..., restored(node, changed))
    else:
        _assign(base, restored(node, changed))
    if isinstance(base, Parameter):  # views of others follow
        return _become(node, node.op.make([base, *rest], attrs), as_view=True)
    return node


def _key(key: Any) -> tuple[Any, ...]:
    """The key with tensors as arrays."""
    items = key if isinstance(key, tuple) else (key,)
    return tuple(np.asarray(item) if isinstance(item, Node) else item for item in items)


def _place(node: Node, target: np.ndarray, key: tuple[Any, ...], value: Any) -> None:
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


def _is_of(part: Any, node: Node, key: Any) -> bool:
    """Whether the value is the node's slice with this key."""
    if not isinstance(part, Node) or part.op.name != "slice" or part.inputs[0] is not node:
        return False
    items, own = key if isinstance(key, tuple) else (key,), key_of(part)
    plain = all(item is None or item is Ellipsis or isinstance(item, (int, slice)) for item in items)
    return plain and len(own) == len(items) and all(map(operator.eq, own, items))


def setitem(node: Node, key: Any, value: Any) -> None:
    """Set indexed values, by NumPy's rules, cast to the tensor's dtype: of a leaf or a computed tensor. Gradients go
    through the latter to the value and to what was not overwritten.

    Raises GraphError for a variable, for a leaf that requires a gradient, for a value that has a history where the
    tensor is a view of a leaf, and for a view that is a copy in PyTorch; IndexRangeError and ShapeError for what does
    not fit.
    """
    with_history = isinstance(value, Node) and is_grad_enabled() and bool(leaves_that_require_grad(value))
    if isinstance(node, Parameter):
        require_no_history(node)
        if _is_of(value, node, key) and node.seen_by(value) is node._array:
            return  # the second half of `x[i] += v`, whose first has written
        if not with_history:
            values = node.value
            _place(node, values, _key(key), host_array(value, None))
            write(node, values)
            return
        _computed(node)
    base = base_of(node)
    if isinstance(base, Parameter):
        require_no_history(base)
    else:
        _require_in_place(base)
    if _is_of(value, node, key):
        return
    if is_view(node):
        part = clone(node)
        setitem(part, key, value)
        _assign(node, part)
        return
    shape = known_shape(node)
    if shape is None:
        raise GraphError(f"{node.name}[...] = value: the shape must be known (made at {node.location})")
    if not with_history and is_data(node) and not leaves_that_require_grad(node):
        values = array_of(node).numpy()
        _place(node, values, _key(key), host_array(value, None))
        _become(node, leaf(values))
        return
    given = node_of(value if isinstance(value, Node) or np.isscalar(value) else host_array(value, None))
    if dtype_of(given) != dtype_of(node):
        given = ad.cast_op(given, dtype_of(node))
    own = shape_of(given)
    if isinstance(key, Node) and known_dtype(key) == "bool" and known_shape(key) == shape and math.prod(own) == 1:
        _become(node, ad.where_op(key, ad.reshape_op(given, ()), node))  # the mask need not be computed now
        return
    numbers = np.full(shape, -1, np.int64)  # of each element the one of the value that it takes
    _place(node, numbers, _key(key), np.arange(math.prod(own)).reshape(own))
    taken = leaf(numbers >= 0)
    if own:
        given = ad.take_op(ad.flatten_op(given), leaf(np.maximum(numbers, 0))) if math.prod(own) else node
    _become(node, ad.where_op(taken, given, node))


class InPlace:
    """What changes tensors, as methods."""

    __setitem__ = setitem

    def __iadd__(self: Any, other: Any) -> Any:
        return augmented(self, self + other)

    def __isub__(self: Any, other: Any) -> Any:
        return augmented(self, self - other)

    def __imul__(self: Any, other: Any) -> Any:
        return augmented(self, self * other)

    def __itruediv__(self: Any, other: Any) -> Any:
        return augmented(self, self / other)

    def __ifloordiv__(self: Any, other: Any) -> Any:
        return augmented(self, self // other)

    def __imod__(self: Any, other: Any) -> Any:
        return augmented(self, self % other)

    def __ipow__(self: Any, other: Any) -> Any:
        return augmented(self, self**other)

    def __iand__(self: Any, other: Any) -> Any:
        return augmented(self, self & other)

    def __ior__(self: Any, other: Any) -> Any:
        return augmented(self, self | other)

    def __ixor__(self: Any, other: Any) -> Any:
        return augmented(self, self ^ other)

    def copy_(self: Any, source: Any) -> Any:
        """Set all values, broadcast and cast to the shape and dtype; itself. So do `fill_` and `zero_`."""
        setitem(self, ..., source)
        return self

    fill_ = copy_

    def zero_(self: Any) -> Any:
        return self.copy_(0)

    def add_(self: Any, other: Any, *, alpha: Any = 1) -> Any:
        """`+=`, alpha times the other; so `sub_`, `mul_`, `div_`, `pow_`."""
        return changed_in_place(self, self + (other if alpha == 1 else alpha * other))

    def sub_(self: Any, other: Any, *, alpha: Any = 1) -> Any:
        return changed_in_place(self, self - (other if alpha == 1 else alpha * other))

    def mul_(self: Any, other: Any) -> Any:
        return changed_in_place(self, self * other)

    def div_(self: Any, other: Any) -> Any:
        return changed_in_place(self, self / other)

    def pow_(self: Any, other: Any) -> Any:
        return changed_in_place(self, self**other)
