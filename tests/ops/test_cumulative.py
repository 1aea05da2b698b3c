"""Sums and products of all elements up to each, and the recurrence: against PyTorch, in parts and on threads."""

from __future__ import annotations

from typing import Any

import dlsys as dl
import numpy as np
import pytest
from dlsys import autodiff as ad
from helpers import on_threads
from optional import optional

torch = optional("torch")
FUNCTIONS = ("cumsum", "cumprod")


def drawn(*shape: int, dtype: str = "float32") -> np.ndarray:
    return np.random.default_rng(len(shape)).uniform(-1.5, 1.5, shape).astype(dtype)


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize(
    ("shape", "dim"),
    [((), 0), ((5,), -1), ((3, 70), 0), ((3, 70), 1), ((2, 5, 3), 1), ((3000,), 0), ((2, 3000), 1), ((2500, 3), 0)],
)
def test_values_and_gradients_are_pytorchs(name: str, shape: tuple[int, ...], dim: int) -> None:
    x = np.sign(drawn(*shape)) * np.exp(drawn(*shape) / 100)
    x, weight = x.astype("float32"), drawn(*shape)
    mine, theirs = dl.tensor(x, requires_grad=True), torch.tensor(x, requires_grad=True)
    found, wanted = getattr(dl, name)(mine, dim), getattr(torch, name)(theirs, dim)
    np.testing.assert_allclose(found.numpy(), wanted.detach().numpy(), rtol=3e-7, atol=1e-6)
    (found * dl.tensor(weight)).sum().backward()
    (wanted * torch.tensor(weight)).sum().backward()
    scale = np.abs(theirs.grad.numpy()).max()
    np.testing.assert_allclose(mine.grad.numpy(), theirs.grad.numpy(), rtol=1e-5, atol=2e-6 * scale)


@pytest.mark.parametrize("zeros", [(), (0,), (5,), (2, 4), (0, 1, 5)])
def test_gradients_of_gradients_of_products_with_zeros_are_pytorchs(zeros: tuple[int, ...]) -> None:
    x, g, h = (drawn(2, 6, dtype="float64") + shift for shift in (0.0, 0.3, 0.6))
    x[0, list(zeros)] = 0.0

    def twice(lib: Any, x: Any, g: Any, h: Any) -> list[Any]:
        (first,) = lib.autograd.grad((lib.cumprod(x, 1) * g).sum(), x, create_graph=True)
        return [first, *lib.autograd.grad((first * h).sum(), [x, g])]

    found = twice(dl, *(dl.tensor(v, requires_grad=True) for v in (x, g, h)))
    wanted = twice(torch, *(torch.tensor(v, requires_grad=True) for v in (x, g, h)))
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a.detach().numpy(), b.detach().numpy(), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("dtype", ["uint8", "int32", "int64"])
def test_a_long_row_of_integers_is_compiled_in_no_time(dtype: str) -> None:
    x = np.random.default_rng(0).integers(0, 9, 1_000_000).astype(dtype)
    row = ad.Variable("row")
    (found,) = ad.Executor([ad.cumsum_op(row, 0)]).run({row: x}, convert_to_numpy_ret_vals=True)
    np.testing.assert_array_equal(found, x.cumsum(dtype=dtype))  # LLVM took minutes for 16 sums side by side


def test_values_beyond_the_range_and_signs_of_zero() -> None:
    x = np.array([-0.0, -0.0, 1.0, np.inf, 1.0, -np.inf, 2.0, np.nan, 1.0], "float32")
    wanted = np.array([-0.0, -0.0, 1.0, np.inf, np.inf, np.nan, np.nan, np.nan, np.nan], "float32")
    found = dl.tensor(x).cumsum(0).numpy()
    np.testing.assert_array_equal(found, wanted)
    np.testing.assert_array_equal(np.signbit(found[:3]), np.signbit(wanted[:3]))
    tenths = np.full(1_000_000, 0.1, "float32")  # NumPy's last sum of them is 100958
    np.testing.assert_allclose(dl.tensor(tenths).cumsum(0).numpy()[-1], 100_000, rtol=1e-6)


def test_a_long_row_is_cut_in_parts_by_its_shape_alone() -> None:
    x = np.random.default_rng(0).standard_normal(200_003)
    found = []
    for threads in (1, 2):
        with on_threads(threads):
            v = ad.Variable("x", x.shape, "float64")
            found.append(ad.Executor([ad.cumsum_op(v, 0)]).run({v: x}, convert_to_numpy_ret_vals=True)[0])
    np.testing.assert_array_equal(*found)
    np.testing.assert_allclose(found[0], np.cumsum(x), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
def test_a_recurrence_discounts(exclusive: bool, reverse: bool) -> None:
    """h_i = a_i h_(i-1) + b_i: rewards, discounted, from the last on."""
    a, b = drawn(4, dtype="float64"), drawn(4, dtype="float64") + 0.5
    order = range(4)[:: -1 if reverse else 1]
    wanted, h = np.empty(4), 0.0
    for i in order:
        later = a[i] * h + b[i]
        wanted[i], h = h if exclusive else later, later
    found = ad.recurrence_op(dl.tensor(a), dl.tensor(b), 0, exclusive, reverse)
    np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-14)


@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
def test_sums_are_written_as_onnx_read_again_and_translated_to_relax(exclusive: bool, reverse: bool) -> None:
    onnxruntime = optional("onnxruntime")
    x, v = drawn(3, 5), ad.Variable("x", (3, 5))
    y = ad.cumsum_op(v, 1, exclusive, reverse)
    (wanted,) = ad.Executor([y]).run({v: x}, convert_to_numpy_ret_vals=True)
    model = dl.to_onnx(y, None, {v: x.shape})
    session = onnxruntime.InferenceSession(model.SerializeToString())
    np.testing.assert_allclose(session.run(None, {"x": x})[0], wanted, rtol=1e-5, atol=1e-6)
    network, _ = dl.from_onnx(model)
    np.testing.assert_array_equal(np.asarray(network(x)), wanted)
    (found,) = dl.relax.compile(y, feed_shapes={v: x.shape})(x)
    np.testing.assert_allclose(np.asarray(found), wanted, rtol=1e-6)
