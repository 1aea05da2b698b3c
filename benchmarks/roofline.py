"""The least time of each kernel of a training step, and what limits it: `python benchmarks/roofline.py`.

For a GPU, and for a CPU of many cores, the time is predicted from the kernel's loops, so the machine need not be there.
For this CPU it is the longer of the times of arithmetic and memory at the measured peaks.

For a prediction a kernel is divided into regions: each launch of a GPU, each loop that threads of a CPU share, and the
code of one thread. One walk over the scheduled function counts the instructions, bytes and parts of each region. A
model of a machine, `Cores` of a CPU or `Multiprocessors` of a GPU, converts them to seconds, for each limit:
arithmetic, memory, start.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import tvm
import tvm_ffi
from dlsys import autodiff as ad
from dlsys import cli, nn, optim
from dlsys.compiler import Key, Plan
from dlsys.devices import cuda, get_num_threads
from dlsys.devices.machine import GPUS, TENSOR_INSTRUCTION, WARP, Gpu, Machine
from dlsys.errors import TargetError
from dlsys.inspect.profile import work_of
from dlsys.inspect.text import kernels_of
from dlsys.kernels import peak
from dlsys.kernels.build import prim_func
from dlsys.planner import table
from dlsys.schedule import apply, resolve_target
from dlsys.schedule.common import CHEAP_CALLS
from dlsys.schedule.target import host_target, machine_of
from tvm import ir, sym, tirx

CALL = 8  # instructions of an exp or a division, about
OVERHEAD = 24  # registers of a thread besides its arrays, about
_HELPER = "tirx.call_extern"  # calls of one instruction: of `nvrtc.COPIES`, `mma.sources`, and of the shuffles
_ONE_INSTRUCTION = ("shift", "bitwise", "reinterpret", "nearbyint", "if_then_else", "address_of", "isfinite")
_OPERATORS = (tirx.Add, tirx.Sub, tirx.Mul, tirx.Div, tirx.Max, tirx.Min, tirx.Select)


@dataclass
class Region:
    """A launch of a GPU, a loop that threads of a CPU share, or code of one thread.

    Attributes:
        parts: blocks of the launch, or steps of the loop; 1 for code of one thread.
        threads: threads of a block; 1 on a CPU.
        calls: how often it is run.
        arithmetic: scalar instructions of one run, of all threads; a multiply-add is one.
        arrays: the arrays in memory that it reads or writes, and their bytes.
        shared: bytes of shared memory of a block.
        shared_bytes: bytes of shared memory that all threads read and write.
        registers: registers of a GPU's thread, estimated from its arrays.
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
        """Bytes of the arrays, each counted once."""
        return sum(self.arrays.values())

    @property
    def warps(self) -> int:
        """Warps of a block."""
        return math.ceil(self.threads / WARP)


@dataclass(frozen=True)
class Prediction:
    """The prediction for a scheduled function on a device.

    Attributes:
        regions: its regions.
        seconds: the least time of all of them together.
        longest: the region that takes longest.
        limit: what limits that one.
    """

    regions: tuple[Region, ...]
    seconds: float
    longest: Region
    limit: str


def predicted(func: tirx.PrimFunc, device: Cores | Multiprocessors) -> Prediction:
    """The least time of a scheduled function on a device."""
    found = regions(func)
    longest = max(found, key=device.seconds)
    limits = device.limits(longest)
    limit = max(limits, key=limits.__getitem__)
    return Prediction(tuple(found), sum(map(device.seconds, found)), longest, limit)


def regions(func: tirx.PrimFunc) -> list[Region]:
    """The regions of a scheduled function: the code of one thread, if any, then the others in order."""
    found = [Region()]
    _count(func.body, found, found[0], 1, sym.Analyzer())
    return [region for region in found if region.arithmetic]


def _count(code: Any, found: list[Region], region: Region, times: float, analyzer: sym.Analyzer) -> None:
    """Add the counts of a statement that a region executes `times` times, and add to `found` the regions that begin in
    it. `analyzer` knows the ranges of the loops around it."""

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
    """The share of iterations in which `index < number` or `index == number` holds; None for other conditions."""
    if not isinstance(condition, (tirx.LT, tirx.EQ)) or not isinstance(condition.b, tirx.IntImm):
        return None
    bound, number = analyzer.const_int_bound(condition.a), int(condition.b)
    low, count = int(bound.min_value), int(bound.max_value) - int(bound.min_value) + 1
    held = number - low if isinstance(condition, tirx.LT) else 1
    return min(max(held / count, 0.0), 1.0)


def _width(buffer: Any) -> int:
    """Bytes of a buffer's element."""
    return max(tvm.DataType(str(buffer.dtype)).bits // 8, 1)


def _nbytes(buffer: Any) -> int:
    return _width(buffer) * math.prod(int(n) for n in buffer.shape)


def instructions(value: Any) -> int:
    """About how many instructions an expression of floats takes for one element; a multiply-add is one."""
    found = 0

    def operator(item: Any) -> None:
        nonlocal found
        if str(item.ty).startswith("float"):
            fused = isinstance(item, tirx.Mul)  # into a multiply-add
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
    """A model of `count` cores of a CPU. The parts of a region are divided evenly among the threads, so the region
    takes as long as the thread with most parts. A thread computes at its core's speed and reads from the memory that
    all share, or from caches if the region's arrays fit into them."""

    machine: Machine
    count: int
    clock: float = 3.0e9  # cycles per second, with all cores busy
    efficiency: float = 0.85  # the share of the peak of multiply-adds that tiles reach
    memory: float = 20e9  # bytes per second from memory, for one core
    all_memory: float = 250e9  # for all cores together: eight channels of DDR5
    cache: int = 3 << 20  # bytes of a core's own cache and of its share of the last one
    cached: float = 60e9  # bytes per second from there, for one core
    start: float = 1.5e-6  # seconds to start a region on threads and to wait for the last of them
    each: float = 0.1e-6  # and for each thread

    def limits(self, region: Region) -> dict[str, float]:
        """The least seconds of one run for each limit: arithmetic (or "few parts", if there are fewer parts than
        cores), memory, and the start of threads, which is added to the longer of the others."""
        busy = min(region.parts, self.count)
        most = math.ceil(region.parts / busy) / region.parts  # the share of the thread with most parts
        cycles = most * region.arithmetic * self.machine.fma / self.machine.lanes("float32")
        near = region.nbytes <= self.count * self.cache
        moved = region.nbytes / (busy * self.cached if near else min(busy * self.memory, self.all_memory))
        return {
            "few parts" if busy < self.count else "arithmetic": cycles / self.clock / self.efficiency,
            "memory": moved,
            "threads": self.start + self.each * busy if region.parts > 1 and self.count > 1 else 0.0,
        }

    def seconds(self, region: Region) -> float:
        """The least seconds of all its runs."""
        *during, begun = self.limits(region).values()
        return region.calls * (max(during) + begun)


@dataclass(frozen=True)
class Multiprocessors:
    """A model of a GPU's multiprocessors.

    A multiprocessor starts an instruction of four warps each cycle, so a block takes its instructions per thread times
    its warps / 4 cycles. Blocks that do not fit into the multiprocessors wait for the next wave.
    """

    gpu: Gpu

    def resident(self, region: Region) -> int:
        """How many blocks a multiprocessor holds at a time."""
        threads = region.warps * WARP
        most = 255 if threads > 256 else min(255, self.gpu.registers // (2 * threads))  # see `nvrtc`
        by_registers = self.gpu.registers // (min(region.registers, most) * threads)
        by_shared = self.gpu.shared // (region.shared + 1024)
        return max(1, min(self.gpu.blocks, self.gpu.threads // threads, by_registers, by_shared))

    def occupancy(self, region: Region) -> float:
        """The share of a multiprocessor's threads that are in use."""
        return self.resident(region) * region.warps * WARP / self.gpu.threads

    def waves(self, region: Region) -> float:
        """How many times the blocks fill the device."""
        return region.parts / (self.resident(region) * self.gpu.multiprocessors)

    def limits(self, region: Region) -> dict[str, float]:
        """The least seconds of one run for each limit."""
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
        """The least seconds of all its runs."""
        return region.calls * max(self.limits(region).values())


# A training step's kernels ----------------------------------------------------------------------------------


def mlp(lib: Any = nn) -> tuple[Any, tuple[int, ...]]:
    """The network of `tests/mnist_dlsys.py`, with 784, 256, 100 and 10 units, and an image's shape.

    `lib` is the package of modules: `dlsys.nn`, or another with the same names, to compare with.
    """
    return lib.Sequential(
        lib.Linear(784, 256), lib.ReLU(), lib.Linear(256, 100), lib.ReLU(), lib.Linear(100, 10)
    ), (784,)


def cnn(lib: Any = nn) -> tuple[Any, tuple[int, ...]]:
    """A network of three convolutions with 64 and 128 filters on images of 32 x 32, and an image's shape; `lib` as for
    `mlp`."""
    layers: list[Any] = []
    for inside, out in ((3, 64), (64, 128), (128, 128)):
        layers += [lib.Conv2d(inside, out, 3, padding=1), lib.BatchNorm2d(out), lib.ReLU()]
    return lib.Sequential(*layers, lib.MaxPool2d(4), lib.Flatten(), lib.Linear(128 * 64, 10)), (3, 32, 32)


MODELS: dict[str, Callable[..., tuple[Any, tuple[int, ...]]]] = {"mlp": mlp, "cnn": cnn}


def report(name: str, batch: int, target: str, arch: str, cores: int | None = None) -> str:
    """The table of a model's step on a target: "cuda", or "llvm", which is this CPU or, with `cores`, one with that
    many cores. Raises TargetError for an unknown architecture, and for cores of a GPU."""
    if target == "cuda" and cores:
        raise TargetError("--cores is for a CPU: --target llvm")
    if target == "cuda" and arch not in GPUS:
        raise TargetError(f"no data of {arch!r}; known: {', '.join(GPUS)}")
    net, shape = MODELS[name]()
    x, y = ad.Variable("x", (batch, *shape)), ad.Variable("y", (batch, 10))
    loss = ad.softmaxcrossentropy_op(net(x), y)
    step = [loss, optim.SGD(net.parameters(), lr=0.1).minimize(loss)]
    executor = ad.Executor(step, cuda(0) if target == "cuda" else None)
    executor.infer_shape({x: (batch, *shape), y: (batch, 10)})
    plan = executor.latest_plan()
    rows = [_row(plan, kernel, keys, arch, cores) for kernel, keys in kernels_of(plan)]
    shared = "parts" if cores else "blocks x threads"
    head = ("kernel", "calls", shared, "occupancy", "waves", "MB", "MFLOP", "us at least", "limited by")
    total = sum(seconds for seconds, _ in rows)
    if target == "cuda":
        device = GPUS[arch]
        where = f"{device.name} ({device.flops / 1e12:.0f} TFLOP/s, {device.bandwidth / 1e12:.1f} TB/s): a prediction"
    elif cores:
        where = f"{cores} cores like this CPU's, as `Cores` has them: a prediction"
    else:
        where = f"this CPU, {get_num_threads()} threads, at its measured peaks"
    return "\n".join([
        table([head, *(cells for _, cells in rows)], "<><>>>>><"), "",
        f"a step of {name}, batch {batch}: {total * 1e6:.1f} us at least on {where}",
    ])  # fmt: skip


def _row(plan: Plan, kernel: Any, keys: list[Key], arch: str, cores: int | None) -> tuple[float, tuple[str, ...]]:
    """The least seconds of a kernel in a step, for all its calls at these groups, and its row of the table."""
    calls, flop, nbytes = work_of(plan, kernel, keys)
    spec, shared = plan.specs[keys[0]], ("", "", "")
    if kernel.named_target.kind == "cuda":
        goal, device = resolve_target({"kind": "cuda", "arch": arch}), Multiprocessors(GPUS[arch])
        found = predicted(apply(prim_func(spec), goal, precision=spec.precision)[0], device)
        grid = " + ".join(f"{region.parts} x {region.threads}" for region in found.regions)
        shared = grid, f"{device.occupancy(found.longest):.0%}", f"{device.waves(found.longest):.2f}"
        seconds, limit = calls * found.seconds, found.limit
    elif cores:
        goal = host_target(cores)
        found = predicted(apply(prim_func(spec), goal)[0], Cores(machine_of(goal), cores))
        shared = " + ".join(str(region.parts) for region in found.regions), "", ""
        seconds, limit = calls * found.seconds, found.limit
    else:
        threads = get_num_threads()
        limits = {
            "arithmetic": flop / (peak.fma_peak(threads) * 1e9),
            "memory": nbytes / (peak.memory_bandwidth(threads) * 1e9),
        }
        limit = max(limits, key=limits.__getitem__)
        seconds = limits[limit]
    numbers = f"{nbytes / 1e6:.2f}", f"{flop / 1e6:.1f}", f"{seconds * 1e6:.1f}"
    return seconds, (kernel.name, str(calls), *shared, *numbers, limit)


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", choices=["cuda", "llvm"], help="default: cuda; llvm with --cores")
    parser.add_argument("--arch", default="sm_90", help="of the GPU: sm_90 (H200) or sm_80 (A100); default: sm_90")
    parser.add_argument("--cores", type=count, metavar="N", help="predict for a CPU of so many cores")
    parser.add_argument("-m", "--model", choices=MODELS, default="mlp", help="default: mlp")
    parser.add_argument("--batch", type=count, default=1000, metavar="N", help="default: 1000")
    return parser.parse_args(given)


def count(text: str) -> int:
    """An argument that is an integer of 1 or more."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be an integer of 1 or more, not {text!r}")
    return int(text)


def main(options: argparse.Namespace) -> None:
    """Prints the table."""
    target = options.target or ("llvm" if options.cores else "cuda")
    print(report(options.model, options.batch, target, options.arch, options.cores))


if __name__ == "__main__":
    sys.exit(cli.run(sys.argv[0], lambda: main(arguments())))
