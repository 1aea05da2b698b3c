"""needle's initial values, drawn by `np.random`: tensors of a shape, or (fan_in, fan_out) unless a `shape` is given.

Each takes `device` (the CPU), `dtype` ("float32") and `requires_grad` (False).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..errors import GraphError
from .autograd import Tensor


def _made(values: Any, device: Any = None, dtype: Any = "float32", requires_grad: bool = False) -> Tensor:
    return Tensor(values, device=device, dtype=dtype, requires_grad=requires_grad)


def rand(*shape: int, low: float = 0.0, high: float = 1.0, **kwargs: Any) -> Tensor:
    """Uniform numbers of [low, high)."""
    return _made(np.random.rand(*shape) * (high - low) + low, **kwargs)


def randn(*shape: int, mean: float = 0.0, std: float = 1.0, **kwargs: Any) -> Tensor:
    """Numbers of the normal distribution."""
    return _made(np.random.randn(*shape) * std + mean, **kwargs)


def randb(*shape: int, p: float = 0.5, dtype: Any = "bool", **kwargs: Any) -> Tensor:
    """True, or 1, with probability p."""
    return _made(np.random.rand(*shape) <= p, dtype=dtype, **kwargs)


def constant(*shape: int, c: float = 1.0, **kwargs: Any) -> Tensor:
    """The number c everywhere."""
    return _made(np.full(shape, c), **kwargs)


def ones(*shape: int, **kwargs: Any) -> Tensor:
    """Ones."""
    return constant(*shape, c=1.0, **kwargs)


def zeros(*shape: int, **kwargs: Any) -> Tensor:
    """Zeros."""
    return constant(*shape, c=0.0, **kwargs)


def ones_like(array: Any, **kwargs: Any) -> Tensor:
    """Ones in another tensor's shape and dtype."""
    return ones(*array.shape, dtype=array.dtype, **kwargs)


def zeros_like(array: Any, **kwargs: Any) -> Tensor:
    """Zeros in another tensor's shape and dtype."""
    return zeros(*array.shape, dtype=array.dtype, **kwargs)


def one_hot(n: int, i: Any, **kwargs: Any) -> Tensor:
    """Ones at the numbers `i`, data, along a new last axis of extent n, zeros elsewhere. Raises GraphError for numbers
    out of range."""
    numbers = np.asarray(i).astype(np.int64)
    if numbers.size and not (numbers.min() >= 0 and numbers.max() < n):
        raise GraphError(f"one_hot: numbers must be from 0 to {n - 1}")
    return _made(np.eye(n)[numbers], **kwargs)


def xavier_uniform(fan_in: int, fan_out: int, gain: float = 1.0, shape: Any = None, **kwargs: Any) -> Tensor:
    """Uniform of +-gain sqrt(6 / (fan_in + fan_out)) (Glorot, Bengio 2010)."""
    bound = gain * math.sqrt(6 / (fan_in + fan_out))
    return rand(*(shape or (fan_in, fan_out)), low=-bound, high=bound, **kwargs)


def xavier_normal(fan_in: int, fan_out: int, gain: float = 1.0, shape: Any = None, **kwargs: Any) -> Tensor:
    """Normal of deviation gain sqrt(2 / (fan_in + fan_out))."""
    return randn(*(shape or (fan_in, fan_out)), std=gain * math.sqrt(2 / (fan_in + fan_out)), **kwargs)


def kaiming_uniform(fan_in: int, fan_out: int, nonlinearity: str = "relu", shape: Any = None, **kwargs: Any) -> Tensor:
    """Uniform of +-sqrt(6 / fan_in) (He et al. 2015)."""
    bound = math.sqrt(3) * _deviation(fan_in, nonlinearity)
    return rand(*(shape or (fan_in, fan_out)), low=-bound, high=bound, **kwargs)


def kaiming_normal(fan_in: int, fan_out: int, nonlinearity: str = "relu", shape: Any = None, **kwargs: Any) -> Tensor:
    """Normal of deviation sqrt(2 / fan_in)."""
    return randn(*(shape or (fan_in, fan_out)), std=_deviation(fan_in, nonlinearity), **kwargs)


def _deviation(fan_in: int, nonlinearity: str) -> float:
    if nonlinearity != "relu":
        raise GraphError(f"init: only relu is known, not {nonlinearity!r}")
    return math.sqrt(2 / fan_in)
