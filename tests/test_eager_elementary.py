"""Angles, hyperbolic functions, roundings, powers and fillings of tensors against PyTorch's."""

from __future__ import annotations

from typing import Any

import dlsys as dl
import numpy as np
import torch
from against_torch import agree, random
from dlsys import autodiff as ad
from dlsys.errors import DeviceError, DTypeError, GraphError
from helpers import error_of

SPECIAL = np.array([np.nan, np.inf, -np.inf, 0.5, -0.5, 2.5, -2.5, 0.0, -0.0, 1e300, 1.0, -1.0])


def test_angles_and_hyperbolic_functions() -> None:
    names = "tan asin acos atan sinh cosh asinh atanh arcsin arctan deg2rad rad2deg exp2 erfc trunc fix frac"
    functions = [lambda m, x, n=name: getattr(m, n)(x) for name in names.split()]
    functions += [lambda m, x: [m.acosh(1.5 + x * x), m.logit(0.5 + 0.4 * x), m.logit(x, eps=0.1), x.tan(), x.atanh()]]
    small = 0.8 * np.tanh(random(4, 6))
    agree(functions, small, gradients=True)
    agree(functions[:10] + functions[12:-1], SPECIAL)
    agree([lambda m, x: [m.tan(x), m.atan(x), m.acos(x > 0), m.sinh(x), m.trunc(x), m.exp2(x)]], np.arange(-2, 3))
    agree([lambda m, x: [m.tan(x), m.asin(x), m.acosh(2 + x), m.atan2(x, x + 1)]], small[0].astype("float32"))


def test_of_several_tensors() -> None:
    def functions(m: Any, a: Any, b: Any) -> list[Any]:
        return [
            *(m.atan2(a, b), a.arctan2(b), m.fmod(a, b), a.fmod(0.7), m.hypot(a, b), m.logaddexp(a, b)),
            *(m.lerp(a, b, 0.3), a.lerp(b, 0.9), m.lerp(a, b, a), m.xlogy(a, b.abs()), m.xlogy(a * 0, b)),
            *(m.addcmul(a, b, b, value=2), a.addcdiv(b, a, value=-1), m.add(a, b, alpha=3), a.sub(b, alpha=0.5)),
            *(m.div(a, b, rounding_mode="floor"), a.div(b, rounding_mode="trunc"), m.true_divide(a, b)),
            *(a.clamp_min(0.1), m.clamp_max(a, b), m.positive(a), m.multiply(a, b), m.subtract(a, b)),
            *(a.greater(b), m.less_equal(a, b), m.not_equal(a, b), a.less(b)),
        ]

    pair = random(3, 4), random(4, seed=1)
    agree([functions], *pair, gradients=True)

    def of_specials(m: Any, a: Any, b: Any) -> list[Any]:
        return [
            *(m.fmod(a, b), m.logaddexp(a, b), m.atan2(a, b), m.xlogy(a, b), m.nan_to_num(a), m.isposinf(a)),
            *(a.nan_to_num(1.0, 2.0, -3.0), m.isneginf(a), m.nan_to_num(a.float()), m.lerp(a, b, 1.0)),
        ]

    agree([of_specials], SPECIAL[:, None], SPECIAL)
    whole = np.arange(-7, 9), np.array([3, -3, 2, -2] * 4)
    agree(
        [
            lambda m, a, b: [m.fmod(a, b), m.div(a, b, rounding_mode="trunc"), a.div(2, rounding_mode="floor")],
            lambda m, a, b: [m.bitwise_and(a, b), a.bitwise_or(b), m.bitwise_xor(a, 3), m.bitwise_not(a)],
            lambda m, a, b: [m.nan_to_num(a), m.frac(a * 0.5), m.atan2(a, b), m.add(a, b, alpha=2)],
        ],
        *whole,
    )
    a = dl.tensor([1.0, 1.0], requires_grad=True)
    dl.logaddexp(a, dl.tensor([1.0, -np.inf])).sum().backward()
    assert a.grad.tolist() == [0.5, 1.0]
    assert (dl.tensor([5, -5]).fmod(0)).tolist() == [0, 0]
    assert "rounding_mode" in error_of(GraphError, dl.div, a, a, rounding_mode="up")


def test_powers_and_products_of_integers() -> None:
    base, exponent = np.array([[3, -2, -1], [1, 0, 7]]), np.array([5, 3, 2])
    agree(
        [
            lambda m, a, b: [a**b, 2**b, a ** (b * 20), a**70, m.pow(a, b), True**b, a ** m.tensor([-1, -2, -3])],
            lambda m, a, b: [a.int() ** b, b.int() ** 2, (a > 0) ** b, a**2.5, a**0, b ** (a.double())],
            lambda m, a, b: [a @ b, a @ a.T, m.mm(a, a.t()), a.int() @ b.int(), m.einsum("ij,kj->ik", a, a)],
        ],
        base, exponent,
    )  # fmt: skip
    assert "negative powers" in error_of(GraphError, lambda: dl.tensor([2]) ** -1)
    large = np.random.default_rng(0).integers(-(2**62), 2**62, (70, 90)), np.arange(90 * 33).reshape(90, 33)
    np.testing.assert_array_equal((dl.tensor(large[0]) @ dl.tensor(large[1])).numpy(), large[0] @ large[1])
    unsigned = dl.tensor(np.array([3, 2**31], "uint32"))
    assert (unsigned ** dl.tensor(np.array([20, 2], "uint32"))).tolist() == [3**20 % 2**32, 0]
    error_of(DTypeError, lambda: (dl.tensor([1]) @ dl.tensor([1.0])).numpy())
    error_of(DTypeError, lambda: (dl.tensor([True]) @ dl.tensor([True])).numpy())


def test_integers_beside_numbers_that_they_do_not_hold() -> None:
    small = dl.tensor([1, -2], dtype="int32")
    for number in (2**31, 2**40, -(2**31) - 1, 2**60):
        assert "is no int32" in error_of(DTypeError, lambda n=number: small + n)
        assert "is no int32" in error_of(DTypeError, lambda n=number: n * small)
        for found, want in ((small < number, number > 0), (small == number, False), (number >= small, number > 0)):
            assert found.tolist() == [want, want], number
    assert (small + (2**31 - 2)).tolist() == [2**31 - 1, 2**31 - 4]
    assert (dl.tensor([1]) + 2**40).tolist() == [2**40 + 1]
    assert "is no int64" in error_of(DTypeError, lambda: dl.tensor([1]) + 2**70)
    assert "is no int32" in error_of(DTypeError, dl.full, 2, 2**40, dtype="int32")
    assert "is no int32" in error_of(DTypeError, dl.tensor, [1, 2**40], "int32")


def test_fillings() -> None:
    agree(
        [
            lambda m, i, b: [i.masked_fill(b, 1.5), i.masked_fill(b, True), i.masked_fill(b, m.tensor(2.5))],
            lambda m, i, b: [b.masked_fill(b, 0), b.masked_fill(~b, 0.5), i.double().masked_fill(b, float("inf"))],
            lambda m, i, b: [*m.where(b), *m.where(i > 2)],
        ],
        np.arange(6).reshape(2, 3), np.array([[True, False, True], [False, True, False]]),
    )  # fmt: skip
    i = dl.tensor([1, 2])
    for value in (float("inf"), float("nan"), 2**70):
        assert "is no int64" in error_of(DTypeError, i.masked_fill, i > 1, value)


def test_dtypes_devices_and_sizes() -> None:
    x = dl.tensor([[1.0, 2.0, 3.0]], requires_grad=True)
    assert x.to("cpu") is x and x.to(x.device) is x and x.to(device="cpu", dtype=dl.double).dtype == "float64"
    assert x.to("cpu", dl.int64, non_blocking=True).dtype == "int64" and x.to(dl.ones(1, dtype=dl.int)).dtype == "int32"
    assert x.to(torch.float64).dtype == "float64" and x.to(torch.device("cpu")) is x
    copied = x.to(dl.float, copy=True)
    assert copied is not x and copied.tolist() == x.tolist()
    for call in (lambda: x.to("cuda"), lambda: x.to("cuda:1"), lambda: x.to(dl.cuda(0)), x.cuda):
        assert "CPU" in error_of(DeviceError, call)
    assert "shape" in error_of(GraphError, x.to, shape=3)
    assert "float33" in error_of(DTypeError, x.to, "float33")
    assert x.device == dl.cpu() and x.device.type == "cpu"
    assert not x.is_cuda and x.grad_fn is None and (x * 2).grad_fn.name == "mul_byconst"
    assert dl.ones(2).cpu().grad_fn is None and (dl.ones(2) * 2).grad_fn is None
    t = torch.tensor([[1.0, 2.0, 3.0]])
    for name in ("numel", "nelement", "ndimension", "element_size", "is_contiguous", "is_floating_point", "dim"):
        assert getattr(x, name)() == getattr(t, name)(), name
    assert (x.itemsize, x.nbytes, dl.numel(x), x.stride(), x.stride(0)) == (4, 12, 3, (3, 1), 3)
    assert dl.zeros(4, 5, 6).stride() == torch.zeros(4, 5, 6).stride() and dl.tensor(1.0).stride() == ()
    assert 2.0 in x and 5.0 not in x and dl.is_floating_point(x) and not dl.is_floating_point(x > 1)
    assert dl.finfo(dl.float32).eps == torch.finfo(torch.float32).eps and dl.finfo().max == torch.finfo().max
    assert dl.iinfo("int32").max == 2**31 - 1 and dl.finfo("float64").tiny == torch.finfo(torch.float64).tiny
    assert "iinfo" in error_of(DTypeError, dl.finfo, "int32") and "finfo" in error_of(DTypeError, dl.iinfo, "float32")
    assert (dl.long, dl.inf, dl.newaxis) == ("int64", float("inf"), None) and dl.isnan(dl.tensor(dl.nan)).item()
    assert dl.promote_types(dl.int32, dl.float32) == "float32" and dl.result_type(dl.ones(2), dl.tensor(1)) == "float32"
    assert (x.new_zeros(2, 3).tolist(), x.new_ones(2).dtype) == ([[0] * 3] * 2, "float32")
    assert x.new_tensor([1, 2]).dtype == "float32" and x.new_full((2,), 5).tolist() == [5, 5]
    assert dl.empty_like(x).shape == (1, 3) and dl.logspace(0, 2, 3).tolist() == [1, 10, 100]
    assert x.where(x > 1.5, 0.0).tolist() == [[0, 2, 3]] and x.reshape_as(dl.ones(3, 1)).shape == (3, 1)


def test_tensors_of_arrays() -> None:
    array = np.arange(3.0)
    shared = dl.from_numpy(array)
    array[0] = 7
    shared.data[1] = 5.0
    assert shared.dtype == "float64" and shared.tolist()[0] == 7
    x = dl.as_tensor([1.0, 2.0])
    assert dl.as_tensor(x) is x and dl.as_tensor(x, dl.float32) is x and dl.as_tensor(x, "int64").tolist() == [1, 2]
    assert dl.as_tensor(array).dtype == "float64" and "NumPy" in error_of(DTypeError, dl.from_numpy, [1.0])
    v = ad.Variable("v", (2,), "float32")
    assert dl.as_tensor(v) is v
