"""`TensorNode`: what a tensor holds besides its operator and its inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..device import Array
from ..graph import Node, Op

if TYPE_CHECKING:
    from .base import Tensor


class TensorNode(Node):
    """A node whose value is computed on demand, where all that it depends on holds data. `Tensor` has the methods.

    Attributes, besides those of `Node`:
        grad: what `backward` left here; None before.
        is_data: whether all that the tensor depends on holds data.
        kept: the cached value, an Array; None if there is none, and for leaves, whose value is in their cell.
        keep: whether to cache the value as soon as it is computed: for the outputs of the outermost module call.
        passed: whether the value was computed once on the way to another, without being cached.
        wants_grad: for a leaf, whether it requires a gradient.
        read: for each input the content of its cell when the tensor was made; None for inputs that are no leaves.
    """

    __slots__ = ("grad", "is_data", "keep", "kept", "passed", "read", "wants_grad")
    grad: Tensor | None
    is_data: bool
    keep: bool
    kept: Array | None
    passed: bool
    read: list[Any]
    wants_grad: bool
    inputs: list[TensorNode]  # type: ignore[assignment]  # of those that a program makes; a pass mixes them with nodes

    def __init__(self, op: Op, inputs: list[Node], attrs: dict[str, Any], name: str | None) -> None:
        Node.__init__(self, op, inputs, attrs, name)
        read: list[Any] = []
        is_data = not op.variable
        for value in inputs:
            cell = value.cell
            read.append(None if cell is None else cell.content)
            is_data = is_data and isinstance(value, TensorNode) and value.is_data
        self.read = read
        self.is_data = is_data
        self.grad = self.kept = None
        self.keep = self.passed = self.wants_grad = False

    @property
    def known_value(self) -> Any:
        """The value of a leaf, and that which was computed and kept; None where there is none yet."""
        return self.kept if self.cell is None else super().known_value
