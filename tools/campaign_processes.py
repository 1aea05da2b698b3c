"""Processes and threads: runs that are ended, forks while others compile, several threads on one leaf."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dlsys as dl
import numpy as np
from dlsys import nn

SECONDS = 60.0
"""For the forks or threads of one try."""

TRAINING = """
import sys
import dlsys as dl, numpy as np
from dlsys import nn, optim
from dlsys.data import DataLoader, TensorDataset
dl.manual_seed(1)
draw = np.random.default_rng(0)
data = TensorDataset(draw.standard_normal((60, 5)).astype("f4"), draw.integers(0, 3, 60))
model = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Dropout(0.2), nn.Linear(8, 3))
opt = optim.Adam(model.parameters(), 0.01)
history = dl.fit(model, nn.CrossEntropyLoss(), opt, DataLoader(data, 10, shuffle=True), epochs=4, progress=False,
                 schedule=optim.StepLR(opt, 2), directory=sys.argv[1] if len(sys.argv) > 1 else None, save_every=3)
state = model.state_dict()
print(b"".join(np.ascontiguousarray(state[name]).tobytes() for name in sorted(state)).hex(), history.losses)
"""


def kills(seed: int, count: Counter, tell: Callable[[str], None]) -> None:
    """A training run ended at random moments, by SIGKILL or SIGTERM, and begun again ends with the bits of one that
    was not."""
    draw = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-W", "ignore", "-c", TRAINING]
        environment = {
            **os.environ,
            "DLSYS_COMPILE_CACHE": str(Path(tempfile.gettempdir(), "campaign-kernels")),
        }
        plain = subprocess.run(command, capture_output=True, text=True, env=environment, check=True).stdout
        for _ in range(draw.randrange(1, 4)):
            running = subprocess.Popen([*command, folder], stdout=subprocess.DEVNULL, env=environment)
            try:
                running.wait(draw.uniform(1.0, 6.0))
            except subprocess.TimeoutExpired:
                running.send_signal(draw.choice((signal.SIGKILL, signal.SIGTERM)))
                running.wait()
        done = subprocess.run([*command, folder], capture_output=True, text=True, env=environment)
        same = done.returncode == 0 and done.stdout == plain
        count["right" if same else "wrong"] += 1
        if not same:
            tell(f"resumed: {done.stderr[-300:] or 'other numbers'}")


FORKING = """
import os, random, signal, sys, threading, time
import numpy as np
from dlsys import autodiff as ad
draw, wait = random.Random(int(sys.argv[1])), float(sys.argv[2])

def compute(n):
    x = ad.Variable("x")
    (found,) = ad.Executor([ad.tanh_op(ad.exp_op(x) * 0.5 + x)]).run({x: np.zeros(n, "f4")}, True)
    return np.allclose(found, np.tanh(0.5))

def compute_on():
    for n in range(2, 100_000):
        compute(n)

compute(1)
for _ in range(2):
    threading.Thread(target=compute_on, daemon=True).start()
time.sleep(draw.uniform(0.0, 0.3))
child = os.fork()
if child == 0:
    os._exit(0 if compute(200_000 + draw.randrange(1000)) else 3)
end = time.monotonic() + wait
while time.monotonic() < end:
    ended, status = os.waitpid(child, os.WNOHANG)
    if ended:
        print("right" if status == 0 else f"wrong: the child ended with {status}")
        break
    time.sleep(0.01)
else:
    os.kill(child, signal.SIGKILL)
    print("hang")
sys.stdout.flush()
os._exit(0)
"""


def forks(seed: int, count: Counter, tell: Callable[[str], None]) -> None:
    """A process is forked while two of its threads compile; the child computes something else."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-W", "ignore", "-c", FORKING, str(seed), str(SECONDS / 3)]
        environment = {**os.environ, "DLSYS_COMPILE_CACHE": folder}
        try:
            done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=SECONDS)
            told = done.stdout.strip() or f"wrong: {done.returncode}: {done.stderr[-300:]}"
        except subprocess.TimeoutExpired:
            told = "hang: the parent"
    outcome = told.split(":")[0]
    count[outcome] += 1
    if outcome != "right":
        tell(f"forked while others compile: {told}")


def leaf(seed: int, count: Counter, tell: Callable[[str], None]) -> None:
    """Several threads on one leaf: each backward pass adds to its gradient, each write in place to its value."""
    draw = random.Random(seed)
    number, times = draw.choice((2, 4, 8)), draw.choice((20, 50))
    what = ("backward", "add_", "+=")[seed % 3]
    parameter = nn.Parameter(np.zeros(draw.choice((1, 1000)), "f4"))
    errors: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(times):
                _change(what, parameter)
        except BaseException as error:  # noqa: BLE001 - told
            errors.append(error)

    threads = [threading.Thread(target=work, daemon=True) for _ in range(number)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
    label = f"{number} threads, {times} times {what}"
    if any(thread.is_alive() for thread in threads):
        count["hang"] += 1
        tell(f"{label}: not done in {SECONDS:g} s")
        return
    if errors:
        count["other error"] += 1
        tell(f"{label}: {type(errors[0]).__name__}: {str(errors[0])[:200]}")
        return
    found = np.asarray((parameter.grad if what == "backward" else parameter).numpy())
    right = bool((found == number * times).all())
    count["right" if right else "wrong"] += 1
    if not right:
        tell(f"{label}: {found.min():g} to {found.max():g} of {number * times}")


def _change(what: str, parameter: Any) -> None:
    if what == "backward":
        (parameter * 1.0).sum().backward()
        return
    with dl.no_grad():
        if what == "add_":
            parameter.add_(1.0)
        else:
            parameter += 1.0
