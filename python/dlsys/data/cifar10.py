"""CIFAR-10: 50,000 + 10,000 colour images of 32x32 in 10 classes, in the binary format, not the pickles.

A file is a sequence of records of 3,073 bytes: the label, then the red, green and blue plane of 1,024 pixels each
(A. Krizhevsky: Learning Multiple Layers of Features from Tiny Images, 2009; https://www.cs.toronto.edu/~kriz/).
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from ..errors import DataError
from .dataset import Dataset
from .digits import SOURCE, augmented_digits
from .files import Collection, UnavailableError, load
from .mnist import as_labels

RECORD = 1 + 3 * 32 * 32
PER_FILE = 10_000
FILES = Collection(
    name="cifar-10-batches-bin",
    files={
        "data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
        "data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
        "data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
        "data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
        "data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
        "test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d",
    },
    mirrors=("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",),
    whole=PER_FILE * RECORD,
)
TEST = "test_batch.bin"
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
STAND_IN = (5_000, 1_000)
"""Numbers of training and test images if the digits stand in for CIFAR-10."""


class CIFAR10(Dataset):
    """Samples (image, label): float32 (3, 32, 32) in [0, 1], and int64, 0 to 9, whose name is `classes[label]`.

    The files are looked for in `root`, or by default in `DLSYS_DATA`, then in the cache, then at the mirror. A
    directory may have only some of the five training files, and shorter files; one printed line then says how many
    images there are. If the data cannot be found, scikit-learn's digits in grey are used instead (`classes` are then
    the digits), and one printed line says so.

    Attributes:
        pixels: uint8 (n, 3, 32, 32), as stored.
        labels: int64 (n,).
        source: where the images came from, as text.

    Raises DataError if the directory has no file for this part, or a file is damaged.
    """

    def __init__(self, root: str | os.PathLike[str] | None = None, train: bool = True) -> None:
        self.train: bool = bool(train)
        names = [name for name in FILES.files if (name != TEST) == self.train]
        self.classes: tuple[str, ...] = CLASSES
        self.pixels: np.ndarray
        self.labels: np.ndarray
        try:
            content, self.source = load(FILES, root, names)
        except UnavailableError as error:
            print(f"CIFAR-10 is not available ({error}): using scikit-learn's digits.", flush=True)
            self.classes, self.source = tuple("0123456789"), SOURCE
            self.pixels, self.labels = stand_in(self.train)
            return
        parts = [parse_records(records, f"{name} in {self.source}") for name, records in content.items()]
        self.pixels, self.labels = (np.concatenate(part) for part in zip(*parts, strict=True))
        if len(self) < (full := len(names) * PER_FILE):
            print(f"CIFAR-10: {len(self):,} of {full:,} images ({self.source})", flush=True)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: Any) -> tuple[np.ndarray, Any]:
        return scaled(self.pixels[index]), self.labels[index]

    batch = __getitem__  # which accepts an array of indices, too

    def __repr__(self) -> str:
        return f"CIFAR10({len(self)} images, train={self.train}, source={self.source!r})"


def scaled(pixels: np.ndarray) -> np.ndarray:
    """uint8 pixels / 255, as float32 in [0, 1], as torchvision's ToTensor."""
    return pixels.astype(np.float32) / np.float32(255)


def parse_records(content: bytes, origin: object) -> tuple[np.ndarray, np.ndarray]:
    """Pixels, uint8 (n, 3, 32, 32), and labels, int64 (n,), of the records of one file. Raises DataError for a content
    that is no sequence of records."""
    if not content or len(content) % RECORD:
        raise DataError(f"{origin} is no CIFAR-10 file: {len(content)} bytes are no multiple of {RECORD}, its record")
    records = np.frombuffer(content, np.uint8).reshape(-1, RECORD)
    return records[:, 1:].reshape(-1, 3, 32, 32), as_labels(records[:, 0], origin)


def stand_in(train: bool) -> tuple[np.ndarray, np.ndarray]:
    """Pixels and labels of scikit-learn's digits in CIFAR-10's shape: grey, with three equal planes."""
    images, labels = augmented_digits(STAND_IN)[0 if train else 1]
    return np.repeat(np.pad(images, ((0, 0), (2, 2), (2, 2)))[:, None], 3, axis=1), labels
