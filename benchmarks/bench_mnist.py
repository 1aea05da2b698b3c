"""Training steps of MNIST's two models, against other libraries: `python benchmarks/bench_mnist.py`.

Contenders train the same model from the same values on the same batches, in turn, in blocks of steps, update
included; reading data from disk and compiling are not in the times (`bench_start.py` measures the latter). Ratios are
ours over the other's: below 1 ours is faster. Also shown: the kernels of a step, the memory, what `run` costs besides
them, and how all that compares with the project's bars.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import common
import contenders
from common import Runner, number
from contenders import CONTENDERS, MODELS, NEEDS

IMAGES = 50_000  # in an epoch
ROUNDS, MIN_TIME = 9, 0.5
DEFAULT_STEPS = 2  # timed with TVM's default schedules: 10 to 100 times the others' time
CHECKED_STEPS = 10  # whose losses must agree before any is timed
CALL_ROUNDS, CALLS = 30, 200  # of `run` at batch 1

LIMIT = "limit"
# (model, batch, threads, contender, the most that ours over the contender's may be); None: all that are measured.
RATIO_BARS = (
    ("mlp", 1000, 1, "PyTorch eager", 0.85),
    ("mlp", 1000, 1, "torch.compile", 0.88),
    ("mlp", 1000, 1, "JAX", 0.72),
    ("mlp", 1000, 2, "PyTorch eager", 0.80),
    ("mlp", 1000, 2, "torch.compile", 0.80),
    ("mlp", 1000, 2, "JAX", 0.80),
    ("mlp", 100, None, "PyTorch eager", 0.65),
    ("mlp", 32, None, "PyTorch eager", 0.55),
    ("mlp", 1000, 1, LIMIT, 1.2),
    ("logreg", None, None, "PyTorch eager", 0.70),
)
ARENA_BAR = 1.02  # planned over lower bound
KERNELS_BAR = 12  # of the MLP's step
RUN_BAR = 15.0  # us of `run` besides the compiled step, at batch 1


# Measuring -------------------------------------------------------------------------------------------------


def steps_runner(step: Any, finish: Any, start: int) -> Runner:
    """A runner of steps that follow each other; it returns when the last is done."""
    done = start

    def runner(times: int) -> None:
        nonlocal done
        loss = None
        for _ in range(times):
            loss = step(done)
            done += 1
        finish(loss)

    return runner


def measure(model: str, batch: int, names: list[str], rounds: int) -> dict[str, Any]:
    """Milliseconds per step of each contender, quartiles and median; and why one could not take part."""
    images, labels = contenders.synthetic_mnist()
    runners, losses, failures = {}, {}, {}
    for name in names:
        try:
            step, finish = CONTENDERS[name](MODELS[model], images, labels, batch)
            losses[name] = [finish(step(i)) for i in range(CHECKED_STEPS)]
        except (RuntimeError, OSError) as error:
            if name != "torch.compile":  # which needs a C++ compiler, and reports its lack so
                raise
            failures[name] = first_line(error)
            print(f"  {name} fails: {failures[name]}", flush=True)
            continue
        runners[name] = steps_runner(step, finish, CHECKED_STEPS)
    if wrong := contenders.disagreement(losses):
        sys.exit(f"{model}, batch {batch}: {wrong}")
    slow = runners.pop("TVM default", None)
    timings = common.alternate(runners, rounds, MIN_TIME)
    if slow is not None:
        start = time.perf_counter()
        slow(DEFAULT_STEPS)
        seconds = (time.perf_counter() - start) / DEFAULT_STEPS
        timings["TVM default"] = common.summary([seconds], DEFAULT_STEPS)
    milliseconds = {name: [1e3 * t.lower, 1e3 * t.median, 1e3 * t.upper] for name, t in timings.items()}
    shown = "  ".join(f"{name} {number(quartiles[1])}" for name, quartiles in milliseconds.items())
    print(f"  {model}, batch {batch}, ms per step: {shown}", flush=True)
    return {"model": model, "batch": batch, "ms_per_step": milliseconds, "failures": failures}


def first_line(error: Exception) -> str:
    """What an exception says, in one line for a table's note."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0][:200]


def anatomy(model: str, batch: int) -> dict[str, Any]:
    """The kernels of a step in order, and the bytes of its memory plan."""
    sizes = MODELS[model]
    x, y, executor = contenders.dlsys_trainer(sizes)
    memory = executor.memory_plan({x: (batch, sizes[0]), y: (batch, sizes[-1])})
    kernels = [
        {
            "name": kernel.name,
            "rule": kernel.rule.name,
            "inputs": [shape for shape, _ in kernel.inputs],
            "outputs": [shape for shape, _ in kernel.outputs],
        }
        for kernel in executor.latest_plan().kernel_of.values()
    ]
    return {
        "model": model,
        "batch": batch,
        "kernels": kernels,
        "unplanned": memory.bytes_unplanned,
        "planned": memory.bytes_planned,
        "bound": memory.lower_bound,
    }


def call_cost() -> list[dict[str, Any]]:
    """Microseconds of the MLP's `run` at batch 1 besides the compiled step that it calls, by kind of feed."""
    import dlsys as dl

    sizes = MODELS["mlp"]
    image, label = contenders.synthetic_mnist(1)
    costs = []
    for kind, given in (("dlsys arrays", dl.array), ("NumPy arrays", lambda value: value)):
        x, y, executor = contenders.dlsys_trainer(sizes)
        feeds = {x: given(image), y: given(label)}
        executor.run(feeds)
        runner = executor.latest_plan()._runner
        step, inside = runner._function, 0.0

        def timed(*arguments: Any, step: Any = step) -> None:
            nonlocal inside
            start = time.perf_counter()
            step(*arguments)
            inside += time.perf_counter() - start

        runner._function = timed
        outside, compiled = [], []
        for _ in range(CALL_ROUNDS):
            inside = 0.0
            start = time.perf_counter()
            for _ in range(CALLS):
                executor.run(feeds)
            outside.append(1e6 * (time.perf_counter() - start - inside) / CALLS)
            compiled.append(1e6 * inside / CALLS)
        cost = {"feeds": kind, "run_us": statistics.median(outside), "step_us": statistics.median(compiled)}
        print(f"  run at batch 1, {kind}: {cost['run_us']:.1f} us of Python", flush=True)
        costs.append(cost)
    return costs


# Reporting -------------------------------------------------------------------------------------------------


def epochs(row: dict[str, Any], peak: float) -> dict[str, float]:
    """Seconds per epoch by contender, and the limit."""
    steps = IMAGES / row["batch"]
    found = {name: steps * quartiles[1] / 1e3 for name, quartiles in row["ms_per_step"].items()}
    return {**found, LIMIT: steps * contenders.step_flops(MODELS[row["model"]], row["batch"]) / (peak * 1e9)}


def time_sections(runs: list[dict[str, Any]]) -> list[str]:
    """The tables of the time of one epoch, and of ours over each contender's."""
    rows = [(run, row, epochs(row, run["peak_gflops"])) for run in runs for row in run["rows"]]
    names = [name for name in CONTENDERS if any(name in row["ms_per_step"] for _, row, _ in rows)]
    others = [*(name for name in names if name != "dlsys"), LIMIT]
    heads = [[row["model"], row["batch"], run["threads"]] for run, row, _ in rows]
    times = [
        [*head, *map(found.get, [*names, LIMIT])] for head, (_, _, found) in zip(heads, rows, strict=True)
    ]
    ratios = [
        [*head, *(found["dlsys"] / found[name] if name in found else None for name in others)]
        for head, (_, _, found) in zip(heads, rows, strict=True)
    ]
    first = ["model", "batch", "threads"]
    peaks = ", ".join(f"{run['peak_gflops']:.0f} GFLOP/s on {_threads(run)}" for run in runs)
    notes = [
        f"Medians. The limit is the time of the matrix products' operations at the measured FMA peak, {peaks}."
    ]
    if "TVM default" in names:
        notes.append("TVM default is dlsys with the loops that TVM makes without a schedule.")
    failures = {f"{name} fails: {why}" for _, row, _ in rows for name, why in row["failures"].items()}
    return [
        f"## Seconds per epoch of {IMAGES:,} images",
        common.table([*first, *names, LIMIT], times),
        " ".join([*notes, *sorted(failures)]),
        "## dlsys over the others",
        common.table([*first, *others], ratios),
    ]


def anatomy_sections(runs: list[dict[str, Any]]) -> list[str]:
    """The kernels of each model's step at the first batch; the memory; what `run` costs besides."""
    sections: list[str] = []
    shown: set[str] = set()
    for found in runs[0]["anatomies"]:
        if found["model"] not in shown:
            shown.add(found["model"])
            rows = [
                [
                    i,
                    kernel["name"],
                    kernel["rule"],
                    _shapes(kernel["inputs"]),
                    _shapes(kernel["outputs"]),
                ]
                for i, kernel in enumerate(found["kernels"])
            ]
            count = f"{len(rows)} kernels of a step of {found['model']}, batch {found['batch']}"
            table = common.table(["no.", "kernel", "rule", "reads", "writes"], rows)
            sections += [f"## The {count}, {_threads(runs[0])}", table]
    memory = [
        [f["model"], *(f[key] for key in ("batch", "unplanned", "planned", "bound")), arena_ratio(f)]
        for f in runs[0]["anatomies"]
    ]
    header = ["model", "batch", "a buffer per node", "arena", "lower bound", "arena / bound"]
    costs = [
        [run["threads"], cost["feeds"], cost["run_us"], cost["step_us"]]
        for run in runs
        for cost in run["calls"]
    ]
    sections += ["## Bytes of the arena", common.table(header, memory)]
    sections += ["## `run` of the MLP's step at batch 1, us"]
    sections += [common.table(["threads", "feeds", "in Python", "in the compiled step"], costs)]
    sections += ["Medians. In Python: the time of `run` less that of the call of the compiled step."]
    return sections


def arena_ratio(found: dict[str, Any]) -> float:
    """The arena over the lower bound; 1 where both are empty."""
    return float(found["planned"] / found["bound"]) if found["bound"] else 1.0


def _threads(run: dict[str, Any]) -> str:
    return f"{run['threads']} thread{'s' * (run['threads'] > 1)}"


def _where(at: dict[str, Any]) -> str:
    """`mlp, batch 1000, 1 thread`, without what is None."""
    parts = [
        at["model"],
        f"batch {at['batch']}" if at["batch"] else "",
        _threads(at) if at["threads"] else "",
    ]
    return ", ".join(part for part in parts if part)


def _shapes(shapes: list[list[int]]) -> str:
    return ", ".join("x".join(map(str, shape)) or "scalar" for shape in shapes)


def bars(runs: list[dict[str, Any]]) -> str:
    """What was aimed at and what is reached, from what these runs measured."""
    lines: list[tuple[str, float | None, float]] = []
    rows = [(run, row) for run in runs for row in run["rows"]]
    for model, batch, threads, other, most in RATIO_BARS:
        asked = {"model": model, "batch": batch, "threads": threads}
        matching = 0
        for run, row in rows:
            at = {"model": row["model"], "batch": row["batch"], "threads": run["threads"]}
            if all(value in (None, at[key]) for key, value in asked.items()):
                matching += 1
                found = epochs(row, run["peak_gflops"])
                ratio = found["dlsys"] / found[other] if other in found else None
                lines.append((f"{_where(at)}: to {other}", ratio, most))
        if not matching:
            lines.append((f"{_where(asked)}: to {other}", None, most))
    for found in runs[0]["anatomies"]:
        lines.append(
            (f"{_where({**found, 'threads': None})}: arena to lower bound", arena_ratio(found), ARENA_BAR)
        )
    for run in runs:
        for found in run["anatomies"]:
            if found["model"] == "mlp":
                where = _where({**found, "threads": run["threads"]})
                lines.append((f"{where}: kernels of the step", len(found["kernels"]), KERNELS_BAR))
    for run in runs:
        for cost in run["calls"]:
            where = _where({"model": "mlp", "batch": 1, "threads": run["threads"]})
            text = f"{where}: us of run in Python, {cost['feeds']}"
            lines.append((text, cost["run_us"], RUN_BAR))
    return common.bars(lines)


# The program -----------------------------------------------------------------------------------------------


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", default=f"1,{common.available_cores()}", help="thread counts, e.g. 1,2")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--batches", default="1000,100,32")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    optional = [name for name in CONTENDERS if name != "dlsys"]
    parser.add_argument(
        "--skip", default="", metavar="NAMES", help=f"contenders to leave out: {', '.join(optional)}"
    )
    parser.add_argument("--skip-default", action="store_true", help="without TVM's default schedules")
    parser.add_argument("--name", default="mnist", help="of the files of results")
    parser.add_argument("--results", type=Path, default=common.RESULTS, metavar="FOLDER")
    parser.add_argument("--child", metavar="FILE", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    arguments.skipped = {name.strip() for name in arguments.skip.split(",") if name.strip()}
    arguments.skipped |= {"TVM default"} if arguments.skip_default else set()
    if unknown := arguments.skipped - set(optional):
        parser.error(f"--skip takes {', '.join(optional)}, not {', '.join(sorted(unknown))}")
    return arguments


def child(arguments: argparse.Namespace) -> None:
    """One thread count: measures and leaves JSON in the file that the parent named."""
    threads = int(arguments.threads)
    skipped = arguments.skipped | {name for name, package in NEEDS.items() if common.version(package) is None}
    peak = common.fma_peak(threads)
    print(f"{threads} thread(s), FMA peak {peak:.0f} GFLOP/s", flush=True)
    result: dict[str, Any] = {"threads": threads, "peak_gflops": peak, "rows": [], "anatomies": []}
    result["calls"] = call_cost()
    for model in arguments.models.split(","):
        for batch in map(int, arguments.batches.split(",")):
            names = [name for name in CONTENDERS if name not in skipped]
            # Unscheduled kernels are shown once: on one thread, at the largest batch.
            if (threads > 1 or batch != 1000) and "TVM default" in names:
                names.remove("TVM default")
            result["anatomies"].append(anatomy(model, batch))
            result["rows"].append(measure(model, batch, names, arguments.rounds))
    Path(arguments.child).write_text(json.dumps(result), encoding="utf-8")


def main() -> None:
    arguments = parse_arguments()
    if arguments.child:
        return child(arguments)
    load = common.OtherLoad()
    passed_on = [f"--{name}={getattr(arguments, name)}" for name in ("models", "batches", "rounds")]
    passed_on.append(f"--skip={','.join(sorted(arguments.skipped))}")
    runs = []
    for threads in dict.fromkeys(int(text) for text in arguments.threads.split(",")):
        runs.append(
            common.run_with_threads(os.path.abspath(__file__), threads, [f"--threads={threads}", *passed_on])
        )
    command = " ".join(["python", "benchmarks/bench_mnist.py", *sys.argv[1:]])
    title = "Training steps of MNIST's models"
    sections = [*time_sections(runs), *anatomy_sections(runs), bars(runs)]
    written = common.write_results(arguments.name, title, command, sections, load, arguments.results)
    print(written)


if __name__ == "__main__":
    main()
