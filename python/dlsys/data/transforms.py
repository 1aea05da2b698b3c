"""Transforms of images, one (CHW) or a batch of them (NCHW), with torchvision's names.

Each is called as ``transform(images, rng)``; the random ones draw from the np.random.Generator `rng` and from
nothing else, all images of a batch at once. `DataLoader(transform=...)` hands in one for each batch.
"""

from __future__ import annotations

import numbers
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .. import checks
from ..errors import DTypeError, ShapeError
from .dataset import DataArgumentError, integer


class Compose:
    """The transforms one after another, all drawing from one generator. Raises DataArgumentError for what is no list
    of functions."""

    def __init__(self, transforms: Sequence[Callable[..., Any]]) -> None:
        if not (isinstance(transforms, Sequence) and all(map(callable, transforms))):
            raise DataArgumentError(f"Compose: needs a list of transforms, not {transforms!r}")
        self.transforms: list[Any] = list(transforms)

    def __call__(self, images: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        for transform in self.transforms:
            images = transform(images, rng)
        return images


class Normalize:
    """(images - mean) / std for each channel; mean and std are sequences of C numbers, or one for all. Raises
    DTypeError for images that are no floats, ShapeError for another number of channels."""

    def __init__(self, mean: float | Sequence[float], std: float | Sequence[float]) -> None:
        self.mean, self.std = (np.reshape(value, (-1, 1, 1)).astype(float) for value in (mean, std))
        if not (self.std > 0).all():
            raise DataArgumentError(f"Normalize: std must be greater than 0, not {std}")

    def __call__(self, images: np.ndarray, rng: np.random.Generator | None = None) -> np.ndarray:
        if not isinstance(images, np.ndarray) or images.dtype.kind != "f":
            raise DTypeError(f"Normalize: images are arrays of floats, not {getattr(images, 'dtype', images)}")
        if images.ndim < 3 or {len(self.mean), len(self.std)} - {1, images.shape[-3]}:
            channels = f"{len(self.mean)} channels of mean, {len(self.std)} of std"
            raise ShapeError(f"Normalize: {channels} for images of shape {images.shape} (..., C, H, W)")
        out = images - self.mean.astype(images.dtype)
        out /= self.std.astype(images.dtype)
        return out


class RandomCrop:
    """A part of `size` (an integer or (height, width)), at a random place of each image padded with zeros.

    padding: rows and columns of zeros on each side. Raises ShapeError if the padded image is too small.
    """

    def __init__(self, size: int | tuple[int, int], padding: int = 4) -> None:
        self.size: tuple[int, int] = checks.pair("RandomCrop", "size", size, 1, DataArgumentError)
        self.padding: int = integer("RandomCrop", "padding", padding, 0)

    def __call__(self, images: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        batch = _batched("RandomCrop", images)
        (rows, columns), pad = self.size, self.padding
        padded = np.pad(batch, ((0, 0), (0, 0), (pad, pad), (pad, pad)))
        down, right = padded.shape[2] - rows, padded.shape[3] - columns
        if min(down, right) < 0:
            raise ShapeError(f"RandomCrop: {self.size} of {images.shape} (..., C, H, W) padded by {pad}")
        top, left = rng.integers(0, down + 1, len(batch)), rng.integers(0, right + 1, len(batch))
        windows = np.lib.stride_tricks.sliding_window_view(padded, self.size, axis=(2, 3))
        return windows[np.arange(len(batch)), :, top, left].reshape(*images.shape[:-2], rows, columns)


class RandomHorizontalFlip:
    """Each image mirrored, left to right, with probability p."""

    def __init__(self, p: float = 0.5) -> None:
        if not isinstance(p, numbers.Real) or not 0 <= p <= 1:
            raise DataArgumentError(f"RandomHorizontalFlip: p must be between 0 and 1, not {p!r}")
        self.p: float = float(p)

    def __call__(self, images: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        batch = _batched("RandomHorizontalFlip", images)
        flips = rng.random(len(batch)) < self.p
        out = batch.copy()
        out[flips] = batch[flips][..., ::-1]
        return out.reshape(images.shape)


def _batched(owner: str, images: Any) -> np.ndarray:
    """(N, C, H, W), one image as a batch of one. Raises ShapeError."""
    if not isinstance(images, np.ndarray) or images.ndim not in (3, 4):
        raise ShapeError(f"{owner}: needs an array (C, H, W) or (N, C, H, W), not {np.shape(images)}")
    return images.reshape(-1, *images.shape[-3:])
