"""Networks for inference alone: values, what was folded, that nothing of the model changes, and what is refused."""

from __future__ import annotations

from typing import Any
from unittest import mock

import dlsys as dl
import numpy as np
import pytest
from dlsys import autodiff as ad
from dlsys import nn
from dlsys.deploy import channels_last, winograd
from dlsys.graph import Node

RANDOM = np.random.default_rng(0)


def drawn(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype("float32")


def operators(network: Any) -> list[str]:
    return [node.op.name for node in ad.find_topo_sort(network.outputs)]


def frozen(module: nn.Module, *values: np.ndarray) -> Any:
    """The frozen module, after a look at its values, by kernels and by NumPy."""
    for buffer in module.buffers():
        if buffer.dtype == "float32":
            buffer.value = RANDOM.uniform(0.5, 1.5, buffer.shape).astype("float32")
    wanted = module.eval()(*map(dl.tensor, values)).numpy()
    module.train()
    shapes = {f"x{i}": value for i, value in enumerate(values)}
    network = dl.freeze(module, shapes)
    assert module.training and not list(network.parameters())
    bound = 1e-4 * max(1.0, np.abs(wanted).max())
    np.testing.assert_allclose(network(*values).numpy(), wanted, rtol=0, atol=bound)
    numpy = ad.Executor(network.outputs, ctx="numpy").run(dict(zip(network.inputs, values, strict=True)))
    np.testing.assert_allclose(numpy[0], wanted, rtol=0, atol=bound)
    return network


def test_batch_norm_becomes_part_of_convolutions() -> None:
    dl.manual_seed(0)
    network = frozen(
        nn.Sequential(
            nn.Conv2d(3, 8, 5, 2, 2, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.5),
            nn.Conv2d(8, 8, 3, padding=1, groups=8), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(8 * 64, 5),
        ),
        drawn(2, 3, 16, 16),
    )  # fmt: skip
    names = operators(network)
    assert not {"mul", "sub", "rsqrt", "sqrt", "dropout", "random_bits"} & set(names)
    assert names.count("add") == 3  # a shift for each convolution, and the linear layer's bias
    image = dl.tensor(drawn(2, 3, 16, 16))
    np.testing.assert_allclose(dl.compile(network)(image).numpy(), network(image).numpy(), rtol=1e-6)


def test_values_are_in_the_state() -> None:
    dl.manual_seed(0)
    module = nn.Sequential(
        nn.Conv2d(3, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1),
        nn.Flatten(), nn.Linear(256, 5),
    )  # fmt: skip
    x = drawn(2, 3, 8, 8)
    network = frozen(module, x)
    state = network.state_dict()
    assert state.keys() == {"0.weight", "0.bias", "3.weight", "3.bias", "5.weight", "5.bias"}
    wanted = network(x).numpy()
    network.load_state_dict({**state, "5.bias": state["5.bias"] + 1})
    np.testing.assert_allclose(network(x).numpy(), wanted + 1, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("batch", [1, 3])
def test_what_follows_a_convolution_of_1_x_1_is_part_of_its_kernel(batch: int) -> None:
    """Of channels that fill no panel, as in MobileNets: 24, 40, 72."""
    dl.manual_seed(0)
    layers = [nn.Conv2d(16, 32, 3, padding=1), nn.ReLU()]
    for before, channels in ((32, 24), (24, 72), (72, 40)):
        layers += [nn.Conv2d(before, channels, 1, bias=False), nn.BatchNorm2d(channels), nn.Hardswish()]
    with mock.patch.object(channels_last, "BYTE", 0.0):
        network = frozen(nn.Sequential(*layers), drawn(batch, 16, 8, 8))
    assert operators(network).count("matmul") >= 2
    groups = ad.Executor(network.outputs).groups({network.inputs[0]: (batch, 16, 8, 8)})
    assert groups.count(" contraction ") >= 4 and " elementwise " not in groups


@pytest.mark.slow
def test_winograds_convolutions() -> None:
    for images, filters in (((1, 3, 8, 12), 4), ((2, 5, 7, 9), 3), ((1, 2, 1, 1), 2), ((1, 1, 5, 4), 1)):
        x, y = ad.Variable("x"), ad.Variable("y")
        given, weights = drawn(*images), drawn(filters, images[1], 3, 3)
        node = winograd.convolution(y, images, weights)
        wanted = ad.Executor([ad.conv2d_op(x, dl.tensor(weights), 1, 1)]).run({x: given}, True)[0]
        feed = {y: given.transpose(0, 2, 3, 1).copy()}
        for found in (ad.Executor([node]).run(feed, True)[0], ad.Executor([node], ctx="numpy").run(feed)[0]):
            np.testing.assert_allclose(found, wanted.transpose(0, 2, 3, 1), rtol=0, atol=1e-4)
    assert winograd.pays((1, 128, 28, 28), (128, 128, 3, 3))
    assert not winograd.pays((1, 512, 7, 7), (512, 512, 3, 3))  # 36 matrices in place of 9
    dl.manual_seed(0)
    module = nn.Sequential(
        nn.Conv2d(3, 128, 1), nn.Conv2d(128, 128, 3, padding=1), nn.BatchNorm2d(128), nn.ReLU()
    )
    names = operators(frozen(module, drawn(1, 3, 28, 28)))
    assert [names.count(name) for name in ("transform_tiles", "matmul_panels", "join_tiles")] == [2, 1, 2]


class Gates(nn.Module):
    """What stands between convolutions: gates, numbers of fewer axes, sums over places, joins, windows."""

    def __init__(self) -> None:
        self.first, self.second = nn.Conv2d(3, 16, 3, 2, 1), nn.Conv2d(16, 16, 3, padding=1, groups=16)
        self.gate, self.last = nn.Conv2d(16, 16, 1), nn.Conv2d(32, 16, 1)
        self.grid, self.pool = nn.Parameter(drawn(7, 1)), nn.MaxPool2d(3, 2, 1)

    def forward(self, x: Node) -> Node:
        y = self.first(x).relu()
        gate = self.gate(y.mean((2, 3), keepdim=True)).sigmoid()
        z = self.second(y) * gate + y * 0.5 - self.grid
        both = dl.cat([z, y], 1)
        return self.last(nn.functional.avg_pool2d(self.pool(both), 2)).mean((2, 3)) + x.mean()


@pytest.mark.slow
def test_images_stay_channels_last() -> None:
    dl.manual_seed(0)
    with mock.patch.object(channels_last, "BYTE", 0.0):  # else such small images are not worth a transpose
        network = frozen(Gates(), drawn(2, 3, 14, 14))
    names = operators(network)
    assert names.count("transpose") == 1 and names.count("pool_last") == 2  # the given image is turned, nothing else
    assert not {"conv2d", "max_pool2d", "avg_pool2d"} & set(names)

    class Joined(nn.Module):
        def __init__(self) -> None:
            self.conv, self.known = nn.Conv2d(3, 16, 3), nn.Parameter(drawn(2, 16, 1, 1))

        def forward(self, x: Node) -> Node:
            return dl.cat([self.conv(x), self.known], 1).relu()

    with mock.patch.object(channels_last, "BYTE", 0.0):
        frozen(Joined(), drawn(2, 3, 3, 3))  # images of one place, beside known numbers
    little = frozen(nn.Sequential(nn.Conv2d(16, 16, 1), nn.ReLU()), drawn(1, 16, 20, 20))
    assert "transpose" not in operators(little)  # turned twice, it would take longer


class Branches(nn.Module):
    """A convolution that two read is scaled for neither."""

    def __init__(self) -> None:
        self.conv = nn.Conv2d(2, 3, 3, padding=1)
        self.norm = nn.BatchNorm2d(3)
        self.scale = nn.Parameter(drawn(3, 1, 1))

    def forward(self, x: Node) -> Node:
        y = self.conv(x)
        return self.norm(y) + 3.0 * y - self.scale * y.relu() / 2.0


@pytest.mark.slow
def test_values_that_are_read_twice_and_text() -> None:
    dl.manual_seed(0)
    frozen(Branches(), drawn(2, 2, 5, 6))
    block = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, activation="gelu")
    network = frozen(block, drawn(2, 5, 16))
    assert operators(network).count("matmul_panels") >= 3


def test_the_model_stays_as_it_is() -> None:
    dl.manual_seed(0)
    module, x = nn.Linear(4, 32), drawn(8, 4)
    network = dl.freeze(module, {"x": x})
    before = network(x).numpy()
    module.weight.value = np.zeros((32, 4), "float32")
    np.testing.assert_array_equal(network(x).numpy(), before)
    again = dl.freeze(network)  # of a network, without shapes
    np.testing.assert_array_equal(again(x).numpy(), before)


def test_numbers_that_are_infinite_are_not_multiplied_into_filters() -> None:
    x = ad.Variable("x", (1, 1, 2, 2))

    class Divided(nn.Module):
        def forward(self, x: Node) -> Node:
            y = nn.functional.conv2d(x, dl.tensor(np.array([0.0, 1.0], "float32").reshape(2, 1, 1, 1)))
            return (y + 1.0) / dl.tensor(np.zeros((2, 1, 1), "float32"))

    given = np.ones(x.attrs["shape"], "float32")
    assert np.isposinf(dl.freeze(Divided(), {"x": given})(given).numpy()).all()
