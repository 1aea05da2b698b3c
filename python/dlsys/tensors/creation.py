"""Leaves: tensors that hold data, made from values, or from sizes and numbers, with PyTorch's arguments.

`device` is "cpu", a GPU as "cuda:0" or `dlsys.cuda(0)`, or None, the CPU; DeviceError for one that is not there.
"""

from __future__ import annotations

import numbers
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict, TypeGuard, Unpack, cast

import numpy as np

from .. import devices, ops
from ..checks import extents, flag, integer, require_neutral, too_large
from ..devices import Array, Context, host_array, is_aligned, lies_on, shared_array, to_array
from ..errors import DeviceError, DTypeError, GraphError, ShapeError
from ..graph import DTYPES, FLOATS, INTEGERS, Handle, Shape, is_node
from ..ops import cast_op, dtype_name, dtype_of, known_dtype, known_shape, oneslike_op, zeroslike_op
from ..ops import leaf as leaf_of
from .typing import Device, DType, Nested, Size, SupportsDLPack

if TYPE_CHECKING:
    from .base import Tensor


def context_named(device: Device) -> Context:
    """The context of tensors that a device means: a Context, its name, or PyTorch's object of that name; the CPU for
    None. Raises DeviceError."""
    plain = device is None or isinstance(device, (Context, str))
    found = devices.context(device if plain else str(device))
    if found.kind == "numpy":
        raise DeviceError("tensors are on the CPU or a GPU; the numpy context is an Executor's")
    return found


def is_tensor(value: object) -> TypeGuard[Tensor]:
    """Whether the value is a tensor: a node of any kind."""
    return isinstance(value, Handle)


def is_leaf(value: object) -> TypeGuard[Tensor]:
    """Whether the value is a tensor that holds data."""
    return isinstance(value, Handle) and value.op.leaf


def tensors_in(value: object) -> Iterator[Tensor]:
    """The tensors in a value, also in its lists, tuples and dictionaries."""
    if is_tensor(value):
        yield value
    elif isinstance(value, (tuple, list, Mapping)):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from tensors_in(item)


def leaf(
    value: np.ndarray | Array, requires_grad: bool = False, name: str | None = None, device: Device = None
) -> Tensor:
    """A leaf in the memory of a new array, or of a copy of it on a GPU. Raises DTypeError where it shall have a
    gradient and is of no floats, DeviceError."""
    if requires_grad is not False:
        requires_grad = flag("tensor", "requires_grad", requires_grad)
    if device is not None and (ctx := context_named(device)).kind != "cpu":
        value = devices.array(value, ctx)
    if requires_grad and str(value.dtype) not in FLOATS:
        raise DTypeError(f"tensor: only floats have gradients, not {value.dtype}")
    made = leaf_of(value, name)
    made.tracks = bool(requires_grad)
    return Handle.results.of(made)


def values_of(value: Nested, dtype: DType = None) -> np.ndarray:
    """A copy of what `tensor` takes, as a NumPy array of a dtype that operators know. Raises DTypeError."""
    given = np.asarray(host_array(value, None))
    if dtype is None and given.dtype == np.float64 and not hasattr(value, "dtype"):
        dtype = np.float32
    if dtype is not None:
        known = dtype_name("tensor", dtype)
        if given.dtype.kind in "iu" and known in INTEGERS and not hasattr(value, "dtype"):
            limits = np.iinfo(known)
            if given.size and not (limits.min <= given.min() and given.max() <= limits.max):
                raise DTypeError(f"tensor: a number from {given.min()} to {given.max()} is no {known}")
        given = given.astype(known, copy=False)
    if str(given.dtype) not in DTYPES:
        raise DTypeError(f"tensor: dtype {given.dtype} is not one of {', '.join(DTYPES)}: give dtype=")
    return np.array(given, order="C")


def tensor(
    value: Nested,
    dtype: DType = None,
    requires_grad: bool = False,
    name: str | None = None,
    device: Device = None,
) -> Tensor:
    """A leaf that holds a copy of `value`.

    Args:
        value: a NumPy, dlsys or TVM array, anything with `__dlpack__`, a number or nested lists; another tensor's
            value. Python's floats become float32, its integers int64.
        dtype: to cast to; None keeps the array's.
        requires_grad: whether `backward` fills its `grad`; a float dtype is needed.
        device: the device for the copy, see above.

    Raises DTypeError for what is no array of numbers or of a dtype that operators do not know, DeviceError.
    """
    return leaf(values_of(value, dtype), requires_grad, name, device)


def FloatTensor(value: Nested) -> Tensor:
    """`tensor(value, "float32")`, as older programs write it."""
    return tensor(value, "float32")


def LongTensor(value: Nested) -> Tensor:
    """`tensor(value, "int64")`, as older programs write it."""
    return tensor(value, "int64")


def as_tensor(value: Nested, dtype: DType = None, device: Device = None) -> Tensor:
    """A tensor as it is, anything else by `tensor`; in another dtype where one is given. Raises DTypeError,
    DeviceError."""
    if not is_node(value):
        return tensor(value, dtype, device=device)
    known = None if dtype is None else dtype_name("as_tensor", dtype)
    found = cast("Tensor", value if known in (None, known_dtype(value)) else cast_op(value, known))
    return found if device is None else found.to(device)


def from_numpy(value: np.ndarray, copy: bool = True) -> Tensor:
    """A leaf that holds a copy of a NumPy array, or shares its memory, see `from_dlpack`. Raises DTypeError for
    anything else."""
    if not isinstance(value, np.ndarray):
        raise DTypeError(f"from_numpy: takes a NumPy array, not {type(value).__name__}")
    return _imported("from_numpy", value, copy)


def from_dlpack(value: SupportsDLPack, copy: bool = True) -> Tensor:
    """A leaf that holds a copy of an array of another library, on the array's device.

    With `copy=False` leaf and array are one memory, until the leaf moves to another device. What the leaf is given is
    written there. What is written to the array, dlsys does not see: the leaf has the new numbers, and so have tensors
    that were made from it before and are computed afterwards.

    Raises DTypeError for what is no array of numbers, and with `copy=False` for what cannot be shared: it is read-only,
    not contiguous, or of another byte order.
    """
    if not hasattr(value, "__dlpack__"):
        raise DTypeError(f"from_dlpack: {type(value).__name__} has no __dlpack__")
    return _imported("from_dlpack", value, copy)


def _imported(function: str, value: SupportsDLPack, copy: bool) -> Tensor:
    """A leaf of another library's array, copied or in its memory. Raises DTypeError for one that cannot be shared."""
    copy, ctx = flag(function, "copy", copy), lies_on(value)
    if ctx.kind == "cpu":
        host = host_array(value)
        if copy:
            return leaf(np.array(host, order="C"))
        own = host.flags.writeable and host.flags.c_contiguous and host.flags.aligned
        if not (own and getattr(getattr(value, "dtype", None), "isnative", True)):
            told = "that is read-only, not contiguous or of another byte order cannot be shared"
            raise DTypeError(f"{function}: an array {told}: leave copy=True")
        return _sharing(to_array(host, ctx))
    shared = shared_array(value, ctx)
    if not copy and not is_aligned(shared):
        raise DTypeError(
            f"{function}: an array that begins within a vector cannot be shared: leave copy=True"
        )
    return leaf(devices.copied(shared)) if copy else _sharing(shared)


def _sharing(value: Array) -> Tensor:
    """A leaf that is written in the array's memory."""
    return Handle.results.of(leaf_of(value, shared=True))


def Variable(name: str, shape: Any = None, dtype: Any = None) -> Tensor:
    """A value that is fed to `Executor.run`.

    Args:
        name: for printing and errors; need not be unique.
        shape: the shape it will be fed with, an int or a tuple; None where feeds may differ.
        dtype: one of `dlsys.graph.DTYPES`, as "float32" or "int64"; None for what is fed.

    Raises GraphError for a name that is no text, and for a shape or dtype that is none.
    """
    return Handle.results.of(ops.variable(name, shape, dtype))


def placeholder_op(name: str | None = None, shape: Any = None, dtype: Any = None) -> Tensor:
    """A variable; see `Variable`."""
    return Handle.results.of(ops.placeholder(name, shape, dtype))


def full_op(shape: Any, value: float, dtype: Any = "float32") -> Tensor:
    """See `dlsys.ops.full_op`."""
    return Handle.results.of(ops.full_op(shape, value, dtype))


def size_of(sizes: Sequence[Size]) -> Shape:
    """Extents given one by one, or as one tuple or list. Raises ShapeError for what is no shape."""
    given: Any = sizes[0] if len(sizes) == 1 and isinstance(sizes[0], (tuple, list)) else sizes
    shape = extents(given)
    if told := too_large(shape):
        raise ShapeError(told)
    return shape


class Options(TypedDict, total=False):
    """What functions take that make tensors: float32 for None, if they do not say another dtype. `layout`,
    `pin_memory` and `memory_format` are PyTorch's and change nothing here."""

    dtype: DType
    requires_grad: bool
    device: Device
    layout: Any
    pin_memory: bool
    memory_format: Any


_READ = ("dtype", "requires_grad", "device")
NEUTRAL: dict[str, Any] = dict.fromkeys(Options.__annotations__.keys() - _READ)
"""PyTorch's options that change no result."""


def dtype_in(op: str, options: Options, default: DType = "float32") -> str:
    """The dtype that the options name, `default` for None. Raises DTypeError, and TypeError for other options."""
    require_neutral(op, {name: value for name, value in options.items() if name not in _READ}, NEUTRAL)
    dtype = options.get("dtype")
    return dtype_name(op, default if dtype is None else dtype)


def leaf_by(options: Options, values: np.ndarray | Array) -> Tensor:
    """A leaf that requires a gradient, and is on the device, as the options say. Raises DTypeError, DeviceError."""
    return leaf(values, options.get("requires_grad", False), device=options.get("device"))


def _filled(op: str, size: Sequence[Size | DType], options: Options) -> Array:
    """An array of undefined values; the dtype may stand behind the shape, as in NumPy. Raises ShapeError, DTypeError.
    """
    *extents, last = size or ((),)
    if len(extents) == 1 and isinstance(last, (str, type, np.dtype)):
        size, options = extents, {**options, "dtype": last}
    return devices.empty(size_of(cast("Sequence[Size]", size)), dtype_in(op, options))


def zeros(*size: Size | DType, **options: Unpack[Options]) -> Tensor:
    """A tensor of zeros. Raises ShapeError, DTypeError."""
    made = _filled("zeros", size, options)
    made[...] = 0
    return leaf_by(options, made)


def ones(*size: Size | DType, **options: Unpack[Options]) -> Tensor:
    """A tensor of ones. Raises ShapeError, DTypeError."""
    made = _filled("ones", size, options)
    made[...] = 1
    return leaf_by(options, made)


def empty(*size: Size | DType, **options: Unpack[Options]) -> Tensor:
    """A tensor of undefined values. Raises ShapeError, DTypeError."""
    return leaf_by(options, _filled("empty", size, options))


def full(size: Size, fill_value: float | np.ndarray | np.generic, **options: Unpack[Options]) -> Tensor:
    """A tensor of one number, in the dtype that `tensor` gives it for None. Raises ShapeError, DTypeError."""
    try:
        number = np.asarray(fill_value)
    except ValueError:  # lists of several lengths
        number = np.asarray(None)
    if number.ndim or number.dtype.kind not in "biuf":
        raise DTypeError(f"full: takes one number, not {fill_value!r}")
    known = dtype_in("full", options, {"b": "bool", "f": "float32"}.get(number.dtype.kind, "int64"))
    if number.dtype.kind in "iu" and known in INTEGERS:
        limits = np.iinfo(known)
        if not limits.min <= int(number) <= limits.max:
            raise DTypeError(f"full: {fill_value} is no {known}")
    made = devices.empty(size_of((size,)), known)
    with np.errstate(over="ignore", invalid="ignore"):
        made[...] = number.astype(known)
    return leaf_by(options, made)


def full_like(x: Nested, fill_value: float, **options: Unpack[Options]) -> Tensor:
    """A number at every index of x's shape, in its dtype for None; a node where the shape is not known yet."""
    node = x if is_node(x) else tensor(x)
    shape = known_shape(node)
    if shape is None:  # of a variable: when it is fed
        made = oneslike_op(node) if fill_value == 1 else zeroslike_op(node)
        made = made if fill_value in (0, 1) else (made + fill_value).to(node)
        return made if options.get("dtype") is None else made.to(options["dtype"])
    options["dtype"] = dtype_in("full_like", options, dtype_of(node))
    return full(shape, fill_value, **options)


def zeros_like(x: Nested, **options: Unpack[Options]) -> Tensor:
    """Zeros of x's shape, and its dtype for None."""
    return full_like(x, 0, **options)


def ones_like(x: Nested, **options: Unpack[Options]) -> Tensor:
    """Ones of x's shape, and its dtype for None."""
    return full_like(x, 1, **options)


def empty_like(x: Nested, **options: Unpack[Options]) -> Tensor:
    """A tensor of undefined values of x's shape, and its dtype for None."""
    return full_like(x, 0, **options)


def _bound(op: str, value: float) -> float:
    """A finite number, of any size. Raises GraphError for anything else."""
    is_number = isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
    if not (is_number and abs(value) < 2.0**1023):
        raise GraphError(f"{op}: takes finite numbers, not {value!r}")
    return value


def _allocated(op: str, count: int, function: Callable[..., np.ndarray], *args: Any, **options: Any) -> np.ndarray:
    """An array of so many elements that NumPy makes. Raises ShapeError for too many, DeviceError if there is not enough
    memory."""
    if told := too_large((count,)):
        raise ShapeError(f"{op}: {told}")
    try:
        return function(*args, **options)
    except MemoryError as error:
        raise DeviceError(f"{op}: {error}") from None


def arange(start: float, end: float | None = None, step: float = 1, **options: Unpack[Options]) -> Tensor:
    """start, start + step, ... below `end`; from 0 below `start` for None. int64 of integers, else float32. Raises
    GraphError for a step that does not lead from start to end, DeviceError if there is not enough memory."""
    if end is None:
        start, end = 0, start
    start, end, step = (_bound("arange", value) for value in (start, end, step))
    whole = all(isinstance(n, numbers.Integral) for n in (start, end, step))
    known = dtype_in("arange", options, "int64" if whole else "float32")
    if known in INTEGERS and not whole:  # PyTorch counts in integers then
        start, end, step, whole = int(start), int(end), int(step), True
    if not step or (end - start) * step < 0:
        raise GraphError(f"arange: a step of {step} does not lead from {start} to {end}")
    count = int(-((start - end) // step) if whole else np.ceil((end - start) / step))
    places = _allocated("arange", count, np.arange, count, dtype=np.int64 if whole else np.float64)
    made: np.ndarray = start + step * places
    return leaf_by(options, np.asarray(made, known))


def linspace(start: float, end: float, steps: int, **options: Unpack[Options]) -> Tensor:
    """`steps` numbers at equal distances from `start` to `end`, both of them included. In a dtype of integers fractions
    are cut off, of the two ends first. Raises GraphError for what are no finite numbers, and for a number of steps
    below 0."""
    known, count = dtype_in("linspace", options), integer("linspace", "steps", steps, 0)
    start, end = (_bound("linspace", value) for value in (start, end))
    if known in INTEGERS:
        start, end = int(start), int(end)
    return leaf_by(options, _allocated("linspace", count, np.linspace, start, end, count).astype(known))


def eye(n: int, m: int | None = None, **options: Unpack[Options]) -> Tensor:
    """Ones on the diagonal of (n, m), m = n for None. Raises ShapeError for no extents."""
    rows, columns = size_of((n, n if m is None else m))
    return leaf_by(options, _allocated("eye", rows, np.eye, rows, columns, dtype=dtype_in("eye", options)))
