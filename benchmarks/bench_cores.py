"""How training steps scale to many cores, as a model predicts it: `python benchmarks/bench_cores.py`.

Each kernel of a step is scheduled for so many cores, and its time predicted from its loops (`dlsys.cli.cost`,
which states its constants). Nothing is compiled or run.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from typing import Any

import common
import numpy as np
from models import MODELS

CORES = (1, 2, 8, 16, 64)
SHOWN = 3  # kernels that take longest on the most cores


def plan_of(name: str, cores: int) -> Any:
    """The plan of a model's training step for so many cores."""
    from dlsys import autodiff as ad
    from dlsys import nn, optim
    from dlsys.compiler import Plan, analyse, make_program

    model = MODELS[name]
    x, y = model.batch(np.random.default_rng(0))
    X, Y = ad.Variable("X", x.shape, str(x.dtype)), ad.Variable("Y", y.shape, str(y.dtype))
    network = model.network(nn)
    loss = ad.cross_entropy_op(network.train()(X), Y)
    executor = ad.Executor([loss, getattr(optim, model.optimizer)(network.parameters(), lr=model.lr).minimize(loss)])
    fed = {node: (value.shape, str(value.dtype)) for node, value in ((X, x), (Y, y))}
    graph = analyse(executor.topo_order, executor.eval_node_list, fed)
    return Plan(make_program(graph, executor.passes, executor._columns, "cpu", cores), executor.ctx)


def predicted(plan: Any, cores: int) -> tuple[float, list[list[Any]]]:
    """Seconds of a step, and a row for each kernel: its name, calls, parts, milliseconds, and what it waits for."""
    from dlsys.cli import cost
    from dlsys.kernels.build import prim_func
    from dlsys.schedule import apply
    from dlsys.schedule.target import host_target, machine_of

    machine = machine_of(host_target(cores))
    kernels: dict[Any, list[Any]] = defaultdict(list)
    for key, spec in plan.specs.items():
        kernels[spec.name, spec.inputs, spec.key, spec.alone].append(key)
    total, rows = 0.0, []
    for keys in kernels.values():
        spec = plan.specs[keys[0]]
        own = 1 if spec.alone else cores
        found = cost.predicted(apply(prim_func(spec), host_target(own))[0], cost.Cores(machine, own))
        parts = " + ".join(str(region.parts) for region in found.regions)
        calls = sum(plan.program.located(key).times / plan.program.located(key).threads for key in keys)
        rows.append([spec.name, round(calls), parts, 1e3 * calls * found.seconds, found.limit])
        total += calls * found.seconds
    return total, sorted(rows, key=lambda row: -row[3])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(MODELS), help="of " + ", ".join(MODELS))
    parser.add_argument("--name", default="cores", help="of the files of results")
    arguments = parser.parse_args()
    if unknown := set(arguments.models.split(",")) - set(MODELS):
        sys.exit(f"--models takes {', '.join(MODELS)}, not {', '.join(sorted(unknown))}")
    load = common.OtherLoad()
    steps, limits, data = [], [], {}
    for name in arguments.models.split(","):
        times = {}
        for cores in CORES:
            times[cores], rows = predicted(plan_of(name, cores), cores)
        data[name] = times
        gains = [times[1] / times[cores] for cores in CORES[1:]]
        steps.append([MODELS[name].title, *(1e3 * times[cores] for cores in CORES), *gains])
        limits += [[MODELS[name].title, *row] for row in rows[:SHOWN]]
    header = ["model", *(f"{cores} cores" for cores in CORES), *(f"speed-up, {cores}" for cores in CORES[1:])]
    sections = [
        "## Milliseconds of a training step, predicted",
        common.table(header, steps),
        f"## What takes longest on {CORES[-1]} cores",
        common.table(["model", "kernel", "calls", "parts", "ms", "waits for"], limits),
    ]
    title = "Training steps on many cores: predictions"
    command = "python benchmarks/bench_cores.py"
    print(common.write_results(arguments.name, title, command, sections, data, load))


if __name__ == "__main__":
    main()
