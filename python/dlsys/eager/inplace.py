"""Tensors written in place: leaves, whose values change, clones, which come to mean another computation, and slices,
`x[0]`, of both.

A clone, `x.clone()`, may be written as its like in PyTorch: `y[0] = v` makes of y the node that has v there and goes to
both, y's old meaning and v, with gradients; what has read y before keeps the old meaning. A slice that is written, as
in `x[0].zero_()`, writes to what it is of; what is written there later does not show in it. Any other tensor that is
computed is not written, for nobody knows who has read it.
"""

from __future__ import annotations

import math
import operator
import weakref
from typing import Any

import numpy as np

from .. import autodiff as ad
from ..autodiff import Node, Parameter
from ..device import host_array
from ..errors import DTypeError, GraphError, IndexRangeError, ShapeError
from ..graph import FLOATS, OPS, is_grad_enabled, stamp
from ..ops import dtype_of, known_shape, shape_of
from .creation import leaf
from .functions import node_of
from .running import array_of, is_data, leaves_that_require_grad


class Readers(weakref.WeakValueDictionary[int, Node]):
    """The nodes that have a clone for an input, by their ids. A copy of the clone has none yet."""

    def __reduce__(self) -> Any:
        return Readers, ()

    def __deepcopy__(self, memo: Any) -> Readers:
        return Readers()


def clone(x: Any) -> Node:
    """The values in memory of their own; it may be written in place, see `dlsys.eager.inplace`."""
    made = ad.copy_op(node_of(x))
    made._readers = Readers()
    return made


def require_writable(node: Node) -> None:
    """Raises GraphError for what is no leaf."""
    if not isinstance(node, Parameter):
        raise GraphError(
            f"{node.name} is computed, and only leaves and clones are written: "
            f"write to {node.name}.clone() (made at {node.location})"
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


_SHAPES = ("expand_dims", "reshape", "squeeze", "swapaxes", "transpose")


def _whole(node: Node) -> Node:
    """What the node is another shape of."""
    while node.op.name in _SHAPES:
        node = node.inputs[0]
    return node


def _gets_history(node: Parameter, changed: Node) -> bool:
    """Whether a leaf with this value would have a history, or none that can be computed."""
    if not is_grad_enabled():
        return False
    return node.requires_grad or not is_data(changed) or bool(leaves_that_require_grad(changed))


def augmented(node: Any, changed: Any) -> Any:
    """What stands for the node behind `+=` and its like: a leaf that has no history takes the value and stays, a clone
    comes to mean it; else the new node. Raises GraphError for a leaf in another shape, as `x.T`, whose values would
    have to change with it; of `x[0] += 1` the second half, `x[0] = ...`, writes."""
    if not isinstance(changed, Node):
        return changed
    if isinstance(node, Parameter):
        require_no_history(node)
        if not _gets_history(node, changed):
            write(node, array_of(changed))
            return node
    elif node._readers is not None:
        base = _written(node)
        if not isinstance(base, Parameter) or not _gets_history(base, changed):
            return _assign(node, changed)
    elif node.op.name in _SHAPES and isinstance(_whole(node), Parameter):
        raise GraphError(
            f"{node.name} is a leaf in another shape: write to the leaf (made at {node.location})"
        )
    return changed


def changed_in_place(node: Any, changed: Node) -> Any:
    """What a method as `add_` makes of the node: a leaf takes the value, a clone comes to mean it. Raises GraphError
    for any other, for a shape that changes, and for a leaf that would get a history."""
    if shape_of(changed) != shape_of(node):
        raise ShapeError(
            f"{node.name} has shape {shape_of(node)}, and in place it would become {shape_of(changed)}"
        )
    found = augmented(node, _as_dtype_of(node, changed))
    if found is not node:
        base = _written(node)
        if isinstance(base, Parameter):
            _refuse_history(base)
        require_writable(node)
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


def _become(node: Node, changed: Node) -> Node:
    """Let the clone mean what `changed` does. What read it before, `changed` too, reads its old meaning."""
    changed = _as_dtype_of(node, changed)
    if shape_of(changed) != shape_of(node):
        raise ShapeError(
            f"{node.name} has shape {shape_of(node)}, and in place it would become {shape_of(changed)}"
        )
    before = Node(node.op, node.inputs, node.attrs, node.name)
    for kept in ("id", "location", "no_grad", "_value", "_shape", "_dtype", "_hooks"):
        setattr(before, kept, getattr(node, kept))
    for reader in list(node._readers.values()):
        reader.inputs = [before if value is node else value for value in reader.inputs]
    node._readers.clear()
    if changed is node or changed.op.name == "parameter" or (changed.op.name == "slice" != node.op.name):
        changed = ad.copy_op(changed if changed is not node else before)
    node.op, node.inputs, node.attrs = changed.op, changed.inputs, changed.attrs
    node.location, node.no_grad, node.id = changed.location, changed.no_grad, stamp()
    node._value, node._hooks = changed._value, None
    for value in node.inputs:
        if value._readers is not None:
            value._readers[node.id] = node
    return node


def written_with(node: Node, base: Node) -> Node:
    """The slice of a tensor, which is written when the slice is; not of a leaf that requires a gradient."""
    is_free = isinstance(base, Parameter) and not (base.requires_grad and is_grad_enabled())
    if is_free or base._readers is not None:
        node._readers = Readers()
    return node


def _written(node: Node) -> Node:
    """What a slice is of, and that of, down to what is no slice that is written."""
    while node.op.name == "slice" and node._readers is not None:
        (node,) = node.inputs
    return node


def _assign(node: Node, changed: Node) -> Node:
    """Let a clone, or a slice of what may be written, be `changed`."""
    if node.op.name != "slice":
        return _become(node, changed)
    (base,), attrs = node.inputs, node.attrs
    if isinstance(base, Parameter) and base.seen_by(node) is not base._array:
        raise GraphError(f"{base.name} was changed since its slice {node.name} was taken: take it again")
    key = tuple(slice(*item) if isinstance(item, tuple) else item for item in attrs["key"])
    setitem(base, key, _as_dtype_of(node, changed))
    return _become(node, OPS["slice"].make([base], attrs))


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
    items = key if isinstance(key, tuple) else (key,)
    own = tuple(slice(*item) if isinstance(item, tuple) else item for item in part.attrs["key"])
    plain = all(item is None or item is Ellipsis or isinstance(item, (int, slice)) for item in items)
    return plain and len(own) == len(items) and all(map(operator.eq, own, items))


def setitem(node: Node, key: Any, value: Any) -> None:
    """Set indexed values, by NumPy's rules, cast to the tensor's dtype: of a leaf or a clone. Gradients go through the
    clone to the value and to what was not overwritten.

    Raises GraphError for any other tensor, for a leaf that requires a gradient and for a value that has a history where
    the tensor is a leaf; IndexRangeError and ShapeError for what does not fit.
    """
    with_history = isinstance(value, Node) and is_grad_enabled() and bool(leaves_that_require_grad(value))
    if isinstance(node, Parameter):
        require_no_history(node)
        if _is_of(value, node, key) and node.seen_by(value) is node._array:
            return  # the second half of `x[i] += v`, whose first has written
        if with_history:
            _refuse_history(node)
        values = node.value
        _place(node, values, _key(key), host_array(value, None))
        write(node, values)
        return
    if node._readers is None:
        require_writable(node)
    if _is_of(value, node, key):
        return
    if node.op.name == "slice":
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
