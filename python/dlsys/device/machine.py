"""The facts of a machine that decide how its kernels are written: those of this CPU without TVM's compiler."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from typing import Any

import tvm_ffi

from ..system import cpu_features, cpu_model
from .context import get_num_threads

_VECTORS = (  # LLVM's name of a feature, bits of a vector register, number of them; the first that a CPU has counts
    ("avx512f", 512, 32),
    ("avx2", 256, 16),
    ("avx", 256, 16),
    ("neon", 128, 32),
)
_BASELINE = (128, 16)  # SSE2, which every x86-64 has
_ZEN_4 = (0x19, (*range(0x10, 0x20), *range(0x60, 0x80), *range(0xA0, 0xB0)))  # AMD's family and models, as LLVM has it


@dataclass(frozen=True)
class Machine:
    """The facts of a target that schedules read."""

    kind: str  # "llvm" or "cuda"
    vector_bits: int
    registers: int  # vector registers
    threads: int
    fma: float = 0.5  # cycles of a multiply-add of vectors
    tensor_cores: str = ""  # to what they round products of float32, "tf32", "bfloat16" or "float16"; empty: not

    def lanes(self, dtype: Any) -> int:
        """Elements of `dtype` in a vector register."""
        return max(1, self.vector_bits // tvm_ffi.dtype(str(dtype)).bits)


def cpu_machine(features: Container[str], threads: int, halves: bool) -> Machine:
    """The machine that a CPU is, from its features by LLVM's names; `halves`: it takes a vector of 512 bits in two."""
    bits, registers = next((tuple(rest) for name, *rest in _VECTORS if name in features), _BASELINE)
    return Machine("llvm", bits, registers, threads, 1.0 if halves and bits == 512 else 0.5)


def host_machine() -> Machine:
    """The machine that this CPU is, from its flags."""
    family, model = cpu_model()
    return cpu_machine(cpu_features(), get_num_threads(), family == _ZEN_4[0] and model in _ZEN_4[1])
