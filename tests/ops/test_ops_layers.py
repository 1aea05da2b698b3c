"""Products, convolutions, pooling, normalisation and losses against PyTorch: values and gradients, compiled."""

from __future__ import annotations

import dlsys as dl
import numpy as np
import pytest
from dlsys import autodiff as ad
from dlsys import ops
from helpers import on_threads
from optional import optional, torch

F = optional("torch.nn.functional")


def test_special_values_are_pytorchs() -> None:
    logits = np.array([[1e4, -1e4, 0], [-np.inf, 0, 1], [np.nan, 0, 1], [0, 1, 2]], "float32")
    numbers = np.array([1, 0, 2, 2], "int64")
    x, t, p = ad.Variable("x"), ad.Variable("t"), ad.Variable("p")
    images = np.full((1, 1, 4, 4), -np.inf, "float32")
    images[0, 0, 1, 2], images[0, 0, 3, 3] = np.nan, np.inf
    losses, mean = ops.cross_entropy_op(x, t, reduction="none"), ops.cross_entropy_op(x, t, 2)
    executor = ad.Executor([losses, mean, ops.max_pool2d_op(p, 3, 2, 1)])
    found = executor.run({x: logits, t: numbers, p: images}, convert_to_numpy_ret_vals=True)
    tx, tt = torch.from_numpy(logits), torch.from_numpy(numbers)
    expected = [
        F.cross_entropy(tx, tt, reduction="none"),
        F.cross_entropy(tx, tt, ignore_index=2),
        F.max_pool2d(torch.from_numpy(images), 3, 2, 1),
    ]
    for ours, want in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, want.detach().numpy(), rtol=1e-6, atol=1e-40)


def test_targets_that_are_no_class_make_the_loss_nan_and_ignored_ones_leave_none() -> None:
    """Where a run computes them; those that are fed are looked at."""
    x, t, zero = ad.Variable("x"), ad.Variable("t"), ad.Variable("zero")
    of_run = t + zero
    losses, mean = ops.cross_entropy_op(x, of_run, reduction="none"), ops.cross_entropy_op(x, of_run)
    executor = ad.Executor([losses, mean, *ad.gradients(losses, [x])])
    nothing = np.zeros(4, "int64")
    logits = np.zeros((4, 3), "float32")
    for targets in (np.array([0, 3, -1, -100]), np.array([2**40, -(2**40), 3, 1])):
        each, total, grad = executor.run({x: logits, t: targets, zero: nothing}, convert_to_numpy_ret_vals=True)
        bad = (targets != -100) & ((targets < 0) | (targets >= 3))
        assert np.isnan(each[bad]).all() and np.isfinite(each[~bad]).all() and np.isnan(total)
        assert np.isnan(grad[bad]).all() and np.isfinite(grad[~bad]).all()
        assert not each[targets == -100].any() and not grad[targets == -100].any()
    ignored = np.full(4, -100)
    each, total, _ = executor.run({x: logits, t: ignored, zero: nothing}, convert_to_numpy_ret_vals=True)
    assert not each.any() and np.isnan(total)


@pytest.mark.slow
def test_strided_gradients_do_not_depend_on_threads():
    """TVM 0.27 simplified the taps of two phases, whose loops were fused to run in parallel, to a wrong index."""
    random = np.random.default_rng(4)
    f, g = (ad.Variable(name) for name in "fg")
    for images, filters, stride, padding in (
        ((128, 64, 2, 2), (128, 64, 3, 3), 2, 1),
        ((128, 32, 6, 3), (64, 32, 5, 3), (3, 1), (2, 1)),
    ):
        x = ad.Variable("x", images)
        node = ad.conv2d_input_gradient_op(f, g, images, stride, padding)
        shape = ad.conv2d_op(x, ad.Variable("f", filters), stride, padding).shape
        drawn = {n: random.standard_normal(s).astype("float32") for n, s in ((f, filters), (g, shape))}
        (want,) = ad.Executor([node], "numpy").run(drawn)
        for threads in range(1, dl.get_num_threads() + 1):
            with on_threads(threads):
                (got,) = ad.Executor([node]).run(drawn, convert_to_numpy_ret_vals=True)
            np.testing.assert_allclose(got, want, atol=1e-4, err_msg=f"{images}, {threads} threads")
