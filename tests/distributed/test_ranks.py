"""Several processes by MPI: equal results on one and on two ranks, and faults that end all of them."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

HERE = Path(__file__).resolve().parent
MPIEXEC = Path(sys.executable).with_name("mpiexec")
LACKING = not MPIEXEC.exists() or importlib.util.find_spec("mpi4py") is None
pytestmark = pytest.mark.skipif(LACKING, reason="needs mpi4py and MPICH: pip install '.[mpi]'")
EXACT = 1e-12


def run(count: int, what: str, folder: Path, timeout: int = 120) -> tuple[int, str, float]:
    """Exit status, what was printed, and seconds of `ranks.py` by so many processes, which wait for each other for
    `timeout` seconds."""
    began = time.perf_counter()
    found = subprocess.run(
        [str(MPIEXEC), "-n", str(count), sys.executable, str(HERE / "ranks.py"), what, str(folder)],
        env={**os.environ, "DLSYS_COMM_TIMEOUT": str(timeout)}, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    return found.returncode, found.stdout + found.stderr, time.perf_counter() - began


@pytest.mark.slow
@pytest.mark.parametrize("what", ["step", "eager", "fit"])
def test_one_and_two_ranks_find_the_same(what: str, tmp_path: Path) -> None:
    for count in (1, 2):
        status, told, _ = run(count, what, tmp_path)
        assert status == 0, told
        assert told.count("epoch 1,") == (what == "fit")  # rank 0 alone prints
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
@pytest.mark.parametrize(
    ("what", "told"),
    [
        ("raise", r"rank 1 of 2 raised, which ends all ranks:\nTraceback (.|\n)*ValueError: broken"),
        ("die", r"(?i)signal|kill"),  # of mpiexec
        ("hang", r"CommunicationError: rank 0 of 2 has waited 9 s for others in an all_reduce of \d+ bytes"),
        ("odd", r"CommunicationError: rank 1 of 2 has parameters of other shapes than rank 0"),
    ],
)
def test_a_fault_of_one_rank_ends_all_with_a_message(what: str, told: str, tmp_path: Path) -> None:
    status, found, seconds = run(2, what, tmp_path, 9)
    assert status != 0 and re.search(told, found), found
    assert not list(tmp_path.glob("*.npz"))
    assert seconds < 100


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
def test_the_mnist_program_trains_alike_on_two_ranks() -> None:
    program = [sys.executable, str(HERE.parent / "mnist_dlsys.py"), "-l", "-m", "logreg", "-e", "1", "--lr", "0.1"]
    losses = []
    for launcher in ([], [str(MPIEXEC), "-n", "2"]):
        found = subprocess.run([*launcher, *program], capture_output=True, text=True, timeout=300)
        assert found.returncode == 0, found.stderr
        losses += re.findall(r"loss = ([\d.]+)", found.stdout)
    assert len(losses) == 2 and abs(float(losses[0]) - float(losses[1])) < 2e-5, losses
