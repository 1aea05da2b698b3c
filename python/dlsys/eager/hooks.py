"""Functions that see and change a tensor's gradient, and gradients of tensors that are no leaves."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from ..autodiff import Node, find_topo_sort
from ..errors import GraphError, ShapeError
from ..graph import stamp
from ..ops import shape_of
from .functions import node_of
from .running import is_data, is_leaf, leaves_that_require_grad

_retaining: weakref.WeakValueDictionary[int, Node] = weakref.WeakValueDictionary()


class Handle:
    """A hook's registration: `remove` ends it, and so does the end of a `with` block."""

    def __init__(self, hooks: dict[int, Any], key: int) -> None:
        self._hooks, self._key = hooks, key

    def remove(self) -> None:
        """Call the hook no more."""
        self._hooks.pop(self._key, None)

    def __enter__(self) -> Handle:
        return self

    def __exit__(self, *error: Any) -> None:
        self.remove()


def _require_gradient(what: str, node: Node) -> None:
    """Raises GraphError for a tensor that gets no gradient; a graph with variables may."""
    if is_data(node) and not leaves_that_require_grad(node):
        raise GraphError(f"{what}: {node.name} requires no gradient (made at {node.location})")


def register_hook(node: Node, hook: Callable[[Node], Any]) -> Handle:
    """Call `hook(gradient)` whenever gradients go through the tensor; what it returns, unless None, goes on in its
    place. Hooks are called in the order of their registration, as the graph of gradients is built.

    Raises GraphError for a tensor that requires no gradient, ShapeError where a hook returns another shape.
    """
    _require_gradient("register_hook", node)

    def checked(grad: Node) -> Node | None:
        changed = hook(grad)
        if changed is None:
            return None
        found = node_of(changed)
        if shape_of(found) != shape_of(grad):
            raise ShapeError(
                f"register_hook: the hook made {shape_of(found)} of a gradient of shape {shape_of(grad)}"
            )
        return found

    if node._hooks is None:
        node._hooks = {}
    key = stamp()
    node._hooks[key] = checked
    return Handle(node._hooks, key)


def retain_grad(node: Node) -> None:
    """Let `backward` leave the gradient in `grad`, as it does in leaves. Raises GraphError for a tensor that requires
    none."""
    _require_gradient("retain_grad", node)
    if not retains_grad(node) and not is_leaf_of_grad(node):
        _retaining[stamp()] = node


def is_leaf_of_grad(node: Node) -> bool:
    """Whether `backward` leaves a gradient in the node anyway."""
    return is_leaf(node) and bool(getattr(node, "requires_grad", False)) and not node.inputs


def retains_grad(node: Node) -> bool:
    """Whether `retain_grad` was called."""
    return any(other is node for other in _retaining.values())


def retaining_below(output: Node) -> list[Node]:
    """The nodes on which the output depends that retain their gradient."""
    if not _retaining:
        return []
    below = set(find_topo_sort([output]))
    return [node for node in list(_retaining.values()) if node in below]
