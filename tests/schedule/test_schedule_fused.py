"""Kernels of several formulas: against NumPy, with outputs on inputs, and how many loops they run in."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import tvm
from dlsys import autodiff as ad
from dlsys import compute, kernels
from dlsys.compute.base import constant, pointwise
from dlsys.kernels.spec import KernelSpec
from helpers import denormals_kept, on_threads
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import te

TOLERANCE = {"float32": {"rtol": 3e-5, "atol": 3e-6}, "float64": {"rtol": 1e-11, "atol": 1e-12}}
DTYPES = st.sampled_from(["float32", "float64"])
SIZES = st.one_of(st.integers(1, 40), st.sampled_from([64, 97, 100, 128, 251]))
DRAWN = settings(deadline=None, max_examples=12)

Formula = Callable[..., Any]


def _spec(formula: Formula, shapes: Sequence[Any], dtype: str, in_place: bool = False) -> KernelSpec:
    key = (formula.__qualname__, formula.__code__.co_code, in_place)
    found = formula(*(compute.placeholder(shape, dtype, f"x{i}") for i, shape in enumerate(shapes)))
    found = found if isinstance(found, tuple) else (found,)
    outputs = tuple((compute.shape_of(value), str(value.dtype)) for value in found)
    return KernelSpec("fused", key, tuple((shape, dtype) for shape in shapes), formula, in_place, outputs=outputs)


def _run(
    formula: Formula, inputs: Sequence[np.ndarray], on: dict[int, int] | None = None, dtype: str = "float32"
) -> tuple[list[np.ndarray], Any]:
    """The outputs, each on the input that `on` gives it, and the kernel."""
    spec = _spec(formula, [x.shape for x in inputs], dtype, in_place=on is not None)
    kernel = kernels.get([spec])[0]
    given_ = [tvm.runtime.tensor(x) for x in inputs]
    results = [
        given_[on[i]] if on and i in on else tvm.runtime.empty(shape, kind)
        for i, (shape, kind) in enumerate(kernel.outputs)
    ]
    kernel.function(*given_, *results)
    return [result.numpy() for result in results], kernel


def _check(
    formula: Formula,
    reference: Formula,
    shapes: Sequence[Any],
    dtype: str,
    on: dict[int, int] | None = None,
    positive: bool = False,
) -> Any:
    random = np.random.default_rng(0)
    inputs = [np.asarray(random.uniform(0.1 if positive else -2, 2, shape), dtype) for shape in shapes]
    got, kernel = _run(formula, inputs, on, dtype)
    for result, want in zip(got, reference(*(x.astype("float64") for x in inputs)), strict=True):
        limits = TOLERANCE[dtype]
        size = max(1.0, float(np.max(np.abs(want))))  # differences of large numbers are as wrong as these
        np.testing.assert_allclose(
            result, np.reshape(want, result.shape), limits["rtol"], limits["atol"] * size
        )
    return kernel


def _nests(text: str) -> int:
    return text.count("with T.sblock(") - text.count('# with T.sblock("root")')


# Pointwise


def _c(value: float, x: te.Tensor) -> Any:
    return constant(value, x.dtype)


def adam(m: Any, v: Any, w: Any, g: Any, rate: Any) -> Any:
    first = pointwise("m", lambda a, b: a * _c(0.9, m) + b * _c(0.1, m), m, g)
    second = pointwise("v", lambda a, b: a * _c(0.99, m) + b * b * _c(0.01, m), v, g)
    root = compute.add_by_const(compute.sqrt(second), 1e-3)
    return first, second, compute.sub(w, compute.div(compute.mul(first, rate), root))


def adam_numpy(m: Any, v: Any, w: Any, g: Any, rate: Any) -> Any:
    first, second = m * 0.9 + g * 0.1, v * 0.99 + g * g * 0.01
    return first, second, w - first * rate / (np.sqrt(second) + 1e-3)


@pytest.mark.slow
@DRAWN
@given(st.lists(SIZES, min_size=0, max_size=2), DTYPES, st.sampled_from([(), (1,)]))
def test_adam_in_place(shape: list[int], dtype: str, rate: tuple[int, ...]):
    shapes = [tuple(shape)] * 4 + [rate if shape else ()]
    kernel = _check(adam, adam_numpy, shapes, dtype, on={0: 0, 1: 1, 2: 2}, positive=True)
    assert kernel.rule.name == "elementwise" and _nests(kernel.script()) == 1


def sum_and_difference(a: Any, b: Any) -> Any:
    return compute.add(a, b), compute.sub(a, b)


@pytest.mark.slow
@DRAWN
@given(st.lists(SIZES, min_size=1, max_size=3).filter(lambda s: np.prod(s) < 40000), DTYPES)
def test_each_output_may_lie_on_what_the_other_reads(shape: list[int], dtype: str):
    for on in ({0: 0, 1: 1}, {0: 1, 1: 0}):
        _check(sum_and_difference, lambda a, b: (a + b, a - b), [tuple(shape)] * 2, dtype, on=on)


def activation(x: Any, bias: Any, column: Any, scale: Any) -> Any:
    before = compute.mul(compute.add(compute.add(x, bias), column), scale)
    after = compute.sigmoid(before)  # read twice: to be computed once
    return before, after, compute.mul(after, after)


def activation_numpy(x: Any, bias: Any, column: Any, scale: Any) -> Any:
    before = (x + bias + column) * scale
    after = 1 / (1 + np.exp(-before))
    return before, after, after * after


@pytest.mark.slow
@DRAWN
@given(SIZES, SIZES, DTYPES)
def test_broadcast_operands_and_a_costly_value(rows: int, columns: int, dtype: str):
    shapes = [(rows, columns), (columns,), (rows, 1), ()]
    kernel = _check(activation, activation_numpy, shapes, dtype, on={0: 0})
    assert kernel.script().count(" << ") <= 2  # whole vectors, and the rest
    assert _nests(kernel.script()) == 1


def of_two_shapes(x: Any, y: Any) -> Any:
    once = compute.exp(y)
    return compute.mul(x, once), compute.add_by_const(once, 1.0), compute.add(x, once)


def test_outputs_of_two_shapes():
    for shapes in ([(7, 5), (5,)], [(300, 70), (70,)]):
        _check(of_two_shapes, lambda x, y: (x * np.exp(y), np.exp(y) + 1, x + np.exp(y)), shapes, "float32")


# Rows


def loss_and_gradient(x: Any, y: Any, scale: Any) -> Any:
    difference = compute.sub(
        compute.mul(compute.softmax(x), compute.reduce_sum(y, (-1 % len(x.shape),), True)), y
    )
    return compute.softmax_cross_entropy(x, y), compute.mul(difference, scale)


def _softmax(x: Any) -> Any:
    exponential = np.exp(x - x.max(-1, keepdims=True))
    return exponential / exponential.sum(-1, keepdims=True)


def loss_and_gradient_numpy(x: Any, y: Any, scale: Any) -> Any:
    probability = _softmax(x)
    loss = -(y * np.log(probability)).sum() / (x.size / x.shape[-1])
    return loss, (probability * y.sum(-1, keepdims=True) - y) * scale


@pytest.mark.slow
@DRAWN
@given(SIZES, st.one_of(st.integers(1, 20), SIZES), DTYPES, st.sampled_from([(), (1,)]))
def test_loss_with_its_gradient(rows: int, columns: int, dtype: str, scale: tuple[int, ...]):
    shapes = [(rows, columns), (rows, columns), scale]
    kernel = _check(loss_and_gradient, loss_and_gradient_numpy, shapes, dtype, positive=True)
    assert kernel.rule.name == "reduction"


ENDINGS: list[tuple[tuple[int, ...], Formula, Formula, str]] = [
    ((24, 32), lambda c: lambda i, j: c(j, i) * 2.0, lambda c: 2 * c.T, "contraction"),
    ((32, 4, 6), lambda c: lambda i, j, k: c(i, j * 6 + k), lambda c: c.reshape(32, 4, 6), "contraction"),
    ((768,), lambda c: lambda i: c(i % 32, i // 32) * c(i % 32, i // 32), lambda c: c.T.ravel() ** 2, "contraction"),
    ((32, 24), lambda c: lambda i, j: c(i, j) + c(i, 23 - j), lambda c: c + c[:, ::-1], "reduction"),
    ((768,), lambda c: lambda i: c(i // 24, 0) + 1.0, lambda c: np.repeat(c[:, 0], 24) + 1, "reduction"),
]


@pytest.mark.parametrize("shape, ending, reference, rule", ENDINGS)
def test_what_reads_each_sum_of_a_product_once_is_stored_with_it(
    shape: tuple[int, ...], ending: Formula, reference: Formula, rule: str
) -> None:
    def formula(a: te.Tensor, b: te.Tensor) -> te.Tensor:
        return te.compute(shape, ending(compute.matmul(a, b)), name="ending")

    random = np.random.default_rng(0)
    a, b = (random.uniform(-1, 1, own).astype("float32") for own in ((32, 32), (32, 24)))
    inputs, outputs = (((32, 32), "float32"), ((32, 24), "float32")), ((shape, "float32"),)
    spec = KernelSpec("fused", ("ending", shape, rule), inputs, formula, outputs=outputs)
    (kernel,) = kernels.get([spec])
    out = np.empty(shape, "float32")
    kernel(a, b, out)
    np.testing.assert_allclose(out, reference(a @ b), 1e-5, 1e-5)
    assert kernel.rule.name == rule


# Sums over the first axis


def bias_step(h: Any, g: Any, b: Any, rate: Any) -> Any:
    total = compute.reduce_sum(compute.relu_gradient(h, g), (0,))
    return compute.sub(b, compute.mul(total, rate))


def bias_step_numpy(h: Any, g: Any, b: Any, rate: Any) -> Any:
    return (b - np.where(h > 0, g, 0).sum(0) * rate,)


@pytest.mark.slow
@DRAWN
@given(SIZES, SIZES, DTYPES)
def test_column_sums_of_what_is_never_stored(rows: int, columns: int, dtype: str):
    shapes = [(rows, columns), (rows, columns), (columns,), ()]
    kernel = _check(bias_step, bias_step_numpy, shapes, dtype, on={0: 2})
    if rows > 1:
        assert f"alloc_buffer(({rows}, {columns})" not in kernel.script()


WIDE = [(16, 2048), (40, 300), (33, 1004), (8, 4096), (300, 2064), (257, 1000), (24, 8200), (5, 12345)]


@pytest.mark.slow
def test_wide_rows_are_added_from_their_first_column_to_the_last() -> None:
    """So memory is read straight on; some rows at once. The sums fit L1."""
    for rows, columns in WIDE:
        for dtype in ("float32", "float64") if rows < 100 else ("float32",):
            _check(bias_step, bias_step_numpy, [(rows, columns), (rows, columns), (columns,), ()], dtype, on={0: 2})
            total = (lambda x: compute.reduce_sum(x, (1,)), lambda x: (x.sum(1),), [(3, rows, columns)], dtype)
            _check(*total)


# exp, log, tanh


def _spread(dtype: str, count: int) -> np.ndarray:
    """Numbers of every exponent and sign, and infinities, NaN and zeros among them."""
    bits = np.dtype(dtype).itemsize * 8
    random = np.random.default_rng(5)
    x = random.integers(0, 2**bits, count, dtype=f"uint{bits}", endpoint=False).view(dtype)
    limits = np.finfo(dtype)
    x[:8] = [0.0, -0.0, np.inf, -np.inf, np.nan, limits.tiny, limits.max, limits.smallest_subnormal]
    return x


def _ulps(got: np.ndarray, want: Any) -> float:
    """The largest error in units of the last place, where the result is finite."""
    with np.errstate(over="ignore", under="ignore"):
        rounded = want.astype(got.dtype)
    finite = np.isfinite(rounded)
    np.testing.assert_array_equal(got[~finite], rounded[~finite])
    step = np.spacing(np.maximum(np.abs(rounded[finite]), np.finfo(got.dtype).smallest_subnormal))
    return float(np.max(np.abs(got[finite] - want[finite]) / step))


def _erf(x: np.ndarray) -> np.ndarray:
    return np.array([math.erf(value) for value in x.tolist()])


@pytest.mark.slow
def test_sums_down_columns_are_taken_with_rows() -> None:
    """A layer norm with its gradients, and a sum of what it is given, are one kernel."""
    for shape, dtype in (((514, 64), "float32"), ((3, 180, 151), "float64"), ((700, 100), "float32")):
        _check_sums_down_columns(shape, dtype)


def _check_sums_down_columns(shape: tuple[int, ...], dtype: str) -> None:
    columns = shape[-1]
    x, grad = ad.Variable("x", shape, dtype), ad.Variable("grad", shape, dtype)
    weight, bias = ad.Variable("weight", (columns,), dtype), ad.Variable("bias", (columns,), dtype)
    y = ad.layer_norm_op(x, weight, bias)
    results = [y, *ad.gradients(ad.sum_op(y * grad), [x, weight, bias])]
    results.append(ad.sum_op(ad.exp_op(x), tuple(range(len(shape) - 1)), True))
    random = np.random.default_rng(0)
    feed = {v: random.standard_normal(v.attrs["shape"]).astype(dtype) for v in (x, grad, weight, bias)}
    found: list[list[np.ndarray]] = []
    for threads in (1, 2):
        with on_threads(threads):
            executor = ad.Executor(results)
            found.append(executor.run(feed, True))
    groups = executor.latest_plan().groups
    assert len(groups) == 1 and groups[0].kind == "rows", executor.groups()
    wanted = ad.Executor(results, "numpy").run(feed, True)
    for one, other, exact in zip(*found, wanted, strict=True):
        np.testing.assert_array_equal(one, other)  # whatever the threads
        scale = max(np.abs(exact).max(), 1e-3)
        np.testing.assert_allclose(one, exact, rtol=0, atol=scale * (1e-4 if dtype == "float32" else 1e-11))


def test_columns_of_what_a_row_needs_all_of_itself_for() -> None:
    """The sum alone comes behind the last of the row's own sums, and is of arrays of other ranks."""
    x, y = ad.Variable("x", (530, 70)), ad.Variable("y", (2, 265, 70))
    random = np.random.default_rng(0)
    feed = {v: random.standard_normal(v.attrs["shape"]).astype("float32") for v in (x, y)}
    for z in (x, y):
        lead = tuple(range(len(z.attrs["shape"]) - 1))
        least = ad.max_op(z, -1, keepdims=True)
        for results in ([least, ad.sum_op(z - least, lead)], [least, ad.sum_op(ad.exp_op(z - least), lead, True)]):
            executor = ad.Executor([*results, ad.max_op(z, lead)])
            found = executor.run(feed, True)
            assert [group.kind for group in executor.latest_plan().groups].count("rows") == 1
            assert "reducesum" in next(g.name for g in executor.latest_plan().groups if g.kind == "rows")
            for one, other in zip(found, ad.Executor([*results, ad.max_op(z, lead)], "numpy").run(feed), strict=True):
                np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-4)


@pytest.mark.slow
@denormals_kept()
def test_elementary_functions_are_accurate_over_the_whole_range():
    random, count = np.random.default_rng(6), 1 << 16
    near = {  # where results are neither 0 nor infinite
        "exp": {"float32": random.uniform(-105, 90, count), "float64": random.uniform(-750, 712, count)},
        "log": {"float32": random.uniform(0.4, 2.5, count), "float64": random.uniform(0.4, 2.5, count)},
        "tanh": {"float32": random.uniform(-20, 20, count), "float64": random.uniform(-20, 20, count)},
        "sigmoid": {"float32": random.uniform(-87, 90, count), "float64": random.uniform(-708, 712, count)},
        "erf": {"float32": random.uniform(-4.5, 4.5, count), "float64": random.uniform(-6.5, 6.5, count)},
    }
    for name, (formula, reference, most) in {
        "exp": (compute.exp, np.exp, {"float32": 1.1, "float64": 1.6}),
        "log": (compute.log, np.log, {"float32": 1.0, "float64": 1.1}),
        "tanh": (compute.tanh, np.tanh, {"float32": 1.5, "float64": 3.5}),
        "sigmoid": (compute.sigmoid, lambda x: 1 / (1 + np.exp(-x)), {"float32": 2.5, "float64": 2.5}),
        "erf": (compute.erf, _erf, {"float32": 1.5, "float64": 3.5}),
    }.items():
        for dtype in TOLERANCE:
            for x in (near[name][dtype].astype(dtype), _spread(dtype, count)):
                (got,), _ = _run(formula, [x], dtype=dtype)
                with np.errstate(all="ignore"):
                    want = reference(x.astype(np.longdouble))
                if name == "sigmoid":  # what is no normal number may be 0
                    normal = ~(want < np.finfo(dtype).tiny)
                    assert not np.any(got[~normal] > np.finfo(dtype).tiny)
                    got, want = got[normal], want[normal]
                assert _ulps(got, want) <= most[dtype], (name, dtype)


def test_products_with_a_constant_have_no_rows() -> None:
    """A product of one term with a constant in its kernel: it sums along rows, but no stage runs over them."""
    x = np.random.default_rng(0).standard_normal((2, 3, 1)).astype(np.float32)
    for shape, turned in (((4, 1), True), ((1, 4), False)):
        node = ad.Variable("x", x.shape)
        product = ad.matmul_op(node, ad.full_op(shape, 0.5), False, turned)
        (found,) = ad.Executor([product], passes=("fuse",)).run({node: x}, True)
        np.testing.assert_array_equal(found, np.broadcast_to(x * np.float32(0.5), (2, 3, 4)))
