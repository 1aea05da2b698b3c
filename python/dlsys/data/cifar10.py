"""CIFAR-10: 50,000 + 10,000 colour images of 32x32 in 10 classes, in the binary format; never a pickle.

A file is a row of records of 3,073 bytes: the label, then the red, green and blue plane of 1,024 pixels each
(A. Krizhevsky: Learning Multiple Layers of Features from Tiny Images, 2009; https://www.cs.toronto.edu/~kriz/).
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from ..errors import DataError
from ..system import lazy
from .dataset import Dataset
from .digits import augmented_digits
from .files import Collection, UnavailableError, load

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
    mirrors=("https://www.cs.toronto.edu/~kriz/",),
    suffix="",
    archive="cifar-10-binary.tar.gz",
    whole=PER_FILE * RECORD,
)
TEST = "test_batch.bin"
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
DIGITS = tuple("0123456789")
STAND_IN = (5_000, 1_000)
"""Images for training and for testing in the embedded default."""


class CIFAR10(Dataset):
    """Samples (image, label): float32 (3, 32, 32) in [0, 1], and int64, 0 to 9, whose name is `classes[label]`.

    Looked for in `root` or else ``DLSYS_DATA``, then in the cache, then at the mirror. A directory may hold some of the
    five training files only, and shorter files, which one printed line says. If nobody has the data, scikit-learn's
    digits, coloured, take its place (`classes` are the digits then), which one printed line says.

    pixels: uint8 (n, 3, 32, 32), as stored. images: float32, the same / 255, made at first use.
    labels: int64 (n,). source, description: where the images came from, and how many, in words.

    Raises DataError if the directory has no file for this part, or a file is damaged.
    """

    def __init__(self, root: str | os.PathLike[str] | None = None, train: bool = True) -> None:
        self.train: bool = bool(train)
        names = [name for name in FILES.files if (name != TEST) == self.train]
        kind, full = ("training", 5 * PER_FILE) if self.train else ("test", PER_FILE)
        try:
            content, self.source = load(FILES, root, names)
        except UnavailableError as error:
            print(f"No CIFAR-10 at hand ({error}): using scikit-learn's digits in colour.", flush=True)
            self.pixels, self.labels = stand_in(self.train)
            self.classes, self.source = DIGITS, "scikit-learn's digits in colour"
            self.description = f"{len(self.labels):,} {kind} images: {self.source}"
            return
        parts = [parse_records(records, f"{name} in {self.source}") for name, records in content.items()]
        self.pixels, self.labels = (np.concatenate(part) for part in zip(*parts, strict=True))
        self.classes = CLASSES
        found = f"{len(self.labels):,} of {full:,}" if len(self.labels) < full else f"{full:,}"
        missing = [name for name in names if name not in content]
        lacking = f" without {', '.join(missing)}" if missing else ""
        self.description = f"CIFAR-10: {found} {kind} images{lacking} ({self.source})"
        if len(self.labels) < full:
            print(self.description, flush=True)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: Any) -> tuple[np.ndarray, Any]:
        return scaled(self.pixels[index]), self.labels[index]

    batch = __getitem__  # which takes many numbers as well as one

    @lazy
    def images(self) -> np.ndarray:
        """float32 (n, 3, 32, 32) in [0, 1]: all images; 600 MB for the whole training part."""
        return scaled(self.pixels)

    def __repr__(self) -> str:
        return f"CIFAR10({len(self)} images, train={self.train}, source={self.source!r})"


def scaled(pixels: np.ndarray) -> np.ndarray:
    """uint8 -> float32 in [0, 1], / 255 as torchvision's ToTensor."""
    return pixels.astype(np.float32) / np.float32(255)


def parse_records(content: bytes, origin: object) -> tuple[np.ndarray, np.ndarray]:
    """uint8 (n, 3, 32, 32) and int64 (n,) from the records of one file. Raises DataError for what is no row of them."""
    if not content or len(content) % RECORD:
        raise DataError(f"{origin} is no CIFAR-10 file: {len(content)} bytes are no multiple of {RECORD}, its record")
    records = np.frombuffer(content, np.uint8).reshape(-1, RECORD)
    labels = records[:, 0].astype(np.int64)
    if labels.max() >= len(CLASSES):
        first = int(np.argmax(labels >= len(CLASSES)))
        raise DataError(f"{origin} holds the label {labels[first]} in record {first}, expected 0 to 9")
    return records[:, 1:].reshape(-1, 3, 32, 32), labels


def stand_in(train: bool) -> tuple[np.ndarray, np.ndarray]:
    """scikit-learn's digits in CIFAR-10's form: each in a bright colour on a dark one, the same every time."""
    images, labels = augmented_digits(STAND_IN)[0 if train else 1]
    rng = np.random.default_rng(0 if train else 1)
    ink = np.pad(images, ((0, 0), (2, 2), (2, 2)))[:, None].astype(np.float32) / np.float32(255)
    bright = rng.uniform(128, 256, (len(labels), 3, 1, 1)).astype(np.float32)
    dark = rng.uniform(0, 96, (len(labels), 3, 1, 1)).astype(np.float32)
    return (dark + (bright - dark) * ink).astype(np.uint8), labels
