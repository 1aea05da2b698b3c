"""Transforms of images, one (CHW) or a batch of them (NCHW), with torchvision's names.

Each is called as ``transform(images, rng)``; the random ones draw from the np.random.Generator `rng` and from
nothing else, all images of a batch at once. `DataLoader(transform=...)` hands in one for each batch.
"""

from __future__ import annotations

import numbers
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from ..errors import DTypeError, ShapeError
from .dataset import DataArgumentError, integer


class Compose:
    """The transforms one after another, all drawing from one generator."""

    def __init__(self, transforms: Sequence[Callable[..., Any]]) -> None:
        """Raises DataArgumentError for what is no list of transforms."""
        if not isinstance(transforms, Iterable):
            raise DataArgumentError(f"Compose: needs a list of transforms, not {transforms!r}")
        self.transforms: list[Any] = list(transforms)
        for transform in self.transforms:
            if not callable(transform):
                raise DataArgumentError(f"Compose: {transform!r} is no transform")

    def __call__(self, images: np.ndarray, rng: np.random.Generator | None = None) -> np.ndarray:
        for transform in self.transforms:
            images = transform(images, rng)
        return images


class Normalize:
    """(images - mean) / std for each channel; mean and std are sequences of C numbers, or one for all. Raises
    DTypeError for images that are no floats, ShapeError for another number of channels."""

    def __init__(self, mean: float | Sequence[float], std: float | Sequence[float]) -> None:
        self.mean: np.ndarray = np.atleast_1d(mean).astype(float)
        self.std: np.ndarray = np.atleast_1d(std).astype(float)
        if self.mean.ndim != 1 or self.std.ndim != 1:
            raise DataArgumentError("Normalize: mean and std are numbers or sequences of numbers")
        if not (self.std > 0).all():
            raise DataArgumentError(f"Normalize: std must be greater than 0, not {std}")

    def __call__(self, images: np.ndarray, rng: np.random.Generator | None = None) -> np.ndarray:
        """The images minus the mean, by the deviation, of each channel."""
        if not isinstance(images, np.ndarray) or images.dtype.kind != "f":
            raise DTypeError(f"Normalize: images are arrays of floats, given {getattr(images, 'dtype', images)}")
        for name, values in (("mean", self.mean), ("std", self.std)):
            if images.ndim < 3 or len(values) not in (1, images.shape[-3]):
                told = f"{name} of {len(values)} channels for images of shape {images.shape} (..., C, H, W)"
                raise ShapeError(f"Normalize: {told}")
        mean, std = (values.astype(images.dtype)[:, None, None] for values in (self.mean, self.std))
        out = images - mean
        out /= std
        return out


class RandomCrop:
    """A part of `size` (an integer or (height, width)), at a random place of each image padded with zeros.

    padding: rows and columns of zeros on each side. Raises ShapeError if the padded image is too small.
    """

    def __init__(self, size: int | tuple[int, int], padding: int = 4) -> None:
        height, width = size if isinstance(size, tuple) else (size, size)
        self.size: tuple[int, int] = integer("RandomCrop", "size", height), integer("RandomCrop", "size", width)
        self.padding: int = integer("RandomCrop", "padding", padding, 0)

    def __call__(self, images: np.ndarray, rng: np.random.Generator | None = None) -> np.ndarray:
        """The images, each cut out at a place drawn for it."""
        batch, rng = _batched("RandomCrop", images, rng)
        count, channels, height, width = batch.shape
        pad, (rows, columns) = self.padding, self.size
        down, right = height + 2 * pad - rows, width + 2 * pad - columns
        if down < 0 or right < 0:
            raise ShapeError(f"RandomCrop: {self.size} of {images.shape} (..., C, H, W) padded by {pad}")
        padded = np.zeros((count, channels, height + 2 * pad, width + 2 * pad), batch.dtype)
        padded[:, :, pad : pad + height, pad : pad + width] = batch
        top, left = rng.integers(0, down + 1, count), rng.integers(0, right + 1, count)
        windows = np.lib.stride_tricks.sliding_window_view(padded, self.size, axis=(2, 3))
        return windows[np.arange(count), :, top, left].reshape(*images.shape[:-2], rows, columns)


class RandomHorizontalFlip:
    """Each image mirrored, left to right, with probability p."""

    def __init__(self, p: float = 0.5) -> None:
        if not isinstance(p, numbers.Real) or not 0 <= p <= 1:
            raise DataArgumentError(f"RandomHorizontalFlip: p must be between 0 and 1, not {p!r}")
        self.p: float = float(p)

    def __call__(self, images: np.ndarray, rng: np.random.Generator | None = None) -> np.ndarray:
        """The images, each mirrored with the probability."""
        batch, rng = _batched("RandomHorizontalFlip", images, rng)
        flipped = rng.random(len(batch)) < self.p
        out = batch.copy()
        out[flipped] = batch[flipped][..., ::-1]
        return out.reshape(images.shape)


def _batched(owner: str, images: Any, rng: np.random.Generator | None) -> tuple[np.ndarray, np.random.Generator]:
    """(N, C, H, W), one image as a batch of one, and the generator. Raises ShapeError, DataArgumentError."""
    if not isinstance(images, np.ndarray) or images.ndim not in (3, 4):
        given = f"shape {images.shape}" if isinstance(images, np.ndarray) else type(images).__name__
        raise ShapeError(f"{owner}: needs an array (C, H, W) or (N, C, H, W), given {given}")
    if rng is None:
        raise DataArgumentError(f"{owner}: call it with a generator: transform(images, np.random.default_rng(seed))")
    return images.reshape(-1, *images.shape[-3:]), rng
