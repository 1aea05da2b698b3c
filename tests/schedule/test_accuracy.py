"""The contract of sums: of n positive float32 they are within 4 log2(n) units of the last place, whatever is fused."""

from __future__ import annotations

import math
from collections.abc import Callable

import dlsys
import numpy as np
import pytest
from dlsys import autodiff as ad
from dlsys.graph import Node

ULP = 2.0**-23
LENGTHS = (100, 1000, 1_000_000)

Formula = tuple[Callable[[int], tuple[int, ...]], Callable[[Node], Node], Callable[[np.ndarray], np.ndarray]]


def _row(n: int) -> tuple[int, ...]:
    return (3, n)


def _images(n: int) -> tuple[int, ...]:
    return (max(n // 64, 1), 2, 8, 8)


def _prime(n: int) -> int:
    """The largest prime up to n: a length that no block divides."""
    return next(p for p in range(n, 1, -1) if all(p % d for d in range(2, math.isqrt(p) + 1)))


SUMS: dict[str, Formula] = {  # shape of the operand with sums of n terms, formula, the same of NumPy in float64
    "all": (lambda n: (n,), ad.reducesum_op, lambda x: x.sum()),
    "columns": (lambda n: (n, 5), lambda x: ad.reducesum_op(x, (0,)), lambda x: x.sum(0)),
    "wide columns": (lambda n: (n, 40), lambda x: ad.reducesum_op(x, (0,)), lambda x: x.sum(0)),
    "rows": (_row, lambda x: ad.reducesum_op(x, (1,)), lambda x: x.sum(1)),
    "middle": (lambda n: (2, n, 3), lambda x: ad.reducesum_op(x, (1,)), lambda x: x.sum(1)),
    "axes 0, 2": (lambda n: (n // 50, 3, 50), lambda x: ad.reducesum_op(x, (0, 2)), lambda x: x.sum((0, 2))),
    "prime": (lambda n: (_prime(n),), ad.reducesum_op, lambda x: x.sum()),
    "prime columns": (lambda n: (_prime(n), 4), lambda x: ad.reducesum_op(x, (0,)), lambda x: x.sum(0)),
    "prime rows": (lambda n: (2, _prime(n)), lambda x: ad.reducesum_op(x, (1,)), lambda x: x.sum(1)),
    "then add": (lambda n: (n,), lambda x: ad.reducesum_op(x) + 0.5, lambda x: x.sum() + 0.5),
    "of a product": (lambda n: (n,), lambda x: ad.reducesum_op(x * x) * 3, lambda x: (x * x).sum() * 3),
    "rows of exp": (_row, lambda x: ad.reducesum_op(ad.exp_op(x), (1,)) * 2, lambda x: np.exp(x).sum(1) * 2),
    "reducesumaxiszero": (lambda n: (n, 6), ad.reducesumaxiszero_op, lambda x: x.sum(0)),
    "mean, rows": (_row, lambda x: ad.mean_op(x, (1,)), lambda x: x.mean(1)),
    "var": (lambda n: (n,), ad.var_op, lambda x: x.var(ddof=1)),
    "var, columns": (lambda n: (n, 4), lambda x: ad.var_op(x, (0,)), lambda x: x.var(0, ddof=1)),
    "std, rows": (_row, lambda x: ad.std_op(x, (1,)), lambda x: x.std(1, ddof=1)),
    "var of a batch": (_images, lambda x: ad.var_op(x, (0, 2, 3)), lambda x: x.var((0, 2, 3), ddof=1)),
    "logsumexp": (_row, lambda x: ad.exp_op(ad.logsumexp_op(x, (1,))), lambda x: np.exp(x).sum(1)),
    "softmax": (_row, lambda x: ad.softmax_op(x), lambda x: np.exp(x) / np.exp(x).sum(1, keepdims=True)),
    "mse": (lambda n: (n,), lambda x: ad.mse_loss_op(x, x * 0), lambda x: (x * x).mean()),
    "softmaxcrossentropy": (
        lambda n: (n, 2), lambda x: ad.softmaxcrossentropy_op(x * 0, x),
        lambda x: np.array([x.sum() * math.log(2) / len(x)]),
    ),
    "matmul, dot": (lambda n: (n,), lambda x: ad.matmul_op(x, x), lambda x: x @ x),
    "matmul, rows": (_row, lambda x: ad.matmul_op(x, x, trans_B=True), lambda x: x @ x.T),
    "matmul, columns": (lambda n: (n, 33), lambda x: ad.matmul_op(x, x, trans_A=True), lambda x: x.T @ x),
    "matmul, vector": (
        lambda n: (64, n) if n < 10**5 else (4, n), lambda x: ad.matmul_op(x, ad.reducesum_op(x, (0,))),
        lambda x: x @ x.sum(0),
    ),
    "matmul, vector times": (
        lambda n: (n, 64) if n < 10**5 else (n, 16), lambda x: ad.matmul_op(ad.reducesum_op(x, (1,)), x),
        lambda x: x.sum(1) @ x,
    ),
    "conv2d": (
        lambda n: (3, max(n // 16, 1), 4, 4), lambda x: ad.conv2d_op(x, x),
        lambda x: np.einsum("nchw,ochw->no", x, x)[:, :, None, None],
    ),
    "conv2d_filter_gradient": (
        _images, lambda x: ad.conv2d_filter_gradient_op(x, x, (2, 2, 1, 1)),
        lambda x: np.einsum("nchw,ndhw->dc", x, x)[:, :, None, None],
    ),
    "conv2d_filter_gradient, depthwise": (
        _images, lambda x: ad.conv2d_filter_gradient_op(x, x, (2, 1, 1, 1), groups=2),
        lambda x: (x * x).sum((0, 2, 3))[:, None, None, None],
    ),
    "avg_pool2d": (
        lambda n: (1, 2, 1, n) if n < 10**5 else (1, 2, 1000, n // 1000), lambda x: ad.adaptive_avg_pool2d_op(x, 1),
        lambda x: x.mean((2, 3), keepdims=True),
    ),
}  # fmt: skip


def _check(names: list[str], n: int, draw: Callable[[tuple[int, ...]], np.ndarray], bound: float) -> None:
    variables = {name: ad.Variable(name) for name in names}
    feed = {variables[name]: draw(SUMS[name][0](n)) for name in names}
    executor = ad.Executor([SUMS[name][1](variables[name]) for name in names])
    got = executor.run(feed, convert_to_numpy_ret_vals=True)
    bad = []
    for name, value in zip(names, got, strict=True):
        want = np.asarray(SUMS[name][2](feed[variables[name]].astype("float64")))
        error = np.abs(value / want - 1).max() / ULP
        if not error <= bound:
            bad.append(f"{name}, {n} terms: {error:.0f} units of the last place, {bound:.0f} allowed")
    assert not bad, "\n".join(bad)


def _uniform(shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(0).random(shape, dtype="float32")


@pytest.mark.slow
def test_sums_of_drawn_numbers_and_of_equal_ones_whose_rounding_does_not_cancel() -> None:
    summed = [name for name in SUMS if not name.startswith(("matmul", "conv2d", "var", "std"))]
    for n in LENGTHS:
        _check(list(SUMS), n, _uniform, 4 * math.log2(n))
        _check(summed, n, lambda shape: np.full(shape, 0.1, "float32"), 4 * math.log2(n))


@pytest.mark.slow
def test_convolutions_of_any_geometry_are_summed_in_blocks() -> None:
    """Of equal numbers, whose rounding does not cancel: n terms in one accumulator are off by n / 8 units."""
    random = np.random.default_rng(0)
    nodes: list[Node] = []
    feed: dict[Node, np.ndarray] = {}
    for number in range(8):
        taps, size, stride = random.integers(1, 6, 2), random.integers(1, 8, 2), random.integers(1, 3, 2)
        padding = random.integers(np.maximum(0, -(-(taps - size) // 2)), taps + 1)
        groups, channels = (1, 1, 2, 4)[number % 4], 3000 // math.prod(taps) + int(random.integers(100))
        x, f = ad.Variable("x"), ad.Variable("f")
        y = ad.conv2d_op(x, f, *(tuple(map(int, of)) for of in (stride, padding)), groups=groups)
        feed[x] = np.full((2, groups * channels, *size), 0.1, "float32")
        feed[f] = np.full((int(random.choice([8, 15, 17])) * groups, channels, *taps), 0.3, "float32")
        nodes += [y, *ad.gradients(y, [x, f])]
    found = ad.Executor(nodes).run(feed, convert_to_numpy_ret_vals=True)
    exact = {node: value.astype("float64") for node, value in feed.items()}
    wanted = ad.Executor(nodes, ctx=dlsys.numpy()).run(exact, convert_to_numpy_ret_vals=True)
    for node, a, b in zip(nodes, found, wanted, strict=True):
        assert np.abs(a - b).max() <= 1024 / 8 * ULP * np.abs(b).max(), (node, a.shape, np.abs(a - b).max())


def test_depthwise_filters_gradients_are_summed_in_levels() -> None:
    x, f = ad.Variable("x"), ad.Variable("f")
    (gradient,) = ad.gradients(ad.conv2d_op(x, f, (1, 1), (1, 1), groups=2), [f])
    feed = {x: np.full((64, 2, 30, 30), 0.1, "float32"), f: np.zeros((2, 1, 3, 3), "float32")}
    (found,) = ad.Executor([gradient]).run(feed, convert_to_numpy_ret_vals=True)
    met = np.array([29.0, 30.0, 29.0])  # of a row's places those at which a tap lies within the image
    want = 64 * float(np.float32(0.1)) * np.outer(met, met)
    assert np.abs(found / want - 1).max() <= 4 * math.log2(64 * 900) * ULP


@pytest.mark.slow
def test_sums_beyond_what_float32_can_count_and_of_float64() -> None:
    x, y = ad.Variable("x"), ad.Variable("y")
    nodes = [ad.reducesum_op(x) + 0.5, ad.mean_op(x), ad.sqrt_op(ad.reducesum_op(x * x)), ad.reducesum_op(y) * 1.0]
    feed = {x: np.ones(40_000_000, "float32"), y: np.full(3_000_000, 0.1)}
    total, mean, norm, double = ad.Executor(nodes).run(feed, convert_to_numpy_ret_vals=True)
    assert total == 40_000_000 and mean == 1 and norm == np.float32(math.sqrt(40_000_000))
    assert abs(float(double) / (0.1 * 3_000_000) - 1) < 1e-14


@pytest.mark.slow
def test_variances_of_numbers_far_from_zero():
    """The mean is rounded, to as much as these numbers' spacing: it must not enter the variance."""
    random, x = np.random.default_rng(4), ad.Variable("x")
    shapes = ((1000,), None), ((100_000,), None), ((3, 5000), (1,)), ((5000, 3), (0,)), ((70, 3, 80), (0, 2))
    for shape, axes in shapes:
        executor = ad.Executor([ad.var_op(x, axes), ad.std_op(x, axes), *ad.gradients(ad.var_op(x, axes), [x])])
        for offset in (0.0, 1e3, 1e5, 3e7):
            values = (random.normal(size=shape) * 1.2 + offset).astype("float32")
            exact = values.astype("float64")
            var = exact.var(axes, ddof=1)
            count = exact.size // var.size
            grad = 2 * (exact - exact.mean(axes, keepdims=True)) / (count - 1)
            found = executor.run({x: values}, convert_to_numpy_ret_vals=True)
            np.testing.assert_allclose(found[0], var, rtol=1e-4, err_msg=f"{shape} {offset}")
            np.testing.assert_allclose(found[1], np.sqrt(var), rtol=1e-4)
            limit = 1e-4 * np.abs(grad).max()
            np.testing.assert_allclose(found[2], grad, rtol=0, atol=limit, err_msg=f"{shape} {offset}")
        equal = executor.run({x: np.full(shape, 3e7 / 7, "float32")}, convert_to_numpy_ret_vals=True)
        assert all((value == 0).all() for value in equal[:2]) and np.isfinite(equal[2]).all()
