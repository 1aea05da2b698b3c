"""`remote`: a device far away, and a step of an executor that runs there."""

from __future__ import annotations

import contextlib
import itertools
import json
import queue
import tempfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from tvm import rpc, runtime

from ..autodiff import Executor
from ..deploy.export import exported
from ..deploy.library import STEP, Exported
from ..devices import host_array
from ..errors import DeviceError, DlsysError, FeedError, ShapeError
from ..graph import Node
from ..kernels.spec import TargetName
from ..schedule.target import device_target
from ..scopes import scopes
from .server import FACTS, address, connected, token_of, versions

LASTING = 3600.0  # seconds that a session lasts at most
WAIT = 25.0  # seconds that a program waits for a worker that is free, and for its answer


class Remote:
    """A session with a worker, served by a process there. It ends when nothing refers to it or to a step of it any
    more, and after an hour.

    Attributes:
        name: HOST:PORT/NAME.
        cpu: its name and the features that it lacks, as `znver3 without pku`.
        how: what code for it is compiled with.
    """

    def __init__(self, where: str, token: str | None = None) -> None:
        """See `remote`."""
        at, _, key = where.rpartition("/") if isinstance(where, str) else ("", "", "")
        if not at or not key:
            raise DeviceError(f"remote: {where!r} is not HOST:PORT/NAME")
        tracker, key = address(at), f"{token_of('remote', token)}/{key}"
        connected(*tracker).close()
        self.name, self._numbers = where, itertools.count()
        with self.telling():
            self.session = _within(WAIT, lambda: rpc.connect_tracker(*tracker).request(key, session_timeout=LASTING))
            facts = json.loads(self.session.get_function(FACTS)())
        if facts["versions"] != versions():
            both = f"{facts['versions']}, and this program {versions()}"
            raise DeviceError(f"{where}: the worker has {both}: they must be the same")
        self.cpu: str = facts["cpu"]
        target = device_target(facts["target"], {int(level): size for level, size in facts["caches"].items()})
        text, refusal, ours = str(target), f"compiled for {where}", scopes.own_schedules
        self.how = TargetName("llvm", text, lambda: target, refusal, ours, False)

    def __repr__(self) -> str:
        return f"remote({self.name!r})   # {self.cpu}"

    def load(self, executor: Executor, feed_shapes: Mapping[Node, Any] | None = None) -> Step:
        """A step of an executor, compiled here for the device and sent there with the values of its parameters.
        `feed_shapes`: see `Executor.infer_shape`; None for those of the latest run. Raises DeviceError, and what
        `dlsys.export` raises."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, f"{STEP}{next(self._numbers)}.so")
            written, nodes = exported(executor, path, feed_shapes, self.how)
            with self.telling():
                self.session.upload(bytearray(path.read_bytes()), path.name)
                return Step(self, self.session.load_module(path.name), written, nodes)

    @contextlib.contextmanager
    def telling(self) -> Iterator[None]:
        """Inside, errors of TVM's, and of answers that are none of its own, are DeviceErrors that name the device."""
        try:
            yield
        except (AttributeError, LookupError, OSError, RuntimeError, TypeError, ValueError) as error:
            if isinstance(error, DlsysError):
                raise
            lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
            why = "the worker has ended the session" if "kShutdown" in lines[-1] else lines[-1]
            raise DeviceError(f"{self.name}: {why}") from None


def remote(where: str, token: str | None = None) -> Remote:
    """The device `HOST:PORT/NAME`: one of the workers named NAME of the tracker at HOST:PORT, which serves this program
    alone as long as the result is in use.

    `token`: what the tracker printed at its start; None for that of the environment variable DLSYS_TOKEN.

    Raises DeviceError where no tracker answers within two seconds or it has another token, where no worker of that name
    becomes free within 25, and where that has other versions of TVM than this program."""
    return Remote(where, token)


def _within(seconds: float, function: Any) -> Any:
    """The function's result. Raises TimeoutError after so many seconds: the thread that waits for it is left behind, as
    TVM waits for answers without an end."""
    found: queue.SimpleQueue[tuple[Any, Exception | None]] = queue.SimpleQueue()

    def call() -> None:
        try:
            found.put((function(), None))
        except Exception as error:  # noqa: BLE001 - raised by the caller's thread
            found.put((None, error))

    threading.Thread(target=call, daemon=True).start()
    try:
        result, error = found.get(timeout=seconds)
    except queue.Empty:
        raise TimeoutError(f"no worker of that name was free within {seconds:.0f} s, or none answers") from None
    if error is not None:
        raise error
    return result


class Step:
    """A step on a device, where its parameters stay, and what it is fed.

    Attributes:
        exported: how its library's function is called.
    """

    def __init__(self, device: Remote, library: Any, exported: Exported, nodes: list[Node]) -> None:
        """See `Remote.load`."""
        self._device, self._function, self.exported = device, library[STEP], exported
        self._at, arguments = {node: at for at, node in enumerate(nodes)}, exported.arguments
        self._arrays = [runtime.empty(*array.type, device.session.cpu(0)) for array in arguments]
        values = {node: array.value for node, array in zip(nodes, arguments, strict=False)}
        self._missing = {node: None for node, value in values.items() if value is None}
        self.feed({node: value for node, value in values.items() if value is not None})

    def feed(self, feeds: Mapping[Node, Any]) -> None:
        """Sends what the step needs of these arrays. Raises ShapeError for another shape."""
        for node, value in feeds.items():
            if node in self._at:
                shape, dtype = self.exported.arguments[self._at[node]].type
                array = host_array(value, dtype)
                if array.shape != shape:
                    raise ShapeError(f"feed of {node.name}: the step on the device takes {shape}, not {array.shape}")
                with self._device.telling():
                    self._arrays[self._at[node]].copyfrom(array.astype(dtype, copy=False))
                self._missing.pop(node, None)

    def run(self, feeds: Mapping[Node, Any] | None = None) -> list[np.ndarray]:
        """The results of a run. What is not fed again is what was fed before, or what the last run has assigned. Raises
        FeedError for what was never fed, DeviceError where the worker has ended."""
        self.feed(feeds or {})
        if self._missing:
            raise FeedError(f"the step on the device needs {', '.join(node.name for node in self._missing)}")
        with self._device.telling():
            self._function(*self._arrays)
            return [array.numpy() for array in self._arrays[len(self._arrays) - self.exported.results :]]

    def value(self, node: Node) -> np.ndarray:
        """The array that the device has of a parameter or a feed. Raises FeedError for another node."""
        if node not in self._at:
            raise FeedError(f"{node!r} is no parameter or feed of the step on the device")
        with self._device.telling():
            return np.asarray(self._arrays[self._at[node]].numpy())
