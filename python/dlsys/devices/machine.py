"""The facts of a machine that schedules need: vectors, registers, caches, threads. Needs no TVM compiler."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Any

import tvm_ffi

from ..system import cache_sizes, cpu_features, cpu_model
from .context import get_num_threads

_VECTORS = (  # LLVM's name of a feature, bits and number of vector registers; the first that the CPU has is used
    ("avx512f", 512, 32),
    ("avx2", 256, 16),
    ("avx", 256, 16),
    ("neon", 128, 32),
)
_FEATURES = ("avx512vnni", "avxvnni", "avx512bw", "avx2")  # of which rules ask by name
_BASELINE = (128, 16)  # SSE2, which every x86-64 has
_ZEN_4 = (0x19, (*range(0x10, 0x20), *range(0x60, 0x80), *range(0xA0, 0xB0)))  # AMD's family and models, as LLVM has it
_CACHES = {1: 32 << 10, 2: 1 << 20, 3: 32 << 20}
"""Bytes of caches by level where they are unknown: on other systems than Linux, and for other CPUs than this one."""


@dataclass(frozen=True)
class Gpu:
    """The speeds and sizes of a GPU, from NVIDIA's data sheets unless a comment says otherwise."""

    name: str
    multiprocessors: int
    clock: float  # cycles per second
    bandwidth: float  # bytes of memory per second
    shared: int  # bytes of shared memory per multiprocessor
    block_shared: int = 48 << 10  # bytes of it that a block may declare statically
    registers: int = 65536  # per multiprocessor, as the next three
    threads: int = 2048
    blocks: int = 32
    warps: int = 4  # that issue an instruction in a cycle
    shared_bandwidth: int = 128  # bytes of shared memory that a multiprocessor reads in a cycle
    launch: float = 2.0e-6  # seconds between two launches, about; less in a CUDA graph
    fill: float = 0.4  # the share of the multiprocessors that can use all of memory's bandwidth

    @property
    def flops(self) -> float:
        """Operations of float32 per second: 128 multiply-adds per cycle and multiprocessor."""
        return self.multiprocessors * 128 * 2 * self.clock


GPUS = {
    "sm_90": Gpu("H200", 132, 1.98e9, 4.8e12, 228 << 10),
    "sm_80": Gpu("A100", 108, 1.41e9, 2.04e12, 164 << 10),
}
"""By their architecture."""
WARP = 32  # threads of a GPU that execute one instruction together
TENSOR_INSTRUCTION = 5  # one on tensor cores (1,024 multiply-adds, some 945 per cycle) takes as long as so many others
HOPPER = "sm_90"  # the architecture of CUDA code without a device, whose facts stand for those of unknown GPUs


@dataclass(frozen=True)
class Machine:
    """The facts of a target that schedules read. All of them are part of a kernel's key on disk.

    Attributes:
        kind: "llvm" or "cuda".
        vector_bits: bits of a vector register; of a GPU, 32 bits for each thread of a warp.
        registers: vector registers of a core, or registers of a GPU's thread.
        threads: the number of threads that share a CPU's kernels.
        fma: cycles per multiply-add of vectors, with operands in registers and no waiting for results.
        tensor_cores: the dtype to which a GPU's tensor cores round products of float32, "tf32", "bfloat16" or
            "float16"; empty if they are not used.
        l1: bytes of a core's first data cache; this and the next four are not used for a GPU.
        l2: bytes of its second one.
        l3: bytes of the last one, which cores share.
        line: bytes of a cache line.
        ways: cache lines that share a set of the first data cache, at least.
        gpu: the GPU, or one like it; not used for a CPU.
        features: what a CPU has of the features that instructions of small integers need, by LLVM's names; of a GPU
            the architectures up to its own.
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
    ways: int = 8
    gpu: Gpu = GPUS[HOPPER]
    features: tuple[str, ...] = ()

    def lanes(self, dtype: Any) -> int:
        """Elements of `dtype` in a vector register."""
        return max(1, self.vector_bits // tvm_ffi.dtype(str(dtype)).bits)


def cpu_machine(features: Container[str], threads: int, halves: bool, caches: Mapping[int, int]) -> Machine:
    """The Machine of a CPU, from its features by LLVM's names and the known bytes of its caches by level. `halves`:
    whether it computes a vector of 512 bits as two halves."""
    bits, registers = next((tuple(rest) for name, *rest in _VECTORS if name in features), _BASELINE)
    l1, l2, l3 = (caches.get(level, nbytes) for level, nbytes in _CACHES.items())
    own = tuple(name for name in _FEATURES if name in features)
    fma = 1.0 if halves and bits == 512 else 0.5
    return Machine("llvm", bits, registers, threads, fma, l1=l1, l2=l2, l3=l3, features=own)


def host_machine() -> Machine:
    """The Machine of this CPU, from CPUID."""
    family, model = cpu_model()
    halves = family == _ZEN_4[0] and model in _ZEN_4[1]
    return cpu_machine(cpu_features(), get_num_threads(), halves, cache_sizes())
