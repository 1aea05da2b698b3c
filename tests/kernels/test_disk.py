"""Compiled kernels on disk: used again, shared, bounded, never trusted blindly; without a place the program runs."""

from __future__ import annotations

import ast
import contextlib
import os
import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import dlsys as dl
import numpy as np
import pytest
from dlsys import autodiff as ad
from dlsys import compute, kernels, schedule, storage, system, tvm_op
from dlsys.kernels import CacheWarning, build, disk
from dlsys.kernels import cache as of_process
from dlsys.schedule import intrinsics
from dlsys.schedule.common import rewritten
from helpers import on_threads, python
from tvm import tirx

PACKAGE = Path(dl.__file__).resolve().parents[1]


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
    """A small graph's value, by an executor of its own: 0.5 twice."""
    x = ad.Variable("x")
    executor = ad.Executor([ad.softmax_op(x * constant) + x])
    return np.asarray(executor.run({x: np.float32([[0.0, 0.0]])})[0]).ravel().tolist()


def results(*names: str) -> list[list[float]]:
    """Values of one or both of two small graphs, a kernel each, by an executor of its own."""
    x = ad.Variable("x")
    graphs = {"softmax": ad.softmax_op(x), "matmul": ad.matmul_op(x, x)}
    found = ad.Executor([graphs[name] for name in names]).run({x: np.float32([[0, 1], [2, 3]])})
    return [np.asarray(value, np.float64).ravel().round(3).tolist() for value in found]


SOFTMAX, MATMUL = [0.269, 0.731, 0.269, 0.731], [2.0, 3.0, 6.0, 11.0]


def relu() -> list[float]:
    """A kernel's result: 0, 0, 1, 2."""
    tvm_op.make_relu((4,), "llvm", "llvm", "relu")(np.float32([-1, 0, 1, 2]), out := np.empty(4, "f"))
    return [float(x) for x in out]


def compiled(function: Callable[[], Any]) -> int:
    """How many kernels are lowered while the function runs, but for that which makes the calls of every plan."""
    with mock.patch.object(build, "lower", wraps=build.lower) as lower:
        function()
        return sum(call.args[0] is not kernels.RUN for call in lower.call_args_list)


def warned(function: Callable[[], Any] = result) -> str:
    """What is said, in one warning at this file's line, while the function runs; empty if nothing is."""
    with warnings.catch_warnings(record=True) as found, mock.patch.object(disk, "_said", set()):
        warnings.simplefilter("always")
        value = function()
    assert function is not result or value == [0.5, 0.5]
    assert [(one.category, one.filename) for one in found] in ([], [(CacheWarning, __file__)])
    return str(found[0].message) if found else ""


def libraries(path: Path) -> set[Path]:
    """The libraries that the directory's kernels are in; made again they may have other bytes, so another name."""
    return {path / Path(os.readlink(link)).name for link in Path(path, disk.KERNELS).iterdir()}


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
ad.Executor([state, *ad.gradients(state, [z])]).run({z: np.ones((3, 8, 64), "f")})
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


def test_what_a_directory_holds_is_used_where_nothing_can_be_added() -> None:
    no_linker = mock.patch.object(disk, "linker", side_effect=OSError("no linker"))
    with directory() as path:
        with no_linker:
            assert "no linker" in warned() and not path.exists()
        assert compiled(lambda: results("softmax")) == 1 and compiled(lambda: results("softmax")) == 0
        before = sorted(path.rglob("*"))
        with no_linker:
            counts: list[int] = []
            assert "no linker" in warned(lambda: counts.append(compiled(lambda: results("softmax", "matmul"))))
            assert counts == [1]
        assert sorted(path.rglob("*")) == before and results("softmax", "matmul") == [SOFTMAX, MATMUL]
    for switch in ("0", "off"):
        with directory(switch):
            assert disk.cache_directory() is None and result() == [0.5, 0.5]


def test_what_was_used_longest_ago_goes_first() -> None:
    with directory() as path:
        result(1.0)
        (first,) = libraries(path)
        result(2.0)
        (second,) = libraries(path) - {first}
        os.utime(first, (1000, 1000))
        os.utime(second, (2000, 2000))
        result(1.0)  # used: now the latest
        with mock.patch.object(disk, "MOST_BYTES", int(2.5 * first.stat().st_size)):
            result(7.0)
        assert first.exists() and not second.exists() and len(list(path.glob("*.so"))) == 2


def test_what_decides_the_code_is_part_of_the_key() -> None:
    mine = replace(intrinsics.DECLARED["vpdpbusd.avx512vnni"], name="mine")
    with directory():
        assert compiled(result) > 0
        for change in (
            kernels.default_schedules(),
            on_threads(1) if dl.get_num_threads() > 1 else contextlib.nullcontext(),
            mock.patch.object(kernels.spec, "cpu", lambda: "another CPU in the same folder"),
            mock.patch.object(kernels.spec, "cache_sizes", lambda: {1: 48 << 10}),
            mock.patch.dict(intrinsics.DECLARED, mine=mine),  # an instruction of the program's own
        ):
            with change:
                assert compiled(result) > 0 or isinstance(change, contextlib.nullcontext)
        assert compiled(result) == 0


def test_what_formulas_and_rules_are_made_with_is_among_these_sources() -> None:
    """Every module that they import, but for those that decide no code."""
    imported = {"checks.py"}
    package = PACKAGE / "dlsys"
    for path in (*package.joinpath("compute").rglob("*.py"), *package.joinpath("schedule").rglob("*.py")):
        inside = path.relative_to(package).parts[:-1]
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.level > len(inside):
                names = [node.module.split(".")[0]] if node.module else [one.name for one in node.names]
                imported |= {name if (package / name).is_dir() else f"{name}.py" for name in names}
    assert imported - {"errors.py", "graph.py", "system.py", "tvm_import.py"} <= {*disk.SOURCES}


def times(factor: float) -> schedule.Rule:
    """A rule that is wrong: every result of plain loops is so many times as large."""

    def store(one: tirx.BufferStore) -> tirx.BufferStore:
        return tirx.BufferStore(one.buffer, one.value * tirx.const(factor, str(one.buffer.dtype)), one.indices)

    def mine(func: tirx.PrimFunc, _: object) -> tirx.PrimFunc:
        return func.with_body(rewritten(func.body, {tirx.BufferStore: store}))

    return schedule.Rule("mine", "llvm", mine)


def test_a_rule_of_a_programs_own_makes_its_kernels_alone() -> None:
    """Edited it makes them anew; taken away it leaves none, neither in the process nor on disk."""
    with directory():
        for factor in (2.0, 3.0, None, 2.0):
            rules = (times(factor), *schedule.RULES["llvm"]) if factor else schedule.RULES["llvm"]
            with mock.patch.dict(schedule.RULES, llvm=rules):
                assert relu() == [0.0, 0.0, factor or 1.0, 2 * (factor or 1.0)]
                rule = tvm_op.make_relu((4,), "llvm", "llvm", "relu").rule
                assert (rule.name == "mine") is bool(factor)
        assert compiled(relu) == 0


def test_a_library_of_another_key_is_not_used() -> None:
    """Of a kernel of the same name and formula, which another machine or another version of the sources has made."""
    with directory() as path:
        with mock.patch.object(kernels.spec, "cpu", lambda: "another CPU in the same folder"):
            relu()
        (foreign,) = (path / disk.KERNELS).iterdir()
        relu()
        (own,) = set((path / disk.KERNELS).iterdir()) - {foreign}
        own.unlink(), own.symlink_to(os.readlink(foreign))
        assert "foreign" in warned(relu)
        assert compiled(relu) == 0


def test_threads_of_a_process_may_compile_the_same_at_once() -> None:
    with directory(), ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: results("softmax", "matmul"), range(8)))
        assert found == [[SOFTMAX, MATMUL]] * 8
        assert compiled(lambda: results("matmul", "softmax")) == 0


@pytest.mark.slow
def test_a_library_that_is_damaged_or_that_others_could_have_written_is_made_anew() -> None:
    def other_user(file: Path) -> None:
        os.chown(file, 12345, -1)

    def content(change: Callable[[bytes], bytes]) -> Callable[[Path], object]:
        def changed(file: Path) -> None:
            whole = file.read_bytes()
            file.unlink()  # this process has mapped it
            file.write_bytes(change(whole))

        return changed

    def sparse(file: Path) -> None:
        file.unlink()
        with file.open("wb") as made:
            made.truncate(30 * 2**30)

    def pipe(file: Path) -> None:
        file.unlink()
        os.mkfifo(file)

    changes: list[tuple[Callable[[Path], object], str]] = [
        (content(lambda whole: whole[:100]), "damaged or foreign"),
        (content(lambda whole: whole[: len(whole) // 2]), "damaged or foreign"),
        (content(lambda whole: b""), "damaged or foreign"),
        (content(lambda whole: whole[:999] + bytes([255 - whole[999]]) + whole[1000:]), "damaged or foreign"),
        (lambda file: file.chmod(0o602), "others may write to"),
        (lambda file: (file.rename(file.with_name("other")), file.symlink_to("other")), "is a link or no file"),
        (sparse, "has 32,212,254,720 bytes"),
        (pipe, "is a link or no file"),
        *([(other_user, "belongs to another user")] if os.getuid() == 0 else []),
    ]
    with directory() as path:
        result()
        for change, said in changes:
            (file,) = libraries(path)
            change(file)
            assert said in warned() and warned() == "" and compiled(result) == 0
            (file,) = libraries(path)
            assert not file.is_symlink() and file.stat().st_mode & 0o022 == 0 and file.stat().st_uid == os.getuid()


def test_a_folder_around_the_cache_that_others_may_write_to_is_said() -> None:
    with tempfile.TemporaryDirectory() as folder, directory(f"{folder}/open/inner/cache"):
        inner = Path(folder, "open", "inner")
        inner.mkdir(parents=True)
        assert warned() == "" and list(inner.glob("cache/*.so"))
        before = sorted(inner.rglob("*"))
        private = inner.stat().st_gid == storage._private_group()
        for mode, kept in ((0o777, False), (0o775, private), (0o1777, True), (0o755, True)):
            inner.parent.chmod(mode)
            said = warned()
            assert said == "" if kept else f"others may write to {inner.parent}" in said, oct(mode)
        assert sorted(inner.rglob("*")) == before
        Path(folder, "link").symlink_to(inner)
        with directory(f"{folder}/link/cache"):  # a link is followed to where it leads
            assert warned() == "" and sorted(inner.rglob("*")) == before
            inner.parent.chmod(0o777)
            assert f"others may write to {inner.parent}" in warned()


def test_a_directory_that_cannot_be_used_is_one_warning(tmp_path: Path) -> None:
    (shared := tmp_path / "shared").mkdir()
    shared.chmod(0o777)
    os.mkfifo(pipe := tmp_path / "pipe")
    foreign = os.fsdecode(bytes(tmp_path) + b"/c\xe4ch")
    for path, said in ((shared, "others may write"), (pipe, "File exists"), (foreign, "takes names in UTF-8 alone")):
        with directory(str(path)):
            assert said in warned(), path
    assert not list(shared.iterdir())
    before = os.umask(0)
    try:
        with directory() as path:
            assert warned() == "" and warned() == ""
            assert all(file.stat().st_mode & 0o022 == 0 for file in [path, *libraries(path)])
    finally:
        os.umask(before)


PROGRAM = """
import numpy as np
from dlsys import autodiff as ad
x = ad.Variable("x")
for factor in (2.0, 3.0):
    found = ad.Executor([ad.softmax_op(x * factor) + x]).run({x: np.zeros((1, 2), "f4")})[0]  # the user's line
    assert np.asarray(found).tolist() == [[0.5, 0.5]]
"""


def run(cache: Path, before: str = "", status: int = 0, **environment: str) -> str:
    """What a program that compiles two kernels says on standard error, with its cache there."""
    environment = {"PYTHONPATH": str(PACKAGE), disk.VARIABLE: str(cache), **environment}
    return python("-c", PROGRAM, before=before, status=status, **environment).stderr


@pytest.mark.slow
def test_limits_of_a_process(tmp_path: Path) -> None:
    """Of its files: one warning at the user's line. Of its memory: an error, unless the kernels are on disk."""
    said = run(tmp_path / "files", "ulimit -f 1;")
    assert said.count("CacheWarning") == 1 and said.startswith("<string>:6:") and "ulimit -f" in said
    cache, threads = tmp_path / "memory", {"TVM_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    if sys.platform.startswith("linux"):
        assert "DlsysError: TVM's compiler takes" in run(cache, "ulimit -v 600000;", 1, **threads)
    assert run(cache, **threads) == "" and run(cache, "ulimit -v 600000;", **threads) == ""


@pytest.mark.slow
def test_a_package_in_a_zip_file_runs_and_keeps_its_kernels_under_any_letters_in_any_locale(tmp_path: Path) -> None:
    archive = shutil.make_archive(str(tmp_path / "dlsys"), "zip", PACKAGE, "dlsys")
    program = f"import dlsys\nassert dlsys.__file__.startswith({archive!r})\n{PROGRAM}"
    program += "from dlsys.data import text\nprint(len(text.read_text()[0]))"
    named = tmp_path / "c\u00e4ch\u00e9"
    settings = {"PYTHONPATH": archive, "DLSYS_COMPILE_CACHE": " ", "DLSYS_CACHE": str(named), "DLSYS_OFFLINE": "1"}
    locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = python("-W", "error", "-c", program, DLSYS_DATA="", **settings, **locale)
    assert int(done.stdout.split()[-1]) > 40_000
    assert list(named.glob("compiled/*.so"))


def homeless() -> dict[str, str]:
    """The environment without what tells where the cache lies."""
    return {k: v for k, v in os.environ.items() if k not in ("HOME", "XDG_CACHE_HOME", "DLSYS_CACHE", disk.VARIABLE)}


@pytest.mark.slow
def test_where_the_cache_lies() -> None:
    for settings, folder in (
        ({"DLSYS_CACHE": "/own"}, "/own/compiled"),
        ({"DLSYS_CACHE": " ", disk.VARIABLE: " ", "HOME": "/home"}, "/home/.cache/dlsys/compiled"),
        ({"XDG_CACHE_HOME": "relative", "HOME": "/home"}, "/home/.cache/dlsys/compiled"),
        ({"XDG_CACHE_HOME": "/xdg", "HOME": "/home"}, "/xdg/dlsys/compiled"),
        ({disk.VARIABLE: "/mine", "HOME": "/home"}, "/mine"),
    ):
        with mock.patch.dict(os.environ, {**homeless(), **settings}, clear=True):
            assert str(disk.cache_directory()) == folder, settings
    # as in a container that runs under a number which no user has: TVM alone cannot be imported there
    program = "import pwd\ndef nobody(number): raise KeyError(number)\npwd.getpwuid = nobody\n"
    program += "from dlsys.system import cache_folder; print(cache_folder()); import dlsys.autodiff"
    assert python("-W", "error", "-c", program, base=homeless(), PYTHONPATH=str(PACKAGE)).stdout == "None\n"


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


def test_no_more_threads_than_cores() -> None:
    cores = str(system.available_cores())
    for asked in ("1000", "0", "many", "9" * 5000):
        with mock.patch.dict(os.environ, TVM_NUM_THREADS=asked):
            with pytest.warns(RuntimeWarning, match=f"TVM_NUM_THREADS={asked[:20]}: kernels run on {cores} thread"):
                system.limit_threads()
            assert os.environ["TVM_NUM_THREADS"] == cores
    for asked in ("1", " ", ""):
        with mock.patch.dict(os.environ, TVM_NUM_THREADS=asked):
            system.limit_threads()
            assert os.environ["TVM_NUM_THREADS"] == (asked if asked == "1" else cores)
