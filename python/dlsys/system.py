"""What the process finds around it: the cores that it may use, and the user's cache. Needs nothing but Python."""

from __future__ import annotations

import os
from pathlib import Path


def available_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cache_folder() -> Path:
    """dlsys' folder in the user's cache: ``DLSYS_CACHE``, or else ``$XDG_CACHE_HOME/dlsys``."""
    if own := os.environ.get("DLSYS_CACHE"):
        return Path(own).expanduser()
    xdg = Path(os.environ.get("XDG_CACHE_HOME", ""))
    # The XDG specification: a relative path is invalid and to be ignored.
    return (xdg if xdg.is_absolute() else Path("~/.cache").expanduser()) / "dlsys"
