"""Kernels for many numbers of rows: they compute what kernels for one number do, and are compiled once."""

from __future__ import annotations

from collections.abc import Callable

import dlsys as dl
import dlsys.nn.functional as F
import numpy as np
import pytest
from dlsys import autodiff as ad
from dlsys import kernels, nn
from dlsys.kernels import rows
from dlsys.ops.inputs import full_op
from dlsys.ops.joining import concatenate_op

SIZES = (40, 52, 18, 31, 36, 47, 48, 59, 60, 61, 65, 66)  # the first two are compiled by themselves


def weights(*shape: int) -> ad.Node:
    rng = np.random.default_rng(len(shape) * 100 + shape[0])
    return ad.Parameter(rng.normal(size=shape).astype("float32"), "W")


FORMULAS: dict[str, Callable[[ad.Node], list[ad.Node]]] = {
    "pointwise": lambda x: [ad.exp_op(x) * 2 + 1],
    "bias": lambda x: [ad.relu_op(x + weights(24))],
    "product": lambda x: [x @ weights(24, 10)],
    "product and bias": lambda x: [ad.relu_op(x @ weights(24, 40) + weights(40))],
    "transposed weights": lambda x: [ad.matmul_op(x, weights(7, 24), trans_B=True)],
    "product over rows": lambda x: [ad.matmul_op(x, ad.exp_op(x), trans_A=True)],
    "softmax": lambda x: [ad.softmax_op(x)],
    "layer norm": lambda x: [F.layer_norm(x, (24,))],
    "sum of rows": lambda x: [ad.sum_op(x, 0)],
    "sum along rows": lambda x: [ad.sum_op(x, 1)],
    "mean": lambda x: [ad.mean_op(ad.exp_op(x))],
    "maximum": lambda x: [ad.max_op(x, 0)],
    "softmax's loss": lambda x: [ad.softmaxcrossentropy_op(x, ad.softmax_op(x))],
    "gradients": lambda x: ad.gradients(ad.mean_op(ad.relu_op(x @ weights(24, 10))), [x]),
}


LENGTHS = (9, 5, 12, 3, 7, 40, 16, 33, 64, 18, 10)  # the first four are compiled by themselves
ATTENTION: dict[str, Callable[[ad.Node], list[ad.Node]]] = {
    "scores": lambda x: [ad.softmax_op(ad.matmul_op(x, x * 0.5, trans_B=True) + 1.5)],
    "values": lambda x: [ad.matmul_op(ad.softmax_op(ad.matmul_op(x, x, trans_B=True)), x)],
    "turned": lambda x: [ad.transpose_op(x, (0, 2, 1)) * 2 + 1, x[:, ::-1] * 2],
    "joined": lambda x: [concatenate_op([x, x[:, :1]], 1), x[:, -1], x[:, 1:, 3:9]],
}


@pytest.mark.parametrize("name", [*FORMULAS, *ATTENTION])
def test_all_numbers_of_rows_and_lengths_give_the_values_of_numpy(name: str) -> None:
    """A length is another axis than the first, several axes, or one less or more than an axis."""
    X = ad.Variable("X")
    results = (FORMULAS | ATTENTION)[name](X)
    run, reference = ad.Executor(results), ad.Executor(results, ctx="numpy")
    rng = np.random.default_rng(0)
    for shape in [(size, 24) for size in SIZES] if name in FORMULAS else [(2, size, 12) for size in LENGTHS]:
        feed = {X: rng.normal(size=shape).astype("float32")}
        for got, wanted in zip(run.run(feed, True), reference.run(feed), strict=True):
            np.testing.assert_allclose(got, wanted, rtol=2e-5, atol=2e-5, err_msg=str(shape))


def test_one_kernel_serves_two_numbers_of_one_plan() -> None:
    for sizes in ((40,), (52,), (33,), (36, 47)):
        inputs = [ad.Variable(f"X{size}") for size in sizes]
        feed = {x: np.full((size, 24), 0.5, "float32") for x, size in zip(inputs, sizes, strict=True)}
        for found in ad.Executor([ad.exp_op(x) * 2.5 + 1 for x in inputs]).run(feed, True):
            np.testing.assert_allclose(found, np.exp(0.5) * 2.5 + 1, rtol=2e-6)


@pytest.mark.parametrize("dtype", ["int64", "int32", "float32"])
def test_constants_of_the_rows_shape_keep_their_values(dtype: str) -> None:
    for size in SIZES:
        X = ad.Variable("X", (size, 4), dtype)
        x = np.arange(4 * size, dtype=dtype).reshape(size, 4)
        for value in (3, 5, 7):
            limit, other = full_op((size, 4), value, dtype), full_op((size, 4), -value, dtype)
            got = ad.Executor([limit, ad.where_op(limit < X, X, other)]).run({X: x}, True)
            np.testing.assert_array_equal(got[0], np.full((size, 4), value))
            np.testing.assert_array_equal(got[1], np.where(x > value, x, -value))


@pytest.mark.parametrize("name", ["pointwise", "product and bias", "product over rows", "softmax", "sum of rows"])
def test_one_kernel_serves_many_numbers(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DLSYS_COMPILE_CACHE", "0")
    X = ad.Variable("X")
    run = ad.Executor(FORMULAS[name](X * 1.5))
    for size in (40, 52, 33):
        run.compile_funcs({X: (size, 24)})
    before = kernels.compiled()
    for size in range(32, 66, 3):
        run.compile_funcs({X: (size, 24)})
    assert kernels.compiled() == before


@pytest.mark.parametrize("name", ["product and bias", "softmax", "sum of rows", "product over rows"])
def test_a_kernel_for_many_numbers_has_the_bits_of_one_for_one(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    X = ad.Variable("X")
    results = FORMULAS[name](X)
    many = ad.Executor(results)
    rng = np.random.default_rng(1)
    feeds = [{X: rng.normal(size=(size, 24)).astype("float32")} for size in (40, 52, 37, 45, 64)]
    found = [many.run(feed, True) for feed in feeds]
    monkeypatch.setattr(rows, "of_many", lambda *given: [])
    monkeypatch.setattr(kernels.cache, "_kernels", {})
    one = ad.Executor(results)
    for feed, got in zip(feeds, found, strict=True):
        for a, b in zip(got, one.run(feed, True), strict=True):
            np.testing.assert_array_equal(a, b)


def test_a_kernel_that_reads_other_rows_is_right() -> None:
    X = ad.Variable("X")
    run = ad.Executor([X[::-1] + X, ad.cumsum_op(X, 0) if hasattr(ad, "cumsum_op") else X * 2])
    for size in SIZES:
        x = np.random.default_rng(size).normal(size=(size, 24)).astype("float32")
        np.testing.assert_allclose(run.run({X: x}, True)[0], x[::-1] + x, rtol=1e-6)


def test_constants_that_are_not_of_the_rows_stay() -> None:
    for size in SIZES:
        x = dl.tensor(np.ones((size, 24), "float32"))
        np.testing.assert_allclose((x * (3.0 / size) + 1 / (size + 1)).numpy()[0, 0], 3 / size + 1 / (size + 1), 1e-6)


def test_training_steps_of_all_sizes_are_those_of_numpy() -> None:
    model = nn.Sequential(nn.Linear(24, 20), nn.ReLU(), nn.Linear(20, 5))
    rng = np.random.default_rng(2)
    for size in SIZES:
        x, y = rng.normal(size=(size, 24)).astype("float32"), rng.integers(0, 5, size)
        model.zero_grad()
        F.cross_entropy(model(dl.tensor(x)), dl.tensor(y)).backward()
        (w1, b1, w2, b2) = (p.numpy().astype("float64") for p in model.parameters())
        h = np.maximum(x @ w1.T + b1, 0)
        z = h @ w2.T + b2
        e = np.exp(z - z.max(1, keepdims=True))
        d = (e / e.sum(1, keepdims=True) - np.eye(5)[y]) / size
        wanted = [((d @ w2) * (h > 0)).T @ x, ((d @ w2) * (h > 0)).sum(0), d.T @ h, d.sum(0)]
        for p, value in zip(model.parameters(), wanted, strict=True):
            np.testing.assert_allclose(p.grad.numpy(), value, rtol=1e-4, atol=1e-6, err_msg=f"{size} rows")


def test_an_axis_varies_from_the_fifth_length_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DLSYS_COMPILE_CACHE", "0")
    for name in ("_seen", "_made"):  # of other tests' lengths
        monkeypatch.setattr(rows, name, {})
    X = ad.Variable("X")
    run = ad.Executor([ad.softmax_op(ad.matmul_op(X, X * 0.625, trans_B=True))])
    made = list[int]()
    for size in (20, 29, 24, 18, 27, 19, 22, 30, 25):
        before = kernels.compiled()
        compiled = run.compile_funcs({X: (2, size, 12)}).values()
        kernel = next(kernel for kernel in compiled if kernel.name == "matmul")  # other tests have the softmax, too
        made.append(kernels.compiled() - before)
        assert (kernel.after > 0) == (len(made) > 4)
    assert all(made[:5]) and not any(made[5:])


def test_a_kernel_for_many_that_cannot_be_compiled_costs_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DLSYS_COMPILE_CACHE", "0")
    X = ad.Variable("X")
    run = ad.Executor([ad.exp_op(X * 0.375) + 7])
    values = np.random.default_rng(0).normal(size=(90, 20)).astype("float32")
    for size in (40, 52):
        run.run({X: values[:size]})
    build = kernels.cache.with_compiler("kernels.build")
    compile_some = build.build

    def fails(specs: list[kernels.KernelSpec], *rest: object) -> object:
        if any(spec.after for spec in specs):
            raise RuntimeError("as TVM does")
        return compile_some(specs, *rest)

    monkeypatch.setattr(build, "build", fails)
    with pytest.warns(rows.RowsWarning, match="failed, those for one have their place: mul_exp_add"):
        (found,) = run.run({X: values[:81]}, True)
    np.testing.assert_allclose(found, np.exp(values[:81] * 0.375) + 7, rtol=1e-5)


def test_no_rows_are_no_number_of_rows() -> None:
    """A mean's constant is one divided by the number of rows."""
    X = ad.Variable("X")
    run = ad.Executor([ad.mean_op(X * 3, 1), ad.div_byconst_op(X, 64.0)])
    for size in (24, 36, 0, 48):
        found = run.run({X: np.ones((size, 5), "float32")}, True)
        assert [x.shape for x in found] == [(size,), (size, 5)]


def test_sizes_within_one_plan_do_not_vary(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parameters of several sizes, updated in one step, have a kernel for each."""
    asked = list[object]()
    monkeypatch.setattr(rows, "is_one", lambda spec: asked.append(spec) or False)
    X = [ad.Variable(f"X{i}") for i in range(5)]
    run = ad.Executor([ad.exp_op(x * 0.8125) for x in X])
    run.compile_funcs({x: (20 + 3 * i, 7) for i, x in enumerate(X)})
    assert not asked
