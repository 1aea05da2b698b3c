"""Hooks of gradients: functions that see the gradient of a tensor, and may replace it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..errors import GraphError, ShapeError
from ..graph import Node
from ..ops import known_shape
from .node import TensorNode

if TYPE_CHECKING:
    from .base import Tensor


class Removable:
    """The handle of a hook among others."""

    def __init__(self, hooks: dict[Removable, Any]) -> None:
        self._hooks = hooks

    def remove(self) -> None:
        """Have the hook not be called any more."""
        self._hooks.pop(self, None)


class Hooked(TensorNode):
    """The method by which a tensor gets hooks."""

    __slots__ = ()
    grad_hooks: dict[Removable, Callable[[Tensor], Node]] | None

    def register_hook(self, hook: Callable[[Tensor], Tensor | None]) -> Removable:
        """Have `hook(gradient)` be called where the tensor's gradient is computed, by `backward`, `autograd.grad` or
        `autodiff.gradients`; what it returns, unless that is None, is the gradient from there on. Returns a handle,
        whose `remove` ends that. Raises GraphError for no function, and for a tensor that needs no gradient."""
        if not callable(hook):
            raise GraphError(f"register_hook: takes a function, not {type(hook).__name__}")
        if self.is_data and not self.requires_grad:  # type: ignore[attr-defined]
            raise GraphError(f"register_hook: {self.name} requires no gradient")

        def checked(gradient: Tensor) -> Node:
            gradient.cached = True  # the hook may keep it, and ask for its value later
            found = hook(gradient)
            if found is None:
                return gradient
            if not isinstance(found, Node):
                raise GraphError(f"register_hook: a hook must return a tensor or None, not {type(found).__name__}")
            if (shape := known_shape(found)) != (own := known_shape(self)) and None not in (shape, own):
                raise ShapeError(f"register_hook: the gradient of {self.name} has shape {own}, the hook's {shape}")
            return found

        self.grad_hooks = self.grad_hooks or {}
        handle = Removable(self.grad_hooks)
        self.grad_hooks[handle] = checked
        return handle
