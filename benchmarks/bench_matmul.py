"""Products of matrices: `python benchmarks/bench_matmul.py`.

GFLOP/s of dlsys' kernels, NumPy and PyTorch, in turn on the same float32 arrays, into an output that exists. The sizes
are those of the MLP 784-256-100-10 at batch 1000, forward and backward, cubes, and what has few rows or columns.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import common
from timing import Runner, repeat

LEAST = 0.05  # seconds a turn
TOLERANCE = 1e-3  # largest error over largest value; float32 sums of 2,048 products stay far below
NAMES = ("dlsys", "NumPy", "PyTorch")


@dataclass(frozen=True)
class Product:
    """C (m, n) = op(A) @ op(B), where op transposes or not."""

    m: int
    k: int
    n: int
    trans_a: bool = False
    trans_b: bool = False

    def __str__(self) -> str:
        return f"{self.m}x{self.k}x{self.n} {'NT'[self.trans_a]}{'NT'[self.trans_b]}"

    def runners(self) -> dict[str, Runner]:
        """The runner of each contender. Raises ValueError where one computes something else than NumPy."""
        import numpy as np
        import torch
        from dlsys import tvm_op
        from tvm.runtime import from_dlpack

        turned, sizes = (self.trans_a, self.trans_b), ((self.m, self.k), (self.k, self.n))
        shapes = [size[::-1] if turn else size for size, turn in zip(sizes, turned, strict=True)]
        given = [torch.randn(shape) for shape in shapes]
        outs = {name: torch.empty(self.m, self.n) for name in NAMES}
        a, b = (x.T if turn else x for x, turn in zip(given, turned, strict=True))
        kernel = tvm_op.make_matrix_mul(shapes[0], self.trans_a, shapes[1], self.trans_b, "llvm", "llvm", "matmul")
        ours = [from_dlpack(x) for x in (*given, outs["dlsys"])]  # the same memory, as that of the arrays
        arrays = {name: out.numpy() for name, out in outs.items()}
        runners = {
            "dlsys": repeat(lambda: kernel(*ours)),
            "NumPy": repeat(partial(np.matmul, a.numpy(), b.numpy(), out=arrays["NumPy"])),
            "PyTorch": repeat(lambda: torch.mm(a, b, out=outs["PyTorch"])),
        }
        for runner in runners.values():
            runner(1)
        for name, out in arrays.items():
            if not np.abs(out - arrays["NumPy"]).max() <= TOLERANCE * np.abs(out).max():
                raise ValueError(f"{self}: {name} computes something else than NumPy")
        return runners


def products() -> list[Product]:
    """The table's rows."""
    pairs = list(itertools.pairwise((784, 256, 100, 10)))
    rows = [Product(1000, k, n) for k, n in pairs]  # forward
    rows += [Product(k, 1000, n, trans_a=True) for k, n in pairs]  # weights' gradients, x^T dy
    rows += [Product(1000, n, k, trans_b=True) for k, n in pairs[1:]]  # inputs' gradients, dy w^T
    others = [(512,) * 3, (1024,) * 3, (2048,) * 3, (1000, 100, 10), (1, 1024, 1024), (1024, 1024, 1), (32, 784, 256)]
    rows += [Product(*sizes, *turned) for sizes in others for turned in itertools.product((False, True), repeat=2)]
    return list(dict.fromkeys(rows))


def measure(arguments: argparse.Namespace, threads: int) -> dict[str, Any]:
    """The peak of multiply-adds in GFLOP/s, and the contenders' GFLOP/s by product."""
    from dlsys.kernels import peak

    found: dict[str, Any] = {"peak": peak.fma_peak(threads), "products": {}}
    for product in products():
        if arguments.only in str(product):
            seconds = common.alternate(product.runners(), arguments.rounds, LEAST)
            rates = {name: 2e-9 * product.m * product.k * product.n / value for name, value in seconds.items()}
            found["products"][str(product)] = rates
            shown = ", ".join(f"{name} {rate:.3g}" for name, rate in rates.items())
            print(f"  {threads} thread(s), {product}, GFLOP/s: {shown}", file=sys.stderr, flush=True)
    return found


def sections(runs: Mapping[int, Any]) -> list[str]:
    """The table, and the geometric mean of its ratios."""
    rows, ratios = [], []
    for threads, found in runs.items():
        for product, rates in found["products"].items():
            ratios.append(rates["dlsys"] / max(rates["NumPy"], rates["PyTorch"]))
            numbers = [rates[name] for name in NAMES]
            rows.append([product, threads, *numbers, found["peak"], rates["dlsys"] / found["peak"], ratios[-1]])
    mean = common.geometric_mean(ratios)
    return [
        "## GFLOP/s",
        common.table(["product", "threads", *NAMES, "peak", "of peak", "of the best"], rows),
        f"N: as it lies, T: transposed. dlsys' over the better of the others' rate: geometric mean {mean:.2f}.",
    ]


if __name__ == "__main__":
    options = {"--only": {"default": "", "metavar": "TEXT", "help": "products whose names hold it, as 512x512x512 NN"}}
    common.main(__doc__, "matmul", measure, sections, options)
