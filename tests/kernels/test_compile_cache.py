"""Compiled kernels on disk: used again, shared, bounded, never trusted blindly; no home, a fork: programs run."""

from __future__ import annotations

import ast
import gc
import importlib
import importlib.util
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import dlsys
import dlsys as dl
import numpy as np
import pytest
import tvm
import tvm_ffi
from dlsys import autodiff as ad
from dlsys import compute, kernels, schedule, storage, tvm_import, tvm_op
from dlsys.data import DataLoader, TensorDataset
from dlsys.kernels import CacheWarning, build, disk
from dlsys.kernels import cache as of_process
from dlsys.schedule import intrinsics
from dlsys.schedule.common import rewritten
from helpers import on_threads, python
from optional import torch
from tvm import tirx


class Forgetful(dict[object, object]):
    """The kernels of a process that always asks the disk."""

    def __contains__(self, key: object) -> bool:
        return False


@contextmanager
def directory(value: str | None = None) -> Iterator[Path]:
    """The cache in a fresh directory, or where `value` says."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plans"
        moved = mock.patch.dict(os.environ, {disk.VARIABLE: value or str(path)})
        forgotten = mock.patch.object(of_process, "_kernels", Forgetful())
        with moved, forgotten, mock.patch.object(disk, "_said", set()):
            yield path


def result(constant: float = 3.0) -> list[float]:
    """A small graph's value, computed by an executor of its own."""
    x = ad.Variable("x")
    executor = ad.Executor([ad.softmax_op(x * constant) + x])
    return np.asarray(executor.run({x: np.float32([[0.0, 0.0]])})[0]).ravel().tolist()


def results(*names: str) -> list[list[float]]:
    """Values of one or both of two small graphs, a kernel each, computed by an executor of its own."""
    x = ad.Variable("x")
    graphs = {"softmax": ad.softmax_op(x), "matmul": ad.matmul_op(x, x)}
    found = ad.Executor([graphs[name] for name in names]).run({x: np.float32([[0, 1], [2, 3]])})
    return [np.asarray(value, np.float64).ravel().round(3).tolist() for value in found]


SOFTMAX, MATMUL = [0.269, 0.731, 0.269, 0.731], [2.0, 3.0, 6.0, 11.0]


def files(path: Path) -> list[Path]:
    """The libraries that the directory holds."""
    return sorted(path.glob("*.so"))


def compiled(function: object) -> int:
    """How many kernels are lowered while the function runs, but for that which makes the calls of every plan."""
    with mock.patch.object(build, "lower", wraps=build.lower) as lower:
        function()  # type: ignore[operator]
        return sum(call.args[0] is not kernels.RUN for call in lower.call_args_list)


@pytest.mark.slow
def test_another_process_compiles_only_what_is_missing() -> None:
    program = "import sys; sys.path[:0] = sys.argv[1:]; import test_compile_cache as t\n"
    program += "for names in (['softmax'], ['softmax', 'matmul']): print(t.compiled(lambda: t.results(*names)))\n"
    program += "print(t.results('softmax', 'matmul'))"
    paths = Path(__file__).parent, Path(__file__).parents[1], Path(kernels.__file__).parents[2]
    with directory() as path:
        assert compiled(lambda: results("softmax")) == 1
        outputs = [python("-c", program, *paths).stdout for _ in range(2)]
        assert outputs == [f"{zero}\n{one}\n{[SOFTMAX, MATMUL]}\n" for zero, one in ((0, 1), (0, 0))]
        assert compiled(lambda: results("matmul", "softmax")) == 0
        assert len(list(files(path))) == 2


STEP = """
import sys
import numpy as np
import dlsys as dl
from dlsys import autodiff as ad, nn, tvm_op

def imported():
    return sorted({"tvm", "torch"} & set(sys.modules))

x, w = ad.Variable("x"), ad.Parameter(np.ones((3, 2), "float32"))
loss = ad.softmaxcrossentropy_op(ad.relu_op(ad.matmul_op(x, w)), x[:, :2])
step = ad.Executor([loss, *ad.gradients(loss, [w])])
values = [np.asarray(v).tolist() for v in step.run({x: np.float32([[1, 2, 3]])})]
model = nn.Linear(3, 2)
nn.functional.mse_loss(model(dl.ones(4, 3)), dl.zeros(4, 2)).backward()
z = ad.Variable("z", (3, 8, 64), "float32")
state = nn.LSTM(64, 64)(z)[0]
ad.Executor([state, *ad.gradients(state, [z])]).run({z: np.ones((3, 8, 64), "f")})  # asks for a matrix's panels
product = tvm_op.make_matrix_mul((2, 3), False, (3, 2), False, "llvm", "llvm", "product")
product(np.ones((2, 3), "f"), np.ones((3, 2), "f"), out := np.empty((2, 2), "f"))
print(imported(), values, model.bias.grad.shape, out.tolist())
assert product.symbol in product.source()
assert "matmul" in str(product.script()) and imported() == ["tvm"]
"""


@pytest.mark.slow
def test_a_process_whose_kernels_are_on_disk_imports_neither_tvms_python_nor_pytorch() -> None:
    with directory():
        first, second = (python("-c", STEP).stdout for _ in range(2))
        assert first.startswith("['tvm'] [") and second == first.replace("['tvm']", "[]")


def test_a_damaged_file_is_ignored_with_one_warning_and_made_anew() -> None:
    with directory() as path:
        result()
        (file,) = files(path)
        whole = file.read_bytes()
        half = len(whole) // 2
        wrong = whole[:half] + bytes([255 - whole[half]]) + whole[half + 1 :]
        for content in (whole[:100], whole[:half], b"", wrong):
            file.unlink()  # this process has mapped it
            file.write_bytes(content)
            with mock.patch.object(disk, "_said", set()), warnings.catch_warnings(record=True) as found:
                warnings.simplefilter("always")
                assert result() == [0.5, 0.5] and result() == [0.5, 0.5]
            assert [w.category for w in found] == [CacheWarning] and "damaged or foreign" in str(found[0].message)
            assert compiled(result) == 0
            (file,) = {link.resolve() for link in Path(path, disk.KERNELS).iterdir()}  # LLVM may write other bytes


def test_it_can_be_switched_off_and_is_skipped_without_a_linker() -> None:
    for switch in ("0", "off"):
        with directory(switch):
            assert disk.cache_directory() is None
            assert result() == [0.5, 0.5]
    with directory() as path, mock.patch.object(disk, "linker", side_effect=OSError("no linker")):
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            assert result() == [0.5, 0.5] and np.allclose(result(5.0), 0.5)
        assert len(found) == 1 and "no linker" in str(found[0].message)
        assert not path.exists()


def test_what_was_used_longest_ago_goes_first() -> None:
    with directory() as path:
        result(1.0)
        (first,) = files(path)
        result(2.0)
        (second,) = set(files(path)) - {first}
        os.utime(first, (1000, 1000))
        os.utime(second, (2000, 2000))
        result(1.0)  # used: now the latest
        with mock.patch.object(disk, "MOST_BYTES", int(2.5 * first.stat().st_size)):
            result(7.0)
        assert first.exists() and not second.exists() and len(list(files(path))) == 2


def test_threads_and_schedules_are_part_of_the_key() -> None:
    with directory():
        assert compiled(result) > 0
        with kernels.default_schedules():
            assert compiled(result) > 0
        if dl.get_num_threads() > 1:
            with on_threads(1):
                assert compiled(result) > 0
        with mock.patch.object(kernels.spec, "cpu", lambda: "another CPU in the same folder"):
            assert compiled(result) > 0
        with mock.patch.object(kernels.spec, "cache_sizes", lambda: {1: 48 << 10}):  # or with other caches
            assert compiled(result) > 0
        assert compiled(result) == 0


def times(factor: float) -> schedule.Rule:
    """A rule that is wrong: every result of plain loops is so many times as large."""

    def store(one: tirx.BufferStore) -> tirx.BufferStore:
        return tirx.BufferStore(one.buffer, one.value * tirx.const(factor, str(one.buffer.dtype)), one.indices)

    def mine(func: tirx.PrimFunc, _: object) -> tirx.PrimFunc:
        return func.with_body(rewritten(func.body, {tirx.BufferStore: store}))

    return schedule.Rule("mine", "llvm", mine)


RELU = """
import sys
import numpy as np
from dlsys import tvm_op
tvm_op.make_relu((4,), "llvm", "llvm", "relu")(np.float32([-1, 0, 1, 2]), out := np.empty(4, "f"))
print(out.tolist(), "tvm" in sys.modules)
"""


def test_a_rule_of_a_programs_own_makes_its_kernels_alone() -> None:
    """Edited it makes them anew; taken away it leaves none, neither in the process nor on disk, for any program."""

    def relu() -> list[float]:
        kernel = tvm_op.make_relu((4,), "llvm", "llvm", "relu")
        kernel(np.float32([-1, 0, 1, 2]), out := np.empty(4, "f"))
        assert (kernel.rule.name == "mine") is any(rule.name == "mine" for rule in schedule.RULES["llvm"])
        return [float(x) for x in out]

    with directory():
        for factor in (2.0, 3.0, 2.0):
            with mock.patch.dict(schedule.RULES, llvm=(times(factor), *schedule.RULES["llvm"])):
                assert relu() == [0.0, 0.0, factor, 2 * factor]
        assert python("-c", RELU).stdout == "[0.0, 0.0, 1.0, 2.0] True\n"  # which compiles it
        assert relu() == [0.0, 0.0, 1.0, 2.0]
        with mock.patch.dict(schedule.RULES, llvm=(times(3.0), *schedule.RULES["llvm"])):
            assert relu() == [0.0, 0.0, 3.0, 6.0]
        assert python("-c", RELU).stdout == "[0.0, 0.0, 1.0, 2.0] False\n"


def test_an_instruction_of_a_programs_own_is_part_of_the_key() -> None:
    vpdpbusd = intrinsics.DECLARED["vpdpbusd.avx512vnni"]
    with directory():
        result()
        with mock.patch.dict(intrinsics.DECLARED, {"mine": replace(vpdpbusd, name="mine")}):
            assert compiled(result) > 0
        assert compiled(result) == 0


def test_a_library_of_another_key_is_not_used() -> None:
    """Of a kernel of the same name and formula, which another machine or another version of the sources has made."""

    def relu() -> None:
        tvm_op.make_relu((4,), "llvm", "llvm", "relu")

    with directory() as path:
        with mock.patch.object(kernels.spec, "cpu", lambda: "another CPU in the same folder"):
            relu()
        (foreign,) = (path / disk.KERNELS).iterdir()
        relu()
        (own,) = set((path / disk.KERNELS).iterdir()) - {foreign}
        own.unlink(), own.symlink_to(os.readlink(foreign))
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            assert compiled(relu) == 1
        assert [w.category for w in found] == [CacheWarning] and "foreign" in str(found[0].message)
        assert compiled(relu) == 0


def test_what_a_directory_holds_is_used_where_nothing_can_be_added() -> None:
    with directory() as path:
        results("softmax")
        before = sorted(path.rglob("*"))
        no_linker = mock.patch.object(disk, "linker", side_effect=OSError("no linker"))
        with no_linker, warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            assert compiled(lambda: results("softmax", "matmul")) == 1
            assert results("softmax", "matmul") == [SOFTMAX, MATMUL]
        assert len(found) == 1
        assert sorted(path.rglob("*")) == before


def test_threads_of_a_process_may_compile_the_same_at_once() -> None:
    with directory(), ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: results("softmax", "matmul"), range(8)))
        assert found == [[SOFTMAX, MATMUL]] * 8
        assert compiled(lambda: results("matmul", "softmax")) == 0


def test_what_formulas_and_rules_are_made_with_is_among_these_sources() -> None:
    """Every module that they import, but for those that decide no code."""
    package = Path(dlsys.__file__).parent
    imported = {"checks.py"}
    for path in (*package.joinpath("compute").rglob("*.py"), *package.joinpath("schedule").rglob("*.py")):
        inside = path.relative_to(package).parts[:-1]
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.level > len(inside):
                names = [node.module.split(".")[0]] if node.module else [one.name for one in node.names]
                imported |= {name if (package / name).is_dir() else f"{name}.py" for name in names}
    assert imported - {"errors.py", "graph.py", "system.py", "tvm_import.py"} <= {*disk.SOURCES}


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


def homeless() -> dict[str, str]:
    """The environment without what tells where the cache lies."""
    return {k: v for k, v in os.environ.items() if k not in ("HOME", "XDG_CACHE_HOME", "DLSYS_CACHE")}


def run(cache: Path | None, prefix: str = "", **environment: str) -> str:
    """What a program says on standard error that compiles two kernels, with its cache there; it must end well."""
    with tempfile.NamedTemporaryFile("w", suffix=".py") as program:
        program.write(PROGRAM)
        program.flush()
        kept = {**homeless(), "PYTHONPATH": str(PACKAGE), "DLSYS_COMPILE_CACHE": str(cache or ""), **environment}
        command = ["sh", "-c", f'{prefix} exec "$0" "$1"', sys.executable, program.name]
        done = subprocess.run(command, env=kept, capture_output=True, text=True, timeout=600)
        assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr[-2000:]
        warned = [line for line in done.stderr.splitlines() if "CacheWarning" in line]
        assert len(warned) <= 1 and all(line.startswith(f"{program.name}:6:") for line in warned), done.stderr
        return done.stderr


@pytest.mark.slow
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
    assert "no file" in run(good)


def warned(path: Path) -> str:
    """What is said, in one warning, when a kernel's library is asked for and made; it must give the right result."""
    with warnings.catch_warnings(record=True) as found, mock.patch.object(disk, "_said", set()):
        warnings.simplefilter("always")
        assert result() == [0.5, 0.5]
    assert [one.category for one in found] in ([], [CacheWarning])
    return str(found[0].message) if found else ""


@pytest.mark.slow
def test_a_library_that_others_could_have_written_is_not_loaded() -> None:
    with directory() as path:
        result()
        (file,) = files(path)
        other = path / "other"
        whole = file.read_bytes()

        def writable() -> None:
            file.chmod(0o602)

        def linked() -> None:
            file.rename(other)
            file.symlink_to(other)

        def sparse() -> None:
            file.unlink()
            with file.open("wb") as made:
                made.truncate(30 * 2**30)

        def foreign() -> None:
            os.chown(file, 12345, -1)

        for change, said in (
            (writable, "others may write to"),
            (linked, "is a link or no file"),
            (sparse, "has 32,212,254,720 bytes"),
            (foreign, "belongs to another user"),
        ):
            if change is not foreign or os.getuid() == 0:
                change()
                assert said in warned(path)
            (file,) = {path / Path(os.readlink(link)).name for link in Path(path, disk.KERNELS).iterdir()}
            # by the links, as LLVM may write other bytes, which have another name
            assert not file.is_symlink() and file.stat().st_mode & 0o022 == 0 and file.stat().st_uid == os.getuid()
            assert len(file.read_bytes()) == len(whole) and warned(path) == ""


def test_a_folder_around_the_cache_that_others_may_write_to_is_said() -> None:
    with tempfile.TemporaryDirectory() as folder, directory(f"{folder}/open/inner/cache"):
        inner = Path(folder, "open", "inner")
        inner.mkdir(parents=True)
        assert warned(inner) == "" and files(inner / "cache")
        before = sorted(inner.rglob("*"))
        private = inner.stat().st_gid == storage._private_group()
        for mode, kept in ((0o777, False), (0o775, private), (0o1777, True), (0o755, True)):
            inner.parent.chmod(mode)
            said = warned(inner)
            assert said == "" if kept else f"others may write to {inner.parent}" in said, oct(mode)
        assert sorted(inner.rglob("*")) == before
        Path(folder, "link").symlink_to(inner)
        with directory(f"{folder}/link/cache"):  # a link is followed to where it leads
            assert warned(inner) == "" and sorted(inner.rglob("*")) == before
            inner.parent.chmod(0o777)
            assert f"others may write to {inner.parent}" in warned(inner)


def test_what_is_kept_is_the_users_alone_whatever_the_umask() -> None:
    before = os.umask(0)
    try:
        with directory() as path:
            assert warned(path) == "" and warned(path) == ""
            assert all(file.stat().st_mode & 0o022 == 0 for file in [path, *files(path)])
    finally:
        os.umask(before)


@pytest.mark.slow
def test_a_user_without_a_home_has_no_cache() -> None:
    """As in a container that runs under a number which no user has: TVM alone cannot be imported there."""
    program = "import pwd\ndef nobody(number): raise KeyError(number)\npwd.getpwuid = nobody\n"
    program += "from dlsys.system import cache_folder; print(cache_folder()); import dlsys.autodiff"
    assert python("-W", "error", "-c", program, base=homeless(), PYTHONPATH=str(PACKAGE)).stdout == "None\n"


C_LOCALE = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


@pytest.mark.slow
def test_the_caches_name_may_have_any_letters_in_any_locale(tmp_path: Path) -> None:
    named = tmp_path / "c\u00e4ch\u00e9"
    assert run(None, DLSYS_CACHE=str(named), **C_LOCALE) == "" and list(named.glob("compiled/*.so"))
    assert run(None, DLSYS_CACHE=os.fsdecode(bytes(tmp_path) + b"/c\xe4ch")).count("takes names in UTF-8 alone") == 1


@pytest.mark.slow
def test_a_blank_setting_is_none(tmp_path: Path) -> None:
    assert run(None, DLSYS_CACHE=" ", DLSYS_COMPILE_CACHE=" ", HOME=str(tmp_path)) == ""
    assert list(tmp_path.glob(".cache/dlsys/compiled/*.so")) and not Path(" ").exists()


@pytest.mark.slow
def test_a_package_in_a_zip_file_runs_and_keeps_its_kernels(tmp_path: Path) -> None:
    archive = shutil.make_archive(str(tmp_path / "dlsys"), "zip", PACKAGE, "dlsys")
    program = f"import dlsys\nassert dlsys.__file__.startswith({archive!r})\n{PROGRAM}"
    program += "from dlsys.data import text\nprint(len(text.read_text()[0]))"
    settings = {"PYTHONPATH": archive, "DLSYS_COMPILE_CACHE": str(tmp_path / "cache"), "DLSYS_CACHE": str(tmp_path)}
    done = python("-W", "error", "-c", program, DLSYS_OFFLINE="1", DLSYS_DATA="", **settings)
    assert int(done.stdout.split()[-1]) > 40_000
    assert list(tmp_path.glob("cache/*.so"))


@pytest.mark.slow
def test_no_more_threads_than_cores() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for asked in ("1000", "0", "many", "9" * 5000):
            said = run(Path(folder, "cache"), TVM_NUM_THREADS=asked)
            assert said.count("RuntimeWarning") == 1 and f"TVM_NUM_THREADS={asked[:20]}" in said
        for asked in ("1", " ", ""):
            assert run(Path(folder, "cache"), TVM_NUM_THREADS=asked) == ""


@pytest.mark.slow
def test_a_compiler_that_would_not_fit_is_not_loaded(tmp_path: Path) -> None:
    threads = {"TVM_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    cache = tmp_path / "cache"
    with tempfile.NamedTemporaryFile("w", suffix=".py") as program:
        program.write(PROGRAM)
        program.flush()
        command = ["sh", "-c", f"ulimit -v 600000; exec {sys.executable} {program.name}"]
        environment = {**os.environ, **threads, "PYTHONPATH": str(PACKAGE), "DLSYS_COMPILE_CACHE": str(cache)}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    if sys.platform.startswith("linux"):
        assert done.returncode == 1 and "DlsysError: TVM's compiler takes" in done.stderr, done.stderr[-2000:]
    assert run(cache, **threads) == "" and run(cache, "ulimit -v 600000;", **threads) == ""


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
    same, threads, batches, told = answer.get(timeout=600)
    child.join()
    assert same and threads == 1 and batches == 4 and "forked process" in told


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


WHILE_COMPILING = """
import multiprocessing, os, sys, threading, warnings
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
    child = os.fork()
    if child == 0:
        os._exit(0 if work(5) else 1)
    assert os.waitpid(child, 0)[1] == 0
    context = multiprocessing.get_context("fork")
    with context.Pool(2) as pool:
        assert all(pool.map(work, (10, 11)))
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        assert pool.submit(work, 12).result()
    go_on.set()
    thread.join()

build.lower = slow
held(executor.run, {x: value})  # the executor itself, which the child runs too
held((traced() * 3.0).sum().backward)
assert work(9)
print("done")
"""


@pytest.mark.slow
def test_a_fork_while_a_thread_compiles_leaves_no_lock_behind() -> None:
    assert python("-c", WHILE_COMPILING, **{disk.VARIABLE: "0"}).stdout == "done\n"


def test_an_interrupt_while_tvm_walks_over_loops_is_one() -> None:
    """Ctrl-C in a Python function that TVM's C++ calls."""
    with pytest.raises(KeyboardInterrupt):
        tvm_ffi.structural_walk(tvm.tirx.const(1), lambda _: signal.raise_signal(signal.SIGINT))


WHILE_IMPORTING = """
import logging, os, signal, sys, threading, time, warnings
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
print(os.waitpid(child, 0)[1])
"""


@pytest.mark.slow
@pytest.mark.parametrize("module", ["tvm", "tvm.ir", "dlsys.kernels.build"])
def test_a_fork_while_a_thread_imports_the_compiler_waits_for_it(module: str) -> None:
    assert python("-c", WHILE_IMPORTING, module, **{disk.VARIABLE: "0"}).stdout == "0\n"


def test_threads_that_import_the_compiler_leave_the_garbage_collector_on() -> None:
    """The second begins while the first has switched it off, and ends after it."""
    begun, second_begun, first_done = (threading.Event() for _ in range(3))

    def slow(name: str) -> str:
        if name == "first":
            begun.set()
            assert second_begun.wait(600)
        else:
            second_begun.set()
            assert first_done.wait(600)
        return name

    assert gc.isenabled()
    with mock.patch.object(importlib, "import_module", slow), ThreadPoolExecutor(2) as pool:
        first = pool.submit(tvm_import._import, "first")
        assert begun.wait(600)
        second = pool.submit(tvm_import._import, "second")
        assert first.result() == "first"
        first_done.set()
        assert second.result() == "second"
    assert gc.isenabled()


def test_kernels_that_are_not_on_disk_count_what_the_compiler_keeps() -> None:
    """1 MiB a module: 4,096 kernels counted as 32 KiB each took 4.4 GiB."""
    environment = mock.patch.dict(os.environ, {"DLSYS_COMPILE_CACHE": "0"})
    with environment, mock.patch.object(of_process, "_kernels", {}):
        types = [(((n,), "float32"),) for n in (1, 2)]
        specs = [kernels.KernelSpec("d", own, own, lambda x: compute.add(x, x), outputs=own) for own in types]
        assert kernels.get(specs[:1])[0].code_bytes > 2**20
        with mock.patch.object(of_process, "MOST_BYTES", 2**20):
            kernels.get(specs[1:])
            assert kernels.built() <= 1
