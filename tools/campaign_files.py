"""Files: damaged ones, which are told, and hostile ones, which are read in a process of limited memory and time."""

from __future__ import annotations

import gzip
import hashlib
import json
import multiprocessing
import os
import pickle
import random
import resource
import struct
import tempfile
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import dlsys as dl
import numpy as np
from dlsys import autodiff as ad
from dlsys import kernels, nn, optim
from dlsys.data import read_idx
from dlsys.data.files import Collection, load
from dlsys.errors import DlsysError
from dlsys.needle.pickled import read_batch

SECONDS = 10.0
"""For one file: what takes longer hangs. The process that reads is killed then, and another begun."""
MEMORY = 4 << 30
"""Bytes of address space of the process that reads, beside what it has before."""
SPARSE = 1 << 35
NUMBERS = (0, 1, -1, 3, 255, 2**31 - 1, -(2**31), 2**32 - 1, 2**36, 2**62, 2**63 - 1, -(2**63))


# Damaged ---------------------------------------------------------------------------------------------------


def flipped(content: bytes, draw: random.Random) -> bytes:
    """The content with a bit changed, or cut, or with something behind it."""
    kind, changed = draw.randrange(6), bytearray(content)
    if kind == 0:
        return content[: draw.randrange(len(content))]
    if kind == 1:
        return content + bytes([draw.randrange(256)])
    bit = draw.randrange(8 * (len(content) if kind > 3 else min(len(content), 400)))
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def damaged(seed: int, count: Counter, tell: Callable[[str], None]) -> None:
    """A damaged file of some kind: an error, or what was saved."""
    draw = random.Random(seed)
    kind = ("tree", "idx", "kernels")[seed % 3]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "file")
        arrays = {"w": np.arange(12.0).reshape(3, 4), "n": np.arange(3)}
        read: Callable[[], Any]
        if kind == "tree":
            dl.save({"model": arrays, "epoch": 3, "pair": (1, "a")}, path)
            read = lambda: dl.load(path)  # noqa: E731
        elif kind == "idx":
            content = struct.pack(">HBBI", 0, 8, 1, 5) + bytes(range(5))
            path = Path(folder, "set", "part-idx1-ubyte")
            path.parent.mkdir()
            path.write_bytes(gzip.compress(content) if seed % 8 < 4 else content)
            found = Collection("set", {path.name: hashlib.md5(content).hexdigest()}, ())
            read = lambda: load(found, folder)[0]  # noqa: E731
        else:
            os.environ[kernels.disk.VARIABLE] = folder
            read = exponential
            read()
            path = draw.choice(sorted(Path(folder).glob("*.so")))
        want = repr(_sorted(read()))
        content = path.read_bytes()
        path.unlink()  # this process may have it mapped
        path.write_bytes(flipped(content, draw))
        try:
            got = repr(_sorted(read()))
        except DlsysError:
            count["clear error"] += 1
        else:
            count["right" if got == want else "wrong"] += 1
            if got != want:
                tell(f"a damaged {kind} gave {got[:200]}")


def exponential() -> Any:
    """e^x + 1 at 0, by kernels from disk, or compiled."""
    kernels.cache._kernels.clear()
    x = ad.Variable("x")
    return ad.Executor([ad.exp_op(x) + 1.0]).run({x: np.zeros(3, "f4")}, True)


def _sorted(value: Any) -> Any:
    if isinstance(value, dict):
        return [(key, _sorted(value[key])) for key in sorted(value)]
    return [_sorted(item) for item in value] if isinstance(value, (list, tuple)) else value


# Valid files, and what is made of them ---------------------------------------------------------------------


@cache
def onnx_model() -> Any:
    """A model with convolutions, shapes that are computed, a function, and a constant that is tiled."""
    from onnx import helper, numpy_helper

    layers = nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), nn.BatchNorm2d(3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
    model = dl.to_onnx(nn.Sequential(layers, nn.Linear(12, 4)), None, {"x": (1, 2, 4, 4)})
    graph, node = model.graph, helper.make_node
    last = graph.output[0].name
    values = {"own_one": np.ones(1, "f4"), "own_times": [2], "own_axes": [0], "own_sizes": [1, 3]}
    graph.initializer.extend(numpy_helper.from_array(np.asarray(value), name) for name, value in values.items())
    graph.node.extend([
        node("Shape", ["x"], ["own_shape"], "shape"),
        node("ReduceProd", ["own_shape", "own_axes"], ["own_count"], "count", keepdims=1),
        node("Tile", ["own_one", "own_times"], ["own_tiled"], "tile"),
        node("ConstantOfShape", ["own_count"], ["own_full"], "full"),
        node("Split", [last, "own_sizes"], ["own_a", "own_b"], "split", axis=1),
        node("Concat", ["own_b", "own_a"], ["own_joined"], "concat", axis=1),
        node("Doubled", ["own_joined"], ["own_result"], "call", domain="own"),
    ])  # fmt: skip
    graph.output[0].name = "own_result"
    doubled, opsets = [node("Add", ["u", "u"], ["v"])], [helper.make_opsetid("", 18)]
    model.functions.append(helper.make_function("own", "Doubled", ["u"], ["v"], doubled, opsets))
    model.opset_import.append(helper.make_opsetid("own", 1))
    return model


@cache
def onnx_cases() -> list[Any]:
    """The models of ONNX's own tests of its operators, with all inputs but the first as initial values."""
    import onnx
    from onnx import numpy_helper
    from onnx.backend.test.case.node import collect_testcases

    found = []
    for case in collect_testcases(None):
        given = case.data_sets[0][0]
        if all(isinstance(value, np.ndarray) and value.dtype.kind in "biuf" and value.size < 10_000 for value in given):
            model = onnx.ModelProto()
            model.CopyFrom(case.model)
            names = [item.name for item in model.graph.input]
            model.graph.initializer.extend(map(numpy_helper.from_array, given[1:], names[1:]))
            found.append(model)
    return found


def onnx_file(draw: random.Random) -> bytes:
    """A model with some fields of its message changed, or some bytes."""
    model = onnx_model() if draw.random() < 0.3 else draw.choice(onnx_cases())
    if draw.random() < 0.3:
        return bytes_changed(model.SerializeToString(), draw)
    changed = type(model)()
    changed.CopyFrom(model)
    for _ in range(draw.randint(1, 3)):
        message_changed(changed, draw)
    return changed.SerializeToString()


def message_changed(message: Any, draw: random.Random) -> None:
    """Change one field of a protobuf message, or of one within it, at any depth."""
    fields = message.ListFields()
    inner = [item for field, value in fields if field.message_type is not None for item in _items(field, value)]
    if inner and draw.random() < 0.85:
        return message_changed(draw.choice(inner), draw)
    field = draw.choice([field for field, _ in fields] or list(message.DESCRIPTOR.fields))
    value = getattr(message, field.name)
    if draw.random() < 0.2:
        return message.ClearField(field.name)
    if not field.is_repeated:
        if field.message_type is None:
            setattr(message, field.name, _other(field, draw))
        return None
    if not len(value) or draw.random() < 0.3:
        if field.message_type is None:
            value.append(_other(field, draw))
        elif len(value):
            value.add().CopyFrom(draw.choice(list(value)))
    elif field.message_type is None:
        value[draw.randrange(len(value))] = _other(field, draw)
    else:
        del value[draw.randrange(len(value))]
    return None


def _items(field: Any, value: Any) -> list[Any]:
    return list(value) if field.is_repeated else [value]


def _other(field: Any, draw: random.Random) -> Any:
    """A value of a field's kind that its writer did not think of."""
    if field.cpp_type in (field.CPPTYPE_FLOAT, field.CPPTYPE_DOUBLE):
        return draw.choice((0.0, -1.0, 1e30, float("nan"), float("inf")))
    if field.cpp_type == field.CPPTYPE_STRING:
        text = draw.choice(("", "x", "own_one", "Relu", "Range", "Tile", "a" * 10_000, "0.weight", "\0", "../../x"))
        return text.encode() if field.type == field.TYPE_BYTES else text
    if field.cpp_type == field.CPPTYPE_ENUM:
        return draw.choice([value.number for value in field.enum_type.values])
    if field.cpp_type == field.CPPTYPE_BOOL:
        return draw.random() < 0.5
    low, high = (-(2**31), 2**31 - 1) if field.cpp_type == field.CPPTYPE_INT32 else (-(2**63), 2**63 - 1)
    if field.cpp_type in (field.CPPTYPE_UINT32, field.CPPTYPE_UINT64):
        low = 0
    return min(max(draw.choice(NUMBERS), low), high)


def bytes_changed(content: bytes, draw: random.Random) -> bytes:
    """The content with a few bits, numbers or pieces changed, cut out, doubled or put in."""
    changed = bytearray(content)
    for _ in range(draw.randint(1, 4)):
        at = draw.randrange(len(changed) + 1)
        if draw.random() < 0.5:
            at = min(at, draw.randrange(200))  # where headers are
        kind, piece = draw.randrange(6), changed[at : at + draw.randint(1, 64)]
        if kind == 0:
            del changed[at : at + len(piece)]
        elif kind == 1:
            changed[at:at] = piece * draw.choice((1, 2, 100))
        elif kind == 2:
            changed[at:at] = draw.randbytes(draw.randint(1, 8))
        elif kind == 3:
            size, order = draw.choice((4, 8)), draw.choice(("little", "big"))
            changed[at : at + size] = (draw.choice(NUMBERS) % (1 << 8 * size)).to_bytes(size, order)
        elif kind == 4 and at < len(changed):
            changed[at] ^= 1 << draw.randrange(8)
        elif draw.random() < 0.2:
            del changed[at:]
    return bytes(changed)


def tree_changed(tree: Any, draw: random.Random) -> Any:
    """JSON with one part, at any depth, of another kind or size."""
    if isinstance(tree, (dict, list)) and tree and draw.random() < 0.8:
        key = draw.choice(list(tree)) if isinstance(tree, dict) else draw.randrange(len(tree))
        changed: Any = dict(tree) if isinstance(tree, dict) else list(tree)
        if draw.random() < 0.1:
            del changed[key]
        else:
            changed[key] = tree_changed(tree[key], draw)
        return changed
    nested: Any = 1
    for _ in range(draw.choice((2, 60, 250))):
        nested = [nested]
    others = (*NUMBERS, 1.5, float("nan"), None, True, "", "text", [], {}, [tree, tree], {"dict": tree}, nested)
    return draw.choice(others)


def safetensors_file(draw: random.Random) -> bytes:
    """A checkpoint of `fit`: its bytes, its header, or its tree with a checksum that is right."""
    content = _checkpoint()
    length = int.from_bytes(content[:8], "little")
    header, data = json.loads(content[8 : 8 + length]), content[8 + length :]
    how = draw.random()
    if how < 0.3:
        return bytes_changed(content, draw)
    if how < 0.6:
        header = tree_changed(header, draw)
    else:
        stated = header["__metadata__"]
        stated["dlsys.tree"] = json.dumps(tree_changed(json.loads(stated["dlsys.tree"]), draw))
        stated["dlsys.sha256"] = "0" * 64
    text = json.dumps(header, separators=(",", ":")).encode()
    made = len(text).to_bytes(8, "little") + text + data
    digest = hashlib.sha256(made).hexdigest().encode()
    return made.replace(b'"dlsys.sha256":"' + b"0" * 64, b'"dlsys.sha256":"' + digest, 1)


BATCH = [(np.ones((2, 3), "f4"), np.zeros(2, "i8"))]


def trained(directory: str | Path, epochs: int) -> Any:
    """A run of `fit`, which goes on from the directory's checkpoint."""
    dl.manual_seed(0)
    model = nn.Linear(3, 2)
    adam = optim.Adam(model.parameters(), 0.1)
    loss, schedule = nn.CrossEntropyLoss(), optim.StepLR(adam, 2)
    return dl.fit(model, loss, adam, BATCH, epochs=epochs, schedule=schedule, directory=directory, progress=False)


@cache
def _checkpoint() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        trained(folder, 2)
        return Path(folder, "last.safetensors").read_bytes()


def read_checkpoint(path: Path) -> None:
    """The file by `dl.load`, and by a run that goes on from it."""
    dl.load(path)
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "last.safetensors").symlink_to(path)
        trained(folder, 0)


def idx_file(draw: random.Random) -> bytes:
    """An IDX file, plain or packed after it was changed, or before."""
    shape = [draw.choice((0, 1, 3, 5)) for _ in range(draw.choice((1, 3, 3, 40, 255)))]
    content = struct.pack(">HBB", 0, 8, len(shape)) + b"".join(n.to_bytes(4, "big") for n in shape)
    content = bytes_changed(content + bytes(int(np.prod(shape, dtype=object)) % 10_000), draw)
    if draw.random() < 0.2:
        content += bytes(draw.choice((1 << 20, 1 << 24)))
    packed = gzip.compress(content, 1) if draw.random() < 0.5 else content
    return bytes_changed(packed, draw) if draw.random() < 0.3 else packed


def pickle_file(draw: random.Random) -> bytes:
    """A batch of CIFAR-10 as a pickle, some of its steps changed, or labels of another kind."""
    labels: Any = [3, 1, 9]
    if draw.random() < 0.3:
        labels = tree_changed([labels, labels], draw)
    batch = {b"data": np.zeros((3, 3072), "u1"), b"labels": labels, b"filenames": [b"a"] * 3}
    content = pickle.dumps(batch, draw.randrange(6))
    return bytes_changed(content, draw) if draw.random() < 0.8 else content


def read_cache(folder: Path, draw: random.Random) -> str | None:
    """What is wrong with a function by kernels of a cache of which one file is none any more; None where nothing is."""
    os.environ[kernels.disk.VARIABLE] = str(folder)
    wanted = repr(exponential())
    unlike(draw.choice([path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir()]), draw)
    found = repr(exponential())
    return None if found == wanted else f"gave {found}"


def unlike(path: Path, draw: random.Random) -> None:
    """Put something that is no file in the place of a path: a folder, a pipe, a link in a circle, to a device or to
    nothing; or make it a file with a hole of 32 GiB."""
    kind = draw.randrange(6)
    if kind == 5:
        os.truncate(path, SPARSE)
        return
    path.unlink(missing_ok=True)
    if kind == 0:
        path.mkdir()
    elif kind == 1:
        os.mkfifo(path)
    else:
        path.symlink_to(("/dev/zero", path.name, "/nowhere")[kind - 2])


KINDS: dict[str, tuple[Callable[[random.Random], bytes], Callable[[Path], Any]]] = {
    "model.onnx": (onnx_file, dl.from_onnx),
    "checkpoint.safetensors": (safetensors_file, read_checkpoint),
    "images-idx": (idx_file, read_idx),
    "test_batch": (pickle_file, read_batch),
}
"""By a file's name: how one is made, and how it is read. `cache` is a folder, see `read_cache`."""
CACHE = "cache"
PREPARED: dict[str, tuple[Callable[[], Any], ...]] = {
    "model.onnx": (onnx_model, onnx_cases),
    "checkpoint.safetensors": (_checkpoint,),
    CACHE: (exponential,),
}
"""What is made before memory is limited, and not within the time of a try."""


# Hostile ---------------------------------------------------------------------------------------------------


def tried(kind: str, seed: int) -> tuple[str, str]:
    """What came of a hostile file, a column of the table, and in words."""
    draw = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, kind)
        if kind == CACHE:
            path.mkdir(mode=0o700)
        else:
            path.write_bytes(KINDS[kind][0](draw))
            path.chmod(0o600)
            if draw.random() < 0.05:
                unlike(path, draw)
        try:
            found = read_cache(path, draw) if kind == CACHE else KINDS[kind][1](path)
        except DlsysError as error:
            return "clear error", str(error)
        except (Exception, MemoryError) as error:  # noqa: BLE001 - counted
            return "other error", f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        return ("wrong", found) if isinstance(found, str) else ("right", "")


def serve(requests: Any, kinds: Sequence[str]) -> None:
    """Try what is asked for, in a process of limited memory, until the other end goes."""
    warnings.simplefilter("ignore")
    folder = tempfile.TemporaryDirectory()
    os.environ[kernels.disk.VARIABLE] = folder.name
    for make in (make for kind in kinds for make in PREPARED.get(kind, ())):
        make()
    requests.send("ready")
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
    while True:
        try:
            kind, seed = requests.recv()
        except EOFError:
            return
        requests.send(tried(kind, seed))


class Reader:
    """The process that reads files of some kinds; another one after it was killed or has died."""

    def __init__(self, kinds: Sequence[str]) -> None:
        self._kinds = kinds
        self._process: Any = None
        self._lock = threading.Lock()

    def ask(self, kind: str, seed: int) -> tuple[str, str]:
        """What came of a try: `tried`'s answer, a hang, or the end of the process, which is wrong."""
        with self._lock:
            if self._process is None:
                self.begin()
            try:
                self._ends.send((kind, seed))
                if self._ends.poll(SECONDS):
                    return self._ends.recv()
            except (EOFError, BrokenPipeError, ConnectionResetError):
                self._process.join()
                code, self._process = self._process.exitcode, None
                return "wrong", f"the process ended with {code}"
            self.stop()
            return "hang", f"not done in {SECONDS:g} s"

    def begin(self) -> None:
        """Start the process, and wait until it reads."""
        context = multiprocessing.get_context("spawn")
        self._ends, other = context.Pipe()
        self._process = context.Process(target=serve, args=(other, self._kinds), daemon=True)
        self._process.start()
        other.close()
        if not self._ends.poll(300) or self._ends.recv() != "ready":
            raise RuntimeError("the process that reads hostile files did not start")

    def stop(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._process = None


READER = Reader((*KINDS, CACHE))


def hostile(seed: int, count: Counter, tell: Callable[[str], None]) -> None:
    """A file that wishes ill, made of a valid one: an error of dlsys, or read; within time, and in memory."""
    kind = (*KINDS, CACHE)[seed % (len(KINDS) + 1)]
    outcome, told = READER.ask(kind, seed)
    count[outcome] += 1
    if outcome not in ("right", "clear error"):
        tell(f"{kind}: {told}")
