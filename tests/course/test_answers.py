"""`course/`: the skeleton has no points, the solution all, and a mistake costs what it breaks and names its place."""

from __future__ import annotations

import ast
import atexit
import importlib.util
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import pytest
import tvm
from helpers import python

SOLUTION = Path(__file__).resolve().parent / "solution"
COURSE = SOLUTION.parents[2] / "course"
FILES = ("executor.py", "kernels.py")


@pytest.fixture(scope="module")
def grader() -> Iterator[ModuleType]:
    """The module of the assignment's tests. Machine code of one answer serves the next, of which most is the same."""
    spec = importlib.util.spec_from_file_location("grader", COURSE / "test_course.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    atexit.unregister(module.show_points)
    compiled: dict[tuple[str, str], Any] = {}

    def compile_once(functions: tvm.IRModule, target: Any, compile: Any = tvm.compile) -> Any:
        key = functions.script(), str(target)
        if key not in compiled:
            compiled[key] = compile(functions, target=target)
        return compiled[key]

    with mock.patch.object(tvm, "compile", compile_once):
        yield module
    for name in FILES:
        sys.modules.pop(name.removesuffix(".py"), None)


def lost(grader: ModuleType, folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The tests that the answer in a folder fails, each with the first line of its message."""
    monkeypatch.setenv("COURSE_ANSWER", str(folder))
    messages = {}
    for name in grader.POSSIBLE:
        try:
            getattr(grader, name)()
        except Exception as error:  # noqa: BLE001
            messages[name] = str(error)
    return messages


def test_the_points_are_a_hundred_and_the_files_are_short(grader: ModuleType) -> None:
    assert sum(grader.POSSIBLE.values()) == 100
    lines = {path.name: len(path.read_text("utf-8").splitlines()) for path in COURSE.iterdir() if path.is_file()}
    assert sum(lines.values()) <= 700, lines


def test_the_skeleton_is_the_solution_without_what_is_to_be_written() -> None:
    for name in FILES:
        written, bare = (ast.parse((folder / name).read_text(encoding="utf-8")) for folder in (SOLUTION, COURSE))
        kept = {node.name for node in ast.walk(bare) if isinstance(node, ast.FunctionDef)}
        todo = {
            node.name
            for node in ast.walk(bare)
            if isinstance(node, ast.FunctionDef) and "NotImplementedError('TODO" in ast.unparse(node)
        }
        for tree in (written, bare):
            tree.body = [node for node in tree.body if not isinstance(node, ast.FunctionDef) or node.name in kept]
            for node in ast.walk(tree):
                if isinstance(node, ast.FunctionDef) and node.name in todo:
                    node.body = node.body[:1]  # the docstring
        assert todo and ast.unparse(bare) == ast.unparse(written)


def test_the_skeleton_has_no_points(grader: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    messages = lost(grader, COURSE, monkeypatch)
    assert messages.keys() == grader.POSSIBLE.keys()
    assert all(message.startswith("TODO ") for message in messages.values()), messages


@pytest.mark.slow
@pytest.mark.parametrize("runner", ["pytest", "nose"])
def test_both_runners_count_the_points(runner: str) -> None:
    """Of the skeleton with nose, of the solution's first part with pytest."""
    first_part = ["-k", "not kernel and not schedule and not learn"]
    folder, options, points = (COURSE, [], 0) if runner == "nose" else (SOLUTION, first_part, 53)
    done = python("-m", runner, COURSE / "test_course.py", *options, status=None, COURSE_ANSWER=str(folder))
    assert done.stdout.splitlines()[-1] == f"points: {points} of 100", done.stdout + done.stderr


BOTH_NETWORKS = ("logistic_regression_learns_4", "three_layers_learn_4")


@dataclass(frozen=True)
class Mistake:
    """A piece of the solution and what stands in its place, the tests that must fail, and words of their messages."""

    file: str
    right: str
    wrong: str
    costs: tuple[str, ...]
    place: str


MISTAKES = {
    "a shape rule that forgets broadcasting": Mistake(
        "executor.py",
        'return b if node.op == "sum_to" else shape',
        'return b if node.op == "sum_to" else a',
        ("shapes_of_broadcasts_5", *BOTH_NETWORKS),
        "infer_shape: add of (3,) and (4, 3) is (3,), not (4, 3)",
    ),
    "inner dimensions that are not compared": Mistake(
        "executor.py",
        'require(k == other, "inner dimensions differ")',
        "pass",
        ("wrong_shapes_are_errors_4",),
        "infer_shape: matmul of [(2, 3), (4, 5)] must raise ShapeError",
    ),
    "an output that dies with its last reader": Mistake(
        "executor.py",
        "spans[node] = spans[node][0], len(steps)",
        "pass",
        ("lifetimes_8", "three_layers_learn_4"),
        "lives from and to (4, 5), not (4, 6)",
    ),
    "an input that dies before the step that reads it": Mistake(
        "executor.py",
        "spans[x] = spans[x][0], step",
        "spans[x] = spans[x][0], step - 1",
        ("lifetimes_8", *BOTH_NETWORKS),
        "lives from and to (0, 2), not (0, 3)",
    ),
    "a buffer reused too early": Mistake(
        "executor.py",
        "if spans[other][0] <= last and first <= spans[other][1]",
        "if spans[other][0] < last and first < spans[other][1]",
        ("no_two_live_values_share_bytes_9", *BOTH_NETWORKS),
        "shares bytes with step",
    ),
    "a plan that shares nothing": Mistake(
        "executor.py",
        "if spans[other][0] <= last and first <= spans[other][1]",
        "",
        ("the_arena_is_small_6",),
        "times the bytes of the worst step in the mean; 1.15 is asked",
    ),
    "results that are views of the arena": Mistake(
        "executor.py",
        "[self.values[node].copy() for node in self.outputs]",
        "[self.values[node] for node in self.outputs]",
        ("run_again_5",),
        "run: a result is no copy",
    ),
    "kernels built again in each run": Mistake(
        "executor.py",
        "if feed_shapes != self.feed_shapes:",
        "if True:",
        ("run_again_5",),
        "run: for two shapes of feeds, 4, 4, 6, 6, these were built",
    ),
    "a product that forgets a transpose": Mistake(
        "kernels.py",
        "(b[j, k] if trans_b else b[k, j])",
        "b[k, j]",
        ("kernel_matmul_6", "schedule_keeps_the_values_4", "three_layers_learn_4"),
        "kernels.matmul of (2, 5) and (4, 5) {'trans_a': False, 'trans_b': True}",
    ),
    "a gradient at 0": Mistake(
        "kernels.py",
        "x(*i) > zero",
        "x(*i) >= zero",
        ("kernel_relu_gradient_2",),
        "kernels.relu_gradient of (40,) and (40,)",
    ),
    "softmax without the maximum": Mistake(
        "kernels.py",
        'name="total")\n    return te.compute((rows, columns), lambda i, j: te.exp(x[i, j] - top[i]) / total[i]',
        'name="total")\n    total = te.compute((rows,), lambda i: te.sum(te.exp(x[i, k]), axis=k), name="sums")\n'
        "    return te.compute((rows, columns), lambda i, j: te.exp(x[i, j]) / total[i]",
        ("kernel_softmax_4",),
        "kernels.softmax of (4, 7), first input from -1500",
    ),
    "sums over the axes in front alone": Mistake(
        "kernels.py",
        "if axis < front or shape[axis - front] != whole[axis]]",
        "if axis < front]",
        ("kernel_sum_to_4",),
        "kernels.sum_to of (4, 3) and (4, 1)",
    ),
    "a slow schedule": Mistake(
        "kernels.py",
        "schedule.reorder(i, j, k, rows, columns)\n    schedule.vectorize(columns)",
        "schedule.reorder(i, j, k, columns, rows)\n    schedule.vectorize(rows)",
        ("schedule_is_ten_times_as_fast_8",),
        "times as fast as the default loops of 384 x 384 x 384, not 10",
    ),
    "a schedule for sizes that the tile divides": Mistake(
        "kernels.py",
        "schedule.split(j, [None, 32])",
        "schedule.split(j, [int(schedule.get(j).extent) // 32, 32])",
        ("schedule_keeps_the_values_4", *BOTH_NETWORKS),
        "in the schedule primitive 'split'",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["none", "borrowed", *MISTAKES])
def test_a_mistake_costs_what_it_breaks(
    grader: ModuleType, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for file in FILES:
        text = (SOLUTION / file).read_text(encoding="utf-8")
        if name == "borrowed" and file == "kernels.py":
            text = text.replace("import tvm\n", "import dlsys\nimport tvm\n")
        elif name in MISTAKES and MISTAKES[name].file == file:
            assert text.count(MISTAKES[name].right) == 1
            text = text.replace(MISTAKES[name].right, MISTAKES[name].wrong)
        (tmp_path / file).write_text(text, encoding="utf-8")
    messages = lost(grader, tmp_path, monkeypatch)
    if name == "borrowed":
        assert messages.keys() == grader.POSSIBLE.keys()
        assert all("kernels.py, line 17: dlsys" in message for message in messages.values()), messages
    else:
        costs = MISTAKES[name].costs if name in MISTAKES else ()
        assert {name.removeprefix("test_").removesuffix("_points") for name in messages} == set(costs), messages
        assert name == "none" or any(MISTAKES[name].place in message for message in messages.values()), messages
