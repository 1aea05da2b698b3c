"""Files of data sets: search order, checksums, the cache, mirrors (a server on this machine)."""

from __future__ import annotations

import gzip
import hashlib
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from dlsys.data import Collection, UnavailableError, files, mnist
from dlsys.errors import DataError
from dlsys.storage import write_atomically
from helpers import error_of
from mirrors import listing, server, write

CONTENT = {"a.txt": b"first file " * 100, "b.bin": bytes(range(256)) * 300}
PACKED = {f"{name}.gz": gzip.compress(value) for name, value in CONTENT.items()}
COLLECTION = Collection("small", {name: hashlib.md5(value).hexdigest() for name, value in CONTENT.items()})


def at(*mirrors: str) -> Collection:
    """The collection, published there."""
    return replace(COLLECTION, mirrors=tuple(mirror + "{}.gz" for mirror in mirrors))


def test_a_directory_or_its_subfolder_has_plain_or_packed_files(folder: Path) -> None:
    write(folder / "plain", CONTENT)
    write(folder / "above" / "small", PACKED)
    write(folder / "mixed", {"a.txt": CONTENT["a.txt"], "b.bin.gz": PACKED["b.bin.gz"]})
    write(folder / "unpacked-not-renamed", {f"{name}.gz": value for name, value in CONTENT.items()})
    for name in ("plain", "above", "above/small", "mixed", "unpacked-not-renamed"):
        place = folder / ("above/small" if name == "above" else name)
        assert files.load(COLLECTION, folder / name) == (CONTENT, str(place)), name


def test_the_environment_names_a_directory_and_the_argument_goes_before_it(folder: Path) -> None:
    other = Collection("small", {"a.txt": hashlib.md5(b"other").hexdigest()})
    write(folder / "two", {"a.txt": b"other"})
    os.environ["DLSYS_DATA"] = str(write(folder / "one", CONTENT))
    assert files.load(COLLECTION)[0] == CONTENT
    assert files.load(other, folder / "two")[0] == {"a.txt": b"other"}


def test_a_directory_without_the_files_is_an_error_that_names_them(folder: Path) -> None:
    write(folder / "half", {"a.txt": CONTENT["a.txt"]})
    write(folder / "cache" / "data" / "small", PACKED)  # which does not take their place
    assert f"{folder}/half' (the argument or DLSYS_DATA) lacks b.bin:" in error_of(
        DataError, files.load, COLLECTION, folder / "half"
    )
    assert "nowhere' (the argument or DLSYS_DATA) is not a directory" in error_of(
        DataError, files.load, COLLECTION, folder / "nowhere"
    )
    os.environ["DLSYS_DATA"] = str(folder)
    assert "DLSYS_DATA) lacks a.txt, b.bin:" in error_of(DataError, files.load, COLLECTION)
    assert "lacks train-images-idx3-ubyte, train-labels-idx1-ubyte" in error_of(DataError, mnist, folder)


def test_a_damaged_file_in_a_directory_is_named_with_both_checksums(folder: Path) -> None:
    write(folder, {**CONTENT, "b.bin": b"something else"})
    message = error_of(DataError, files.load, COLLECTION, folder)
    assert str(folder / "b.bin") in message and COLLECTION.files["b.bin"] in message
    assert hashlib.md5(b"something else").hexdigest() in message
    assert listing(folder) == ["a.txt", "b.bin"]  # a user's file is never removed


def test_files_are_downloaded_once_and_again_if_the_cache_is_damaged(folder: Path) -> None:
    cache, once = folder / "cache" / "data" / "small", ["/a.txt.gz", "/b.bin.gz"]
    with server(PACKED) as (url, asked):
        assert files.load(at(url)) == (CONTENT, f"downloaded to {cache}")
        assert files.load(at(url)) == files.load(at(url)) == (CONTENT, str(cache))
        assert asked == once and listing(folder) == ["a.txt", "b.bin"]
        write(cache, {"b.bin": b"not it"})
        with pytest.warns(RuntimeWarning, match=r"b\.bin is damaged.*downloaded again"):
            assert files.load(at(url))[0] == CONTENT
        assert asked == 2 * once and (cache / "b.bin").read_bytes() == CONTENT["b.bin"]
        os.environ["DLSYS_CACHE"] = os.devnull
        with pytest.warns(RuntimeWarning, match="small cannot be stored in the cache"):
            assert files.load(at(url))[0] == CONTENT


def test_what_killed_processes_left_is_removed(folder: Path) -> None:
    old, new, other = (folder / name for name in ("a.txt.0000.tmp", "a.txt.1111.tmp", "b.txt.0000.tmp"))
    for path in (old, new, other):
        path.write_bytes(b"half")
    for path in (old, other):
        os.utime(path, (1000, 1000))
    write_atomically(folder / "a.txt", b"whole")
    assert sorted(path.name for path in folder.iterdir()) == ["a.txt", new.name, other.name]


@pytest.mark.parametrize(
    "bodies, fault",
    [
        ({name: gzip.compress(b"another") for name in PACKED}, {}),
        ({}, {}),
        ({name: value[:-5] for name, value in PACKED.items()}, {}),
        (PACKED, {"cut": 5}),
        (PACKED, {"stall": True}),
    ],
    ids=["corrupt", "absent", "truncated", "cut", "stalling"],
)
def test_a_second_mirror_is_asked_after_one_that_fails(
    folder: Path, monkeypatch: pytest.MonkeyPatch, bodies: dict[str, bytes], fault: dict[str, Any]
) -> None:
    monkeypatch.setattr(files, "TIMEOUT", 0.5)
    with server(bodies, **fault) as (bad, asked):
        start = time.monotonic()
        message = error_of(UnavailableError, files.load, at(bad))
        assert bad.split("/")[2] in message and (time.monotonic() - start >= 0.5 or not fault.get("stall"))
        monkeypatch.setattr(files, "TIMEOUT", 10)  # a loaded machine may take long to serve the other
        if not fault.get("stall"):
            with server(PACKED) as (good, _):
                assert files.load(at(bad, good))[0] == CONTENT
            corrupt = asked == ["/a.txt.gz", "/b.bin.gz"] * 2
            assert corrupt or asked == ["/a.txt.gz"] * 2  # a mirror that fails is not asked for the next file


@pytest.mark.parametrize("value", ["1", "yes", "0", ""])
def test_offline_asks_no_mirror(folder: Path, value: str) -> None:
    os.environ["DLSYS_OFFLINE"] = value
    with server(PACKED) as (url, asked):
        if value in ("1", "yes"):
            assert "DLSYS_OFFLINE" in error_of(UnavailableError, files.load, at(url))
            assert asked == [] and listing(folder) == []
        else:
            assert files.load(at(url))[0] == CONTENT
