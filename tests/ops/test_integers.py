"""Integers at their limits: quotients, remainders, powers and casts, the same wherever in an array an element lies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dlsys as dl
import numpy as np
import pytest
from dlsys import autodiff as ad
from dlsys.errors import DTypeError, GraphError
from dlsys.graph import INTEGERS, Node
from helpers import error_of
from hypothesis import given, settings
from hypothesis import strategies as st

SIZES = (1, 3, 64, 1000)
"""Of arrays that one vector of the CPU holds, and of such that take several and a rest."""


def at_the_limits(dtype: str, without: tuple[int, ...] = ()) -> np.ndarray:
    """The limits of an integer dtype, their neighbours, powers of 2 and small numbers."""
    low, high = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
    powers = [2**n + d for n in range(0, 64, 5) for d in (-1, 0, 1)]
    values = {low, low + 1, high, high - 1, high // 2, *range(-12, 13), *powers, *(-p for p in powers)}
    return np.array(sorted(v for v in values if low <= v <= high and v not in without), dtype)


def pairs_of(dtype: str, size: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Two arrays of that many elements, half of them limits and half drawn."""
    draw, values = np.random.default_rng(seed), at_the_limits(dtype)
    limits = np.iinfo(dtype)

    def one() -> np.ndarray:
        drawn = draw.integers(limits.min, limits.max, size, dtype, endpoint=True)
        return np.where(draw.random(size) < 0.5, draw.choice(values, size), drawn)

    return one(), one()


def truncated(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a / b rounded towards 0 by Python's integers, in a's dtype; 0 by 0."""
    exact = [
        abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1) if y else 0
        for x, y in zip(a.tolist(), b.tolist(), strict=True)
    ]
    return np.array([x & (2 ** (8 * a.itemsize) - 1) for x in exact], f"uint{8 * a.itemsize}").astype(a.dtype)


def remainder(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """What `truncated` leaves of a, 0 by 0."""
    return np.where(b == 0, b, a - truncated(a, b) * b)


QUOTIENTS: list[tuple[Callable[[Any, Any], Any], Callable[[np.ndarray, np.ndarray], np.ndarray]]] = [
    (lambda x, y: x // y, np.floor_divide),
    (lambda x, y: x % y, np.remainder),
    (lambda x, y: dl.fmod(x, y), remainder),
    (lambda x, y: dl.div(x, y, rounding_mode="floor"), np.floor_divide),
    (lambda x, y: dl.div(x, y, rounding_mode="trunc"), truncated),
]


def of_executor(ctx: str, build: Callable[..., Any], *arrays: np.ndarray) -> np.ndarray:
    """The node that `build` makes of variables, fed with the arrays."""
    variables = [ad.Variable(f"x{i}", a.shape, str(a.dtype)) for i, a in enumerate(arrays)]
    feed = dict(zip(variables, arrays, strict=True))
    return np.asarray(ad.Executor([build(*variables)], ctx=ctx).run(feed, convert_to_numpy_ret_vals=True)[0])


@pytest.mark.parametrize("dtype", INTEGERS)
@settings(max_examples=6)
@given(size=st.sampled_from(SIZES), seed=st.integers(0, 2**20))
def test_quotients_and_remainders_are_exact(dtype: str, size: int, seed: int) -> None:
    a, b = pairs_of(dtype, size, seed)
    with np.errstate(all="ignore"):
        wants = [rule(a, b) for _, rule in QUOTIENTS]
    for build, want in zip([build for build, _ in QUOTIENTS[:3]], wants, strict=False):
        np.testing.assert_array_equal(build(dl.tensor(a), dl.tensor(b)).numpy(), want)
    x, y = ad.Variable("x", (size,), dtype), ad.Variable("y", (size,), dtype)
    nodes = [build(x, y) for build, _ in QUOTIENTS]
    nodes.append(dl.where(y != 0, x // y, 0))  # a choice around the division does not undo its own
    nodes.append(dl.where(y > 0, x // y, 0))
    wants += [wants[0], np.where(b > 0, wants[0], 0)]
    for ctx in ("cpu", "numpy"):
        for found, want in zip(
            ad.Executor(nodes, ctx).run({x: a, y: b}, True), wants, strict=True
        ):
            np.testing.assert_array_equal(found, want)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_quotients_by_numbers_are_those_by_arrays(dtype: str) -> None:
    a = at_the_limits(dtype)
    limits = np.iinfo(dtype)
    numbers = {1, 3, 7, 64, int(limits.max), int(limits.max) - 1} | (
        {-1, -2, -7, int(limits.min)} if limits.min else set()
    )
    with np.errstate(all="ignore"):
        for number in numbers:
            divisor = np.full_like(a, number)
            for build, rule in QUOTIENTS:
                np.testing.assert_array_equal(
                    build(dl.tensor(a), number).numpy(), rule(a, divisor), str(number)
                )
                np.testing.assert_array_equal(
                    build(number, dl.tensor(a)).numpy(), rule(divisor, a), str(number)
                )
                np.testing.assert_array_equal(
                    of_executor("numpy", lambda x, f=build, n=number: f(x, n), a), rule(a, divisor)
                )
    for wrong in (
        lambda x: x // 0,
        lambda x: x % 0,
        lambda x: dl.fmod(x, 0),
        lambda x: x.div(0, rounding_mode="trunc"),
    ):
        assert "by 0" in error_of(GraphError, wrong, dl.tensor(a))
    if limits.max < 2**40:
        assert f"is no {dtype}" in error_of(DTypeError, lambda: dl.tensor(a) // 2**40)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_powers_wrap_around(dtype: str) -> None:
    draw, bits = np.random.default_rng(0), 8 * np.dtype(dtype).itemsize
    a = np.concatenate([at_the_limits(dtype), np.arange(-9 if np.iinfo(dtype).min else 0, 10).astype(dtype)])
    b = np.where(
        draw.random(a.size) < 0.7, draw.integers(0, 126, a.size), draw.choice(at_the_limits(dtype), a.size)
    )
    b[(b >= 126) & (a % 2 != 0) & (abs(a) != 1)] = 5
    b = b.astype(dtype)
    exact = [
        pow(x, y, 2**bits) if y >= 0 else x**-y if abs(x) == 1 else 0
        for x, y in zip(a.tolist(), b.tolist(), strict=True)
    ]
    want = np.array([x % 2**bits for x in exact], f"uint{bits}").astype(dtype)
    np.testing.assert_array_equal((dl.tensor(a) ** dl.tensor(b)).numpy(), want)
    for ctx in ("cpu", "numpy"):
        np.testing.assert_array_equal(of_executor(ctx, ad.power_op, a, b), want)
        of_three = np.array([pow(3, x, 2**bits) for x in range(10)], f"uint{bits}").astype(dtype)
        np.testing.assert_array_equal(of_executor(ctx, lambda x: 3**x, np.arange(10, dtype=dtype)), of_three)


BEYOND = (
    np.nan,
    np.inf,
    -np.inf,
    1e30,
    -1e30,
    300.0,
    -1.0,
    -300.7,
    2.0**32 + 512,
    -(2.0**62),
    2.0**63,
    -(2.0**63),
)


@pytest.mark.parametrize("source", ["float32", "float64"])
@pytest.mark.parametrize("dtype", INTEGERS)
@settings(max_examples=10)
@given(
    size=st.sampled_from(SIZES), value=st.floats(-(2.0**31), 2.0**31, width=32), seed=st.integers(0, 2**20)
)
def test_a_cast_of_floats_does_not_depend_on_the_place(
    source: str, dtype: str, size: int, value: float, seed: int
) -> None:
    bits = 8 * np.dtype(dtype).itemsize
    x = np.array([value, *BEYOND], source)[np.random.default_rng(seed).integers(0, 13, size)]
    whole = [int(v) if abs(v) < 2.0**63 else -(2**63) for v in x.tolist()]
    want = np.array([v % 2**bits for v in whole], f"uint{bits}").astype(dtype)
    np.testing.assert_array_equal(dl.tensor(x).to(dtype).numpy(), want)
    for ctx in ("cpu", "numpy"):
        np.testing.assert_array_equal(of_executor(ctx, lambda v: ad.cast_op(v, dtype), x), want)
    one = dl.tensor(np.full(size, value, source)).to(dtype).numpy()
    assert len(np.unique(one)) == 1


@pytest.mark.parametrize("dtype", [*INTEGERS, "bool"])
def test_cumulative_sums_and_products_of_integers_are_int64(dtype: str) -> None:
    x = np.full((2, 40), 1 if dtype == "bool" else 100, dtype)
    for found, want in (
        (dl.tensor(x).cumsum(1), np.cumsum(x, 1, "int64")),
        (dl.tensor(x).cumprod(1), np.cumprod(x, 1, "int64")),
        (dl.tensor(x).sum(), np.sum(x, dtype="int64")),
    ):
        assert found.dtype == "int64"
        np.testing.assert_array_equal(found.numpy(), want)


def test_integer_quotients_pass_no_gradient() -> None:
    x = ad.Variable("x", (3,), "float32")
    whole: Node = ad.cast_op(x, "int64") // 2
    (grad,) = ad.gradients(ad.sum_op(ad.cast_op(whole, "float32") * x), [x])
    (found,) = ad.Executor([grad]).run({x: np.array([5.0, -5.0, 9.0], "float32")}, True)
    assert found.tolist() == [2.0, -3.0, 4.0]
