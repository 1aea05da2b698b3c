"""Activations and losses whose results are small, in float32 beside float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dlsys as dl
import numpy as np
import pytest
from dlsys.nn import functional as F

FAR = np.concatenate([np.linspace(-85, 30, 200), [-15.0, -16.6, -20.0, -1e-3, -1e-6, 1e-6, 1e-3]])


def softplus(x: np.ndarray) -> np.ndarray:
    return np.maximum(x, 0.0) + np.log1p(np.exp(-np.abs(x)))


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1.0 / (1.0 + np.exp(-x))


def mish_slope(x: np.ndarray) -> np.ndarray:
    y = np.tanh(softplus(x))
    return y + x * (1.0 - y * y) * sigmoid(x)


def with_logits(target: float) -> Callable[[Any], Any]:
    return lambda x: F.binary_cross_entropy_with_logits(x, x * 0.0 + target, reduction="none")


Function = Callable[[Any], Any]
ACCURATE: dict[str, tuple[Function, Function, Function]] = {  # the function, its value and its slope
    "softplus": (F.softplus, softplus, sigmoid),
    "mish": (F.mish, lambda x: x * np.tanh(softplus(x)), mish_slope),
    "elu": (lambda x: F.elu(x, 1.7), lambda x: np.where(x > 0, x, 1.7 * np.expm1(x)),
            lambda x: np.where(x > 0, 1.0, 1.7 * np.exp(x))),
    "logits of zeros": (with_logits(0.0), softplus, sigmoid),
    "logits of ones": (with_logits(1.0), lambda x: softplus(-x), lambda x: -sigmoid(-x)),
}  # fmt: skip


@pytest.mark.parametrize("name", ACCURATE)
def test_small_results_of_activations_keep_their_digits(name: str) -> None:
    """In float32 within some units in the last place of the result, which may be 1e-37, beside float64."""
    function, value, slope = ACCURATE[name]
    for x in (FAR.astype("float32"), -FAR.astype("float32")):
        y = function(leaf := dl.tensor(x, requires_grad=True))
        y.sum().backward()
        with np.errstate(over="ignore"):
            want = value(x.astype("float64")), slope(x.astype("float64"))
        np.testing.assert_allclose(y.numpy(), want[0], rtol=4e-6, atol=1e-37)
        np.testing.assert_allclose(leaf.grad.numpy(), want[1], rtol=2e-5, atol=1e-37)
