"""Maxima of windows with their places, windows with holes, and pooling undone, beside PyTorch's."""

from __future__ import annotations

from typing import Any

import dlsys as dl
import numpy as np
import torch
from against_torch import random
from dlsys import autodiff as ad
from dlsys import nn
from dlsys.errors import GraphError, IndexRangeError, ShapeError
from dlsys.nn import functional as F
from helpers import error_of


def pooled(m: Any, home: Any, name: str, value: np.ndarray, options: dict[str, Any]) -> list[Any]:
    x = m.tensor(value, requires_grad=True)
    y, places = getattr(home, name)(**options, return_indices=True)(x)
    (y * y).sum().backward()
    return [y.detach(), places, x.grad]


def test_maxima_and_their_places() -> None:
    ties = np.round(2 * random(2, 2, 7, 8)) / 2  # of equal ones the first counts
    for name, value, options in (
        ("MaxPool2d", ties, {"kernel_size": 2}),
        ("MaxPool2d", random(2, 2, 7, 8), {"kernel_size": (3, 2), "stride": (2, 1), "padding": 1}),
        ("MaxPool2d", random(2, 7, 8), {"kernel_size": 2, "stride": 3, "dilation": (3, 2), "ceil_mode": True}),
        ("MaxPool2d", random(1, 1, 5, 5), {"kernel_size": 2, "stride": 2, "padding": 1, "ceil_mode": True}),
        ("MaxPool1d", random(2, 3, 9), {"kernel_size": 3, "stride": 2, "padding": 1, "dilation": 2}),
    ):
        mine, theirs = pooled(dl, nn, name, value, options), pooled(torch, torch.nn, name, value, options)
        for a, b in zip(mine, theirs, strict=True):
            np.testing.assert_array_equal(a.numpy(), b.numpy(), err_msg=f"{name} {options}")
        plain = getattr(nn, name)(**options)(dl.tensor(value))
        np.testing.assert_array_equal(plain.numpy(), theirs[0].numpy())
    assert "dilation=2, return_indices=True" in repr(nn.MaxPool1d(2, dilation=2, return_indices=True))


def test_pooling_undone() -> None:
    for n, options, size in ((2, {"kernel_size": 2}, (2, 3, 7, 9)), (1, {"kernel_size": 3, "stride": 2}, (2, 3, 8))):
        value = random(*size)
        for output_size in (size,) if n == 2 else (None, size):
            found = []
            for m, home in ((dl, nn), (torch, torch.nn)):
                x = m.tensor(value, requires_grad=True)
                y, places = getattr(home, f"MaxPool{n}d")(**options, return_indices=True)(x)
                z = getattr(home, f"MaxUnpool{n}d")(**options)(y, places, output_size)
                (z * z * z).sum().backward()
                found.append((z.detach().numpy(), x.grad.numpy()))
            np.testing.assert_array_equal(found[0][0], found[1][0])
            if n == 2:  # where windows overlap, PyTorch counts a number for each that it is the maximum of
                np.testing.assert_allclose(found[0][1], found[1][1], rtol=1e-12)
    y, places = F.max_pool2d(dl.tensor(random(4, 4)[None]), 2, return_indices=True)
    assert F.max_unpool2d(y, places, 2).shape == (1, 4, 4)
    assert "index 15" in error_of(IndexRangeError, F.max_unpool2d, y, places * 0 + 15, 2, output_size=(3, 4))
    x = dl.tensor(random(1, 1, 4, 4), requires_grad=True)
    assert dl.autograd.gradcheck(lambda v: F.max_unpool2d(*F.max_pool2d(v, 2, return_indices=True), 2), x)


def test_a_compiled_autoencoder_has_both() -> None:
    x = ad.Variable("x", (2, 1, 6, 6), "float64")
    y, places = F.max_pool2d(x, 2, return_indices=True)
    z = F.max_unpool2d(y * 2.0, places, 2)
    value = random(2, 1, 6, 6)
    out, gradient = ad.Executor([z, *ad.gradients((z * z).sum(), [x])]).run({x: value})
    a, b = torch.nn.functional.max_pool2d(torch.tensor(value), 2, return_indices=True)
    kept = torch.nn.functional.max_unpool2d(a, b, 2).numpy()
    np.testing.assert_allclose(np.asarray(out), 2 * kept)
    np.testing.assert_allclose(np.asarray(gradient), 8 * kept)


def test_errors() -> None:
    x = dl.tensor(random(1, 1, 4, 4))
    y, places = F.max_pool2d(x, 2, return_indices=True)
    assert "do not fit (1, 1, 4, 4)" in error_of(ShapeError, F.max_pool2d, x, 3, dilation=2)
    assert "more than half" in error_of(GraphError, F.max_pool2d, x, 2, padding=2, return_indices=True)
    assert "3 or 4 axes" in error_of(ShapeError, F.max_pool2d, x[0, 0], 2, return_indices=True)
    assert "indices of shape (1, 1, 2)" in error_of(ShapeError, F.max_unpool2d, y, places[..., 0], 2)
    assert "must be integers" in error_of(GraphError, F.max_unpool2d, y, y, 2)
    assert "not within (2, 2) of (4, 4)" in error_of(ShapeError, F.max_unpool2d, y, places, 2, output_size=(6, 4))
