"""Files that are damaged or hostile: each is refused by name, before it takes more memory or time than it has bytes."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import pickle
import struct
import tempfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import dlsys as dl
import dlsys.needle as ndl
import numpy as np
from dlsys import serialization
from dlsys.data import CIFAR10, files, read_idx
from dlsys.errors import DataError
from dlsys.needle import pickled
from dlsys.serialization import CHECKSUM, TREE, load
from helpers import error_of
from mirrors import sandbox, server
from test_data import at

GIB = 1 << 30


@contextlib.contextmanager
def file_of(content: bytes, name: str = "file") -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(content)
        yield path


def readers(path: Path) -> list[Any]:
    """What reads a file, as functions of nothing."""
    return [
        lambda: dl.load(path),
        lambda: dl.from_onnx(path),
        lambda: read_idx(path),
        lambda: files.read(path),
        lambda: pickled.read_batch(path),
        lambda: ndl.data.Corpus(path.parent),
    ]


def test_devices_pipes_and_folders_are_no_files(folder: Path) -> None:
    pipe = folder / "train.txt"
    os.mkfifo(pipe)
    for read in (*readers(Path("/dev/zero"))[:-1], *readers(pipe)):
        assert "is a device or a pipe" in error_of(DataError, read)
    for read in readers(folder)[:-1]:
        assert "Is a directory" in error_of(DataError, read)


def test_files_beyond_a_limit_are_not_read() -> None:
    """Sparse: 40 GiB on disk take no block of it."""
    with file_of(b"", "train.txt") as path:
        header = json.dumps({"a": {"dtype": "F32", "shape": [10 * GIB], "data_offsets": [0, 40 * GIB]}}).encode()
        for start in (b"", struct.pack("<Q", len(header)) + header):
            path.write_bytes(start)
            os.truncate(path, len(start) + 40 * GIB)
            with mock.patch.object(serialization, "memory", lambda: 8 * GIB):
                for read in readers(path):
                    assert "is the most that is read" in error_of(DataError, read)


# One table -------------------------------------------------------------------------------------------------

def safetensors(entries: dict[str, Any], data: bytes = b"") -> bytes:
    header = json.dumps(entries).encode()
    return struct.pack("<Q", len(header)) + header + data


def idx(*shape: int) -> bytes:
    return bytes((0, 0, 8, len(shape))) + b"".join(extent.to_bytes(4, "big") for extent in shape)


def bomb(start: bytes, size: int) -> bytes:
    """A gzip file of the start and so many zeros."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    piece = bytes(1 << 20)
    parts = [packer.compress(start), *(packer.compress(piece) for _ in range(size >> 20)), packer.flush()]
    return b"".join(parts)


PIXELS = np.random.default_rng(0).integers(0, 256, (4, 3072), np.uint8)


def read_pickle(content: bytes) -> tuple[np.ndarray, np.ndarray]:
    with file_of(content) as path:
        return pickled.read_batch(path)


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


def damaged(content: bytes) -> bytes:
    """A gzip file with a bit of its checksum changed."""
    packed = bytearray(gzip.compress(content))
    packed[-5] ^= 1
    return bytes(packed)


def nested(times: int = 60) -> Any:
    """As long as 2**times numbers, of which `np.asarray` makes an array."""
    return [nested(times - 1)] * 2 if times else 1


def cifar(path: Path) -> CIFAR10:
    """CIFAR-10 with the file as its test images."""
    return CIFAR10(path.rename(path.with_name("test_batch.bin")).parent, train=False)


TABLE: list[tuple[Callable[[Path], Any], bytes, str]] = [  # who reads, what is in the file, words of the error
    (load, tensor_of([1] * 100), "'w' is of shape"),
    (load, tensor_of([0, 1 << 63]), "'w' is of shape"),
    (load, tree_of("[" * 100_000 + "]" * 100_000), "file"),
    (read_idx, idx(*[1] * 255) + b"a", "255 dimensions"),
    (read_idx, gzip.compress(idx(0, *[(1 << 32) - 1] * 3)), "4 dimensions"),
    (read_idx, bomb(idx(3, 5), 16 << 20), "unpacks to more than 27 bytes"),
    (read_idx, bomb(idx(2, GIB), 1 << 20), "says that it has 2147483660 bytes"),
    (read_idx, damaged(idx(3) + b"abc"), "damaged gzip"),
    (read_idx, b"\x89PNG" + bytes(9), "magic number 0x89504e47"),
    (read_idx, idx(3, 2) + bytes(5), "6 bytes, but 5 follow"),
    (read_idx, idx(3, 2)[:9], "within its header, after 9 of 12"),
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


def test_each_is_named_with_the_cause() -> None:
    for read, content, words in TABLE:
        with file_of(content) as path:
            assert words in error_of(DataError, read, path), words


def test_booleans_of_any_byte_are_zeros_and_ones() -> None:
    entry = {"w": {"dtype": "BOOL", "shape": [4], "data_offsets": [0, 4]}}
    with file_of(safetensors(entry, b"\0\1\2\xff")) as path:
        assert load(path)["w"].view(np.uint8).tolist() == [0, 1, 1, 1]


def test_batches_of_every_protocol_are_read() -> None:
    batch = {b"data": PIXELS, b"labels": [3, 0, 9, 1], b"filenames": [b"a.png"] * 4, b"batch_label": b"one of 5"}
    for content in (*(pickle.dumps(batch, protocol) for protocol in range(5)), of_python_2([3, 0, 9, 1])):
        pixels, labels = read_pickle(content)
        assert np.array_equal(pixels, PIXELS) and labels.tolist() == [3, 0, 9, 1] and labels.dtype == np.int64


def test_a_mirror_that_does_not_end_is_given_up() -> None:
    with (
        sandbox(),
        mock.patch.object(files, "MOST_BYTES", 1000),
        server({"a.txt.gz": bytes(100_000), "b.bin.gz": b""}) as (url, _),
    ):
        assert "sends more than 1000 bytes" in error_of(files.UnavailableError, files.load, at(url))
