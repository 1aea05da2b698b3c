"""`python -m dlsys roofline`: the least time of each kernel of a training step, and what limits it.

For a GPU, and for a CPU of many cores, the time is predicted from the loops (`cli.cost`), so the machine need not be
there. For this CPU it is the longer of the times of arithmetic and memory at the measured peaks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .. import autodiff as ad
from .. import nn, optim
from ..compiler import Key, Plan
from ..devices import cuda, get_num_threads
from ..devices.machine import GPUS
from ..errors import TargetError
from ..inspect.profile import work_of
from ..inspect.text import kernels_of
from ..kernels import peak
from ..kernels.build import prim_func
from ..planner import table
from ..schedule import apply, resolve_target
from ..schedule.target import host_target, machine_of
from .cost import Cores, Multiprocessors, predicted


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
        raise TargetError("roofline: --cores is for a CPU: --target llvm")
    if target == "cuda" and arch not in GPUS:
        raise TargetError(f"roofline: no data of {arch!r}; known: {', '.join(GPUS)}")
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
        where = f"{cores} cores like this CPU's, as `cli.cost` has them: a prediction"
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
