"""`apps/ladder.py`: each rung is right, and shows the lines that made it."""

from __future__ import annotations

import re
from typing import Any
from unittest import mock

import dlsys as dl
import ladder
import numpy as np
import pytest
import tvm_ffi
from dlsys import DlsysError, tvm_op
from helpers import error_of, settings  # whose profile allows for a loaded machine
from hypothesis import example, given
from hypothesis import strategies as st
from tvm import s_tir

ROW = re.compile(r"^ *(\d)  (\S.*?)  +(\d+) +([\d.]+) +([\d.]+)x +([\d.]+)% +([\d.]+)%$", re.MULTILINE)
SIZES = (64, 80, 48)


def product(rung: ladder.Rung, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """What a rung computes."""
    out = np.full((a.shape[0], b.shape[1]), np.nan, a.dtype)
    arrays = [dl.array(value) for value in (a, b, out)]
    ladder.compiled(rung)(*(array.tensor for array in arrays))
    return arrays[-1].numpy()


@pytest.mark.slow
def test_ladder_prints_every_rung(capsys: pytest.CaptureFixture[str]) -> None:
    ladder.main(ladder.arguments([*map(str, SIZES), "--rounds", "1"]))
    out = capsys.readouterr().out
    rows = ROW.findall(out)
    assert [int(row[0]) for row in rows] == list(range(1, len(rows) + 1))
    titles = [row[1] for row in rows]
    steps = [
        "default loops",
        "tiling",
        "vectorization",
        "register tile",
        "packing",
        "in use: contraction rule",
    ]
    assert titles[:6] == steps
    threads = dl.get_num_threads()
    assert titles[6:] == ([f"parallel, {threads} threads"] if threads > 1 else [])
    assert [int(row[2]) for row in rows] == [1] * 6 + ([threads] if threads > 1 else [])
    first = float(rows[0][3])
    for row in rows:  # three digits are printed
        assert abs(float(row[3]) / first - float(row[4])) < 0.02 * float(row[4])
    for step in ladder.STEPS:
        assert all(f"     {line}\n" in out for line in ladder.body(step))


@pytest.mark.slow
def test_ladder_on_one_thread_in_float64():
    before = dl.get_num_threads()
    report = ladder.climb(20, 24, 9, "float64", threads=1, rounds=1)
    assert {row.rung.threads for row in report.rows} == {1} and list(report.peak) == list(report.numpy) == [1]
    assert dl.get_num_threads() == before


@pytest.mark.slow
@settings(max_examples=4, deadline=None, derandomize=True)
@example((1, 1, 1), "float32")
@example((25, 65, 3), "float64")
@given(st.tuples(*[st.integers(1, 70)] * 3), st.sampled_from(["float32", "float64"]))
def test_every_rung_is_right(sizes, dtype):
    m, k, n = sizes
    random = np.random.default_rng(m * n * k)
    a, b = (random.integers(-4, 5, shape).astype(dtype) for shape in ((m, k), (k, n)))
    for rung in ladder.rungs(m, k, n, dtype, threads=1):
        assert np.array_equal(product(rung, a, b), a @ b), (rung.title, sizes, dtype)


def test_what_is_shown_is_what_ran():
    rungs = ladder.rungs(64, 64, 64)
    sch = s_tir.Schedule(rungs[0].function)
    tile = ladder.tile_of(ladder.machine_of(rungs[0].target), 64, 64, 64, "float32")
    for step, rung in zip(ladder.STEPS[1:], rungs[2:], strict=False):
        assert rung.code == ladder.body(step)
    exec("\n".join(rungs[1].code), {"sch": sch, "tile": tile})
    (shown,) = sch.mod.functions.values()
    assert tvm_ffi.structural_equal(shown, rungs[1].function)


def test_the_last_rung_is_the_schedule_of_kernels():
    def loops(script: str) -> str:  # kernels have names of their own and take arrays of any alignment
        return re.sub(r"def \w+\(|, data_alignment=\d+|, align=\d+", "", script)

    for m, k, n in ((64, 80, 48), (1, 20, 300)):
        rung = ladder.rungs(m, k, n, threads=dl.get_num_threads())[-1]
        kernel = tvm_op.make_matrix_mul((m, k), False, (k, n), False, "llvm", "llvm", "matmul")
        assert loops(kernel.script()) == loops(rung.function.script()), (m, k, n)


@pytest.mark.slow
def test_a_wrong_rung_is_an_error():
    def broken(rung: ladder.Rung) -> Any:
        function = real(rung)

        def run(a: Any, b: Any, c: Any) -> None:
            function(a, b, c)
            if rung.title == "packing":
                np.from_dlpack(c)[3, 5] += 1

        return run

    real = ladder.compiled
    with mock.patch.object(ladder, "compiled", broken):
        told = error_of(DlsysError, ladder.climb, *SIZES, "float32", threads=1, rounds=1)
    assert told == "rung 5, packing, differs from NumPy at 64 x 80 x 48 in float32"


def test_wrong_arguments_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    for words, told in {
        "0 5 5": "integer of 1 or more, not '0'",
        "a b c": "integer of 1 or more, not 'a'",
        "5 5": "takes the three sizes M K N of an M x K and a K x N matrix, or none; given 2",
        "5 5 5 5": "or none; given 4",
        "--rounds 0": "--rounds: must be an integer of 1 or more, not '0'",
        "--threads many": "--threads: must be an integer of 1 or more, not 'many'",
        "--dtype int8": "invalid choice: 'int8'",
    }.items():
        with pytest.raises(SystemExit) as stopped:
            ladder.arguments(words.split())
        assert stopped.value.code == 2 and told in capsys.readouterr().err, words


def test_products_that_are_too_large_are_named() -> None:
    for sizes, dtype, threads, told in (
        ((100000, 1, 100000), "float32", None, "100000 x 1 x 100000 is too large: each matrix must have fewer than"),
        ((46000, 46000, 46000), "float64", None, "46000 x 46000 x 46000 is too large: it needs"),
        ((5, 5, 5), "float32", 123456, "number of threads must be an integer from 1 to"),
    ):
        with mock.patch("os.sysconf", lambda name: 2**17):  # pages, and bytes of a page
            assert told in error_of(DlsysError, ladder.climb, *sizes, dtype, threads, 1)


def test_the_ladders_tile_is_the_rules() -> None:
    """The accumulators of the kernel that is used: rows x columns."""
    machine = ladder.machine_of(ladder.host_target())
    for m, k, n in ((1024, 1024, 1024), (1000, 784, 256), (64, 32, 48)):
        tile = ladder.tile_of(machine, m, k, n, "float32")
        function, rule = ladder.in_use(ladder.default_loops(m, k, n, "float32"), ladder.host_target())
        script = function.script()
        assert rule.name == "contraction" and f"in T.unroll({tile.rows})" in script
        row = rf"in T.unroll\({tile.columns // machine.lanes('float32')}\b"  # of vectors of B
        panel = rf"alloc_buffer\(\(.*\b{tile.columns}\), "  # which is copied, if it is not small
        assert re.search(row, script) and (m < 100 or re.search(panel, script)), script
