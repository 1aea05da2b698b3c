"""Training steps and inference of four networks, against PyTorch eager: `python benchmarks/bench_models.py`.

Both start from the same weights; the losses of the first steps are compared before anything is timed.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import common
import numpy as np
from models import MODELS, Model

MIN_TIME = 0.5  # seconds a turn
CHECKED = 3  # steps whose losses are compared
TIMED_RATE = 1e-7  # a batch learned by heart leaves denormal numbers, which take some CPUs a hundred cycles each
TOLERANCE = 2e-3  # relative; three steps of Adam part rounding errors
ARENA_BAR = 1.05


def renamed(state: dict[str, Any]) -> dict[str, Any]:
    """PyTorch's weights by the names that ours have: attention keeps its projection as in torch.nn."""
    pairs = {"attn.in_proj.weight": "attn.in_proj_weight", "attn.in_proj.bias": "attn.in_proj_bias"}
    found = {}
    for name, value in state.items():
        for old, new in pairs.items():
            name = name.replace(old, new)
        found[name] = value
    return found


def ours(model: Model, state: dict[str, Any], x: np.ndarray, y: np.ndarray) -> dict[str, Any]:
    """Runners of dlsys, compiled and as a loop in PyTorch's style, its losses, its memory report, and the seconds from
    graph to first result."""
    import dlsys as dl
    from dlsys import autodiff as ad
    from dlsys import optim

    network = model.ours()
    network.load_state_dict(renamed(state))
    start = time.perf_counter()
    X, Y = ad.Variable("X", x.shape, str(x.dtype)), ad.Variable("Y", y.shape, str(y.dtype))
    loss = ad.cross_entropy_op(network.train()(X), Y)
    optimizer = getattr(optim, model.optimizer)(network.parameters(), lr=model.lr)
    step = ad.Executor([loss, optimizer.minimize(loss)])
    feed = {X: dl.array(x), Y: dl.array(y)}
    losses = [float(step.run(feed)[0].numpy().item())]
    first = time.perf_counter() - start
    losses += [float(step.run(feed)[0].numpy().item()) for _ in range(CHECKED - 1)]
    predict = ad.Executor([network.eval()(X)])
    inputs = {X: feed[X]}
    tensors = dl.tensor(x), dl.tensor(y)
    other = model.ours()
    other.load_state_dict(renamed(state))
    its_optimizer = getattr(optim, model.optimizer)(other.parameters(), lr=model.lr)

    def loop() -> Any:
        its_optimizer.zero_grad()
        loss = ad.cross_entropy_op(other(tensors[0]), tensors[1])
        loss.backward()
        its_optimizer.step()
        return loss

    looped = [loop().item() for _ in range(CHECKED)]
    if not np.allclose(looped, losses, rtol=TOLERANCE):
        sys.exit(f"the compiled step and the loop differ: {losses} and {looped}")
    return {
        "train": common.repeat(lambda: step.run(feed)),
        "loop": common.repeat(loop),
        "infer": common.repeat(lambda: predict.run(inputs)),
        "losses": losses,
        "first": first,
        "plan": step.memory_plan(feed),
        "kernels": step.groups(),
        "profile": lambda: step.profile(feed, runs=20),
    }


def theirs(model: Model, network: Any, x: np.ndarray, y: np.ndarray) -> dict[str, Any]:
    """Runners of PyTorch and its losses."""
    import torch
    from torch.nn import functional as F

    X, Y = torch.tensor(x), torch.tensor(y)
    optimizer = getattr(torch.optim, model.optimizer)(network.parameters(), lr=model.lr)

    def step() -> Any:
        network.train()
        optimizer.zero_grad()
        loss = F.cross_entropy(network(X), Y)
        loss.backward()
        optimizer.step()
        return loss

    losses = [step().item() for _ in range(CHECKED)]

    def infer(times: int) -> None:
        network.eval()
        with torch.no_grad():
            for _ in range(times):
                network(X)

    return {"train": common.repeat(step), "infer": infer, "losses": losses}


def split(profile: Any) -> dict[str, float]:
    """Seconds of a profile's kernels by what they do, the products' operations, and the machine's peak for them."""
    products = [row for row in profile.rows if row.kind == "contraction"]
    return {
        "products": sum(row.seconds for row in products),
        "others": sum(row.seconds for row in profile.rows if row.kind != "contraction"),
        "flop": sum(row.flop for row in products),
        "peak": 1e9 * profile.peak_gflops,
    }


def child(arguments: argparse.Namespace) -> None:
    """Times the models with the threads that the environment gives; leaves the figures as JSON."""
    import json

    import torch

    torch.set_num_threads(int(os.environ["TVM_NUM_THREADS"]))
    found = {}
    for name in arguments.models.split(","):
        model = MODELS[name]
        torch.manual_seed(0)
        network = model.theirs()
        x, y = model.batch(np.random.default_rng(0))
        state = {key: value.clone() for key, value in network.state_dict().items()}
        mine, other = ours(model, state, x, y), theirs(model, copy.deepcopy(network), x, y)
        if not np.allclose(mine["losses"], other["losses"], rtol=TOLERANCE):
            sys.exit(f"{name}: the losses differ: {mine['losses']} and {other['losses']}")
        figures: dict[str, Any] = {"first": mine["first"], "losses": mine["losses"]}
        timed = dataclasses.replace(model, lr=TIMED_RATE)
        mine, other = ours(timed, state, x, y), theirs(timed, network, x, y)
        for kind in ("train", "infer"):
            runners: dict[str, Callable[[int], object]] = {"dlsys": mine[kind], "PyTorch": other[kind]}
            if kind == "train":
                runners["loop"] = mine["loop"]
            timings = common.alternate(runners, arguments.rounds, MIN_TIME)
            figures[kind] = {who: timing.median for who, timing in timings.items()}
        profile = mine["profile"]()
        figures["time"] = split(profile)
        if figures["train"]["dlsys"] > model.bar * figures["train"]["PyTorch"]:
            figures["profile"] = str(profile)
        plan = mine["plan"]
        figures["arena"] = [plan.bytes_unplanned, plan.bytes_planned, plan.lower_bound]
        figures["kernels"] = str(mine["kernels"]).count("\n")
        if arguments.profiles:
            arguments.profiles.mkdir(parents=True, exist_ok=True)
            place = arguments.profiles / f"{name}_{os.environ['TVM_NUM_THREADS']}.txt"
            place.write_text(str(profile), encoding="utf-8")
        found[name] = figures
        ratio = figures["train"]["dlsys"] / figures["train"]["PyTorch"]
        print(f"  {os.environ['TVM_NUM_THREADS']} thread(s), {name}: a step {ratio:.2f}x PyTorch", flush=True)
    Path(arguments.child).write_text(json.dumps(found), encoding="utf-8")


def sections(runs: dict[int, dict[str, Any]]) -> list[str]:
    """The tables and the bars."""
    steps, memory, lines, times = [], [], [], []
    for threads, found in runs.items():
        for name, figures in found.items():
            model, row = MODELS[name], [MODELS[name].title, threads]
            for kind in ("train", "infer"):
                mine, other = figures[kind]["dlsys"], figures[kind]["PyTorch"]
                row += [1e3 * mine, 1e3 * other, mine / other]
                if kind == "train":
                    loop = figures[kind]["loop"]
                    row += [1e3 * loop, loop / other]
            steps.append(row)
            times.append([model.title, threads, *_time_row(figures)])
            count = f"{threads} thread{'s' * (threads > 1)}"
            ratio = figures["train"]["dlsys"] / figures["train"]["PyTorch"]
            lines.append((f"{model.title}: a training step over PyTorch's, {count}", ratio, model.bar))
            if threads == min(runs):
                unplanned, planned, bound = figures["arena"]
                memory.append([model.title, figures["kernels"], unplanned / 2**20, planned / 2**20, planned / bound])
                lines.append((f"{model.title}: arena over the lower bound", planned / bound, ARENA_BAR))
    header = ["model", "threads", "step", "PyTorch", "ratio", "loop", "ratio", "inference", "PyTorch", "ratio"]
    return [
        "## Milliseconds of a training step and of inference",
        common.table(header, steps),
        "Medians, in turn in one process. PyTorch runs eagerly. A step is one run of a compiled graph; a loop is "
        "written as in PyTorch: `zero_grad`, the loss, `backward` and the optimizer's `step`.",
        "## Where a training step's time goes",
        common.table(TIMES, times),
        "Milliseconds of kernels timed one by one, products and convolutions with what is fused to them. The limit is "
        "the time of their operations at the measured peak of multiply-adds; a bar below the last column cannot be "
        "met, and near it nothing else may take time.",
        *_missed(runs),
        "## Memory of a training step",
        common.table(["model", "kernels", "MiB, a buffer a value", "MiB, arena", "over the lower bound"], memory),
        common.bars(lines),
    ]


TIMES = ["model", "threads", "products", "GFLOP/s", "of peak", "other kernels", "limit", "limit over PyTorch's step"]


def _time_row(figures: dict[str, Any]) -> list[float]:
    time, limit = figures["time"], figures["time"]["flop"] / figures["time"]["peak"]
    return [
        1e3 * time["products"],
        time["flop"] / time["products"] / 1e9,
        limit / time["products"],
        1e3 * time["others"],
        1e3 * limit,
        limit / figures["train"]["PyTorch"],
    ]


def _missed(runs: dict[int, dict[str, Any]]) -> list[str]:
    """The profiles of the steps that miss their bar."""
    found = []
    for threads, models in runs.items():
        for name, figures in models.items():
            if "profile" in figures:
                found.append(f"### {MODELS[name].title}, {threads} thread{'s' * (threads > 1)}: misses its bar")
                found.append(f"```text\n{figures['profile']}\n```")
    return found


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = ",".join(str(n) for n in range(1, common.available_cores() + 1))
    parser.add_argument("--threads", default=default, help="thread counts, e.g. 1,2")
    parser.add_argument("--models", default=",".join(MODELS), help="of " + ", ".join(MODELS))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--profiles", type=Path, metavar="FOLDER", help="leave there a profile of each training step")
    parser.add_argument("--name", default="models", help="of the files of results")
    parser.add_argument("--results", type=Path, default=common.RESULTS, metavar="FOLDER")
    parser.add_argument("--child", metavar="FILE", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    if unknown := set(arguments.models.split(",")) - set(MODELS):
        sys.exit(f"--models takes {', '.join(MODELS)}, not {', '.join(sorted(unknown))}")
    if arguments.child:
        return child(arguments)
    load = common.OtherLoad()
    options = [f"--models={arguments.models}", f"--rounds={arguments.rounds}"]
    if arguments.profiles:
        options.append(f"--profiles={arguments.profiles}")
    runs = {
        int(threads): common.run_with_threads(os.path.abspath(__file__), int(threads), options)
        for threads in arguments.threads.split(",")
    }
    command = "python benchmarks/bench_models.py " + " ".join(o for o in options[1:] if "profiles" not in o)
    title = "Networks: training steps and inference against PyTorch"
    print(common.write_results(arguments.name, title, command, sections(runs), runs, load, arguments.results))


if __name__ == "__main__":
    main()
