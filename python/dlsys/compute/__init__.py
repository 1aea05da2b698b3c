"""The mathematics: one TE function per formula, no scheduling.

Every function takes and returns `te.Tensor`, for the dtypes and any rank its operator allows, sizes of 1 and 0
included, with the result's dtype that of the inputs unless its formula says otherwise. Shapes are taken as right: the
operators' `infer_shape` and the factories of `tvm_op` check them.

NaN and infinity come out wherever NumPy gives them: by selections, since TVM's `max` drops a NaN, and its simplifier
turns `x * 0`, `0 / x`, `x - x` and `x != x` into constants, whatever x is. The formulas are loaded, and TVM's compiler
with them, when the first is called.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..tvm_import import with_compiler
from .philox import philox as philox

Tensor = Any  # te.Tensor
IN_ORDER = 512
"""Rows whose sum down the columns is made row after row, as NumPy makes it: the result has NumPy's bits."""
_MODULES = (
    *("base", "elementwise", "contraction", "indexing", "reduction"),
    *("pooling", "cumulative", "random", "elementary", "trigonometry", "loops"),
)


def __getattr__(name: str) -> Callable[..., Any]:
    """The formula of that name, as a function that looks for it when it is called."""
    if name.startswith("_") or name in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def formula(*args: Any, **options: Any) -> Any:
        for module in _MODULES:
            if (found := getattr(with_compiler(f"compute.{module}"), name, None)) is not None:
                return found(*args, **options)
        raise AttributeError(f"module {__name__!r} has no formula {name!r}")

    formula.__name__ = formula.__qualname__ = name  # part of kernels' keys
    return globals().setdefault(name, formula)
