"""What a function does to tensors while `dlsys.compile` calls it with variables."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

from ..devices import Array
from ..errors import GraphError
from ..graph import Node, stamp
from ..node import user_line


class CompileError(GraphError):
    """A function that `dlsys.compile` records asks for what only a run knows, or does not do the same each time."""


class Recording:
    """What a function does while it is called with variables.

    Attributes:
        began: the number of the first node that it makes.
        changed: the tensors that were assigned, and what they named before.
        grads: the tensors whose `grad` was used: what it was, and whether it was read before it was written.
        settings: what of Python decides the program: (object, attribute, value), as whether a module is training.
        values: the nodes of outside whose values were read: their tensors, and the arrays as they were.
        state: the tensors that were made within the function, and outlive the call.
        streams: the numbers of the random streams, in the order in which they were asked for.
        before_call, each_call: what is called before each run, and after it, as a schedule's step.
        numbers: numbers for what is ordered, the same each time that the function is called.
    """

    def __init__(self, streams: list[int]) -> None:
        """`streams`: those of an earlier recording of the same program, which this one takes again."""
        self.began: int = stamp()
        self.changed: dict[int, tuple[Any, Node]] = {}
        self.grads: dict[int, tuple[Any, Any, bool]] = {}
        self.settings: dict[tuple[int, str], tuple[Any, str, Any]] = {}
        self.values: dict[Node, tuple[Any, Array, int]] = {}
        self.state: dict[int, Any] = {}
        self.streams = streams
        self._taken = 0
        self.before_call: list[Callable[[], Any]] = []
        self.each_call: list[Callable[[], Any]] = []
        self.numbers: Iterator[int] = itertools.count()

    def changes(self, handle: Any) -> None:
        """Note that a tensor is about to be assigned."""
        before: Node | None = getattr(handle, "node", None)
        if before is not None and (before.id < self.began or id(handle) in self.state):
            self.changed.setdefault(id(handle), (handle, before))

    def keeps(self, handle: Any) -> None:
        """Take a leaf that was made within the function for state, which outlives the call."""
        self.state[id(handle)] = handle

    def tensor_of(self, node: Node) -> Any:
        """The tensor of a node which was there before the function was called, or is state that the function has made;
        None where there is none, or it has been assigned what the node holds."""
        handle = owner_of(node)
        lives = handle is not None and (handle.node.id < self.began or id(handle) in self.state)
        return handle if lives and (node.id < self.began or handle.node.held is node.held) else None

    def reads(self, node: Node) -> None:
        """Note that a value is read: it is part of the program, which another value compiles anew."""
        if node.id < self.began:
            self.values[node] = owner_of(node), node.held, node.held.written

    def stream(self, new: Callable[[], int]) -> int:
        """The number of the next random stream."""
        if self._taken == len(self.streams):
            self.streams.append(new())
        self._taken += 1
        return self.streams[self._taken - 1]

    def grad_of(self, handle: Any) -> Any:
        """The tensor's `grad`, which is read."""
        self.grads.setdefault(id(handle), (handle, handle._grad, True))
        return handle._grad

    def grad_changes(self, handle: Any) -> None:
        """Note that a tensor's `grad` is about to be written."""
        self.grads.setdefault(id(handle), (handle, getattr(handle, "_grad", None), False))

    def depends(self, owner: Any, attribute: str) -> None:
        """Note that an object's attribute decides the program, which another value compiles anew."""
        self.settings.setdefault((id(owner), attribute), (owner, attribute, getattr(owner, attribute)))

    def asked(self, nodes: Any) -> CompileError:
        """The error for a value that is asked for while there is none."""
        told = f"the value of {nodes[0].name} is asked for in a compiled function, which is called without values"
        return CompileError(f"{told}: return the tensor and ask outside, or choose with where() [at {user_line()}]")

    def goes_outside(self, node: Node) -> CompileError:
        """The error for gradients that would go through what was computed outside."""
        told = f"{node.name} was computed outside of the compiled function (at {node.location})"
        return CompileError(f"{told}: compute it inside, or detach() it, or call backward() outside [at {user_line()}]")

    def restore(self) -> tuple[list[tuple[Any, Node, Node]], list[tuple[Any, Any, Node | None, bool]]]:
        """Let all be as it was: (tensor, node before, node after), (tensor, grad before, node of grad after, was it
        read)."""
        changed = [(handle, before, handle.node) for handle, before in self.changed.values()]
        grads = [
            (handle, before, None if handle._grad is None else handle._grad.node, read)
            for handle, before, read in self.grads.values()
        ]
        for handle, before, _ in changed:
            handle.name_node(before)
        for handle, before, _, _ in grads:
            handle._grad = before
        same = [old is new or (new.held is not None and new.held is old.held) for _, old, new in changed]
        return [one for one, is_same in zip(changed, same, strict=True) if not is_same], grads


def owner_of(node: Node) -> Any:
    """The tensor that names a node, or named it last; None where there is none."""
    return None if node.owner is None else node.owner()
