"""Networks for any batch, from ONNX and PyTorch, to ONNX; and what depends on the batch is refused."""

from __future__ import annotations

import copy
import pickle
import warnings
from typing import Any

import dlsys as dl
import numpy as np
import pytest
from dlsys import nn, optim
from dlsys.errors import GraphError, ShapeError
from dlsys.exchange import onnx_export
from helpers import error_of
from optional import onnxruntime, onnxscript, torch


def drawn(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype("float32")


class Tokens(nn.Module):
    """Convolutions, a token that is repeated, shapes by the batch's extent, attention."""

    def __init__(self) -> None:
        self.images = nn.Sequential(
            nn.Conv2d(3, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1)
        )
        self.token = nn.Parameter(drawn(1, 1, 16))
        self.block = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.head = nn.Linear(16, 5)

    def forward(self, x: Any) -> Any:
        n = x.shape[0]
        y = self.images(x).reshape(n, 16, -1).transpose(1, 2)
        y = dl.cat([self.token.expand(n, 1, 16), y], 1)
        return self.head(self.block(y)[:, 0])


SHAPES = {"x": ("batch", 3, 16, 16)}


def tokens() -> nn.Module:
    dl.manual_seed(0)
    return Tokens().eval()


def require_equal(found: Any, wanted: Any) -> None:
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_to_onnx_and_back_for_any_batch() -> None:
    module = tokens()
    model = dl.to_onnx(module, None, SHAPES)
    for value, wanted in ((model.graph.input[0], ["batch", 3, 16, 16]), (model.graph.output[0], ["batch", 5])):
        assert [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim] == wanted
    session = onnxruntime.InferenceSession(model.SerializeToString())
    network, parameters = dl.from_onnx(model)
    assert network.shapes == (("batch", 3, 16, 16),)
    assert parameters.keys() == dict(module.named_parameters()).keys()
    again = dl.from_onnx(dl.to_onnx(network, None, SHAPES))[0]
    for batch in (1, 4):
        x = drawn(batch, 3, 16, 16)
        wanted = module(dl.tensor(x)).numpy()
        require_equal(session.run(None, {"x": x})[0], wanted)
        frozen = dl.freeze(network, {"x": x})
        for found in (network, again, frozen, copy.deepcopy(network), pickle.loads(pickle.dumps(frozen))):
            require_equal(found(x).numpy(), wanted)
    told = error_of(ShapeError, frozen, drawn(2, 3, 16, 15))
    assert told == "x must be (4, 3, 16, 16), as it was frozen, not (2, 3, 16, 15)"
    loss, rate = nn.functional.mse_loss(network(drawn(4, 3, 16, 16)), dl.zeros(4, 5)), 0.01
    before = network.state_dict()["head.weight"]
    loss.backward()
    optim.SGD(network.parameters(), lr=rate).step()
    assert (network.state_dict()["head.weight"] != before).any()


class Joined(nn.Module):
    """Reshapes, repeats and cuts two arguments whose batch is any axis."""

    def __init__(self, axis: int) -> None:
        self.axis = axis

    def forward(self, a: Any, x: Any) -> Any:
        x = x.transpose(0, self.axis)
        flat = x.reshape(x.shape[0], -1)
        row = a.reshape(-1)[: flat.shape[1]].expand(x.shape[0], flat.shape[1])
        return dl.cat([flat[:, 1:], row], 1) * 2.0


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("fixed", [8, 13, onnx_export.SIZES[0] - 1])
def test_the_batch_is_that_of_its_own_axis(axis: int, fixed: int) -> None:
    """Also where another extent is as large."""
    shape = [fixed, fixed]
    shape[axis] = "batch"
    module = Joined(axis)
    model = dl.to_onnx(module, None, {"a": (fixed, 3), "x": tuple(shape)})
    session = onnxruntime.InferenceSession(model.SerializeToString())
    network, _ = dl.from_onnx(model)
    for batch in (1, 5, 8):
        given = drawn(fixed, 3), drawn(*(batch if isinstance(extent, str) else extent for extent in shape))
        wanted = module(*map(dl.tensor, given)).numpy()
        assert wanted.shape[0] == batch
        require_equal(network(*given).numpy(), wanted)
        require_equal(session.run(None, dict(zip("ax", given, strict=True)))[0], wanted)


class OfPyTorch(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.images, self.token = torch.nn.Conv2d(3, 8, 3), torch.nn.Parameter(torch.randn(1, 1, 8))
        self.block, self.head = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), torch.nn.Linear(8, 4)

    def forward(self, x: Any, y: Any) -> Any:
        n = x.shape[0]
        x = torch.cat([self.token.expand(n, -1, -1), self.images(x).flatten(2).transpose(1, 2)], 1)
        return self.head(self.block(x)).view(n, -1), y.new_zeros(n, 2) + y


@pytest.mark.slow
def test_from_pytorch_for_any_batch() -> None:
    assert onnxscript.script  # or skipped
    torch.manual_seed(0)
    network = OfPyTorch().eval()
    batch = torch.export.Dim("batch")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        given = torch.randn(4, 3, 6, 6), torch.randn(4, 2)
        program = torch.export.export(network, given, dynamic_shapes=({0: batch}, {0: batch}))
    read, parameters = dl.from_torch(program)
    assert len(parameters) == len(list(network.parameters()))
    for size in (1, 3):
        given = torch.randn(size, 3, 6, 6), torch.randn(size, 2)
        for found, wanted in zip(read(*(x.numpy() for x in given)), network(*given), strict=True):
            require_equal(found.numpy(), wanted.detach().numpy())


class Other(nn.Module):
    def __init__(self, function: Any) -> None:
        self.function = function

    def forward(self, x: Any) -> Any:
        return self.function(x)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x * float(x.shape[0]),
        lambda x: x + dl.arange(x.shape[0]).reshape(-1, 1),
        lambda x: x[: x.shape[0] // 2],
        lambda x: x if x.shape[0] == onnx_export.SIZES[0] else x * 2.0,
        lambda x: x.mean(0),
    ],
)
def test_what_depends_on_the_batch_is_refused(function: Any) -> None:
    told = error_of(GraphError, dl.to_onnx, Other(function), None, {"x": ("batch", 3)})
    assert "to_onnx: the extent batch decides what is computed: " in told
    given = {"x": (4, 3)}
    x = drawn(4, 3)
    require_equal(dl.from_onnx(dl.to_onnx(Other(function), None, given))[0](x).numpy(), function(dl.tensor(x)).numpy())


def test_mistakes_are_told() -> None:
    layer = nn.Linear(3, 2)
    told = error_of(ShapeError, dl.to_onnx, layer, None, {"x": ("batch", "width")})
    assert "one extent may have a name, the batch, not batch, width" in told
    for function in (lambda *given: dl.export(given[0], "step.so", given[1]), dl.freeze):
        assert "an extent is a number, not a name" in error_of(ShapeError, function, layer, {"x": ("batch", 3)})
