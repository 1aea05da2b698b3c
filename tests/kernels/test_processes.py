"""Threads and forks beside the compiler and its import: no lock is left behind, nothing is hidden from others."""

from __future__ import annotations

import gc
import importlib
import multiprocessing
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest import mock

import dlsys as dl
import numpy as np
import pytest
import tvm
import tvm_ffi
from dlsys import autodiff as ad
from dlsys import tvm_import
from dlsys.data import DataLoader, TensorDataset
from helpers import error_of, python
from optional import torch

NO_CACHE = {"DLSYS_COMPILE_CACHE": "0"}


def in_child(executor: Any, x: Any, value: np.ndarray, want: np.ndarray, answer: Any) -> None:
    (old,) = executor.run({x: value}, True)
    y = ad.Variable("y")
    (new,) = ad.Executor([(y * 2.0 + 1.0) @ y]).run({y: value}, True)
    batches = sum(1 for _ in DataLoader(TensorDataset(value), 100, shuffle=True))
    told = error_of(ValueError, dl.set_num_threads, 2)
    np.testing.assert_allclose(new, (value * 2 + 1) @ value, rtol=1e-4)
    answer.put((bool((old == want).all()), dl.get_num_threads(), batches, "forked process" in told))


def test_kernels_and_loaders_run_after_a_fork() -> None:
    x, value = ad.Variable("x"), np.random.default_rng(0).random((400, 400), dtype="float32")
    executor = ad.Executor([x @ x])
    (want,) = executor.run({x: value}, True)
    context = multiprocessing.get_context("fork")
    answer = context.Queue()
    child = context.Process(target=in_child, args=(executor, x, value, want, answer))
    child.start()
    assert answer.get(timeout=600) == (True, 1, 4, True)
    child.join()


WHILE_COMPILING = """
import multiprocessing, os, threading, warnings
from concurrent.futures import ProcessPoolExecutor
import numpy as np
import dlsys as dl
from dlsys import autodiff as ad
from dlsys.kernels import build

warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads
value = np.float32([[0, 1], [2, 3]])
x = ad.Variable("x")
executor = ad.Executor([ad.matmul_op(x, x) * 2.0])
traced = lambda: dl.tensor(value, requires_grad=True)

def work(number):
    (found,) = executor.run({x: value}, True)
    y = ad.Variable("y")
    (other,) = ad.Executor([ad.matmul_op(y, y) * float(number)]).run({y: value}, True)
    t = traced()
    (t * float(number)).sum().backward()
    return found[1, 1] == 22 and other[1, 1] == 11 * number and (t.grad.numpy() == number).all()

begun, go_on, lower, main = threading.Event(), threading.Event(), build.lower, threading.get_ident()

def slow(*args):
    if threading.get_ident() != main:
        begun.set()
        assert go_on.wait(60)
    return lower(*args)

def held(function, *args):
    # forks while a thread compiles in `function`, with all locks that it takes
    begun.clear(), go_on.clear()
    thread = threading.Thread(target=function, args=args)
    thread.start()
    assert begun.wait(60)
    context = multiprocessing.get_context("fork")
    with context.Pool(2) as pool:
        assert all(pool.map(work, (10, 11)))
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        assert pool.submit(work, 12).result()
    go_on.set()
    thread.join()

build.lower = slow
held(executor.run, {x: value})  # the executor itself, which the child runs too

def differentiated():
    t = traced()
    (t * 3.0).sum().backward()
    return t.grad.numpy()

held(differentiated)
assert work(9)
print("done")
"""
WHILE_IMPORTING = """
import os, signal, sys, threading, time, warnings
import numpy as np
import dlsys as dl

warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads
exp = lambda: dl.tensor(np.zeros((5, 7), "float32")).exp().numpy()
thread = threading.Thread(target=exp)
thread.start()
while sys.argv[1] not in sys.modules:
    time.sleep(1e-4)
forked = time.monotonic()
child = os.fork()
if child == 0:
    signal.alarm(60)
    os._exit(0 if (exp() == 1).all() else 1)
assert time.monotonic() - forked < 50
thread.join()
assert os.waitpid(child, 0)[1] == 0
print("done")
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "program", [[WHILE_COMPILING], *([WHILE_IMPORTING, name] for name in ("tvm", "tvm.ir", "dlsys.kernels.build"))]
)
def test_a_fork_while_a_thread_compiles_or_imports_the_compiler_leaves_no_lock_behind(program: list[str]) -> None:
    assert python("-c", *program, **NO_CACHE).stdout == "done\n"


POLLING = """
import importlib.util, sys, threading
found, done = [], threading.Event()

def poll():
    while not done.is_set():
        found.append("torch" not in sys.modules and importlib.util.find_spec("torch") is not None)

thread = threading.Thread(target=poll)
thread.start()
import dlsys
from dlsys.tvm_import import with_compiler
with_compiler("kernels.build")
done.set()
thread.join()
print("torch" in sys.modules, "tvm" in sys.modules, len(found) > 0, all(found))
print(not any(type(finder).__module__.startswith("dlsys") for finder in sys.meta_path))
"""


@pytest.mark.slow
def test_pytorch_is_hidden_from_the_thread_alone_that_imports_tvm() -> None:
    assert torch.nn  # or skipped
    assert python("-c", POLLING).stdout.split() == ["False", "True", "True", "True", "True"]


def test_threads_that_import_the_compiler_leave_the_garbage_collector_on() -> None:
    """The second begins while the first has switched it off, and ends after it."""
    begun, second_begun, first_done = (threading.Event() for _ in range(3))

    def slow(name: str) -> None:
        (begun if name == "first" else second_begun).set()
        assert (second_begun if name == "first" else first_done).wait(600)

    assert gc.isenabled()
    with mock.patch.object(importlib, "import_module", slow), ThreadPoolExecutor(2) as pool:
        first = pool.submit(tvm_import._import, "first")
        assert begun.wait(600)
        second = pool.submit(tvm_import._import, "second")
        first.result()
        first_done.set()
        second.result()
    assert gc.isenabled()


def test_an_interrupt_while_tvm_walks_over_loops_is_one() -> None:
    """Ctrl-C in a Python function that TVM's C++ calls."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # behind a shell's `&` it is ignored
    try:
        with pytest.raises(KeyboardInterrupt):
            tvm_ffi.structural_walk(tvm.tirx.const(1), lambda _: signal.raise_signal(signal.SIGINT))
    finally:
        signal.signal(signal.SIGINT, before)
