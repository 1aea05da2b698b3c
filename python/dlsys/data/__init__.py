"""Data sets: found in a directory, the cache, at a mirror, or embedded; always verified, never unpickled."""

from __future__ import annotations

from ..system import cache_folder
from .files import Collection, UnavailableError, fetch, find, verify
from .idx import parse_idx, read_idx
from .mnist import MNIST, mnist, one_hot

__all__ = [
    "MNIST",
    "Collection",
    "UnavailableError",
    "cache_folder",
    "fetch",
    "find",
    "mnist",
    "one_hot",
    "parse_idx",
    "read_idx",
    "verify",
]
