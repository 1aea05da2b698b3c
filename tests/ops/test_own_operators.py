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
from dlsys.errors import DTypeError, GraphError, ShapeError
from dlsys.graph import OPS, Node, Op, Shape, register
from dlsys.ops.family import ZERO, binary, unary
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


def defined(name: str = "softsum", **members: Any) -> type[Op]:
    """A new operator of one input, its class with these members, and what each must have."""
    formula = {"formula": compute.copy, "reference": np.array}
    return register(type("Softsum", (Op,), {"name": name, "__module__": __name__, **formula, **members}))


def wide(self: Op, node: Node, inputs: list[Any], shape: Shape, dtype: str) -> Any:
    return compute.broadcast_to(compute.reshape(inputs[0], (*shape, 1)), (*shape, 5000))


def double(self: Op, node: Node, inputs: list[Any], shape: Shape, dtype: str) -> Any:
    return compute.cast(inputs[0], "float64")


def test_a_formula_of_another_type_than_the_rules_say_is_refused() -> None:
    members: list[tuple[type[Exception], dict[str, Any], str]] = [
        (ShapeError, {"te": wide}, "infer_shape says float32[1000], the formula gives float32[1000, 5000]"),
        (DTypeError, {"te": double}, "infer_dtype says float32[1000], the formula gives float64[1000]"),
        (ShapeError, {"infer_shape": lambda *_: (999,)}, "infer_shape says float32[999]"),
        (ShapeError, {"infer_shape": lambda *_: [1000]}, "must return a tuple of integers"),
        (ShapeError, {"infer_shape": lambda *_: None}, "must return a tuple of integers"),
        (ShapeError, {"infer_shape": lambda *_: (np.int64(1000),)}, "must return a tuple of integers"),
        (DTypeError, {"infer_dtype": lambda *_: np.float32}, "must return the name of a dtype"),
        (DTypeError, {"infer_dtype": lambda *_: "float16"}, "must return the name of a dtype"),
        (DTypeError, {"infer_dtype": lambda *_: "int32"}, "infer_dtype says int32[1000]"),
        (ShapeError, {"infer_shape": lambda *_: (5000,), "kind": "view"}, "a view has as many elements as its input"),
    ]
    for kind, own, words in members:
        for of_op in ("single", "elementwise"):
            with own_operators():
                v = ad.Variable("v")
                softsum = defined(**{"kind": of_op, **own})
                for node, feed in ((softsum.make([v]), {v: X}), (ad.relu_op(softsum.make([dl.tensor(X)]) + 1.0), {})):
                    for _ in range(2):  # the second time too, when the kernel might be there
                        message = error_of(kind, run, node, feed)
                        assert message.startswith("softsum: ") and words in message, message
                        assert "test_own_operators.py:" in message
    with own_operators():
        v = ad.Variable("v")
        short = defined(reference=lambda x: x[:10]).make([v])
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
            op = unary("softsum", "", formula, np.exp, lambda g, y, x: g * y)
            message = error_of(GraphError, run, op(v), {v: X})
            assert words in message and "A formula is of TE" in message and "test_own_operators.py:" in message
    with own_operators():
        lacking = defined(formula=None)
        assert "has no formula" in error_of(GraphError, run, lacking.make([v]), {v: X})


def test_a_formula_takes_attributes_and_the_result_s_shape() -> None:
    facts = {"formula": lambda x, n, shape: compute.cast(compute.mul_by_const(x, n), "float64"), "result": "dtype"}
    facts |= {"takes": ("n", "shape"), "reference": lambda x, n, shape: np.broadcast_to(x * np.float64(n), shape)}
    with own_operators():
        v, scaled = ad.Variable("v"), defined(**facts)
        for ctx in (None, "numpy"):
            found = run(scaled.make([v], {"n": 3.0, "dtype": "float64"}), {v: X}, ctx)
            assert found.dtype == "float64" and np.allclose(found, 3 * X, rtol=1e-6)
            message = error_of(GraphError, run, scaled.make([v], {"dtype": "float64"}), {v: X}, ctx)
            assert "takes the attribute 'n'" in message and "test_own_operators.py:" in message
        assert "name of a dtype" in error_of(DTypeError, run, scaled.make([v], {"n": 3.0}), {v: X})


def _gradient_of(node: Node, x: Node, feed: dict[Node, Any]) -> Any:
    return run(ad.gradients(node, [x])[0], feed)


def test_a_gradient_of_another_type_than_its_input_is_refused() -> None:
    column = np.ones((30, 4), "float32")
    first = {"infer_shape": lambda self, node, shapes: shapes[0][1:], "formula": lambda x: compute.reduce_sum(x, (0,))}
    wrong: list[tuple[type[Exception], dict[str, Any], str]] = [
        (ShapeError, {**first, "gradient": lambda self, node, g: [g]}, "has shape (4,), the input (30, 4)"),
        (DTypeError, {"gradient": lambda self, node, g: [ops.cast_op(g, "float64")]}, "is float64, the input float32"),
    ]
    for kind, members, words in wrong:
        with own_operators():
            softsum, v = defined(**members), ad.Variable("v")
            message = error_of(kind, _gradient_of, softsum.make([v]), v, {v: column})
            assert message.startswith("softsum: the gradient that it gives for v") and words in message, message
            assert "test_own_operators.py:" in message
            assert words in error_of(kind, _gradient_of, ad.relu_op(softsum.make([v * 2.0])), v, {v: column})
            t = dl.tensor(column, requires_grad=True)
            assert words in error_of(kind, softsum.make([t]).sum().backward)
            numbers = ad.gradients(softsum.make([v]), [v])
            assert words in error_of(kind, ad.Executor(numbers, ctx="numpy").run, {v: column})
    with own_operators():  # an input of integers has none
        v, ids = ad.Variable("v"), ad.Variable("ids")
        first_of_two = {
            "formula": lambda x, ids: compute.copy(x),
            "infer_dtype": lambda self, node, dtypes: dtypes[0],
            "gradient": lambda self, node, g: [g, g],
        }
        (grad,) = ad.gradients(defined(**first_of_two).make([v, ids]), [ids])
        message = error_of(DTypeError, run, grad, {v: X, ids: np.ones(1000, "int32")})
        assert "is float32, but one of int32 is always zero: return None for it" in message


def test_a_gradient_may_call_methods_of_tensors() -> None:
    def gradient(self: Op, node: Node, output_grad: Any) -> list[Any]:
        x: Any = node.inputs[0]
        return [(output_grad * x.exp()).reshape(x.shape)]

    with own_operators():
        exponential = defined("own_exp", formula=compute.exp, reference=np.exp, gradient=gradient)
        for inner in (lambda t: t, lambda t: t * 2):  # a leaf, and what is computed
            t = dl.tensor(X, requires_grad=True)
            x = inner(t)
            exponential.make([x]).sum().backward()
            scale = x.numpy() / np.where(t.numpy() == 0, 1, t.numpy())
            np.testing.assert_allclose(t.grad.numpy(), scale * np.exp(x.numpy()), rtol=1e-5)


@pytest.mark.slow
def test_a_gradient_that_is_right_costs_no_kernel() -> None:
    with own_operators():
        square = unary("square", "", lambda x: compute.mul(x, x), np.square, lambda g, y, x: g * (2 * x))
        v = ad.Variable("v")
        (grad,) = ad.gradients(square(v) * 3.0, [v])
        executor = ad.Executor([grad], passes=[])
        np.testing.assert_allclose(executor.run({v: X}, True)[0], 6 * X, rtol=1e-6)
        assert "as_gradient" not in executor.groups()
        (second,) = ad.gradients(grad, [v])
        np.testing.assert_allclose(run(second, {v: X}), np.full_like(X, 6), rtol=1e-6)
        np.testing.assert_allclose(run(second, {v: X}, "numpy"), np.full_like(X, 6), rtol=1e-6)
        last, _ = ad.scan_op(lambda h, _: (square(h) * 0.5, h), v, length=3)
        one, two = X**2 / 2, X**4 / 8  # after the first step, and after the second
        np.testing.assert_allclose(run(ad.gradients(last, [v])[0], {v: X}), two * one * X, rtol=1e-5)


def test_gradients_and_derivatives_of_another_form_are_refused() -> None:
    a, b = ad.Variable("a"), ad.Variable("b")
    square = (lambda x: compute.mul(x, x)), np.square
    times = compute.mul, np.multiply
    derivatives: list[tuple[Callable[[Any], Node], Any, str]] = [
        (lambda d: unary("mine", "", *square, d)(a), lambda g, x: g * x, "takes (g, x), and is called with 3"),
        (lambda d: unary("mine", "", *square, d)(a), lambda g, y, x: (g,), "must return a node, or ZERO"),
        (lambda d: unary("mine", "", *square, d)(a), lambda g, y, x: None, "must return a node, or ZERO"),
        (lambda d: unary("mine", "", *square, d)(a), lambda g, y, x: 2.0, "must return a node, or ZERO"),
        (lambda d: binary("mine", "", *times, d)(a, b), lambda g, y, a, b: g, "must return a tuple of 2 nodes"),
        (lambda d: binary("mine", "", *times, d)(a, b), lambda g, y, a, b: (g,), "must return a tuple of 2 nodes"),
        (lambda d: binary("mine", "", *times, d)(a, b), lambda g, y, a, b: (g, None), "must return a tuple of 2"),
        (lambda d: binary("mine", "", *times, d)(a, b), lambda g, y, x: (g, g), "(g, y, x), and is called with 4"),
        (lambda d: defined(gradient=d).make([a]), lambda self, node, g: g, "must return a list of 1"),
        (lambda d: defined(gradient=d).make([a]), lambda self, node, g: [g, g], "must return a list of 1"),
        (lambda d: defined(gradient=d).make([a]), lambda self, node, g: [1.0], "must return a list of 1"),
        (lambda d: defined().make([a]), None, "there is no gradient: write `gradient`"),
    ]
    for make, derivative, words in derivatives:
        with own_operators():
            message = error_of(GraphError, ad.gradients, make(derivative), [a])
            assert words in message and "test_own_operators.py:" in message, message
    with own_operators():
        for make in (unary, binary):
            assert "derivative=ZERO" in error_of(GraphError, make, "mine", "", *square)
        steps = unary("steps", "", compute.floor, np.floor, ZERO)
        one, same = lambda x, y: compute.copy(x), lambda x, y: np.array(x)
        first = binary("first", "", one, same, lambda g, y, a, b: (g, ZERO))
        assert run(ad.gradients(steps(a), [a])[0], {a: X}).tolist() == [0.0] * 1000
        assert [run(g, {a: X, b: X}).tolist()[0] for g in ad.gradients(first(a, b), [a, b])] == [1.0, 0.0]
        takes_two = unary("mine", "", lambda x, y: compute.mul(x, y), np.square, ZERO)
        message = error_of(GraphError, run, takes_two(a), {a: X})
        assert "its formula takes (x, y), and is called with 1 argument " in message
        bug = unary("bug", "", *square, lambda g, y, x: g + len(5))  # its own TypeError stays what it is
        assert "has no len()" in error_of(TypeError, ad.gradients, bug(a), [a])


def test_an_operator_that_is_not_registered_is_named() -> None:
    class Softsum(Op):
        name = "softsum"

    class Relu(type(OPS["relu"])):  # type: ignore[misc]  # not that of which it is derived
        pass

    v = ad.Variable("v")
    for cls in (Softsum, Relu):
        assert f"{cls.__name__} is not registered" in error_of(GraphError, cls.make, [v])
    Softsum.name = None  # type: ignore[assignment]
    for wrong in (Softsum, object, 5):
        assert "is not the class of an operator" in error_of(GraphError, register, wrong)


@pytest.mark.slow
def test_a_cell_that_is_run_twice_defines_its_operator_anew() -> None:
    def cell(factor: float) -> Any:
        formula, reference = lambda x: compute.mul_by_const(x, factor), lambda x: factor * x
        return unary("times", "", formula, reference, lambda g, y, x: g * factor)

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
        defined("again")
        defined("again", reference=np.copy)
        other = {"name": "again", "__module__": __name__}
        taken = error_of(GraphError, register, type("Other", (Op,), other))
        assert "again exists already, as test_own_operators.Softsum" in taken, taken
        builtin = "exp exists already, as dlsys."
        assert builtin in error_of(GraphError, unary, "exp", "", compute.exp, np.exp, ZERO)
        assert builtin in error_of(GraphError, register, type("Exp", (Op,), {"name": "exp"}))


PROGRAM = """
import sys
import numpy as np
from dlsys import autodiff as ad
from dlsys import compute
from dlsys.ops.family import ZERO, by_const, unary

factor = float(sys.argv[1])
times = unary("times", "", lambda x: compute.mul_by_const(x, factor), lambda x: factor * x, ZERO)
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
        times = defined(formula=formula, reference=lambda x, by: x * np.float32(by[len(by) // 2]), takes=("by",))
        nodes = [times.make([v], {"by": by}) for by in values]
        for found, exact in zip(*(ad.Executor(nodes, ctx).run({v: X}, True) for ctx in ("cpu", "numpy")), strict=True):
            np.testing.assert_array_equal(found.view("int32"), exact.view("int32"))
        for wrong in (np.arange(2000), [1, 2], {"a": 1}, (1, [2]), lambda x: x, dl.tensor(1.0)):
            told = error_of(GraphError, times.make, [v], {"by": wrong})
            assert "softsum: the attribute by is" in told and "an array is an input" in told, told
