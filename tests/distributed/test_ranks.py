"""Several processes by MPI: equal results on one and on two ranks, and faults that end all of them."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import python

HERE = Path(__file__).resolve().parent
MPIEXEC = Path(sys.executable).with_name("mpiexec")
LACKING = not MPIEXEC.exists() or importlib.util.find_spec("mpi4py") is None
pytestmark = [pytest.mark.slow, pytest.mark.skipif(LACKING, reason="needs mpi4py and MPICH: pip install '.[mpi]'")]


def run(count: int, *words: Any, seconds: int = 120) -> subprocess.CompletedProcess[str]:
    """A program by so many processes, which wait for each other for so many seconds."""
    return python(*words, status=None, before=f"exec {MPIEXEC} -n {count}", DLSYS_COMM_TIMEOUT=str(seconds))


def ranks(count: int, what: str, folder: Path, seconds: int = 120) -> subprocess.CompletedProcess[str]:
    return run(count, HERE / "ranks.py", what, folder, seconds=seconds)


def equal(folder: Path, name: str, other: str, exact: bool = False) -> bool:
    """Whether two ranks, or runs, have saved the same."""
    a, b = (dict(np.load(folder / f"{one}.npz")) for one in (name, other))
    assert a.keys() == b.keys() and len(a) >= 5
    for key, value in a.items():
        np.testing.assert_allclose(b[key], value, *(0, 0) if exact else (1e-12, 1e-12), err_msg=key)
    return True


@pytest.mark.parametrize("what", ["step", "eager", "fit"])
def test_one_and_two_ranks_find_the_same(what: str, tmp_path: Path) -> None:
    for count in (1, 2):
        done = ranks(count, what, tmp_path)
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("epoch 1,") + done.stderr.count("epoch 1,") == (what == "fit")  # rank 0 alone prints
    assert equal(tmp_path, "1.0", "2.0") and equal(tmp_path, "2.0", "2.1", exact=True)
    if what == "step":  # and the same bits again
        (tmp_path / "2.0.npz").rename(tmp_path / "before.npz")
        assert ranks(2, what, tmp_path).returncode == 0 and equal(tmp_path, "before", "2.0", exact=True)


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
    begun = time.perf_counter()
    done = ranks(2, what, tmp_path, seconds=9)
    assert done.returncode != 0 and re.search(told, done.stdout + done.stderr), done
    assert not list(tmp_path.glob("*.npz")) and time.perf_counter() - begun < 100


def test_a_run_that_was_ended_is_continued_by_another_number_of_ranks(tmp_path: Path) -> None:
    assert ranks(2, "die", tmp_path).returncode != 0
    done = ranks(1, "resume", tmp_path)
    assert done.returncode == 0 and "continues from" in done.stdout + done.stderr, done
    assert ranks(2, "fit", tmp_path).returncode == 0 and equal(tmp_path, "1.0", "2.0")


def test_the_mnist_program_trains_alike_on_two_ranks() -> None:
    words = [HERE.parent / "mnist_dlsys.py", "-l", "-m", "logreg", "-e", "1", "--lr", "0.1"]
    losses = [float(loss) for count in (1, 2) for loss in re.findall(r"loss = ([\d.]+)", run(count, *words).stdout)]
    assert len(losses) == 2 and abs(losses[0] - losses[1]) < 2e-5, losses
