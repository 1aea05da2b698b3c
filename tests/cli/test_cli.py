"""The command line: `info`, `ladder`, and what they are built of."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import dlsys as dl
import numpy as np
import pytest
import tvm
import tvm_ffi
from dlsys import tvm_op
from dlsys.cli import info, ladder, main
from dlsys.cli import rungs as schedules
from dlsys.kernels import peak
from dlsys.schedule.target import described, host_target
from helpers import python, settings  # whose profile allows for a loaded machine
from hypothesis import example, given
from hypothesis import strategies as st
from tvm import s_tir

context = sys.modules["dlsys.devices.context"]  # the module: `dlsys.devices.context` is the function

ROOT = Path(__file__).resolve().parents[2]
ROW = re.compile(r"^ *(\d)  (\S.*?)  +(\d+) +([\d.]+) +([\d.]+)x +([\d.]+)% +([\d.]+)%$", re.MULTILINE)
QUICK = ("ladder", "64", "80", "48", "--rounds", "1")


def call(*arguments: str) -> tuple[int, str, str]:
    """Exit status, stdout and stderr of the program, run in this process."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            status: Any = main(list(arguments))
        except SystemExit as exit_:
            status = exit_.code
    return status, out.getvalue(), err.getvalue()


def product(rung: schedules.Rung, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """What a rung computes."""
    out = np.full((a.shape[0], b.shape[1]), np.nan, a.dtype)
    arrays = [dl.array(value) for value in (a, b, out)]
    schedules.compiled(rung)(*(array.tensor for array in arrays))
    return arrays[-1].numpy()


# info ------------------------------------------------------------------------------------------------------


def test_info_is_text_and_json(folder: Path):
    plans, data = folder / "compiled", folder / "data" / "set"
    for file, size in ((plans / "a.so", 1000), (plans / "b.so", 2000), (data / "images", 3 * 1024)):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(bytes(size))
    with mock.patch.dict(os.environ, {"DLSYS_CACHE": str(folder)}):
        os.environ.pop("DLSYS_COMPILE_CACHE", None)
        status, out, err = call("info", "--json")
        text = call("info")[1]
    assert (status, err) == (0, "")
    facts = json.loads(out)
    assert facts["dlsys"] == dl.__version__ and facts["NumPy"] == np.__version__ and facts["TVM"] == tvm.__version__
    assert facts["target"] == f"llvm, mcpu {described(host_target())}"
    assert facts["threads"].startswith(f"{dl.get_num_threads()} of ")
    assert facts["compiled kernels"] == f"{plans}: 2 files, 2.9 KiB"
    assert facts["data"] == f"{data.parent}: 1 file, 3.0 KiB"
    assert dict(re.split(r"  +", line, maxsplit=1) for line in text.splitlines()) == facts


def test_info_without_a_cache_of_kernels():
    with mock.patch.dict(os.environ, {"DLSYS_COMPILE_CACHE": "0"}):
        assert info.facts()["compiled kernels"] == "not stored"


def test_info_says_what_cuda_lacks():
    assert info.facts()["CUDA"].startswith("none") != bool(tvm.runtime.enabled("cuda") and tvm.cuda(0).exist)
    told = {context.EXISTS: 1, context.NAME: "NVIDIA H200", context.COMPUTE_VERSION: "9.0"}
    one = mock.patch.object(context.Cuda, "attribute", lambda self, index, which: told[which] if index < 1 else 0)
    enabled = mock.patch.object(context.Cuda, "lacking", lambda self: "")
    with one, enabled:
        assert info.facts()["CUDA"].startswith("NVIDIA H200 (compute 9.0); nvidia-cuda-nvrtc")


def test_features_are_those_that_the_schedules_see():
    names = info.cpu_features(tvm.target.Target({"kind": "llvm", "mcpu": "znver3"}))
    assert {"avx2", "fma"} <= set(names) and "avx512f" not in names
    assert {"avx512f", "avx512vl"} <= set(
        info.cpu_features(tvm.target.Target({"kind": "llvm", "mcpu": "znver5"}))
    )


# ladder ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_ladder_prints_every_rung():
    status, out, err = call(*QUICK)
    assert (status, err) == (0, ""), err
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
    for step in schedules.STEPS:
        assert all(f"     {line}\n" in out for line in schedules.body(step))


@pytest.mark.slow
def test_ladder_on_one_thread_in_float64():
    before = dl.get_num_threads()
    report = ladder.climb(20, 24, 9, "float64", threads=1, rounds=1)
    assert {row.threads for row in report.rows} == {1} and list(report.peak) == list(report.numpy) == [1]
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
    for rung in schedules.rungs(m, k, n, dtype, threads=1):
        assert np.array_equal(product(rung, a, b), a @ b), (rung.title, sizes, dtype)


def test_what_is_shown_is_what_ran():
    rungs = schedules.rungs(64, 64, 64)
    sch = s_tir.Schedule(rungs[0].function)
    tile = schedules.tile_of(schedules.machine_of(rungs[0].target), 64, 64, 64, "float32")
    for step, rung in zip(schedules.STEPS[1:], rungs[2:], strict=False):
        assert rung.code == schedules.body(step)
    exec("\n".join(rungs[1].code), {"sch": sch, "tile": tile})
    (shown,) = sch.mod.functions.values()
    assert tvm_ffi.structural_equal(shown, rungs[1].function)


def test_the_last_rung_is_the_schedule_of_kernels():
    def loops(script: str) -> str:  # kernels have names of their own and take arrays of any alignment
        return re.sub(r"def \w+\(|, data_alignment=\d+|, align=\d+", "", script)

    for m, k, n in ((64, 80, 48), (1, 20, 300)):
        rung = schedules.rungs(m, k, n, threads=dl.get_num_threads())[-1]
        kernel = tvm_op.make_matrix_mul((m, k), False, (k, n), False, "llvm", "llvm", "matmul")
        assert loops(kernel.script()) == loops(rung.function.script()), (m, k, n)


@pytest.mark.slow
def test_a_wrong_rung_is_an_error():
    def broken(rung: schedules.Rung) -> Any:
        function = real(rung)

        def run(a: Any, b: Any, c: Any) -> None:
            function(a, b, c)
            if rung.title == "packing":
                np.from_dlpack(c)[3, 5] += 1

        return run

    real = schedules.compiled
    with mock.patch.object(schedules, "compiled", broken):
        status, out, err = call(*QUICK)
    assert (status, out) == (1, "")
    assert err == "python -m dlsys ladder: rung 5, packing, differs from NumPy at 64 x 80 x 48 in float32\n"


# Peaks -----------------------------------------------------------------------------------------------------


def test_peak_kernels_compute_what_they_count():
    threads, lanes = 2, 8
    x = dl.array(np.stack([np.full(lanes, 0.5), np.ones(lanes)]).astype("float32"))
    out = dl.zeros((threads, 3 * lanes))
    tvm.compile(peak.fma_kernel(3, lanes, threads), target=host_target())["fma"](x.tensor, out.tensor)
    assert np.array_equal(out.numpy(), np.full((threads, 3 * lanes), 2, "float32"))
    b, c, a = (dl.array(np.random.rand(43).astype("float32")) for _ in range(3))
    peak.triad_kernel(43)(b, c, a)
    assert np.allclose(a.numpy(), 0.5 * b.numpy() + c.numpy(), rtol=1e-6)


@pytest.mark.slow
def test_peaks_are_measured_once():
    for measure in (peak.fma_peak, peak.memory_bandwidth):
        assert 0 < measure(1) == measure(1) < float("inf")


# Wrong requests --------------------------------------------------------------------------------------------


def test_wrong_requests_are_one_sentence():
    for arguments, words in {
        ("ladder", "0", "5", "5"): "integer of 1 or more, not '0'",
        ("ladder", "a", "b", "c"): "integer of 1 or more, not 'a'",
        ("ladder", "5", "5", "-5"): "integer of 1 or more, not '-5'",
        ("ladder", "5", "5"): "takes the three sizes M K N of an M x K and a K x N matrix, or none; given 2",
        ("ladder", "5", "5", "5", "5"): "or none; given 4",
        ("ladder", "100000", "1", "100000"): "100000 x 1 x 100000 is too large",
        ("ladder", "46000", "46000", "46000", "--dtype", "float64"): "too large",
        ("ladder", "--rounds", "0"): "--rounds: must be an integer of 1 or more, not '0'",
        ("ladder", "--threads", "many"): "--threads: must be an integer of 1 or more, not 'many'",
        ("ladder", "--threads", "123456"): "number of threads must be an integer from 1 to",
        ("ladder", "--dtype", "int8"): "invalid choice: 'int8'",
        ("climb",): "invalid choice: 'climb'",
        ("info", "--yaml"): "unrecognized arguments: --yaml",
    }.items():
        with mock.patch("os.sysconf", lambda name: 2**17):
            status, out, err = call(*arguments)
        assert (status, out) == (2, ""), (arguments, status, err)
        assert words in err and err.count("\n") == 1 and err.startswith("python -m dlsys"), err


def test_help_without_a_command():
    status, out, err = call()
    assert (status, err) == (0, "")
    assert out.startswith("usage: python -m dlsys") and "info" in out and "ladder" in out


def test_interrupt_ends_with_130():
    with mock.patch.object(info, "facts", side_effect=KeyboardInterrupt):
        assert call("info") == (130, "", "Interrupted.\n")


@pytest.mark.slow
def test_python_m_dlsys():
    path = os.pathsep.join(filter(None, [str(ROOT / "python"), os.environ.get("PYTHONPATH")]))
    done = python("-m", "dlsys", "info", "--json", PYTHONPATH=path)
    assert done.stderr == ""
    assert json.loads(done.stdout)["dlsys"] == dl.__version__


def test_the_ladders_tile_is_the_rules() -> None:
    """The accumulators of the kernel that is used: rows x columns."""
    machine = schedules.machine_of(schedules.host_target())
    for m, k, n in ((1024, 1024, 1024), (1000, 784, 256), (64, 32, 48)):
        tile = schedules.tile_of(machine, m, k, n, "float32")
        function, rule = schedules.in_use(schedules.default_loops(m, k, n, "float32"), schedules.host_target())
        script = function.script()
        assert rule.name == "contraction" and f"in T.unroll({tile.rows})" in script
        row = rf"in T.unroll\({tile.columns // machine.lanes('float32')}\b"  # of vectors of B
        panel = rf"alloc_buffer\(\(.*\b{tile.columns}\), "  # which is copied, if it is not small
        assert re.search(row, script) and (m < 100 or re.search(panel, script)), script
