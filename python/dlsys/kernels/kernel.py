"""A compiled kernel: one function over arrays, which checks what it is called with and prints itself."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
from tvm_ffi import Tensor, from_dlpack

from ..devices import Array, cuda, empty, lies_on, to_tensor, view_of
from ..devices.context import DLPACK_CPU
from ..errors import DeviceError, DTypeError, KernelArgumentError, ShapeError, TargetError
from ..tvm_import import with_compiler
from .spec import ArrayType, KernelSpec, TargetName

SOURCES = ("asm", "ll", "cuda", "ptx")


class Kernel:
    """A compiled function of arrays, called with its inputs, then its outputs, which it fills.

    Attributes:
        inputs, outputs: shape and dtype of each.
        named_target: what it is compiled for, as text; `target` is TVM's object.
        symbol, module: its name in the module that holds it, among others that were compiled with it.
        function: the bare TVM function, for TVM tensors; it raises TargetError where this CPU lacks instructions.
        nbytes, code_bytes: of all inputs and outputs; what its code takes of the process, about.
        checked: whether `function` checks its arguments; if not, it takes whatever it is given for right.
        flat: whether its arrays, of one axis, may also be given with others.
    """

    def __init__(
        self,
        spec: KernelSpec,
        how: TargetName,
        module: Any,
        code_bytes: int,
        lowered: Any = None,
    ) -> None:
        """`lowered`: its scheduled loops, of one that was loaded from disk None: they are made for who asks."""
        self.name: str = spec.name
        self.inputs: tuple[ArrayType, ...] = spec.inputs
        self.flat: bool = spec.flat
        self.symbol: str = spec.symbol
        self.outputs: tuple[ArrayType, ...] = spec.outputs
        self.named_target: TargetName = how
        self.module: Any = module
        self.checked: bool = how.checked
        self.code_bytes = code_bytes
        self.function: Any = self._refuse if how.refusal else module[self.symbol]
        self._lower: Callable[[], Any] = cache(lambda: lowered or with_compiler("kernels.build").lower(spec, how))
        self._types, count = (*self.inputs, *self.outputs), len(self.inputs)
        self._alignment = max([np.dtype(dtype).itemsize for _, dtype in self._types], default=1)
        sizes = [(math.prod(shape) * np.dtype(dtype).itemsize, dtype) for shape, dtype in self._types]
        self.nbytes: int = sum(size for size, _ in sizes)
        # each output with each input and with the outputs before it, where both have bytes: their positions, the bytes,
        # and whether they may be one array, as each element is read before the one at its place is written
        self._pairs = [
            (i, j, sizes[i][0], sizes[j][0], spec.elementwise and j < count and sizes[i] == sizes[j])
            for i in range(count, len(sizes))
            for j in range(i)
            if sizes[i][0] and sizes[j][0]
        ]
        self._apart: Sequence[int] | None = None  # where the arguments lay last that were found right: mostly the next

    def _refuse(self, *arrays: Any) -> None:
        """In place of a function whose instructions this CPU lacks, which would end the process."""
        raise TargetError(f"{self.name}: {self.named_target.refusal}")

    @property
    def target(self) -> Any:
        """TVM's Target that it is compiled for."""
        return self.named_target.target

    @property
    def rule(self) -> Any:
        """The schedule rule that shaped its loops."""
        return self._lower().rule

    @property
    def scratch(self) -> tuple[ArrayType, ...]:
        """Shape and dtype of the arrays that `function` takes behind the outputs, to work in: on a GPU alone."""
        return () if self.named_target.kind == "llvm" else self._lower().scratch

    def __call__(self, *arrays: Any) -> None:
        """Run on the inputs, then the outputs: dlsys arrays, TVM tensors, or NumPy arrays of any alignment.

        An output may be one of the inputs where the operation is elementwise; otherwise it must share no memory with
        another argument. Raises KernelArgumentError for a wrong number of arguments, or an output that cannot be
        written (read-only, non-contiguous, in another argument's memory); ShapeError, DTypeError and DeviceError for
        an argument of another shape, dtype or device.
        """
        ready: list[Tensor] = []
        failed: Exception | None = None
        if self.checked:
            starts = []
            try:  # the usual case: TVM checks count, shape, dtype and device by itself, in a tenth of a microsecond
                for array in arrays:
                    if type(array) is Array:
                        tensor = array.tensor
                    elif type(array) is np.ndarray and array.flags.carray:
                        tensor = from_dlpack(array)
                    elif isinstance(array, Tensor) and array.data_ptr() % self._alignment == 0:
                        tensor = array
                    else:
                        break
                    ready.append(tensor)
                    starts.append(tensor.data_ptr())
                else:
                    if starts != self._apart:
                        self._require_apart(starts)
                    self.function(*ready)
                    return
            except (BufferError, IndexError, RuntimeError, TypeError, ValueError) as error:
                failed = error  # below the same is checked again, argument by argument, in the user's words
        if len(arrays) != (wanted := len(self._types)):
            results = "the output" if len(self.outputs) == 1 else f"its {len(self.outputs)} outputs"
            told = f"{self.name}: takes {wanted} arrays, its {len(self.inputs)} inputs and then {results}"
            raise KernelArgumentError(f"{told}; got {len(arrays)}: {self!r}")
        tensors = [self._tensor(position, value) for position, value in enumerate(arrays)]
        self._require_apart([tensor.data_ptr() for tensor in tensors])
        if failed is not None and len(ready) == len(tensors) and all(map(_is_same, ready, tensors)):
            raise failed  # nothing was wrong with the arguments: its work had begun
        self.function(*tensors, *(empty(*of, tensors[0].device).tensor for of in self.scratch))

    def _require_apart(self, starts: Sequence[int]) -> None:
        """Raises KernelArgumentError for an output that would overwrite another argument; `starts`: of their memory."""
        for output, other, written, size, may_be_one in self._pairs:
            start, place = starts[output], starts[other]
            if start < place + size and place < start + written and not (may_be_one and start == place):
                told = f"{self._argument(output)} shares memory with {self._argument(other)}"
                allowed = ": they may be one array, but not two that overlap" if may_be_one else ""
                raise KernelArgumentError(f"{self.name}: {told}{allowed}")
        self._apart = starts

    def _argument(self, position: int) -> str:
        """The words for the argument at a position."""
        if (number := position - len(self.inputs)) < 0:
            return f"input {position}"
        return "the output" if len(self.outputs) == 1 else f"output {number}"

    def _tensor(self, position: int, value: Any) -> Any:
        """The argument as a TVM tensor of the right type, without a copy unless it is a non-contiguous input."""
        is_output = position >= len(self.inputs)
        what = f"{self.name}: {self._argument(position)}"
        shape, dtype = self._types[position]
        if type(value) not in (Array, np.ndarray) and hasattr(value, "__dlsys_array__"):  # of a higher layer
            value = value.__dlsys_array__(is_output)
        if not (isinstance(value, (Array, np.ndarray)) or hasattr(value, "__dlpack__")):
            raise KernelArgumentError(f"{what} must be a dlsys, TVM or NumPy array, not {type(value).__name__}")
        given = tuple(int(extent) for extent in value.shape)
        if given != shape and not (self.flat and (math.prod(given),) == shape):
            raise ShapeError(f"{what} must have shape {shape}, not {given}")
        found = str(value.dtype).removeprefix("torch.")
        if found != dtype:
            raise DTypeError(f"{what} must be {dtype}, not {found}")
        if isinstance(value, np.ndarray) and not value.dtype.isnative:
            raise DTypeError(f"{what} must be {dtype} in native byte order, not {value.dtype!r}")
        if isinstance(value, np.ndarray) and is_output:
            if not value.flags.writeable:
                raise KernelArgumentError(f"{what} is read-only")
            if not value.flags.c_contiguous:
                raise KernelArgumentError(f"{what} is not contiguous (strides {value.strides})")
        elif is_output and hasattr(value, "is_contiguous") and not value.is_contiguous():
            raise KernelArgumentError(f"{what} is not contiguous")
        if is_output and not _is_aligned(value):
            raise KernelArgumentError(f"{what} does not lie at a multiple of its element's {dtype} size")
        if 0 in shape:  # holds nothing, and NumPy's strides of such an array are not what TVM expects
            return empty(shape, dtype).tensor
        tensor = to_tensor(value, lies_on(value))
        kind = self.named_target.kind
        if (tensor.device.dlpack_device_type() == DLPACK_CPU) != (kind == "llvm"):
            if kind == "cuda":
                cuda(0).require()
            raise DeviceError(f"{what} lies on {tensor.device}, the kernel runs on {kind}")
        return tensor if given == shape else view_of(tensor, shape, dtype)

    def named(self, name: str) -> Kernel:
        """This kernel under another name."""
        other = self if name == self.name else copy.copy(self)
        other.name = name
        return other

    def script(self) -> str:
        """The scheduled loops as TVMScript."""
        return self._lower().function.script()

    def source(self, form: str = "asm") -> str:
        """The code of this kernel's module: "asm" (machine code), "ll" (LLVM IR); on a GPU "cuda" or "ptx", which needs
        CUDA's compiler but no GPU. Raises KernelArgumentError for another form, TargetError without a compiler."""
        if form not in SOURCES:
            raise KernelArgumentError(f"{self.name}: source is one of {', '.join(SOURCES)}, not {form!r}")
        module = self.module
        if module.kind not in ("llvm", "c"):  # loaded as machine code: made once more, for reading
            compiled = with_compiler("schedule.machine_code").compiled
            module = compiled({self.symbol: self._lower().function}, self.target)
        if form in ("asm", "ll"):
            return module.inspect_source(form)
        code = "\n".join(m.inspect_source("cuda") for m in module.imports if m.kind == "cuda")
        if not code:
            raise KernelArgumentError(f"{self.name}: it runs on {self.named_target.kind} and has no CUDA source")
        if form == "cuda":
            return code
        compiler = with_compiler("schedule").extension("cuda").compiler
        return compiler.compiled(code, str(self.target.attrs["arch"]), "ptx").decode()

    def __repr__(self) -> str:
        types = [f"{dtype}[{', '.join(map(str, shape))}]" for shape, dtype in self._types]
        arguments, results = (", ".join(part) for part in (types[: len(self.inputs)], types[len(self.inputs) :]))
        return f"<kernel {self.name}({arguments}) -> {results}, {self.rule.name}, {self.named_target.kind}>"


def _is_same(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are one part of memory in one form."""
    return bool(one.data_ptr() == other.data_ptr() and tuple(one.shape) == tuple(other.shape))


def _is_aligned(value: Any) -> bool:
    """Whether the elements of an array in the CPU's memory are aligned: what is not would be copied to be written."""
    if isinstance(value, (Array, np.ndarray)):
        return isinstance(value, Array) or bool(value.flags.aligned)
    return int(value.__dlpack_device__()[0]) != DLPACK_CPU or bool(np.from_dlpack(value).flags.aligned)
