"""What `dl.tune` gains over the rules: `python benchmarks/bench_tuning.py`.

Products and convolutions have drawn sizes from 17 to 1,500, on which no constant was made; each is searched with the
records of `--database`, to which those of the kernels before it are added. Printed is the gain as measured at the end.
`--random` adds a random search of as many trials: its gain, after how many trials ours was as good, and the rank
correlation of its times, of choices from the whole space, with the model's predictions from other kernels' records.
`--metaschedule` adds MetaSchedule by as many trials, and by as many seconds. `--models` tunes the training steps of
`bench_models` for `--seconds` each, and times them by the rules and tuned, in turn. `--plot` draws the kernels' best
speeds over the trials.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import common
import numpy as np

LEAST, MOST = 17, 1500
MOST_WORK = 2**30  # multiply-adds of a drawn kernel
BARS = {"gain": 1.08, "correlation": 0.6, "models": 1.03}
Nodes = tuple[list[Any], dict[Any, tuple[int, ...]]]


def drawn(products: int, convolutions: int, seed: int) -> Iterator[tuple[str, Nodes]]:
    """Names, nodes and feeds' shapes of kernels of drawn sizes."""
    from dlsys import autodiff as ad

    random = np.random.default_rng(seed)

    def size(most: int = MOST) -> int:
        return round(math.exp(random.uniform(math.log(LEAST), math.log(most))))

    while products:
        m, k, n = (size() for _ in range(3))
        turned = [bool(random.integers(4) == 0) for _ in range(2)]
        if m * k * n > MOST_WORK:
            continue
        products -= 1
        shapes = (k, m) if turned[0] else (m, k), (n, k) if turned[1] else (k, n)
        a, b = (ad.Variable(name) for name in "ab")
        name = f"{m} x {k} x {n}" + "".join(f" {one}^T" for one, way in zip("AB", turned, strict=True) if way)
        yield name, ([ad.matmul_op(a, b, *turned)], dict(zip((a, b), shapes, strict=True)))
    while convolutions:
        channels, filters, width = size(512), size(512), size(112)
        taps, stride = int(random.choice([1, 3, 5])), int(random.choice([1, 2]))
        if channels * filters * (width * taps // stride) ** 2 > MOST_WORK:
            continue
        convolutions -= 1
        x, f = (ad.Variable(name) for name in "xf")
        shapes = {x: (1, channels, width, width), f: (filters, channels, taps, taps)}
        name = f"conv {channels} -> {filters}, {width} x {width}, {taps} x {taps}, stride {stride}"
        yield name, ([ad.conv2d_op(x, f, stride=stride, padding=taps // 2)], shapes)


def by_chance(task: Any, trials: int, known: list[Any], model: str) -> dict[str, Any]:
    """What so many drawn choices come to: the gain of the best; the least time over the rule's after each; and the rank
    correlation of their times with what the model predicts from the records of other kernels."""
    from dlsys.tuning import measure, search
    from dlsys.tuning.model import correlation

    class Random(search.Search):
        """Draws all choices."""

        def batch(self, count: int, left: float) -> list[Any]:
            """See `Search`."""
            return [task.space.drawn(self._random) for _ in range(count)]

    worker, own = measure.Worker(measure.LOCAL), list[Any]()
    try:
        found = Random(task, own, model, worker.load(task.request), seed=1)
        for _ in found.searched(worker, trials):
            pass
        ratios = list(found.history)
        found.verdict(worker)
    finally:
        worker.close()
    records = [*own, *(record for record in known if record["loops"] != task.loops)]
    rank = correlation(model, records, task.loops, task.space)
    return {"gain": found.gain, "ratios": ratios, "correlation": rank}


def by_metaschedule(executor: Any, task: Any, trials: int, seconds: float) -> dict[str, Any]:
    """How many times as fast as by our rule a kernel is by MetaSchedule, after so many trials and after the rounds of
    16 trials that end within so many seconds, the first at least; the seconds that it took; and the best seconds of a
    call after each trial, as MetaSchedule measured them."""
    import dlsys as dl
    from dlsys.relax import metaschedule
    from dlsys.schedule.machine_code import compiled
    from dlsys.tuning import measure
    from tvm import ir, transform

    bench, main = measure.Bench(), measure.MAIN
    bench.load(task.request)
    function, target = ir.load_json(task.request["loops"])[main], ir.load_json(task.request["target"])

    def gain(folder: str) -> float:
        with transform.PassContext(config=measure.UNCHECKED):
            made, name = metaschedule.scheduler(folder, target, lambda plain: (plain, ""))(function)
            if not name:
                return math.nan
            kernel = compiled({main: made.with_attr("global_symbol", main)}, target)[main]
        found = bench.timed(kernel, math.inf)
        return float(found["rule"] / found["seconds"])

    begun, done, within = time.perf_counter(), 0, math.nan
    with tempfile.TemporaryDirectory() as folder:
        while done < trials:
            count = min(16, trials - done)
            found = dl.relax.tune(executor, count, folder, target=target)
            done += count
            if time.perf_counter() - begun <= seconds or math.isnan(within):
                within = gain(folder)
        taken = time.perf_counter() - begun
        (best,) = found.seconds.values()
        return {"trials": gain(folder), "seconds": within, "taken": taken, "best": best}


def kernels(options: argparse.Namespace, path: Path) -> list[dict[str, Any]]:
    """A row for each drawn kernel."""
    import dlsys as dl
    from dlsys import autodiff as ad
    from dlsys.kernels import choices

    rows = []
    for name, (nodes, shapes) in drawn(options.products, options.convolutions, options.seed):
        executor, known, begun = ad.Executor(nodes), choices.read(path), time.perf_counter()
        found = dl.tune(executor, options.trials, database=path, feed_shapes=shapes, model=options.model, verbose=False)
        if not found.searches:
            print(f"{name}: its rule has no choice", flush=True)
            continue
        one = max(found.searches, key=lambda search: search.share)
        row: dict[str, Any] = {
            "name": name, "gain": one.gain, "rule": one.rule, "trials": one.trials, "failed": len(one.failed),
            "seconds": time.perf_counter() - begun, "knobs": dict(one.best), "ratios": one.history,
        }  # fmt: skip
        told = [f"{name}: {one.gain:.3f} of the rule ({1e6 * one.rule:.0f} us)"]
        told += [f"{one.trials} trials in {row['seconds']:.0f} s"]
        if options.random:
            row["random"] = drawn_ones = by_chance(one.task, options.trials, known, options.model)
            least = min(drawn_ones["ratios"])
            row["as good after"] = next((i + 1 for i, ratio in enumerate(one.history) if ratio <= least), None)
            told += ["random {gain:.3f}, rank correlation {correlation:.2f}".format(**drawn_ones)]
            told += [f"as good after {row['as good after']}"]
        if options.metaschedule:
            row["metaschedule"] = theirs = by_metaschedule(executor, one.task, options.trials, row["seconds"])
            told += ["MetaSchedule {trials:.3f} in {taken:.0f} s, in as many {seconds:.3f}".format(**theirs)]
        if options.plot:
            others = {"MetaSchedule": row["metaschedule"]["best"]} if options.metaschedule else {}
            if options.random:
                others["random"] = [one.rule * ratio for ratio in row["random"]["ratios"]]
            found.plot(options.plot, others)
        rows.append(row)
        print(", ".join(told), flush=True)
        if options.json:  # after each: a run may be stopped
            Path(options.json).write_text(json.dumps(rows, indent=1), encoding="utf-8")
    return rows


def models(options: argparse.Namespace, path: Path) -> list[dict[str, Any]]:
    """A row for each network: the gain of its training step, by the rules and tuned in turn."""
    import dlsys as dl
    from dlsys import autodiff as ad
    from dlsys import nn, optim, timing
    from dlsys.system import TUNING
    from models import MODELS

    rows = []
    for name in options.models or MODELS:
        model = MODELS[name]
        x, y = model.batch(np.random.default_rng(0))
        X, Y = ad.Variable("X", x.shape, str(x.dtype)), ad.Variable("Y", y.shape, str(y.dtype))
        network = model.network(nn)
        loss = ad.cross_entropy_op(network.train()(X), Y)
        nodes = [loss, getattr(optim, model.optimizer)(network.parameters(), lr=1e-7).minimize(loss)]
        feed, steps = {X: dl.array(x), Y: dl.array(y)}, {}
        os.environ.pop(TUNING, None)
        plain = ad.Executor(nodes)
        plain.run(feed)
        found = dl.tune(plain, 10**6, options.seconds, path, verbose=False)
        os.environ[TUNING] = str(path)
        tuned = ad.Executor(nodes)
        tuned.run(feed)
        for who, executor in (("rules", plain), ("tuned", tuned)):
            steps[who] = timing.repeat(partial(executor.run, feed))
        times = timing.in_turn(steps, 11, 0.2)
        gains = [times["rules"].median / times["tuned"].median, times["rules"].best / times["tuned"].best]
        rows.append({"name": name, "gain": gains[1], "by medians": gains[0], "kernels": found.gain})
        used = sum(one.gain > 1 for one in found.searches)
        print(f"{name}: {gains[1]:.3f} of the rules (medians {gains[0]:.3f}), {used} kernels tuned", flush=True)
    os.environ.pop(TUNING, None)
    return rows


def geometric(values: list[float]) -> float:
    """The geometric mean."""
    return math.exp(statistics.fmean(map(math.log, values)))


def summary(options: argparse.Namespace, rows: list[dict[str, Any]]) -> list[str]:
    """What came of the kernels."""
    gains = [row["gain"] for row in rows]
    told = f"gain {geometric(gains):.3f} in geometric mean, from {min(gains):.3f} to {max(gains):.3f}"
    lines = [f"{len(rows)} kernels: {told} (bar {BARS['gain']})"]
    if options.random:
        before = [row["random"]["correlation"] for row in rows]
        if before := [value for value in before if not math.isnan(value)]:
            told = f"{statistics.fmean(before):.2f} in the mean, from {min(before):.2f} to {max(before):.2f}"
            lines.append(f"rank correlation before the first measurement: {told} (bar {BARS['correlation']})")
        half = [geometric([row["ratios"][: options.trials // 2][-1] / row["random"]["ratios"][-1] for row in rows])]
        sooner = sum(row["as good after"] is not None and 2 * row["as good after"] <= options.trials for row in rows)
        told = f"gain {geometric([row['random']['gain'] for row in rows]):.3f}; ours takes {half[0]:.3f} of its time"
        lines.append(f"random search: {told} after half the trials, and is as good by then for {sooner} of {len(rows)}")
    if options.metaschedule:
        for by in ("trials", "seconds"):
            found = [(row["gain"], row["metaschedule"][by]) for row in rows]
            ours, theirs = zip(*(pair for pair in found if not math.isnan(pair[1])), strict=True)
            told = f"{geometric(list(theirs)):.3f} of the rules, ours {geometric(list(ours)):.3f}"
            lines.append(f"MetaSchedule by as many {by}: {told}, {len(ours)} kernels")
    return lines


def main() -> int:
    """Prints a line for each kernel or network, and what came of all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--products", type=int, default=40)
    parser.add_argument("--convolutions", type=int, default=20)
    parser.add_argument("--trials", type=int, default=64, help="of each kernel (default: 64)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--model", choices=["trees", "mlp"], default="trees")
    parser.add_argument("--random", action="store_true", help="a random search beside each")
    parser.add_argument("--metaschedule", action="store_true", help="MetaSchedule beside each: minutes")
    parser.add_argument("--models", nargs="*", metavar="NAME", help="networks of bench_models; all without names")
    parser.add_argument("--seconds", type=float, default=600.0, help="for each network (default: 600)")
    parser.add_argument("--database", help="the file of records (default: an empty one)")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--plot", help="where to draw the last kernel's best speed over the trials")
    parser.add_argument("--json", help="where to write the rows")
    options = parser.parse_args()
    if os.environ.get("TVM_NUM_THREADS") != str(options.threads):  # libraries read it when they are imported
        environment = {**os.environ, **common.thread_environment(options.threads)}
        os.execve(sys.executable, [sys.executable, *sys.argv], environment)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(options.database or Path(folder, "tuning.jsonl"))
        if options.models is not None:
            rows = models(options, path)
            told = f"{geometric([row['gain'] for row in rows]):.3f} in geometric mean (bar {BARS['models']})"
            lines = [f"{len(rows)} networks: {told}, least {min(row['gain'] for row in rows):.3f}"]
        else:
            rows = kernels(options, path)
            lines = summary(options, rows) if rows else []
    print("\n".join(lines))
    if options.json:
        Path(options.json).write_text(json.dumps(rows, indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
