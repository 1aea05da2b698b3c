"""The functions of the table as methods. Checkers read `methods.pyi`, which `tools/stubs.py` writes from the table."""

from __future__ import annotations

from ..graph import Handle
from . import about, elementwise, index, products, reductions, shapes, trigonometry
from .table import TABLE

HOMES = (about, elementwise, index, products, reductions, shapes, trigonometry)
"""The modules of the functions."""


class Methods(Handle):
    """Functions of a tensor as its methods."""

    __slots__ = ()


for _name, _function in TABLE.items():
    setattr(Methods, _name, _function)
