"""What holds for all tests: their order, and which were skipped, for a run of those alone."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
from optional import EXTRA

SKIPPED = "dlsys/skipped"
"""Where pytest's cache has the tests, and whole files, that the last run skipped."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--skipped", action="store_true", help="run the tests that the last run skipped, and no others")


def pytest_configure(config: pytest.Config) -> None:
    config.option.maxschedchunk = 1  # of pytest-xdist: each process takes the next test when it is done with one


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Function]) -> None:
    """Tests that take long come first, so that no process waits at the end for one of them."""
    if config.option.skipped:
        skipped = set(config.cache.get(SKIPPED, []))
        names = [{item.nodeid.split("[")[0], item.nodeid.split("::")[0]} for item in items]  # its own, and its file's
        config.hook.pytest_deselected(items=[item for item, own in zip(items, names, strict=True) if not own & skipped])
        items[:] = [item for item, own in zip(items, names, strict=True) if own & skipped]
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


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    skipped = terminalreporter.stats.get("skipped", [])
    if hasattr(config, "cache"):
        config.cache.set(SKIPPED, sorted({report.nodeid.split("[")[0] for report in skipped}))
    lacking = [report for report in skipped if EXTRA in str(report.longrepr)]
    if lacking:
        what = "PyTorch, onnxruntime, MPI or CUDA's compiler"
        terminalreporter.write_line(f"{len(lacking)} tests or files skipped for want of {what}: {EXTRA}")
