"""What holds for tests of data sets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from mirrors import sandbox


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder of the test's own, whose `cache` is the cache; no other data set is found."""
    with sandbox() as path:
        yield path
