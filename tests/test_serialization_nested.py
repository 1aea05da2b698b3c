"""Nested dictionaries in safetensors files: what is given comes back, types and all; never a pickle."""

from __future__ import annotations

import json
import math
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from dlsys import serialization
from dlsys.errors import DataError, DTypeError
from dlsys.serialization import load, save
from helpers import error_of
from safetensors import safe_open
from safetensors.numpy import load_file, save_file
from test_serialization import drawn, identical


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


def test_nested_dictionaries_come_back_as_they_were():
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
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "checkpoint"
            save(value, path, {"note": "kept"})
            assert same(load(path, map_location="cpu", weights_only=True), value), value
            assert serialization.read(path)[1]["note"] == "kept"
    itself: dict[str, Any] = {}
    itself["itself"] = [itself]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a"
        assert "contain themselves" in error_of(DTypeError, save, itself, path)
        assert "belong to the file format" in error_of(DTypeError, save, {}, path, {serialization.TREE: ""})
        assert os.listdir(folder) == []
        for damaged in ("{", '{"array": "no"}', '{"a": 1, "b": 2}', '{"dict": 3}', '{"other": 3}', '{"dict": [[1]]}'):
            path.write_bytes(b"")
            save_file({"w": w}, path, {serialization.TREE: damaged})
            assert "is damaged" in error_of(DataError, load, path), damaged


def test_names_in_the_file_are_ways_to_the_arrays():
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "a")
        save({"model": {"fc.weight": np.zeros(2)}, "optim": {"state": {0: {"exp_avg": np.ones(2)}}}, "epoch": 3}, path)
        assert sorted(load_file(path)) == ["model.fc.weight", "optim.state.0.exp_avg"]
        with safe_open(path, framework="np") as file:
            assert json.loads(file.metadata()[serialization.TREE])["dict"]["epoch"] == 3
        save({"weight": np.zeros(2)}, path)  # as any other library writes it
        with safe_open(path, framework="np") as file:
            assert file.metadata().keys() == {serialization.CHECKSUM}
