"""Imported models: `python benchmarks/bench_import.py`.

Each model, with random weights, goes through an ONNX file into `dl.from_onnx` and `dl.freeze`, and is run by an
Executor; beside it onnxruntime runs the same file, PyTorch runs eagerly, and compiled with freezing, images in
channels_last. The outputs are compared before anything is timed. Images are 224 x 224, one at a time. Needs
torchvision.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import common
import numpy as np
from timing import Runner, repeat

LEAST = 0.3  # seconds a turn
TOLERANCE = 1e-4  # of the largest output
NAMES = ("dlsys", "onnxruntime", "PyTorch", "torch.compile")


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
    encoder = {"d_model": 256, "nhead": 8, "dim_feedforward": 1024, "activation": "gelu", "batch_first": True}

    class Text(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.places = nn.Embedding(1000, 256), nn.Embedding(128, 256)
            layer = nn.TransformerEncoderLayer(**encoder, norm_first=True)
            self.blocks = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
            self.head = nn.Linear(256, 1000, bias=False)

        def forward(self, tokens: Any) -> Any:
            length = tokens.shape[1]
            x = self.tokens(tokens) + self.places(torch.arange(length))
            mask = nn.Transformer.generate_square_subsequent_mask(length)
            return self.head(self.blocks(x, mask, is_causal=True))

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


def contenders(make: Any, sample: Any, path: Path, threads: int) -> tuple[dict[str, Runner], float]:
    """A runner of each, and the seconds from the file to the first result; the program ends where results differ."""
    import dlsys as dl
    import onnxruntime
    import torch
    from dlsys import autodiff as ad

    network, x = make().eval(), sample()
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(network, (x,), str(path), dynamo=False, opset_version=17)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    given = {session.get_inputs()[0].name: x.numpy()}
    start = time.perf_counter()
    frozen = dl.freeze(dl.from_onnx(path)[0])
    executor, feed = ad.Executor(frozen.outputs), {frozen.inputs[0]: dl.array(x.numpy())}
    executor.run(feed)
    first = time.perf_counter() - start

    twin, laid = make().eval(), x
    twin.load_state_dict(network.state_dict())
    if x.dim() == 4:
        twin, laid = twin.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
    compiled = torch.compile(twin)

    def run(function: Any, value: Any) -> Any:
        with torch.no_grad():
            return function(value)

    computes = {
        "dlsys": lambda: executor.run(feed, True)[0],
        "onnxruntime": lambda: session.run(None, given)[0],
        "PyTorch": lambda: run(network, x),
        "torch.compile": lambda: run(compiled, laid),
    }
    results = {name: np.asarray(compute()) for name, compute in computes.items()}
    wanted = results["PyTorch"]
    for name, result in results.items():
        if not np.allclose(result, wanted, rtol=0, atol=TOLERANCE * np.abs(wanted).max()):
            sys.exit(f"{path.stem}: {name} computes something else than PyTorch")
    return {name: repeat(compute) for name, compute in computes.items()}, first


def measure(arguments: argparse.Namespace, threads: int) -> dict[str, Any]:
    """By model the seconds of each contender, and of the first result."""
    import torch
    import torch._inductor.config

    torch._inductor.config.freezing = True
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for number, (name, (make, sample)) in enumerate(models().items()):
            if arguments.only in name:
                torch.manual_seed(0)
                runners, first = contenders(make, sample, Path(folder) / f"{number}.onnx", threads)
                found[name] = {"seconds": common.alternate(runners, arguments.rounds, LEAST), "first": first}
                text = f"{common.ratio(found[name]['seconds']):.2f} of the best other"
                print(f"  {threads} thread(s), {name}: {text}", file=sys.stderr, flush=True)
    return found


def sections(runs: Mapping[int, Any]) -> list[str]:
    """The table, and the geometric mean of its ratios."""
    rows, ratios = [], []
    for threads, found in runs.items():
        for name, figures in found.items():
            ratios.append(common.ratio(figures["seconds"]))
            times = [1e3 * figures["seconds"][who] for who in NAMES]
            rows.append([name, threads, *times, ratios[-1], figures["first"]])
    return [
        "## Milliseconds of a forward pass",
        common.table(["model", "threads", *NAMES, "of the best", "first result, s"], rows),
        "Medians, in turn in one process. The first result counts from the ONNX file on, kernels compiled. dlsys over "
        f"the best of the others, in geometric mean: {common.geometric_mean(ratios):.2f}.",
    ]


if __name__ == "__main__":
    only = {"--only": {"default": "", "metavar": "TEXT", "help": "models whose names hold it"}}
    common.main(__doc__, "import", measure, sections, only)
