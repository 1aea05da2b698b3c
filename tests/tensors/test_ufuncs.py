"""NumPy's functions of elements, applied to tensors."""

from __future__ import annotations

import operator
from typing import Any

import dlsys as dl
import numpy as np
import pytest
from dlsys import autodiff as ad
from dlsys.errors import GraphError
from helpers import error_of

X = np.array([[1.0, -2.0, 0.5], [3.0, 0.0, 4.0]], "float32")


@pytest.mark.parametrize("make", [lambda: dl.tensor(X), lambda: dl.tensor(X) * 2 - X])
def test_functions_of_tensors_that_hold_data_give_arrays(make: Any) -> None:
    t, x = make(), X
    for found, wanted in (
        (np.exp(t), np.exp(x)),
        (np.arctan2(t, 2.0), np.arctan2(x, 2.0)),
        (np.maximum(0.0, t), np.maximum(0.0, x)),
        (np.add(t, t), x + x),
        (np.isfinite(t), np.isfinite(x)),
        (np.add.reduce(t, axis=1), x.sum(1)),
        (np.multiply.outer(t, x), np.multiply.outer(x, x)),
        (np.where(t > 0, t, 0), np.where(x > 0, x, 0)),
    ):
        assert type(found) is np.ndarray
        np.testing.assert_allclose(found, wanted, rtol=1e-6)
    out = np.zeros_like(X)
    assert np.sqrt(np.abs(t), out=out) is out and out[1, 2] == 2.0
    out += t
    np.testing.assert_allclose(out, np.sqrt(np.abs(x)) + x)


@pytest.mark.parametrize("name", ["add", "sub", "mul", "truediv", "pow", "matmul", "lt", "ge", "eq", "ne"])
def test_operators_between_arrays_and_tensors_give_tensors(name: str) -> None:
    y = X.T.copy() if name == "matmul" else np.abs(X) + 1
    apply = getattr(operator, name)
    t = dl.tensor(y, requires_grad=True)
    for array in (X, *([np.float32(2.5)] if name != "matmul" else [])):
        found = apply(np.abs(array), t)
        assert isinstance(found, dl.Tensor)
        np.testing.assert_allclose(found.detach().numpy(), apply(np.abs(array), y), rtol=1e-5)
    v = ad.Variable("v")
    (value,) = ad.Executor([apply(np.abs(X), v)]).run({v: y}, convert_to_numpy_ret_vals=True)
    np.testing.assert_allclose(value, apply(np.abs(X), y), rtol=1e-5)


def test_what_has_no_value_or_a_gradient_says_so() -> None:
    t = dl.tensor(X, requires_grad=True)
    for needs in (t, t * 2):
        assert "requires a gradient, which NumPy does not follow: use .detach()" in error_of(GraphError, np.exp, needs)
    np.testing.assert_array_equal(np.exp(t.detach()), np.exp(X))
    assert "v has no value before a run" in error_of(GraphError, np.exp, ad.Variable("v"))
