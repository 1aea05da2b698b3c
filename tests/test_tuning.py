"""Schedules that are searched: found, kept, used where they are faster, never instead of a faster rule."""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
import tempfile
import tomllib
import warnings
from collections.abc import Iterator
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any
from unittest import mock

import dlsys as dl
import numpy as np
from dlsys import autodiff as ad
from dlsys import kernels
from dlsys.errors import DataError, GraphError
from dlsys.graph import Node
from dlsys.kernels import build, cache
from dlsys.kernels.build import prim_func
from dlsys.relax import tuning
from dlsys.relax.build import kernels_of
from dlsys.relax.tuning import Task
from dlsys.schedule import ScheduleWarning, apply, resolve_target
from dlsys.schedule.records import GAIN, TUNED, Records, replayed
from helpers import error_of

tuning.POPULATION = 24  # a tenth of the time, for schedules that need not be good
RANDOM = np.random.default_rng(0)
FOLDER = tempfile.TemporaryDirectory()
FILE = Path(FOLDER.name) / "tuning.json"


def network() -> tuple[Node, list[Node], dict[Node, Any]]:
    x = ad.Variable("x")
    w, v = (ad.Parameter(RANDOM.standard_normal(s).astype("float32"), "w") for s in ((24, 40), (40, 8)))
    return x, [ad.softmax_op(ad.relu_op(x @ w) @ v)], {x: RANDOM.standard_normal((6, 24)).astype("float32")}


def changed(change: Any) -> Path:
    """A copy of the file in which each kernel was changed."""
    records = Records(FILE)
    for entries in records._targets.values():
        for kernel in entries.values():
            change(kernel)
    records.path = FILE.with_name("changed.json")
    records.save()
    return records.path


def faster(kernel: dict[str, Any]) -> None:
    if kernel["found"]:
        kernel["tuned"] = kernel["rule"] * GAIN / 2


def slower(kernel: dict[str, Any]) -> None:
    kernel["tuned"] = kernel["rule"] * (1 + GAIN) / 2


def test_a_search_is_kept_used_and_goes_on() -> None:
    _, nodes, feed = network()
    executor = ad.Executor(nodes)
    wanted = executor.run(feed, True)
    found = dl.relax.tune(executor, 8, database=FILE, verbose=False)
    assert sum(task.trials for task in found.tasks) == 8 and "kept in" in str(found)
    assert all(task.rule > 0 and len(task.history) == task.trials for task in found.tasks)
    again = dl.relax.tune(executor, 4, database=FILE, verbose=False)
    assert sum(task.trials for task in again.tasks) == 12
    found = dl.relax.tune(nodes, 8, database=FILE, feed_shapes=feed, verbose=False)
    with tempfile.TemporaryDirectory() as folder:
        found.plot(Path(folder) / "tuning.png")
        assert (Path(folder) / "tuning.png").stat().st_size > 1000
    for change, some in ((faster, True), (slower, False)):
        compiled = dl.relax.compile(nodes, schedule="tuned", database=changed(change), feed_shapes=feed)
        assert (compiled.rules["tuned"] > 0) is some and (compiled.known or 0) >= compiled.rules["tuned"]
        assert f"used {compiled.rules['tuned']} of {compiled.known} tuned" in str(compiled)
        np.testing.assert_allclose(compiled(*feed.values())[0], wanted[0], rtol=1e-5)


def test_executors_use_the_file_of_the_environment() -> None:
    if not FILE.exists():
        test_a_search_is_kept_used_and_goes_on()
    program = (
        "import numpy as np\nfrom dlsys import autodiff as ad\n"
        "x, w = ad.Variable('x'), ad.Parameter(np.ones((24, 40), 'float32'))\n"
        "v = ad.Parameter(np.ones((40, 8), 'float32'))\n"
        "executor = ad.Executor([ad.softmax_op(ad.relu_op(x @ w) @ v)])\n"
        "(found,) = executor.run({x: np.ones((6, 24), 'float32')}, True)\n"
        "print(*[k.rule.name for k in executor.node_to_compiled_func.values()], np.allclose(found, 1 / 8))"
    )
    printed = []
    for path in (None, changed(faster), FILE.with_name("none.json")):
        environment = {} if path is None else {"DLSYS_TUNING": str(path)}
        run = subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            check=False,
        )
        printed.append(run.stdout.split() or run.stderr.strip().splitlines()[-1])
    assert "tuned" not in printed[0] and printed[0][-1] == "True"
    assert "tuned" in printed[1] and printed[1][-1] == "True"
    assert "DLSYS_TUNING: " in printed[2] and "cannot be read: No such file" in printed[2]


def test_records_are_of_loops_and_of_a_target() -> None:
    target = resolve_target("llvm")
    _, nodes, feed = network()
    executor = ad.Executor(nodes)
    functions = [prim_func(spec) for spec in executor.specs(feed)]
    records, other = Records(FILE.with_name("own.json")), Records(FILE.with_name("other.json"))
    task = Task("matmul", functions[0], target, 1, 0)
    task.try_some(2, float("inf"))
    kernel = {"name": "matmul", "rule": 1.0, "tuned": 0.5, "trials": 2, "found": task.found}
    records.enter(functions[0], target, kernel)
    assert apply(functions[0], target, records)[1] is TUNED
    assert apply(functions[0], target)[1] is not TUNED
    assert apply(functions[1], target, records)[1] is not TUNED
    assert apply(functions[0], resolve_target({"kind": "llvm", "mcpu": "x86-64"}), records)[1] is not TUNED
    other.enter(functions[0], target, {**kernel, "tuned": 0.25})
    records.merge(other)
    records.save()
    assert Records(records.path).of(functions[0], target)["tuned"] == 0.25  # type: ignore[index]
    steps = task.found[0][1]
    assert replayed(functions[0], steps).script() != functions[0].script()


def test_damaged_entries_are_warned_of_and_our_rules_have_their_kernels() -> None:
    """Whatever of an entry is another: its steps would end the process, by division by zero, where a factor is 0."""
    target = resolve_target("llvm")
    _, nodes, feed = network()
    function = prim_func(ad.Executor(nodes).specs(feed)[0])
    task = Task("matmul", function, target, 1, 0)
    task.try_some(2, float("inf"))
    records = Records(FILE.with_name("own.json"))
    kernel = {"name": "matmul", "rule": 1.0, "tuned": 0.5, "trials": 2, "found": task.found}
    records.enter(function, target, kernel)
    records.save()
    text = records.path.read_text()
    (key,) = json.loads(text)["targets"][str(target)]
    path = FILE.with_name("damaged.json")

    def damaged(change: Any) -> Records:
        found = json.loads(text)
        change(found["targets"][str(target)])
        path.write_text(json.dumps(found))
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            rest = Records(path)
        assert rest.of(function, target) is None and [one.category for one in told] == [ScheduleWarning]
        assert "damaged.json: damaged entries" in str(told[0].message)
        return rest

    def places(value: Any, way: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
        if value != [0]:
            yield way
        items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        for name, item in items:
            yield from places(item, (*way, name))

    for way in places(json.loads(text)["targets"][str(target)][key]):
        *above, last = (key, *way)
        rest = damaged(lambda kernels, above=above, last=last: reduce(getitem, above, kernels).__setitem__(last, [0]))
    assert apply(function, target, rest)[1] is not TUNED
    damaged(lambda kernels: kernels.update({"0" * 16: kernels.pop(key)}))
    path.write_text(text)
    assert apply(function, target, Records(path))[1] is TUNED


def test_steps_that_do_not_fit_are_warned_of() -> None:
    """As those of another TVM may."""
    target = resolve_target("llvm")
    _, nodes, feed = network()
    executor = ad.Executor(nodes)
    executor.run(feed)
    function = prim_func(executor.specs(feed)[0])
    steps = [[["GetSBlock", [], ["no_such_block", "main"], ["b0"]]], []]
    assert "do not fit" in error_of(DataError, replayed, function, steps)
    records = Records(FILE.with_name("unfit.json"))
    kernel = {"name": "matmul", "rule": 1.0, "tuned": 0.5, "trials": 1, "found": [[0.5, steps]]}
    records.enter(function, target, kernel)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        assert apply(function, target, records)[1] is not TUNED
    assert "unfit.json: our rule has the kernel matmul" in str(told[0].message)
    records.save()
    found = dl.relax.tune(executor, 1, database=records.path, verbose=False)
    assert sum(task.trials for task in found.tasks) == 1  # begun anew


def test_a_kernel_shows_the_loops_of_its_own_file() -> None:
    """A kernel from disk makes its loops when they are asked for: of the file as it was, whatever became of it."""
    if not FILE.exists():
        test_a_search_is_kept_used_and_goes_on()
    _, nodes, feed = network()
    specs = ad.Executor(nodes).specs(feed)
    path = changed(faster)
    with tempfile.TemporaryDirectory() as folder:
        environment = {"DLSYS_TUNING": str(path), "DLSYS_COMPILE_CACHE": folder}
        with mock.patch.dict(os.environ, environment), mock.patch.object(cache, "_kernels", {}):
            made = kernels.get(specs)
            scripts, rules = [kernel.script() for kernel in made], [kernel.rule for kernel in made]
            assert TUNED in rules
            cache._kernels.clear()
            with mock.patch.object(build, "build", side_effect=AssertionError("compiled again")):
                loaded = kernels.get(specs)
            changed(slower)
            os.utime(path, ns=(1, 1))
            assert [kernel.script() for kernel in loaded[:1]] == scripts[:1]
            cache._kernels.clear()
            plain = kernels.get(specs)
            assert TUNED not in [kernel.rule for kernel in plain]
            assert [kernel.script() for kernel in plain] != scripts
            path.unlink()
            del os.environ["DLSYS_TUNING"]
            assert [kernel.script() for kernel in loaded] == scripts and [kernel.rule for kernel in loaded] == rules


def test_a_search_leaves_tvm_as_it_was() -> None:
    """The intrinsics that it does without are those of others in the process, and so is TVM's logger."""
    if not FILE.exists():
        test_a_search_is_kept_used_and_goes_on()
    intrinsics = sys.modules.get("tvm.s_tir.tensor_intrin")
    assert intrinsics is None or intrinsics.__spec__ is not None  # TVM's own, if another test has it imported
    assert logging.getLogger("tvm.s_tir.meta_schedule").level == logging.NOTSET


def test_the_extra_brings_no_library_for_gpus() -> None:
    """`xgboost` depends on NCCL, some 480 MB; `xgboost-cpu` is the same module."""
    project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    needed = {re.split(r"[<>=]", line)[0] for line in project["optional-dependencies"]["relax"]}
    assert needed == {"cloudpickle", "onnx", "psutil", "xgboost-cpu"}


def test_mistakes_are_told() -> None:
    _, nodes, feed = network()
    path = FILE.with_name("broken.json")
    path.write_text("{}")
    assert "broken.json holds no schedules" in error_of(DataError, Records, path)
    assert "broken.json" in error_of(DataError, dl.relax.tune, nodes, database=path, feed_shapes=feed)
    assert "trials" in error_of(GraphError, dl.relax.tune, nodes, -4, database=FILE, feed_shapes=feed)
    assert "schedule is one of rules, default, tuned" in error_of(
        GraphError, dl.relax.compile, nodes, schedule="best", feed_shapes=feed
    )
    compiled = dl.relax.compile(
        nodes, schedule="tuned", database=FILE.with_name("empty.json"), feed_shapes=feed
    )
    assert (
        compiled.known == 0
        and compiled.rules["tuned"] == 0
        and len(kernels_of(compiled.stages["fused"])) >= 2
    )


def test_a_wrong_schedule_is_not_taken() -> None:
    _, nodes, feed = network()
    (first, *_) = (prim_func(spec) for spec in ad.Executor(nodes).specs(feed))
    task = Task("matmul", first, resolve_target("llvm"), 1, 0)
    task.try_some(2, float("inf"))
    task._ours = lambda *arrays: arrays[-1].copyfrom(np.full(tuple(arrays[-1].shape), 7, "float32"))
    assert task.compare() is None and not task.found
