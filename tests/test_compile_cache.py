"""Compiled plans on disk: used again, shared, bounded, and never trusted blindly."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import numpy as np
from dlsys import autodiff as ad
from dlsys import tvm_op
from dlsys.executor import cache, runner
from dlsys.executor.cache import CacheWarning


@contextmanager
def directory(value: str | None = None) -> Iterator[Path]:
    """The cache in a fresh directory, or where `value` says."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plans"
        moved = mock.patch.dict(os.environ, {cache.VARIABLE: value or str(path)})
        with moved, mock.patch.object(cache, "_said", set()):
            yield path


def result(constant: float = 3.0) -> list[float]:
    """A small graph's value, computed by an executor of its own."""
    x = ad.Variable("x")
    executor = ad.Executor([ad.softmax_op(x * constant) + x])
    return np.asarray(executor.run({x: np.float32([[0.0, 0.0]])})[0]).ravel().tolist()


def files(path: Path) -> list[Path]:
    """All that the directory holds, but what runs the calls of every plan, made once a process."""
    return [file for file in path.iterdir() if file.name != runner.RUN]


def compiled(function: object) -> int:
    """How many kernels are lowered while the function runs."""
    with mock.patch.object(tvm_op.library, "lower", wraps=tvm_op.library.lower) as lower:
        function()  # type: ignore[operator]
        return lower.call_count


def test_a_plan_is_compiled_once_and_loaded_afterwards() -> None:
    with directory() as path:
        assert compiled(lambda: result() == [0.5, 0.5]) > 0
        (file,) = path.glob("*.so")
        assert cache.cache_size(path) == (1, file.stat().st_size)
        assert compiled(result) == 0 and result() == [0.5, 0.5]
        assert compiled(lambda: result(4.0)) > 0  # another formula is another plan
        assert len(files(path)) == 2  # nothing else is left behind


def test_what_runs_the_calls_is_kept_beside_the_plans() -> None:
    with directory() as path:
        runner.runner.cache_clear()
        for _ in range(2):
            assert result() == [0.5, 0.5]
            (file,) = (path / runner.RUN).iterdir()
            assert cache.cache_size(path)[0] == 1
            before = file.stat().st_mtime_ns
            os.utime(file, (1000, 1000))
            runner.runner.cache_clear()
        assert result(4.0) and file.stat().st_mtime_ns > 1000 * 10**9 and before > 0
        file.unlink()
        file.write_bytes(b"")
        runner.runner.cache_clear()
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            assert result() == [0.5, 0.5]
        assert len(found) == 1 and file.stat().st_size > 0
        runner.runner.cache_clear()
    with directory("0"):
        assert result() == [0.5, 0.5]
    runner.runner.cache_clear()


def test_another_process_uses_it() -> None:
    program = "import sys; sys.path[:0] = sys.argv[1:]; import test_compile_cache as t; "
    program += "print(t.compiled(t.result), t.result())"
    paths = [str(Path(__file__).parent), str(Path(tvm_op.__file__).parents[2])]
    with directory() as path:
        outputs = []
        for _ in range(2):
            command = [sys.executable, "-c", program, *paths]
            outputs.append(subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip())
        assert outputs == ["1 [0.5, 0.5]", "0 [0.5, 0.5]"]
        assert len(list(path.glob("*.so"))) == 1


def test_a_damaged_file_is_ignored_with_one_warning_and_made_anew() -> None:
    with directory() as path:
        result()
        (file,) = path.glob("*.so")
        whole = file.read_bytes()
        half = len(whole) // 2
        wrong = whole[:half] + bytes([255 - whole[half]]) + whole[half + 1 :]
        for content in (whole[:100], whole[:half], b"", wrong):
            file.unlink()  # this process has mapped it
            file.write_bytes(content)
            with mock.patch.object(cache, "_said", set()), warnings.catch_warnings(record=True) as found:
                warnings.simplefilter("always")
                assert result() == [0.5, 0.5] and result() == [0.5, 0.5]
            assert [w.category for w in found] == [CacheWarning] and "damaged or foreign" in str(found[0].message)
            assert file.stat().st_size == len(whole)


def test_a_plan_under_another_name_is_foreign() -> None:
    with directory() as path:
        result()
        (file,) = path.glob("*.so")
        content = file.read_bytes()
        result(4.0)
        (other,) = set(path.glob("*.so")) - {file}
        other.unlink()
        other.write_bytes(content)
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            assert np.allclose(result(4.0), 0.5)
        assert len(found) == 1


def test_it_can_be_switched_off_and_is_skipped_without_a_linker() -> None:
    for switch in ("0", "off"):
        with directory(switch):
            assert cache.cache_directory() is None
            assert result() == [0.5, 0.5]
    with directory() as path, mock.patch.object(cache, "linker", lambda: None):
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            assert result() == [0.5, 0.5] and np.allclose(result(5.0), 0.5)
        assert len(found) == 1 and "no linker" in str(found[0].message)
        assert not path.exists()


def test_a_directory_that_cannot_be_written_is_said_once() -> None:
    with tempfile.NamedTemporaryFile() as file, directory(file.name):
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            assert result() == [0.5, 0.5] and np.allclose(result(6.0), 0.5)
        assert [w.category for w in found] == [CacheWarning]


def test_what_was_used_longest_ago_goes_first() -> None:
    with directory() as path:
        result(1.0)
        (first,) = path.glob("*.so")
        result(2.0)
        (second,) = set(path.glob("*.so")) - {first}
        os.utime(first, (1000, 1000))
        os.utime(second, (2000, 2000))
        result(1.0)  # used: now the latest
        with mock.patch.object(cache, "MOST_BYTES", int(2.5 * first.stat().st_size)):
            result(7.0)
        assert first.exists() and not second.exists() and len(list(path.glob("*.so"))) == 2


def test_threads_and_schedules_are_part_of_the_key() -> None:
    import dlsys as dl

    with directory():
        before = dl.get_num_threads()
        assert compiled(result) > 0
        with tvm_op.default_schedules():
            assert compiled(result) > 0
        if before > 1:
            dl.set_num_threads(1)
            try:
                assert compiled(result) > 0
            finally:
                dl.set_num_threads(before)
        assert compiled(result) == 0
