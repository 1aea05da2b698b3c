"""What holds for all tests: the mark `torch`, and what is said of tests that were skipped."""

from __future__ import annotations

import gc
import inspect
from pathlib import Path
from types import CodeType, FunctionType, ModuleType

import pytest
from optional import EXTRA, Lacking

TESTS = str(Path(__file__).parent)


def uses_torch(function: FunctionType, seen: set[CodeType]) -> bool:
    """Whether a function, or one that it calls, names PyTorch."""
    codes = [function.__code__]
    while codes:
        code = codes.pop()
        if code in seen:
            continue
        seen.add(code)
        codes += [part for part in code.co_consts if isinstance(part, CodeType)]
        for value in map(function.__globals__.get, code.co_names):
            if isinstance(value, (Lacking, ModuleType)) and value.__name__.split(".")[0] == "torch":
                return True
            ours = isinstance(value, FunctionType) and value.__globals__.get("__file__", "").startswith(TESTS)
            if ours and uses_torch(value, seen):
                return True
    return False


def pytest_configure(config: pytest.Config) -> None:
    config.option.maxschedchunk = 1  # of pytest-xdist: each process takes the next test when it is done with one


def pytest_collection_modifyitems(items: list[pytest.Function]) -> None:
    """Tests that use PyTorch have the mark `torch`. Those that take long come first, so that no process waits at the
    end for one of them."""
    for item in items:
        if uses_torch(inspect.unwrap(item.function), set()):
            item.add_marker("torch")
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)
    gc.freeze()  # what all tests import lives on: no collection looks at it again
    gc.set_threshold(50_000)  # objects that are new: what tests compile lives on too


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of the test's own."""
    return tmp_path


@pytest.fixture
def young() -> None:
    """Collections look at the test's own objects alone: after hundreds of tests one of all objects takes 0.8 s."""
    gc.freeze()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped = [report for report in terminalreporter.stats.get("skipped", []) if EXTRA in str(report.longrepr)]
    if skipped:
        what = "PyTorch, onnxruntime or CUDA's compiler"
        terminalreporter.write_line(f"{len(skipped)} tests or files skipped for want of {what}: {EXTRA}")
