"""`TensorNode`: what a tensor holds besides its operator and its inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..devices import Array
from ..graph import Node

if TYPE_CHECKING:
    from .base import Tensor


class TensorNode(Node):
    """A node whose value is computed on demand, where all that it depends on holds data. `Tensor` has the methods.

    Attributes, besides those of `Node`:
        grad: what `backward` left here; None before.
        is_data: whether all that the tensor depends on holds data.
        cached: whether the value stays once it is computed: for values that were asked for, outputs of the outermost
            module call, roots of `backward`, and what a second evaluation needs of an earlier one.
        computed: whether an evaluation has computed the value.
        held: the cached value, an Array; None if there is none, and for leaves, whose value is in their cell.
        wants_grad: for a leaf, and a computed tensor without a history, whether it requires a gradient.
        read: for each input the content of its cell when the tensor was made; None for inputs that are no leaves.
    """

    __slots__ = ("cached", "computed", "grad", "held", "is_data", "read", "wants_grad")
    cached: bool
    computed: bool
    grad: Tensor | None
    held: Array | None
    is_data: bool
    read: list[Any]
    wants_grad: bool
    inputs: list[TensorNode]  # type: ignore[assignment]  # of those that a program makes; a pass mixes them with nodes

    @property
    def known_value(self) -> Any:
        """The value of a leaf, and a cached one that was computed; None where there is none yet."""
        return self.held if self.cell is None else super().known_value
