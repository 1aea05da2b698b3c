"""`Tensor`: what is one, and how PyTorch's and needle's programs make one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..autodiff import Node
from .leaves import tensor

if TYPE_CHECKING:
    Tensor = Node
else:

    class _Kind(type):
        def __instancecheck__(cls, value: Any) -> bool:
            return isinstance(value, Node)

        def __subclasscheck__(cls, kind: type) -> bool:
            return issubclass(kind, Node)

    class Tensor(metaclass=_Kind):
        """Every node is one. `Tensor(data, dtype="float32", device=None, requires_grad=False)` is `tensor` of that."""

        def __new__(cls, data: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Node:
            return tensor(data, dtype or "float32", requires_grad, device=device)

        @staticmethod
        def make_const(data: Any, requires_grad: bool = False) -> Node:
            """needle's `tensor` of an array or a tensor, in its dtype."""
            return tensor(data, None, requires_grad)
