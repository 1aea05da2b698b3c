"""MNIST: 60,000 + 10,000 handwritten digits of 28x28 pixels in IDX files, or scikit-learn's digits instead."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..errors import DataError
from .digits import SOURCE, augmented_digits
from .files import Collection, UnavailableError, load, read

FILES = Collection(
    name="mnist",
    files={
        "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
        "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
        "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
        "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
    },
    mirrors=(
        "https://ossci-datasets.s3.amazonaws.com/mnist/{}.gz",
        "https://storage.googleapis.com/cvdf-datasets/mnist/{}.gz",
    ),
)
CLASSES = 10


@dataclass(frozen=True, repr=False, eq=False)
class MNIST:
    """Images: float32, (n, 784), pixels / 256, in [0, 1). Labels: int64, (n,), 0 to 9."""

    train_images: np.ndarray
    train_labels: np.ndarray
    valid_images: np.ndarray
    valid_labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray
    source: str

    def __repr__(self) -> str:
        sizes = " / ".join(str(len(x)) for x in (self.train_labels, self.valid_labels, self.test_labels))
        return f"MNIST({sizes} images, source={self.source!r})"


def mnist(directory: str | os.PathLike[str] | None = None) -> MNIST:
    """MNIST, with the last sixth of its training images (10,000 of 60,000) for validation.

    The files are looked for in `directory`, or by default in `DLSYS_DATA`, then in the cache, then at the mirrors. If
    they cannot be found, scikit-learn's digits are used instead, and one printed line says so.

    Raises DataError if the directory lacks a file, or a file there is damaged or does not fit the others.
    """
    try:
        content, source = load(FILES, directory)
    except UnavailableError as error:
        print(f"MNIST is not available ({error}): using scikit-learn's digits, augmented to its shape.", flush=True)
        return stand_in()
    images, labels = labelled(content, "train", source)
    split = len(labels) - len(labels) // 6
    test = labelled(content, "t10k", source)
    return MNIST(images[:split], labels[:split], images[split:], labels[split:], *test, source)


def labelled(content: dict[str, bytes], part: str, source: str) -> tuple[np.ndarray, np.ndarray]:
    """Images, float32 (n, 784), and labels, int64 (n,), of one part. Raises DataError if they do not fit."""
    image_file, label_file = f"{part}-images-idx3-ubyte", f"{part}-labels-idx1-ubyte"
    images = parse_idx(content[image_file], os.path.join(source, image_file))
    labels = parse_idx(content[label_file], os.path.join(source, label_file))
    if images.shape != (*labels.shape, 28, 28):
        raise DataError(f"{image_file} of shape {images.shape}, {label_file} of {labels.shape} (in {source})")
    return scaled(images), as_labels(labels, f"{label_file} in {source}")


def as_labels(stored: np.ndarray, origin: object) -> np.ndarray:
    """The labels as int64. Raises DataError for one that is not 0 to 9."""
    for wrong in np.flatnonzero(stored >= CLASSES)[:1]:
        raise DataError(f"{origin} holds the label {stored[wrong]} in record {wrong}, expected 0 to 9")
    return stored.astype(np.int64)


def read_idx(path: str | os.PathLike[str]) -> np.ndarray:
    """The array in an IDX file of unsigned bytes, plain or gzip. Raises DataError as `parse_idx` does."""
    return parse_idx(read(Path(path)), path)


def parse_idx(content: bytes, origin: object) -> np.ndarray:
    """The uint8 array in `content`: bytes 0, 0, 8, the number of axes, their extents of four bytes each, the elements.

    It is read-only, as it shares the memory of `content`. Raises DataError, naming `origin`, for other first bytes, a
    content longer or shorter than the header says, and a shape that no array can have."""
    if len(content) < 4 or content[:3] != b"\0\0\x08":
        raise DataError(f"{origin} is no IDX file of bytes: magic number 0x{content[:4].hex()}, expected 0x000008NN")
    header = 4 + 4 * content[3]
    shape = tuple(int.from_bytes(content[i : i + 4], "big") for i in range(4, header, 4))
    if len(content) != header + math.prod(shape):
        raise DataError(f"{origin} has {len(content)} bytes, but its header of {header} says {shape}")
    try:
        return np.frombuffer(content, np.uint8, offset=header).reshape(shape)
    except ValueError as error:  # more axes than NumPy has, or huge extents beside a 0
        raise DataError(f"{origin}: the header says {len(shape)} dimensions, {shape}: {error}") from None


def stand_in() -> MNIST:
    """scikit-learn's digits as 50,000 / 10,000 / 10,000 images in MNIST's form."""
    train, valid, test = ((scaled(images), labels) for images, labels in augmented_digits((50_000, 10_000, 10_000)))
    return MNIST(*train, *valid, *test, SOURCE)


def scaled(images: np.ndarray) -> np.ndarray:
    """uint8 (n, 28, 28) -> float32 (n, 784), pixels / 256: exact, as 256 is a power of two."""
    return images.reshape(len(images), -1).astype(np.float32) / np.float32(256)


def one_hot(labels: np.ndarray, classes: int = CLASSES, dtype: str = "float32") -> np.ndarray:
    """Zeros of shape (..., classes) with a one at each label's place, for integers of shape (...). Raises DataError for
    a label outside 0 to classes - 1."""
    labels = np.asarray(labels)
    if labels.size and not 0 <= labels.min() <= labels.max() < classes:
        raise DataError(f"one_hot: labels from {labels.min()} to {labels.max()}, expected 0 to {classes - 1}")
    return np.eye(classes, dtype=dtype)[labels]
