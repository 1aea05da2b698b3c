"""Files that are damaged or hostile: each is refused by name, before it takes more memory or time than it has bytes."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dlsys as dl
import dlsys.needle as ndl
import numpy as np
import pytest
from dlsys import serialization
from dlsys.data import CIFAR10, files, read_idx
from dlsys.errors import DataError
from dlsys.needle import pickled
from dlsys.serialization import CHECKSUM, TREE, load
from helpers import error_of

GIB = 1 << 30
READERS: list[Callable[[Path], Any]] = [
    *(dl.load, dl.from_onnx, read_idx, files.read, pickled.read_batch),
    lambda path: ndl.data.Corpus(path.parent),
]


def test_devices_pipes_and_folders_are_no_files(folder: Path) -> None:
    pipe = folder / "train.txt"
    os.mkfifo(pipe)
    for read in READERS:
        assert "is a device or a pipe" in error_of(DataError, read, pipe)
    for read in READERS[:-1]:
        assert "is a device or a pipe" in error_of(DataError, read, Path("/dev/zero"))
        assert "Is a directory" in error_of(DataError, read, folder)


def test_files_beyond_a_limit_are_not_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sparse: 40 GiB on disk take no block of it."""
    path = folder / "train.txt"
    for start in (b"", safetensors({"a": {"dtype": "F32", "shape": [10 * GIB], "data_offsets": [0, 40 * GIB]}})):
        path.write_bytes(start)
        os.truncate(path, len(start) + 40 * GIB)
        monkeypatch.setattr(serialization, "memory", lambda: 8 * GIB)
        for read in READERS:
            assert "is the most that is read" in error_of(DataError, read, path)
    path.write_bytes(gzip.compress(bytes(1 << 20)))
    monkeypatch.setattr(files, "MOST_BYTES", 1 << 16)
    assert "or of more than 65536 bytes" in error_of(DataError, files.read, path)


# One table -------------------------------------------------------------------------------------------------


def safetensors(entries: dict[str, Any], data: bytes = b"") -> bytes:
    header = json.dumps(entries).encode()
    return struct.pack("<Q", len(header)) + header + data


def idx(*shape: int) -> bytes:
    return bytes((0, 0, 8, len(shape))) + b"".join(extent.to_bytes(4, "big") for extent in shape)


PIXELS = np.random.default_rng(0).integers(0, 256, (4, 3072), np.uint8)


def of_python_2(labels: list[int]) -> bytes:
    """A batch as cPickle of Python 2 wrote it: text is bytes, by the step SHORT_BINSTRING or BINSTRING."""
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\nq\x03cnumpy\nndarray\nq\x04K\x00\x85U\x01b\x87Rq\x05(K\x01K\x04M\x00\x0c"
        b"\x86cnumpy\ndtype\nq\x06U\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89T"
    )
    numbers = b"]q\x08(" + b"".join(b"K" + bytes([label]) for label in labels) + b"e"
    data = array + struct.pack("<I", PIXELS.size) + PIXELS.tobytes() + b"tb"
    return b"\x80\x02}q\x01(U\x04data" + data + b"U\x06labelsq\x07" + numbers + b"u."


class Runs:
    """Whoever unpickles this calls a function."""

    def __init__(self, *call: Any) -> None:
        self.call = call

    def __reduce__(self) -> tuple:
        return self.call[0], self.call[1:]


def tensor_of(shape: list[int]) -> bytes:
    size = 0 if 0 in shape else 4
    return safetensors({"w": {"dtype": "F32", "shape": shape, "data_offsets": [0, size]}}, bytes(size))


def tree_of(tree: str) -> bytes:
    content = safetensors({"__metadata__": {TREE: tree, CHECKSUM: "0" * 64}})
    return serialization._with_checksum(content.replace(b'": "', b'":"'))


def batch_of(labels: Any) -> bytes:
    return pickle.dumps({b"data": PIXELS, b"labels": labels}, 2)


def nested(times: int = 60) -> Any:
    """As long as 2**times numbers, of which `np.asarray` makes an array."""
    return [nested(times - 1)] * 2 if times else 1


def cifar(path: Path) -> CIFAR10:
    """CIFAR-10 with the file as its test images."""
    return CIFAR10(path.rename(path.with_name("test_batch.bin")).parent, train=False)


def flipped(packed: bytes) -> bytes:
    """A gzip file with a bit of its checksum changed."""
    return packed[:-5] + bytes([packed[-5] ^ 1]) + packed[-4:]


TABLE: list[tuple[Callable[[Path], Any], bytes, str]] = [  # who reads, what is in the file, words of the error
    (load, tensor_of([1] * 100), "'w' is of shape"),
    (load, tensor_of([0, 1 << 63]), "'w' is of shape"),
    (load, tree_of("[" * 100_000 + "]" * 100_000), "file"),
    (read_idx, idx(*[1] * 255) + b"a", "255 dimensions"),
    (read_idx, gzip.compress(idx(0, *[(1 << 32) - 1] * 3)), "4 dimensions"),
    (read_idx, flipped(gzip.compress(idx(3) + b"abc")), "damaged gzip"),
    (read_idx, gzip.compress(idx(3) + b"abc")[:-3], "damaged gzip"),
    (read_idx, b"\x89PNG" + bytes(9), "magic number 0x89504e47"),
    (read_idx, idx(3, 2) + bytes(5), "has 17 bytes, but its header of 12 says (3, 2)"),
    (read_idx, idx(3, 2)[:9], "has 9 bytes, but its header of 12 says"),
    (cifar, bytes(6145), "6145 bytes are no multiple of 3073"),
    (cifar, bytes([10]) + bytes(3072), "the label 10 in record 0"),
    (pickled.read_batch, batch_of(nested()), "no list of integers"),
    (pickled.read_batch, batch_of([True] * 4), "no list of integers"),
    (pickled.read_batch, batch_of([1, 2, 3]), "4 images and 3 labels"),
    (pickled.read_batch, batch_of([1, 2, 3, 2**100]), "expected 0 to 9"),
    (pickled.read_batch, pickle.dumps({b"data": Runs(os.system, "false"), b"labels": []}), "posix.system"),
    (pickled.read_batch, pickle.dumps({b"data": Runs(eval, "1"), b"labels": []}), "builtins.eval"),
    (pickled.read_batch, pickle.dumps({b"data": Runs(np.dtype, "O"), b"labels": []}), "an array of 'O'"),
    (pickled.read_batch, b"no pickle", "no batch of CIFAR-10"),
    (pickled.read_batch, b"", "no batch of CIFAR-10"),
]


def test_each_is_named_with_the_cause(folder: Path) -> None:
    for read, content, words in TABLE:
        (folder / "file").write_bytes(content)
        assert words in error_of(DataError, read, folder / "file"), words


def test_booleans_of_any_byte_are_zeros_and_ones(folder: Path) -> None:
    entry = {"w": {"dtype": "BOOL", "shape": [4], "data_offsets": [0, 4]}}
    (folder / "file").write_bytes(safetensors(entry, b"\0\1\2\xff"))
    assert load(folder / "file")["w"].view(np.uint8).tolist() == [0, 1, 1, 1]


def test_batches_of_every_protocol_are_read(folder: Path) -> None:
    batch = {b"data": PIXELS, b"labels": [3, 0, 9, 1], b"filenames": [b"a.png"] * 4, b"batch_label": b"one of 5"}
    for content in (*(pickle.dumps(batch, protocol) for protocol in range(5)), of_python_2([3, 0, 9, 1])):
        (folder / "file").write_bytes(content)
        pixels, labels = pickled.read_batch(folder / "file")
        assert np.array_equal(pixels, PIXELS) and labels.tolist() == [3, 0, 9, 1] and labels.dtype == np.int64
