"""Matrix products: sizes that do not fit the tiles, matrices packed once for several, what the inner loop holds."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from dlsys import autodiff as ad
from dlsys import compute, schedule, tvm_op
from dlsys.schedule import machine_code
from dlsys.schedule.cpu import cost, tiler
from dlsys.schedule.cpu.nest import Nest
from dlsys.schedule.cpu.plan import packings, plans
from dlsys.schedule.cpu.shares import Loops
from dlsys.schedule.stages import read_stages, with_nests
from dlsys.schedule.target import machine_of
from helpers import on_threads
from machines import simulated
from tvm import te

SIZES = [2, 3, 5, 7, 8, 10, 12, 15, 16, 17, 24, 31, 33, 48, 50, 63, 65, 100, 112, 130]
LONG = [*SIZES, 512, 1000]  # 512: rows that share lines of L1


@pytest.mark.slow
def test_products_of_any_size_equal_numpy():
    random = np.random.default_rng(0)
    for _ in range(24):
        m, n, k = random.choice(SIZES), random.choice(SIZES), random.choice(LONG)
        trans_a, trans_b, dtype = (
            random.random() < 0.5,
            random.random() < 0.5,
            random.choice(["float32", "float64"]),
        )
        a = random.standard_normal((k, m) if trans_a else (m, k)).astype(dtype)
        b = random.standard_normal((n, k) if trans_b else (k, n)).astype(dtype)
        out = np.full((m, n), np.nan, dtype)
        kernel = tvm_op.make_matrix_mul(
            a.shape, trans_a, b.shape, trans_b, "llvm", "llvm", "product", str(dtype)
        )
        assert kernel.rule.name == "contraction", kernel
        kernel(a, b, out)
        want = (a.T if trans_a else a) @ (b.T if trans_b else b)
        np.testing.assert_allclose(
            out, want, rtol=0, atol=np.abs(want).max() * (1e-5 if dtype == "float32" else 1e-13)
        )


@pytest.mark.parametrize(
    ("m", "k", "n", "turned"),
    [(19, 50, 45, "B"), (33, 1087, 23, "B"), (25, 41, 31, "AB"), (40, 1039, 23, "B"), (18, 40, 22, "A"),
     (100, 31, 22, "A"), (466, 41, 22, "A"), (84, 17, 20, "A")],
)
def test_rows_that_are_no_whole_squares_are_turned_by_squares(m: int, k: int, n: int, turned: str) -> None:
    """The last square lies over the one before it, also of a part of k that is shorter than others; exact, as all
    numbers are small."""
    random = np.random.default_rng(0)
    a, b = (random.integers(-9, 9, shape).astype("float32") for shape in ((m, k), (k, n)))
    given = [np.ascontiguousarray(x.T) if name in turned else x for name, x in (("A", a), ("B", b))]
    shapes = [x.shape for x in given]
    kernel = tvm_op.make_matrix_mul(shapes[0], "A" in turned, shapes[1], "B" in turned, "llvm", "llvm", "product")
    kernel(*given, out := np.full((m, n), np.nan, "float32"))
    np.testing.assert_array_equal(out, a @ b)


@pytest.mark.slow
def test_products_of_an_array_with_itself_equal_numpy() -> None:
    value = np.random.default_rng(0).standard_normal((3, 40, 40)).astype("float32")
    x = ad.Variable("x")
    for array in (value, value[0]):
        turned = np.swapaxes(array, -1, -2)
        relu = np.maximum(array, 0)
        nodes = [ad.matmul_op(x, x), ad.matmul_op(x, x, trans_B=True), ad.matmul_op(x, x, trans_A=True)]
        wanted = [array @ array, array @ turned, turned @ array]
        kept = ad.relu_op(x)
        nodes += [ad.matmul_op(kept, kept, trans_B=True), ad.matmul_op(ad.abs_op(x), kept, trans_B=True)]
        wanted += [relu @ np.swapaxes(relu, -1, -2), np.abs(array) @ np.swapaxes(relu, -1, -2)]
        for node, want in zip(nodes, wanted, strict=True):
            (found,) = ad.Executor([node]).run({x: array}, convert_to_numpy_ret_vals=True)
            np.testing.assert_allclose(found, want, rtol=0, atol=1e-5 * np.abs(want).max())


@pytest.mark.slow
def test_what_a_product_is_combined_with_is_computed_too() -> None:
    """A function of another array, which stands before the product in the kernel and is read behind it."""
    rng = np.random.default_rng(0)
    for k in (20, 4096):  # in one sum, and in parts
        shapes = ((k, 30), (k, 40), (30, 40))
        values = [rng.standard_normal(shape).astype("float32") for shape in shapes]
        a, b, c = (te.placeholder(shape, "float32", f"x{i}") for i, shape in enumerate(shapes))
        gate = compute.relu(c)
        func = te.create_prim_func([a, b, c, compute.add(gate, compute.mul(compute.matmul(a, b, True), gate))])
        scheduled, rule = schedule.apply(func.with_attr("global_symbol", "gated"), schedule.host_target())
        assert rule.name == "contraction"
        out = tvm.runtime.tensor(np.full((30, 40), np.nan, "float32"))
        kernel = machine_code.compiled({"gated": scheduled}, schedule.host_target())["gated"]
        kernel(*map(tvm.runtime.tensor, values), out)
        own = np.maximum(values[2], 0)
        want = own + (values[0].T @ values[1]) * own
        np.testing.assert_allclose(out.numpy(), want, rtol=0, atol=1e-5 * np.abs(want).max())


def test_a_row_has_the_same_bits_in_products_of_few_and_of_many_rows() -> None:
    a, b = (np.random.default_rng(0).standard_normal(shape).astype("float32") for shape in ((60, 1000), (1000, 1024)))
    few, whole = (np.zeros((m, 1024), "float32") for m in (60, 480))
    with on_threads(1):
        for out in (few, whole):
            rows = np.resize(a, (len(out), 1000))
            kernel = tvm_op.make_matrix_mul(rows.shape, False, b.shape, False, "llvm", "llvm", f"rows{len(out)}")
            kernel(rows, b, out)
    np.testing.assert_array_equal(few, whole[:60])


def chain(k: int, steps: int, trans: bool, rows: int) -> tuple[ad.Node, ad.Node, ad.Parameter, np.ndarray]:
    """steps of h = tanh(h W), all with the same W."""
    rng = np.random.default_rng(0)
    w = ad.Parameter((rng.standard_normal((k, k)) / np.sqrt(k)).astype("float32"), "W")
    x = h = ad.Variable("x")
    for _ in range(steps):
        h = ad.tanh_op(ad.matmul_op(h, w, trans_B=trans))
    return x, h, w, rng.standard_normal((rows, k)).astype("float32")


def test_parameters_are_packed_anew_in_every_run() -> None:
    x, h, w, value = chain(64, 3, False, 8)
    executor = ad.Executor([h, ad.assign(w, w * 0.5)])
    for _ in range(3):
        before = w.value
        (found, _) = executor.run({x: value}, convert_to_numpy_ret_vals=True)
        expected = value
        for _ in range(3):
            expected = np.tanh(expected @ before)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal(w.value, before * np.float32(0.5))


@pytest.mark.slow
def test_every_plan_gives_the_same_bits() -> None:
    """Whatever runs along vectors and whatever is packed: the terms are added in the same order."""
    machine, random = machine_of(simulated("haswell")), np.random.default_rng(0)
    for (m, n, k), transposes in (((13, 21, 1100), (False, True)), ((9, 40, 48), (True, False))):
        shapes = [(k, m) if transposes[0] else (m, k), (n, k) if transposes[1] else (k, n)]
        a, b = (random.standard_normal(shape).astype("float32") for shape in shapes)
        x, y = (te.placeholder(shape, "float32", name) for shape, name in zip(shapes, "xy", strict=True))
        func = te.create_prim_func([x, y, compute.matmul(x, y, *transposes)])
        found = tiler.sum_of(func, read_stages(func) or [])
        assert found is not None
        nest = Nest(found[1], machine)
        ways = {}  # the largest tile of each way of reading and order
        for plan in (one for tile in plans(nest) for one in packings(nest, tile)):
            if plan.along < nest.results:  # else sums of neighbouring terms are added up at the end
                ways[plan.along, plan.groups, plan.packed] = plan
        assert len(ways) >= 4
        results = []
        for plan in ways.values():
            chosen = cost.blocked(nest, plan)
            loops = with_nests(func, Loops(nest, chosen, None, {}).nests()).with_attr("global_symbol", "product")
            kernel = machine_code.compiled({"product": loops}, schedule.host_target(1))["product"]
            out = tvm.runtime.tensor(np.full((m, n), np.nan, "float32"))
            kernel(tvm.runtime.tensor(a), tvm.runtime.tensor(b), out)
            results.append(out.numpy())
        want = (a.T if transposes[0] else a) @ (b.T if transposes[1] else b)
        np.testing.assert_allclose(results[0], want, rtol=0, atol=1e-4)
        assert all(np.array_equal(result, results[0]) for result in results[1:])
