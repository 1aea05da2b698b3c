"""Training steps and inference of eight networks: `python benchmarks/bench_models.py`.

Beside dlsys stand PyTorch eager, torch.compile (loss, gradients and update) and JAX (the whole step jitted). All start
from the same weights; the losses of the first steps are compared before they are timed. The peak of memory is that of
a process of its own, which makes some steps.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import resource
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
PEAKS = ("dlsys", "PyTorch")  # whose memory is measured
OTHERS = ("PyTorch", "torch.compile", "JAX")
State = dict[str, np.ndarray]
Train = Callable[[int], float]
"""Makes so many training steps and returns the last one's loss."""


def ours(model: Model, state: State | None, x: np.ndarray, y: np.ndarray) -> dict[str, Any]:
    """Runners of dlsys, compiled and as a loop in PyTorch's style, its losses, its memory report, and the seconds from
    graph to first result. Without a state it starts from weights of its own, and makes no loop."""
    import dlsys as dl
    from dlsys import autodiff as ad
    from dlsys import nn, optim

    network = model.network(nn)
    if state is not None:
        network.load_state_dict(state)
    start = time.perf_counter()
    X, Y = ad.Variable("X", x.shape, str(x.dtype)), ad.Variable("Y", y.shape, str(y.dtype))
    loss = ad.cross_entropy_op(network.train()(X), Y)
    optimizer = getattr(optim, model.optimizer)(network.parameters(), lr=model.lr)
    step = ad.Executor([loss, optimizer.minimize(loss)])
    feed = {X: dl.array(x), Y: dl.array(y)}

    def train(times: int) -> float:
        for _ in range(times):
            found, _ = step.run(feed)
        return float(found.numpy().item())

    losses = [train(1)]
    first = time.perf_counter() - start
    if state is None:
        return {"train": train}
    losses += [train(1) for _ in range(CHECKED - 1)]
    predict = ad.Executor([network.eval()(X)])
    inputs = {X: feed[X]}
    tensors = dl.tensor(x), dl.tensor(y)
    other = model.network(nn)
    other.load_state_dict(state)
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
        "train": train,
        "loop": common.repeat(loop),
        "infer": common.repeat(lambda: predict.run(inputs)),
        "losses": losses,
        "first": first,
        "plan": step.memory_plan(feed),
        "kernels": step.groups(),
        "profile": lambda: step.profile(feed, runs=20),
    }


def pytorch(model: Model, state: State | None, x: np.ndarray, y: np.ndarray, compiled: bool = False) -> dict[str, Any]:
    """Runners of PyTorch, whose loss and update torch.compile makes if it is told to."""
    import torch
    from torch.nn import functional as F

    network = model.network(torch.nn)
    if state is not None:
        network.load_state_dict({name: torch.from_numpy(value.copy()) for name, value in state.items()})
    X, Y = torch.from_numpy(x), torch.from_numpy(y)
    optimizer = getattr(torch.optim, model.optimizer)(network.parameters(), lr=model.lr)

    def loss_of() -> Any:
        return F.cross_entropy(network(X), Y)

    loss_now, update = loss_of, optimizer.step
    if compiled:
        torch._dynamo.config.recompile_limit = 64  # beyond its limit Dynamo runs eagerly and says nothing
        torch._dynamo.config.fail_on_recompile_limit_hit = torch._dynamo.config.allow_rnn = True
        torch.compiler.reset()
        loss_now = torch.compile(loss_of, fullgraph=True, dynamic=False)
        update = torch.compile(optimizer.step)

    def train(times: int) -> float:
        network.train()
        for _ in range(times):
            optimizer.zero_grad()
            loss = loss_now()
            loss.backward()
            update()
        return float(loss.detach())

    def infer(times: int) -> None:
        network.eval()
        with torch.no_grad():
            for _ in range(times):
                network(X)

    return {"train": train, "infer": infer}


def jax(model: Model, state: State, x: np.ndarray, y: np.ndarray) -> dict[str, Any]:
    """The runner of JAX."""
    import jax_nn

    return {"train": jax_nn.trainer(model.network(jax_nn), state, x, y, model.optimizer, model.lr)}


def contenders(eager: bool) -> dict[str, Callable[..., dict[str, Any]]]:
    """What makes the runners of the others: PyTorch eager alone, or all that are installed."""
    found: dict[str, Callable[..., dict[str, Any]]] = {"PyTorch": pytorch}
    if not eager:
        found["torch.compile"] = lambda *given: pytorch(*given, compiled=True)
        if common.version("jax"):
            found["JAX"] = jax
    return found


def split(profile: Any) -> dict[str, float]:
    """Seconds of a profile's kernels by what they do, the products' operations, and the machine's peak for them."""
    products = [row for row in profile.rows if row.kind == "contraction"]
    return {
        "products": sum(row.seconds for row in products),
        "others": sum(row.seconds for row in profile.rows if row.kind != "contraction"),
        "flop": sum(row.flop for row in products),
        "peak": 1e9 * profile.peak_gflops,
    }


def peak(arguments: argparse.Namespace) -> None:
    """Leaves the peak of this process' memory in bytes, after some steps of one model."""
    model = MODELS[arguments.models]
    x, y = model.batch(np.random.default_rng(0))
    made = {"dlsys": ours, "PyTorch": pytorch}[arguments.peak](model, None, x, y)
    made["train"](CHECKED)
    nbytes = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # Linux counts KiB
    Path(arguments.child).write_text(json.dumps(nbytes), encoding="utf-8")


def child(arguments: argparse.Namespace) -> None:
    """Times the models with the threads that the environment gives; leaves the figures as JSON."""
    if arguments.peak:
        return peak(arguments)
    import torch  # not before: its 185 MiB are none of dlsys's

    threads = os.environ["TVM_NUM_THREADS"]
    torch.set_num_threads(int(threads))
    makers = contenders(arguments.eager)
    found = {}
    for name in arguments.models.split(","):
        model = MODELS[name]
        torch.manual_seed(0)
        state = {key: value.numpy().copy() for key, value in model.network(torch.nn).state_dict().items()}
        x, y = model.batch(np.random.default_rng(0))
        mine = ours(model, state, x, y)
        for who, make in makers.items():
            train = make(model, state, x, y)["train"]
            losses = [train(1) for _ in range(CHECKED)]
            if not np.allclose(mine["losses"], losses, rtol=TOLERANCE):
                sys.exit(f"{name}: the losses differ: {mine['losses']} and {who}'s {losses}")
        figures: dict[str, Any] = {"first": mine["first"], "losses": mine["losses"]}
        timed = dataclasses.replace(model, lr=TIMED_RATE)
        mine = ours(timed, state, x, y)
        others = {who: make(timed, state, x, y) for who, make in makers.items()}
        train = {"dlsys": mine["train"], "loop": mine["loop"], **{who: made["train"] for who, made in others.items()}}
        infer = {"dlsys": mine["infer"], "PyTorch": others["PyTorch"]["infer"]}
        for kind, runners in (("train", train), ("infer", infer)):
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
            place = arguments.profiles / f"{name}_{threads}.txt"
            place.write_text(str(profile), encoding="utf-8")
        found[name] = figures
        ratios = ", ".join(f"{figures['train']['dlsys'] / figures['train'][who]:.2f} of {who}" for who in others)
        print(f"  {threads} thread(s), {name}: a step {ratios}", flush=True)
    Path(arguments.child).write_text(json.dumps(found), encoding="utf-8")


def sections(runs: dict[int, dict[str, Any]], peaks: dict[str, dict[str, int]]) -> list[str]:
    """The tables and the bars."""
    steps, memory, lines, times = [], [], [], []
    for threads, found in runs.items():
        count = f"{threads} thread{'s' * (threads > 1)}"
        for name, figures in found.items():
            model, train, infer = MODELS[name], figures["train"], figures["infer"]
            mine, best = train["dlsys"], min(train[who] for who in OTHERS if who in train)
            row = [model.title, threads, 1e3 * mine, *(1e3 * train[w] if w in train else None for w in OTHERS)]
            row += [mine / train["PyTorch"], mine / best, 1e3 * train["loop"], train["loop"] / train["PyTorch"]]
            steps.append([*row, 1e3 * infer["dlsys"], 1e3 * infer["PyTorch"], infer["dlsys"] / infer["PyTorch"]])
            times.append([model.title, threads, *_time_row(figures)])
            lines.append((f"{model.title}: a step over PyTorch's, {count}", mine / train["PyTorch"], model.bar))
            if model.best and threads <= 2:
                bar = model.best[threads - 1]
                lines.append((f"{model.title}: a step over the best other's, {count}", mine / best, bar))
            if threads == min(runs):
                unplanned, planned, bound = figures["arena"]
                own, other = (peaks[name][who] / 2**20 for who in PEAKS)
                arena = [unplanned / 2**20, planned / 2**20, planned / bound]
                memory.append([model.title, figures["kernels"], *arena, own, other, own / other])
                lines.append((f"{model.title}: arena over the lower bound", planned / bound, ARENA_BAR))
                lines.append((f"{model.title}: peak of memory over PyTorch's", own / other, 1.0))
    header = ["model", "threads", "step", *OTHERS, "of PyTorch", "of the best"]
    header += ["loop", "of PyTorch", "inference", "PyTorch", "ratio"]
    return [
        "## Milliseconds of a training step and of inference",
        common.table(header, steps),
        "Medians, in turn in one process. A step is one run of a compiled graph; a loop is written as in PyTorch: "
        "`zero_grad`, the loss, `backward` and the optimizer's `step`. PyTorch's inference is eager.",
        "## Where a training step's time goes",
        common.table(TIMES, times),
        "Milliseconds of kernels timed one by one, products and convolutions with what is fused to them. The limit is "
        "the time of their operations at the measured peak of multiply-adds; a bar below the last column cannot be "
        "met, and near it nothing else may take time.",
        *_missed(runs),
        "## Memory of a training step, in MiB",
        common.table(MEMORY, memory),
        "Peaks are those of whole processes, interpreter and libraries included.",
        common.bars(lines),
    ]


MEMORY = ["model", "kernels", "a buffer a value", "arena", "over the lower bound", "peak", "PyTorch's", "ratio"]
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
    parser.add_argument("--eager", action="store_true", help="beside PyTorch eager alone")
    parser.add_argument("--peak", choices=PEAKS, help=argparse.SUPPRESS)
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
    options += ["--eager"] * arguments.eager
    command = " ".join(["python benchmarks/bench_models.py", *options[1:]])
    if arguments.profiles:
        options.append(f"--profiles={arguments.profiles}")
    script, threads = os.path.abspath(__file__), [int(count) for count in arguments.threads.split(",")]
    runs = {count: common.run_with_threads(script, count, options) for count in threads}
    peaks = {
        name: {
            who: common.run_with_threads(script, min(threads), [f"--models={name}", f"--peak={who}"]) for who in PEAKS
        }
        for name in arguments.models.split(",")
    }
    title = "Networks: training steps and inference against PyTorch and JAX"
    print(common.write_results(arguments.name, title, command, sections(runs, peaks), load, arguments.results))


if __name__ == "__main__":
    main()
