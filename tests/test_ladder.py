"""`apps/ladder.py`: each rung is right, and shows the lines that made it."""

from __future__ import annotations

import re

import dlsys as dl
import ladder
import numpy as np
import pytest
import tvm_ffi
from dlsys import tvm_op
from helpers import settings  # whose profile allows for a loaded machine
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
