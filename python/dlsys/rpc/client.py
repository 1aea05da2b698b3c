"""`remote`: a device far away, sessions with its workers, and a step of an executor that runs there."""

from __future__ import annotations

import contextlib
import json
import select
import socket
import struct
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from tvm import rpc, runtime
from tvm.rpc import base

from ..devices import host_array
from ..errors import DeviceError, FeedError, ShapeError
from ..graph import Node
from ..kernels import choices
from ..kernels.export import STEP, Exported
from ..kernels.spec import TargetName
from ..schedule.target import device_target
from ..scopes import scopes
from .server import FACTS, PROBE, address, connected

LASTING = 3600.0  # seconds that a session of a program lasts at most
WAIT = 25.0  # seconds that it waits for a worker that is free
TRIED = 3  # workers that are asked for a session: the tracker may not know yet that one has ended


class Remote:
    """A device far away: the workers of one key, whose CPUs are alike.

    Attributes:
        name: HOST:PORT/NAME.
        cpu: its name and the features that it lacks, as `znver3 without pku`.
        how: what code for it is compiled with. Records of a search have its `machine`.
    """

    def __init__(self, where: str) -> None:
        """See `remote`."""
        at, _, self._key = where.rpartition("/") if isinstance(where, str) else ("", "", "")
        if not at or not self._key:
            raise DeviceError(f"remote: {where!r} is not HOST:PORT/NAME")
        self.name, self._tracker, self._facts = where, address(at), ""
        worker = self.session(WAIT).worker  # which tells the facts, and is free again
        found = json.loads(self._facts)
        if found["versions"] != choices.versions():
            told = f"{found['versions']}, and this program {choices.versions()}"
            raise DeviceError(f"{where}: the worker at {worker} has {told}: they must be the same")
        self.cpu: str = found["cpu"]
        target = device_target(found["target"], {int(level): size for level, size in found["caches"].items()})
        told = f"compiled for {where}"
        self.how = TargetName("llvm", str(target), lambda: target, told, found["machine"], scopes.own_schedules, False)

    def __repr__(self) -> str:
        return f"remote({self.name!r})   # {self.cpu}"

    def workers(self) -> int:
        """The number of workers, free or not. Raises DeviceError where there is no tracker."""
        with self._asking() as tracker:
            return _keys(tracker).count(self._key)

    def session(self, seconds: float = LASTING) -> Session:
        """A session of so many seconds at most with a worker that is free; it ends when nothing of it is in use any
        more. Raises DeviceError where none becomes free, or none is there."""
        failed = ""
        for _ in range(TRIED):
            with self._asking() as tracker:
                end = time.monotonic() + PROBE  # a worker that has just been started may be unknown yet
                while self._key not in (keys := _keys(tracker)):
                    if time.monotonic() > end:
                        others = f"; there are {', '.join(sorted(set(keys)))}" if keys else ""
                        raise DeviceError(f"{self.name}: the tracker knows no worker {self._key}{others}{failed}")
                    time.sleep(PROBE / 20)
                base.sendjson(tracker, [base.TrackerCode.REQUEST, self._key, "", 1])
                if not select.select([tracker], [], [], WAIT)[0]:
                    raise DeviceError(f"{self.name}: no worker became free within {WAIT:.0f} s")
                host, port, match = base.recvjson(tracker)[1]
            try:
                session = Session(rpc.connect(host, port, match, seconds), f"{self._key} at {host}:{port}")
            except RuntimeError:
                failed = f"; that at {host}:{port} does not answer"
                continue
            facts = session.asked(FACTS)
            if self._facts not in ("", facts):
                told = "another CPU, or number of threads, than others of its key: give it one of its own"
                raise DeviceError(f"{self.name}: the worker {session.worker} has {told}")
            self._facts = facts
            return session
        raise DeviceError(f"{self.name}: no worker can be reached{failed}")

    def load(self, executor: Exporting, feed_shapes: Mapping[Node, Any] | None = None) -> Step:
        """A step of an executor, compiled here for the device and sent there with the values of its parameters.
        `feed_shapes`: see `Executor.infer_shape`; None for those of the latest run. Raises DeviceError, and what
        `Executor.export` raises."""
        return Step(self, executor, feed_shapes)

    @contextlib.contextmanager
    def _asking(self) -> Iterator[socket.socket]:
        """A connection to the tracker, whose errors are DeviceError."""
        with connected(*self._tracker) as tracker:
            try:
                tracker.sendall(struct.pack("<i", base.RPC_TRACKER_MAGIC))
                if struct.unpack("<i", base.recvall(tracker, 4))[0] != base.RPC_TRACKER_MAGIC:
                    raise ValueError("its answer is not a tracker's")
                yield tracker
            except (OSError, ValueError) as error:
                raise DeviceError(f"{self.name}: the tracker does not answer: {error}") from None


def remote(where: str) -> Remote:
    """The device `HOST:PORT/NAME`: the tracker at HOST:PORT, and its workers whose key is NAME.

    Raises DeviceError where no tracker answers within two seconds, where it knows no such worker or none becomes free,
    and where that has other versions of TVM than this program."""
    return Remote(where)


def _keys(tracker: socket.socket) -> list[str]:
    """The key of each worker that a tracker knows."""
    base.sendjson(tracker, [base.TrackerCode.SUMMARY])
    return [worker["key"].split(":", 1)[1] for worker in base.recvjson(tracker)[1]["server_info"]]


class Session:
    """A session with a worker, served by a process there.

    Attributes:
        worker: its key and address.
        tvm: TVM's session.
    """

    def __init__(self, session: rpc.RPCSession, worker: str) -> None:
        self.tvm, self.worker = session, worker

    @contextlib.contextmanager
    def telling(self) -> Iterator[None]:
        """Inside, errors of TVM's are DeviceErrors that name the worker."""
        try:
            yield
        except (AttributeError, RuntimeError, TypeError, ValueError) as error:
            if isinstance(error, DeviceError):
                raise
            lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
            told = "it has ended the session" if "kShutdown" in lines[-1] else lines[-1]
            raise DeviceError(f"the worker {self.worker}: {told}") from None

    def put(self, content: bytes, name: str) -> None:
        """Writes a file in the session's folder."""
        with self.telling():
            self.tvm.upload(bytearray(content), name)

    def asked(self, name: str, *arguments: Any) -> str:
        """The answer of a function that the worker serves."""
        with self.telling():
            return str(self.tvm.get_function(name)(*arguments))


class Exporting(Protocol):
    """An object with a step to export, as an `Executor` is."""

    def exported(
        self, path: Path, feed_shapes: Mapping[Node, Any] | None, mcpu: TargetName
    ) -> tuple[Exported, list[Node]]:
        """Writes the library."""


class Step:
    """A step on a device, where its parameters stay, and what it is fed.

    Attributes:
        exported: how its library's function is called.
    """

    def __init__(self, device: Remote, executor: Exporting, feed_shapes: Mapping[Node, Any] | None = None) -> None:
        """See `Remote.load`."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, f"{STEP}.so")
            self.exported, nodes = executor.exported(path, feed_shapes, device.how)
            self._session = device.session()
            self._session.put(path.read_bytes(), path.name)
        self._at, arguments = {node: at for at, node in enumerate(nodes)}, self.exported.arguments
        values = {node: array.value for node, array in zip(nodes, arguments, strict=False)}
        self._missing = {node: None for node, value in values.items() if value is None}
        with self._session.telling():
            self._function, there = self._session.tvm.load_module(path.name)[STEP], self._session.tvm.cpu(0)
            self._arrays = [runtime.empty(*array.type, there) for array in arguments]
        self.feed({node: value for node, value in values.items() if value is not None})

    def feed(self, feeds: Mapping[Node, Any]) -> None:
        """Sends what the step needs of these arrays. Raises ShapeError for another shape."""
        for node, value in feeds.items():
            if node in self._at:
                shape, dtype = self.exported.arguments[self._at[node]].type
                array = host_array(value, dtype)
                if array.shape != shape:
                    raise ShapeError(f"feed of {node.name}: the step on the device takes {shape}, not {array.shape}")
                with self._session.telling():
                    self._arrays[self._at[node]].copyfrom(array.astype(dtype, copy=False))
                self._missing.pop(node, None)

    def run(self, feeds: Mapping[Node, Any] | None = None) -> list[np.ndarray]:
        """The results of a run. What is not fed again is what was fed before, or what the last run has assigned. Raises
        FeedError for what was never fed, DeviceError where the worker has ended."""
        self.feed(feeds or {})
        if self._missing:
            raise FeedError(f"the step on the device needs {', '.join(node.name for node in self._missing)}")
        with self._session.telling():
            self._function(*self._arrays)
            return [array.numpy() for array in self._arrays[len(self._arrays) - self.exported.results :]]

    def value(self, node: Node) -> np.ndarray:
        """The array that the device has of a parameter or a feed. Raises FeedError for another node."""
        if node not in self._at:
            raise FeedError(f"{node!r} is no parameter or feed of the step on the device")
        with self._session.telling():
            return np.asarray(self._arrays[self._at[node]].numpy())

    def asked(self, name: str, request: str) -> str:
        """The answer of a function that the worker serves, which is given the step's arrays too."""
        return self._session.asked(name, request, *self._arrays)
