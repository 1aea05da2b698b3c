"""The functions of the table as methods. Checkers read `methods.pyi`, which `tools/stubs.py` writes from the table."""

from __future__ import annotations

from ..graph import Handle
from . import about, elementwise, index, products, reductions, shapes, trigonometry
from .table import TABLE

HOMES = (about, elementwise, index, products, reductions, shapes, trigonometry)
"""The modules of the functions."""

Methods = type("Methods", (Handle,), {"__slots__": (), "__module__": __name__, **TABLE})
"""Functions of a tensor as its methods."""
