"""Files of parameters and checkpoints: round trips, nested ones, damaged and foreign files, a killed process."""

from __future__ import annotations

import io
import json
import math
import os
import pickle
import stat
import time
import warnings
import zipfile
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from dlsys import serialization
from dlsys.errors import DataError, DTypeError
from dlsys.graph import DTYPES
from dlsys.serialization import load, save
from helpers import error_of, running
from optional import optional, torch
from safetensors.numpy import load as read_arrays
from safetensors.numpy import save_file


def drawn(dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    return (np.random.default_rng(0).standard_normal(shape) * 100).astype(dtype)


def identical(a: np.ndarray, b: np.ndarray) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def test_round_trip_of_every_dtype_and_shape(folder: Path) -> None:
    state = {
        f"{dtype}.{number}": np.abs(drawn("float64", shape)).astype(dtype)
        for dtype in (*DTYPES, "float16", "uint8", "int8", "uint64")
        for number, shape in enumerate(((), (3,), (0, 4), (2, 3, 1), (5, 7)))
    }
    state["special"] = np.array([np.nan, np.inf, -np.inf, -0.0, 1e-45], np.float32)
    save(state, folder / "a.safetensors", {"made by": "a test"})
    loaded = load(os.path.join(folder, "a.safetensors"))
    assert os.listdir(folder) == ["a.safetensors"]
    assert serialization.read(folder / "a.safetensors")[1]["made by"] == "a test"
    save({}, folder / "a.safetensors")
    assert load(folder / "a.safetensors") == {}
    assert loaded.keys() == state.keys()
    for name, array in state.items():
        assert identical(loaded[name], array), name
        assert loaded[name].flags.writeable and loaded[name].flags.c_contiguous


def test_what_counts_as_an_array(folder: Path) -> None:
    class Parameter:
        def __init__(self, value: Any) -> None:
            self.value = value

    class Array:
        def numpy(self) -> np.ndarray:
            return np.arange(3)

    base = drawn("float32", (4, 6))
    state = {
        "transposed": base.T,
        "strided": base[::2, ::-3],
        "swapped": base.astype(">f4"),
        "parameter": Parameter(base),
        "array": Array(),
        "both": Parameter(Array()),
        "scalar": np.float64(2.5),
        "number": 3,
    }
    path = folder / "a"
    save(state, path)
    loaded = load(path)
    assert identical(loaded["transposed"], np.ascontiguousarray(base.T))
    assert identical(loaded["strided"], np.ascontiguousarray(base[::2, ::-3]))
    assert identical(loaded["swapped"], base) and identical(loaded["parameter"], base)
    assert loaded["array"].tolist() == loaded["both"].tolist() == [0, 1, 2]
    assert loaded["scalar"] == 2.5 and loaded["scalar"].shape == () and loaded["number"] == 3
    for bad, words in (
        ({"x": {1, 2}}, "'x' is no array: set"),
        ({"x": np.array([None])}, "'x' has dtype object"),
        ({"x": {2.5: base}}, "names are text or integers, given 2.5 in 'x'"),
    ):
        assert words in error_of(DTypeError, save, bad, path)
    assert "metadata are text" in error_of(DTypeError, save, {}, path, {"epoch": 3})
    assert load(path).keys() == state.keys()  # a save that fails leaves the old file


def test_pytorch_reads_and_writes_the_same_files(folder: Path) -> None:
    load_file, save_file = optional("safetensors.torch").load_file, optional("safetensors.torch").save_file
    path = os.path.join(folder, "a.safetensors")
    layer = torch.nn.Linear(3, 2)
    save_file(layer.state_dict(), path)
    loaded = load(path)
    assert np.array_equal(loaded["weight"], layer.weight.detach().numpy())
    save(loaded, path)
    assert torch.equal(load_file(path)["bias"], layer.bias)
    values = torch.tensor([1.5, -3.25, float("inf"), 1e-40, 3.1415], dtype=torch.bfloat16)
    save_file({"x": values.reshape(5, 1)}, path)
    assert identical(load(path)["x"], values.float().numpy().reshape(5, 1))
    save_file({"x": values.to(torch.float8_e4m3fn)}, path)
    assert "'x' is of dtype F8_E4M3" in error_of(DataError, load, path)


def test_damaged_files_are_named_with_the_cause(folder: Path) -> None:
    """Cut, flipped at any bit, of another kind, or pickles, as PyTorch's, which are never read."""
    path = folder / "a.safetensors"
    save({"weight": drawn("float32", (7, 9)), "epoch": 3}, path)
    good, random = path.read_bytes(), np.random.default_rng(0)
    for size in (*range(0, 160, 7), len(good) - 1):
        path.write_bytes(good[:size])
        message = error_of(DataError, load, path)
        assert str(path) in message and (size < 9 or f"is truncated: it has {size} bytes" in message), (size, message)
    assert f"of {len(good)}" in message
    for bit in random.choice(8 * len(good), 400, replace=False):
        flipped = bytearray(good)
        flipped[bit // 8] ^= 1 << (bit % 8)
        path.write_bytes(flipped)
        assert str(path) in error_of(DataError, load, path), bit
    trap = folder / "trap"
    with zipfile.ZipFile(zipped := io.BytesIO(), "w") as archive:  # the form of torch.save
        archive.writestr("model/data.pkl", pickle.dumps({"weight": Bomb(str(trap))}))
    for content, words in (
        (b"", "is empty"),
        (good + b"more", "damaged"),
        (b"hello, this is no such file", "is no safetensors file"),
        (zipped.getvalue(), "is no safetensors file"),
        *((pickle.dumps({"weight": Bomb(str(trap))}, protocol), "pickles, as PyTorch's, are never read")
          for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1)),
    ):  # fmt: skip
        path.write_bytes(content)
        message = error_of(DataError, load, path)
        assert words in message and str(path) in message, (content[:30], message)
    assert not trap.exists()
    assert "No such file" in error_of(DataError, load, folder / "absent")
    assert "cannot be written" in error_of(DataError, save, {}, folder / "absent" / "a")


class Bomb:
    """Whoever unpickles this writes a file."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (open, (self.path, "w"))


def test_the_last_good_checkpoint_is_named(folder: Path) -> None:
    path, good = folder / "last.safetensors", folder / "best.safetensors"
    save({"w": np.arange(5)}, path)
    save({"w": np.arange(3)}, good)
    path.write_bytes(path.read_bytes()[:-1])
    assert serialization.last_good(folder, path) == good
    good.write_bytes(path.read_bytes())
    assert serialization.last_good(folder, path) is None


def test_file_is_replaced_not_written_over(folder: Path) -> None:
    path, link = folder / "real", folder / "link"
    save({"x": np.zeros(3)}, path)
    link.symlink_to(path)
    with open(path, "rb") as reader:
        before = reader.read()
        save({"x": np.ones(3)}, link)
        reader.seek(0)
        assert reader.read() == before  # who reads the old file goes on reading it
    assert link.is_symlink() and load(path)["x"].tolist() == [1.0, 1.0, 1.0]
    umask = os.umask(0)
    os.umask(umask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~umask
    for failure, told in ((KeyboardInterrupt, KeyboardInterrupt), (OSError("disk"), DataError)):
        with mock.patch.object(os, "replace", side_effect=failure):
            error_of(told, save, {"x": np.zeros(3)}, path)
        assert sorted(os.listdir(folder)) == ["link", "real"] and load(path)["x"].tolist() == [1.0] * 3


WRITER = """
import itertools, sys
import numpy as np
from dlsys.serialization import save
for number in itertools.count():
    array = np.full((300, 1000), number, np.float32)
    save({"arrays": {"a": array, "b": -array}, "number": number}, sys.argv[1])
    if number == 2:
        print("ready", flush=True)
"""


@pytest.mark.slow
def test_killed_at_any_moment_the_file_is_whole(folder: Path) -> None:
    path = folder / "checkpoint"
    for delay in (0.0, 0.01, 0.02):
        with running("-c", WRITER, path, PYTHONPATH=str(Path(serialization.__file__).resolve().parents[1])) as process:
            assert process.stdout is not None and process.stdout.readline() == "ready\n"
            assert load(path)["number"] >= 2  # read while it writes
            time.sleep(delay)
        found = load(path)
        assert (found["arrays"]["a"] == found["number"]).all() and (found["arrays"]["b"] == -found["number"]).all()
        assert all(name == "checkpoint" or name.endswith(".tmp") for name in os.listdir(folder))


def same(a: Any, b: Any) -> bool:
    """Whether nested values are equal, types and the order of keys too."""
    if isinstance(b, (np.ndarray, np.generic)):
        return identical(a, np.asarray(b))
    if type(a) is not type(b):
        return False
    if isinstance(b, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in b)
    if isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return repr(a) == repr(b)


def test_nested_dictionaries_come_back_as_they_were(folder: Path) -> None:
    w, b = drawn("float32", (3, 4)), np.arange(3)
    for value in (
        {"model": {"fc.weight": w, "fc.bias": b}, "optim": {"state": {0: {"step": np.float32(3)}}}, "epoch": 3},
        {"a": {"b": w}, "a.b": b, "a.b'": b, "": {"": w}},  # names that would meet
        {"lists": [1, [w, None], (), (b, "x")], "none": None, "yes": True, "betas": (0.9, 0.999), "rate": 1e-3},
        {"text": "\u00e9 \ud800 \" {", "infinite": [math.inf, -math.inf, math.nan], "big": 2**80, "empty": {}},
        {"0": w, 0: b, -1: [{}]},
        {"dict": {"array": "w"}, "array": w, "tuple": ["x"]},
        {"best": 0.5, "rng": np.random.default_rng(7).bit_generator.state, "minus zero": -0.0, "tiny": 5e-324},
        [w, {"x": b}],
        (w, 3),
        w,
        2.5,
        {},
    ):
        path = folder / "checkpoint"
        save(value, path, {"note": "kept"})
        assert same(load(path, weights_only=True), value), value
        assert serialization.read(path)[1]["note"] == "kept"
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert same(load(path, "cpu", weights_only=False), value)
        told = ["load: map_location has no effect: ", "load: weights_only=False has no effect: "]
        assert [one for one, other in zip(told, caught, strict=True) if str(other.message).startswith(one)] == told
    itself: dict[str, Any] = {}
    itself["itself"] = [itself]
    path = folder / "a"
    assert "contain themselves" in error_of(DTypeError, save, itself, path)
    assert "belong to the file format" in error_of(DTypeError, save, {}, path, {serialization.TREE: ""})
    assert os.listdir(folder) == ["checkpoint"]
    for damaged in ("{", '{"array": "no"}', '{"dict": 3}'):
        path.write_bytes(b"")
        save_file({"w": w}, path, {serialization.TREE: damaged})
        assert "is damaged" in error_of(DataError, load, path), damaged


def test_names_in_the_file_are_ways_to_the_arrays_and_files_may_be_open() -> None:
    nested = {"model": {"fc.weight": np.zeros(2)}, "optim": {"state": {0: {"exp_avg": np.ones(2)}}}, "epoch": 3}
    save(nested, buffer := io.BytesIO())
    assert sorted(read_arrays(buffer.getvalue())) == ["model.fc.weight", "optim.state.0.exp_avg"]
    header = buffer.getvalue()[8:]
    metadata = json.loads(header[: int.from_bytes(buffer.getvalue()[:8], "little")])["__metadata__"]
    assert json.loads(metadata[serialization.TREE])["dict"]["epoch"] == 3
    buffer.seek(0)
    assert same(load(buffer), nested)
    assert "is empty" in error_of(DataError, load, buffer)
    save({"weight": np.zeros(2)}, plain := io.BytesIO())  # as any other library writes it
    assert serialization.TREE.encode() not in plain.getvalue()
