"""Functions of tensors by PyTorch's names: values, dtypes and gradients are PyTorch's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dlsys as dl
import numpy as np
import torch
from against_torch import agree, random
from dlsys import autodiff as ad
from dlsys.errors import DTypeError, GraphError, ShapeError
from helpers import error_of

PAIR = ("float32", "float64", "int32", "int64", "bool")


def test_of_one_tensor() -> None:
    names = (
        "exp expm1 tanh sigmoid relu erf sin cos abs sign floor ceil round square neg isnan isinf isfinite"
    )
    functions = [lambda m, x, n=name: getattr(m, n)(x) for name in names.split()]
    functions += [
        lambda m, x: [
            m.log(x.abs()),
            m.log1p(abs(x)),
            m.log2(x * x),
            m.log10(x * x),
            m.sqrt(x * x),
            m.rsqrt(x * x),
        ],
        lambda m, x: [
            m.clamp(x, -0.5, 0.5),
            m.clamp(x, min=0.1),
            m.clip(x, max=x[0]),
            x.clamp(x[1], x[0] + 3.0),
        ],
        lambda m, x: [
            m.reciprocal(x),
            m.round(x, decimals=1),
            m.pow(x, 3),
            m.pow(2.0, x),
            x.masked_fill(x > 0, 7.0),
        ],
        lambda m, x: [
            m.where(x > 0, x, 0.0),
            m.where(x > 0, 1.0, 0.0),
            m.masked_fill(x, x < 0, 2.0),
            x.logical_not(),
        ],
    ]
    agree(functions, random(4, 6))
    special = np.array([np.nan, np.inf, -np.inf, 0.5, 1.5, -0.5, -1e300], "float64")
    agree([lambda m, x: [m.isnan(x), m.isinf(x), m.isfinite(x), m.round(x), m.ceil(x)]], special)


def test_remainders() -> None:
    a = np.array([7.5, -7.5, 1e30, np.inf, 5.0, -0.5, np.nan])[:, None]
    b = np.array([2.0, -2.0, np.inf, -np.inf, 0.0, 0.3])
    agree([lambda m, a, b: [a % b, a // b, 7.0 % b, m.remainder(a, b), m.floor_divide(a, 0.7)]], a, b)


def test_of_integers_and_booleans() -> None:
    functions = [
        lambda m, i, b: [
            m.exp(i),
            m.sqrt(b),
            m.floor(i),
            m.round(i),
            m.abs(i),
            m.relu(i),
            m.square(i),
            i**3,
            2 * i,
        ],
        lambda m, i, b: [
            i.float(),
            i.double(),
            b.long(),
            b.int(),
            i.bool(),
            b.float(),
            i.sum(),
            b.sum(0),
            i.prod(),
        ],
        lambda m, i, b: [~b, b & b, b | ~b, b ^ b, ~i, i & 3, i | 4, i ^ i, i == 2, i != 2, b == True, i / 2],  # noqa: E712
        lambda m, i, b: [
            b.all(),
            b.any(1),
            m.all(i, 0),
            m.any(i),
            i.cumsum(1),
            b.cumsum(0),
            i.max(),
            i.argmin(1),
        ],
        lambda m, i, b: [
            m.logical_and(i, b),
            m.logical_or(i, b),
            m.logical_xor(i, b),
            m.logical_not(i),
            b * b,
            b + b,
        ],
        lambda m, i, b: [
            i // 2,
            i % 3,
            -7 // (i * i + 1),
            i // -2,
            i % -3,
            i.remainder(2),
            i.floor_divide(2),
        ],
    ]
    agree(functions, np.arange(-3, 9).reshape(3, 4), np.arange(12).reshape(3, 4) % 3 == 0)
    assert float((dl.tensor([1, 2, 3]) == dl.tensor([1, 5, 3])).mean()) == np.float32(
        2 / 3
    )  # PyTorch refuses
    assert ".float()" in error_of(DTypeError, dl.tensor([1, 2]).mean)
    assert (dl.tensor([5, -5, 0]) // 0).tolist() == (dl.tensor([5, -5, 0]) % 0).tolist() == [0, 0, 0]
    least = dl.tensor(np.array([-(2**63), 7]))
    assert (least // -1).tolist() == [-(2**63), -7] and (least % -1).tolist() == [0, 0]
    assert (dl.tensor([2**60]) + (2**60 + 1)).item() == 2**61 + 1


def test_of_two_tensors() -> None:
    functions = [
        lambda m, a, b: [a + b, a - b, a * b, a / b, a % 1.5, a**2, 2.0 - a, 2.0 / b, m.sub(a, b)],
        lambda m, a, b: [
            m.maximum(a, b),
            m.minimum(a, b),
            m.max(a, b),
            m.min(a, b),
            a.lt(b),
            m.ge(a, b),
            m.eq(a, b),
        ],
        lambda m, a, b: [
            m.outer(a[0], b[0]),
            m.dot(a[0], b[1]),
            m.mm(a, b.t()),
            m.matmul(a, b[0]),
            a @ b.T,
            a.mm(b.T),
        ],
        lambda m, a, b: [m.cat([a, b]), m.cat((a, b), dim=1), m.stack([a, b], 1), m.concat([a, a, b], -1)],
        lambda m, a, b: [
            m.einsum("ij,kj->ik", a, b),
            m.einsum("ij,ij->j", a, b),
            m.einsum("ij", a),
            m.einsum("ij->", b),
        ],
        lambda m, a, b: [
            m.einsum("ij,kj,kl->il", a, b, b),
            m.einsum("ij->ji", a),
            m.einsum("i,j->ji", a[0], b[0]),
        ],
    ]
    agree(functions, random(3, 4), random(3, 4, seed=1))
    differentiated = [
        lambda m, a, b: [m.einsum("ij,kj,kl->il", a, b, b), m.outer(a[0], b[0]), a % 1.5, m.max(a, b)]
    ]
    agree(differentiated, random(3, 4), random(3, 4, seed=1), gradients=True)
    batched = [
        lambda m, a, b: [m.bmm(a, b), m.einsum("bij,bjk->bik", a, b), m.einsum("bij,bjk->ki", a, b), a @ b],
    ]
    agree(batched, random(2, 3, 4), random(2, 4, 5, seed=1))
    a = dl.tensor([1.0, 2.0])
    assert dl.allclose(a, a + 1e-7) and not dl.allclose(a, a + 0.1) and dl.equal(a, a[:1]) is False
    assert dl.equal(a, a + 0.0) is True
    nan = dl.tensor([np.nan, np.inf])
    assert dl.allclose(nan, nan, equal_nan=True) and not dl.allclose(nan, nan)
    assert "does not fit" in error_of(GraphError, dl.einsum, "i,i->i", a)
    assert "2 letters" in error_of(ShapeError, dl.einsum, "ii->i", a)
    assert "'i' is 2 and 3" in error_of(ShapeError, dl.einsum, "i,i->i", a, dl.ones(3))


def test_operands_of_several_dtypes_meet_as_in_pytorch() -> None:
    operators: list[Callable[[Any, Any], Any]] = [
        lambda a, b: a + b,
        lambda a, b: a * b,
        lambda a, b: a / b,
        lambda a, b: a < b,
        lambda a, b: a == b,
    ]
    values = {dtype: np.ones((2, 3), dtype) for dtype in PAIR}
    for first in PAIR:
        for second in PAIR:
            for shape in ((2, 3), ()):  # a tensor without axes is weak, as a number
                other = np.ones(shape, second)
                for number, function in enumerate(operators):
                    want = function(torch.tensor(values[first]), torch.tensor(other)).dtype
                    found = function(dl.tensor(values[first]), dl.tensor(other))
                    assert f"torch.{found.dtype}" == str(want), (first, second, shape, number)
        for scalar in (True, 2, 0.5):
            for number, function in enumerate(operators):
                want = function(torch.tensor(values[first]), scalar).dtype
                assert f"torch.{function(dl.tensor(values[first]), scalar).dtype}" == str(want), (
                    first,
                    scalar,
                    number,
                )
    agree(
        [
            lambda m, f, i, b: [f + i, i - 0.5, b + 1, b * 0.5, i / b.int(), 3 - i, 1 / (i + 2), i < 0.5, i * f],
            lambda m, f, i, b: [m.where(b, f, i), m.where(b, 1, i), m.maximum(f, i), m.cat([f, i]), m.stack([i, b])],
        ],
        random(3).astype("f4"), np.arange(3), np.array([True, False, True]),
    )  # fmt: skip
    x = dl.tensor([1.0, 2.0], requires_grad=True)
    (x * np.array([1.0, 3.0])).sum().backward()  # through the cast back to float32
    assert x.grad.dtype == "float32" and x.grad.tolist() == [1.0, 3.0]


def test_arrays_are_operands() -> None:
    x, array = dl.tensor([1.0, 2.0], requires_grad=True), np.array([3.0, 5.0], "float32")
    for other in (array, torch.tensor(array), dl.array(array), dl.tensor(array)):
        for node in (x + other, x * other, x - other, x / other, dl.maximum(x, other), x == other):
            assert isinstance(node, dl.Tensor)
        np.testing.assert_allclose((x / other).numpy(), np.float32([1 / 3, 0.4]))
    for node in (array + x, array - x, np.float32(2.0) * x, array @ x, array == x, array < x):
        assert isinstance(node, dl.Tensor) and node.ndim <= 1
    assert (array - x).tolist() == [2.0, 3.0] and (x == None) is False and (x != "x") is True  # noqa: E711
    for wrong in (lambda: x * [1.0, 2.0], lambda: x + "1", lambda: {} * x):
        error_of(TypeError, wrong)


def test_variables_meet_by_what_they_declare() -> None:
    i, f, u = ad.Variable("i", (3,), "int64"), ad.Variable("f", (3,), "float64"), ad.Variable("u")
    nodes = [i + 0.5, i * f, i / 2, f == i, dl.where(i > 0, f, i), u + np.ones(3), i // 2]
    feed = {i: np.array([1, -2, 3]), f: np.array([0.5, -2.0, 9.0]), u: np.float32([1, 2, 3])}
    found = ad.Executor(nodes).run(feed, convert_to_numpy_ret_vals=True)
    kinds = ["float32", "float64", "float32", "bool", "float64", "float32", "int64"]
    assert [str(value.dtype) for value in found] == kinds
    np.testing.assert_allclose(found[1], [0.5, 4.0, 27.0])
    undeclared = ad.Executor([u + i])  # u's dtype is known at the run
    assert "dtypes differ" in error_of(DTypeError, undeclared.run, {u: feed[u], i: feed[i]})
    same = u == i
    assert "variable" in error_of(GraphError, bool, same) and same.op.name == "equal"
    loss = ((f * i) ** 2).sum()
    given = {f: feed[f], i: feed[i]}
    (slope,) = ad.Executor(ad.gradients(loss, [f])).run(given, convert_to_numpy_ret_vals=True)
    np.testing.assert_allclose(slope, 2 * feed[f] * feed[i] ** 2)
