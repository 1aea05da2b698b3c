"""Types of arguments, as editors and checkers read them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import EllipsisType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

import numpy as np

from ..devices import Context
from ..graph import Node

if TYPE_CHECKING:
    from .base import Tensor


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
OfOne: TypeAlias = "Callable[[ArrayLike], Tensor]"
"""A function of one tensor."""
OfTwo: TypeAlias = "Callable[[ArrayLike, ArrayLike], Tensor]"
"""A function of two tensors."""


class Extremum(NamedTuple):
    """Values and indices, as `max` and `min` along an axis, `sort` and `topk` return."""

    values: Tensor
    indices: Tensor
