"""Operators that a user writes, as the tour asks: each likely mistake is an exception in the user's words, not the end
of the process, and what was changed between two runs of a cell or a program is what runs.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dlsys as dl
import numpy as np
import pytest
from dlsys import autodiff as ad
from dlsys import compute, ops
from dlsys.autodiff import primitive
from dlsys.errors import DTypeError, GraphError, ShapeError
from dlsys.graph import OPS, Node
from helpers import error_of, python

X = np.linspace(-2, 2, 1000).astype("float32")


@contextmanager
def own_operators() -> Iterator[None]:
    """Operators defined within it are forgotten at its end: other tests walk through all that there are."""
    before = dict(OPS)
    try:
        yield
    finally:
        OPS.clear()
        OPS.update(before)


def run(node: Node, feed: dict[Node, Any], ctx: Any = None) -> np.ndarray:
    return np.asarray(ad.Executor([node], ctx=ctx).run(feed, True)[0])


def defined(name: str = "softsum", **parts: Any) -> Callable[..., Any]:
    """The function of a new operator with these parts, and what each must have."""
    return primitive(name, **{"te": compute.copy, "numpy": lambda x: np.array(x), "grad": None, **parts})


def wide(x: Any) -> Any:
    return compute.broadcast_to(compute.reshape(x, (*x.shape, 1)), (*x.shape, 5000))


def double(x: Any) -> Any:
    return compute.cast(x, "float64")


def test_a_formula_of_another_type_than_the_rules_say_is_refused() -> None:
    parts: list[tuple[type[Exception], dict[str, Any], str]] = [
        (ShapeError, {"te": wide}, "its shape rule says float32[1000], the formula gives float32[1000, 5000]"),
        (DTypeError, {"te": double}, "its dtype rule says float32[1000], the formula gives float64[1000]"),
        (ShapeError, {"shape": lambda *_: (999,)}, "its shape rule says float32[999]"),
        (ShapeError, {"shape": lambda *_: [1000]}, "must return a tuple of integers"),
        (ShapeError, {"shape": lambda *_: None}, "must return a tuple of integers"),
        (ShapeError, {"shape": lambda *_: (np.int64(1000),)}, "must return a tuple of integers"),
        (DTypeError, {"dtype": lambda *_: np.float32}, "must return the name of a dtype"),
        (DTypeError, {"dtype": "float16"}, "must return the name of a dtype"),
        (DTypeError, {"dtype": "int32"}, "its dtype rule says int32[1000]"),
        (ShapeError, {"shape": lambda *_: (5000,), "kind": "view"}, "a view has as many elements as its input"),
    ]
    for kind, own, words in parts:
        for of_op in ("single", "elementwise"):
            with own_operators():
                v, softsum = ad.Variable("v"), defined(**{"kind": of_op, **own})

                def compiled() -> np.ndarray:
                    return run(softsum(v), {v: X})  # noqa: B023

                def fused() -> np.ndarray:
                    return run(ad.relu_op(softsum(dl.tensor(X)) + 1.0), {})  # noqa: B023

                for _ in range(2):  # the second time too, when the kernel might be there
                    for function in (compiled, fused):
                        message = error_of(kind, function)
                        assert message.startswith("softsum: ") and words in message, message
                        assert "test_own_operators.py:" in message
    with own_operators():
        v = ad.Variable("v")
        short = defined(numpy=lambda x: x[:10])(v)
        assert "the reference gives float32[10]" in error_of(ShapeError, run, short, {v: X}, "numpy")


def test_a_formula_that_is_none_of_te_is_refused() -> None:
    formulas: list[tuple[Any, str]] = [
        (lambda x: np.exp(x), "TypeError"),
        (lambda x: x / (1 + np.abs(x)), "TypeError"),
        (lambda x: np.ones(1000, "float32"), "gives ndarray"),
        (lambda x: 1.0, "gives float"),
        (lambda x: None, "gives NoneType"),
        (lambda x: [x][1], "IndexError"),
    ]
    v = ad.Variable("v")
    for formula, words in formulas:
        with own_operators():
            op = primitive("softsum", te=formula, numpy=np.exp, grad=lambda g, y, x: g * y)
            message = error_of(GraphError, run, op(v), {v: X})
            assert words in message and "A formula is of TE" in message and "test_own_operators.py:" in message
    with own_operators():
        assert "it has no te" in error_of(GraphError, run, defined(te=None)(v), {v: X})


def test_the_parts_take_attributes() -> None:
    def formula(x: Any, n: float, dtype: str) -> Any:
        return compute.cast(compute.mul_by_const(x, n), dtype)

    with own_operators():
        v = ad.Variable("v")
        scaled = defined(te=formula, numpy=lambda x, n, dtype: (x * np.float32(n)).astype(dtype), dtype="dtype")
        for ctx in (None, "numpy"):
            found = run(scaled(v, n=3.0, dtype="float64"), {v: X}, ctx)
            assert found.dtype == "float64" and np.allclose(found, 3 * X, rtol=1e-6)
            assert "takes 2 nodes, not 1" in error_of(GraphError, scaled, v, n=3.0)
            message = error_of(GraphError, run, scaled(v, m=3.0, dtype="float32"), {v: X}, ctx)
            assert "and is called with 1 argument and m, dtype" in message and "test_own_operators.py:" in message


def _gradient_of(node: Node, x: Node, feed: dict[Node, Any]) -> Any:
    return run(ad.gradients(node, [x])[0], feed)


def test_a_gradient_of_another_type_than_its_input_is_refused() -> None:
    column = np.ones((30, 4), "float32")
    first = {"kind": "single", "shape": lambda shape: shape[1:], "te": lambda x: compute.reduce_sum(x, (0,))}
    wrong: list[tuple[type[Exception], dict[str, Any], str]] = [
        (ShapeError, {**first, "grad": lambda g, y, x: g}, "has shape (4,), the input (30, 4)"),
        (DTypeError, {"grad": lambda g, y, x: ops.cast_op(g, "float64")}, "is float64, the input float32"),
    ]
    for kind, parts, words in wrong:
        with own_operators():
            softsum, v = defined(**parts), ad.Variable("v")
            message = error_of(kind, _gradient_of, softsum(v), v, {v: column})
            assert message.startswith("softsum: the gradient that it gives for v") and words in message, message
            assert "test_own_operators.py:" in message
            assert words in error_of(kind, _gradient_of, ad.relu_op(softsum(v * 2.0)), v, {v: column})
            t = dl.tensor(column, requires_grad=True)
            softsum(t).sum().backward()
            assert words in error_of(kind, t.grad.numpy)
            numbers = ad.gradients(softsum(v), [v])
            assert words in error_of(kind, ad.Executor(numbers, ctx="numpy").run, {v: column})
    with own_operators():  # an input of integers has none
        t, ids = dl.tensor(X, requires_grad=True), dl.tensor(np.ones(1000, "int32"))
        parts = {"te": lambda x, ids: compute.copy(x), "numpy": lambda x, ids: x.copy(), "dtype": lambda x, ids: x}
        first_of_two = defined(**parts, grad=lambda g, y, x, ids: (g, g))
        first_of_two(t, ids).sum().backward()
        message = error_of(DTypeError, t.grad.numpy)
        assert "is float32, but one of int32 is always zero: return None" in message


def test_a_gradient_may_call_methods_of_tensors() -> None:
    with own_operators():
        exponential = defined(te=compute.exp, numpy=np.exp, grad=lambda g, y, x: (g * x.exp()).reshape(x.shape))
        for inner in (lambda t: t, lambda t: t * 2):  # a leaf, and what is computed
            t = dl.tensor(X, requires_grad=True)
            x = inner(t)
            exponential(x).sum().backward()
            scale = x.numpy() / np.where(t.numpy() == 0, 1, t.numpy())
            np.testing.assert_allclose(t.grad.numpy(), scale * np.exp(x.numpy()), rtol=1e-5)


@pytest.mark.slow
def test_a_gradient_that_is_right_costs_no_kernel() -> None:
    with own_operators():
        square = primitive("square", te=lambda x: compute.mul(x, x), numpy=np.square, grad=lambda g, y, x: g * (2 * x))
        v = ad.Variable("v")
        (grad,) = ad.gradients(square(v) * 3.0, [v])
        executor = ad.Executor([grad], passes=[])
        np.testing.assert_allclose(executor.run({v: X}, True)[0], 6 * X, rtol=1e-6)
        assert {line.split()[1] for line in executor.groups().splitlines()[1:]} == {"full", "mul"}
        (second,) = ad.gradients(grad, [v])
        np.testing.assert_allclose(run(second, {v: X}), np.full_like(X, 6), rtol=1e-6)
        np.testing.assert_allclose(run(second, {v: X}, "numpy"), np.full_like(X, 6), rtol=1e-6)
        last, _ = ad.scan_op(lambda h, _: (square(h) * 0.5, h), v, length=3)
        one, two = X**2 / 2, X**4 / 8  # after the first step, and after the second
        np.testing.assert_allclose(run(ad.gradients(last, [v])[0], {v: X}), two * one * X, rtol=1e-5)


def test_gradients_of_another_form_are_refused() -> None:
    a, b = ad.Variable("a", (1000,), "float32"), ad.Variable("b", (1000,), "float32")
    square = {"te": lambda x: compute.mul(x, x), "numpy": np.square}
    times = {"te": compute.mul, "numpy": np.multiply}
    gradients: list[tuple[dict[str, Any], Any, str]] = [
        (square, lambda g, x: g * x, "its grad takes (g, x), and is called with 3"),
        (square, lambda g, y, x: 2.0, "must return a node, or None"),
        (square, lambda g, y, x: (g, g), "must return a node, or None"),
        (times, lambda g, y, a, b: g, "must return a tuple of 2 nodes"),
        (times, lambda g, y, a, b: (g,), "must return a tuple of 2 nodes"),
        (times, lambda g, y, a, b: (g, 1.0), "must return a tuple of 2 nodes"),
        (times, lambda g, y, x: (g, g), "(g, y, x), and is called with 4"),
    ]
    for parts, grad, words in gradients:
        with own_operators():
            inputs = [a, b][: parts["numpy"].nin]
            message = error_of(GraphError, ad.gradients, defined(**parts, grad=grad)(*inputs), [a])
            assert words in message and "test_own_operators.py:" in message, message
    with own_operators():
        assert "'grad'" in error_of(TypeError, primitive, "mine", **square)  # as Python says it
        steps = defined("steps", te=compute.floor, numpy=np.floor)
        one, same = lambda x, y: compute.copy(x), lambda x, y: np.array(x)
        first = defined("first", te=one, numpy=same, grad=lambda g, y, a, b: (g, None))
        assert run(ad.gradients(steps(a), [a])[0], {a: X}).tolist() == [0.0] * 1000
        assert [run(g, {a: X, b: X}).tolist()[0] for g in ad.gradients(first(a, b), [a, b])] == [1.0, 0.0]
        takes_two = defined("mine", te=lambda x, y: compute.mul(x, y), numpy=np.square)
        message = error_of(GraphError, run, takes_two(a), {a: X})
        assert "its te takes (x, y), and is called with 1 argument " in message
        bug = defined("bug", **square, grad=lambda g, y, x: g + len(5))  # its own TypeError stays what it is
        assert "has no len()" in error_of(TypeError, ad.gradients, bug(a), [a])
        for wrong, words in ((lambda: steps(a, b), "takes 1 nodes, not 2"), (lambda: steps("a"), "must be a node")):
            assert words in error_of(GraphError, wrong)
        assert "has no comutative" in error_of(GraphError, defined, "mine", comutative=True)


@pytest.mark.slow
def test_a_cell_that_is_run_twice_defines_its_operator_anew() -> None:
    def cell(factor: float) -> Any:
        parts = {"te": lambda x: compute.mul_by_const(x, factor), "numpy": lambda x: factor * x}
        return defined("times", **parts, grad=lambda g, y, x: g * factor)

    v = ad.Variable("v")
    with own_operators():
        first, second = cell(2.0), cell(3.0)
        both = ad.Executor([first(v), second(v)])
        for found, factor in zip(both.run({v: X}, True), (2, 3), strict=True):  # nodes made before stay what they are
            np.testing.assert_array_equal(found, np.float32(factor) * X)
        assert copy.deepcopy(first(v).op) is first(v).op
        for op, factor in ((first, 2), (second, 3), (cell(2.0), 2), (cell(4.0), 4)):
            t = dl.tensor(X, requires_grad=True)
            y = op(t)
            y.sum().backward()
            np.testing.assert_array_equal(y.numpy(), np.float32(factor) * X)
            np.testing.assert_array_equal(t.grad.numpy(), np.full_like(X, factor))
        other: dict[str, Any] = {"__name__": "other", "primitive": primitive}
        exec("def define(name): return primitive(name, numpy=abs, grad=None)", other)
        taken = error_of(GraphError, other["define"], "times")
        assert "times exists already, in test_own_operators: give the one of other another name" in taken, taken
        assert "exp exists already, in dlsys." in error_of(GraphError, other["define"], "exp")


PROGRAM = """
import sys
import numpy as np
from dlsys import autodiff as ad
from dlsys import compute

factor = float(sys.argv[1])
parts = {"te": lambda x: compute.mul_by_const(x, factor), "numpy": lambda x: factor * x}
times = ad.primitive("times", **parts, grad=None)
v = ad.Variable("v")
print(ad.Executor([times(v) + 1.0]).run({v: np.ones(2, "float32")}, True)[0].tolist())
"""


@pytest.mark.slow
def test_a_formula_that_was_changed_is_not_taken_from_disk(folder: Path) -> None:
    for factor, kept in ((2.0, 1), (3.0, 2), (2.0, 2)):
        told = python("-c", PROGRAM, factor, DLSYS_COMPILE_CACHE=f"{folder}/cache").stdout
        assert told.split() == [f"[{factor + 1},", f"{factor + 1}]"], told
        assert len(list(Path(folder, "cache").glob("*.so"))) >= kept


def test_operators_of_other_attributes_are_not_merged() -> None:
    """Equal numbers of other dtypes, zeros of both signs, and long tuples that differ in one number, too."""

    def formula(x: Any, by: tuple[float, ...]) -> Any:
        return compute.mul_by_const(x, by[len(by) // 2])

    long = tuple(range(2000))
    values: list[tuple[float, ...]] = [(0.0,), (-0.0,), (1,), (True,), (2.0,), long, (*long[:1000], 7, *long[1001:])]
    with own_operators():
        v = ad.Variable("v")
        times = defined(te=formula, numpy=lambda x, by: x * np.float32(by[len(by) // 2]))
        nodes = [times(v, by=by) for by in values]
        for found, exact in zip(*(ad.Executor(nodes, ctx).run({v: X}, True) for ctx in ("cpu", "numpy")), strict=True):
            np.testing.assert_array_equal(found.view("int32"), exact.view("int32"))
        for wrong in (np.arange(2000), [1, 2], {"a": 1}, (1, [2]), lambda x: x, dl.tensor(1.0)):
            told = error_of(GraphError, times, v, by=wrong)
            assert "softsum: the attribute by is" in told and "an array is an input" in told, told
