"""What holds for tests of data sets."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of the test alone, whose `cache` is the cache; no other data set is at hand."""
    monkeypatch.setenv("DLSYS_CACHE", str(tmp_path / "cache"))
    for name in ("DLSYS_DATA", "DLSYS_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path
