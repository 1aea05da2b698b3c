"""Schedules that are searched: found, kept, used where they are faster, never instead of a faster rule."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import dlsys as dl
import numpy as np
from dlsys import autodiff as ad
from dlsys.errors import DataError, GraphError
from dlsys.graph import Node
from dlsys.kernels.build import prim_func
from dlsys.relax import tuning
from dlsys.relax.build import kernels_of
from dlsys.relax.tuning import Task
from dlsys.schedule import apply, resolve_target
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
    found = json.loads(FILE.read_text())
    for kernels in found["targets"].values():
        for kernel in kernels.values():
            change(kernel)
    path = FILE.with_name("changed.json")
    path.write_text(json.dumps(found))
    return path


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
