"""GFLOP/s of matrix multiplication and conv2d: `python benchmarks/bench_matmul.py [--threads 1,2]`.

Contenders run in turn on the same buffers, all into an output that exists already. "default" is the same TE
expression compiled by TVM without a schedule. "ratio" is ours over the better of NumPy and PyTorch.
"""

from __future__ import annotations

import argparse
import fnmatch
import itertools
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import common
from common import Runner, repeat

CONTENDERS = ("default", "dlsys", "numpy", "torch")
ROUNDS, MIN_TIME = 11, 0.05
QUICK_ROUNDS = 3  # for the default schedule, whose calls last up to a minute
TOLERANCE = 1e-3  # largest error over largest value; float32 sums of 2,048 products stay far below


@dataclass(frozen=True)
class Matmul:
    """C (M, N) = op(A) @ op(B), where op transposes or not."""

    group: str
    m: int
    k: int
    n: int
    trans_a: bool = False
    trans_b: bool = False

    @property
    def label(self) -> str:
        return f"{self.m}x{self.k}x{self.n} {'NT'[self.trans_a]}{'NT'[self.trans_b]}"

    @property
    def shapes(self) -> tuple[tuple[int, int], tuple[int, int]]:
        a = (self.k, self.m) if self.trans_a else (self.m, self.k)
        b = (self.n, self.k) if self.trans_b else (self.k, self.n)
        return a, b

    @property
    def flops(self) -> int:
        return 2 * self.m * self.k * self.n


@dataclass(frozen=True)
class Conv2d:
    """x (N, C, H, W) with filters (O, C, R, S), stride 1, zero padding on each side."""

    x: tuple[int, int, int, int]
    filters: tuple[int, int, int, int]
    padding: int
    group: str = "conv2d"

    @property
    def label(self) -> str:
        return f"{'x'.join(map(str, self.x))} * {'x'.join(map(str, self.filters))}, padding {self.padding}"

    @property
    def out(self) -> tuple[int, int, int, int]:
        height, width = (
            size + 2 * self.padding - field + 1
            for size, field in zip(self.x[2:], self.filters[2:], strict=True)
        )
        return (self.x[0], self.filters[0], height, width)

    @property
    def flops(self) -> int:
        batch, channels, height, width = self.out
        return 2 * batch * channels * height * width * self.filters[1] * self.filters[2] * self.filters[3]


def matmul_rows() -> Iterator[Matmul]:
    """The table's rows: the MLP 784-256-100-10 at batch 1000 forward and backward, cubes, skinny shapes."""
    sizes = (784, 256, 100, 10)
    for k, n in itertools.pairwise(sizes):
        yield Matmul("MLP forward", 1000, k, n)
    for k, n in itertools.pairwise(sizes):
        yield Matmul("MLP weight gradient", k, 1000, n, trans_a=True)  # x^T @ dy
    for k, n in itertools.pairwise(sizes[1:]):
        yield Matmul("MLP input gradient", 1000, n, k, trans_b=True)  # dy @ w^T; none for the images
    transposes = [(a, b) for a in (False, True) for b in (False, True)]
    for size in (512, 1024, 2048):
        yield from (Matmul("cube", size, size, size, a, b) for a, b in transposes)
    for m, k, n in ((1000, 100, 10), (1, 1024, 1024), (1024, 1024, 1), (32, 784, 256)):
        for a, b in transposes:
            if (m, k, n, a, b) != (1000, 100, 10, False, False):  # stands under "MLP forward"
                yield Matmul("skinny", m, k, n, a, b)


def conv2d_rows() -> Iterator[Conv2d]:
    yield Conv2d((32, 64, 28, 28), (64, 64, 3, 3), 1)
    yield Conv2d((8, 128, 14, 14), (128, 128, 3, 3), 1)
    yield Conv2d((100, 3, 28, 28), (10, 3, 5, 5), 0)


# One process, one thread count -----------------------------------------------------------------------------


def aligned(shape: tuple[int, ...], values: Any = None) -> Any:
    """A float32 NumPy array at a multiple of 64 bytes, which every contender can use where it lies."""
    import numpy as np

    count = int(np.prod(shape))
    memory = np.empty(4 * count + 64, "uint8")
    start = -memory.ctypes.data % 64
    array = memory[start : start + 4 * count].view("float32").reshape(shape)
    array[...] = 0 if values is None else values
    return array


def torch_module() -> Any:
    """PyTorch, or None where it is not installed."""
    try:
        import torch
    except ImportError:
        return None
    return torch


def unscheduled(te_inputs: list[Any], te_output: Any) -> Any:
    """The TE expression compiled by TVM as it stands."""
    import tvm
    from tvm import te

    function = te.create_prim_func([*te_inputs, te_output]).with_attr("global_symbol", "default")
    return tvm.compile(function, target=common.host_target())["default"]


def matmul_contenders(row: Matmul, with_default: bool) -> dict[str, tuple[Runner, Any]]:
    """name -> (runner, the NumPy array into which it writes)."""
    import numpy as np
    from dlsys import tvm_op
    from tvm import runtime, te

    random = np.random.RandomState(0)
    shape_a, shape_b = row.shapes
    a, b = (aligned(shape, random.standard_normal(shape)) for shape in (shape_a, shape_b))
    outs = {name: aligned((row.m, row.n)) for name in CONTENDERS}
    tvm_a, tvm_b = runtime.from_dlpack(a), runtime.from_dlpack(b)
    tvm_out = {name: runtime.from_dlpack(outs[name]) for name in ("default", "dlsys")}
    contenders = {}
    if with_default:
        from dlsys import compute

        places = [
            te.placeholder(shape, "float32", name=name) for name, shape in (("A", shape_a), ("B", shape_b))
        ]
        plain = unscheduled(places, compute.matmul(*places, row.trans_a, row.trans_b))
        contenders["default"] = repeat(lambda: plain(tvm_a, tvm_b, tvm_out["default"]))
    ours = tvm_op.make_matrix_mul(shape_a, row.trans_a, shape_b, row.trans_b, "llvm", "llvm", "matmul")
    contenders["dlsys"] = repeat(lambda: ours(tvm_a, tvm_b, tvm_out["dlsys"]))
    np_a, np_b = (a.T if row.trans_a else a), (b.T if row.trans_b else b)
    contenders["numpy"] = repeat(lambda: np.matmul(np_a, np_b, out=outs["numpy"]))
    if (torch := torch_module()) is not None:
        torch_a, torch_b = torch.from_numpy(np_a), torch.from_numpy(np_b)
        torch_out = torch.from_numpy(outs["torch"])
        contenders["torch"] = repeat(lambda: torch.mm(torch_a, torch_b, out=torch_out))
    return {name: (runner, outs[name]) for name, runner in contenders.items()}


def conv2d_contenders(row: Conv2d, with_default: bool) -> dict[str, tuple[Runner, Any]]:
    """name -> (runner, a list whose one entry is its last result). PyTorch's conv2d has no `out`."""
    import numpy as np
    from dlsys import tvm_op
    from tvm import runtime, te

    random = np.random.RandomState(0)
    x, filters = (aligned(shape, random.standard_normal(shape)) for shape in (row.x, row.filters))
    outs = {name: aligned(row.out) for name in ("default", "dlsys")}
    tvm_x, tvm_filters = runtime.from_dlpack(x), runtime.from_dlpack(filters)
    tvm_out = {name: runtime.from_dlpack(out) for name, out in outs.items()}
    contenders: dict[str, tuple[Runner, Any]] = {}
    if with_default:
        from dlsys import compute

        places = [
            te.placeholder(shape, "float32", name=name) for name, shape in (("X", row.x), ("F", row.filters))
        ]
        output = compute.conv2d(*places, stride=(1, 1), padding=(row.padding, row.padding))
        plain = unscheduled(places, output)
        contenders["default"] = (
            repeat(lambda: plain(tvm_x, tvm_filters, tvm_out["default"])),
            outs["default"],
        )
    ours = tvm_op.make_conv2d(row.x, row.filters, "llvm", "llvm", "conv2d", padding=row.padding)
    contenders["dlsys"] = (repeat(lambda: ours(tvm_x, tvm_filters, tvm_out["dlsys"])), outs["dlsys"])
    if (torch := torch_module()) is not None:
        torch_x, torch_filters = torch.from_numpy(x), torch.from_numpy(filters)
        convolve = torch.nn.functional.conv2d
        result = convolve(torch_x, torch_filters, padding=row.padding).numpy()
        contenders["torch"] = (repeat(lambda: convolve(torch_x, torch_filters, padding=row.padding)), result)
    return contenders


def check(row: Matmul | Conv2d, contenders: dict[str, tuple[Runner, Any]]) -> None:
    """Every contender computes the same; SystemExit names the one that does not."""
    import numpy as np

    reference_name = "numpy" if "numpy" in contenders else "torch"
    if reference_name not in contenders:
        return
    contenders[reference_name][0](1)
    reference = contenders[reference_name][1]
    for name in contenders.keys() - {"default", reference_name}:
        runner, out = contenders[name]
        runner(1)
        error = float(np.abs(out - reference).max() / np.abs(reference).max())
        if not error < TOLERANCE:
            sys.exit(f"{row.label}: {name} differs from {reference_name} by {error:.2g} of the largest value")


def time_default(runner: Runner) -> float:
    """Seconds per call of a contender hundreds of times slower than the others: of one call where it lasts
    longer than a second, the median of a few rounds otherwise."""
    start = time.perf_counter()
    runner(1)
    once = time.perf_counter() - start
    return once if once > 1 else common.alternate({"": runner}, QUICK_ROUNDS, MIN_TIME)[""].median


def measure(
    rows: list[Matmul | Conv2d], peak: float, with_default: bool, rounds: int
) -> list[dict[str, Any]]:
    """One dictionary per row: GFLOP/s of each contender, their quartiles in seconds, share, ratio."""
    results = []
    for row in rows:
        if isinstance(row, Matmul):
            contenders = matmul_contenders(row, with_default)
        else:
            contenders = conv2d_contenders(row, with_default)
        check(row, contenders)
        rates = {}
        if "default" in contenders:
            rates["default"] = row.flops / time_default(contenders.pop("default")[0]) / 1e9
        timings = common.alternate({name: pair[0] for name, pair in contenders.items()}, rounds, MIN_TIME)
        rates |= {name: row.flops / timing.median / 1e9 for name, timing in timings.items()}
        rivals = [rates[name] for name in ("numpy", "torch") if name in rates]
        results.append(
            {
                "group": row.group,
                "row": row.label,
                "gflops": rates,
                "quartiles_s": {name: [t.lower, t.median, t.upper] for name, t in timings.items()},
                "share_of_peak": rates["dlsys"] / peak,
                "ratio": rates["dlsys"] / max(rivals) if rivals else None,
            }
        )
        shown = "  ".join(f"{name} {common.number(rate)}" for name, rate in rates.items())
        print(f"  {row.label:45s} {shown}", flush=True)
    return results


# Report ----------------------------------------------------------------------------------------------------


def summarise(results: list[dict[str, Any]]) -> list[str]:
    """Sentences under a table: geometric mean, worst row, gain over the default schedule."""
    lines = []
    ratios = [(result["ratio"], result["row"]) for result in results if result["ratio"] is not None]
    if ratios:
        mean, worst = common.geometric_mean([ratio for ratio, _ in ratios]), min(ratios)
        lines.append(
            f"Ratio to the better of the others: geometric mean {mean:.2f}, "
            f"worst row {worst[0]:.2f} ({worst[1]})."
        )
    for result in results:
        if result["row"] == "1024x1024x1024 NN" and "default" in result["gflops"]:
            gain = result["gflops"]["dlsys"] / result["gflops"]["default"]
            lines.append(f"At {result['row']} ours is {gain:.0f} times as fast as TVM's default schedule.")
    return lines


def section(title: str, results: list[dict[str, Any]]) -> str:
    """A heading, a table in GFLOP/s and its summary."""
    present = [name for name in CONTENDERS if any(name in result["gflops"] for result in results)]
    names = {"default": "TVM default", "dlsys": "dlsys", "numpy": "NumPy", "torch": "PyTorch"}
    header = ["group", "row", *(names[name] for name in present), "share of peak", "ratio"]
    rows = [
        [
            result["group"],
            result["row"],
            *(result["gflops"].get(name) for name in present),
            f"{100 * result['share_of_peak']:.0f} %",
            "-" if result["ratio"] is None else f"{result['ratio']:.2f}",
        ]
        for result in results
    ]
    return "\n\n".join([f"## {title}", common.table(header, rows), *summarise(results)])


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", default=f"1,{common.available_cores()}", help="thread counts, e.g. 1,2")
    parser.add_argument(
        "--rows", default="*", metavar="PATTERN", help="only rows whose 'group row' matches, e.g. 'cube 512*'"
    )
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument(
        "--skip-default", action="store_true", help="without TVM's default schedule (minutes)"
    )
    parser.add_argument("--name", default="matmul", help="of the files under results/")
    parser.add_argument("--child", metavar="FILE", help=argparse.SUPPRESS)
    return parser.parse_args()


def child(arguments: argparse.Namespace) -> None:
    """One thread count: measures and leaves JSON in the file that the parent named."""
    threads = int(arguments.threads)
    chosen = {
        kind: [row for row in rows if fnmatch.fnmatch(f"{row.group} {row.label}", arguments.rows)]
        for kind, rows in (
            ("matmul", list(matmul_rows())),
            ("conv2d", list(conv2d_rows()) if threads == 1 else []),
        )
    }
    peak = common.fma_peak(threads)
    print(f"{threads} thread(s), FMA peak {peak:.0f} GFLOP/s", flush=True)
    with_default = threads == 1 and not arguments.skip_default
    result: dict[str, Any] = {"threads": threads, "peak_gflops": peak}
    for kind, rows in chosen.items():
        result[kind] = measure(rows, peak, with_default, arguments.rounds)
    Path(arguments.child).write_text(json.dumps(result), encoding="utf-8")


def main() -> None:
    arguments = parse_arguments()
    if arguments.child:
        return child(arguments)
    load = common.OtherLoad()
    runs = []
    for threads in dict.fromkeys(int(text) for text in arguments.threads.split(",")):
        passed_on = ["--threads", str(threads), "--rows", arguments.rows, "--rounds", str(arguments.rounds)]
        passed_on += ["--skip-default"] * arguments.skip_default
        runs.append(common.run_with_threads(__file__, threads, passed_on))
    sections = []
    for run in runs:
        for kind, title in (("matmul", "Matrix multiplication"), ("conv2d", "conv2d")):
            if run[kind]:
                count = f"{run['threads']} thread{'s' * (run['threads'] > 1)}"
                heading = f"{title}, GFLOP/s, {count}, peak {run['peak_gflops']:.0f} GFLOP/s"
                sections.append(section(heading, run[kind]))
    command = " ".join(["python", "benchmarks/bench_matmul.py", *sys.argv[1:]])
    title = "Matrix multiplication and conv2d"
    print(common.write_results(arguments.name, title, command, sections, load))


if __name__ == "__main__":
    main()
