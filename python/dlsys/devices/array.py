"""Arrays on a device: TVM tensors with NumPy's interface.

An object with `__dlsys_array__(writing=False)`, as tensors have it, is accepted as the Array that this method returns.

On the CPU, `to_array` and `np.asarray` share memory with NumPy, PyTorch and other libraries that support DLPack, and
copy only arrays that are not contiguous.
"""

from __future__ import annotations

import itertools
import math
import numbers
from collections.abc import Callable
from typing import Any, ClassVar, TypeAlias

import numpy as np
import tvm_ffi

from ..checks import extents
from ..errors import DeviceError, DTypeError, ShapeError
from ..hooks import hooks
from .context import DLPACK_CPU, KINDS, Context, context, cpu
from .transfer import between, from_host, part_of, to_host

Shape = tuple[int, ...]

# Names of dtypes in native byte order; looked up, since str(dtype) takes longer than sharing the array.
_NATIVE = {np.dtype(name): name for name in ("float32", "float64", "int32", "int64", "bool", "int8", "uint8")}

LARGE = 4 << 20  # bytes; NumPy asks Linux for pages of 2 MiB for arrays this large, which makes reading them faster
SMALL = 16 << 10  # bytes of an array whose vectors may cross cache lines: copying takes longer than reading it
LINE = 64  # bytes of a cache line, which no vector should cross
VECTOR = 16  # bytes that a GPU's kernels load at once, from addresses that are multiples of 16

_allocate = tvm_ffi.get_global_func("runtime.TVMTensorAllocWithScope")
_allocations = itertools.count()
_allocated = 0


def allocation_count() -> int:
    """How many device buffers dlsys has allocated in this process."""
    return _allocated


def allocate(shape: Shape, dtype: str, ctx: Context) -> Any:
    """A TVM tensor with undefined values. Raises DeviceError if there is not enough memory."""
    global _allocated
    _allocated = next(_allocations) + 1  # `next` is atomic, so the count is right with threads
    nbytes = math.prod(shape) * np.dtype(dtype).itemsize
    try:
        if ctx.kind == "cpu" and nbytes >= LARGE:
            memory = np.empty(nbytes + LINE, "uint8")
            start = -memory.ctypes.data % LINE
            return _wrap(memory[start : start + nbytes].view(dtype).reshape(shape))
        return _allocate(tvm_ffi.Shape(shape), tvm_ffi.dtype(dtype), ctx.device, None)
    except (MemoryError, RuntimeError) as error:
        ctx.require()
        raise DeviceError(f"{ctx!r} cannot allocate memory for {shape} {dtype}") from error


Binary: TypeAlias = "Callable[[Array, Any], Array]"


def _operator(symbol: str, reflected: bool = False) -> Binary:
    """The method of a binary operator: with the array on the left, or `reflected`, on the right."""
    if reflected:
        return lambda self, other: hooks.compute_arrays(symbol, other, self)
    return lambda self, other: hooks.compute_arrays(symbol, self, other)


class Array:
    """A contiguous array on a device.

    TVM functions accept it in place of a tensor of TVM.

    Attributes:
        tensor: TVM's tensor.
        shape, dtype: a tuple of integers, and a string.
        context: the device.
        written: the number (`graph.stamp`) of the last compiled step that has overwritten it; 0 for none.
    """

    __slots__ = ("__weakref__", "context", "dtype", "shape", "tensor", "written")

    def __init__(self, tensor: Any, ctx: Context, shape: Shape | None = None, dtype: str | None = None) -> None:
        """`shape` and `dtype` are the tensor's; pass them if you know them, since asking the tensor is slow. Raises
        DeviceError for arguments that are no tensor of TVM and no context."""
        if not isinstance(ctx, Context) or not hasattr(tensor, "__dlpack__"):
            told = f"{type(tensor).__name__} and {type(ctx).__name__}"
            raise DeviceError(f"Array: takes a tensor of TVM and a context, not {told}: dl.array makes one")
        self.tensor: Any = tensor
        self.shape: Shape = tuple(tensor.shape) if shape is None else shape
        self.dtype: str = str(tensor.dtype) if dtype is None else dtype
        self.context: Context = ctx
        self.written: int = 0

    def __tvm_ffi_object__(self) -> Any:
        return self.tensor

    def __dlpack__(self, **options: Any) -> Any:
        return self.tensor.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.tensor.__dlpack_device__()

    def __deepcopy__(self, memo: Any) -> Array:
        return array(self, self.context)  # reading the pointer of a deep copy of TVM's tensor crashes

    def __reduce__(self) -> Any:
        return array, (self.numpy(), self.context)

    @property
    def ctx(self) -> Context:
        """The context, by the course's name."""
        return self.context

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """The size in bytes."""
        return self.size * np.dtype(self.dtype).itemsize

    def _view(self) -> np.ndarray:
        """The values as a NumPy array: the same memory on the CPU, a copy from a GPU."""
        return np.from_dlpack(self.tensor) if self.context.kind == "cpu" else to_host(self.tensor, self.dtype)

    def numpy(self) -> np.ndarray:
        """A copy as a NumPy array."""
        return np.array(self._view())

    asnumpy = numpy

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """The values for NumPy: on the CPU the same memory, unless `copy` is true."""
        return np.array(self._view(), dtype, copy=copy)

    def copyfrom(self, source: Any) -> Array:
        """Set all values, cast to this dtype; returns itself. Raises ShapeError for a source of another shape."""
        value = host_array(source, None)
        if value.shape != self.shape:
            raise ShapeError(f"an array of shape {self.shape} cannot be set from one of shape {value.shape}")
        if self.context.kind == "cpu":
            self._view()[...] = value
        else:
            from_host(self.tensor, np.asarray(value, self.dtype, order="C"))
        return self

    def copyto(self, other: Any) -> Any:
        """Copy the values to an Array, a tensor, a NumPy array, or to a new Array on a context; returns the target."""
        target = other.__dlsys_array__(writing=True) if hasattr(other, "__dlsys_array__") else other
        if isinstance(target, np.ndarray):
            if target.shape != self.shape:
                raise ShapeError(f"an array of shape {self.shape} cannot be copied to one of shape {target.shape}")
            target[...] = self._view()
        elif isinstance(target, Array):
            target.copyfrom(self)
        else:
            return array(self, context(other))
        return other

    def __getitem__(self, index: Any) -> np.ndarray:
        """A copy of the indexed values, by NumPy's rules."""
        return np.array(self._view()[index])

    def __setitem__(self, index: Any, value: Any) -> None:
        """Set the indexed values, by NumPy's rules."""
        view = self._view()
        view[index] = host_array(value, None)
        if self.context.kind != "cpu":
            from_host(self.tensor, view)

    __add__: ClassVar[Binary] = _operator("+")
    __radd__: ClassVar[Binary] = _operator("+", reflected=True)
    __sub__: ClassVar[Binary] = _operator("-")
    __rsub__: ClassVar[Binary] = _operator("-", reflected=True)
    __mul__: ClassVar[Binary] = _operator("*")
    __rmul__: ClassVar[Binary] = _operator("*", reflected=True)
    __truediv__: ClassVar[Binary] = _operator("/")
    __rtruediv__: ClassVar[Binary] = _operator("/", reflected=True)
    __matmul__: ClassVar[Binary] = _operator("@")
    __rmatmul__: ClassVar[Binary] = _operator("@", reflected=True)
    __pow__: ClassVar[Binary] = _operator("**")
    __rpow__: ClassVar[Binary] = _operator("**", reflected=True)

    def __neg__(self) -> Any:
        return 0 - self if self.dtype.startswith("u") else self * -1  # an unsigned dtype has no -1

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("an array of shape () has no length")
        return self.shape[0]

    def __float__(self) -> float:
        if self.size != 1:
            raise TypeError(f"only an array of one element is a number, not one of shape {self.shape}")
        return float(self._view().reshape(())[()])

    def __repr__(self) -> str:
        return f"Array(shape={self.shape}, dtype={self.dtype}, {self.context!r})"


def host_array(value: Any, python_dtype: Any = np.float32) -> np.ndarray:
    """Any array or number as a NumPy array in native byte order, for reading; memory is shared if possible.

    Python numbers and lists become `python_dtype`, or for None what NumPy makes of them. Raises DTypeError for a value
    that is no array of numbers."""
    if hasattr(value, "__dlsys_array__"):
        value = value.__dlsys_array__()
    if isinstance(value, Array):
        return value._view()
    if hasattr(value, "__dlpack__") and not isinstance(value, np.ndarray):
        if getattr(value, "requires_grad", False):
            raise DTypeError("a tensor that requires grad cannot be shared: pass tensor.detach()")
        if str(getattr(value, "dtype", "")) == "torch.bfloat16":
            value = value.float()  # NumPy has no bfloat16; float32 holds the same values
        if (ctx := lies_on(value)).kind != "cpu":
            return to_array(value, ctx)._view()
        try:
            found = np.from_dlpack(value)
        except (AttributeError, BufferError, RuntimeError, TypeError, ValueError) as error:
            raise DTypeError(f"{type(value).__name__} is not an array that can be read: {error}") from None
    else:
        try:
            found = np.asarray(value)
        except ValueError:
            raise DTypeError("a list must be a rectangular array of numbers") from None
        if python_dtype is not None and not hasattr(value, "__array__") and _is_numeric(found.dtype):
            found = found.astype(python_dtype)
    if not _is_numeric(found.dtype):
        numbers: list[Any] = found.ravel().tolist()
        if numbers and all(isinstance(number, int) for number in numbers):
            raise DTypeError(f"an integer of more than 64 bits, {max(numbers, key=abs)}, is no element of an array")
        raise DTypeError(f"{type(value).__name__} of dtype {found.dtype} is not an array of numbers")
    return found if found.dtype.isnative else found.astype(found.dtype.newbyteorder("="))


def lies_on(value: Any) -> Context:
    """The context of an array of any library. Raises DeviceError for a device that dlsys does not support."""
    if isinstance(value, Array):
        return value.context
    if isinstance(value, np.ndarray) or not hasattr(value, "__dlpack_device__"):
        return cpu()
    kind, index = value.__dlpack_device__()
    if kind not in KINDS:
        raise DeviceError(f"{type(value).__name__} is on a device that dlsys does not support")
    return Context(KINDS[kind], int(index))


class _Writable:
    """A read-only array's memory, declared writable, since DLPack accepts only writable arrays; TVM only reads it."""

    def __init__(self, value: np.ndarray) -> None:
        self._owner = value
        self.__array_interface__ = {**value.__array_interface__, "data": (value.ctypes.data, False)}


def _wrap(value: np.ndarray) -> Any:
    """A NumPy array as a TVM tensor: the same memory if it is contiguous and its elements are aligned."""
    if value.size == 0:  # NumPy's strides of an empty array are not those that TVM's kernels expect
        return allocate(value.shape, str(value.dtype), cpu())
    if not (value.flags.c_contiguous and value.flags.aligned):
        return _copy(value, cpu()).tensor
    if not value.flags.writeable:
        value = np.asarray(_Writable(value))
    return tvm_ffi.from_dlpack(value, require_alignment=value.itemsize, require_contiguous=True)


def new_array(shape: Shape, dtype: str, ctx: Context) -> Array:
    """An Array with undefined values. Small ones are in NumPy's memory: it takes a fifth of the time of TVM's. Raises
    DeviceError if there is not enough memory."""
    if ctx.kind == "cpu" and 0 < math.prod(shape) * np.dtype(dtype).itemsize < SMALL:
        return Array(_wrap(np.empty(shape, dtype)), ctx, shape, dtype)
    return Array(allocate(shape, dtype, ctx), ctx, shape, dtype)


def copied(value: Array, into: Array | None = None) -> Array:
    """A copy on the same context, in memory of its own or in that of `into`, an array of its type."""
    if into is None:
        if value.context.kind == "cpu" and 0 < (view := value._view()).nbytes < SMALL:
            return Array(_wrap(np.array(view)), value.context, value.shape, value.dtype)
        into = new_array(value.shape, value.dtype, value.context)
    if value.context.kind != "cuda":
        into._view()[...] = value._view()
    elif value.size:
        between(value.tensor, into.tensor)
    return into


def _copy(value: np.ndarray, ctx: Context, dtype: str | None = None) -> Array:
    dtype = str(value.dtype) if dtype is None else dtype
    return Array(allocate(value.shape, dtype, ctx), ctx, value.shape, dtype).copyfrom(value)


def to_array(value: Any, ctx: Context, python_dtype: Any = np.float32) -> Array:
    """The value as an Array on `ctx` (not numpy()), for reading: without a copy if memory can be shared.

    Python numbers and lists become `python_dtype`. Host memory is copied to a GPU. Raises DTypeError for a value that
    is no array of numbers, DeviceError for an array on another GPU than `ctx`.
    """
    if type(value) is np.ndarray and ctx.kind == "cpu":  # most feeds; this takes less than a microsecond
        name = _NATIVE.get(value.dtype)
        if name is not None:
            return Array(_wrap(value), ctx, value.shape, name)
    if hasattr(value, "__dlsys_array__"):
        value = value.__dlsys_array__()
    found = lies_on(value)
    if isinstance(value, Array) and (found is ctx or found == ctx or found.kind == ctx.kind == "cpu"):
        return value
    if found.kind == "cpu":
        host = host_array(value, python_dtype)
        return Array(_wrap(host), ctx) if ctx.kind == "cpu" else _copy(host, ctx)
    if found != ctx:
        raise DeviceError(f"the array is on {found!r}, not on {ctx!r}")
    shared = shared_array(value, ctx)
    return shared if is_aligned(shared) else copied(shared)


def shared_array(value: Any, ctx: Context) -> Array:
    """A GPU's array of any library as an Array in the same memory, aligned or not. Raises DTypeError for one that is
    not contiguous."""
    try:
        return Array(tvm_ffi.from_dlpack(value, require_contiguous=True), ctx)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise DTypeError(f"{type(value).__name__} on {ctx!r} cannot be shared: is it contiguous? ({error})") from None


def is_aligned(value: Array) -> bool:
    """Whether a GPU's array begins at a multiple of VECTOR bytes, as kernels need it."""
    return value.tensor.data_ptr() % VECTOR == 0


def to_tensor(value: Any, ctx: Any = None) -> Any:
    """`to_array` as a TVM tensor, of byte offset 0, contiguous, its elements aligned."""
    return to_array(value, context(ctx)).tensor


def view_of(tensor: Any, shape: Shape, dtype: str, offset: int = 0) -> Any:
    """The tensor's memory from byte `offset` on under another shape and dtype.

    Kernels refuse a byte offset that is not 0, so the pointer itself is moved, on the CPU by way of NumPy.
    """
    if tensor.device.dlpack_device_type() != DLPACK_CPU:
        return part_of(tensor, shape, dtype, offset)
    nbytes = math.prod(shape) * np.dtype(dtype).itemsize
    memory = np.from_dlpack(tensor).reshape(-1).view(np.uint8)[offset : offset + nbytes]
    return _wrap(memory.view(dtype).reshape(shape))


def _is_numeric(dtype: np.dtype) -> bool:
    return dtype.kind in "fiub" and dtype.itemsize <= 8


def _checked_dtype(dtype: Any) -> str:
    """The name of a dtype of numbers, in the machine's byte order. Raises DTypeError for any other."""
    try:
        known = np.dtype(dtype)
    except (TypeError, ValueError, SyntaxError):  # NumPy reads text as Python
        raise DTypeError(f"unknown dtype {dtype!r}") from None
    if not _is_numeric(known):
        raise DTypeError(f"dtype {known} is not numeric")
    return str(known.newbyteorder("="))


def array(value: Any, ctx: Any = None, dtype: Any = None) -> Any:
    """A copy of the value on a context: an `Array`, or for `numpy()` an `np.ndarray`.

    Arrays keep their dtype; Python's floats become float32. Raises DTypeError for a value that is no array of numbers,
    DeviceError for an absent device.
    """
    ctx = context(ctx)
    host = host_array(value, None)
    is_python = isinstance(value, (list, tuple, numbers.Real)) and not isinstance(value, np.generic)
    if dtype is not None:
        host = host.astype(_checked_dtype(dtype))
    elif is_python and host.dtype == np.float64:
        host = host.astype(np.float32)
    return np.array(host, order="C") if ctx.kind == "numpy" else _copy(host, ctx)


def empty(shape: Any, dtype: Any = "float32", ctx: Any = None) -> Any:
    """An array with undefined values. Raises ShapeError, DTypeError, DeviceError."""
    ctx, shape, dtype = context(ctx), extents(shape), _checked_dtype(dtype)
    return np.empty(shape, dtype) if ctx.kind == "numpy" else Array(allocate(shape, dtype, ctx), ctx)


def zeros(shape: Any, dtype: Any = "float32", ctx: Any = None) -> Any:
    """An array of zeros. Raises ShapeError, DTypeError, DeviceError."""
    result = empty(shape, dtype, ctx)
    result[...] = 0
    return result
