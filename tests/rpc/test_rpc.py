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
from helpers import error_of, python
from tvm import rpc
from tvm.rpc import base

LIMIT = 60.0  # seconds that a process may take to start
TOKEN = "a-token-of-the-tests-0123456789"


EMULATOR = shutil.which("qemu-x86_64")
STATING = """
import sys
from dlsys.cli import main
from dlsys.schedule import target
target._host_cpu = lambda: {"mcpu": "haswell"}
main(sys.argv[1:])
"""


class Servers:
    """A tracker and workers, each the leader of a group of processes, which ends with it."""

    def __init__(self) -> None:
        self._all: list[subprocess.Popen[str]] = []
        _, told = self.start("tracker", "--port", "0")
        self.tracker = told.split()[-1]

    def start(self, *arguments: str, by: Sequence[str] = (sys.executable, "-m", "dlsys"), waits: bool = True) -> Any:
        """A process and the line that it prints when it serves; empty if nobody waits for it."""
        environment = {**os.environ, "TVM_NUM_THREADS": "1", server.TOKEN: TOKEN}
        self._all.append(subprocess.Popen(
            [*by, *arguments], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment,
            start_new_session=True,
        ))  # fmt: skip
        return self._all[-1], line_of(self._all[-1]) if waits else ""

    def worker(self, key: str, **how: Any) -> Any:
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


def line_of(process: subprocess.Popen[str]) -> str:
    """The next line that a server prints."""
    assert process.stdout is not None
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        assert selector.select(LIMIT), "it does not serve"
    return process.stdout.readline().strip()


@pytest.fixture(scope="module")
def servers() -> Iterator[Servers]:
    with contextlib.closing(Servers()) as found:
        yield found


@pytest.fixture(scope="module")
def haswell(servers: Servers) -> subprocess.Popen[str]:
    """The worker of a Haswell, by an emulator, which takes its time to start; where none is installed, one that states
    to be a Haswell."""
    emulated = (EMULATOR or "", "-cpu", "Haswell", sys.executable, "-m", "dlsys")
    how = emulated if EMULATOR else (sys.executable, "-c", STATING)
    return servers.worker("haswell", by=how, waits=False)[0]


@pytest.fixture(scope="module")
def worker(servers: Servers, haswell: subprocess.Popen[str]) -> tuple[str, int]:
    """The address of a worker `lab`. The other is being started meanwhile."""
    _, told = servers.worker("lab")
    found = re.fullmatch(r"worker lab of the tracker \S+ on (127\.0\.0\.1):(\d+)", told)
    assert found is not None
    return found[1], int(found[2])


@pytest.fixture
def lab(servers: Servers, worker: tuple[str, int], monkeypatch: pytest.MonkeyPatch) -> str:
    """A device, for programs whose environment has the token."""
    monkeypatch.setenv(server.TOKEN, TOKEN)
    return f"{servers.tracker}/lab"


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
    servers: Servers, haswell: subprocess.Popen[str]
) -> None:
    assert "haswell" in line_of(haswell)
    device = dl.remote(f"{servers.tracker}/haswell", TOKEN)
    assert device.cpu.startswith("haswell") and machine_of(device.how.target).vector_bits == 256
    nodes, feed, _ = network()
    executor = ad.Executor(nodes)
    step = device.load(executor, feed)
    np.testing.assert_allclose(step.run(feed)[0], executor.run(feed, True)[0], rtol=1e-5)
    assert step.exported.cpu == device.cpu
    servers.end(haswell)
    with pytest.raises(DeviceError, match=f"{servers.tracker}/haswell: "):
        step.run(feed)


@pytest.mark.slow
def test_names_of_files_do_not_leave_the_sessions_folder(lab: str, tmp_path: Path) -> None:
    """By TVM's client alone, which is given the token in the key."""
    secret = tmp_path / "secret"
    secret.write_text("of the worker's user")
    at, _, name = lab.rpartition("/")
    found = rpc.connect_tracker(*server.address(at)).request(f"{TOKEN}/{name}", session_timeout=60)
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
print(refused(lambda: rpc.connect_tracker(tracker_host, int(tracker_port)).request(key, max_retry=1)))
for guess in (key + ":0.5", "/" + key):
    print(refused(lambda: rpc.connect(host, int(port), guess, session_timeout=9).download("../../../etc/passwd")))
"""
@pytest.mark.slow
def test_who_has_no_token_is_not_served(lab: str, worker: tuple[str, int], servers: Servers) -> None:
    """By TVM's client alone, and by dlsys with another token; who has it is served afterwards."""
    done = python("-c", STRANGER, *worker, *server.address(servers.tracker), "lab")
    assert len(done.stdout.split()) == 4, done
    for token in (TOKEN[:-1], TOKEN + "0"):
        assert "Cannot request" in error_of(DeviceError, dl.remote, lab, token)
    assert dl.remote(lab).cpu


@pytest.mark.slow
def test_silent_connections_do_not_keep_a_worker_or_a_tracker(
    lab: str, worker: tuple[str, int], servers: Servers
) -> None:
    begun = time.monotonic()
    with contextlib.ExitStack() as stack:
        for begin in (b"", b"\x71\xf2\x0f", struct.pack("<ii", base.RPC_MAGIC, 2**31 - 1), b"GET / HTTP"):
            for place in (worker, server.address(servers.tracker)):
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


def test_a_tracker_that_is_not_there_and_a_token_that_is_none_are_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(server.TOKEN, raising=False)
    begun, somewhere = time.monotonic(), "127.0.0.1:1/lab"
    for where, token, told in (
        (somewhere, TOKEN, "no tracker answers at 127.0.0.1:1 (Connection refused): start one by"),
        *((where, TOKEN, "is not HOST:PORT") for where in ("127.0.0.1:1", "lab", "a:b/lab", 5)),
        *((somewhere, wrong, "a token is 16 to 128") for wrong in ("short", "a b" * 9, "a/b" * 9, "x" * 999, 5)),
        (somewhere, None, f"set {server.TOKEN} to it"),
    ):
        assert told in error_of(DeviceError, dl.remote, where, token), (where, token)
    assert time.monotonic() - begun < 2 * server.PROBE


@pytest.mark.slow
def test_a_tracker_prints_a_new_token_each_time(servers: Servers) -> None:
    without = ("env", "-u", server.TOKEN, sys.executable, "-m", "dlsys")
    trackers = [servers.start("tracker", "--port", "0", by=without)[0] for _ in range(2)]
    found = {tracker.stdout.readline() for tracker in trackers}
    assert len(found) == 2 and all(re.fullmatch(r"token [\w-]{32}\n", line) for line in found)
