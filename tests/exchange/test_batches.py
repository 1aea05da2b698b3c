"""Networks for any batch: frozen, from ONNX and PyTorch, to ONNX; and what depends on the batch is refused."""

from __future__ import annotations

import copy
import pickle
import warnings
from typing import Any

import dlsys as dl
import numpy as np
import pytest
from dlsys import autodiff as ad
from dlsys import nn, optim
from dlsys.errors import DlsysError, GraphError, ShapeError
from helpers import error_of
from onnx import TensorProto, helper
from optional import onnxruntime, torch


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
def test_a_frozen_network_takes_any_batch() -> None:
    module = tokens()
    network = dl.freeze(module, SHAPES)
    assert repr(network).startswith("Network(x (batch, 3, 16, 16); ")
    assert {"token", "images.0.weight", "images.0.bias", "head.weight"} < network.state_dict().keys()
    for other in (network, copy.deepcopy(network), pickle.loads(pickle.dumps(network))):
        for batch in (1, 3):
            x = drawn(batch, 3, 16, 16)
            require_equal(other(x).numpy(), module(dl.tensor(x)).numpy())
    executor = ad.Executor(network.outputs)
    for batch in (2, 9):
        x = drawn(batch, 3, 16, 16)
        require_equal(executor.run({network.inputs[0]: x}, True)[0], module(dl.tensor(x)).numpy())
    told = error_of(ShapeError, network, drawn(2, 3, 16, 15))
    assert told == "x must be ('batch', 3, 16, 16), as imported, with the same batch, not (2, 3, 16, 15)"


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
    again = dl.from_onnx(dl.to_onnx(network, None, {}))[0]
    frozen = dl.freeze(network)
    for batch in (1, 4):
        x = drawn(batch, 3, 16, 16)
        wanted = module(dl.tensor(x)).numpy()
        require_equal(session.run(None, {"x": x})[0], wanted)
        for found in (network, again, frozen):
            require_equal(found(x).numpy(), wanted)
    loss, rate = nn.functional.mse_loss(network(drawn(4, 3, 16, 16)), dl.zeros(4, 5)), 0.01
    before = network.state_dict()["head.weight"]
    loss.backward()
    optim.SGD(network.parameters(), lr=rate).step()
    assert (network.state_dict()["head.weight"] != before).any()


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
    torch.manual_seed(0)
    network = OfPyTorch().eval()
    batch = torch.export.Dim("batch")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        given = torch.randn(4, 3, 6, 6), torch.randn(4, 2)
        program = torch.export.export(network, given, dynamic_shapes=({0: batch}, {0: batch}))
    read, parameters = dl.from_torch(program)
    (name, *rest), _ = read.shapes
    assert isinstance(name, str) and rest == [3, 6, 6] and len(parameters) == len(list(network.parameters()))
    for size in (1, 3):
        given = torch.randn(size, 3, 6, 6), torch.randn(size, 2)
        for found, wanted in zip(read(*(x.numpy() for x in given)), network(*given), strict=True):
            require_equal(found.numpy(), wanted.detach().numpy())
    told = error_of(ShapeError, read, drawn(2, 3, 6, 6), drawn(3, 2))
    assert "with the same" in told


class Other(nn.Module):
    def __init__(self, function: Any) -> None:
        self.function = function

    def forward(self, x: Any) -> Any:
        return self.function(x)


@pytest.mark.parametrize(
    ("function", "told"),
    [
        (lambda x: x * float(x.shape[0]), "constant 8.0"),
        (lambda x: x + dl.arange(x.shape[0]).reshape(-1, 1), "parameter"),
        (lambda x: x[: x.shape[0] // 2], "slice"),
        (lambda x: x if x.shape[0] == 8 else x * 2.0, "another graph"),
    ],
)
def test_what_depends_on_the_batch_is_refused(function: Any, told: str) -> None:
    assert told in error_of(GraphError, dl.freeze, Other(function), {"x": ("batch", 3)})
    error_of(GraphError, dl.to_onnx, Other(function), None, {"x": ("batch", 3)})


def test_mistakes_are_told() -> None:
    layer = nn.Linear(3, 2)
    shapes = {"x": ("batch", "width")}
    for function in (dl.freeze, lambda *given: dl.to_onnx(given[0], None, given[1])):
        told = error_of(ShapeError, function, layer, shapes)
        assert "one extent may have a name, the batch, not batch, width" in told
    assert "an extent is a number, not a name" in error_of(ShapeError, dl.export, layer, "step.so", {"x": ("batch", 3)})
    inputs = [helper.make_tensor_value_info("a", TensorProto.FLOAT, ["n", "m"])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    graph = helper.make_graph([helper.make_node("Relu", ["a"], ["y"])], "g", inputs, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    assert "a has shape (n, m): give shapes" in error_of(ShapeError, dl.from_onnx, model)
    network, _ = dl.from_onnx(model, {"a": ("n", 3)})
    assert network.shapes == (("n", 3),) and network(drawn(5, 3)).shape == (5, 3)
    assert dl.from_onnx(model, {"a": (2, 3)})[0].shapes == ((2, 3),)
    error_of(DlsysError, dl.freeze, layer, {"x": ("batch", 4)})
