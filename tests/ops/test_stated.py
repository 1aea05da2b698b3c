"""Gradients that compositions state."""

import numpy as np
import pytest
from dlsys import autodiff as ad
from dlsys.ops.replay import function
from dlsys.ops.state import with_gradient

X, B = np.array([[0, 1, 2], [3, 4, 5]], "float32"), np.array([1, 2, 3], "float32")


def _of_scaled(g, y, x, b, factor):
    """Not the true gradient, so that it is seen which one is taken; that of b is summed over the rows."""
    return ad.mul_byconst_op(ad.mul_op(g, y), factor), g


@function()
def scaled(x, b):
    return with_gradient(ad.mul_op(ad.exp_op(x), b), [x, b], _of_scaled, factor=2.0)


@pytest.mark.parametrize("declared", [{}, {"shape": (2, 3), "dtype": "float32"}])
def test_gradients_and_their_gradients_are_the_stated_ones(declared):
    x, b = ad.Variable("x", **declared), ad.Variable("b")
    y = scaled(x, b)
    dx, db = ad.gradients(y, [x, b])
    (second,) = ad.gradients(dx, [x])
    executor = ad.Executor([y, dx, db, second])
    values = executor.run({x: X, b: B}, convert_to_numpy_ret_vals=True)
    expected = np.exp(X) * B
    for value, wanted in zip(values, (expected, 2 * expected, [2.0, 2, 2], 4 * expected), strict=True):
        np.testing.assert_allclose(value, wanted, rtol=1e-6)
    assert "with_gradient" not in executor.groups({x: X.shape, b: B.shape})


def test_an_eager_gradient_is_the_stated_one():
    import dlsys as dl

    x = dl.tensor(X, requires_grad=True)
    scaled(x, dl.tensor(B)).sum().backward()
    np.testing.assert_allclose(x.grad, 2 * np.exp(X) * B, rtol=1e-6)
