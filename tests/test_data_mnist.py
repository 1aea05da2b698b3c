"""MNIST: IDX files, the data set itself, the embedded default."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import struct
import sys
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from dlsys.data import MNIST, mnist, one_hot, parse_idx, read_idx
from dlsys.data.digits import augmented_digits, variants
from dlsys.errors import DataError, DTypeError
from helpers import error_of
from test_data import listing, sandbox, write

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


@contextlib.contextmanager
def published(content: dict[str, bytes]) -> Iterator[None]:
    """MNIST as if these were its files."""
    before = data_mnist.FILES
    sums = {name: hashlib.md5(value).hexdigest() for name, value in content.items()}
    data_mnist.FILES = replace(before, files=sums)
    try:
        yield
    finally:
        data_mnist.FILES = before


def quiet_mnist(*args: object, **kwargs: object) -> tuple[MNIST, str]:
    """What `mnist` returns and what it prints."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        data = mnist(*args, **kwargs)  # type: ignore[arg-type]
    return data, out.getvalue()


# IDX and MNIST ---------------------------------------------------------------------------------------------


def test_idx_reads_what_was_written():
    rng = np.random.default_rng(1)
    with sandbox() as folder:
        for shape in ((5,), (3, 28, 28), (0, 4), (2, 1, 3, 1)):
            array = rng.integers(0, 256, shape, dtype=np.uint8)
            for name, raw in (("plain", idx(array)), ("packed.gz", gzip.compress(idx(array)))):
                (folder / name).write_bytes(raw)
                read = read_idx(folder / name)
                assert read.dtype == np.uint8 and np.array_equal(read, array) and read.shape == shape
        assert "cannot be read" in error_of(DataError, read_idx, folder / "absent")


def test_idx_errors_name_the_file_and_the_cause():
    good = idx(np.zeros((3, 2), np.uint8))
    for content, cause in (
        (b"", "0 bytes"),
        (b"\0\0", "2 bytes"),
        (b"\x89PNG" + good[4:], "magic number 0x89504e47"),
        (b"\0\0\x0d\2" + good[4:], "magic number 0x00000d02"),
        (good[:9], "within its header, after 9 of 12"),
        (good[:-1], "6 bytes, but 5 follow"),
        (good + b"\0", "6 bytes, but 7 follow"),
    ):
        message = error_of(DataError, parse_idx, content, "some-file")
        assert "some-file" in message and cause in message, message
    assert "expected 0x00000803" in error_of(DataError, parse_idx, good, "some-file", 3)


def test_mnist_from_idx_files():
    content = small_mnist()
    with sandbox() as folder:
        write(folder / "mnist", content)
        with published(content):
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


def test_mnist_files_that_do_not_fit():
    content = small_mnist()
    for change, cause in (
        ({"train-labels-idx1-ubyte": idx(np.zeros(59, np.uint8))}, "60 images"),
        ({"t10k-labels-idx1-ubyte": idx(np.full(10, 10, np.uint8))}, "label 10"),
        ({"t10k-images-idx3-ubyte": idx(np.zeros((10, 32, 32), np.uint8))}, "(32, 32)"),
        ({"t10k-images-idx3-ubyte": content["t10k-labels-idx1-ubyte"]}, "magic number 0x00000801"),
        ({"train-images-idx3-ubyte": content["train-images-idx3-ubyte"][:-1]}, "follow"),
    ):
        with sandbox() as folder:
            write(folder, {**content, **change})
            with published({**content, **change}):
                message = error_of(DataError, mnist, folder)
            assert cause in message and next(iter(change)) in message, message


def test_one_hot():
    encoded = one_hot(np.array([2, 0, 1]), 3)
    assert encoded.dtype == np.float32 and np.array_equal(encoded, np.eye(3)[[2, 0, 1]])
    assert one_hot(np.zeros(0, int), 3).shape == (0, 3)
    assert one_hot(np.zeros((2, 4), np.uint8), 5, "float64").shape == (2, 4, 5)
    assert "-1 to 3" in error_of(DataError, one_hot, np.array([-1, 3]), 4)
    assert "0 to 4" in error_of(DataError, one_hot, np.array([0, 4]), 4)
    assert "float64" in error_of(DTypeError, one_hot, np.array([0.5]), 4)


# The embedded default --------------------------------------------------------------------------------------


def test_without_mnist_the_digits_are_used_and_one_line_says_so():
    with sandbox(DLSYS_OFFLINE="1") as folder:
        data, printed = quiet_mnist()
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


def test_digits_are_the_same_for_the_same_seed():
    first, again, other = (augmented_digits((300, 100), seed=seed) for seed in (7, 7, 8))
    for (images, labels), (images2, labels2) in zip(first, again, strict=True):
        assert np.array_equal(images, images2) and np.array_equal(labels, labels2)
    assert not np.array_equal(first[0][0], other[0][0])


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


def test_too_many_digits_are_refused():
    assert "give no" in error_of(DataError, augmented_digits, (200_000,))
