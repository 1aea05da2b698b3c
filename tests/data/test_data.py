"""Files of data sets: search order, checksums, the cache, mirrors (a server on this machine)."""

from __future__ import annotations

import gzip
import hashlib
import os
import time
import warnings
from dataclasses import replace
from pathlib import Path
from unittest import mock

from dlsys.data import Collection, UnavailableError, mnist
from dlsys.data import files as data_files
from dlsys.errors import DataError
from dlsys.storage import write_atomically
from helpers import error_of
from mirrors import listing, sandbox, server, write

CONTENT = {"a.txt": b"first file " * 100, "b.bin": bytes(range(256)) * 300}
COLLECTION = Collection("small", {name: hashlib.md5(value).hexdigest() for name, value in CONTENT.items()})


def at(*mirrors: str) -> Collection:
    """The collection, published there."""
    return replace(COLLECTION, mirrors=mirrors)


def packed(content: dict[str, bytes] = CONTENT) -> dict[str, bytes]:
    return {f"{name}.gz": gzip.compress(value) for name, value in content.items()}


# Directories -----------------------------------------------------------------------------------------------


def test_directory_plain_or_packed_direct_or_above(folder: Path):
    write(folder / "plain", CONTENT)
    write(folder / "above" / "small", packed())
    write(folder / "mixed", {"a.txt": CONTENT["a.txt"], "b.bin.gz": packed()["b.bin.gz"]})
    write(folder / "unpacked-not-renamed", {f"{name}.gz": value for name, value in CONTENT.items()})
    for name in ("plain", "above", "above/small", "mixed", "unpacked-not-renamed"):
        content, source = data_files.load(COLLECTION, folder / name)
        assert content == CONTENT, name
        assert source == str(folder / ("above/small" if name == "above" else name))


def test_environment_names_a_directory_and_the_argument_goes_before_it(folder: Path):
    other = Collection("small", {"a.txt": hashlib.md5(b"other").hexdigest()})
    write(folder / "one", CONTENT)
    write(folder / "two", {"a.txt": b"other"})
    os.environ["DLSYS_DATA"] = str(folder / "one")
    assert data_files.load(COLLECTION)[0] == CONTENT
    assert data_files.load(other, folder / "two")[0] == {"a.txt": b"other"}


def test_directory_without_the_files_is_an_error_that_names_them(folder: Path):
    write(folder / "half", {"a.txt": CONTENT["a.txt"]})
    write(folder / "cache" / "data" / "small", packed())  # no silent fall-through to the cache
    message = error_of(DataError, data_files.load, COLLECTION, folder / "half")
    assert "b.bin" in message and "a.txt" not in message and str(folder / "half") in message
    message = error_of(DataError, data_files.load, COLLECTION, folder / "nowhere")
    assert "not a directory" in message and "nowhere" in message
    os.environ["DLSYS_DATA"] = str(folder)
    message = error_of(DataError, data_files.load, COLLECTION)
    assert "DLSYS_DATA" in message and "a.txt, b.bin" in message
    message = error_of(DataError, mnist, folder)
    assert "train-images-idx3-ubyte, train-labels-idx1-ubyte" in message


def test_damaged_file_in_a_directory_names_both_checksums(folder: Path):
    write(folder, {**CONTENT, "b.bin": b"something else"})
    message = error_of(DataError, data_files.load, COLLECTION, folder)
    assert str(folder / "b.bin") in message and COLLECTION.files["b.bin"] in message
    assert hashlib.md5(b"something else").hexdigest() in message
    assert listing(folder) == ["a.txt", "b.bin"]  # a user's file is never removed


# The cache -------------------------------------------------------------------------------------------------


def test_downloaded_once_then_read_from_the_cache(folder: Path):
    with server(packed()) as (url, asked):
        for _ in range(3):
            content, source = data_files.load(at(url))
            assert content == CONTENT and str(folder / "cache" / "data" / "small") in source
        assert asked == ["/mirror/a.txt.gz", "/mirror/b.bin.gz"]
        assert listing(folder) == ["a.txt.gz", "b.bin.gz"]


def test_damaged_cache_is_warned_of_and_fetched_again(folder: Path):
    with server(packed()) as (url, asked):
        cache = write(folder / "cache" / "data" / "small", {**packed(), "b.bin.gz": b"not it"})
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert data_files.load(at(url))[0] == CONTENT
        assert asked == ["/mirror/a.txt.gz", "/mirror/b.bin.gz"]
        assert len(caught) == 1 and "b.bin.gz is damaged" in str(caught[0].message)
        assert gzip.decompress((cache / "b.bin.gz").read_bytes()) == CONTENT["b.bin"]


def test_what_killed_processes_left_is_removed(folder: Path):
    old, new, other = (folder / name for name in ("a.txt.0000.tmp", "a.txt.1111.tmp", "b.txt.0000.tmp"))
    for path in (old, new, other):
        path.write_bytes(b"half")
    for path in (old, other):
        os.utime(path, (1000, 1000))
    write_atomically(folder / "a.txt", b"whole")
    assert sorted(path.name for path in folder.iterdir()) == ["a.txt", new.name, other.name]


# Mirrors ---------------------------------------------------------------------------------------------------


def test_second_mirror_after_corrupt_missing_truncated_or_cut_content(folder: Path):
    faults = {
        "corrupt": packed({name: value[::-1] + b"!" for name, value in CONTENT.items()}),
        "missing": {},
        "truncated": {name: value[:-5] for name, value in packed().items()},
    }
    for fault, bodies in faults.items():
        with sandbox() as folder, server(bodies) as (bad, asked), server(packed()) as (good, _):
            assert data_files.load(at(bad, good))[0] == CONTENT, fault
            assert asked[0] == "/mirror/a.txt.gz" and listing(folder) == ["a.txt.gz", "b.bin.gz"]
    with server(packed(), cut=5) as (bad, asked), server(packed()) as (good, _):
        assert data_files.load(at(bad, good))[0] == CONTENT
        assert len(asked) == 1  # a mirror that fails is not asked for the next file


def test_stalling_mirror_times_out():
    download, before, tried = data_files._download, data_files.TIMEOUT, []

    def hasty(url: str) -> bytes:  # with the slow mirror alone: a loaded machine may take long to serve the other
        tried.append(url)
        with mock.patch.object(data_files, "TIMEOUT", 0.3 if url.startswith(slow) else before):
            return download(url)

    with sandbox(), server(packed(), stall=True) as (slow, _), server(packed()) as (good, _):
        with mock.patch.object(data_files, "_download", hasty):
            start = time.monotonic()
            assert data_files.load(at(slow, good))[0] == CONTENT  # before the mirror is closed, which is behind this
            assert time.monotonic() - start >= 0.3
        assert [url.startswith(slow) for url in tried] == [True] + [False] * len(CONTENT)


def test_offline_asks_no_mirror():
    with server(packed()) as (url, asked):
        for value, offline in (("1", True), ("yes", True), ("0", False), ("", False)):
            with sandbox(DLSYS_OFFLINE=value) as folder:
                if offline:
                    assert "DLSYS_OFFLINE" in error_of(UnavailableError, data_files.load, at(url))
                    assert asked == [] and listing(folder) == []
                else:
                    assert data_files.load(at(url))[0] == CONTENT
