"""Single operators, forward and with gradients: `python benchmarks/bench_ops.py`.

Beside dlsys stand PyTorch, eager and compiled (gradients included, as one graph), and NumPy. Each operator is written
once for dlsys and PyTorch, whose functions have the same names. Results are compared before they are timed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import common
import numpy as np
from timing import Runner, repeat

LEAST = 0.05  # seconds a turn
TOLERANCE = 1e-4  # largest difference of results, relative to the largest element
NAMES = ("dlsys", "PyTorch", "torch.compile", "NumPy")
MILLION = 1_000_000
LARGE = (4096, 4096)  # 64 MiB, beyond the caches
ROWS = (4096, 1000)
IMAGES = (8, 64, 112, 112)


@dataclass(frozen=True)
class Work:
    """One operator on float32 inputs of some shapes.

    Attributes:
        compute: compute(lib, inputs...), where `lib` is dlsys or PyTorch.
        numpy: the same of NumPy's arrays; None where NumPy has no such function.
        gradients: whether the gradients of the result's product with a constant are computed too, of all float inputs.
        random: whether results of two libraries differ.
    """

    title: str
    shapes: tuple[tuple[int, ...], ...]
    compute: Callable[..., Any]
    numpy: Callable[..., Any] | None = None
    gradients: bool = False
    random: bool = False

    def inputs(self) -> list[np.ndarray]:
        """Arrays in [0.1, 2), the same each time; the second of a gather holds places."""
        rng = np.random.default_rng(0)
        arrays = [rng.uniform(0.1, 2.0, shape).astype("float32") for shape in self.shapes]
        if self.title.startswith("gather"):
            arrays[1] = rng.integers(0, self.shapes[0][1], self.shapes[1])
        return arrays


def both(title: str, shapes: tuple[tuple[int, ...], ...], compute: Any, numpy: Any = None) -> list[Work]:
    """An operator forward, and with its gradients."""
    return [Work(title, shapes, compute, numpy), Work(f"{title}, gradient", shapes, compute, gradients=True)]


def products() -> list[Work]:
    """Small products, what `Executor.run` costs included, and a thousand of them."""
    sizes = [(16, 16, 16), (32, 32, 32), (64, 64, 64), (96, 96, 96), (33, 129, 65)]
    cases = [(f"matmul {m}x{k} by {k}x{n}", ((m, k), (k, n))) for m, k, n in sizes]
    cases.append(("1,000 products of 64x64", ((1000, 64, 64), (1000, 64, 64))))
    return [Work(title, shapes, lambda lib, a, b: a @ b, np.matmul) for title, shapes in cases]


def sums() -> list[Work]:
    """Sums and places of maxima of 16 M elements."""
    return [
        Work("sum over axis 0, 16M", (LARGE,), lambda lib, x: x.sum(0), lambda x: x.sum(0)),
        Work("sum over axis 1, 16M", (LARGE,), lambda lib, x: x.sum(1), lambda x: x.sum(1)),
        Work("sum over the middle axis, 16M", ((64, 512, 512),), lambda lib, x: x.sum(1), lambda x: x.sum(1)),
        Work("sum over all, 16M", (LARGE,), lambda lib, x: x.sum(), lambda x: x.sum()),
        Work("argmax along axis 1, 16M", (LARGE,), lambda lib, x: x.argmax(1), lambda x: x.argmax(1)),
        Work("argmax along axis 0, 16M", (LARGE,), lambda lib, x: x.argmax(0), lambda x: x.argmax(0)),
    ]


def normal(lib: Any) -> Any:
    """4 M random numbers; of dlsys a node that draws in each run."""
    if lib.__name__ == "torch":
        return lib.randn(4 * MILLION)
    return lib.ops.random_normal_op(lib.nn.Parameter(np.array([0, 1, 0, 0], "uint32")), (4 * MILLION,))


def pointwise() -> list[Work]:
    """Functions of single elements."""
    one, four = (MILLION,), (4 * MILLION,)
    draw = np.random.default_rng(0)
    return [
        Work("sin, 1M", (one,), lambda lib, x: lib.sin(x), np.sin),
        Work("cos, 1M", (one,), lambda lib, x: lib.cos(x), np.cos),
        Work("power, 1M", (one, one), lambda lib, x, y: lib.pow(x, y), np.power),
        Work("exp, 4M", (four,), lambda lib, x: lib.exp(x), np.exp),
        Work("tanh, 4M", (four,), lambda lib, x: lib.tanh(x), np.tanh),
        *both("gelu, 4M", (four,), lambda lib, x: lib.nn.functional.gelu(x)),
        Work("randn, 4M", (), normal, lambda: draw.standard_normal(4 * MILLION, "float32"), random=True),
    ]


def rows() -> list[Work]:
    """Functions of rows, and what moves elements."""
    wide = ((4096, 1024), (1024,), (1024,))
    around = ((0, 0), (0, 0), (1, 1), (1, 1))
    return [
        *both("softmax, 4096x1000", (ROWS,), lambda lib, x: lib.softmax(x, -1)),
        *both("layer_norm, 4096x1024", wide, lambda lib, x, w, b: lib.nn.functional.layer_norm(x, (1024,), w, b)),
        *both("gather along axis 1, 200 of 1000", (ROWS, (4096, 200)), lambda lib, x, at: lib.gather(x, 1, at),
              lambda x, at: np.take_along_axis(x, at, 1)),
        *both("pad images by 1", (IMAGES,), lambda lib, x: lib.nn.functional.pad(x, (1, 1, 1, 1)),
              lambda x: np.pad(x, around)),
    ]  # fmt: skip


def sorts() -> list[Work]:
    """Sorts, and the first five."""
    found = []
    for name, shape in (("4096x1000", ROWS), ("1M", (MILLION,))):
        found += [
            *both(f"sort, {name}", (shape,), lambda lib, x: lib.sort(x, dim=-1, stable=True)[0], np.sort),
            Work(f"argsort, {name}", (shape,), lambda lib, x: lib.argsort(x, dim=-1, stable=True),
                 lambda x: np.argsort(x, -1, kind="stable")),
            Work(f"topk, 5 of {name}", (shape,), lambda lib, x: lib.topk(x, 5)[0]),
        ]  # fmt: skip
    return found


def images() -> list[Work]:
    """Convolutions and pooling, as ResNet-18 and MobileNetV2 have them at batch 8."""
    found = both("max_pool2d 3x3, stride 2", (IMAGES,), lambda lib, x: lib.nn.functional.max_pool2d(x, 3, 2, 1))
    for title, x, f, stride, padding, groups in (
        ("conv 3x3, 64 to 64 of 56x56", (8, 64, 56, 56), (64, 64, 3, 3), 1, 1, 1),
        ("conv 1x1, 256 to 512 of 14x14, stride 2", (8, 256, 14, 14), (512, 256, 1, 1), 2, 0, 1),
        ("conv 1x1, 64 to 128 of 56x56, stride 2", (8, 64, 56, 56), (128, 64, 1, 1), 2, 0, 1),
        ("depthwise 3x3, 96 of 112x112, stride 2", (8, 96, 112, 112), (96, 1, 3, 3), 2, 1, 96),
        ("depthwise 3x3, 384 of 14x14", (8, 384, 14, 14), (384, 1, 3, 3), 1, 1, 384),
    ):
        how = (None, stride, padding, 1, groups)
        found += both(title, (x, f), lambda lib, x, f, how=how: lib.nn.functional.conv2d(x, f, *how))
    return found


def dlsys(work: Work, inputs: list[np.ndarray], factor: np.ndarray) -> tuple[Runner, list[np.ndarray]]:
    """The runner of dlsys, and its results."""
    import dlsys as dl
    from dlsys import autodiff as ad

    nodes = [ad.Variable(f"x{i}", x.shape, str(x.dtype)) for i, x in enumerate(inputs)]
    feed = {node: dl.array(x) for node, x in zip(nodes, inputs, strict=True)}
    outputs = [work.compute(dl, *nodes)]
    if work.gradients:
        constant = ad.Variable("factor", factor.shape)
        feed[constant] = dl.array(factor)
        floats = [node for node, x in zip(nodes, inputs, strict=True) if x.dtype == "float32"]
        outputs += ad.gradients(outputs[0] * constant, floats)
    executor = ad.Executor(outputs)
    return repeat(lambda: executor.run(feed)), executor.run(feed, True)


def torch(work: Work, inputs: list[np.ndarray], factor: Any, compiled: bool) -> tuple[Runner, list[np.ndarray]]:
    """The same of PyTorch, eager or compiled."""
    import torch

    tensors = [torch.from_numpy(x) for x in inputs]
    constant = torch.from_numpy(factor)

    def step(*tensors: Any) -> Any:
        if not work.gradients:
            return [work.compute(torch, *tensors)]
        floats = [i for i, x in enumerate(tensors) if x.is_floating_point()]

        def computed(*leaves: Any) -> Any:
            given = dict(zip(floats, leaves, strict=True))
            return work.compute(torch, *(given.get(i, x) for i, x in enumerate(tensors)))

        if compiled:
            result, back = torch.func.vjp(computed, *(tensors[i] for i in floats))
            return [result, *back(constant)]
        leaves = [tensors[i].detach().requires_grad_() for i in floats]
        result = computed(*leaves)
        return [result.detach(), *torch.autograd.grad(result, leaves, constant)]

    if compiled:
        torch.compiler.reset()
        step = torch.compile(step, fullgraph=True, dynamic=False)
    return repeat(lambda: step(*tensors)), [value.numpy() for value in step(*tensors)]


def measured(work: Work, rounds: int, compiled: bool) -> dict[str, float]:
    """Seconds of each contender. Raises ValueError where one computes something else than PyTorch."""
    import torch as library

    inputs = work.inputs()
    shape = work.compute(library, *map(library.from_numpy, inputs)).shape
    factor = np.random.default_rng(1).standard_normal(tuple(shape)).astype("float32")
    found = {"dlsys": dlsys(work, inputs, factor), "PyTorch": torch(work, inputs, factor, False)}
    if compiled:
        found["torch.compile"] = torch(work, inputs, factor, True)
    if work.numpy is not None:
        found["NumPy"] = repeat(lambda: work.numpy(*inputs)), [np.asarray(work.numpy(*inputs))]
    for name, (_, results) in found.items():
        for value, reference in zip(results, found["PyTorch"][1], strict=True):
            off = np.abs(value.astype("float64") - reference).max()
            if not work.random and not off <= TOLERANCE * np.abs(reference).max():
                raise ValueError(f"{work.title}: {name} differs from PyTorch by {off}")
    return common.alternate({name: runner for name, (runner, _) in found.items()}, rounds, LEAST)


def measure(arguments: argparse.Namespace, threads: int) -> dict[str, Any]:
    """By operator the seconds of each contender."""
    found = {}
    for work in [*products(), *sums(), *pointwise(), *rows(), *sorts(), *images()]:
        if arguments.only in work.title:
            found[work.title] = measured(work, arguments.rounds, not arguments.eager)
            text = f"{common.ratio(found[work.title]):.2f} of the best other"
            print(f"  {threads} thread(s), {work.title}: {text}", file=sys.stderr, flush=True)
    return found


def sections(runs: Mapping[int, Any]) -> list[str]:
    """The table, and the geometric mean of its ratios."""
    cells, ratios = [], []
    for threads, found in runs.items():
        for title, seconds in found.items():
            ratios.append(common.ratio(seconds))
            times = [1e6 * seconds[name] if name in seconds else None for name in NAMES]
            cells.append([title, threads, *times, ratios[-1]])
    mean = f"dlsys over the best of the others, in geometric mean: {common.geometric_mean(ratios):.2f}."
    return ["## Microseconds", common.table(["operator", "threads", *NAMES, "of the best"], cells), mean]


if __name__ == "__main__":
    options = {
        "--only": {"default": "", "metavar": "TEXT", "help": "operators whose names hold it"},
        "--eager": {"action": "store_true", "help": "without torch.compile"},
    }
    common.main(__doc__, "ops", measure, sections, options)
