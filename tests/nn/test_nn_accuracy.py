"""Activations and losses whose results are small, in float32 beside float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dlsys as dl
import numpy as np
import pytest
from dlsys.nn import functional as F

FAR = np.concatenate([np.linspace(-85, 30, 200), [-15.0, -16.6, -20.0, -1e-3, -1e-6, 1e-6, 1e-3]])


def _softplus(x: np.ndarray) -> np.ndarray:
    return np.maximum(x, 0.0) + np.log1p(np.exp(-np.abs(x)))


def _mish_slope(x: np.ndarray) -> np.ndarray:
    y = np.tanh(_softplus(x))
    return y + x * (1.0 - y * y) / (1.0 + np.exp(-x))


def _elu_slope(alpha: float) -> Callable[[np.ndarray], np.ndarray]:
    return lambda x: np.where(x > 0, 1.0, alpha * np.exp(x))


def _with_logits(target: float) -> Callable[[Any], Any]:
    return lambda x: F.binary_cross_entropy_with_logits(x, x * 0.0 + target, reduction="none")


ACCURATE: dict[str, tuple[Callable[[Any], Any], Callable[..., np.ndarray], Callable[..., np.ndarray]]] = {
    "softplus": (F.softplus, _softplus, lambda x: 1.0 / (1.0 + np.exp(-x))),
    "mish": (F.mish, lambda x: x * np.tanh(_softplus(x)), _mish_slope),
    "elu": (F.elu, lambda x: np.where(x > 0, x, np.expm1(x)), _elu_slope(1.0)),
    "elu of alpha": (
        lambda x: F.elu(x, 1.7),
        lambda x: np.where(x > 0, x, 1.7 * np.expm1(x)),
        _elu_slope(1.7),
    ),
    "logits of zeros": (_with_logits(0.0), _softplus, lambda x: 1.0 / (1.0 + np.exp(-x))),
    "logits of ones": (_with_logits(1.0), lambda x: _softplus(-x), lambda x: -1.0 / (1.0 + np.exp(x))),
}


@pytest.mark.parametrize("name", ACCURATE)
@pytest.mark.parametrize("sign", [1, -1])
def test_small_results_of_activations_keep_their_digits(name: str, sign: int) -> None:
    """In float32 within some units in the last place of the result, which may be 1e-37, beside float64."""
    function, value, slope = ACCURATE[name]
    x = (sign * FAR).astype("float32")
    y = function(leaf := dl.tensor(x, requires_grad=True))
    y.sum().backward()
    with np.errstate(over="ignore"):
        want = value(x.astype("float64")), slope(x.astype("float64"))
    np.testing.assert_allclose(y.numpy(), want[0], rtol=4e-6, atol=1e-37)
    np.testing.assert_allclose(leaf.grad.numpy(), want[1], rtol=2e-5, atol=1e-37)
