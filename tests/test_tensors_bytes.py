"""Tensors of bytes, uint8, as images have them, beside PyTorch's."""

from __future__ import annotations

import warnings
from typing import Any

import dlsys as dl
import numpy as np
import torch
from against_torch import agree
from dlsys import autodiff as ad
from dlsys.errors import DTypeError
from helpers import error_of

DRAW = np.random.default_rng(0)
PIXELS = DRAW.integers(0, 256, (3, 4, 5), np.uint8)
OTHER = DRAW.integers(0, 256, (4, 5), np.uint8)
SMALL = np.array([[0, 1, 7], [3, 2, 5]], np.uint8)


def test_images_become_floats() -> None:
    agree(
        [
            lambda m, x, y: [x / 255, x.float() / 255, x.permute(2, 0, 1), x.flatten(1), x[:, 1:3, ::2], x.double()],
            lambda m, x, y: [m.stack([y, y]), m.cat([x, x], 1), m.flip(x, (2,)), x.repeat(2, 1, 1), x.long()],
            lambda m, x, y: [x.float().mean((1, 2)), (x.float() * 2).to(m.uint8), m.where(y > 100, y, 0 * y)],
            lambda m, x, y: [x[m.tensor([2, 0])], m.nn.functional.pad(y.float(), (1, 1)), m.zeros_like(y), x.int()],
        ],
        PIXELS,
        OTHER,
    )
    given = (dl.tensor([1, 255], dtype=dl.uint8), dl.zeros(2, dtype=dl.uint8))
    for made in (dl.from_numpy(PIXELS), dl.tensor(PIXELS), *given):
        assert made.dtype == "uint8" and made.nbytes == made.numel()
    np.testing.assert_array_equal(torch.from_dlpack(dl.tensor(OTHER)).numpy(), OTHER)


def test_arithmetic_and_comparisons_of_bytes() -> None:
    agree(
        [
            lambda m, x, y: [x + y, x - y, x * y, -x, x + 1, x - 1, x * 3, 7 - x, x**2],
            lambda m, x, y: [x == y, x < y, x >= 100, x != 7],
            lambda m, x, y: [x.sum(), x.sum(0), x.max(), x.min(), x.argmax(), m.maximum(x, y), x.clamp(10, 200)],
            lambda m, x, y: [x.max(1), (x > 9).sum(), x.sort(1)[0], m.abs(x)],
            lambda m, x, y: [x + y.long(), x * y.float(), x + y.int(), (x > y) + x, x + 0.5, x * True],
            lambda m, x, y: [x.nonzero(), x.masked_fill(x > 99, 5)],
        ],
        OTHER,
        OTHER[::-1].copy(),
    )
    x = dl.tensor(SMALL)
    assert (x < 300).numpy().all() and (x > -1).numpy().all()  # of these numbers PyTorch takes the lowest bits
    assert (x**3).tolist() == (SMALL**3).tolist()
    assert "no uint8" in error_of(DTypeError, lambda: x + 300)
    assert "only floats" in error_of(DTypeError, dl.tensor, SMALL, requires_grad=True)
    assert "from 0 to 256 is no uint8" in error_of(DTypeError, dl.tensor, [0, 256], "uint8")


def test_bytes_are_masks_and_labels() -> None:
    mask = (SMALL > 2).astype(np.uint8)
    x = dl.tensor(np.arange(6.0).reshape(2, 3))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = torch.arange(6.0).reshape(2, 3)[torch.tensor(mask)]
    assert x[dl.tensor(mask)].tolist() == expected.tolist()
    logits, labels = dl.tensor(DRAW.standard_normal((4, 3))), np.array([0, 2, 1, 2], np.uint8)
    mine = dl.nn.functional.cross_entropy(logits, dl.tensor(labels))
    theirs = torch.nn.functional.cross_entropy(torch.tensor(logits.numpy()), torch.tensor(labels).long())
    np.testing.assert_allclose(mine.item(), theirs.item())
    table = dl.tensor(DRAW.standard_normal((300, 2)))  # of more rows than a byte counts
    found = dl.nn.functional.embedding(dl.tensor([0, 255], dtype=dl.uint8), table)
    np.testing.assert_array_equal(found.numpy(), table.numpy()[[0, 255]])


def test_bytes_are_written_fed_and_cast() -> None:
    x = dl.zeros(2, 3, dtype=dl.uint8)
    x[0] = 200
    x[:, 1] += 5
    assert x.tolist() == [[200, 205, 200], [0, 5, 0]]
    for ctx in (dl.cpu(), dl.numpy()):
        image: Any = ad.Variable("image", (3, 4, 5), "uint8")
        run = ad.Executor([image / 255, ad.cast_op(image, "int64") - 300, image.sum()], ctx)
        scaled, shifted, total = (np.asarray(value) for value in run.run({image: PIXELS}))
        np.testing.assert_allclose(scaled, PIXELS / np.float32(255), rtol=1e-6)
        assert (shifted == PIXELS.astype(np.int64) - 300).all() and total == PIXELS.sum()
        free = ad.Variable("x")
        (cast,) = ad.Executor([ad.cast_op(free, "uint8")], ctx).run({free: np.array([0.9, 1.5, 254.9, 3.0])})
        assert np.asarray(cast).tolist() == [0, 1, 254, 3]
    loader = dl.data.DataLoader(dl.data.TensorDataset(PIXELS, np.arange(3)), 2)
    batch = next(iter(loader))[0]
    assert batch.dtype == "uint8" and (batch.float() / 255).shape == (2, 4, 5)
