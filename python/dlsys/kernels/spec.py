"""What a kernel is to compute, and its loops: TE -> PrimFunc -> the first schedule rule that takes it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, te, tirx
from tvm.target import Target

from .. import compute, schedule
from ..errors import TargetError
from ..graph import Shape
from ..schedule.common import renamed
from ..schedule.cpu import tiles
from ..schedule.target import resolve_target

ArrayType = tuple[Shape, str]
"""The shape and dtype of an array."""


@dataclass(frozen=True)
class Lowered:
    """A kernel before machine code: its scheduled loops, and the rule that shaped them."""

    function: tirx.PrimFunc
    rule: schedule.Rule


@dataclass(frozen=True)
class KernelSpec:
    """A kernel to be built.

    Attributes:
        name: what it is called in errors, listings and machine code.
        key: with `inputs`, what tells its formula from others; `te` is not compared.
        inputs: shape and dtype of each input.
        te: the formula, from one `te.Tensor` per input to the output's, or to a tuple of outputs'.
        in_place: whether an output may lie on an input, which the compiler is then told.
        outputs: shape and dtype of each output, where they are known without the formula.
        flat: whether the one axis of each array stands for all that its owner has.
    """

    name: str
    key: Hashable
    inputs: tuple[ArrayType, ...]
    te: Callable[..., te.Tensor | tuple[te.Tensor, ...]]
    in_place: bool = False
    outputs: tuple[ArrayType, ...] | None = None
    flat: bool = False


_scheduled: ContextVar[bool] = ContextVar("scheduled", default=True)


@contextmanager
def default_schedules() -> Iterator[None]:
    """Within it kernels are built with TVM's default loops instead of our schedules: to compare with."""
    token = _scheduled.set(False)
    try:
        yield
    finally:
        _scheduled.reset(token)


def uses_own_schedules() -> bool:
    """Whether kernels are built with our schedules now: not within `default_schedules`."""
    return _scheduled.get()


def panel_columns(m: int, n: int, dtype: str) -> int:
    """Columns of the panels that a product of (m, k) and (k, n) reads on this CPU; 0 where it packs none."""
    return tiles.panel_columns(m, n, dtype, schedule.machine_of(schedule.host_target())) if _scheduled.get() else 0


def runnable_target(value: Any) -> Target:
    """The target that `value` means, if this machine can run its code. Raises TargetError."""
    target = resolve_target(value)
    if target.kind.name == "cuda" and not (tvm.runtime.enabled("cuda") and tvm.cuda(0).exist):
        raise TargetError("target cuda: this machine has no usable CUDA device; use 'llvm'")
    return target


def lower(spec: KernelSpec, target: Target, ours: bool = True) -> Lowered:
    """The formula's loops under the first schedule rule that takes them, or with `ours` false as TVM makes them."""
    function, rule = prim_func(spec), schedule.DEFAULT
    if ours:
        function, rule = schedule.apply(function, target)
    return Lowered(function.with_attr("global_symbol", symbol_of(spec)), rule)


def _formula(spec: KernelSpec) -> tuple[list[te.Tensor], list[te.Tensor]]:
    """The tensors of a formula's inputs and outputs."""
    inputs = [compute.placeholder(*kind, f"in{i}") for i, kind in enumerate(spec.inputs)]
    formula = spec.te(*inputs)
    outputs: list[te.Tensor] = []
    for value in formula if isinstance(formula, tuple) else (formula,):
        taken = any(value.same_as(other) for other in [*inputs, *outputs])
        outputs.append(compute.copy(value) if taken else value)  # a formula without a stage writes nothing
    return inputs, outputs


def output_types(spec: KernelSpec) -> tuple[ArrayType, ...]:
    """Shape and dtype of each output."""
    if spec.outputs is not None:
        return spec.outputs
    return tuple((compute.shape_of(value), str(value.dtype)) for value in _formula(spec)[1])


def prim_func(spec: KernelSpec) -> tirx.PrimFunc:
    """The formula as plain loops over its inputs, then its outputs."""
    inputs, outputs = _formula(spec)
    function = any_alignment(te.create_prim_func([*inputs, *outputs]))
    return function.with_attr("tirx.noalias", False) if spec.in_place else function


def any_alignment(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """The function with its arrays assumed aligned to no more than a float32.

    TVM assumes 64 bytes and does not check: on NumPy's memory such a kernel can end the process. Unaligned
    vector loads cost nothing on aligned data. The alignment is part of a buffer's type, so each gets another buffer.
    """
    blocks: list[s_tir.SBlock] = []
    tvm_ffi.structural_walk(function.body, (s_tir.SBlock, blocks.append))
    made = [*function.params, *(buffer for block in blocks for buffer in block.alloc_buffers)]
    others = {
        buffer: tirx.decl_buffer(
            buffer.shape, str(buffer.dtype), buffer.name, scope=buffer.scope(), data_alignment=4, layout=None
        )
        for buffer in made
    }
    return renamed(function, others)


def symbol_of(spec: KernelSpec) -> str:
    """The kernel's name in machine code: like its own, and another for every formula, so that modules can be joined."""
    formula = repr((spec.key, spec.inputs, spec.in_place)).encode()
    name = re.sub(r"\W", "_", spec.name, flags=re.ASCII)
    return f"k_{name}_{hashlib.sha256(formula).hexdigest()[:12]}"
