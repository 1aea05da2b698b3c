"""Devices far away: a tracker, workers and this program as processes of their own; strangers, who have no token."""

from __future__ import annotations

import contextlib
import json
import os
import re
import selectors
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import dlsys as dl
import numpy as np
import pytest
from dlsys import autodiff as ad
from dlsys import optim
from dlsys.errors import DeviceError, FeedError, ShapeError
from dlsys.graph import Node
from dlsys.rpc import server
from dlsys.schedule import machine_of
from helpers import error_of
from tvm import rpc
from tvm.rpc import base

LIMIT = 60.0  # seconds that a process may take to start
TOKEN = "a-token-of-the-tests-0123456789"


class Processes:
    """Servers, each the leader of a group of processes, which ends with it."""

    def __init__(self) -> None:
        self._all: list[subprocess.Popen[str]] = []
        self._tracker = ""

    def start(self, *arguments: str, python: Sequence[str] = (sys.executable, "-m", "dlsys")) -> subprocess.Popen[str]:
        environment = {**os.environ, "TVM_NUM_THREADS": "1", server.TOKEN: TOKEN}
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
def worker(processes: Processes, haswell: subprocess.Popen[str]) -> tuple[str, int]:
    """The address of a worker `lab`. The other is being started meanwhile."""
    told = processes.told(processes.worker("lab"))
    found = re.fullmatch(r"worker lab of the tracker \S+ on (127\.0\.0\.1):(\d+)", told)
    assert found is not None
    return found[1], int(found[2])


@pytest.fixture
def lab(processes: Processes, worker: tuple[str, int], monkeypatch: pytest.MonkeyPatch) -> str:
    """A device, for programs whose environment has the token."""
    monkeypatch.setenv(server.TOKEN, TOKEN)
    return f"{processes.tracker}/lab"


def network() -> tuple[list[Node], dict[Node, Any], Node]:
    """A step of logistic regression, its feeds, and its weights."""
    random = np.random.default_rng(0)
    x, y, w = ad.Variable("x"), ad.Variable("y"), ad.Parameter(np.zeros((90, 10), "float32"), "w")
    loss = ad.softmaxcrossentropy_op(x @ w, y)
    images = random.standard_normal((40, 90)).astype("float32")
    labels = np.eye(10, dtype="float32")[np.arange(40) % 10]
    return [loss, optim.SGD([w], lr=0.5).minimize(loss)], {x: images, y: labels}, w


@pytest.mark.slow
def test_a_step_trains_far_away(lab: str, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes, feed, w = network()
    device = dl.remote(lab)
    assert "remote(" in repr(device) and device.cpu in repr(device)
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
    other = device.load(here)  # of the same session
    np.testing.assert_allclose(other.run(feed)[0], step.run(feed)[0] * 0 + here.run(feed, True)[0], rtol=1e-5)
    monkeypatch.setattr("dlsys.rpc.client.WAIT", 0.5)
    assert "no worker of that name was free" in error_of(DeviceError, dl.remote, lab)


@pytest.mark.slow
def test_code_for_another_cpu_is_compiled_here_and_runs_there(
    processes: Processes, haswell: subprocess.Popen[str]
) -> None:
    assert "haswell" in processes.told(haswell)
    device = dl.remote(f"{processes.tracker}/haswell", TOKEN)
    assert device.cpu.startswith("haswell") and machine_of(device.how.target).vector_bits == 256
    nodes, feed, _ = network()
    executor = ad.Executor(nodes)
    step = device.load(executor, feed)
    np.testing.assert_allclose(step.run(feed)[0], executor.run(feed, True)[0], rtol=1e-5)
    assert step.exported.cpu == device.cpu
    processes.end(haswell)
    with pytest.raises(DeviceError, match=f"{processes.tracker}/haswell: "):
        step.run(feed)


@contextlib.contextmanager
def session(lab: str) -> Iterator[rpc.RPCSession]:
    """A session by TVM's client alone, which is given the token in the key."""
    at, _, name = lab.rpartition("/")
    yield rpc.connect_tracker(*server.address(at)).request(f"{TOKEN}/{name}", session_timeout=60)


@pytest.mark.slow
def test_names_of_files_do_not_leave_the_sessions_folder(lab: str, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("of the worker's user")
    with session(lab) as found:
        found.upload(bytearray(b"abc"), "a.bin")
        assert bytes(found.download("a.bin")) == b"abc"
        for name in (str(secret), "../a.bin", f"../..{secret}", "a/../../b", "..", ".", "a/b", ".hidden"):
            for call in (found.download, found.remove, found.load_module, partial(found.upload, bytearray(b"x"))):
                with pytest.raises(Exception, match="session's folder"):
                    call(name)
    assert secret.read_text() == "of the worker's user"


STRANGER = """
import sys
from tvm import rpc
host, port, tracker_host, tracker_port, key = sys.argv[1:]
def refused(call):
    try:
        call()
    except Exception as error:
        return type(error).__name__
    raise SystemExit("was served")
print(refused(lambda: rpc.connect_tracker(tracker_host, int(tracker_port)).summary()))
print(refused(lambda: rpc.connect_tracker(tracker_host, int(tracker_port)).request(key, session_timeout=9)))
for guess in (key, key + ":0.5", "", "/" + key):
    print(refused(lambda: rpc.connect(host, int(port), guess, session_timeout=9).download("../../../etc/passwd")))
"""
@pytest.mark.slow
def test_who_has_no_token_is_not_served(lab: str, worker: tuple[str, int], processes: Processes) -> None:
    """By TVM's client alone, and by dlsys with another token; who has it is served afterwards."""
    addresses = map(str, [*worker, *server.address(processes.tracker), "lab"])
    command = [sys.executable, "-c", STRANGER, *addresses]
    done = subprocess.run(command, capture_output=True, text=True, timeout=5 * LIMIT, check=False)
    assert not done.returncode and len(done.stdout.split()) == 6, done
    for token in ("another-token-0123456789", TOKEN[:-1], TOKEN + "0"):
        assert "Cannot request" in error_of(DeviceError, dl.remote, lab, token)
    assert dl.remote(lab).cpu


@pytest.mark.slow
@pytest.mark.parametrize("begin", [b"", b"\x71\xf2\x0f", struct.pack("<ii", base.RPC_MAGIC, 2**31 - 1), b"GET / HTTP"])
def test_silent_connections_do_not_keep_a_worker_or_a_tracker(
    lab: str, worker: tuple[str, int], processes: Processes, begin: bytes
) -> None:
    begun = time.monotonic()
    with contextlib.ExitStack() as stack:
        for place in (worker, server.address(processes.tracker)):
            for _ in range(2):
                stack.enter_context(silent := socket.create_connection(place))
                silent.sendall(begin)
        assert dl.remote(lab).cpu
        assert time.monotonic() - begun < 8 * server.PROBE
        silent.settimeout(4 * server.PROBE)
        assert not silent.recv(1) or not silent.recv(4), "the tracker has closed a connection without the token"


def answering(answer: Callable[[socket.socket], object]) -> tuple[socket.socket, str]:
    """A server on this machine that answers each connection by the function, and its address."""
    sock = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = sock.accept()
                with connection, contextlib.suppress(OSError):
                    answer(connection)
                    connection.recv(1024)

    threading.Thread(target=serve, daemon=True).start()
    return sock, f"127.0.0.1:{sock.getsockname()[1]}"


def _json(value: Any) -> bytes:
    text = json.dumps(value).encode()
    return struct.pack("<i", len(text)) + text


@pytest.mark.parametrize(
    "answer",
    [
        b"", b"HTTP/1.1 400 Bad Request", struct.pack("<i", 5), struct.pack("<ii", base.RPC_TRACKER_MAGIC, -7),
        *(struct.pack("<i", base.RPC_TRACKER_MAGIC) + part for part in (
            b"\x04\0\0\0abcd", b"\x02\0\0\0\xff\xfe", b"\xff\xff\xff\x7f", _json(None), _json(5), _json([0]),
            _json([0, 5]), _json([0, ["127.0.0.1"]]), _json([0, ["127.0.0.1", "x", "k"]]), _json([0, [5, 1, "k"]]),
            _json([0, ["127.0.0.1", 1, "k"]]), _json({"a": 1}), _json([-1]),
        )),
    ],
)  # fmt: skip
def test_malformed_answers_of_a_tracker_are_told(answer: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dlsys.rpc.client.WAIT", 1.0)
    sock, where = answering(lambda connection: connection.sendall(answer))
    with sock:
        begun = time.monotonic()
        message = error_of(DeviceError, dl.remote, f"{where}/lab", TOKEN)
        assert message.startswith(f"{where}/lab: ") and "\n" not in message
        assert time.monotonic() - begun < 10


@pytest.mark.parametrize(
    ("where", "told"),
    [
        ("127.0.0.1:1/lab", "no tracker answers at 127.0.0.1:1 (Connection refused): start one by"),
        ("127.0.0.1:1", "is not HOST:PORT/NAME"), ("lab", "is not HOST:PORT/NAME"), ("a:b/lab", "is not HOST:PORT"),
        (5, "5 is not HOST:PORT/NAME"),
    ],
)  # fmt: skip
def test_a_tracker_that_is_not_there_is_told_at_once(where: str, told: str) -> None:
    begun = time.monotonic()
    assert told in error_of(DeviceError, dl.remote, where, TOKEN)
    assert time.monotonic() - begun < 2 * server.PROBE


def test_a_token_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(server.TOKEN, raising=False)
    assert f"set {server.TOKEN} to it" in error_of(DeviceError, dl.remote, "127.0.0.1:1/lab")
    for wrong in ("short", "with a space in it", "a/b" * 9, "x" * 999, 5 * [TOKEN]):
        assert "a token is 16 to 128" in error_of(DeviceError, dl.remote, "127.0.0.1:1/lab", wrong)


@pytest.mark.slow
def test_a_tracker_prints_a_new_token_each_time(processes: Processes) -> None:
    found = set()
    for _ in range(2):
        without = ("env", "-u", server.TOKEN, sys.executable, "-m", "dlsys")
        tracker = processes.start("tracker", "--port", "0", python=without)
        processes.told(tracker)
        assert tracker.stdout is not None
        found.add(tracker.stdout.readline())
        processes.end(tracker)
    assert len(found) == 2 and all(re.fullmatch(r"token [\w-]{32}\n", line) for line in found)
