"""Devices far away: a tracker, workers and this program as processes of their own; what a worker's death costs."""

from __future__ import annotations

import contextlib
import os
import re
import selectors
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import dlsys as dl
import numpy as np
import pytest
import tvm
from dlsys import autodiff as ad
from dlsys import cli, optim
from dlsys.errors import DeviceError, FeedError, ShapeError
from dlsys.graph import Node
from dlsys.kernels import choices, target_name
from dlsys.rpc import server
from dlsys.rpc.client import Remote
from dlsys.schedule import machine_of
from dlsys.system import TUNING
from dlsys.tuning import measure, search, tuner
from helpers import error_of
from tvm.target import Target

LIMIT = 60.0  # seconds that a process may take to start
SLEEP = 0.8  # seconds that a simulated device takes for a measurement
SIMULATED = f"""
import contextlib, json, os, signal, sys, time
from dlsys.cli import main
from dlsys.tuning import measure

def measured(text):
    request = json.loads(text)
    for file, process in (("session", os.getpid()), ("worker", os.getppid())):
        with contextlib.suppress(FileNotFoundError):
            os.remove(os.path.join(sys.argv[1], file))  # of the measurements at a time one alone does that
            os.kill(process, signal.SIGKILL)
    time.sleep(60 * ("endless" in request))
    time.sleep({SLEEP} * ("best" in request))
    return json.dumps({{"rule": 1e-3, "seconds": 1e-3}})

measure.SERVED[measure.SERVICE] = measured
main(sys.argv[2:])
"""


class Processes:
    """Servers, each the leader of a group of processes, which ends with it."""

    def __init__(self) -> None:
        self._all: list[subprocess.Popen[str]] = []
        self._tracker = ""

    def start(self, *arguments: str, python: Sequence[str] = (sys.executable, "-m", "dlsys")) -> subprocess.Popen[str]:
        environment = {**os.environ, "TVM_NUM_THREADS": "1"}
        self._all.append(subprocess.Popen(
            [*python, *arguments], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment,
            start_new_session=True,
        ))  # fmt: skip
        return self._all[-1]

    def told(self, process: subprocess.Popen[str]) -> str:
        """The line that a server prints when it serves."""
        assert process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            assert selector.select(LIMIT), "it does not serve"
        return process.stdout.readline().strip()

    @property
    def tracker(self) -> str:
        """The address of the tracker, which is started once."""
        if not self._tracker:
            self._tracker = self.told(self.start("tracker", "--port", "0")).split()[-1]
        return self._tracker

    def worker(self, key: str, **how: Any) -> subprocess.Popen[str]:
        return self.start("worker", "--tracker", self.tracker, "--key", key, **how)

    def end(self, process: subprocess.Popen[str]) -> None:
        """Ends the group, which is there as long as one of its processes is."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(timeout=LIMIT)
        process.stdout.close()  # type: ignore[union-attr]

    def close(self) -> None:
        for process in self._all:
            self.end(process)


EMULATOR = shutil.which("qemu-x86_64")
STATING = """
import sys
from dlsys.cli import main
from dlsys.schedule import target
target._host_cpu = lambda: {"mcpu": "haswell"}
main(sys.argv[1:])
"""


@pytest.fixture(scope="module")
def processes() -> Iterator[Processes]:
    found = Processes()
    try:
        yield found
    finally:
        found.close()


@pytest.fixture(scope="module")
def haswell(processes: Processes) -> subprocess.Popen[str]:
    """The worker of a Haswell, by an emulator, which takes its time to start; where none is installed, one that states
    to be a Haswell."""
    emulated = (EMULATOR or "", "-cpu", "Haswell", sys.executable, "-m", "dlsys")
    return processes.worker("haswell", python=emulated if EMULATOR else (sys.executable, "-c", STATING))


@pytest.fixture(scope="module")
def marks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the files `session` and `worker` of SIMULATED."""
    return tmp_path_factory.mktemp("marks")


@pytest.fixture(scope="module")
def simulated(processes: Processes, marks: Path) -> subprocess.Popen[str]:
    """A worker whose measurements are sleep."""
    return processes.worker("simulated", python=(sys.executable, "-c", SIMULATED, str(marks)))


@pytest.fixture(scope="module")
def lab(processes: Processes, haswell: subprocess.Popen[str], simulated: subprocess.Popen[str]) -> str:
    """A device, which measures. The others are being started meanwhile."""
    assert re.fullmatch(r"worker lab of the tracker \S+ on 127\.0\.0\.1:\d+", processes.told(processes.worker("lab")))
    return f"{processes.tracker}/lab"


def network() -> tuple[list[Node], dict[Node, Any], Node]:
    """A step of logistic regression, its feeds, and its weights."""
    random = np.random.default_rng(0)
    x, y, w = ad.Variable("x"), ad.Variable("y"), ad.Parameter(np.zeros((90, 10), "float32"), "w")
    loss = ad.softmaxcrossentropy_op(x @ w, y)
    images = random.standard_normal((40, 90)).astype("float32")
    labels = np.eye(10, dtype="float32")[np.arange(40) % 10]
    return [loss, optim.SGD([w], lr=0.5).minimize(loss)], {x: images, y: labels}, w


def product() -> search.Task:
    x, w = ad.Variable("x"), ad.Variable("w")
    (task,), _ = tuner.tasks_of([x @ w], target_name("llvm"), {x: (45, 70), w: (70, 33)})
    return task


@pytest.mark.slow
def test_a_step_trains_far_away(lab: str) -> None:
    nodes, feed, w = network()
    device = dl.remote(lab)
    assert device.workers() == 1 and "remote(" in repr(device) and device.cpu in repr(device)
    here = ad.Executor(nodes)
    step = device.load(here, {node: value.shape for node, value in feed.items()})
    x, _ = feed
    assert "needs x, y" in error_of(FeedError, step.run)
    assert "takes (40, 90), not (3, 90)" in error_of(ShapeError, step.run, {x: np.ones((3, 90))})
    losses = [step.run(feed)[0], *(step.run()[0] for _ in range(3)), step.run({x: feed[x] / 2, w: w.value})[0]]
    wanted = [here.run(feed, True)[0] for _ in range(4)]
    np.testing.assert_allclose(losses[:4], wanted, rtol=1e-6)
    assert losses[4] == losses[0] and step.value(w).shape == (90, 10)  # weights of zero: its input counts for nothing
    assert "no parameter or feed" in error_of(FeedError, step.value, ad.Variable("other"))
    assert "no worker became free" in error_of(DeviceError, _impatient, device)
    with pytest.raises(DeviceError, match=r"the worker lab at 127\.0\.0\.1:\d+: "):
        step.asked("dlsys.nothing", "")


def _impatient(device: Remote) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dlsys.rpc.client.WAIT", 0.5)
        device.session()


@pytest.mark.slow
def test_a_search_measures_far_away_and_kernels_are_timed_there(
    lab: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes, feed, w = network()
    path = tmp_path / "found"
    found = dl.tune(nodes, 4, database=path, feed_shapes=feed, verbose=False, remote=lab)
    assert sum(one.trials for one in found.searches) == 4 and not any(one.failed for one in found.searches)
    machines = {record["machine"] for record in choices.read(path)}
    monkeypatch.setattr("dlsys.kernels.spec.get_num_threads", lambda: 1)  # the device's name for itself, as it has one
    assert machines == {choices.machine_name(Remote(lab).how)} == {choices.machine_name(target_name("llvm"))}
    monkeypatch.undo()
    choices.append(path, [{**choices.read(path)[-1], "gain": 2.0}])
    monkeypatch.setenv(TUNING, str(path))
    executor = ad.Executor(nodes)
    profile = executor.profile(feed, 3, remote=lab)
    assert [row.name for row in profile.rows] == [spec.name for spec in executor.specs(feed)]
    assert profile.threads == 1 and profile.runs == 3 and (profile.peak_gflops or 0) > 1
    assert 0 < profile.least_seconds < 1 and all(0 < row.seconds < 1 for row in profile.rows)
    assert any("tuned, 2.00 of the rule" in row.kind for row in profile.rows), "code for the device takes its choices"
    assert not np.asarray(w.value).any(), "the parameters are as they were"  # type: ignore[attr-defined]


@pytest.mark.slow
def test_code_for_another_cpu_is_compiled_here_and_runs_there(
    processes: Processes, haswell: subprocess.Popen[str]
) -> None:
    assert "haswell" in processes.told(haswell)
    device = dl.remote(f"{processes.tracker}/haswell")
    assert device.cpu.startswith("haswell") and machine_of(device.how.target).vector_bits == 256
    task, code = product(), {}
    for name, target in (("there", device.how.target), ("wide", Target({"kind": "llvm", "mcpu": "skylake-avx512"}))):
        request = {**task.request, "target": tvm.ir.save_json(target)}
        code[name] = measure.module_of(request, None).inspect_source("asm")
    assert "zmm" in code["wide"] and "ymm" in code["there"] and "zmm" not in code["there"]
    nodes, feed, _ = network()
    executor = ad.Executor(nodes)
    step = device.load(executor, feed)
    np.testing.assert_allclose(step.run(feed)[0], executor.run(feed, True)[0], rtol=1e-5)
    assert step.exported.cpu == device.cpu
    processes.end(haswell)
    with pytest.raises(DeviceError, match="the worker haswell at"):
        step.run(feed)


@pytest.mark.slow
def test_two_workers_share_and_one_that_dies_costs_a_measurement(
    processes: Processes, simulated: subprocess.Popen[str], marks: Path
) -> None:
    workers = [simulated]
    names = [processes.told(workers[0]).split()[-1]]
    task, one = product(), measure.Worker((*measure.LOCAL, f"{processes.tracker}/simulated"))
    chosen = [task.space.own, *list(task.space.neighbours(task.space.own))[:5]]
    try:
        assert one.load(task.request) == 1e-3
        (marks / "session").touch()  # a session ends, not its worker
        (crashed,) = one.measure(chosen[:1], 1.0)
        assert f"the worker simulated at {names[0]}: " in crashed.error
        session = Remote(f"{processes.tracker}/simulated").session(1.0)  # after which its worker ends it
        assert "session has expired" in error_of(DeviceError, session.asked, measure.SERVICE, '{"endless": 1}')
        alone = _seconds(one, chosen, [""] * 6)
        workers.append(processes.worker("simulated", python=(sys.executable, "-c", SIMULATED, str(marks))))
        names.append(processes.told(workers[1]).split()[-1])
        while Remote(f"{processes.tracker}/simulated").workers() < 2:  # the tracker knows it a moment later
            time.sleep(0.1)
        both, rounds = alone, 0
        while alone / both < 1.7 and rounds < 3:  # compiling takes turns with other programs
            both, rounds = min(both, _seconds(one, chosen, [""] * 6)), rounds + 1
        print(f"measurements a minute: {60 * 6 / alone:.0f} by one worker, {60 * 6 / both:.0f} by two")
        assert alone / both >= 1.7
        (marks / "worker").touch()
        (lost,) = [measured.error for measured in one.measure(chosen[:3], 1.0) if measured.error]
        (dead,) = [i for i, name in enumerate(names) if f"the worker simulated at {name}: " in lost]
        workers[dead].wait(timeout=LIMIT)
        assert _is_gone(workers[dead].pid), "the process of its session ends with a worker"
        assert Remote(f"{processes.tracker}/simulated").workers() == 1 and workers[1 - dead].poll() is None
    finally:
        one.close()


def _seconds(measurer: measure.Worker, chosen: list[Any], errors: list[str]) -> float:
    begun = time.monotonic()
    assert [measured.error for measured in measurer.measure(chosen, 1.0)] == errors
    return time.monotonic() - begun


def _is_gone(group: int) -> bool:
    for _ in range(50):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.1)
    return False


@pytest.mark.parametrize(
    ("where", "told"),
    [
        ("127.0.0.1:1/lab", "no tracker answers at 127.0.0.1:1 (Connection refused): start one by"),
        ("127.0.0.1:1", "is not HOST:PORT/NAME"), ("lab", "is not HOST:PORT/NAME"), ("a:b/lab", "is not HOST:PORT"),
        (5, "5 is not HOST:PORT/NAME"),
    ],
)  # fmt: skip
def test_a_tracker_that_is_not_there_is_told_at_once(where: str, told: str, tmp_path: Path) -> None:
    begun = time.monotonic()
    assert told in error_of(DeviceError, dl.remote, where)
    nodes, feed, _ = network()
    assert told in error_of(DeviceError, dl.tune, nodes, 8, database=tmp_path / "a", feed_shapes=feed, remote=where)
    assert time.monotonic() - begun < 2 * server.PROBE


def test_who_answers_as_no_tracker_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with server._listening("web server", "127.0.0.1", 0, "") as sock:
        where = f"127.0.0.1:{sock.getsockname()[1]}/lab"
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(server, "PROBE", 0.2)
            assert "does not answer" in error_of(DeviceError, dl.remote, where)
    assert "whoever" not in capsys.readouterr().out
    server._listening("worker", "0.0.0.0", 0, "write files").close()
    assert "whoever can connect to it can write files: trust its whole network" in capsys.readouterr().out


@pytest.mark.slow
def test_the_key_of_no_worker_is_told(lab: str) -> None:
    where = f"{lab.rpartition('/')[0]}/other"
    assert "the tracker knows no worker other; there are " in error_of(DeviceError, dl.remote, where)


def test_commands_tell_what_is_wrong(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert cli.main(["worker", "--tracker", "127.0.0.1:1", "--key", "lab"]) == 2
    assert "no tracker answers" in capsys.readouterr().err
    assert cli.main(["worker", "--tracker", "127.0.0.1:1", "--key", "my/lab"]) == 2
    assert "a word without a slash" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        cli.main(["tracker", "--port", "99999"])
    assert "must be a port's number" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "tornado", None)
    monkeypatch.delitem(sys.modules, "tvm.rpc.tracker", raising=False)
    assert cli.main(["tracker"]) == 2
    assert "pip install 'dlsys[remote]'" in capsys.readouterr().err
