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
from pathlib import Path
from typing import Any
from unittest import mock

import dlsys as dl
import numpy as np
import pytest
from dlsys import autodiff as ad
from dlsys import kernels
from dlsys.errors import DataError, GraphError
from dlsys.graph import Node
from dlsys.kernels import build, cache
from dlsys.kernels.build import prim_func
from dlsys.relax import tuning
from dlsys.relax.build import kernels_of
from dlsys.relax.tuning import Task
from dlsys.schedule import ScheduleWarning, resolve_target
from dlsys.system import TUNING
from dlsys.tuning import GAIN, TUNED, Records, apply, key_of, replayed
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


@pytest.mark.slow
def test_a_search_is_kept_used_and_goes_on() -> None:
    _, nodes, feed = network()
    executor = ad.Executor(nodes)
    wanted = executor.run(feed, True)
    found = dl.relax.tune(executor, 8, database=FILE, verbose=False)
    assert sum(task.trials for task in found.tasks) == 8 and "stored in" in str(found)
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


@pytest.mark.slow
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


@pytest.mark.slow
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
    assert apply(functions[0], target, None)[1] is not TUNED
    assert apply(functions[1], target, records)[1] is not TUNED
    assert apply(functions[0], resolve_target({"kind": "llvm", "mcpu": "x86-64"}), records)[1] is not TUNED
    other.enter(functions[0], target, {**kernel, "tuned": 0.25})
    records.merge(other)
    records.save()
    assert Records(records.path).of(functions[0], target)["tuned"] == 0.25  # type: ignore[index]
    steps = task.found[0][1]
    assert replayed(functions[0], steps).script() != functions[0].script()


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_search_leaves_tvm_as_it_was() -> None:
    """The intrinsics that it does without are those of others in the process, and so is TVM's logger."""
    if not FILE.exists():
        test_a_search_is_kept_used_and_goes_on()
    intrinsics = sys.modules.get("tvm.s_tir.tensor_intrin")
    assert intrinsics is None or intrinsics.__spec__ is not None  # TVM's own, if another test has it imported
    assert logging.getLogger("tvm.s_tir.meta_schedule").level == logging.NOTSET


def test_the_extra_brings_no_library_for_gpus() -> None:
    """`xgboost` depends on NCCL, some 480 MB; `xgboost-cpu` is the same module."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
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


def entry(*steps: Any, decisions: Any = ()) -> dict[str, Any]:
    """An entry of the file, whose schedule has these steps."""
    found = [[1e-6, [list(steps), list(decisions)]]]
    return {"name": "matmul", "rule": 2e-6, "tuned": 1e-6, "trials": 1, "found": found}


def holding(content: Any, name: str = "hostile.json") -> Path:
    """A file with this content: text, or an entry for the product of `network`."""
    path = FILE.with_name(name)
    path.unlink(missing_ok=True)
    if not isinstance(content, str):
        content = json.dumps({"targets": {str(resolve_target("llvm")): {key_of(product()): content}}})
    path.write_text(content)
    path.chmod(0o600)
    return path


def product() -> Any:
    _, nodes, feed = network()
    return prim_func(ad.Executor(nodes).specs(feed)[0])


BLOCK, LOOPS = ["GetSBlock", [], ["matmul", "main"], ["b0"]], ["GetLoops", ["b0"], [], ["l1", "l2", "l3"]]
CODE = '"@x = global i32 0\nmodule asm \\".globl x\\""'


def test_steps_that_no_search_of_ours_writes_are_refused() -> None:
    foreign = [
        ["Annotate", ["l1", CODE], ["pragma_import_llvm"], []],
        ["Annotate", ["b0", CODE], ["pragma_import_c"], []],
        ["Annotate", ["l1", CODE], ["pragma_unroll_explicit"], []],
        ["Annotate", ["l1", "v7"], ["pragma_auto_unroll_max_step"], []],
        ["Annotate", ["l1", 10**6], ["pragma_auto_unroll_max_step"], []],
        ["Annotate", ["b0", CODE], ["meta_schedule.tiling_structure"], []],
        ["Annotate", ["b0", 1], ["meta_schedule.auto_tensorize"], []],
        ["Annotate", ["b0", ["a", ["b"]]], ["meta_schedule.parallel"], []],
        ["Annotate", ["b0", {"a": 1}], ["meta_schedule.parallel"], []],
        ["Unannotate", ["b0"], ["pragma_import_llvm"], []],
        ["Tensorize", ["l1", CODE], [1], []],
        ["TransformLayout", ["b0"], [0, "read", CODE, None, True], []],
        ["SetScope", ["b0"], [0, "shared"], []],
        ["StorageAlign", ["b0"], [0, 0, 32, 8], []],
        ["CacheWrite", ["b0", []], [0, "shared.dyn"], ["b9"]],
        ["UnsafeSetDType", ["b0"], [0, "int64"], []],
        ["Bind", ["l1"], ["threadIdx.x"], []],
        ["Unroll", ["l1"], [], []],
        ["Split", ["l1", "None", 10**9], [True, False], ["l4", "l5"]],
        ["Split", ["l1", "T.launch()", 4], [True, False], ["l4", "l5"]],
        ["GetSBlock", [], ["a b", "main"], ["b0"]],
        ["GetSBlock"],
        [],
        "GetSBlock",
        None,
    ]
    for step in foreign:
        path = holding(entry(BLOCK, LOOPS, step))
        said = error_of(DataError, Records, path)
        assert "hostile.json holds a step that no search of ours writes" in said and len(said) < 400, step
    tile = ["SamplePerfectTile", ["l1"], [2, 64], ["v4", "v5"]]
    drawn = ["SampleCategorical", [], [[0, 16], [0.5, 0.5]], ["v6"]]
    where = ["SampleComputeLocation", ["b0"], [], ["l7"]]
    for decision in (
        [2, [0, 4]], [2, [-1, 4]], [2, [1]], [2, [1, 2, 3]], [2, [1, True]], [2, [1, 2.0]], [2, 1], [2, None], [2],
        [5, [1, 6]], [-1, [1, 6]], ["2", [1, 6]], [True, 0], [0, 0], [3, 2], [3, -1], [3, [0, 1]], [4, -3], "2", {},
    ):  # fmt: skip
        path = holding(entry(BLOCK, LOOPS, tile, drawn, where, decisions=[decision]))
        assert "no search of ours" in error_of(DataError, Records, path), decision
    Records(holding(entry(BLOCK, LOOPS, tile, drawn, where, decisions=[[2, [1, 6]], [3, 1], [4, -2]])))
    path = holding(entry(BLOCK, LOOPS, foreign[0]))
    with mock.patch.dict(os.environ, {TUNING: str(path)}):
        _, nodes, feed = network()
        assert "no search of ours" in error_of(DataError, ad.Executor(nodes).run, feed)
    assert "no search of ours" in error_of(DataError, dl.relax.tune, nodes, database=path, feed_shapes=feed)


@pytest.mark.slow
def test_a_damaged_entry_is_said_and_our_rule_has_the_kernel() -> None:
    good = entry(BLOCK, LOOPS, ["Parallel", ["l1"], [], []])
    path, target = holding(good), resolve_target("llvm")
    assert apply(product(), target, Records(path))[1] is TUNED
    damaged: list[Any] = [{key: value for key, value in good.items() if key != gone} for gone in good]
    damaged += [{**good, "found": found} for found in ([], None, 5, [5], [[]], [[1]], [[1, []]], [[0, [[], []]]])]
    damaged += [{**good, key: value} for key in ("rule", "tuned") for value in (0, -1.0, "1", [], float("nan"))]
    damaged += [5, None, []]
    for kernel in damaged:
        path = holding(kernel)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            records = Records(path)
        assert [one.category for one in said] == [ScheduleWarning] and "damaged" in str(said[0].message), kernel
        assert apply(product(), target, records)[1] is not TUNED
    for steps in (
        [["GetSBlock", [], ["another", "main"], ["b0"]]],
        [["GetLoops", ["b0"], [], ["l1"]]],
        [BLOCK, LOOPS, ["Parallel", ["l3"], [], []]],
        [BLOCK, LOOPS, ["Vectorize", ["l1"], [], []], ["Parallel", ["l9"], [], []]],
        [BLOCK, LOOPS, ["Fuse", ["l1", "l2"], [1], ["l4"]], ["Vectorize", ["l4"], [], []]],  # too long a vector
    ):
        records = Records(holding(entry(*steps)))
        assert "do not fit" in error_of(ScheduleWarning, apply, product(), target, records), steps


def test_files_that_are_no_tuning_are_told() -> None:
    for content in ("[" * 100_000, '{"targets": ' * 100_000, "[]", '{"targets": {"a": []}}', "1" * 100_000, "\0", ""):
        assert "holds no schedules" in error_of(DataError, Records, holding(content))
    deep = '{"targets": {"llvm": {"0": {"found": [[1, [[' + "[" * 900 + "]" * 900 + "], []]]]}}}}"
    assert "no search of ours" in error_of(DataError, Records, holding(deep))
    with open(huge := holding(""), "r+b") as file:
        file.truncate(2**36)
    assert "may have" in error_of(DataError, Records, huge)
    for path in ("/dev/zero", FOLDER.name):
        assert "no file" in error_of(DataError, Records, path)
        with mock.patch.dict(os.environ, {TUNING: path}):
            _, nodes, feed = network()
            assert "no file" in error_of(DataError, ad.Executor(nodes).run, feed)


def test_a_file_that_others_may_write_is_not_used() -> None:
    path = holding(entry(BLOCK, LOOPS))
    path.chmod(0o666)
    assert "hostile.json is not used: others may write to" in error_of(DataError, Records, path)
    path.chmod(0o644)
    Records(path).save()
    folder = Path(tempfile.mkdtemp(dir=FOLDER.name))
    path = path.rename(folder / path.name)
    link = folder / "link"
    link.symlink_to(path)
    for mode, name in ((0o777, path), (0o777, link)):
        folder.chmod(mode)
        assert f"others may write to {folder}" in error_of(DataError, Records, name)
        folder.chmod(0o755)
        Records(name)
    before = os.umask(0)
    try:
        Records(link).save()
    finally:
        os.umask(before)
    assert Records(link).path.is_symlink() and path.stat().st_mode & 0o777 == 0o644
    if os.getuid() == 0:
        os.chown(path, 12345, -1)
        assert "belongs to another user" in error_of(DataError, Records, path)


@pytest.mark.slow
def test_a_wrong_schedule_is_not_taken() -> None:
    _, nodes, feed = network()
    (first, *_) = (prim_func(spec) for spec in ad.Executor(nodes).specs(feed))
    task = Task("matmul", first, resolve_target("llvm"), 1, 0)
    task.try_some(2, float("inf"))
    task._ours = lambda *arrays: arrays[-1].copyfrom(np.full(tuple(arrays[-1].shape), 7, "float32"))
    assert task.compare() is None and not task.found
