"""CIFAR-10 and MNIST: their files, the archive at a mirror, the digits that stand in for both."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import sys
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dlsys.data import CIFAR10, DataLoader, cifar10, digits, mnist, one_hot
from dlsys.errors import DataError
from helpers import error_of
from mirrors import listing, server, write

FOLDER, ARCHIVE = "cifar-10-batches-bin", "cifar-10-binary.tar.gz"
RNG = np.random.default_rng(0)


def records(count: int, first: int) -> bytes:
    """Drawn records whose labels count up."""
    raw = RNG.integers(0, 256, (count, 3073), dtype=np.uint8)
    raw[:, 0] = (np.arange(count) + first) % 10
    return raw.tobytes()


CIFAR = {name: records(4 + number, number) for number, name in enumerate(cifar10.FILES.files)}


def publish(monkeypatch: pytest.MonkeyPatch, module: Any, content: dict[str, bytes], *mirrors: str) -> None:
    """Let the data set of a module have these files, at mirrors."""
    sums = {name: hashlib.md5(value).hexdigest() for name, value in content.items()}
    monkeypatch.setattr(module, "FILES", replace(module.FILES, files=sums, mirrors=mirrors))


def test_images_and_labels_of_the_records(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(folder / FOLDER, CIFAR)
    train = CIFAR10(folder)
    assert capsys.readouterr().out == f"CIFAR-10: 30 of 50,000 images ({folder}/{FOLDER})\n"
    assert len(train) == 4 + 5 + 6 + 7 + 8 and len(CIFAR10(folder / FOLDER, train=False)) == 9
    raw = np.frombuffer(CIFAR["data_batch_2.bin"], np.uint8).reshape(-1, 3073)
    assert train.labels.dtype == np.int64 and train.labels[4:9].tolist() == raw[:, 0].tolist()
    image, label = train[5]
    assert image.dtype == np.float32 and label == raw[1, 0]
    assert np.array_equal(image, raw[1, 1:].reshape(3, 32, 32).astype(np.float32) / 255)
    assert train.classes[0] == "airplane" and train.classes[9] == "truck" and len(train.classes) == 10
    x, y = next(iter(DataLoader(train, 8)))
    assert (x.dtype, y.dtype) == ("float32", "int64") and np.array_equal(x, train[:8][0])
    assert y.tolist() == [0, 1, 2, 3, 1, 2, 3, 4]


def test_a_directory_may_have_fewer_and_packed_files(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(folder, {"data_batch_3.bin.gz": gzip.compress(CIFAR["data_batch_3.bin"])})
    assert len(CIFAR10(folder)) == 6 and f"CIFAR-10: 6 of 50,000 images ({folder})" in capsys.readouterr().out
    assert "lacks test_batch.bin" in error_of(DataError, CIFAR10, folder, train=False)
    os.environ["DLSYS_DATA"] = str(folder)
    assert len(CIFAR10()) == 6 and "DLSYS_DATA" in error_of(DataError, CIFAR10, train=False)


def test_an_archive_is_fetched_once_and_kept_as_single_files(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, value in {**CIFAR, "../evil.txt": b"outside", "readme.html": b"hello"}.items():
            member = tarfile.TarInfo(f"{FOLDER}/{name}")
            member.size = len(value)
            archive.addfile(member, io.BytesIO(value))
    cache = folder / "cache" / "data" / FOLDER
    with server({ARCHIVE: buffer.getvalue()}) as (url, asked):
        publish(monkeypatch, cifar10, CIFAR, url + ARCHIVE)
        train = CIFAR10()
        assert len(train) == 30 and train.source == f"downloaded to {cache}"
        assert CIFAR10(train=False).source == str(cache)
        assert asked == [f"/{ARCHIVE}"] and listing(folder) == sorted(CIFAR)  # nothing else of the archive, nowhere
        (cache / "data_batch_4.bin").write_bytes(b"damaged")
        with pytest.warns(RuntimeWarning, match=r"data_batch_4\.bin is damaged"):
            assert np.array_equal(CIFAR10().pixels, train.pixels) and len(asked) == 2


@pytest.mark.slow
def test_digits_stand_in_for_cifar(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.environ["DLSYS_OFFLINE"] = "1"
    train, test, again = CIFAR10(), CIFAR10(train=False), CIFAR10(train=False)
    assert "CIFAR-10 is not available (DLSYS_OFFLINE is set): using" in capsys.readouterr().out.splitlines()[0]
    assert len(train) == 5_000 and len(test) == 1_000 and train.classes == tuple("0123456789")
    images, _ = test[:]
    assert images.shape == (1_000, 3, 32, 32) and images.dtype == np.float32 and (images.min(), images.max()) == (0, 1)
    assert 0.07 < images[:, :, 2:-2, 2:-2].mean() < 0.15 and np.array_equal(images[:, 0], images[:, 2])
    assert np.array_equal(test.pixels, again.pixels) and np.array_equal(test.labels, again.labels)
    assert (np.bincount(train.labels, minlength=10) > 300).all()


def idx(array: np.ndarray) -> bytes:
    return bytes((0, 0, 8, array.ndim)) + np.array(array.shape, ">u4").tobytes() + array.tobytes()


def test_mnist_of_idx_files(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = {part: RNG.integers(0, 256, (count, 28, 28), np.uint8) for part, count in (("train", 60), ("t10k", 10))}
    content = {f"{part}-images-idx3-ubyte": idx(array) for part, array in images.items()}
    content |= {f"{part}-labels-idx1-ubyte": idx(np.arange(len(x), dtype=np.uint8) % 10) for part, x in images.items()}
    write(folder / "mnist", content)
    message = error_of(DataError, mnist, folder)  # not MNIST itself
    assert "train-images-idx3-ubyte" in message and "6bbc9ace898e44ae57da46a324031adb" in message
    module = sys.modules["dlsys.data.mnist"]  # `dlsys.data.mnist` is the function
    publish(monkeypatch, module, content)
    data = mnist(folder)
    pixels = np.concatenate([data.train_images, data.valid_images]) * 256
    assert np.array_equal(pixels, images["train"].reshape(60, 784)) and data.train_images.dtype == np.float32
    assert np.array_equal(data.train_labels, np.arange(50) % 10) and data.train_labels.dtype == np.int64
    assert data.valid_images.shape == data.test_images.shape == (10, 784) and data.test_labels.shape == (10,)
    assert repr(data) == f"MNIST(50 / 10 / 10 images, source='{folder}/mnist')"
    labels = "train-labels-idx1-ubyte"
    for wrong, words in ((np.arange(59) % 10, "of (59,)"), (np.arange(60) % 11, "the label 10 in record 10")):
        publish(monkeypatch, module, content | {labels: idx(wrong.astype(np.uint8))})
        write(folder / "mnist", {labels: idx(wrong.astype(np.uint8))})
        assert words in error_of(DataError, mnist, folder)
    assert one_hot(np.array([[1], [0]]), 3).tolist() == [[[0, 1, 0]], [[1, 0, 0]]]
    assert "labels from -1 to 2" in error_of(DataError, one_hot, np.array([-1, 2]), 3)


@pytest.mark.slow
def test_digits_stand_in_for_mnist(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.environ["DLSYS_OFFLINE"] = "1"
    data = mnist()
    assert "MNIST is not available (DLSYS_OFFLINE is set): using scikit-learn" in capsys.readouterr().out
    assert listing(folder) == []
    for part, count in (("train", 50_000), ("valid", 10_000), ("test", 10_000)):
        images, labels = getattr(data, f"{part}_images"), getattr(data, f"{part}_labels")
        assert images.shape == (count, 784) and images.dtype == np.float32 and labels.dtype == np.int64
        assert images.min() == 0 and images.max() == np.float32(255 / 256)
        assert np.bincount(labels, minlength=10).min() > count / 20  # every digit is there
    assert 0.07 < data.train_images.mean() < 0.15  # in brightness like MNIST, whose mean is 0.130


def test_digits_are_split_before_they_are_augmented(monkeypatch: pytest.MonkeyPatch) -> None:
    """No digit is in two parts: with variants that change nothing, no image is."""
    monkeypatch.setattr(digits, "variants", lambda: np.stack([np.eye(64, 784)] * 3))
    parts = [{image.tobytes() for image in images} for images, _ in digits.augmented_digits((2400, 600, 600))]
    assert [len(part) > count for part, count in zip(parts, (1000, 250, 250), strict=True)] == [True] * 3
    assert len(set.union(*parts)) == sum(map(len, parts))
    assert "digits in 3 variants give no 7000 images" in error_of(DataError, digits.augmented_digits, [7000])
