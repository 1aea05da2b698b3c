"""Imported models beside onnxruntime and PyTorch: `python benchmarks/bench_import.py`.

Each model, with random weights, goes through an ONNX file into `dl.from_onnx` and `dl.freeze`, and is run by an
Executor; beside it onnxruntime runs the same file, PyTorch runs eagerly, and compiled with freezing, images in
channels_last. The outputs are compared before anything is timed. Images are 224 x 224, one
at a time. Needs torchvision.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import math
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import common
import numpy as np

MIN_TIME = 0.3  # seconds a turn
TOLERANCE = 1e-4  # of the largest output
GEOMETRIC_BAR, EACH_BAR = 0.9, 1.2


def vision() -> Any:
    """torchvision's models. Its wheel for CUDA beside PyTorch's for the CPU registers operators that are not there."""
    import torch

    library = torch.library.Library("torchvision", "FRAGMENT")
    for _ in range(50):
        try:
            import torchvision

            return torchvision.models
        except RuntimeError as error:
            library.define(f"{str(error).split('torchvision::')[1].split()[0]}(Tensor x) -> Tensor")
            for name in [name for name in sys.modules if name.startswith("torchvision")]:
                del sys.modules[name]
    raise ImportError("torchvision cannot be imported")


def models() -> dict[str, tuple[Callable[[], Any], Callable[[], Any]]]:
    """By name what makes the model, and its input."""
    import torch
    from torch import nn

    made = vision()

    class Text(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.places = nn.Embedding(1000, 256), nn.Embedding(128, 256)
            layer = nn.TransformerEncoderLayer(
                256, 8, 1024, activation="gelu", batch_first=True, norm_first=True
            )
            self.blocks = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
            self.head = nn.Linear(256, 1000, bias=False)

        def forward(self, tokens: Any) -> Any:
            length = tokens.shape[1]
            x = self.tokens(tokens) + self.places(torch.arange(length))
            return self.head(
                self.blocks(x, nn.Transformer.generate_square_subsequent_mask(length), is_causal=True)
            )

    class Steps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.LSTM(256, 256, 2)

        def forward(self, x: Any) -> Any:
            return self.layers(x)[0]

    def image() -> Any:
        return torch.randn(1, 3, 224, 224)

    def transformer() -> Any:
        network = made.VisionTransformer(224, 16, 4, 6, 384, 1536)
        nn.init.normal_(network.heads[0].weight, std=0.05)  # zeros, as made
        return network

    encoder = {"d_model": 256, "nhead": 8, "dim_feedforward": 1024, "activation": "gelu", "batch_first": True}
    return {
        "ResNet-18": (made.resnet18, image),
        "ResNet-50": (made.resnet50, image),
        "MobileNetV2": (made.mobilenet_v2, image),
        "VGG-11": (made.vgg11, image),
        "SqueezeNet": (made.squeezenet1_1, image),
        "DenseNet-121": (made.densenet121, image),
        "ViT, 4 layers of 384": (transformer, image),
        "BERT, 4 layers of 256": (
            lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(**encoder), 4),
            lambda: torch.randn(1, 128, 256),
        ),
        "GPT, 4 layers of 256": (Text, lambda: torch.randint(0, 1000, (1, 128))),
        "LSTM, 2 layers of 256": (Steps, lambda: torch.randn(35, 1, 256)),
    }


def contenders(make: Any, sample: Any, path: Path) -> tuple[dict[str, common.Runner], float]:
    """A runner of each, and the seconds from the file to the first result; exits where results differ."""
    import dlsys as dl
    import onnxruntime
    import torch
    from dlsys import autodiff as ad

    threads = int(os.environ["TVM_NUM_THREADS"])
    network, x = make().eval(), sample()
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(network, (x,), str(path), dynamo=False, opset_version=17)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    feed = {session.get_inputs()[0].name: x.numpy()}
    start = time.perf_counter()
    frozen = dl.freeze(dl.from_onnx(path)[0])
    executor, given = ad.Executor(frozen.outputs), {frozen.inputs[0]: dl.array(x.numpy())}
    found = executor.run(given, True)[0]
    first = time.perf_counter() - start

    other = make().eval()
    other.load_state_dict(network.state_dict())
    image = x.dim() == 4
    laid = x.to(memory_format=torch.channels_last) if image else x
    compiled = torch.compile(other.to(memory_format=torch.channels_last) if image else other)

    def run(function: Any, value: Any) -> common.Runner:
        def runner(times: int) -> None:
            with torch.no_grad():
                for _ in range(times):
                    function(value)

        return runner

    with torch.no_grad():
        wanted = network(x).numpy()
        results = {
            "onnxruntime": session.run(None, feed)[0],
            "dlsys": found,
            "compiled": compiled(laid).numpy(),
        }
    for who, result in results.items():
        if not np.allclose(result, wanted, rtol=0, atol=TOLERANCE * np.abs(wanted).max()):
            sys.exit(f"{path.stem}: {who} computes something else than PyTorch")
    runners = {
        "dlsys": common.repeat(lambda: executor.run(given)),
        "onnxruntime": common.repeat(lambda: session.run(None, feed)),
        "PyTorch": run(network, x),
        "torch.compile": run(compiled, laid),
    }
    return runners, first


def child(arguments: argparse.Namespace) -> None:
    """Times the models with the threads that the environment gives; leaves the figures as JSON."""
    import torch
    import torch._inductor.config

    torch.set_num_threads(int(os.environ["TVM_NUM_THREADS"]))
    torch._inductor.config.freezing = True
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for number, (name, (make, sample)) in enumerate(models().items()):
            torch.manual_seed(0)
            runners, first = contenders(make, sample, Path(folder) / f"{number}.onnx")
            timings = common.alternate(runners, arguments.rounds, MIN_TIME)
            found[name] = {"first": first, **{who: timing.median for who, timing in timings.items()}}
            print(
                f"  {os.environ['TVM_NUM_THREADS']} thread(s), {name}: {ratio(found[name]):.2f} of the better"
            )
    Path(arguments.child).write_text(json.dumps(found), encoding="utf-8")


def ratio(figures: dict[str, float]) -> float:
    """Our time over that of the best other."""
    return figures["dlsys"] / min(figures[who] for who in ("onnxruntime", "PyTorch", "torch.compile"))


def sections(runs: dict[int, dict[str, Any]]) -> list[str]:
    """The table and the bars."""
    rows, lines = [], []
    for threads, found in runs.items():
        count = f"{threads} thread{'s' * (threads > 1)}"
        for name, figures in found.items():
            others = [1e3 * figures[who] for who in ("onnxruntime", "PyTorch", "torch.compile")]
            rows.append([name, threads, 1e3 * figures["dlsys"], *others, ratio(figures), figures["first"]])
            lines.append((f"{name}: over the better, {count}", ratio(figures), EACH_BAR))
        mean = math.exp(sum(math.log(ratio(figures)) for figures in found.values()) / len(found))
        lines.append((f"geometric mean, {count}", mean, GEOMETRIC_BAR))
    header = [
        "model",
        "threads",
        "dlsys",
        "onnxruntime",
        "PyTorch",
        "torch.compile",
        "of the better",
        "first result, s",
    ]
    return [
        "## Milliseconds of a forward pass",
        common.table(header, rows),
        "Medians, in turn in one process. The first result counts from the ONNX file on, kernels compiled.",
        common.bars(lines),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    default = ",".join(str(n) for n in range(1, common.available_cores() + 1))
    parser.add_argument("--threads", default=default, help="thread counts, e.g. 1,2")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--results", type=Path, default=common.RESULTS, metavar="FOLDER")
    parser.add_argument("--child", metavar="FILE", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        return child(arguments)
    load = common.OtherLoad()
    options = [f"--rounds={arguments.rounds}"]
    runs = {
        int(threads): common.run_with_threads(os.path.abspath(__file__), int(threads), options)
        for threads in arguments.threads.split(",")
    }
    title = "Imported models: latency beside onnxruntime and PyTorch"
    command = "python benchmarks/bench_import.py"
    print(common.write_results("import", title, command, sections(runs), load, arguments.results))


if __name__ == "__main__":
    main()
