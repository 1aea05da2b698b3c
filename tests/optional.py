"""PyTorch and what goes with it, of the extra `test-all`: a test that uses what is not installed is skipped."""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any, NoReturn

for _threads in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):  # others' threads wait by spinning: half of a test's time
    os.environ.setdefault(_threads, "1")
EXTRA = "pip install '.[test-all]'"


def skip(what: str) -> NoReturn:
    """Skips the test that runs, or the file that is being imported, for want of a part of the extra."""
    import pytest

    pytest.skip(f"needs {what}: {EXTRA}", allow_module_level=True)


class Lacking:
    """In the place of a module that is not installed: a use skips the test, or the file that is being imported."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __getattr__(self, attribute: str) -> NoReturn:
        if attribute.startswith("_"):
            raise AttributeError(attribute)  # as pytest asks of each name of a file
        skip(self.__name__)


def optional(name: str) -> Any:
    """The module of that name, or what skips those that use it."""
    try:
        return import_module(name)
    except ImportError:
        return Lacking(name)


torch, onnxruntime, onnxscript = optional("torch"), optional("onnxruntime"), optional("onnxscript")
