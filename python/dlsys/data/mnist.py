"""MNIST: 60,000 + 10,000 handwritten digits of 28x28 pixels in IDX files, or scikit-learn's digits instead."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..errors import DataError, DTypeError
from .digits import SOURCE, augmented_digits
from .files import Collection, UnavailableError, load, read

UNSIGNED_BYTE = 0x08


def read_idx(path: str | os.PathLike[str]) -> np.ndarray:
    """The array in an IDX file of unsigned bytes, plain or gzip. Raises DataError as `parse_idx` does."""

    def stated(head: bytes) -> int:
        shape = _shape(head, path, None)
        return _header(len(shape)) + math.prod(shape)

    return parse_idx(read(Path(path), stated), path)


def parse_idx(content: bytes, origin: object, rank: int | None = None) -> np.ndarray:
    """The uint8 array in `content`, of the shape that the header states; read-only, as it shares the memory of
    `content`. Raises DataError, naming `origin`, for another magic number or, with `rank`, another number of
    dimensions, for a content longer or shorter than the header says, and for a shape that no array can have."""
    shape = _shape(content, origin, rank)
    if (size := len(content) - _header(len(shape))) != math.prod(shape):
        raise DataError(f"{origin}: the header says {shape}, {math.prod(shape)} bytes, but {size} follow")
    try:
        return np.frombuffer(content, np.uint8, offset=len(content) - size).reshape(shape)
    except ValueError as error:  # more axes than NumPy has, or huge extents beside a 0
        raise DataError(f"{origin}: the header says {len(shape)} dimensions, {shape}: {error}") from None


def _header(dimensions: int) -> int:
    """The bytes of a header."""
    return 4 + 4 * dimensions


def _shape(content: bytes, origin: object, rank: int | None) -> tuple[int, ...]:
    """The shape that the header states. Raises DataError."""
    if len(content) < 4:
        raise DataError(f"{origin} is no IDX file: it has {len(content)} bytes")
    expected = f"0x{UNSIGNED_BYTE:06x}{rank:02x}" if rank is not None else f"0x{UNSIGNED_BYTE:06x}NN"
    if content[:3] != bytes((0, 0, UNSIGNED_BYTE)) or (rank is not None and content[3] != rank):
        raise DataError(f"{origin}: magic number 0x{content[:4].hex()}, expected {expected}")
    header = _header(content[3])
    if len(content) < header:
        raise DataError(f"{origin} ends within its header, after {len(content)} of {header} bytes")
    return tuple(int.from_bytes(content[i : i + 4], "big") for i in range(4, header, 4))


FILES = Collection(
    name="mnist",
    files={
        "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
        "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
        "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
        "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
    },
    mirrors=(
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "https://storage.googleapis.com/cvdf-datasets/mnist/",
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
    images = parse_idx(content[image_file], os.path.join(source, image_file), rank=3)
    labels = parse_idx(content[label_file], os.path.join(source, label_file), rank=1)
    if images.shape[1:] != (28, 28):
        raise DataError(f"{image_file} in {source} holds images of {images.shape[1:]}, expected (28, 28)")
    if len(images) != len(labels):
        raise DataError(f"{len(images)} images in {image_file}, {len(labels)} labels in {label_file} (in {source})")
    if labels.size and labels.max() >= CLASSES:
        raise DataError(f"{label_file} in {source} holds the label {labels.max()}, expected 0 to 9")
    return scaled(images), labels.astype(np.int64)


def stand_in() -> MNIST:
    """scikit-learn's digits as 50,000 / 10,000 / 10,000 images in MNIST's form."""
    parts = augmented_digits((50_000, 10_000, 10_000))
    train, valid, test = ((scaled(images), labels) for images, labels in parts)
    return MNIST(*train, *valid, *test, SOURCE)


def scaled(images: np.ndarray) -> np.ndarray:
    """uint8 (n, 28, 28) -> float32 (n, 784), pixels / 256: exact, as 256 is a power of two."""
    return images.reshape(len(images), -1).astype(np.float32) / np.float32(256)


def one_hot(labels: np.ndarray, classes: int = CLASSES, dtype: str = "float32") -> np.ndarray:
    """Zeros of shape (..., classes) with a one at each label's place, for labels of shape (...). Raises DTypeError for
    labels that are no integers, DataError for one outside 0 to classes - 1."""
    labels = np.asarray(labels)
    if not np.issubdtype(labels.dtype, np.integer):
        raise DTypeError(f"one_hot: labels are integers, given {labels.dtype}")
    if labels.size and not 0 <= labels.min() <= labels.max() < classes:
        raise DataError(f"one_hot: labels from {labels.min()} to {labels.max()}, expected 0 to {classes - 1}")
    return (labels[..., None] == np.arange(classes)).astype(dtype)
