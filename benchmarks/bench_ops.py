"""Single operators, forward and with gradients, beside NumPy and PyTorch: `python benchmarks/bench_ops.py`.

torch.compile compiles the same function, gradients included, as one graph. Results are compared before they are timed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

import common
import numpy as np

MIN_TIME = 0.05  # seconds a turn
TOLERANCE = 1e-4  # largest difference of results, relative to the largest element
OTHERS = ("PyTorch", "torch.compile", "NumPy")


def constants(work: Any, inputs: list[np.ndarray]) -> np.ndarray:
    """What the result is multiplied by before its gradients are taken."""
    import torch

    with torch.no_grad():
        shape = tuple(work.torch(torch, *map(torch.from_numpy, inputs)).shape)
    return np.random.default_rng(1).standard_normal(shape).astype("float32")


def ours(work: Any, inputs: list[np.ndarray]) -> tuple[common.Runner, Any]:
    """The runner of dlsys, and what returns its results as NumPy arrays."""
    import dlsys as dl
    from dlsys import autodiff as ad

    if work.kernel:
        kernel, arrays = work.kernel(), [dl.array(x) for x in inputs]
        out = dl.array(np.empty(work.numpy(*inputs).shape, "float32"))

        def call() -> Any:
            kernel(*arrays, out)

        call()
        return common.repeat(call), [out.numpy()]
    nodes = [ad.Variable(f"x{i}", x.shape, str(x.dtype)) for i, x in enumerate(inputs)]
    feeds = {node: dl.array(x) for node, x in zip(nodes, inputs, strict=True)}
    result = work.ours(*nodes)
    wanted = [result]
    if work.gradients:
        constant = constants(work, inputs)
        factor = ad.Variable("factor", constant.shape)
        feeds[factor] = dl.array(constant)
        wanted += ad.gradients(result * factor, [nodes[i] for i in work.gradients])
    executor = ad.Executor(wanted)
    found = [value.numpy().copy() for value in executor.run(feeds)]
    return common.repeat(lambda: executor.run(feeds)), found


def theirs(work: Any, inputs: list[np.ndarray], compiled: bool) -> tuple[common.Runner, Any]:
    """The runner of PyTorch, eager or compiled, and its results as NumPy arrays."""
    import torch

    tensors = [torch.from_numpy(x) for x in inputs]
    factor = torch.from_numpy(constants(work, inputs)) if work.gradients else None

    def eager() -> Any:
        if not work.gradients:
            return (work.torch(torch, *tensors),)
        leaves = [x.detach().requires_grad_(i in work.gradients) for i, x in enumerate(tensors)]
        result = work.torch(torch, *leaves)
        wanted = [leaves[i] for i in work.gradients]
        return (result, *torch.autograd.grad(result, wanted, factor))

    def as_one(*tensors: Any) -> Any:
        if not work.gradients:
            return (work.torch(torch, *tensors),)

        def of_wanted(*wanted: Any) -> Any:
            values = list(tensors)
            for i, value in zip(work.gradients, wanted, strict=True):
                values[i] = value
            return work.torch(torch, *values)

        result, back = torch.func.vjp(of_wanted, *(tensors[i] for i in work.gradients))
        return (result, *back(factor))

    step = eager
    if compiled:
        torch.compiler.reset()
        graph = torch.compile(as_one, fullgraph=True, dynamic=False)

        def step() -> Any:
            return graph(*tensors)

    found = [value.detach().numpy().copy() for value in step()]
    return common.repeat(step), found


def disagreement(name: str, found: list[np.ndarray], expected: list[np.ndarray]) -> str | None:
    """How results differ, None where they agree."""
    for value, reference in zip(found, expected, strict=True):
        difference = np.abs(value.astype("float64") - reference).max()
        if not difference <= TOLERANCE * max(np.abs(reference).max(), 1e-30):
            return f"{name} differs by {difference}"
    return None


def measured(work: Any, rounds: int, compiled: bool) -> dict[str, float]:
    """Seconds of each contender; raises ValueError where results differ."""
    inputs = work.inputs()
    runners: dict[str, common.Runner] = {}
    runners["dlsys"], expected = ours(work, inputs)
    for name in OTHERS:
        if name == "NumPy":
            if work.numpy is None or work.gradients:
                continue
            runner, found = common.repeat(lambda: work.numpy(*inputs)), [np.asarray(work.numpy(*inputs))]
        elif name == "torch.compile" and (not compiled or work.kernel):
            continue
        else:
            runner, found = theirs(work, inputs, name == "torch.compile")
        if not work.random and (text := disagreement(name, found, expected)):
            raise ValueError(f"{label(work)}: {text}")
        runners[name] = runner
    timings = common.alternate(runners, rounds, MIN_TIME)
    return {name: timing.median for name, timing in timings.items()}


def label(work: Any) -> str:
    """The row's first cell."""
    return work.title + ", gradient" * bool(work.gradients)


def child(arguments: argparse.Namespace) -> None:
    """Times the operators with the threads that the environment gives; leaves the figures as JSON."""
    import operators
    import torch

    threads = int(os.environ["TVM_NUM_THREADS"])
    torch.set_num_threads(threads)
    found = {}
    for work in operators.every():
        if arguments.only and arguments.only not in label(work):
            continue
        seconds = measured(work, arguments.rounds, not arguments.eager)
        of = "NumPy" if work.numpy_bar else min(("PyTorch", "torch.compile"), key=lambda who: seconds.get(who, np.inf))
        ratio = seconds["dlsys"] / seconds[of]
        found[label(work)] = {"seconds": seconds, "bar": work.bar, "of": of, "ratio": ratio}
        print(f"  {threads} thread(s), {label(work)}: {ratio:.2f} of {of}", flush=True)
    Path(arguments.child).write_text(json.dumps(found), encoding="utf-8")


def sections(runs: dict[int, dict[str, Any]]) -> list[str]:
    """A table a thread count, and the bars."""
    found, lines = [], []
    for threads, rows in runs.items():
        count = f"{threads} thread{'s' * (threads > 1)}"
        cells = []
        for name, row in rows.items():
            seconds = row["seconds"]
            times = [1e6 * seconds[who] if who in seconds else None for who in ("dlsys", *OTHERS)]
            cells.append([name, *times, row["ratio"], row["of"], row["bar"]])
            lines.append((f"{name}, {count}", row["ratio"], row["bar"]))
        header = ["operator", "dlsys", *OTHERS, "ratio", "to", "bar"]
        found += [f"## Microseconds, {count}", common.table(header, cells)]
    return [*found, common.bars(lines)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = ",".join(str(n) for n in range(1, common.available_cores() + 1))
    parser.add_argument("--threads", default=default, help="thread counts, e.g. 1,2")
    parser.add_argument("--only", default="", metavar="TEXT", help="the rows whose names hold it")
    parser.add_argument("--eager", action="store_true", help="without torch.compile")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--name", default="ops", help="of the files of results")
    parser.add_argument("--results", type=Path, default=common.RESULTS, metavar="FOLDER")
    parser.add_argument("--child", metavar="FILE", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        return child(arguments)
    load = common.OtherLoad()
    options = [f"--only={arguments.only}", f"--rounds={arguments.rounds}", *["--eager"] * arguments.eager]
    runs = {
        int(threads): common.run_with_threads(os.path.abspath(__file__), int(threads), options)
        for threads in arguments.threads.split(",")
    }
    if not any(runs.values()):
        sys.exit(f"--only: no operator's name holds {arguments.only!r}")
    command = f"python benchmarks/bench_ops.py --rounds={arguments.rounds}" + " --eager" * arguments.eager
    title = "Single operators against NumPy and PyTorch"
    print(common.write_results(arguments.name, title, command, sections(runs), load, arguments.results))


if __name__ == "__main__":
    main()
