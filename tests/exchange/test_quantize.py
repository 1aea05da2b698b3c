"""`quantize`: networks of bytes give what the float networks give, to the steps of their values."""

from __future__ import annotations

from collections.abc import Callable

import dlsys as dl
import numpy as np
import pytest
from dlsys import nn, optim
from dlsys.graph import find_topo_sort
from dlsys.ops.types import dtype_of


def values(network: nn.Module, x: np.ndarray) -> np.ndarray:
    with dl.no_grad():
        return network.eval()(dl.tensor(x)).numpy()


def convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3, 2, 1), nn.ReLU(),
        nn.Conv2d(16, 16, 3, padding=1, groups=16), nn.Conv2d(16, 8, 1), nn.Flatten(), nn.Linear(8 * 36, 10),
    )  # fmt: skip


def residual() -> nn.Module:
    block = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.Tanh())
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.Residual(block), nn.MaxPool2d(2))


@pytest.mark.parametrize("make", [convolutions, residual])
def test_a_network_of_bytes_is_near_the_float_one(make: Callable[[], nn.Module]) -> None:
    dl.manual_seed(0)
    network, rng = make(), np.random.default_rng(0)
    batches = [rng.standard_normal((4, 3, 12, 12)).astype("float32") for _ in range(3)]
    quantized = dl.quantize(network, batches)
    expected, found = values(network, batches[0]), values(quantized, batches[0])
    assert found.shape == expected.shape and found.dtype == np.float32
    assert 0 < np.abs(found - expected).max() < 0.03 * np.abs(expected).max()
    products = [node for node in find_topo_sort(quantized.outputs) if node.op.kind == "contraction"]
    assert [dtype_of(node) for node in products].count("int32") >= 2


def test_zeros_around_images_are_the_zero_point() -> None:
    """All values lie far from 0 but the padding, which must stay 0."""
    dl.manual_seed(0)
    conv = nn.Conv2d(1, 4, 3, padding=1, bias=False)
    conv.weight.data = dl.tensor(np.ones((4, 1, 3, 3), "float32"))
    x = np.full((1, 1, 6, 6), -3.0, "float32")
    x[0, 0, 2, 2] = 1.0
    np.testing.assert_allclose(values(dl.quantize(conv, [x]), x), values(conv, x), atol=0.1)


def test_sums_that_int32_does_not_hold_stay_in_float32() -> None:
    layer, x = nn.Linear(66_000, 2), np.ones((1, 66_000), "float32")
    quantized = dl.quantize(layer, [x])
    assert not any(dtype_of(node) == "int32" for node in find_topo_sort(quantized.outputs))
    np.testing.assert_allclose(values(quantized, x), values(layer, x), rtol=1e-4)


def test_digits_keep_their_accuracy() -> None:
    from sklearn.datasets import load_digits

    dl.manual_seed(0)
    pixels, labels = load_digits(return_X_y=True)
    images, labels = (pixels / 16).astype("float32"), labels.astype("int64")
    network = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = optim.Adam(network.parameters(), lr=1e-2)
    x, y = dl.tensor(images[:1200]), dl.tensor(labels[:1200])
    for _ in range(60):
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(x), y).backward()
        optimizer.step()
    test = images[1200:]
    quantized = dl.quantize(network, [images[: len(test)]])
    right = [(values(net, test).argmax(1) == labels[1200:]).mean() for net in (network, quantized)]
    assert right[0] > 0.9 and abs(right[0] - right[1]) < 0.005


def test_mistakes_are_named() -> None:
    layer = nn.Linear(3, 2)
    with pytest.raises(dl.GraphError, match="quantize: takes a module, not int"):
        dl.quantize(3, [])  # type: ignore[arg-type]
    with pytest.raises(dl.GraphError, match="there is no batch"):
        dl.quantize(layer, [])
    with pytest.raises(dl.GraphError, match="is not finite for a batch"):
        dl.quantize(layer, [np.full((2, 3), np.nan, "float32")])
    with pytest.raises(dl.GraphError, match="a batch has 2 arrays, the model takes 1"):
        dl.quantize(layer, [np.ones((2, 3), "float32"), (np.ones((2, 3), "float32"),) * 2])
