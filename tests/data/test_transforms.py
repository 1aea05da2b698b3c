"""Transforms of images."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from dlsys.data import Compose, DataArgumentError, Normalize, RandomCrop, RandomHorizontalFlip
from dlsys.errors import DTypeError, ShapeError
from helpers import error_of

IMAGES = np.random.default_rng(0).random((200, 3, 6, 5), np.float32) + 0.5


def draw(seed: int = 1) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_normalize() -> None:
    mean, std = [0.1, 0.2, 0.3], [0.5, 1.0, 2.0]
    out = Normalize(mean, std)(IMAGES)
    assert out.dtype == np.float32 and np.array_equal(Normalize(mean, std)(IMAGES[4]), out[4])
    for c in range(3):
        assert np.allclose(out[:, c], (IMAGES[:, c] - mean[c]) / std[c], atol=1e-6)
    assert np.allclose(Normalize(0.5, 0.25)(IMAGES), (IMAGES - 0.5) / 0.25)
    assert "std" in error_of(DataArgumentError, Normalize, 0, [1, 0, 1])
    assert "uint8" in error_of(DTypeError, Normalize(0, 1), IMAGES.astype(np.uint8))
    assert "2 channels of mean" in error_of(ShapeError, Normalize([0, 0], 1), IMAGES)


@pytest.mark.parametrize("size, padding", [((6, 5), 2), (4, 0), ((3, 9), 4)])
def test_random_crop_is_a_window_of_the_padded_image(size: Any, padding: int) -> None:
    out = RandomCrop(size, padding)(IMAGES, draw())
    rows, columns = (size, size) if isinstance(size, int) else size
    assert out.shape == (200, 3, rows, columns) and out.dtype == np.float32 and out.flags.c_contiguous
    padded = np.pad(IMAGES, ((0, 0), (0, 0), (padding, padding), (padding, padding)))
    possible = [*np.ndindex(padded.shape[2] - rows + 1, padded.shape[3] - columns + 1)]
    places = set()
    for image, crop in zip(padded, out, strict=True):
        matches = (np.array_equal(image[:, top : top + rows, left : left + columns], crop) for top, left in possible)
        places.add(list(matches).index(True))
    assert len(places) >= min(len(possible), 20) * 0.9  # every place, the outermost too


def test_random_flip() -> None:
    out = RandomHorizontalFlip(0.25)(IMAGES, draw())
    flipped = (out == IMAGES[..., ::-1]).all(axis=(1, 2, 3))
    assert (flipped ^ (out == IMAGES).all(axis=(1, 2, 3))).all() and 30 < flipped.sum() < 70
    assert np.array_equal(RandomHorizontalFlip(1)(IMAGES, draw()), IMAGES[..., ::-1])
    assert np.array_equal(RandomHorizontalFlip(0)(IMAGES, draw()), IMAGES)


def test_one_image_is_a_batch_of_one_and_nothing_is_changed_in_place() -> None:
    transform = Compose([RandomHorizontalFlip(), RandomCrop((6, 5), 2), Normalize(0.5, 0.5)])
    before = IMAGES.copy()
    for seed in range(10):
        assert np.array_equal(transform(IMAGES[0], draw(seed)), transform(IMAGES[:1], draw(seed))[0])
    assert np.array_equal(IMAGES, before)
    assert RandomCrop(32)(np.ones((3, 32, 32), np.uint8), draw()).dtype == np.uint8
    assert "(9, 9)" in error_of(ShapeError, RandomCrop(9, 1), IMAGES, draw())
    assert "size" in error_of(DataArgumentError, RandomCrop, 0)
    assert "between 0 and 1, not 2" in error_of(DataArgumentError, RandomHorizontalFlip, 2)
