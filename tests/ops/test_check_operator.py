"""`dl.check_operator` passes what is right, and tells which part of an operator is wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import dlsys as dl
import numpy as np
import pytest
from dlsys import ops
from dlsys.graph import OPS, Node
from helpers import error_of
from tvm import te


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    """Forget the operators that a test registers."""
    before = dict(OPS)
    yield
    OPS.clear()
    OPS.update(before)


ROWS = np.random.default_rng(0).standard_normal((3, 5))


def _thrice(x: Any) -> Any:
    return te.compute(x.shape, lambda *i: x(*i) * x(*i) * x(*i), name="thrice")


def cube(**parts: Any) -> Callable[..., Node]:
    """The function of an operator, x^3, which is right but for these parts."""
    right = {"te": _thrice, "numpy": lambda x: x * x * x, "grad": lambda g, y, x: g * x * x * 3.0}
    made = dl.primitive(f"cube_{'_'.join(parts) or 'right'}", **{**right, **parts})
    return lambda x: made(x)  # the user's line, which errors name


def _wrong_gradient(g: Node, y: Node, x: Node) -> Node:
    return g * x * 3.0


def _wrong_second(g: Node, y: Node, x: Node) -> Node:
    """The gradient of x^3, which says that its own is zero."""
    formula = lambda x: te.compute(x.shape, lambda *i: x(*i) * x(*i) * 3.0)  # noqa: E731
    return g * dl.primitive("flat_square", te=formula, numpy=lambda x: x * x * 3.0, grad=None)(x)


def _beyond(x: Any) -> Any:
    """x^3, and 1 more if the next element in memory is very large; after the last one that is none of x."""

    def at(*i: Any) -> Any:
        large = x(*i[:-1], i[-1] + 1) > 1e20
        return x(*i) * x(*i) * x(*i) + large.astype(x.dtype)

    return te.compute(x.shape, at, name="beyond")


def _shifted(x: Any) -> Any:
    return te.compute(x.shape, lambda *i: x(*i[:-1], (i[-1] + 1) % x.shape[-1]), name="shifted")


def test_right_operators_pass() -> None:
    dl.check_operator(cube(), ROWS, ROWS.astype("float32"), np.zeros((0, 2)), np.float64(2.0))
    narrow = ROWS.astype("float32")
    dl.check_operator(lambda x, y: ops.softmax_op(x @ y) * 2.0, (ROWS, ROWS.T), (narrow, narrow.T))
    dl.check_operator(lambda x: ops.reducesum_op(x, 0), ROWS)
    dl.check_operator(ops.take_op, (ROWS, np.array([[2, 0], [1, 1]])))
    dl.check_operator(lambda x: [ops.relu_op(x), ops.exp_op(x)], ROWS)
    dl.check_operator(ops.logical_not_op, ROWS > 0)


def test_wrong_parts_are_told() -> None:
    shifted = {"te": _shifted, "numpy": lambda x: np.roll(x, -1, 1)}
    planted: list[tuple[dict[str, Any], str]] = [
        ({"grad": _wrong_gradient}, "the gradient for x0 is"),
        ({"grad": _wrong_second}, "the gradient of x0's gradient for x0 is"),
        ({"numpy": lambda x: x * x}, "the kernel and the reference differ at ("),
        ({"te": _beyond}, "its formula reads beyond its inputs"),
        (shifted, "its kind is 'elementwise', but one element of x0 changes others than its own"),
    ]
    for parts, told in planted:
        error = error_of(dl.errors.OperatorError, dl.check_operator, cube(**parts), ROWS)
        assert told in error and error.startswith("cube_") and "made at test_check_operator.py:" in error, (
            error
        )
    rows = cube(**shifted, kind="rows", grad=_wrong_gradient)
    of_rows = error_of(dl.errors.OperatorError, dl.check_operator, rows, ROWS)
    assert "the gradient for x0" in of_rows  # a row may depend on all of itself


def test_an_unknown_kind_is_told_where_the_operator_is_registered() -> None:
    assert "its kind 'opaque' is not one of elementwise" in error_of(dl.GraphError, lambda: cube(kind="opaque"))


def test_shapes_are_compared() -> None:
    words = r"its shape rule says float64\[3, 5, 1\], the \w+ gives float64\[3, 5\]"
    with pytest.raises(dl.ShapeError, match=words):
        dl.check_operator(cube(shape=lambda shape: (*shape, 1), kind="single"), ROWS)
