"""CIFAR-10: the binary format, parts of it, the archive at a mirror, the embedded default."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import os
import tarfile
import warnings
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from dlsys.data import CIFAR10, DataLoader, UnavailableError, cifar10
from dlsys.data import files as data_files
from dlsys.errors import DataError
from helpers import error_of
from test_data import listing, sandbox, server, write

FOLDER, ARCHIVE = "cifar-10-batches-bin", "cifar-10-binary.tar.gz"
REAL = os.environ.get("DLSYS_DATA")


def records(count: int, seed: int = 0) -> bytes:
    """Drawn records whose labels count up."""
    raw = np.random.default_rng(seed).integers(0, 256, (count, 3073), dtype=np.uint8)
    raw[:, 0] = (np.arange(count) + seed) % 10
    return raw.tobytes()


def small() -> dict[str, bytes]:
    return {name: records(4 + number, number) for number, name in enumerate(cifar10.FILES.files)}


def tar(content: dict[str, bytes], folder: str = FOLDER, link: str | None = None) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, value in {**content, "../evil.txt": b"outside", "readme.html": b"hello"}.items():
            member = tarfile.TarInfo(f"{folder}/{name}")
            member.size = len(value)
            if name == link:
                member.type, member.linkname, member.size = tarfile.SYMTYPE, "/etc/passwd", 0
            archive.addfile(member, io.BytesIO(value))
    return buffer.getvalue()


@contextlib.contextmanager
def published(content: dict[str, bytes], *mirrors: str) -> Iterator[None]:
    """CIFAR-10 as if these were its files, at mirrors."""
    before = cifar10.FILES
    sums = {name: hashlib.md5(value).hexdigest() for name, value in content.items()}
    cifar10.FILES = replace(before, files=sums, mirrors=mirrors)
    try:
        yield
    finally:
        cifar10.FILES = before


def quiet(*args: object, **kwargs: object) -> tuple[CIFAR10, str]:
    """The data set and what is printed."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        data = CIFAR10(*args, **kwargs)  # type: ignore[arg-type]
    return data, out.getvalue()


def test_images_and_labels_of_the_records():
    content = small()
    with sandbox() as folder:
        write(folder / FOLDER, content)
        train, printed = quiet(folder)
        test, _ = quiet(folder / FOLDER, train=False)
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


def test_a_directory_may_hold_fewer_and_packed_files():
    content = small()
    with sandbox() as folder:
        name = "data_batch_3.bin"
        write(folder, {f"{name}.gz": gzip.compress(content[name])})
        train, printed = quiet(folder)
        assert len(train) == 6 and train.description in printed and str(folder) in train.source
        assert "without data_batch_1.bin, data_batch_2.bin, data_batch_4.bin" in train.description
        message = error_of(DataError, CIFAR10, folder, train=False)
        assert "lacks test_batch.bin" in message and FOLDER in message
        assert "not a directory" in error_of(DataError, CIFAR10, folder / "nowhere")
        os.environ["DLSYS_DATA"] = str(folder)
        assert len(quiet()[0]) == 6
        assert "DLSYS_DATA" in error_of(DataError, CIFAR10, train=False)


def test_damaged_files_are_named():
    with sandbox() as folder:
        for content, cause in (
            (b"", "0 bytes"),
            (records(2)[:-1], "6145 bytes are no multiple of 3073"),
            (bytes((10,)) + records(2)[1:], "the label 10 in record 0"),
            (gzip.compress(records(2))[:-9], "damaged gzip"),
        ):
            write(folder, {"test_batch.bin": content})
            message = error_of(DataError, CIFAR10, folder, train=False)
            assert cause in message and "test_batch.bin" in message
        # as long as the whole file: its checksum counts
        write(folder, {"test_batch.bin": records(10_000)})
        assert "803d5f7f4d78ea53de84dbe85f74fb6d" in error_of(DataError, CIFAR10, folder, train=False)


# Mirrors ---------------------------------------------------------------------------------------------------


def test_archive_is_fetched_once_and_kept_as_single_files():
    content = small()
    archive = tar(content)
    with sandbox() as folder, server({ARCHIVE: archive}) as (url, asked), published(content, url):
        train, _ = quiet()
        test, _ = quiet(train=False)
        assert len(train) == 30 and len(test) == 9 and "downloaded" in train.source
        assert asked == [f"/mirror/{ARCHIVE}"]
        assert listing(folder) == sorted(content)  # nothing else of the archive, nowhere
        cache = folder / "cache" / "data" / FOLDER
        assert str(cache) == test.source
        (cache / "data_batch_4.bin").write_bytes(b"damaged")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            again, _ = quiet()
        assert np.array_equal(again.pixels, train.pixels) and len(asked) == 2
        assert len(caught) == 1 and "data_batch_4.bin is damaged" in str(caught[0].message)


def test_bad_archives_are_told_mirror_by_mirror():
    content = small()
    less = {name: value for name, value in content.items() if name != "data_batch_5.bin"}
    swapped = {**content, "test_batch.bin": records(3)}
    for archive, cause in (
        (tar(less), "damaged or lacks a file: \"filename 'cifar-10-batches-bin/data_batch_5.bin' not found"),
        (tar(content, folder="elsewhere"), "lacks a file"),
        (tar(content, link="data_batch_1.bin"), "damaged or lacks a file: \"linkname"),
        (tar(content)[:-500], "is damaged"),
        (b"<html>not here</html>", "is damaged"),
        (tar(swapped), "test_batch.bin"),
    ):
        with sandbox() as folder, server({ARCHIVE: archive}) as (url, _), published(content, url):
            message = error_of(UnavailableError, data_files.load, cifar10.FILES)
            assert cause in message and listing(folder) == []
    good = tar(content)
    with (
        sandbox(),
        server({ARCHIVE: tar(swapped)}) as (bad, _),
        server({ARCHIVE: good}) as (url, _),
    ):
        with published(content, bad):
            assert "MD5" in error_of(UnavailableError, data_files.load, cifar10.FILES)
        with published(content, bad, url):
            assert data_files.load(cifar10.FILES)[0] == content


def test_the_published_checksums():
    assert cifar10.FILES.archive == ARCHIVE
    assert cifar10.FILES.files["data_batch_1.bin"] == "5dd7e06a14cb22eb9f671a540d1b7c25"


# The embedded default --------------------------------------------------------------------------------------


def test_coloured_digits_without_network():
    with sandbox(DLSYS_OFFLINE="1"):
        train, printed = quiet()
        test, _ = quiet(train=False)
        again, _ = quiet(train=False)
    assert printed.count("\n") == 1 and "DLSYS_OFFLINE" in printed and "digits" in printed
    assert len(train) == 5_000 and len(test) == 1_000 and train.classes == tuple("0123456789")
    assert test.images.shape == (1_000, 3, 32, 32) and test.images.dtype == np.float32
    assert 0 <= test.images.min() < 0.2 and 0.8 < test.images.max() <= 1
    assert np.array_equal(test.pixels, again.pixels) and np.array_equal(test.labels, again.labels)
    assert (np.bincount(train.labels, minlength=10) > 300).all()
    # images differ in colour, and can be told apart: the nearest neighbour by brightness pattern is right
    assert len({tuple(corner) for corner in test.pixels[:, :, 0, 0].tolist()}) > 500

    def pattern(data: CIFAR10, count: int) -> np.ndarray:
        grey = data.images[:count].mean(1).reshape(count, -1)
        grey = grey - grey.mean(1, keepdims=True)
        return grey / np.linalg.norm(grey, axis=1, keepdims=True)

    nearest = (pattern(test, 300) @ pattern(train, 5_000).T).argmax(1)
    assert (train.labels[nearest] == test.labels[:300]).mean() > 0.85
