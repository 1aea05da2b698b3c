"""How long a kernel takes on so many cores: a prediction from its loops, for who has another machine to ask for.

A kernel is a row of regions: each loop that threads share, and all that one thread does alone. Each thread has as many
parts as the next, so a region takes the time of the one that has most. It computes at its core's speed, reads from the
memory that all share, or from caches where all that the region touches fits into them, and waits for all others.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import tvm
import tvm_ffi
from tvm import ir, sym, tirx

from ..instructions import instructions
from ..target import Machine

CLOCK = 3.0e9  # cycles a second, with all cores at work
EFFICIENCY = 0.85  # of the peak of multiply-adds, which tiles reach
MEMORY = 20e9  # bytes a second that one core draws from memory
ALL_MEMORY = 250e9  # and all of them: eight channels of DDR5
CACHE = 3 * 1024 * 1024  # bytes of a core's own cache, and of its share of the last one
CACHED = 60e9  # bytes a second that a core draws from there
START = 1.5e-6  # seconds to hand a region to threads and to wait for the last of them,
EACH = 0.1e-6  # and for each of them besides


@dataclass
class Region:
    """A loop that threads share out, or code of one thread.

    Attributes:
        parts: of the loop; 1 for code of one thread.
        calls: how often it is run.
        arithmetic: instructions for single elements in one run, a multiply-add being one.
        arrays: that it reads or writes, and their bytes.
    """

    parts: int = 1
    calls: int = 1
    arithmetic: int = 0
    arrays: dict[Any, int] = field(default_factory=dict)

    def _limits(self, machine: Machine, cores: int) -> dict[str, float]:
        """The seconds of a run by each limit. The last, of handing it to threads, is spent besides, not meanwhile."""
        busy = min(self.parts, cores)
        most = math.ceil(self.parts / busy) / self.parts  # the share of the thread that has most parts
        lanes = machine.vector_bits / 32
        computed = most * self.arithmetic * machine.fma / lanes / CLOCK / EFFICIENCY
        nbytes = sum(self.arrays.values())
        moved = nbytes / (busy * CACHED if nbytes <= cores * CACHE else min(busy * MEMORY, ALL_MEMORY))
        begun = START + EACH * busy if self.parts > 1 and cores > 1 else 0.0
        return {"few parts" if busy < cores else "arithmetic": computed, "memory": moved, "threads": begun}

    def limit(self, machine: Machine, cores: int) -> str:
        """The limit that takes longest: arithmetic of all cores or of few parts, memory, or threads to wait for."""
        found = self._limits(machine, cores)
        return max(found, key=found.__getitem__)

    def seconds(self, machine: Machine, cores: int) -> float:
        """The time of all its runs."""
        *during, begun = self._limits(machine, cores).values()
        return self.calls * (max(during) + begun)


def predicted(func: tirx.PrimFunc, machine: Machine, cores: int) -> tuple[float, str, str]:
    """A kernel's seconds, the parts of its regions, as "1 + 64", and the limit of the one that takes longest."""
    found = regions(func)
    seconds = [region.seconds(machine, cores) for region in found]
    limit = found[seconds.index(max(seconds))].limit(machine, cores)
    return sum(seconds), " + ".join(str(region.parts) for region in found), limit


def regions(func: tirx.PrimFunc) -> list[Region]:
    """The regions of a scheduled function: what one thread does alone, then the shared loops in their order."""
    found = [Region()]
    _count(func.body, found, found[0], 1, 1, sym.Analyzer())
    return [region for region in found if region.arithmetic]


def _count(code: Any, found: list[Region], region: Region, times: int, calls: int, analyzer: sym.Analyzer) -> None:
    """Adds what a statement does so many times in each of a region's runs; `calls`: how often a loop of threads in it
    is run. `analyzer` knows the loops around it."""

    def loop(item: tirx.For, visitor: Any) -> None:
        most = int(analyzer.const_int_bound(item.extent).max_value)
        analyzer.bind(item.loop_var, ir.Range(0, most))
        if item.kind == tirx.ForKind.PARALLEL:
            own = Region(most, calls)
            found.append(own)
            _count(item.body, found, own, most, calls, analyzer)
        else:
            _count(item.body, found, region, times * most, calls * most if region.parts == 1 else calls, analyzer)

    def store(item: tirx.BufferStore, visitor: Any) -> None:
        region.arithmetic += times * instructions(item.value)
        loads: list[Any] = []
        tvm_ffi.structural_walk(item.value, (ir.TensorLoad, lambda load: loads.append(load.source)))
        for buffer in (item.buffer, *loads):
            if buffer.scope() in ("", "global"):
                nbytes = max(tvm.DataType(str(buffer.dtype)).bits // 8, 1)
                region.arrays[buffer] = nbytes * math.prod(int(n) for n in buffer.shape)

    tvm_ffi.structural_visit(code, [(tirx.For, loop), (tirx.BufferStore, store)])
