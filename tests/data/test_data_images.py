"""CIFAR-10 and MNIST: their files, the archive at a mirror, the embedded default."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import os
import struct
import sys
import tarfile
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from dlsys.data import CIFAR10, DataLoader, cifar10, mnist, parse_idx
from dlsys.data.digits import augmented_digits, variants
from dlsys.errors import DataError
from helpers import error_of
from mirrors import listing, quiet, sandbox, server, write

FOLDER, ARCHIVE = "cifar-10-batches-bin", "cifar-10-binary.tar.gz"


def records(count: int, seed: int = 0) -> bytes:
    """Drawn records whose labels count up."""
    raw = np.random.default_rng(seed).integers(0, 256, (count, 3073), dtype=np.uint8)
    raw[:, 0] = (np.arange(count) + seed) % 10
    return raw.tobytes()


def small() -> dict[str, bytes]:
    return {name: records(4 + number, number) for number, name in enumerate(cifar10.FILES.files)}


def tar(content: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, value in {**content, "../evil.txt": b"outside", "readme.html": b"hello"}.items():
            member = tarfile.TarInfo(f"{FOLDER}/{name}")
            member.size = len(value)
            archive.addfile(member, io.BytesIO(value))
    return buffer.getvalue()


@contextlib.contextmanager
def published(module: Any, content: dict[str, bytes], *mirrors: str) -> Iterator[None]:
    """The data set of `cifar10` or `data_mnist` as if these were its files, at mirrors."""
    sums = {name: hashlib.md5(value).hexdigest() for name, value in content.items()}
    files = replace(module.FILES, files=sums, mirrors=mirrors or module.FILES.mirrors)
    with mock.patch.object(module, "FILES", files):
        yield


def test_images_and_labels_of_the_records(folder: Path):
    content = small()
    write(folder / FOLDER, content)
    train, printed = quiet(CIFAR10, folder)
    test, _ = quiet(CIFAR10, folder / FOLDER, train=False)
    assert len(train) == 4 + 5 + 6 + 7 + 8 and len(test) == 9
    raw = np.frombuffer(content["data_batch_2.bin"], np.uint8).reshape(-1, 3073)
    assert train.labels.dtype == np.int64 and train.labels[4:9].tolist() == raw[:, 0].tolist()
    assert train.images.shape == (30, 3, 32, 32) and train.images.dtype == np.float32
    assert np.array_equal(train.images[5], raw[1, 1:].reshape(3, 32, 32).astype(np.float32) / 255)
    image, label = train[5]
    assert np.array_equal(image, train.images[5]) and label == train.labels[5]
    assert train.classes[0] == "airplane" and train.classes[9] == "truck" and len(train.classes) == 10
    x, y = next(iter(DataLoader(train, 8, shuffle=True)))
    assert x.shape == (8, 3, 32, 32) and (x.dtype, y.dtype) == ("float32", "int64")
    index = [int(np.flatnonzero((train.images == one).all((1, 2, 3)))[0]) for one in x]
    assert train.labels[index].tolist() == y.tolist()
    assert printed.count("\n") == 1 and "30 of 50,000 training images" in printed


def test_a_directory_may_hold_fewer_and_packed_files(folder: Path):
    content = small()
    name = "data_batch_3.bin"
    write(folder, {f"{name}.gz": gzip.compress(content[name])})
    train, printed = quiet(CIFAR10, folder)
    assert len(train) == 6 and train.description in printed and str(folder) in train.source
    assert "without data_batch_1.bin, data_batch_2.bin, data_batch_4.bin" in train.description
    message = error_of(DataError, CIFAR10, folder, train=False)
    assert "lacks test_batch.bin" in message and FOLDER in message
    assert "not a directory" in error_of(DataError, CIFAR10, folder / "nowhere")
    os.environ["DLSYS_DATA"] = str(folder)
    assert len(quiet(CIFAR10)[0]) == 6
    assert "DLSYS_DATA" in error_of(DataError, CIFAR10, train=False)


# Mirrors ---------------------------------------------------------------------------------------------------


def test_archive_is_fetched_once_and_kept_as_single_files(folder: Path):
    content = small()
    archive = tar(content)
    with server({ARCHIVE: archive}) as (url, asked), published(cifar10, content, url):
        train, _ = quiet(CIFAR10)
        test, _ = quiet(CIFAR10, train=False)
        assert len(train) == 30 and len(test) == 9 and "downloaded" in train.source
        assert asked == [f"/mirror/{ARCHIVE}"]
        assert listing(folder) == sorted(content)  # nothing else of the archive, nowhere
        cache = folder / "cache" / "data" / FOLDER
        assert str(cache) == test.source
        (cache / "data_batch_4.bin").write_bytes(b"damaged")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            again, _ = quiet(CIFAR10)
        assert np.array_equal(again.pixels, train.pixels) and len(asked) == 2
        assert len(caught) == 1 and "data_batch_4.bin is damaged" in str(caught[0].message)


# The embedded default --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_coloured_digits_without_network():
    with sandbox(DLSYS_OFFLINE="1"):
        train, printed = quiet(CIFAR10)
        test, _ = quiet(CIFAR10, train=False)
        again, _ = quiet(CIFAR10, train=False)
    assert printed.count("\n") == 1 and "DLSYS_OFFLINE" in printed and "digits" in printed
    assert len(train) == 5_000 and len(test) == 1_000 and train.classes == tuple("0123456789")
    assert test.images.shape == (1_000, 3, 32, 32) and test.images.dtype == np.float32
    assert 0 <= test.images.min() < 0.2 and 0.8 < test.images.max() <= 1
    assert np.array_equal(test.pixels, again.pixels) and np.array_equal(test.labels, again.labels)
    assert (np.bincount(train.labels, minlength=10) > 300).all()


data_mnist = sys.modules["dlsys.data.mnist"]  # the module: `dlsys.data.mnist` is the function


def idx(array: np.ndarray) -> bytes:
    return bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def small_mnist(train: int = 60, test: int = 10) -> dict[str, bytes]:
    """IDX files of drawn pixels under MNIST's names."""
    rng = np.random.default_rng(0)
    content: dict[str, bytes] = {}
    for part, count in (("train", train), ("t10k", test)):
        images = rng.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        labels = (np.arange(count) % 10).astype(np.uint8)
        content |= {f"{part}-images-idx3-ubyte": idx(images), f"{part}-labels-idx1-ubyte": idx(labels)}
    return content


# IDX and MNIST ---------------------------------------------------------------------------------------------


def test_mnist_from_idx_files(folder: Path):
    content = small_mnist()
    write(folder / "mnist", content)
    with published(data_mnist, content):
        data = mnist(folder)
    images = parse_idx(content["train-images-idx3-ubyte"], "").reshape(60, 784)
    assert np.array_equal(np.concatenate([data.train_images, data.valid_images]) * 256, images)
    assert data.train_images.shape == (50, 784) and data.valid_images.shape == (10, 784)
    assert data.train_images.dtype == np.float32 and data.train_images.flags.c_contiguous
    assert np.array_equal(data.train_labels, np.arange(50) % 10) and data.train_labels.dtype == np.int64
    assert data.test_images.shape == (10, 784) and data.test_labels.shape == (10,)
    assert data.source == str(folder / "mnist")
    assert repr(data).startswith("MNIST(50 / 10 / 10 images")
    message = error_of(DataError, mnist, folder)  # not MNIST itself
    assert "train-images-idx3-ubyte" in message and "6bbc9ace898e44ae57da46a324031adb" in message


# The embedded default --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_without_mnist_the_digits_are_used_and_one_line_says_so():
    with sandbox(DLSYS_OFFLINE="1") as folder:
        data, printed = quiet(mnist)
        assert printed.count("\n") == 1 and "scikit-learn" in printed and "DLSYS_OFFLINE is set" in printed
        assert listing(folder) == []
    for images, labels, count in (
        (data.train_images, data.train_labels, 50_000),
        (data.valid_images, data.valid_labels, 10_000),
        (data.test_images, data.test_labels, 10_000),
    ):
        assert images.shape == (count, 784) and images.dtype == np.float32
        assert labels.shape == (count,) and labels.dtype == np.int64
        assert images.min() == 0 and images.max() == np.float32(255 / 256)
        assert np.bincount(labels, minlength=10).min() > count / 20  # every digit is there
    # in brightness like MNIST, whose mean is 0.130
    assert 0.07 < data.train_images.mean() < 0.15


@pytest.mark.slow
def test_digits_are_split_before_they_are_augmented():
    """Each image's source, the digit of which some variant comes closest, belongs to one part only."""
    from sklearn.datasets import load_digits

    pixels = load_digits().data.astype(np.float32)
    parts = augmented_digits((240, 60, 60), seed=5)
    images = np.concatenate([part[:20] for part, _ in parts]).reshape(60, 784).astype(np.float32) / 255
    nearest, source = np.full(60, np.inf), np.zeros(60, int)
    for matrix in variants():
        candidates = (pixels @ matrix / 8 - 1).clip(0, 1)
        # |c - i|^2 without |i|^2, which is the same for all candidates of an image
        distances = np.square(candidates).sum(axis=1)[:, None] - 2 * candidates @ images.T
        closer = distances.min(axis=0) < nearest
        source[closer] = distances.argmin(axis=0)[closer]
        nearest = np.minimum(nearest, distances.min(axis=0))
    assert np.allclose(nearest + np.square(images).sum(axis=1), 0, atol=0.05)  # it is that digit, to rounding
    train, valid, test = (set(source[i : i + 20]) for i in (0, 20, 40))
    assert not (train & valid or train & test or valid & test)
