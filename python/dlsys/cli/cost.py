"""How long a kernel takes at least, predicted from its loops, for who has another machine to ask for.

A kernel is a row of regions: each launch of a GPU, each loop that threads of a CPU share, and all that one thread does
alone. One walk over the scheduled function counts the instructions, bytes and parts of each. A machine, `Cores` of a
CPU or `Multiprocessors`, gives them time by each limit: arithmetic, memory, and what it costs to begin.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import tvm
import tvm_ffi
from tvm import ir, sym, tirx

from ..device.machine import TENSOR_INSTRUCTION, WARP, Gpu, Machine
from ..schedule.common import CHEAP_CALLS

CALL = 8  # instructions of an exp, a division or the like, about
OVERHEAD = 24  # registers of a thread beside its arrays, about
_HELPER = "tirx.call_extern"  # calls of one instruction: those of `nvrtc.HELPERS`, and of the shuffles
_ONE_INSTRUCTION = ("shift", "bitwise", "reinterpret", "nearbyint", "if_then_else", "address_of", "isfinite")
_OPERATORS = (tirx.Add, tirx.Sub, tirx.Mul, tirx.Div, tirx.Max, tirx.Min, tirx.Select)


@dataclass
class Region:
    """A launch of a GPU, a loop that threads of a CPU share out, or code of one thread.

    Attributes:
        parts: blocks of the launch, or steps of the loop; 1 for code of one thread.
        threads: of a block; 1 on a CPU.
        calls: how often it is run.
        arithmetic: instructions of one run, a multiply-add being one: for single elements, of all threads.
        arrays: in memory, that it reads or writes, and their bytes.
        shared: bytes of shared memory of a block.
        shared_bytes: that all threads read and write of shared memory.
        registers: of a GPU's thread, estimated by its arrays.
    """

    parts: int = 1
    threads: int = 1
    calls: int = 1
    arithmetic: int = 0
    arrays: dict[Any, int] = field(default_factory=dict)
    shared: int = 0
    shared_bytes: int = 0
    registers: int = OVERHEAD

    @property
    def nbytes(self) -> int:
        """Bytes of memory that it reads and writes, each once."""
        return sum(self.arrays.values())

    @property
    def warps(self) -> int:
        """Of a block."""
        return math.ceil(self.threads / WARP)


@dataclass(frozen=True)
class Prediction:
    """The prediction for a scheduled function on a device: its regions, the seconds that each takes at least, and the
    one that takes longest, with its limit."""

    regions: tuple[Region, ...]
    seconds: float
    longest: Region
    limit: str


def predicted(func: tirx.PrimFunc, device: Cores | Multiprocessors) -> Prediction:
    """The time that a scheduled function takes at least."""
    found = regions(func)
    longest = max(found, key=device.seconds)
    limits = device.limits(longest)
    limit = max(limits, key=limits.__getitem__)
    return Prediction(tuple(found), sum(map(device.seconds, found)), longest, limit)


def regions(func: tirx.PrimFunc) -> list[Region]:
    """The regions of a scheduled function: what one thread does alone, if anything, then the others in their order."""
    found = [Region()]
    _count(func.body, found, found[0], 1, sym.Analyzer())
    return [region for region in found if region.arithmetic]


def _count(code: Any, found: list[Region], region: Region, times: float, analyzer: sym.Analyzer) -> None:
    """Adds what a statement does that a region executes so many times; and to `found` the regions that it begins.
    `analyzer` knows the loops around it."""

    def loop(item: tirx.For, visitor: Any) -> None:
        most = int(analyzer.const_int_bound(item.extent).max_value)
        analyzer.bind(item.loop_var, ir.Range(0, most))
        own, bound = region, item.kind == tirx.ForKind.THREAD_BINDING
        if region is found[0] and (bound or item.kind == tirx.ForKind.PARALLEL):
            own = Region(calls=round(times))
            found.append(own)
        if bound and str(item.thread_binding.thread_tag).startswith("thread"):
            own.threads *= most
        elif own is not region or bound:
            own.parts *= most
        _count(item.body, found, own, (1 if own is not region else times) * most, analyzer)

    def branch(item: tirx.IfThenElse, visitor: Any) -> None:
        share = _share(item.condition, analyzer)
        _count(item.then_case, found, region, times * (1.0 if share is None else share), analyzer)
        if item.else_case is not None:
            _count(item.else_case, found, region, times * (1.0 if share is None else 1 - share), analyzer)

    def allocation(item: tirx.AllocBuffer, visitor: Any) -> None:
        nbytes = _nbytes(item.buffer)
        if item.buffer.scope() == "shared":
            region.shared += nbytes
        else:
            region.registers += -(-nbytes // 4)

    def store(item: tirx.BufferStore, visitor: Any) -> None:
        region.arithmetic += round(times * instructions(item.value))
        loads: list[Any] = []
        tvm_ffi.structural_walk(item.value, (ir.TensorLoad, lambda load: loads.append(load.source)))
        for buffer in (item.buffer, *loads):
            if buffer.scope() == "shared":
                region.shared_bytes += round(times * _width(buffer))
            elif buffer.scope() in ("", "global"):
                region.arrays[buffer] = _nbytes(buffer)

    def call(item: tirx.Evaluate, visitor: Any) -> None:
        if isinstance(item.value, ir.Call) and "dlsys_mma" in str(item.value.args[:1]):
            region.arithmetic += round(times * TENSOR_INSTRUCTION)

    statements = [(tirx.For, loop), (tirx.IfThenElse, branch), (tirx.AllocBuffer, allocation)]
    tvm_ffi.structural_visit(code, [*statements, (tirx.BufferStore, store), (tirx.Evaluate, call)])


def _share(condition: Any, analyzer: sym.Analyzer) -> float | None:
    """How often a condition on the loops around it holds, `index < number` or `index == number`; None for others."""
    if not isinstance(condition, (tirx.LT, tirx.EQ)) or not isinstance(condition.b, tirx.IntImm):
        return None
    bound, number = analyzer.const_int_bound(condition.a), int(condition.b)
    low, count = int(bound.min_value), int(bound.max_value) - int(bound.min_value) + 1
    held = number - low if isinstance(condition, tirx.LT) else 1
    return min(max(held / count, 0.0), 1.0)


def _width(buffer: Any) -> int:
    """Bytes of an element."""
    return max(tvm.DataType(str(buffer.dtype)).bits // 8, 1)


def _nbytes(buffer: Any) -> int:
    return _width(buffer) * math.prod(int(n) for n in buffer.shape)


def instructions(value: Any) -> int:
    """Instructions of an expression of floats for one element, about; a multiply-add is one."""
    found = 0

    def operator(item: Any) -> None:
        nonlocal found
        if str(item.ty).startswith("float"):
            fused = isinstance(item, tirx.Mul)  # with the addition that takes it
            found += CALL if isinstance(item, tirx.Div) else 0 if fused else 1

    def call(item: ir.Call) -> None:
        nonlocal found
        name = str(getattr(item.op, "name", ""))
        cheap = name in CHEAP_CALLS or name == _HELPER or any(part in name for part in _ONE_INSTRUCTION)
        found += 1 if cheap else CALL

    tvm_ffi.structural_walk(value, [(_OPERATORS, operator), (ir.Call, call)])
    return max(found, 1)


@dataclass(frozen=True)
class Cores:
    """So many cores of a CPU. Each thread has as many parts of a region as the next, so it takes the time of the one
    that has most. A thread computes at its core's speed, reads from the memory that all share, or from caches where all
    that the region touches fits into them, and waits for all others."""

    machine: Machine
    count: int
    clock: float = 3.0e9  # cycles a second, with all cores at work
    efficiency: float = 0.85  # of the peak of multiply-adds, which tiles reach
    memory: float = 20e9  # bytes a second that one core draws from memory
    all_memory: float = 250e9  # and all of them: eight channels of DDR5
    cache: int = 3 << 20  # bytes of a core's own cache, and of its share of the last one
    cached: float = 60e9  # bytes a second that a core draws from there
    start: float = 1.5e-6  # seconds to hand a region to threads and to wait for the last of them,
    each: float = 0.1e-6  # and for each of them besides

    def limits(self, region: Region) -> dict[str, float]:
        """The seconds that one run takes at least, by each limit: arithmetic of all cores or of few parts, memory, and
        threads to hand it to, which is spent besides, not meanwhile."""
        busy = min(region.parts, self.count)
        most = math.ceil(region.parts / busy) / region.parts  # the share of the thread that has most parts
        cycles = most * region.arithmetic * self.machine.fma / self.machine.lanes("float32")
        near = region.nbytes <= self.count * self.cache
        moved = region.nbytes / (busy * self.cached if near else min(busy * self.memory, self.all_memory))
        return {
            "few parts" if busy < self.count else "arithmetic": cycles / self.clock / self.efficiency,
            "memory": moved,
            "threads": self.start + self.each * busy if region.parts > 1 and self.count > 1 else 0.0,
        }

    def seconds(self, region: Region) -> float:
        """The time of all its runs, at least."""
        *during, begun = self.limits(region).values()
        return region.calls * (max(during) + begun)


@dataclass(frozen=True)
class Multiprocessors:
    """Those of a GPU.

    A multiprocessor starts an instruction of four warps each cycle, so a block's arithmetic takes its instructions
    times its warps by four; blocks beyond those that fit side by side wait for the next wave.
    """

    gpu: Gpu

    def resident(self, region: Region) -> int:
        """Blocks that a multiprocessor holds at a time."""
        threads = region.warps * WARP
        most = 255 if threads > 256 else min(255, self.gpu.registers // (2 * threads))  # see `nvrtc`
        by_registers = self.gpu.registers // (min(region.registers, most) * threads)
        by_shared = self.gpu.shared // (region.shared + 1024)
        return max(1, min(self.gpu.blocks, self.gpu.threads // threads, by_registers, by_shared))

    def occupancy(self, region: Region) -> float:
        """The share of a multiprocessor's threads that are there at a time."""
        return self.resident(region) * region.warps * WARP / self.gpu.threads

    def waves(self, region: Region) -> float:
        """How often the device is filled with blocks."""
        return region.parts / (self.resident(region) * self.gpu.multiprocessors)

    def limits(self, region: Region) -> dict[str, float]:
        """The seconds that one run takes at least, by each limit."""
        resident = self.resident(region)
        rounds, rest = divmod(region.parts, resident * self.gpu.multiprocessors)
        deepest = rounds * resident + math.ceil(rest / self.gpu.multiprocessors)  # blocks of the busiest multiprocessor
        alone = region.arithmetic / (region.parts * region.threads)  # instructions of a thread
        cycles = max(deepest * alone * region.warps / self.gpu.warps, alone * math.ceil(deepest / resident))
        share = min(1.0, region.parts / (self.gpu.fill * self.gpu.multiprocessors))
        return {
            "arithmetic": cycles / self.gpu.clock,
            "shared memory": region.shared_bytes / region.parts * deepest / self.gpu.shared_bandwidth / self.gpu.clock,
            "memory": region.nbytes / (self.gpu.bandwidth * share),
            "launch": self.gpu.launch,
        }

    def seconds(self, region: Region) -> float:
        """The time of all its runs, at least."""
        return region.calls * max(self.limits(region).values())
