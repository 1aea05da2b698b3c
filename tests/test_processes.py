"""What surrounds a process: a cache that cannot be used, no home, a fork; programs run all the same."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import dlsys as dl
import numpy as np
from dlsys import autodiff as ad
from dlsys.data import DataLoader, TensorDataset

PACKAGE = Path(dl.__file__).resolve().parents[1]
PROGRAM = """
import numpy as np
from dlsys import autodiff as ad
x = ad.Variable("x")
for factor in (2.0, 3.0):
    found = ad.Executor([ad.softmax_op(x * factor) + x]).run({x: np.zeros((1, 2), "f4")})[0]  # the user's line
    assert np.asarray(found).tolist() == [[0.5, 0.5]]
print("done")
"""


def run(cache: Path | None, prefix: str = "", **environment: str) -> str:
    """What a program says on standard error that compiles two kernels, with its cache there; it must end well."""
    with tempfile.NamedTemporaryFile("w", suffix=".py") as program:
        program.write(PROGRAM)
        program.flush()
        kept = {k: v for k, v in os.environ.items() if k not in ("HOME", "XDG_CACHE_HOME", "DLSYS_CACHE")}
        kept |= {"PYTHONPATH": str(PACKAGE), "DLSYS_COMPILE_CACHE": str(cache or ""), **environment}
        command = ["sh", "-c", f'{prefix} exec "$0" "$1"', sys.executable, program.name]
        done = subprocess.run(command, env=kept, capture_output=True, text=True, timeout=120)
        assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr[-2000:]
        warned = [line for line in done.stderr.splitlines() if "CacheWarning" in line]
        assert len(warned) <= 1 and all(line.startswith(f"{program.name}:6:") for line in warned), done.stderr
        return done.stderr


def test_a_cache_that_cannot_be_used_is_one_warning_at_the_users_line(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert "File exists" in run(pipe)
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    assert "others may write" in run(shared) and not list(shared.iterdir())
    assert "ulimit -f" in run(tmp_path / "limited", "ulimit -f 1;")
    good = tmp_path / "good"
    assert run(good) == ""
    for library in good.glob("*.so"):
        library.unlink()
        os.mkfifo(library)
    assert run(good) == ""


def test_a_user_without_a_home_has_no_cache() -> None:
    """As in a container that runs under a number which no user has: TVM alone cannot be imported there."""
    program = "import pwd\ndef nobody(number): raise KeyError(number)\npwd.getpwuid = nobody\n"
    program += "from dlsys.system import cache_folder; print(cache_folder()); import dlsys.autodiff"
    environment = {k: v for k, v in os.environ.items() if k not in ("HOME", "XDG_CACHE_HOME", "DLSYS_CACHE")}
    environment |= {"PYTHONPATH": str(PACKAGE)}
    command = [sys.executable, "-W", "error", "-c", program]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "None\n"), done.stderr[-2000:]


def _in_child(executor: Any, x: Any, value: np.ndarray, want: np.ndarray, answer: Any) -> None:
    (old,) = executor.run({x: value}, True)
    y = ad.Variable("y")
    (new,) = ad.Executor([(y * 2.0 + 1.0) @ y]).run({y: value}, True)
    batches = sum(1 for _ in DataLoader(TensorDataset(value), 100, shuffle=True))
    try:
        dl.set_num_threads(2)
        told = ""
    except ValueError as error:
        told = str(error)
    np.testing.assert_allclose(new, (value * 2 + 1) @ value, rtol=1e-4)
    answer.put((bool((old == want).all()), dl.get_num_threads(), batches, told))


def test_kernels_and_loaders_run_after_a_fork() -> None:
    x, value = ad.Variable("x"), np.random.default_rng(0).random((400, 400), dtype="float32")
    executor = ad.Executor([x @ x])
    (want,) = executor.run({x: value}, True)
    context = multiprocessing.get_context("fork")
    answer = context.Queue()
    child = context.Process(target=_in_child, args=(executor, x, value, want, answer))
    child.start()
    same, threads, batches, told = answer.get(timeout=120)
    child.join()
    assert same and threads == 1 and batches == 4 and "forked process" in told
