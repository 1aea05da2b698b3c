"""The mathematics: one TE function per formula, no scheduling.

Every function takes and returns `te.Tensor`, for the dtypes and any rank its operator allows, sizes of 1 and 0
included, with the result's dtype that of the inputs unless its formula says otherwise. Shapes are taken as right: the
operators' `infer_shape` and the factories of `tvm_op` check them.

NaN and infinity come out wherever NumPy gives them. TVM does not do that by itself: its `max` drops a NaN,
and its simplifier turns `x * 0`, `0 / x`, `x - x` and `x != x` into constants, whatever x is. Hence the
selections below, and `tirx.isnan` in place of `x != x`.

The formulas are loaded, and TVM's compiler with them, when the first is called.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..tvm_import import with_compiler

Tensor = Any  # te.Tensor
IN_ORDER = 512
"""Rows whose sum down the columns is made row after row, as NumPy makes it: the result has NumPy's bits."""
_HOMES = {
    "base": "copy full part placeholder shape_of type_of",
    "elementwise": """bitwise_and bitwise_not bitwise_or bitwise_xor
        absolute add add_by_const cast clip const_div cos div div_by_const equal erf exp floor greater
        greater_equal less less_equal log logical_and logical_not logical_or maximum minimum mul mul_by_const nearest
        neg normalize not_equal power power_by_const relu relu_gradient rsqrt sgd_update sigmoid sign sin sqrt sub tanh
        where""",
    "contraction": """conv2d conv2d_filter_gradient conv2d_input_gradient matmul matmul_gradient
        matmul_panels pack_panels""",
    "indexing": """broadcast_axes broadcast_to concatenate in_range one_hot reshape stack strided strided_place
        strided_slice take take_along_axis take_along_axis_gradient take_gradient transpose""",
    "reduction": """argmax argmin cross_entropy cross_entropy_gradient log_softmax logsumexp reduce_max reduce_min
        reduce_sum softmax softmax_cross_entropy sum_to""",
    "pooling": "max_pool max_pool_gradient max_pool_place max_pool_select mean_pool mean_pool_gradient",
    "channels_last": "conv2d_panels conv2d_planes join_tiles pool_last transform_tiles",
    "sorting": "argsort",
    "random": "dropout normal random_bits uniform",
}
"""The formulas by the module that has them."""

ELEMENTWISE = frozenset(_HOMES["elementwise"].split())
"""The formulas whose result at an index depends on the inputs at that index alone, after broadcasting."""


def _deferred(home: str, name: str) -> Callable[..., Any]:
    """The formula, as a function that loads it when it is called first."""

    def formula(*args: Any, **options: Any) -> Any:
        return getattr(with_compiler(f"compute.{home}"), name)(*args, **options)

    formula.__name__ = formula.__qualname__ = name  # part of kernels' keys
    return formula


_formulas = {name: _deferred(home, name) for home, names in _HOMES.items() for name in names.split()}


def __getattr__(name: str) -> Callable[..., Any]:
    """The formula of that name."""
    if name not in _formulas:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _formulas[name]


@dataclass(frozen=True)
class Windows:
    """The windows along one axis of images: number o begins at o * stride - padding and has `size` elements.

    Attributes:
        extent: of the axis.
        count: of windows.
    """

    extent: int
    count: int
    size: int
    stride: int
    padding: int

    def begin(self, o: Any) -> Any:
        """Where window o begins, which may be before the axis does."""
        return o * self.stride - self.padding

    @property
    def covering(self) -> int:
        """The most windows that cover one element."""
        return -(-self.size // self.stride)

    def first_over(self, i: Any) -> Any:
        """A window before which none covers element i; it may be negative."""
        return (i + self.padding) // self.stride - (self.covering - 1)
