"""Networks for inference alone: values, what was folded, that nothing of the model changes, and what is refused."""

from __future__ import annotations

from typing import Any

import dlsys as dl
import numpy as np
from dlsys import autodiff as ad
from dlsys import nn
from dlsys.errors import FeedError, GraphError
from dlsys.exchange import winograd
from dlsys.graph import Node
from helpers import error_of

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


def test_filters_and_matrices_lie_in_panels() -> None:
    dl.manual_seed(0)
    network = frozen(
        nn.Sequential(nn.Conv2d(4, 32, 3, 2, 1), nn.ReLU(), nn.Conv2d(32, 64, (2, 3))), drawn(1, 4, 13, 13)
    )
    assert operators(network).count("conv2d_panels") == 2
    network = frozen(nn.Sequential(nn.Linear(20, 64), nn.GELU(), nn.Linear(64, 7)), drawn(3, 5, 20))
    assert operators(network).count("matmul_panels") == 1  # 7 columns fill no panel


def test_winograds_convolutions() -> None:
    for images, filters in (((1, 3, 8, 12), 4), ((2, 5, 7, 9), 3), ((1, 2, 1, 1), 2), ((1, 1, 5, 4), 1)):
        x = ad.Variable("x", images)
        given, weights = drawn(*images), drawn(filters, images[1], 3, 3)
        node = winograd.convolution(x, images, weights)
        wanted = ad.Executor([ad.conv2d_op(x, dl.tensor(weights), 1, 1)]).run({x: given}, True)[0]
        for ctx in ("cpu", "numpy"):
            (found,) = (
                ad.Executor([node], ctx=ctx).run({x: given}, True)
                if ctx == "cpu"
                else ad.Executor([node], ctx=ctx).run({x: given})
            )
            np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-4)
    assert winograd.pays((1, 128, 28, 28), (128, 128, 3, 3)) and not winograd.pays(
        (1, 128, 28, 28), (32, 128, 3, 3)
    )
    dl.manual_seed(0)
    module = nn.Sequential(
        nn.Conv2d(3, 128, 1), nn.Conv2d(128, 128, 3, padding=1), nn.BatchNorm2d(128), nn.ReLU()
    )
    network = frozen(module, drawn(1, 3, 28, 28))
    assert operators(network).count("matmul") == 2  # of tiles, and of what comes of them


class Branches(nn.Module):
    """A convolution that two read is scaled for neither."""

    def __init__(self) -> None:
        self.conv = nn.Conv2d(2, 3, 3, padding=1)
        self.norm = nn.BatchNorm2d(3)
        self.scale = nn.Parameter(drawn(3, 1, 1))

    def forward(self, x: Node) -> Node:
        y = self.conv(x)
        return self.norm(y) + 3.0 * y - self.scale * y.relu() / 2.0


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


def test_mistakes_are_told() -> None:
    assert "takes a module, not int" in error_of(GraphError, dl.freeze, 3)
    assert "feed_shapes is a dictionary, not NoneType" in error_of(FeedError, dl.freeze, nn.Linear(2, 3))
    assert "freeze: Linear: " in error_of(FeedError, dl.freeze, nn.Linear(2, 3), {"a": (1, 2), "b": (1,)})
