"""The arrays of a `state_dict`, which have PyTorch's names for what programs do with such values."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..device import Context, cpu
from ..errors import GraphError
from ..graph import Node
from ..ops import dtype_name
from .inplace import write
from .leaves import require_cpu


class Size(int):
    """A number of elements, NumPy's `size`, which gives the shape when it is called, as PyTorch's does."""

    shape: tuple[int, ...]

    def __call__(self, dim: int | None = None) -> Any:
        """The shape, or its extent along an axis."""
        return self.shape if dim is None else self.shape[dim]


class StateArray(np.ndarray[Any, Any]):
    """A NumPy array with methods of PyTorch's tensors besides.

    Those that end in `_` write this copy and, where it comes from a module's `state_dict`, the module's value too, as
    in PyTorch; `array[...] = value` and `array += value` write the copy alone. A pickled one is a plain array.
    """

    _owner: Node | None = None
    _seen: Any = None

    @classmethod
    def of(cls, parameter: Any) -> StateArray:
        """A copy of a Parameter's value."""
        made = cls(parameter.shape, parameter.dtype)
        made[...] = parameter.value
        made._owner, made._seen = parameter, parameter.cell.version
        return made

    def __reduce__(self) -> Any:
        return np.asarray(self).__reduce__()

    def __repr__(self) -> str:
        return repr(np.asarray(self))

    @property
    def size(self) -> Size:
        """The number of elements; `size()` is the shape."""
        made = Size(np.ndarray.size.__get__(self))
        made.shape = self.shape
        return made

    @property
    def device(self) -> Context:  # type: ignore[override]
        """The CPU."""
        return cpu()

    @property
    def requires_grad(self) -> bool:
        """False: it is a value without history."""
        return False

    def clone(self) -> StateArray:
        """A copy."""
        return np.array(self, subok=True, order="C")

    def detach(self) -> StateArray:
        """Itself. So `cpu` and `contiguous`."""
        return self

    cpu = contiguous = detach

    def numpy(self) -> np.ndarray:
        """As an array of NumPy's own type, in the same memory."""
        return np.asarray(self)

    def numel(self) -> int:
        """The number of elements."""
        return int(self.size)

    def dim(self) -> int:
        """The number of axes."""
        return self.ndim

    def is_floating_point(self) -> bool:
        """Whether the values are floats."""
        return self.dtype.kind == "f"

    def to(self, *args: Any, dtype: Any = None, device: Any = None) -> StateArray:
        """In another dtype; a device may be named, but only the CPU. Raises GraphError, DeviceError."""
        found: Any = self
        for value in (*args, *(given for given in (dtype, device) if given is not None)):
            if isinstance(value, (Context, bool)) or str(value).split(":")[0] in ("cpu", "cuda"):
                require_cpu(None if isinstance(value, bool) else value)
            else:
                found = found.astype(dtype_name("to", value), copy=False)
        return found

    def float(self) -> StateArray:
        """`to("float32")`."""
        return self.to("float32")

    def double(self) -> StateArray:
        """`to("float64")`."""
        return self.to("float64")

    def long(self) -> StateArray:
        """`to("int64")`."""
        return self.to("int64")

    def copy_(self, source: Any) -> StateArray:
        """Set all values, cast and broadcast; itself. So `fill_`. Raises GraphError where the module's value has
        changed since this one was taken."""
        whole = self if self._owner is not None or not isinstance(self.base, StateArray) else self.base
        owner = whole._owner
        if owner is not None and owner.cell.version != whole._seen:
            raise GraphError(f"{owner.name} was changed since this value was taken: ask for state_dict() again")
        self[...] = np.asarray(source)
        if owner is not None:
            write(owner, whole)
            whole._seen = owner.cell.version
        return self

    fill_ = copy_

    def zero_(self) -> StateArray:
        """`copy_(0)`."""
        return self.copy_(0)

    def add_(self, other: Any, *, alpha: Any = 1) -> StateArray:
        """Add alpha times the other; itself. So `sub_`, and `mul_`, `div_`."""
        return self.copy_(np.asarray(self) + alpha * np.asarray(other))

    def sub_(self, other: Any, *, alpha: Any = 1) -> StateArray:
        return self.copy_(np.asarray(self) - alpha * np.asarray(other))

    def mul_(self, other: Any) -> StateArray:
        return self.copy_(np.asarray(self) * np.asarray(other))

    def div_(self, other: Any) -> StateArray:
        return self.copy_(np.asarray(self) / np.asarray(other))

    def lerp_(self, end: Any, weight: Any) -> StateArray:
        """Go a share `weight` of the way to `end`; itself."""
        return self.copy_(np.asarray(self) + np.asarray(weight) * (np.asarray(end) - np.asarray(self)))
