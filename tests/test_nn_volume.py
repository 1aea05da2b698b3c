"""Convolution, pooling and batch norm of volumes: values and gradients are PyTorch's."""

from __future__ import annotations

from typing import Any

import dlsys as dl
import numpy as np
import torch
from dlsys import nn
from dlsys.errors import GraphError, ShapeError
from helpers import error_of

RNG = np.random.default_rng(0)
X = RNG.standard_normal((2, 4, 6, 7, 5)).astype("float32")


def compare(mine: nn.Module, theirs: torch.nn.Module, x: np.ndarray = X) -> None:
    assert mine.load_state_dict(theirs.state_dict()) == ([], [])
    a, b = dl.tensor(x, requires_grad=True), torch.tensor(x, requires_grad=True)
    y, z = mine(a), theirs(b)
    assert y.shape == tuple(z.shape)
    np.testing.assert_allclose(y.detach().numpy(), z.detach().numpy(), rtol=1e-4, atol=1e-5)
    weight = RNG.standard_normal(y.shape).astype("float32")
    (y * dl.tensor(weight)).sum().backward()
    (z * torch.tensor(weight)).sum().backward()
    for p, q in zip([a, *mine.parameters()], [b, *theirs.parameters()], strict=True):
        scale = float(q.grad.abs().max())
        np.testing.assert_allclose(p.grad.numpy(), q.grad.numpy(), rtol=1e-4, atol=1e-4 * scale)


def test_convolutions() -> None:
    settings: list[dict[str, Any]] = [
        {"kernel_size": 3},
        {"kernel_size": (2, 3, 1), "stride": (2, 1, 2), "padding": (1, 0, 1), "dilation": (2, 1, 1), "groups": 2},
        {"kernel_size": 3, "padding": "same", "bias": False},
        {"kernel_size": 3, "padding": 1, "padding_mode": "circular"},
    ]
    for given in settings:
        compare(nn.Conv3d(4, 6, **given), torch.nn.Conv3d(4, 6, **given))
    compare(nn.Conv3d(4, 6, 3), torch.nn.Conv3d(4, 6, 3), X[0])  # without the batch
    assert repr(nn.Conv3d(4, 6, (1, 2, 3))).startswith("Conv3d(4 → 6, kernel_size=(1, 2, 3))")


def test_pooling() -> None:
    for given in (
        {"kernel_size": 2},
        {"kernel_size": 3, "stride": (1, 2, 2), "padding": 1, "ceil_mode": True},
        {"kernel_size": 2, "dilation": (2, 1, 2)},
    ):
        compare(nn.MaxPool3d(**given), torch.nn.MaxPool3d(**given))
    for given in (
        {"kernel_size": 2},
        {"kernel_size": 3, "stride": (1, 2, 2), "padding": 1, "ceil_mode": True, "count_include_pad": False},
        {"kernel_size": (1, 2, 3), "stride": 2, "padding": (0, 1, 1)},
    ):
        compare(nn.AvgPool3d(**given), torch.nn.AvgPool3d(**given))
    for size in (1, (2, None, 3)):
        compare(nn.AdaptiveAvgPool3d(size), torch.nn.AdaptiveAvgPool3d(size))
    assert repr(nn.AvgPool3d(2, count_include_pad=False)) == "AvgPool3d(kernel_size=2, count_include_pad=False)"


def test_batch_norm() -> None:
    mine, theirs = nn.BatchNorm3d(4), torch.nn.BatchNorm3d(4)
    compare(mine, theirs)
    for name, value in theirs.state_dict().items():
        np.testing.assert_allclose(mine.state_dict()[name], value.numpy(), rtol=1e-5, atol=1e-6)
    compare(mine.eval(), theirs.eval())


def test_errors_name_the_layer() -> None:
    assert "Conv3d(4 → 6, kernel_size=3) got (2, 4, 6, 7)" in error_of(ShapeError, nn.Conv3d(4, 6, 3), X[..., 0])
    assert "got (2, 4, 6, 7, 5)" in error_of(ShapeError, nn.Conv3d(4, 6, 9), X)
    assert "integer >= 1 or 3 of them" in error_of(GraphError, nn.Conv3d, 4, 6, (3, 3))
    assert "return_indices" in error_of(GraphError, nn.MaxPool3d(2, return_indices=True), X)
    functional = nn.functional
    wide = dl.tensor(np.ones((6, 4, 3, 3), "float32"))
    assert "(O, C / groups, d, h, w)" in error_of(ShapeError, functional.conv3d, dl.tensor(X), wide)
    assert "must be known" in error_of(GraphError, functional.avg_pool3d, dl.autodiff.Variable("x"), 2)


def test_words_of_padding() -> None:
    filters = RNG.standard_normal((6, 4, 3, 3, 1)).astype("float32")
    conv, theirs = nn.functional.conv3d, torch.nn.functional.conv3d
    for word, stride, dilation in (("same", 1, (1, 2, 1)), ("valid", (1, 2, 1), 1)):
        y = conv(dl.tensor(X), dl.tensor(filters), None, stride, word, dilation)
        z = theirs(torch.tensor(X), torch.tensor(filters), None, stride, word, dilation)
        np.testing.assert_allclose(y.numpy(), z.numpy(), rtol=1e-4, atol=1e-5)
    given = dl.tensor(X), dl.tensor(filters), None
    assert "needs a stride of 1, not 2" in error_of(GraphError, conv, *given, 2, "same")
    assert 'conv3d: padding must be "same", "valid"' in error_of(GraphError, conv, *given, 1, "full")
