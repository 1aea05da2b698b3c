"""Assignments: what makes a tensor name another node.

`x += 1`, `x[mask] = v`, `p.data = v`, `running.assign(v)` compute a new value, and the tensor is that from now on. What
was made of it before is as it was; a view of a tensor is a value, which such a write does not reach.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self, cast

import numpy as np

from .. import ops
from ..checks import number, real
from ..devices import Array, copied, cpu, host_array, to_array
from ..errors import DTypeError, GraphError, ShapeError
from ..graph import FLOATS, OPS, Handle, Node, handle_of, is_node, shape_error, stamp
from ..hooks import hooks
from ..ops import shape_of
from ..ops.state import ASSIGN, LATEST, WITH_UPDATES, Assign, WithUpdates, is_array
from ..ops.state import leaf as leaf_of
from ..scopes import is_grad_enabled, scopes
from .arguments import require_operand
from .evaluate import array_of, changing, evaluate, wait
from .structure import SETTLED, ends_gradients, settled_of
from .typing import ArrayLike, Index, Nested, OfTwo

if TYPE_CHECKING:
    from .base import Tensor

_VIEWS = {OPS[name] for name in ("slice", "reshape", "transpose", "broadcast_shape")}


def kept(node: Node) -> dict[str, Any]:
    """The attributes of a leaf that stay as its tensor is assigned."""
    return {key: node.attrs[key] for key in ("roams", "shared") if key in node.attrs}


def rename(handle: Any, node: Node) -> None:
    """Let a tensor name another node."""
    handle.name_node(node)


def hold(handle: Any, array: Array) -> None:
    """Let a tensor name a leaf of an array, which becomes its own; in memory that is shared its numbers are written."""
    before: Node = handle.node
    if before.attrs.get("shared"):
        array = before.held.copyfrom(array)
        array.written = stamp()
    node = leaf_of(array, before.name, **kept(before))
    node.tracks = before.tracks and ends_gradients(before)
    rename(handle, node)


def assign(handle: Any, value: Node) -> None:
    """Let a tensor be a value from now on, which is computed with what is evaluated next. A leaf stays one."""
    before: Node = handle.node
    if before.value_type is not value.value_type:
        raise ShapeError(f"{before.name} is {before.value_type}, and cannot become {value.value_type}")
    if not ends_gradients(before):
        rename(handle, value)
        return
    attrs = kept(before)
    if attrs.get("shared") and scopes.recording is None:
        hold(handle, array_of(value))
        return
    node = settled_of(value, before.name, **attrs)
    node.tracks = before.tracks
    rename(handle, node)
    if scopes.recording is None:
        wait(handle)


def settle(handle: Any) -> None:
    """Let a tensor whose value has been computed name a leaf of it."""
    node: Node = handle.node
    if node.held is not None and not is_array(node):
        made = leaf_of(node.held, node._name, **kept(node))
        made.tracks = node.tracks and node.op is SETTLED
        handle.name_node(made)


def settled(handle: Any) -> Node:
    """The leaf that a tensor names, once what it names is computed; in memory of its own. Of a node itself, once it is
    computed."""
    if isinstance(handle, Node):
        evaluate([handle])
        return handle
    evaluate([handle.node])
    if not is_array(handle.node):
        made = leaf_of(copied(handle.node.held), handle.node._name)
        made.tracks = handle.node.tracks
        handle.name_node(made)
    return cast(Node, handle.node)


def write(handle: Any, value: Nested) -> None:
    """Let a tensor be a copy of the value, cast to its dtype. Raises ShapeError for another shape, GraphError for what
    depends on variables."""
    if isinstance(value, Handle) and (scopes.recording is not None or value.node.held is None):
        _require_shape(handle, value)
        assign(handle, cast(Any, _as_dtype_of(handle, value)).node)
        return
    _require_closed(handle)
    node: Node = handle.node
    if node.tracks and not ends_gradients(node):
        raise GraphError(f"{node.name} has a history of gradients: write into {node.name}.detach()")
    given = host_array(value, node.dtype)
    if given.shape != node.shape:
        raise shape_error(node, f"{node.name} has shape {node.shape}, the value {given.shape}")
    ctx = node.held.context if node.held is not None else cpu()
    array = to_array(np.array(given, node.dtype, order="C"), ctx)
    if not ends_gradients(node):
        settled(handle)
    hold(handle, array)


def _require_closed(handle: Any) -> None:
    """Raises GraphError for what depends on variables: a graph that an Executor runs does not change."""
    if handle.node.is_open and scopes.recording is None:
        node = handle.node
        raise GraphError(
            f"{node.name} depends on variables, and is not written in place: where() and masked_fill() give another "
            f"node (made at {node.location})"
        )


def _require_shape(handle: Any, changed: Any) -> None:
    if shape_of(changed) != shape_of(handle):
        raise ShapeError(
            f"{handle.name} has shape {shape_of(handle)}, and in place it would become {shape_of(changed)}"
        )


def require_no_history(handle: Any) -> None:
    """Raises GraphError for a leaf whose change would have to be differentiated."""
    if is_grad_enabled() and handle.node.tracks and ends_gradients(handle.node):
        raise GraphError(f"{handle.name} is a leaf that requires a gradient: change it within no_grad()")


def _is_view(node: Node) -> bool:
    """Whether in PyTorch it is a view of its first input, also one of the same shape, as `x.reshape(x.shape)`."""
    if node.op in _VIEWS or not isinstance(node.op, WithUpdates):
        return node.op in _VIEWS
    owner = node.inputs[0].owner
    return owner is not None and (handle := owner()) is not None and handle.node is node.inputs[0]


def require_no_view(handle: Any) -> None:
    """Raises GraphError for what in PyTorch is a view, whose change would reach another tensor, and here is a value."""
    node: Node = handle.node
    if _is_view(node):
        told = f"{node.name} is a value of its own, no view of {node.inputs[0].name}"
        raise GraphError(f"{told}: assign to elements of that, or .clone() this (made at {node.location})")
    if node.tracks and not (is_grad_enabled() or ends_gradients(node)):
        raise GraphError(f"{node.name} has a history of gradients, which a change within no_grad() would lose")


def changed_in_place(handle: Any, changed: Any) -> Any:
    """The tensor, with the new value. Raises GraphError for a leaf that requires a gradient, outside of no_grad(), and
    for what depends on variables; ShapeError for a shape that changes; DTypeError for floats in place of integers."""
    _require_closed(handle)
    require_no_history(handle)
    require_no_view(handle)
    _require_shape(handle, changed)
    value: Node = _as_dtype_of(handle, changed).node
    if value.tracks and is_grad_enabled() and ends_gradients(handle.node):  # a leaf that gets a history
        rename(handle, value)
    else:
        assign(handle, value)
    return handle


def _as_dtype_of(handle: Any, changed: Any) -> Any:
    """The new value in the tensor's dtype. Raises DTypeError where floats would become integers, as PyTorch does."""
    before, after = handle.dtype, changed.dtype
    if before == after:
        return changed
    if after in FLOATS and before not in FLOATS:
        raise DTypeError(f"{handle.name} is {before}, and in place it cannot become {after}")
    return ops.cast_op(changed, before)


def setitem(self: Any, key: Index, value: Nested) -> None:
    """Set indexed values, by NumPy's rules, cast to the tensor's dtype. Raises GraphError for a leaf that requires a
    gradient, outside of no_grad(), IndexRangeError and ShapeError for what does not fit."""
    _require_closed(self)
    require_no_history(self)
    require_no_view(self)
    from .index import replaced  # here: indices are values of tensors

    with changing:
        changed_in_place(self, replaced(self, key, value))


def _augmented_by(symbol: str, function: Callable[..., Any]) -> OfTwo:
    """`x += other` and its like as a method: no thread writes between."""

    def apply(self: ArrayLike, other: ArrayLike) -> Tensor:
        handle: Any = self
        with changing:
            changed = function(handle, other)
            if changed is NotImplemented or (changed.is_open and scopes.recording is None):
                return cast("Tensor", changed)
            if _is_view(handle.node):  # x[0] += 1 assigns to x afterwards
                return cast("Tensor", _as_dtype_of(handle, changed))
            return cast("Tensor", changed_in_place(handle, changed))

    apply.__name__ = f"__i{function.__name__.strip('_')}__"
    apply.__doc__ = f"The tensor is self {symbol} other from now on; of what depends on variables a new node."
    return apply


def _changed_by(name: str, symbol: str, function: Callable[..., Any]) -> OfTwo:
    """`x.sub_(other)` and its like as a method."""

    def apply(self: ArrayLike, other: ArrayLike) -> Tensor:
        require_operand(other)
        with changing:
            return cast("Tensor", changed_in_place(self, function(self, other)))

    apply.__name__, apply.__doc__ = name, f"self {symbol} other, in place; itself. Raises as `add_`."
    return apply


_added = _changed_by("add_", "+", operator.add)


class InPlace(Handle):
    """Methods that change what a tensor is."""

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

    def assign(self, value: Nested) -> Self:
        """Let the tensor be a value, cast to its dtype, from now on; itself. A leaf stays one: the value loses its
        history. Raises ShapeError for another shape."""
        with changing:
            write(self, value)
        return self

    def add_(self, other: ArrayLike, *, alpha: float = 1) -> Tensor:
        """self + alpha * other, in place; itself. Raises GraphError for a leaf that requires a gradient, outside of
        no_grad(), and for what depends on variables; ShapeError where the shape would change; DTypeError where floats
        would become integers."""
        return _added(self, other if alpha == 1 else other * alpha)  # type: ignore[operator]

    sub_: ClassVar[OfTwo] = _changed_by("sub_", "-", operator.sub)
    mul_: ClassVar[OfTwo] = _changed_by("mul_", "*", operator.mul)
    div_: ClassVar[OfTwo] = _changed_by("div_", "/", operator.truediv)

    def lerp_(self, end: ArrayLike, weight: ArrayLike) -> Tensor:
        """self + weight * (end - self), in place; itself. Raises as `add_`."""
        return _added(self, (end - cast(Any, self)) * weight)

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


def lasting(make: Callable[[], Any]) -> Any:
    """The tensor that `make` returns, as state: within a function that `dlsys.compile` records it is made now, and
    lives from call to call."""
    recording = scopes.recording
    with scopes.inside(recording=None):
        made = make()
    if recording is not None:
        recording.keeps(made)
    return made


# State that graphs of an Executor change -----------------------------------------------------------------------


def advancing(parameter: Any, after: Callable[[Any], Any]) -> Any:
    """An assignment of `after(value)`, where several of one run follow each other in the order in which they were made:
    each finds the value that the one before it left. `with_updates_op` makes it."""
    return ASSIGN(parameter, after(LATEST(parameter)), follows=True)


def advance_op(parameter: Any, after: Callable[[Any], Any]) -> Any:
    """Lets a parameter be `after(value)`, as running means and counters are; returns the new value. A tensor is that
    from now on. In a graph of variables the result is an assignment, of which those of one run follow each other in the
    order in which they were made. Raises GraphError for a first argument that is no Parameter, and a second that is no
    function."""
    if not callable(after):
        raise GraphError(f"advance: the second argument must be a function of the value, not {after!r}")
    if not is_node(parameter) or not parameter.op.leaf:
        raise GraphError(f"advance: the first argument must be a Parameter, not {parameter!r}")
    with changing:
        if isinstance(parameter, Handle):
            value = after(parameter)
            if scopes.recording is not None or not value.is_open:
                write(parameter, value)
                return Handle.results.of(parameter.node)
    return advancing(parameter, after)


def with_updates_op(node: Any, assigns: Sequence[Any]) -> Any:
    """A node that has `node`'s value, and in whose evaluation the assignments are made, once a run however often it is
    read. Raises GraphError for what is no assignment.

    Of tensors that hold data, and in a function that `dlsys.compile` records, the state changes now."""
    if not isinstance(assigns, (list, tuple)):
        raise GraphError(f"with_updates: takes a list of assignments, not {type(assigns).__name__}")
    if not is_node(node):
        raise GraphError(f"with_updates: takes a node, not {type(node).__name__}")
    for assign in assigns:
        if not is_node(assign) or not (isinstance(assign.op, Assign) or assign.op.leaf):  # a leaf was assigned already
            raise GraphError(f"with_updates: {assign!r} is no assignment")
    assigns = sorted((one for one in assigns if isinstance(one.op, Assign)), key=lambda one: one.id)
    if scopes.recording is None and (node.is_open or any(assign.is_open for assign in assigns)):
        return WITH_UPDATES(node, *assigns)
    each_run = []
    with changing:
        for assign in assigns:
            if assign.attrs.get("each_run"):
                each_run.append(assign)
            else:
                write(_target(assign), assign.inputs[1])
    return WITH_UPDATES(node, *each_run)


def _target(assign: Any) -> Any:
    """The tensor that an assignment is to, which may name another node by now."""
    parameter: Node = assign.node.inputs[0]
    handle = None if parameter.owner is None else parameter.owner()
    return handle_of(parameter) if handle is None else handle
