"""Everything that only a GPU can tell, in one command of some minutes: `python benchmarks/gpu.py`.

Prints checks and times, part by part: operators and gradients against the CPU, training, allocations; products beside
PyTorch's cuBLAS, rows beside a copy on the device, training steps beside PyTorch eager and its CUDA graphs. Installs
nothing; what needs PyTorch is left out where it is not there. A part that fails is told, and the next one runs.

`--quick`: small sizes, to see that the program itself works.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import dlsys as dl
import numpy as np
from dlsys import autodiff as ad
from dlsys import nn, ops, optim
from dlsys.kernels import Replay, Runner
from models import MODELS, Model
from timing import in_turn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
GPU = dl.cuda(0)


@dataclass
class Report:
    """Prints checks and times; keeps the names of the checks, by whether they are passed."""

    checks: dict[bool, list[str]] = field(default_factory=lambda: {True: [], False: []})

    def check(self, name: str, good: bool, text: str) -> None:
        """Notes a check."""
        self.checks[bool(good)].append(name)
        print(f"{'ok  ' if good else 'FAIL'} {name}: {text}", flush=True)

    def time(self, name: str, seconds: float, others: dict[str, float], rate: str = "") -> None:
        """Prints a time, beside those of others."""
        text = "".join(f"  {other} {value * 1e6:.1f}" for other, value in others.items())
        text += f"  ratio {seconds / min(others.values()):.2f}" if others else ""
        print(f"     {name}: {seconds * 1e6:.1f} us  {rate}{text}", flush=True)


def torch_or_none() -> Any:
    """PyTorch, where it is installed with a GPU that it sees."""
    try:
        import torch
    except ImportError:
        return None
    return torch if torch.cuda.is_available() else None


def seconds_of(run: Callable[[], Any], wait: Callable[[], Any], rounds: int) -> float:
    """The median time of a run, several of them between two waits for the device."""

    def runner(times: int) -> None:
        for _ in range(times):
            run()
        wait()

    return in_turn({"": runner}, rounds, 0.05)[""]


def ours(nodes: list[Any], feed: dict[Any, np.ndarray], rounds: int) -> tuple[float, ad.Executor]:
    """Seconds of a run with feeds on the device, and the executor."""
    executor = ad.Executor(nodes, ctx=GPU)
    given = {node: dl.array(value, GPU) for node, value in feed.items()}
    return seconds_of(lambda: executor.run(given), GPU.synchronize, rounds), executor


# Checks


def operators(report: Report, quick: bool) -> None:
    """Every operator's cases, and gradients of some, against the CPU."""
    from helpers import every_case

    nodes, feed = every_case(of_each=1 if quick else None)
    wanted = ad.Executor(nodes, passes=()).run(feed, True)
    found = ad.Executor(nodes, ctx=GPU, passes=()).run(feed, True)
    wrong = [
        node.op.name
        for node, one, other in zip(nodes, found, wanted, strict=True)
        if not np.allclose(one, other, rtol=1e-5, atol=1e-5, equal_nan=True)
    ]
    report.check("operators", not wrong, f"{len(nodes)} cases, wrong: {sorted(set(wrong)) or 'none'}")


def steps(report: Report, quick: bool) -> None:
    """Training steps of three small networks: losses and parameters, and allocations after 10 and 30 steps."""
    import small_networks as networks

    for network in networks.ALL:
        results = []
        for ctx in (dl.cpu(), GPU):
            executor, feed, parameters = networks.step(network, ctx)
            losses = [executor.run(feed, True)[0] for _ in range(4)]
            results.append([*losses, *(p.numpy() for p in parameters)])
        off = max(float(np.abs(a - b).max()) for a, b in zip(*results, strict=True))
        counts = []
        for step in range(30):
            executor.run(feed)
            if step + 1 in (10, 30):
                counts.append((executor.allocations, dl.devices.allocation_count()))
        name = f"step of {network.__name__}"
        told = f"off by at most {off:.1e}; allocations after 10 and 30 steps {counts}"
        report.check(name, off < 1e-4 and counts[0] == counts[1], told)


def accuracy(report: Report, quick: bool) -> None:
    """The MLP on MNIST, if its data can be found."""
    import mnist_dlsys

    options = mnist_dlsys.parse(["-m", "mlp", "-c", "gpu", "-e", "1" if quick else "10", "-l"])
    data = dl.data.mnist()
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        mnist_dlsys.train(mnist_dlsys.MODELS["mlp"](), data, GPU, options)
    reached = float(text.getvalue().split("accuracy = ")[1])
    epochs = [line.split("epoch = ")[1] for line in text.getvalue().splitlines() if "epoch = " in line]
    told = f"accuracy {reached:.4f} on {data.source} after {len(epochs)} epochs of {', '.join(epochs[-3:])}"
    report.check("MLP to 0.97", quick or reached >= 0.97, told)


# Times


def products(report: Report, quick: bool) -> None:
    """Products of matrices beside PyTorch's: in float32, and on tensor cores in TF32, bfloat16 and float16."""
    shapes = [(n, n, n) for n in ([128] if quick else [512, 1024, 2048, 4096, 8192])]
    shapes += [] if quick else [(1000, 256, 784), (1000, 100, 256), (784, 256, 1000)]
    for m, n, k in shapes:
        rng = np.random.default_rng(0)
        a, b = ad.Variable("a"), ad.Variable("b")
        feed = {a: rng.standard_normal((m, k), "float32"), b: rng.standard_normal((k, n), "float32")}
        exact = feed[a][:64].astype("f8") @ feed[b]
        for kind, most in (("float32", 1e-5), ("TF32", 2e-3), ("bfloat16", 2e-2), ("float16", 2e-3)):
            name = f"product {m} x {n} x {k}, {kind}"
            dl.set_float32_matmul_precision("high" if kind == "TF32" else "highest")
            try:
                with dl.autocast(dtype=kind) if kind.endswith("16") else contextlib.nullcontext():
                    product = a @ b
                found, executor = ours([product], feed, 5)
                off = np.abs(executor.run(feed, True)[0][:64] - exact).max() / np.abs(exact).max()
            finally:
                dl.set_float32_matmul_precision("highest")
            report.check(name, off < most, f"off by {off:.1e} of the largest")
            report.time(name, found, cublas(feed[a], feed[b], kind), f"{2e-12 * m * n * k / found:.1f} TFLOP/s")


def cublas(a: np.ndarray, b: np.ndarray, kind: str) -> dict[str, float]:
    """Seconds of PyTorch's product in a precision."""
    if (torch := torch_or_none()) is None:
        return {}
    torch.backends.cuda.matmul.allow_tf32 = kind == "TF32"
    dtype = getattr(torch, kind if kind.endswith("16") else "float32")
    x, y = (torch.from_numpy(value).cuda().to(dtype) for value in (a, b))
    return {"cuBLAS": seconds_of(lambda: x @ y, torch.cuda.synchronize, 5)}


def rows(report: Report, quick: bool) -> None:
    """Softmax, layer norm and sums, in bytes a second beside a copy on the device."""
    torch = torch_or_none()
    for shape in [(64, 256)] if quick else [(8192, 1024), (4096, 8192)]:
        x = ad.Variable("x", shape)
        feed = {x: np.random.default_rng(0).standard_normal(shape).astype("float32")}
        nbytes = 2 * feed[x].nbytes
        copy = ours([x + 1.0], feed, 7)[0]
        report.time(f"x + 1 of {shape}", copy, {}, f"{nbytes / copy / 1e9:.0f} GB/s")
        for name, node, other in (
            ("softmax", ad.softmax_op(x), lambda t: torch.softmax(t, -1)),
            ("layer_norm", nn.functional.layer_norm(x, shape[-1:]), lambda t: torch.layer_norm(t, t.shape[-1:])),
            ("transpose", ops.transpose_op(x, (1, 0)), lambda t: t.t().contiguous()),
        ):
            found, _ = ours([node], feed, 7)
            others = {}
            if torch is not None:
                t = torch.from_numpy(feed[x]).cuda()
                others["PyTorch"] = seconds_of(lambda t=t, other=other: other(t), torch.cuda.synchronize, 7)
            told = f"{nbytes / found / 1e9:.0f} GB/s, {copy / found:.2f} of x + 1"
            report.time(f"{name} of {shape}", found, others, told)


def training(report: Report, quick: bool) -> None:
    """Training steps beside PyTorch's, eager and as a CUDA graph; ours also call by call, and fed from the host."""
    torch = torch_or_none()
    names = ["mnist32"] if quick else ["mnist32", "mnist100", "mnist1000", "resnet9", "transformer"]
    for case in map(MODELS.__getitem__, names):
        net, (images, labels) = case.network(nn), case.batch(np.random.default_rng(0))
        x, y = ad.Variable("x", images.shape, str(images.dtype)), ad.Variable("y", labels.shape, "int64")
        loss = nn.functional.cross_entropy(net(x), y)
        optimizer = getattr(optim, case.optimizer)(net.parameters(), lr=case.lr)
        feed = {x: images, y: labels}
        found, executor = ours([loss, optimizer.minimize(loss)], feed, 7)
        others = {} if torch is None else _of_torch(torch, case, images, labels)
        report.time(f"step of {case.title}", found, others)
        fed = seconds_of(lambda feed=feed, executor=executor: executor.run(feed), GPU.synchronize, 7)
        report.time("  the same, fed from the host", fed, {})
        with mock.patch.object(Replay, "run", Runner.run):
            report.time("  the same, call by call", ours(executor.eval_node_list, feed, 7)[0], {})


def _of_torch(torch: Any, case: Model, images: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Seconds of PyTorch's step of the same network, eager and as a CUDA graph."""
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    net = case.network(torch.nn).cuda()
    graphs = {"capturable": True} if case.optimizer == "Adam" else {}
    optimizer = getattr(torch.optim, case.optimizer)(net.parameters(), lr=case.lr, **graphs)
    x, y = torch.from_numpy(images).cuda(), torch.from_numpy(labels).cuda()

    def step() -> None:
        optimizer.zero_grad(set_to_none=False)
        torch.nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()

    found = {"eager": seconds_of(step, torch.cuda.synchronize, 7)}
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    found["CUDA graph"] = seconds_of(graph.replay, torch.cuda.synchronize, 7)
    return found


PARTS = (operators, steps, products, rows, training, accuracy)


def main() -> int:
    """The program; its exit status: 0, 1 where a check failed, 2 without a GPU."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes")
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(part.__name__ for part in PARTS))
    options = parser.parse_args()
    try:
        GPU.require()
    except dl.DeviceError as error:
        print(error, file=sys.stderr)
        return 2
    report = Report()
    print(dl.cuda.describe(0), flush=True)
    for part in PARTS:
        if options.parts and part.__name__ not in options.parts:
            continue
        start = time.perf_counter()
        try:
            part(report, options.quick)
        except Exception:  # noqa: BLE001 - told, and the next part runs: the time on a device is short
            report.check(part.__name__, False, traceback.format_exc())
        print(f"     ({part.__name__}: {time.perf_counter() - start:.0f} s)", flush=True)
    passed, failed = report.checks[True], report.checks[False]
    print(f"{len(passed)} checks passed, failed: {failed or 'none'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
