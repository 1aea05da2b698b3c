"""The search over the choices of our rules: its space, its models, what it measures and keeps, and what uses that."""

from __future__ import annotations

import functools
import json
import math
import re
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import dlsys as dl
import numpy as np
import pytest
import tvm_ffi
from dlsys import autodiff as ad
from dlsys import cli, kernels, schedule
from dlsys.errors import DataError, DlsysError, GraphError
from dlsys.graph import Node
from dlsys.kernels import TuningWarning, cache, choices, target_name
from dlsys.kernels.build import prim_func
from dlsys.schedule import ScheduleWarning
from dlsys.schedule.knobs import Knobs, Space, wanting
from dlsys.schedule.machine_code import compiled
from dlsys.system import TUNING
from dlsys.tuning import measure, model, search, tuner
from dlsys.tuning.measure import Measured
from helpers import error_of
from tvm.s_tir import meta_schedule


@pytest.fixture(autouse=True)
def _by_the_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test takes the file of another, or what another has compiled."""
    monkeypatch.delenv(TUNING, raising=False)
    monkeypatch.setattr(cache, "_kernels", {})


def network(name: str = "plain") -> tuple[list[Node], dict[Node, Any]]:
    """A kernel that is a product, and its feeds."""
    random = np.random.default_rng(0)
    shapes = {
        "plain": ((45, 70), (70, 33)), "transposed": ((70, 19), (40, 70)), "long": ((9, 1500), (1500, 40)),
        "batched": ((3, 20, 70), (3, 70, 21)), "conv": ((2, 5, 9, 9), (18, 5, 3, 3)),
    }[name]  # fmt: skip
    x, w = (ad.Variable(letter) for letter in "xw")
    if name == "conv":
        out = ad.conv2d_op(x, w, stride=1, padding=1)
    else:
        out = ad.matmul_op(x, w, trans_A=name == "transposed", trans_B=name == "transposed")
    feeds = (random.uniform(0.5, 1.5, shape).astype("float32") for shape in shapes)
    return [ad.relu_op(out)], dict(zip((x, w), feeds, strict=True))


def task_of(name: str = "plain") -> search.Task:
    nodes, feed = network(name)
    (found,), count = tuner.tasks_of(nodes, target_name("llvm"), feed)
    assert count == 1 and found.calls == 1
    return found


class Simulated(measure.Worker):
    """Measures by a formula: the rule's own choice takes 1 ms; each knob with the target's value changes it."""

    def __init__(self, space: Space, share: float = 0.9, failing: int = 0) -> None:
        super().__init__(())
        random = np.random.default_rng(1)
        self.own, self.share, self.failing, self.asked = space.own, share, failing, list[Knobs]()
        legal = False
        while not legal:
            self.target = {name: values[random.integers(len(values))] for name, values in space.domains.items()}
            legal = space.legal(self.target)

    def seconds(self, knobs: Knobs) -> float:
        return 1e-3 * self.share ** sum(knobs[name] == value != self.own[name] for name, value in self.target.items())

    def load(self, request: measure.Request) -> float:
        return 1e-3

    def measure(self, chosen: Sequence[Knobs], best: float = math.inf) -> list[Measured]:
        found = [Measured(self.seconds(knobs), 1e-3) for knobs in chosen]
        if math.isinf(best):
            return found
        self.asked += chosen
        return [*(Measured(error="it ended") for _ in found[: self.failing]), *found[self.failing :]]


def searched_all(path: Path, trials: int, name: str = "plain", **how: Any) -> tuple[tuner.Tuning, Simulated]:
    """What comes of one kernel with simulated measurements, and these."""
    simulated, (nodes, feed) = Simulated(task_of(name).space, **how), network(name)
    return tuner.tune(nodes, trials, None, path, feed_shapes=feed, verbose=False, measurer=simulated), simulated


def searched(path: Path, trials: int = 48, name: str = "plain", **how: Any) -> tuple[Any, Simulated]:
    """The search of one kernel, and its measurements."""
    found, simulated = searched_all(path, trials, name, **how)
    return found.searches[0], simulated


# The space -------------------------------------------------------------------------------------------------


STEPS = {
    "softmax": (ad.softmax_op, (64, 1000)), "short": (ad.softmax_op, (512, 10)), "large": (ad.softmax_op, (999, 4096)),
    "columns": (lambda x: ad.reducesum_op(x, axes=(0,)), (300, 700)),
    "sums": (lambda x: ad.reducesum_op(x, axes=(1,)), (300, 700)),
    "elementwise": (lambda x: ad.exp_op(x) * 2.0, (333, 217)),
}  # fmt: skip


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", STEPS)
def test_loops_along_memory_have_spaces(name: str, threads: int) -> None:
    operator, shape = STEPS[name]
    x, feed = ad.Variable("x"), np.random.default_rng(0).uniform(0.5, 1.5, shape).astype("float32")
    (spec,), target = ad.Executor([operator(x)]).specs({x: feed}), schedule.host_target(threads)
    function = prim_func(spec)
    space = schedule.space_of(function, target)
    assert space is not None and space.legal(space.own) and {"threads", "vectors"} <= space.domains.keys()
    scripts, results = set[str](), list[np.ndarray]()
    for knobs in [space.own, *space.neighbours(space.own)]:
        assert len(space.features(knobs)) == len(space.features(space.own))
        made, _ = schedule.apply(function, target, chooser=wanting(knobs))
        run = compiled({"main": made.with_attr("global_symbol", "main")}, target)["main"]
        out = dl.array(np.full(spec.outputs[0][0], np.nan, "float32"))
        run(dl.array(feed.reshape(spec.inputs[0][0])).tensor, out.tensor)
        results.append(out.numpy())
        scripts.add(made.script())
    assert len(scripts) > 1
    for result in results:
        np.testing.assert_allclose(result, results[0], rtol=1e-5)


@pytest.mark.parametrize("name", ["plain", "transposed", "conv"])
def test_a_space_is_finite_and_has_the_rules_own_choice(name: str) -> None:
    space = task_of(name).space
    assert space.legal(space.own) and math.prod(map(len, space.domains.values())) < 10**8 and space.flop > 0
    neighbours = list(space.neighbours(space.own))
    assert len(neighbours) > 5
    for knobs in neighbours:
        assert space.legal(knobs) and sum(knobs[name] != space.own[name] for name in knobs) == 1
        assert len(space.features(knobs)) == len(space.features(space.own))
        assert np.isfinite(space.features(knobs)).all()
    for wrong in ({}, {**space.own, "rows": 10**6}, {**space.own, "other": 1}, {**space.own, "a": "elsewhere"}):
        assert not space.legal(wrong)


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", ["plain", "transposed", "long", "batched", "conv"])
def test_drawn_choices_compute_the_same(name: str, threads: int) -> None:
    nodes, feed = network(name)
    (spec,), target = ad.Executor(nodes).specs(feed), schedule.host_target(threads)
    function, random = prim_func(spec), np.random.default_rng(0)
    space = schedule.space_of(function, target)
    assert space is not None
    found, results = [space.own, *(space.drawn(random) for _ in range(7))], list[np.ndarray]()
    assert all(map(space.legal, found))
    for knobs in found:
        made, _ = schedule.apply(function, target, chooser=wanting(knobs))
        run = compiled({"main": made.with_attr("global_symbol", "main")}, target)["main"]
        arrays = [dl.array(value).tensor for value in (*feed.values(), np.full(spec.outputs[0][0], np.nan, "float32"))]
        run(*arrays)
        results.append(np.array(np.from_dlpack(arrays[-1])))
    for knobs, result in zip(found, results, strict=True):
        np.testing.assert_allclose(result, results[0], rtol=1e-5, err_msg=str(knobs))


def test_knobs_that_a_space_has_not_are_told_and_the_rule_chooses() -> None:
    nodes, feed = network()
    (spec,), target = ad.Executor(nodes).specs(feed), schedule.host_target(1)
    wanted, _ = schedule.apply(prim_func(spec), target)
    with pytest.warns(ScheduleWarning, match="has not the knobs"):
        found, _ = schedule.apply(prim_func(spec), target, chooser=wanting({"rows": -1}))
    assert tvm_ffi.structural_equal(found, wanted)


# The search ------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_search_finds_more_than_chance_and_repeats_itself(tmp_path: Path) -> None:
    one, simulated = searched(tmp_path / "a.jsonl")
    again, other = searched(tmp_path / "b.jsonl")
    assert simulated.asked == other.asked and one.best == again.best
    assert one.gain == pytest.approx(1e-3 / simulated.seconds(one.best)) and one.history == sorted(one.history)[::-1]
    assert len({tuple(knobs.items()) for knobs in simulated.asked}) == len(simulated.asked) == one.trials <= 48
    random, space = np.random.default_rng(0), one.task.space
    drawn = np.array([simulated.seconds(space.drawn(random)) for _ in range(20 * 48)]).reshape(20, 48)
    assert simulated.seconds(one.best) < np.median(drawn.min(1))  # of 20 random searches


@pytest.mark.slow
def test_no_result_is_slower_than_the_rule(tmp_path: Path) -> None:
    one, _ = searched(tmp_path / "a.jsonl", share=1.1)
    assert one.gain == 1 and one.best == one.task.space.own and one.ratio == 1
    one, _ = searched(tmp_path / "b.jsonl", share=0.998)  # all of it is less than measurements vary
    assert one.gain == 1 and one.best == one.task.space.own
    assert [record["gain"] for record in choices.read(tmp_path / "b.jsonl") if "gain" in record] == [1]


def test_a_flattering_measurement_is_compared_and_not_taken(tmp_path: Path) -> None:
    class Flattering(Simulated):
        def measure(self, chosen: Sequence[Knobs], best: float = math.inf) -> list[Measured]:
            found = super().measure(chosen, best)
            return found if math.isinf(best) else [Measured(one.seconds / 3, one.rule) for one in found]

    nodes, feed = network()
    flattering = Flattering(task_of().space, share=1.0)
    (one,) = tuner.tune(nodes, 16, None, tmp_path / "a", feed_shapes=feed, verbose=False, measurer=flattering).searches
    assert min(one.history) < 0.4 and one.gain == 1 and one.best == one.task.space.own


def test_choices_that_fail_cost_a_trial_each(tmp_path: Path) -> None:
    one, _ = searched(tmp_path / "a.jsonl", failing=2)
    assert 4 < len(one.failed) < one.trials and "failed" in str(one) and one.gain > 1


@pytest.mark.slow
def test_a_second_run_goes_on_and_other_kernels_teach(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    one, first = searched(path, 24)
    found, second = searched_all(path, 24)
    (again,) = found.searches
    known = {tuple(sorted(knobs.items())) for knobs in first.asked}
    assert not known & {tuple(sorted(knobs.items())) for knobs in second.asked}
    assert again.gain >= one.gain and math.isnan(again.correlations()["trees"])
    found, _ = searched_all(path, 24, "transposed")
    (other,) = found.searches
    assert other.correlations()["trees"] < 1 and "before the first measurement: trees" in str(found)
    records = choices.read(path)
    assert len(records) == len(first.asked) + len(second.asked) + other.trials + 3 + 3  # verdicts and own choices


def test_records_of_another_machine_teach_and_are_no_trials(tmp_path: Path) -> None:
    _, first = searched(tmp_path / "a", 16)
    choices.append(tmp_path / "b", [{**record, "machine": "other"} for record in choices.read(tmp_path / "a")])
    one, second = searched(tmp_path / "b", 16)
    asked = [{tuple(sorted(knobs.items())) for knobs in simulated.asked} for simulated in (first, second)]
    assert asked[0] & asked[1] and one.gain > 1


def test_time_is_bounded_and_ctrl_c_keeps_what_was_found(tmp_path: Path, capsys: Any) -> None:
    class Interrupted(Simulated):
        def measure(self, chosen: Sequence[Knobs], best: float = math.inf) -> list[Measured]:
            if len(self.asked) >= 16 and not math.isinf(best):
                raise KeyboardInterrupt
            return super().measure(chosen, best)

    nodes, feed = network()
    interrupted, path = Interrupted(task_of().space), tmp_path / "a.jsonl"
    found = tuner.tune(nodes, 64, None, path, feed_shapes=feed, measurer=interrupted)
    printed = capsys.readouterr().out
    assert "interrupted" in printed and "[16/64]" in printed and "s left" in printed
    assert found.searches[0].trials == 16 and found.searches[0].gain > 1 and len(choices.read(path)) == 16 + 2
    found = tuner.tune(nodes, 64, 1e-9, tmp_path / "b", feed_shapes=feed, measurer=Simulated(task_of().space))
    assert found.searches[0].trials == 0 and found.gain == 1


@pytest.mark.parametrize("name", [pytest.param("mlp", marks=pytest.mark.slow), "trees"])
def test_models_learn_to_rank(name: str) -> None:
    random = np.random.default_rng(0)
    x = random.uniform(0, 4, (600, 4))
    y = np.abs(x[:, 0] - 2) + 0.5 * np.maximum(x[:, 1], x[:, 2])
    found = model.MODELS[name](x[:500], y[:500])
    assert model.rank_correlation(found(x[500:]), y[500:]) > 0.8
    assert math.isnan(model.rank_correlation(y[:3], y[:3])) and math.isnan(model.rank_correlation(y, np.ones(300)))


def test_targets_are_relative_to_the_best_of_a_task() -> None:
    own = {"space": "product", "machine": "m", "features": [1.0, 2.0], "rule": 2.0}
    times = (("a", 1), ("a", 2), ("b", 9), ("a", 99))
    records = [{**own, "loops": loops, "seconds": seconds} for loops, seconds in times]
    space = Space("product", {"a": 1}, {"a": (1,)}, make=bool, features=lambda knobs: [0.0, 0.0])
    x, y = model.samples([*records, {**records[0], "gain": 2.0}, {**records[0], "space": "rows"}], space)
    assert x.shape == (4, 2) and y == pytest.approx([0, math.log(2), 0, math.log(model.WORST)])


# Measurements in a process of their own --------------------------------------------------------------------

FAKE = """
import os, sys, time
from dlsys.processes import serve

class Fake:
    def load(self, request): return {"rule": 1.0}
    def compile(self, choices, best):
        if any(knobs["rows"] == 1 for knobs in choices): os.abort()
        return {}
    def measure(self, knobs, best):
        if knobs["rows"] in (1, 2): os._exit(1)
        if knobs["rows"] == 3: time.sleep(60)
        if knobs["rows"] == 4: raise ValueError("its results are others")
        return {"seconds": knobs["rows"] / 10, "rule": 1.0}

serve(int(sys.argv[1]), Fake())
"""


def test_a_crash_or_a_loop_without_end_costs_one_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure.Worker, "limit", 3.0)
    own = measure.Worker([sys.executable, "-c", FAKE])
    try:
        assert own.load({}) == 1.0
        found = own.measure([{"rows": rows} for rows in (8, 2, 5, 3, 6, 1, 7, 4)], 1.0)
    finally:
        own.close()
    assert [one.ratio for one in found] == [0.8, math.inf, 0.5, math.inf, 0.6, math.inf, 0.7, math.inf]
    assert [bool(one.error) for one in found] == [False, True] * 4
    for number, told in ((3, "more than 3 s"), (5, "ended the process"), (7, "are others")):
        assert told in found[number].error


@pytest.mark.slow
def test_a_kernel_is_measured_beside_the_rules() -> None:
    task, own = task_of(), measure.Worker(measure.LOCAL)
    space = task.space
    try:
        rule = own.load(task.request)
        found = own.measure([space.own, next(space.neighbours(space.own))], 1.0)
        (best,) = own.measure([space.own])
    finally:
        own.close()
    assert all(0 < one.seconds < 1 and not one.error for one in found) and 0 < rule < 1 and 0.5 < best.ratio < 2


def test_results_are_compared_with_the_rules() -> None:
    task, bench = task_of(), measure.Bench()
    bench.load(task.request)
    bench.wanted[-1] = bench.wanted[-1] * 1.01
    assert "its results are not the rule's" in error_of(ValueError, bench.timed, bench.rule, 1.0)


# What is kept, and what uses it ----------------------------------------------------------------------------


def test_executors_use_the_file_and_say_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.jsonl"
    (nodes, feed), (one, _) = network(), searched(tmp_path / "a.jsonl")
    (wanted,) = ad.Executor(nodes).run(feed, True)
    assert "tuned" not in ad.Executor(nodes).groups(feed)
    monkeypatch.setenv(TUNING, str(path))
    executor = ad.Executor(nodes)
    told = f"contraction, tuned, {one.gain:.2f} of the rule"
    assert told in executor.groups(feed)  # before it is compiled, too
    (found,) = executor.run(feed, True)
    kernel, *_ = executor.node_to_compiled_func.values()
    assert dict(kernel.spec.choice.knobs) == one.best and told in str(executor.profile(feed, 2))
    np.testing.assert_allclose(found, wanted, rtol=1e-5)
    monkeypatch.delenv(TUNING)
    assert told in executor.groups() and "tuned" not in ad.Executor(nodes).groups(feed)
    (rules,) = kernels.get([kernel.spec.with_choice(None)])
    assert rules.spec.choice is None and rules.script() != kernel.script()


@pytest.mark.parametrize("change", [{"machine": "other"}, {"versions": "0"}, {"gain": 1.01}, {"formula": "0"}])
def test_a_verdict_counts_for_its_machine_and_versions(
    change: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, (nodes, feed) = tmp_path / "a.jsonl", network()
    searched(path)
    *_, verdict = choices.read(path)
    monkeypatch.setenv(TUNING, str(path))
    assert "tuned" in ad.Executor(nodes).groups(feed)
    other = tmp_path / "b.jsonl"
    choices.append(other, [{**verdict, **change}])
    monkeypatch.setenv(TUNING, str(other))
    assert "tuned" not in ad.Executor(nodes).groups(feed)
    choices.append(path, [{**verdict, "gain": 1.0}])  # the last one counts
    monkeypatch.setenv(TUNING, str(path))
    assert "tuned" not in ad.Executor(nodes).groups(feed)


def test_choices_come_with_the_package_for_a_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes, feed = network()
    monkeypatch.setattr(choices, "SHIPPED", tmp_path)
    path, empty = choices.shipped(target_name("llvm")), tmp_path / "empty"
    assert "tuned" not in ad.Executor(nodes).groups(feed)
    one, _ = searched(path)
    executor = ad.Executor(nodes)
    assert f"tuned, {one.gain:.2f} of the rule" in executor.groups(feed)
    executor.run(feed)
    kernel, *_ = executor.node_to_compiled_func.values()
    assert dict(kernel.spec.choice.knobs) == one.best
    empty.touch()
    monkeypatch.setenv(TUNING, str(empty))  # which goes before it
    assert "tuned" not in ad.Executor(nodes).groups(feed)


@pytest.mark.slow
def test_a_kernel_on_disk_is_that_of_its_choice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DLSYS_COMPILE_CACHE", str(tmp_path / "compiled"))
    path, (nodes, feed) = tmp_path / "a.jsonl", network()
    searched(path)
    scripts, built = list[str](), list[int]()
    make = kernels.build.build
    for variable in ("", str(path), "", str(path)):
        monkeypatch.setattr(cache, "_kernels", {})
        monkeypatch.setenv(TUNING, variable)
        monkeypatch.setattr(kernels.build, "build", lambda specs, *rest: built.append(len(specs)) or make(specs, *rest))
        executor = ad.Executor(nodes)
        executor.run(feed)
        scripts.append(executor.script(0))
    assert scripts[0] == scripts[2] != scripts[1] == scripts[3]
    assert len(built) == 2  # the third and the fourth are from disk


def test_damaged_lines_are_left_out_with_a_warning(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    searched(path, 8)
    whole = choices.read(path)
    good, verdict = whole[0], whole[-1]
    damaged = [{key: value for key, value in good.items() if key != gone} for gone in good]
    damaged += [{**good, key: value} for key in ("seconds", "rule") for value in (0, -1.0, "1", None, float("nan"))]
    many = dict.fromkeys(map(str, range(99)), 1)
    damaged += [{**good, "knobs": knobs} for knobs in (5, [], {"a": []}, {"a": 1.5}, many)]
    damaged += [{**verdict, "gain": gain} for gain in ("2", float("inf"), None)]
    texts = [*map(json.dumps, damaged), "{", "5", "null", "[" * 100_000, '{"a":' * 5000, "1" * 5000, "\0", "\ufffd"]
    path.write_text(path.read_text() + "\n".join(texts) + "\n", encoding="utf-8")
    with pytest.warns(TuningWarning, match=f"{len(texts)} lines are damaged and left out"):
        assert choices.read(path) == whole
    path.write_bytes(path.read_bytes() + b'{"loops": "half a li')  # a killed process' last line
    choices.append(path, [good])
    with pytest.warns(TuningWarning):
        assert choices.read(path) == [*whole, good]


def test_files_that_cannot_be_read_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes, feed = network()
    monkeypatch.setenv(TUNING, str(tmp_path / "none"))
    assert "cannot be read: No such file" in error_of(DataError, ad.Executor(nodes).run, feed)
    for path in ("/dev/zero", str(tmp_path)):
        monkeypatch.setenv(TUNING, path)
        assert path in error_of(DataError, ad.Executor(nodes).run, feed)
    assert "cannot be written" in error_of(DataError, choices.append, tmp_path, [])
    with open(tmp_path / "huge", "wb") as file:
        file.truncate(2**36)
    assert "bytes" in error_of(DataError, choices.read, tmp_path / "huge")
    assert choices.read(tmp_path / "none") == []


@pytest.mark.slow
def test_files_are_merged_and_two_processes_may_append(tmp_path: Path) -> None:
    one, other = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    searched(one, 8)
    searched(other, 8)
    searched(other, 8, "transposed")
    count = len(choices.read(one))
    assert choices.merge(one, other) == len(choices.read(other)) - count and choices.merge(one, other) == 0
    assert "no such file" in error_of(DataError, choices.merge, one, tmp_path / "none")
    code = (
        "import sys; from dlsys.kernels import choices\n"
        "records = choices.read(sys.argv[1])\n"
        "for _ in range(200): choices.append(sys.argv[2], records[:3])"
    )
    both = [subprocess.Popen([sys.executable, "-c", code, str(one), str(tmp_path / "c")]) for _ in range(2)]
    assert [process.wait() for process in both] == [0, 0]
    assert len(choices.read(tmp_path / "c")) == 2 * 200 * 3


def test_the_command_line(tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "a.jsonl"
    searched(path, 8)
    assert cli.main(["tune", "merge", str(tmp_path / "b"), str(path)]) == 0
    assert cli.main(["tune", "--database", str(path)]) == 0
    printed = capsys.readouterr().out
    assert "records of" in printed and "matmul_relu: 1000.0 us by the rule" in printed and "1 kernels tuned" in printed
    assert cli.main(["tune", "merge", "a"]) == 2 and "takes M K N" in capsys.readouterr().err
    assert cli.main(["tune", "100000", "100000", "1"]) == 2 and "too large" in capsys.readouterr().err


# All of it -------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_tune_measures_here_and_everything_uses_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes, feed = network()
    (wanted,) = ad.Executor(nodes).run(feed, True)
    path = tmp_path / "a.jsonl"
    found = dl.tune(ad.Executor(nodes), 8, database=path, feed_shapes=feed, verbose=False, model="mlp")
    (one,) = found.searches
    assert one.trials == 8 and not one.failed and one.gain >= 1 and "1 of 1 kernel searched" in str(found)
    found.plot(tmp_path / "a.png", {"matmul_relu": [one.rule] * 8})
    assert (tmp_path / "a.png").stat().st_size > 1000
    *records, verdict = choices.read(path)
    choices.append(path, [{**verdict, "knobs": records[-1]["knobs"], "gain": 2.0}])  # so that it is used
    monkeypatch.setenv(TUNING, str(path))
    executor = ad.Executor(nodes)
    np.testing.assert_allclose(executor.run(feed, True)[0], wanted, rtol=1e-5)
    assert "tuned, 2.00 of the rule" in executor.groups()
    kernel, *_ = executor.node_to_compiled_func.values()
    simulated = Simulated(one.task.space)
    again = dl.tune(kernel, 1, database=path, verbose=False, measurer=simulated)
    assert again.searches[0].task.loops == verdict["loops"]
    shapes = {node: value.shape for node, value in feed.items()}
    module = dl.relax.to_relax(nodes, shapes)
    fused_ones = dl.tune(module, 1, database=tmp_path / "b", verbose=False, measurer=simulated)
    assert fused_ones.searches[0].trials == 1
    fused = dl.relax.compile(nodes, schedule="tuned", database=path, feed_shapes=shapes)
    assert fused.rules["contraction"] + fused.rules["tuned"] == 1
    np.testing.assert_allclose(fused(*feed.values())[0], wanted, rtol=1e-5)


@pytest.mark.slow
def test_metaschedule_searches_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ways = meta_schedule.search_strategy
    few = functools.partial(ways.EvolutionarySearch, population_size=16, genetic_num_iters=1)  # of its own: 5 s
    monkeypatch.setattr(ways, "EvolutionarySearch", few)
    nodes, feed = network()
    shapes = {node: value.shape for node, value in feed.items()}
    tmp_path.chmod(0o700)
    how = {"schedule": "metaschedule", "database": tmp_path / "schedules", "feed_shapes": shapes}
    found = dl.relax.tune(nodes, 1, tmp_path / "schedules", feed_shapes=shapes)
    assert re.fullmatch(r"fused_matmul_relu: 1 measured, best .* us\nstored in .*", str(found))
    made = dl.relax.compile(nodes, **how)
    assert made.rules["metaschedule"] == 1
    np.testing.assert_allclose(made(*feed.values())[0], ad.Executor(nodes).run(feed, True)[0], rtol=1e-5)
    (tmp_path / "schedules").chmod(0o777)
    assert "others may write to" in error_of(DataError, dl.relax.compile, nodes, **how)


def test_the_extra_brings_no_library_for_gpus() -> None:
    """`xgboost` depends on NCCL, some 480 MB; `xgboost-cpu` is the same module."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    needed = {re.split(r"[<>=]", line)[0] for line in project["optional-dependencies"]["relax"]}
    assert needed == {"cloudpickle", "onnx", "psutil", "xgboost-cpu"}


def test_mistakes_are_told(tmp_path: Path) -> None:
    nodes, feed = network()
    assert "trials" in error_of(GraphError, dl.tune, nodes, -4, database=tmp_path / "a", feed_shapes=feed)
    assert "seconds must be a number >= 0" in error_of(GraphError, dl.tune, nodes, 4, -1, tmp_path / "a")
    assert "trees, mlp" in error_of(GraphError, dl.tune, nodes, 4, database=tmp_path / "a", model="best")
    assert "not Linear" in error_of(GraphError, dl.tune, dl.nn.Linear(2, 2), database=tmp_path / "a")
    assert "schedule is one of rules, default, tuned, metaschedule" in error_of(
        GraphError, dl.relax.compile, nodes, schedule="best", feed_shapes=feed
    )
    lost = measure.Worker([sys.executable, "-c", "pass"])
    assert "cannot be measured" in error_of(DlsysError, lost.load, task_of().request)
