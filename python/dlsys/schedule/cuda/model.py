"""How long a launch takes at least on a GPU: a prediction from what its threads do, for who has no GPU to ask.

A multiprocessor starts an instruction of four warps each cycle, so a block's arithmetic takes its instructions times
its warps by four; blocks beyond those that fit side by side wait for the next wave. Memory and shared memory have their
bandwidth. The longest of these counts, and what each launch costs by itself.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import tvm
import tvm_ffi
from tvm import ir, sym, tirx

from ..instructions import instructions

WARPS_A_CYCLE = 4  # instructions of warps that a multiprocessor starts in a cycle
SHARED_BYTES = 128  # of shared memory that it reads in a cycle
LAUNCH = 2.0e-6  # seconds from one launch's end to the next one's start, about; in a CUDA graph somewhat less
FILL = 0.4  # the share of the multiprocessors that draw all of memory's bandwidth
TENSOR_INSTRUCTION = 5  # instructions' time of one of tensor cores: 1,024 multiply-adds, some 945 of which a cycle
OVERHEAD = 24  # registers of a thread beside its arrays, about


@dataclass(frozen=True)
class Device:
    """The speeds and sizes of a GPU, from its maker's data sheet."""

    name: str
    multiprocessors: int
    clock: float  # cycles a second
    bandwidth: float  # bytes of memory a second
    shared: int  # bytes of shared memory of a multiprocessor
    registers: int = 65536
    threads: int = 2048  # of a multiprocessor
    blocks: int = 32

    @property
    def flops(self) -> float:
        """Operations of float32 a second: 128 multiply-adds a cycle."""
        return self.multiprocessors * 128 * 2 * self.clock


DEVICES = {
    "sm_90": Device("H200", 132, 1.98e9, 4.8e12, 228 * 1024),
    "sm_80": Device("A100", 108, 1.41e9, 2.04e12, 164 * 1024),
}


@dataclass
class Launch:
    """The instructions, bytes and threads of one launch of a kernel.

    Attributes:
        blocks, threads: of the grid, and of a block.
        shared: bytes of shared memory of a block.
        registers: of a thread, estimated by its arrays.
        arithmetic: instructions that a thread computes with, a multiply-add being one.
        shared_bytes: that all threads read and write of shared memory.
        arrays: in memory, that it reads or writes, and their bytes.
    """

    blocks: int = 1
    threads: int = 1
    shared: int = 0
    registers: int = OVERHEAD
    arithmetic: int = 0
    shared_bytes: int = 0
    arrays: dict[Any, int] = field(default_factory=dict)

    def resident(self, device: Device) -> int:
        """Blocks that a multiprocessor holds at a time."""
        threads = math.ceil(self.threads / 32) * 32
        most = 255 if threads > 256 else min(255, device.registers // (2 * threads))  # see `nvrtc`
        by_registers = device.registers // (min(self.registers, most) * threads)
        by_shared = device.shared // (self.shared + 1024)
        return max(1, min(device.blocks, device.threads // threads, by_registers, by_shared))

    def occupancy(self, device: Device) -> float:
        """The share of a multiprocessor's threads that are there at a time."""
        return self.resident(device) * math.ceil(self.threads / 32) * 32 / device.threads

    def waves(self, device: Device) -> float:
        """How often the device is filled with blocks."""
        return self.blocks / (self.resident(device) * device.multiprocessors)

    @property
    def nbytes(self) -> int:
        """Bytes of memory that it reads and writes, each once."""
        return sum(self.arrays.values())

    def limits(self, device: Device) -> dict[str, float]:
        """The seconds that it takes at least by each limit."""
        resident = self.resident(device)
        rounds, rest = divmod(self.blocks, resident * device.multiprocessors)
        deepest = rounds * resident + math.ceil(rest / device.multiprocessors)  # blocks of the busiest multiprocessor
        warps = math.ceil(self.threads / 32)
        cycles = max(deepest * self.arithmetic * warps / WARPS_A_CYCLE, self.arithmetic * math.ceil(deepest / resident))
        share = min(1.0, self.blocks / (FILL * device.multiprocessors))
        one = self.shared_bytes / max(self.blocks, 1) * deepest / SHARED_BYTES
        return {
            "arithmetic": cycles / device.clock,
            "shared memory": one / device.clock,
            "memory": self.nbytes / (device.bandwidth * share),
            "launch": LAUNCH,
        }

    def limit(self, device: Device) -> tuple[float, str]:
        """The seconds that it takes at least, and by which limit."""
        return max((seconds, name) for name, seconds in self.limits(device).items())


def launches(func: tirx.PrimFunc) -> list[Launch]:
    """The launches of a scheduled function."""
    found: list[Launch] = []
    for nest in _nests(func.body):
        launch = Launch()
        _count(nest, launch, 1, sym.Analyzer())
        found.append(launch)
    return found


def _nests(code: Any) -> list[Any]:
    """The outermost loops over a grid's blocks."""
    found: list[Any] = []

    def loop(item: tirx.For, visitor: Any) -> None:
        if item.kind == tirx.ForKind.THREAD_BINDING:
            found.append(item)
        else:
            visitor.default_visit(item)

    tvm_ffi.structural_visit(code, [(tirx.For, loop)])
    return found


def _count(code: Any, launch: Launch, times: int, analyzer: sym.Analyzer) -> None:
    """Adds what a statement does that a thread executes so many times. `analyzer` knows the loops around it."""

    def loop(item: tirx.For, visitor: Any) -> None:
        most = int(analyzer.const_int_bound(item.extent).max_value)
        analyzer.bind(item.loop_var, ir.Range(0, most))
        if item.kind == tirx.ForKind.THREAD_BINDING:
            if str(item.thread_binding.thread_tag).startswith("block"):
                launch.blocks *= most
            else:
                launch.threads *= most
            _count(item.body, launch, times, analyzer)
        else:
            _count(item.body, launch, times * most, analyzer)

    def allocation(item: tirx.AllocBuffer, visitor: Any) -> None:
        nbytes = math.prod(int(n) for n in item.buffer.shape) * tvm.DataType(str(item.buffer.dtype)).bits // 8
        if item.buffer.scope() == "shared":
            launch.shared += nbytes
        else:
            launch.registers += -(-nbytes // 4)

    def store(item: tirx.BufferStore, visitor: Any) -> None:
        launch.arithmetic += times * instructions(item.value)
        loads: list[Any] = []
        tvm_ffi.structural_walk(item.value, (ir.TensorLoad, lambda load: loads.append(load.source)))
        for buffer in (item.buffer, *loads):
            nbytes = tvm.DataType(str(buffer.dtype)).bits // 8
            if buffer.scope() == "shared":
                launch.shared_bytes += times * nbytes * launch.threads * launch.blocks
            elif buffer.scope() in ("", "global"):
                launch.arrays[buffer] = nbytes * math.prod(int(n) for n in buffer.shape)

    def call(item: tirx.Evaluate, visitor: Any) -> None:
        if isinstance(item.value, ir.Call) and "dlsys_mma" in str(item.value.args[:1]):
            launch.arithmetic += times * TENSOR_INSTRUCTION

    kinds = [(tirx.For, loop), (tirx.AllocBuffer, allocation), (tirx.BufferStore, store), (tirx.Evaluate, call)]
    tvm_ffi.structural_visit(code, kinds)
