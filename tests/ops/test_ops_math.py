"""Elementary functions, comparisons, selections and reductions: against PyTorch, and NumPy where values are special."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import dlsys as dl
import numpy as np
import pytest
from dlsys import autodiff as ad
from dlsys.errors import DTypeError, GraphError, ShapeError
from dlsys.graph import INTEGERS, Node
from dlsys.tensors import dtype_of, shape_of
from helpers import denormals_kept, error_of, evaluate
from optional import torch

LIMITS = {"float32": 1e-4, "float64": 1e-9}
Function = Callable[..., Any]

UNARY: dict[str, tuple[Function, Function]] = {
    "abs": (ad.abs_op, torch.abs),
    "sign": (ad.sign_op, torch.sign),
    "clip": (lambda x: ad.clip_op(x, -1.0, 0.5), lambda x: torch.clamp(x, -1.0, 0.5)),
    "clip_low": (lambda x: ad.clip_op(x, low=-0.5), lambda x: torch.clamp(x, min=-0.5)),
    "where": (lambda x: ad.where_op(x > 0.0, x.exp(), x * 2.0), lambda x: torch.where(x > 0, x.exp(), x * 2)),
}
BINARY = {"maximum": (ad.maximum_op, torch.maximum), "minimum": (ad.minimum_op, torch.minimum)}
REDUCTIONS: dict[str, tuple[Function, Function]] = {
    "max": (lambda x: ad.max_op(x, 1), lambda x: torch.amax(x, 1)),
    "min": (lambda x: ad.min_op(x, 1, True), lambda x: torch.amin(x, 1, True)),
    "max_all": (ad.max_op, torch.amax),
}


def check(functions: dict[str, tuple[Function, Function]], arrays: Sequence[np.ndarray], dtype: str) -> None:
    """All of them and their gradients, in one executor against PyTorch; gradients of gradients: test_ops.py."""
    arrays = [np.asarray(array, dtype) for array in arrays]
    variables = [ad.Variable(f"x{i}") for i in range(len(arrays))]
    wanted: list[tuple[str, Node, torch.Tensor]] = []
    for name, (ours, theirs) in functions.items():
        tensors = [torch.tensor(array, requires_grad=True) for array in arrays]
        result, expected = ours(*variables), theirs(*tensors)
        wanted.append((name, result, expected))
        grads = ad.gradients(result * result, variables)
        firsts = torch.autograd.grad((expected * expected).sum(), tensors)
        wanted += [(f"{name}, gradient", *pair) for pair in zip(grads, firsts, strict=True)]
    executor = ad.Executor([node for _, node, _ in wanted])
    found = executor.run(dict(zip(variables, arrays, strict=True)), convert_to_numpy_ret_vals=True)
    for (name, _, expected), value in zip(wanted, found, strict=True):
        want = expected.detach().numpy()
        assert (value.shape, str(value.dtype)) == (want.shape, dtype), name
        limit, size = LIMITS[dtype], float(np.abs(want[np.isfinite(want)]).max(initial=1.0))
        np.testing.assert_allclose(value, want, rtol=limit, atol=limit * size * 1e-2, err_msg=name)


@pytest.mark.slow
def test_functions_of_booleans_that_the_same_kernel_computes() -> None:
    """Every function of one float, of a comparison that was cast: TVM once failed on whether that is NaN."""
    x = ad.Variable("x", (19,), "float32")
    array = np.linspace(-1, 1, 19).astype("float32")
    functions = [getattr(ad, name) for name in sorted(vars(ad)) if name.endswith("_op")]
    nodes = []
    for i, function in enumerate(functions):
        try:
            node = function(ad.cast_op(x > 0.001 * i, "float32"))  # of each another, so that none is shared
            if isinstance(node, ad.Node) and (shape_of(node), dtype_of(node)):
                nodes.append(node)
        except (TypeError, GraphError, ShapeError):  # takes more, or others
            continue
    assert len(nodes) > 25
    wanted = ad.Executor(nodes, ctx="numpy").run({x: array})
    for node, found, want in zip(nodes, ad.Executor(nodes).run({x: array}, True), wanted, strict=True):
        np.testing.assert_allclose(found, want, rtol=1e-6, err_msg=node.op.name)


def test_ties_share_the_gradient() -> None:
    a, b = np.array([1.0, 2.0, 2.0, np.nan]), np.array([1.0, 3.0, 1.0, 0.0])
    check(BINARY, [a, b], "float64")
    x = np.array([[1.0, 3.0, 3.0], [2.0, 2.0, 2.0], [0.0, -1.0, -1.0], [np.nan, 1.0, 2.0]])
    check(REDUCTIONS, [x], "float64")


def test_gradients_at_edges_are_pytorchs() -> None:
    x = np.array([-1.0, 0.5, 0.0, -0.5, 2.0])
    check(UNARY, [x], "float64")
    powers = {"power": (ad.power_op, torch.pow)}
    check(powers, [np.array([0.0, 0.0, 2.0, -2.0, 1.0]), np.array([0.0, 2.0, 0.0, 2.0, -1.0])], "float64")
    constant = {"std": (lambda v: ad.std_op(v, 0), lambda v: v.std(0))}
    check(constant, [np.array([[1.0, 1.0], [1.0, 3.0]])], "float64")


def test_nothing_leaks_from_the_side_not_taken() -> None:
    x, y, c = ad.Variable("x"), ad.Variable("y"), ad.Variable("c", dtype="bool")
    chosen = ad.where_op(c, ad.log_op(x), y)
    array, held = np.array([2.0, -1.0, 0.0]), np.array([True, False, False])
    for ctx in ("cpu", "numpy"):
        with np.errstate(all="ignore"):
            value, upper, lower = ad.Executor([chosen, *ad.gradients(chosen, chosen.inputs[1:])], ctx).run(
                {x: array, y: array, c: held}, convert_to_numpy_ret_vals=True
            )
        np.testing.assert_allclose(value, [math.log(2.0), -1.0, 0.0], rtol=1e-6)
        np.testing.assert_array_equal(upper, [1, 0, 0])
        np.testing.assert_array_equal(lower, [0, 1, 1])
    g = ad.Variable("g")
    leaked = np.array([np.nan, np.inf, 1.0])
    grads = ad.gradients(ad.where_op(c, x, 0.0) * g, [x])
    found = ad.Executor(grads).run({x: array, c: held, g: leaked[[2, 0, 1]]}, convert_to_numpy_ret_vals=True)
    np.testing.assert_array_equal(found[0], [1, 0, 0])


def ulps(found: np.ndarray, wanted: np.ndarray) -> float:
    """The largest error of float32 numbers in units of the last place, of denormal ones in the smallest unit."""
    unit = np.spacing(np.maximum(np.abs(wanted), 2.0**-126).astype("float32")).astype("float64")
    return float((np.abs(found - wanted) / unit).max())


@pytest.mark.slow
@denormals_kept()
def test_sines_and_powers_are_rounded_right() -> None:
    """Arguments of all sizes, near multiples of pi/2, and the float32 that is nearest to one of them."""
    rng = np.random.default_rng(0)
    drawn = rng.integers(0, 255 << 23, 200_000, dtype=np.uint32).view("float32") * rng.choice([-1, 1], 200_000)
    near, usual = np.arange(1, 50_000) * (np.pi / 2), rng.uniform(-1.1e4, 1.1e4, 400_000)
    values = np.concatenate([drawn, near, 2.0 ** np.arange(128), usual, usual / 1e4, [0.0, 1e-45, 16367173 * 2.0**72]])
    values = values.astype("float32")
    x, y = ad.Variable("x"), ad.Variable("y")
    executor = ad.Executor([ad.sin_op(x), ad.cos_op(x)])
    large = np.abs(values) >= 1e4
    wanted = [function(values.astype("float64")) for function in (np.sin, np.cos)]  # the C library's are right
    mixed = executor.run({x: values}, True)
    for found, want in zip(mixed, wanted, strict=True):
        assert ulps(found[large], want[large]) < 0.51 and ulps(found[~large], want[~large]) < 1.6
    order = np.argsort(large, kind="stable")  # each vector but one has arguments of one kind
    for found, apart in zip(mixed, executor.run({x: values[order]}, True), strict=True):
        np.testing.assert_array_equal(found[order], apart)
    # A condition of all lanes: vectors of small arguments alone go the short way.
    assert re.search(r"bitcast <\d+ x i1> %\S+ to i\d+|vector\.reduce\.and", executor.source("ll"))

    base = np.exp(rng.uniform(-60, 60, 200_000)).astype("float32")
    exponent = (3 * rng.standard_normal(200_000)).astype("float32")
    (found,) = ad.Executor([ad.power_op(x, y)]).run({x: base, y: exponent}, True)
    with np.errstate(all="ignore"):
        power = base.astype("float64") ** exponent
    finite = power < np.finfo("float32").max
    assert ulps(found[finite], power[finite]) < 0.51 and np.isinf(found[power > 3.41e38]).all()


SPECIAL = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 2.5, -2.5, 1e30, -1e30, 1e-30], "float32")


def test_special_values_are_numpys() -> None:
    x, y = ad.Variable("x"), ad.Variable("y")
    a, b = (grid.ravel() for grid in np.meshgrid(SPECIAL, SPECIAL))
    pairs: list[tuple[Node, Function]] = [
        (ad.equal_op(x, y), np.equal),
        (ad.not_equal_op(x, y), np.not_equal),
        (x < y, np.less),
        (x <= y, np.less_equal),
        (x > y, np.greater),
        (x >= y, np.greater_equal),
        (~(x < y), lambda a, b: ~(a < b)),  # which is not x >= y beside NaN
        (~(x >= y), lambda a, b: ~(a >= b)),
        (ad.logical_not_op(ad.equal_op(x, y)), np.not_equal),
        (ad.logical_and_op(x, y), np.logical_and),
        (ad.logical_or_op(x, 0.0), lambda a, b: a != 0),
        (ad.equal_op(x, x), lambda a, b: a == a),
        (ad.not_equal_op(x, x), lambda a, b: a != a),
        (x >= x, lambda a, b: a >= a),
        (x < x, lambda a, b: a < a),
        (x <= 1, lambda a, b: a <= 1),
        (1 < x, lambda a, b: a > 1),  # noqa: SIM300
        (ad.maximum_op(x, y), np.maximum),
        (ad.minimum_op(x, y), np.minimum),
        (ad.power_op(x, y), np.power),
        (ad.abs_op(x), lambda a, b: np.abs(a)),
        (ad.sign_op(x), lambda a, b: np.sign(a)),
        (ad.floor_op(x), lambda a, b: np.floor(a)),
        (ad.rsqrt_op(x), lambda a, b: 1 / np.sqrt(a)),
        (ad.erf_op(x), lambda a, b: np.vectorize(math.erf)(a)),
        (ad.sin_op(x), lambda a, b: np.sin(a)),
        (ad.cos_op(x), lambda a, b: np.cos(a)),
        (ad.clip_op(x, -1, 2), lambda a, b: np.clip(a, -1, 2)),
        (ad.clip_op(x, 2, -1), lambda a, b: np.clip(a, 2, -1)),
        (ad.where_op(ad.logical_or_op(x > y, ad.logical_not_op(ad.equal_op(x, x))), x, y),
         lambda a, b: np.where((a > b) | (a != a), a, b)),
        (ad.cast_op(x, "bool"), lambda a, b: a.astype("bool")),
        (ad.max_op(x), lambda a, b: a.max()),
        (ad.min_op(x), lambda a, b: a.min()),
    ]  # fmt: skip
    for ctx in ("cpu", "numpy"):
        with np.errstate(all="ignore"):
            executor = ad.Executor([node for node, _ in pairs], ctx)
            found = executor.run({x: a, y: b}, convert_to_numpy_ret_vals=True)
            for (node, reference), value in zip(pairs, found, strict=True):
                want = reference(a, b)
                np.testing.assert_allclose(value, want, rtol=1e-6, err_msg=f"{node.op.name} {ctx}")


def rows_with(*specials: float) -> np.ndarray:
    """A row for every special value and place of it, in short and long rows."""
    rows = []
    for special in specials:
        for place in (0, 3, 4):
            row = np.linspace(-1, 1, 5)
            row[place] = special
            rows.append(row)
    return np.array(rows)


@pytest.mark.slow
def test_extrema_keep_nan_and_find_the_first() -> None:
    short = rows_with(np.nan, np.inf, -np.inf, 1.0, -1.0)
    both = [short, np.tile(short, (1, 20)), np.full((3, 70), -np.inf), np.array([[-0.0, 0.0]])]
    for dtype, parts in (("float32", both), ("float64", both[:1])):
        for array in (part.astype(dtype) for part in parts):
            x = ad.Variable("x")
            nodes: list[Node] = []
            wants: list[Any] = []
            for axis in (0, 1, None):
                nodes += [
                    ad.max_op(x, axis),
                    ad.min_op(x, axis),
                    ad.argmax_op(x, axis),
                    ad.argmin_op(x, axis, True),
                ]
                wants += [
                    array.max(axis),
                    array.min(axis),
                    array.argmax(axis),
                    array.argmin(axis, keepdims=True),
                ]
            found = ad.Executor(nodes).run({x: array}, convert_to_numpy_ret_vals=True)
            for node, value, want in zip(nodes, found, wants, strict=True):
                assert value.dtype == want.dtype
                np.testing.assert_array_equal(value, want, err_msg=f"{node.op.name} {node.attrs}")


def test_logsumexp_of_infinities_and_of_large_numbers() -> None:
    inf = np.inf
    array = np.array([[-inf, -inf, -inf], [inf, 0, 1], [-inf, 0, 1], [np.nan, 0, inf], [1e4, 1e4, -1e4]])
    x = ad.Variable("x")
    for axis in (0, 1, None):
        want = torch.logsumexp(torch.tensor(array), (0, 1) if axis is None else axis).numpy()
        for ctx in ("cpu", "numpy"):
            (value,) = ad.Executor([ad.logsumexp_op(x, axis)], ctx).run(
                {x: array}, convert_to_numpy_ret_vals=True
            )
            np.testing.assert_allclose(value, want, rtol=1e-12)
    node = ad.logsumexp_op(x, 0)
    assert evaluate([node], {x: np.zeros((0, 2))})[0].tolist() == [-inf, -inf]
    (value,) = ad.Executor([node]).run({x: np.zeros((0, 2))}, convert_to_numpy_ret_vals=True)
    assert value.tolist() == [-inf, -inf]


def test_reductions_of_nothing() -> None:
    x = ad.Variable("x")
    for function, name in ((ad.max_op, "reducemax"), (ad.argmin_op, "argmax")):
        for axis, shape in ((0, (0, 3)), (None, (0,)), (1, (2, 0))):
            text = error_of(ShapeError, function, ad.Variable("x", shape, "float32"), axis)
            assert text.startswith(f"{name}: {shape} has nothing along axes")
        assert function(ad.Variable("x", (0, 3), "float32"), 1).shape == (0,)
    nodes = [ad.mean_op(x, 0), ad.var_op(x, 0), ad.std_op(x, 0), ad.sum_op(x, 0)]
    found = ad.Executor(nodes).run({x: np.zeros((0, 3), "float32")}, convert_to_numpy_ret_vals=True)
    assert all(np.isnan(value).all() for value in found[:3]) and found[3].tolist() == [0, 0, 0]
    (value,) = ad.Executor([ad.var_op(x, 0)]).run(
        {x: np.ones((1, 2), "float32")}, convert_to_numpy_ret_vals=True
    )
    assert np.isnan(value).all()  # nothing is left to divide by


def test_variance_of_numbers_far_from_zero() -> None:
    array = (np.random.default_rng(1).standard_normal((5, 300)) + 1e4).astype("float32")
    x = ad.Variable("x")
    (value,) = ad.Executor([ad.var_op(x, 1)]).run({x: array}, convert_to_numpy_ret_vals=True)
    np.testing.assert_allclose(value, array.astype("float64").var(1, ddof=1), rtol=1e-4)


# Dtypes


@pytest.mark.slow
def test_constants_beside_integers_are_exact() -> None:
    """Also where no float64 holds them, and where the result wraps around; LLVM has made `or` of `+`."""
    for dtype in INTEGERS:
        limits = np.iinfo(dtype)
        low, high = int(limits.min), int(limits.max)
        x, numbers = ad.Variable("x", dtype=dtype), np.array([low, 0, 1, 5, high // 2, high], dtype)
        nodes: list[Node] = []
        wants: list[np.ndarray] = []
        for constant in {low, high // 2, high // 2 + 1, min(2**53 + 1, high - 1), high}:
            held = np.asarray(constant, dtype)
            nodes += [x + constant, x - held, held - x, x * held, constant * x, x == constant, x <= constant]
            nodes += [ad.maximum_op(x, constant), ad.add_byconst_op(x, constant), ad.mul_byconst_op(x, constant)]
            nodes += [ad.clip_op(x, constant), ad.where_op(x > 1, x, constant), ad.full_op((6,), constant, dtype) + x]
            nodes.append(ad.pad_op(x, ((1, 0),), constant)[:1] + ad.full_op((1,), 0, dtype))
            with np.errstate(over="ignore"):
                wants += [numbers + held, numbers - held, held - numbers, numbers * held, numbers * held]
                wants += [numbers == held, numbers <= held, np.maximum(numbers, held), numbers + held, numbers * held]
                wants += [np.maximum(numbers, held), np.where(numbers > 1, numbers, held), numbers + held, held[None]]
        for ctx in ("cpu", "numpy"):
            found = ad.Executor(nodes, ctx).run({x: numbers}, convert_to_numpy_ret_vals=True)
            for node, value, want in zip(nodes, found, wants, strict=True):
                assert value.dtype == want.dtype, (node, dtype)
                np.testing.assert_array_equal(value, want, err_msg=f"{node.op.name} {node.attrs} {dtype} {ctx}")
        for beyond in (high + 1, low - 1, np.inf, np.nan):
            assert "is no" in error_of(DTypeError, ad.full_op, (2,), beyond, dtype)
            typed = ad.Variable("typed", (3,), dtype)
            assert "is no" in error_of(DTypeError, ad.pad_op, typed, ((1, 0),), beyond)
    beside = dl.tensor(np.array([5, 6], "int32"))  # NumPy's numbers are negated as Python's are
    for number in (np.uint8(5), np.int8(-128), np.int64(-7), np.uint64(9), np.bool_(True), np.array(3, "uint8")):
        assert (beside - number).tolist() == [5 - int(number), 6 - int(number)]


def test_bits_of_integers() -> None:
    t, mask = dl.tensor([5, 6, -7]), dl.tensor([True, False, True])
    assert (t & mask).tolist() == [1, 0, 1] and (mask ^ 3).tolist() == [2, 3, 2] and (~t).tolist() == [-6, -7, 6]
    assert (mask ^ mask).dtype == "bool" and (mask & 1).dtype == "int64" and (t.int() | mask).dtype == "int32"
    t &= 3
    assert t.tolist() == [1, 2, 1]
    halves = dl.tensor([0.5])
    for wrong in (lambda: halves & halves, lambda: ~halves, lambda: t ^ halves, lambda: t | 1.5):
        assert "float32, not one of bool, int8" in error_of(DTypeError, lambda make=wrong: make().numpy())


def test_products_of_integers_that_share_a_matrix() -> None:
    random = np.random.default_rng(3)
    for dtype in ("int32", "int64"):
        a, b, c = (random.integers(-9, 9, (64, 64)).astype(dtype) for _ in range(3))
        x, y, z = (ad.Variable(name) for name in "xyz")
        found = ad.Executor([x @ z, y @ z]).run({x: a, y: b, z: c}, convert_to_numpy_ret_vals=True)
        np.testing.assert_array_equal(found, [a @ c, b @ c])


def test_the_softmax_of_an_array_of_integers_is_that_of_floats() -> None:
    x = np.array([[0, 1, 2], [5, 5, -7]])
    for dtype in ("int64", "uint8", "bool"):
        np.testing.assert_array_equal(ad.softmax_func(x.astype(dtype)), ad.softmax_func(x.astype(dtype).astype("f8")))
