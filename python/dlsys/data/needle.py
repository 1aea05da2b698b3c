"""Data sets and transforms by the names and arguments of needle, the framework of the CMU course 10-414.

Its transforms take one image (H, W, C) and draw from `np.random.seed`'s generator. `RandomCrop` of `dlsys.data` is
torchvision's, needle's is `dlsys.data.needle.RandomCrop`.
"""

from __future__ import annotations

import numbers
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..errors import DataError, ShapeError
from .cifar10 import CIFAR10
from .dataset import DataArgumentError, Dataset, TensorDataset, as_tensors, default_collate
from .idx import read_idx
from .text import WordText

Transform = Callable[[np.ndarray], np.ndarray]


class RandomFlipHorizontal:
    """An image (H, W, C), mirrored left to right with probability p."""

    def __init__(self, p: float = 0.5) -> None:
        """Raises DataArgumentError for a p outside [0, 1]."""
        if not isinstance(p, numbers.Real) or not 0 <= p <= 1:
            raise DataArgumentError(f"RandomFlipHorizontal: p must be between 0 and 1, not {p!r}")
        self.p: float = float(p)

    def __call__(self, img: np.ndarray) -> np.ndarray:
        """Raises ShapeError for what is no image."""
        image = _image("RandomFlipHorizontal", img)
        return (image[:, ::-1] if np.random.rand() < self.p else image).copy()

    def __repr__(self) -> str:
        return f"RandomFlipHorizontal(p={self.p})"


class RandomCrop:
    """An image (H, W, C), moved by up to `padding` rows and columns; zeros come in."""

    def __init__(self, padding: int = 3) -> None:
        """Raises DataArgumentError for a padding that is no integer >= 0."""
        if isinstance(padding, bool) or not isinstance(padding, numbers.Integral) or padding < 0:
            raise DataArgumentError(f"RandomCrop: padding must be an integer >= 0, not {padding!r}")
        self.padding: int = int(padding)

    def __call__(self, img: np.ndarray) -> np.ndarray:
        """Raises ShapeError for what is no image."""
        down, right = np.random.randint(low=-self.padding, high=self.padding + 1, size=2) + self.padding
        height, width, _ = _image("RandomCrop", img).shape
        padded = np.pad(img, ((self.padding, self.padding), (self.padding, self.padding), (0, 0)))
        return padded[down : down + height, right : right + width].copy()

    def __repr__(self) -> str:
        return f"RandomCrop(padding={self.padding})"


def _image(owner: str, img: Any) -> np.ndarray:
    if not isinstance(img, np.ndarray) or img.ndim != 3:
        given = f"shape {img.shape}" if isinstance(img, np.ndarray) else type(img).__name__
        raise ShapeError(f"{owner}: needs an array (H, W, C), given {given}")
    return img


def _transformed(transforms: Sequence[Transform], image: np.ndarray) -> np.ndarray:
    for transform in transforms:
        image = transform(image)
    return image


class MNISTDataset(Dataset):
    """Samples (image, label) of two IDX files, plain or gzip: float32 (28, 28, 1), pixels / 255, and uint8.

    images: float32 (n, 28, 28, 1). labels: uint8 (n,). An index may be a slice, which gives both arrays.
    """

    def __init__(
        self,
        image_filename: str | os.PathLike[str],
        label_filename: str | os.PathLike[str],
        transforms: Sequence[Transform] | None = None,
    ) -> None:
        """transforms: of one image (H, W, C), one after another. Raises DataError for what are no such files."""
        images, self.labels = read_idx(image_filename), read_idx(label_filename)
        if images.ndim != 3 or self.labels.ndim != 1 or len(images) != len(self.labels):
            raise DataError(
                f"MNISTDataset: images of shape {images.shape} in {image_filename}, "
                f"labels of shape {self.labels.shape} in {label_filename}"
            )
        self.images = images[..., None].astype(np.float32) / np.float32(255)
        self.transforms = list(transforms or ())

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: Any) -> tuple[np.ndarray, Any]:
        images, labels = self.images[index], self.labels[index]
        if images.ndim == 3:
            return _transformed(self.transforms, images), labels
        return np.stack([_transformed(self.transforms, image) for image in images]), labels

    def batch(self, indices: np.ndarray) -> Any:
        return self[indices]


class CIFAR10Dataset(CIFAR10):
    """`CIFAR10` with transforms of one image (H, W, C); samples are float32 (3, 32, 32) in [0, 1] and int64."""

    def __init__(
        self,
        base_folder: str | os.PathLike[str] | None,
        train: bool,
        p: float = 0.5,
        transforms: Sequence[Transform] | None = None,
    ) -> None:
        """base_folder: holds the files of the binary version, `data_batch_1.bin` and so on, not those of Python's
        pickles; None: see `CIFAR10`. `p` changes nothing. Raises DataError as `CIFAR10` does."""
        super().__init__(base_folder, train)
        self.p, self.transforms = p, list(transforms or ())

    def __getitem__(self, index: Any) -> tuple[np.ndarray, Any]:
        images, labels = super().__getitem__(index)
        if not self.transforms:
            return images, labels
        batch = images[None] if images.ndim == 3 else images
        made = [_transformed(self.transforms, image.transpose(1, 2, 0)).transpose(2, 0, 1) for image in batch]
        found = np.ascontiguousarray(np.stack(made))
        return found[0] if images.ndim == 3 else found, labels

    def batch(self, indices: np.ndarray) -> Any:
        return self[indices]


class Corpus(WordText):
    """`WordText` of a directory with train.txt and test.txt, of whose lines the first `max_lines` each are read."""

    def __init__(self, base_dir: str | os.PathLike[str] | None, max_lines: int | None = None) -> None:
        """Raises DataError as `WordText` does."""
        super().__init__(base_dir, max_lines=max_lines)


def collate_ndarray(samples: list[Any]) -> Any:
    """`default_collate`, of whose arrays tensors are made."""
    return as_tensors(default_collate(samples))


NDArrayDataset = TensorDataset
"""needle's name."""
