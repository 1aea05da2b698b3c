"""The facts of a machine that decide how its kernels are written: those of this CPU without TVM's compiler."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Any

import tvm_ffi

from ..system import cache_sizes, cpu_features, cpu_model
from .context import get_num_threads

_VECTORS = (  # LLVM's name of a feature, bits of a vector register, number of them; the first that a CPU has counts
    ("avx512f", 512, 32),
    ("avx2", 256, 16),
    ("avx", 256, 16),
    ("neon", 128, 32),
)
_BASELINE = (128, 16)  # SSE2, which every x86-64 has
_ZEN_4 = (0x19, (*range(0x10, 0x20), *range(0x60, 0x80), *range(0xA0, 0xB0)))  # AMD's family and models, as LLVM has it
_CACHES = {1: 32 << 10, 2: 1 << 20, 3: 32 << 20}
"""Bytes of caches by level where nothing tells them: on other systems than Linux, and of another CPU than this one."""


@dataclass(frozen=True)
class Gpu:
    """The speeds and sizes of a GPU, from its maker's data sheet where no comment says else."""

    name: str
    multiprocessors: int
    clock: float  # cycles a second
    bandwidth: float  # bytes of memory a second
    shared: int  # bytes of shared memory of a multiprocessor
    block_shared: int = 48 << 10  # bytes of it that a block's arrays may take, as they are declared
    registers: int = 65536
    threads: int = 2048  # of a multiprocessor
    blocks: int = 32
    warps: int = 4  # whose instructions a multiprocessor starts in a cycle
    shared_bandwidth: int = 128  # bytes of shared memory that it reads in a cycle
    launch: float = 2.0e-6  # seconds from one launch's end to the next one's start, about; in a CUDA graph less
    fill: float = 0.4  # the share of the multiprocessors that draw all of memory's bandwidth

    @property
    def flops(self) -> float:
        """Operations of float32 a second: 128 multiply-adds a cycle."""
        return self.multiprocessors * 128 * 2 * self.clock


GPUS = {
    "sm_90": Gpu("H200", 132, 1.98e9, 4.8e12, 228 << 10),
    "sm_80": Gpu("A100", 108, 1.41e9, 2.04e12, 164 << 10),
}
"""By their architecture."""
WARP = 32  # threads of a GPU that run one instruction together
TENSOR_INSTRUCTION = 5  # instructions' time of one of tensor cores: 1,024 multiply-adds, some 945 of which a cycle
HOPPER = "sm_90"  # the architecture of CUDA code where no device tells its own, and whose facts one without data has


@dataclass(frozen=True)
class Machine:
    """The facts of a target that schedules read. All of them are part of a kernel's key on disk.

    Attributes:
        kind: "llvm" or "cuda".
        vector_bits: of a vector register; of a GPU those that a warp has of one number each.
        registers: vector registers of a core, or those of a GPU's thread.
        threads: that a CPU's kernels are shared by.
        fma: cycles of a multiply-add of vectors, where its operands lie in registers and none waits for another.
        tensor_cores: to what a GPU's round products of float32, "tf32", "bfloat16" or "float16"; empty: they are not
            used.
        l1: bytes of a core's first cache for data.
        l2: bytes of its second one.
        l3: bytes of the last one, which cores share: of all that share it. Of a GPU no rule reads these three,
            nor the next.
        line: bytes of a line of its caches.
        gpu: the GPU that it is, or one like it; of a CPU no rule reads it.
    """

    kind: str
    vector_bits: int
    registers: int
    threads: int
    fma: float = 0.5
    tensor_cores: str = ""
    l1: int = _CACHES[1]
    l2: int = _CACHES[2]
    l3: int = _CACHES[3]
    line: int = 64
    gpu: Gpu = GPUS[HOPPER]

    def lanes(self, dtype: Any) -> int:
        """Elements of `dtype` in a vector register."""
        return max(1, self.vector_bits // tvm_ffi.dtype(str(dtype)).bits)


def cpu_machine(features: Container[str], threads: int, halves: bool, caches: Mapping[int, int]) -> Machine:
    """The machine that a CPU is, from its features by LLVM's names, and the bytes of its caches by level, as far as
    they are known; `halves`: it takes a vector of 512 bits in two."""
    bits, registers = next((tuple(rest) for name, *rest in _VECTORS if name in features), _BASELINE)
    l1, l2, l3 = (caches.get(level, nbytes) for level, nbytes in _CACHES.items())
    return Machine("llvm", bits, registers, threads, 1.0 if halves and bits == 512 else 0.5, l1=l1, l2=l2, l3=l3)


def host_machine() -> Machine:
    """The machine that this CPU is, from its flags."""
    family, model = cpu_model()
    halves = family == _ZEN_4[0] and model in _ZEN_4[1]
    return cpu_machine(cpu_features(), get_num_threads(), halves, cache_sizes())
