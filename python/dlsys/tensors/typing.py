"""Types of arguments, as editors and checkers read them, and the operators as they see them from here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import EllipsisType
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np

from ..devices import Context
from ..graph import Node


class SupportsDLPack(Protocol):
    """An array of any library: dlsys, TVM, PyTorch, JAX."""

    def __dlpack__(self, *args: Any, **kwargs: Any) -> object: ...


ArrayLike: TypeAlias = Node | np.ndarray | np.generic | float | SupportsDLPack
"""An operand: a tensor, an array, a number."""
Nested: TypeAlias = ArrayLike | Sequence[Any]
"""An argument of `tensor`: an operand, or nested lists of numbers."""
Axis: TypeAlias = int | Sequence[int] | None
"""One axis, several, or all."""
Size: TypeAlias = int | Sequence[int]
"""One extent of several arguments, or a list of all."""
DType: TypeAlias = str | type[Any] | np.dtype[Any] | None
"""A dtype's name, a Python type of numbers, or NumPy's dtype; None for the default."""
Device: TypeAlias = str | Context | None
"""`"cpu"`, `"cuda:1"`, a context; None for the CPU."""
Index: TypeAlias = int | slice | EllipsisType | ArrayLike | Sequence[Any] | None
"""An index in the brackets of `x[...]`, alone or in a tuple."""

if TYPE_CHECKING:
    from .base import Tensor

    class _Operators:
        """Operators as functions that make Tensors, see `hooks.make_node`; their own annotations say Node."""

        def __getattr__(self, name: str) -> Callable[..., Tensor]: ...

    ops = _Operators()

    def split_op(x: Node, sections: int | list[int], axis: int) -> list[Tensor]: ...
else:
    from .. import ops as ops
    from ..ops import split_op as split_op
