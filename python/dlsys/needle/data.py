"""needle's data sets, loaders and transforms; orders and transforms are drawn by `np.random`."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from ..data import CIFAR10, DataArgumentError, text
from ..data.files import read
from ..data.mnist import read_idx
from ..data.text import EOS, Dictionary, decoded
from ..errors import DataError
from .autograd import Tensor
from .pickled import read_batch

Transform = Callable[[np.ndarray], np.ndarray]


class RandomFlipHorizontal:
    """An image (H, W, C), mirrored left to right with probability p."""

    def __init__(self, p: float = 0.5) -> None:
        self.p = p

    def __call__(self, img: np.ndarray) -> np.ndarray:
        return img[:, ::-1, :] if np.random.rand() < self.p else img


class RandomCrop:
    """An image (H, W, C), moved by up to `padding` rows and columns; zeros come in."""

    def __init__(self, padding: int = 3) -> None:
        self.padding = padding

    def __call__(self, img: np.ndarray) -> np.ndarray:
        down, right = np.random.randint(low=-self.padding, high=self.padding + 1, size=2) + self.padding
        around = (self.padding, self.padding)
        return np.pad(img, (around, around, (0, 0)))[down : down + img.shape[0], right : right + img.shape[1]]


class Dataset:
    """Samples by number; a subclass defines `__getitem__` and `__len__`."""

    def __init__(self, transforms: Sequence[Transform] | None = None) -> None:
        self.transforms = transforms

    def __getitem__(self, index: Any) -> Any:
        raise NotImplementedError

    def __len__(self) -> int:
        raise NotImplementedError

    def apply_transforms(self, x: np.ndarray) -> np.ndarray:
        """x (H, W, C) through the transforms, one after another."""
        for transform in self.transforms or ():
            x = transform(x)
        return x

    def _transformed(self, images: np.ndarray) -> np.ndarray:
        """One image, or each of several, through the transforms."""
        if images.ndim == 3 or not self.transforms:
            return self.apply_transforms(images)
        return np.stack([self.apply_transforms(image) for image in images])


class NDArrayDataset(Dataset):
    """Rows of arrays of one length: a sample is the tuple of their rows."""

    def __init__(self, *arrays: Any) -> None:
        super().__init__()
        self.arrays = arrays

    def __len__(self) -> int:
        return int(self.arrays[0].shape[0])

    def __getitem__(self, index: Any) -> Any:
        return tuple(array[index] for array in self.arrays)


class MNISTDataset(Dataset):
    """Samples (image, label) of two IDX files, plain or gzip: float32 (28, 28, 1), pixels / 255, and uint8. An index
    may be a slice, which gives both arrays."""

    def __init__(self, image_filename: Any, label_filename: Any, transforms: Any = None) -> None:
        """Raises DataError for what are no such files."""
        super().__init__(transforms)
        images = read_idx(image_filename)
        self.labels: np.ndarray = read_idx(label_filename)
        if images.ndim != 3 or self.labels.ndim != 1 or len(images) != len(self.labels):
            shapes = f"images of shape {images.shape}, labels of shape {self.labels.shape}"
            raise DataError(f"MNISTDataset: {shapes} in {image_filename} and {label_filename}")
        self.images: np.ndarray = images[..., None].astype(np.float32) / np.float32(255)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: Any) -> Any:
        return self._transformed(self.images[index]), self.labels[index]


class CIFAR10Dataset(Dataset):
    """Samples (image, label): float32 (3, 32, 32), pixels / 255, and a number, from the Python version's pickles or the
    binary version's files. Transforms get (32, 32, 3)."""

    def __init__(self, base_folder: Any, train: bool, p: float = 0.5, transforms: Any = None) -> None:
        """`p` changes nothing. Raises DataError for what are no such files."""
        super().__init__(transforms)
        self.p = p
        names = [f"data_batch_{i}" for i in range(1, 6)] if train else ["test_batch"]
        paths = [Path(base_folder) / name for name in names] if base_folder is not None else []
        if paths and all(path.exists() for path in paths):
            pixels, self.y = (np.concatenate(part) for part in zip(*map(read_batch, paths), strict=True))
            self.X = pixels.reshape(-1, 3, 32, 32).astype(np.float32) / np.float32(255)
        else:
            self.X, self.y = CIFAR10(base_folder, train)[:]

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, index: Any) -> Any:
        moved = self._transformed(np.moveaxis(self.X[index], -3, -1))
        return np.moveaxis(moved, -1, -3), self.y[index]


class DataLoader:
    """Batches of a data set, tuples of tensors; with `shuffle` in another order each time."""

    def __init__(
        self, dataset: Any, batch_size: int = 1, shuffle: bool = False, device: Any = None, dtype: Any = "float32"
    ) -> None:
        self.dataset = dataset
        self.batch_size = batch_size
        self.shuffle = shuffle
        self.device = device
        self.dtype = dtype

    def __len__(self) -> int:
        return -(-len(self.dataset) // self.batch_size)

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        """The batches of one epoch, as tensors."""
        order = np.arange(len(self.dataset))
        if self.shuffle:
            np.random.shuffle(order)
        for start in range(0, len(order), self.batch_size):
            samples = (self.dataset[int(i)] for i in order[start : start + self.batch_size])
            parts = zip(*samples, strict=True)
            yield tuple(Tensor(np.stack(part), device=self.device, dtype=self.dtype) for part in parts)


class Corpus:
    """The numbers of the words of base_dir/train.txt and base_dir/test.txt, lists `train` and `test`; each line ends in
    <eos>. `dictionary` has the words."""

    def __init__(self, base_dir: str | os.PathLike[str], max_lines: int | None = None) -> None:
        """Raises DataError where a file cannot be read."""
        self.dictionary: Dictionary = Dictionary()
        self.train: list[int] = self.tokenize(Path(base_dir) / "train.txt", max_lines)
        self.test: list[int] = self.tokenize(Path(base_dir) / "test.txt", max_lines)

    def tokenize(self, path: str | os.PathLike[str], max_lines: int | None = None) -> list[int]:
        """The numbers of a file's words, of its first `max_lines` lines; new words come into the dictionary."""
        lines = islice(io.StringIO(decoded(read(Path(path)), path), newline=None), max_lines)
        return [self.dictionary.add_word(word) for line in lines for word in (*line.split(), EOS)]


def batchify(data: Sequence[int], batch_size: int, device: Any = None, dtype: Any = None) -> np.ndarray:
    """`dlsys.data.batchify`, of a dtype."""
    return text.batchify(data, batch_size).astype(dtype or "int64")


def get_batch(batches: np.ndarray, i: int, bptt: int, device: Any = None, dtype: Any = None) -> tuple[Tensor, ...]:
    """Rows i to i + bptt of a result of `batchify`, and the row after each of them, flat: (m, batch_size) and
    (m * batch_size,), m less than `bptt` at the end. Raises DataArgumentError if no row follows row i."""
    if not 0 <= i < len(batches) - 1 or bptt < 1:
        raise DataArgumentError(f"get_batch: i must be between 0 and {len(batches) - 2}, bptt >= 1, not {i}, {bptt}")
    end = min(i + bptt, len(batches) - 1)
    parts = batches[i:end], batches[i + 1 : end + 1].reshape(-1)
    return tuple(Tensor(part, device=device, dtype=dtype) for part in parts)
