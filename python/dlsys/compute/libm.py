"""Functions that the C library computes, a call for each number."""

from __future__ import annotations

from tvm import te, tirx

from .base import pointwise


def _library(name: str, *tensors: te.Tensor) -> te.Tensor:
    """The C library's function of that name at every index, for the tensors' float dtype."""
    dtype = str(tensors[0].dtype)
    function = name + "f" if dtype == "float32" else name
    return pointwise(name, lambda *values: tirx.call_pure_extern(dtype, function, *values), *tensors)


def acos(x: te.Tensor) -> te.Tensor:
    """The angle of [0, pi] whose cosine x is."""
    return _library("acos", x)


def acosh(x: te.Tensor) -> te.Tensor:
    """The number of [0, inf) whose hyperbolic cosine x is."""
    return _library("acosh", x)


def asin(x: te.Tensor) -> te.Tensor:
    """The angle of [-pi / 2, pi / 2] whose sine x is."""
    return _library("asin", x)


def asinh(x: te.Tensor) -> te.Tensor:
    """The number whose hyperbolic sine x is."""
    return _library("asinh", x)


def atan(x: te.Tensor) -> te.Tensor:
    """The angle of [-pi / 2, pi / 2] whose tangent x is."""
    return _library("atan", x)


def atan2(y: te.Tensor, x: te.Tensor) -> te.Tensor:
    """The angle of [-pi, pi] of the point (x, y)."""
    return _library("atan2", y, x)


def cosh(x: te.Tensor) -> te.Tensor:
    """The hyperbolic cosine."""
    return _library("cosh", x)


def sinh(x: te.Tensor) -> te.Tensor:
    """The hyperbolic sine."""
    return _library("sinh", x)
