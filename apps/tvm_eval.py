"""Networks of needle's TVM project, forward, by every way that they can be run: `python apps/tvm_eval.py -m mlp`.

NumPy node by node; TVM Relax untouched, fused by its passes, fused with our schedule rules; our executor;
PyTorch, eager and compiled, where it is installed. All results are compared. What Relax has compiled is kept in a
cache, and the next run loads it.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dlsys as dl
import numpy as np
from dlsys import autodiff as ad
from dlsys import cli
from dlsys.charts import COLOURS, chart
from dlsys.errors import DlsysError
from dlsys.kernels import disk
from dlsys.system import cache_folder

sys.path.append(str(Path(__file__).resolve().parent.parent / "benchmarks"))
import timing

TOLERANCE = 1e-3
ROUNDS, SECONDS = 12, 0.02  # times that each is timed, and how long, the contenders in turn
FAR, FEW = ("Relax", "Relax, fused", "NumPy"), 3  # ten times as slow as the others: timed after them, a few calls
STAGES = {"Relax": (False, "default"), "Relax, fused": (True, "default"), "Relax, our rules": (True, "rules")}


def mlp(nn: Any) -> tuple[Any, tuple[int, ...]]:
    """Five layers, 512 wide, and the images' shape: 8 rows. `nn`: of dlsys or of PyTorch."""
    hidden = [layer for _ in range(4) for layer in (nn.Linear(512, 512), nn.ReLU())]
    return nn.Sequential(*hidden, nn.Linear(512, 10)), (8, 512)


def transformer(nn: Any) -> tuple[Any, tuple[int, ...]]:
    """Two encoder layers of 8 heads of 32; 8 sequences of 10."""
    layer = nn.TransformerEncoderLayer(256, 8, 1024, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 2), (8, 10, 256)


def resnet9(nn: Any) -> tuple[Any, tuple[int, ...]]:
    """ResNet9 of the course; 8 images of 32 x 32."""

    class Residual(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self, *inner: Any) -> None:
            super().__init__()
            self.inner = nn.Sequential(*inner)

        def forward(self, x: Any) -> Any:
            return self.inner(x) + x

    def conv(inputs: int, outputs: int, kernel: int, stride: int) -> Any:
        layer = nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=(kernel - 1) // 2)
        return nn.Sequential(layer, nn.BatchNorm2d(outputs), nn.ReLU())

    features = [
        *(conv(3, 16, 7, 4), conv(16, 32, 3, 2), Residual(conv(32, 32, 3, 1), conv(32, 32, 3, 1))),
        *(conv(32, 64, 3, 2), conv(64, 128, 3, 2), Residual(conv(128, 128, 3, 1), conv(128, 128, 3, 1))),
    ]
    head = [nn.Flatten(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10)]
    return nn.Sequential(*features, *head), (8, 3, 32, 32)


MODELS = {"mlp": mlp, "transformer": transformer, "conv": resnet9}


def relax(name: str, stage: str, out: ad.Node, x: ad.Node, shape: tuple[int, ...], options: Any) -> Any:
    """The network compiled by Relax: from the cache, unless `-r` is given, or made and kept."""
    fuse, schedule = STAGES[stage]
    cache, target = cache_folder(), dl.kernels.target_name(options.device)
    weights = [float(node.numpy().sum()) for node in ad.find_topo_sort([out]) if node.op.leaf]
    key = disk.key("tvm_eval", name, stage, weights, target.text)
    path = None if cache is None else Path(cache) / "tvm_eval" / f"{name}-{schedule}-{key}.so"
    if path is not None and path.is_file() and not options.recompile:
        return dl.relax.load(path, "cpu" if options.device == "llvm" else "cuda")
    made = dl.relax.compile(out, options.device, fuse, schedule, feed_shapes={x: shape}, params="constants")
    print(f"{stage}: {made}")
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        made.export(path)
    return made


def contenders(name: str, options: Any) -> dict[str, Callable[[], np.ndarray]]:
    """By name, a function of one forward pass that returns its result."""
    dl.manual_seed(options.seed)
    model, shape = MODELS[name](dl.nn)
    model.eval()
    x = ad.Variable("x", shape)
    out = model(x)
    image = np.random.default_rng(options.seed).standard_normal(shape).astype("float32")
    numpy, executor = ad.Executor([out], dl.numpy()), ad.Executor([out], options.device.replace("llvm", "cpu"))
    given = dl.array(image, executor.ctx)
    found: dict[str, Callable[[], Any]] = {"NumPy": lambda: numpy.run({x: image})[0]}
    for stage in STAGES:
        compiled = relax(name, stage, out, x, shape, options)
        found[stage] = lambda compiled=compiled: compiled(given)[0]
    found["dlsys executor"] = lambda: executor.run({x: given})[0]
    if not options.no_torch and options.device == "llvm":
        with contextlib.suppress(ImportError):
            found |= of_torch(name, model, image)
    return found


def of_torch(name: str, model: Any, image: np.ndarray) -> dict[str, Callable[[], Any]]:
    """The same network by PyTorch, eager and compiled. Raises ImportError."""
    import torch

    torch.set_num_threads(dl.get_num_threads())
    twin, _ = MODELS[name](torch.nn)
    with torch.no_grad():
        for mine, other in zip(model.parameters(), twin.parameters(), strict=True):
            other.copy_(torch.tensor(mine.numpy()))
    twin.eval()
    quick, batch = torch.compile(twin), torch.from_numpy(image)

    def run(network: Any) -> Any:
        with torch.inference_mode():
            return network(batch)

    return {"PyTorch": lambda: run(twin), "torch.compile": lambda: run(quick)}


def measured(found: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Seconds of each, the median of rounds in which the contenders take turns; the slow ones last, NumPy behind them,
    as its threads spin on for 100 ms. Raises DlsysError for one that computes something else."""
    wanted = np.asarray(found["NumPy"]())
    for who, run in found.items():
        if not np.allclose(np.asarray(run()), wanted, atol=TOLERANCE, rtol=TOLERANCE):
            raise DlsysError(f"{who} computes something else than NumPy")
    runners = {who: timing.repeat(run) for who, run in found.items()}
    quick = timing.in_turn({who: run for who, run in runners.items() if who not in FAR}, ROUNDS, SECONDS)
    slow = timing.in_turn({who: runners[who] for who in FAR}, FEW, 0.0)
    return {who: (quick | slow)[who] for who in found}


def draw(name: str, seconds: dict[str, float], path: str) -> None:
    """A bar for each, on a logarithmic scale."""
    from matplotlib.ticker import LogLocator, NullFormatter

    names = list(seconds)[::-1]
    colours = [next(colour for start, colour in COLOURS.items() if who.startswith(start)) for who in names]
    title = f"{name}, forward, float32, batch 8, {dl.get_num_threads()} threads"
    with chart(path, title, "ms for a forward pass (logarithmic)", size=(8, 3.6)) as axes:
        bars = axes.barh(names, [seconds[who] * 1e3 for who in names], color=colours)
        axes.bar_label(bars, [f"{seconds[who] * 1e3:.3g}" for who in names], padding=3, fontsize=8.5)
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.margins(x=0.12)


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", choices=MODELS, default="mlp")
    parser.add_argument("-d", "--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("-r", "--recompile", action="store_true", help="compile anew what was kept")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, help="of the kernels (default: all cores)")
    parser.add_argument("--no-torch", action="store_true", help="leave PyTorch out")
    parser.add_argument("--plot", help="the file of a bar chart, .png or .svg")
    options = parser.parse_args(given)
    options.device = options.device.replace("cpu", "llvm")
    return options


def main(options: argparse.Namespace) -> dict[str, float]:
    """Prints the table; returns the seconds of each."""
    if options.threads is not None:
        dl.set_num_threads(options.threads)
    seconds = measured(contenders(options.model, options))
    print(f"\n{options.model}, forward, {dl.get_num_threads()} threads        ms   of Relax untouched")
    for who, value in seconds.items():
        print(f"{who:24} {value * 1e3:12.3f}   {seconds['Relax'] / value:10.1f} times as fast")
    if options.plot:
        draw(options.model, seconds, options.plot)
    return seconds


if __name__ == "__main__":
    sys.exit(cli.run(sys.argv[0], lambda: main(arguments())))
