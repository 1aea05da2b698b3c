"""`dl.check_operator` passes what is right, and tells which part of an operator is wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import dlsys as dl
import numpy as np
import pytest
from dlsys import ops
from dlsys.graph import OPS, Node, Op, Shape, register
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


class Cube(Op):
    """x^3, right in every part; the faults are planted in its subclasses."""

    kind, formula, reference = "elementwise", staticmethod(_thrice), staticmethod(lambda x: x * x * x)

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        (x,) = node.inputs
        return [output_grad * x * x * 3.0]


def cube(**parts: Any) -> Callable[[Node], Node]:
    """A function of an operator that has other parts."""
    name = f"cube_{'_'.join(parts) or 'right'}"
    made = register(
        type(name, (Cube,), {"name": name, "__module__": __name__, "__qualname__": name, **parts})
    )
    return lambda x: made.make([x])


def _wrong_gradient(self: Op, node: Node, output_grad: Node) -> list[Node | None]:
    return [output_grad * node.inputs[0] * 3.0]


class Flat(Op):
    """3 x^2, which says that its gradient is zero."""

    name, kind, flat = "flat_square", "elementwise", True
    formula = staticmethod(lambda x: te.compute(x.shape, lambda *i: x(*i) * x(*i) * 3.0))
    reference = staticmethod(lambda x: x * x * 3.0)


def _wrong_second(self: Op, node: Node, output_grad: Node) -> list[Node | None]:
    return [output_grad * register(Flat).make(node.inputs)]


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
    shifted = {"formula": staticmethod(_shifted), "reference": staticmethod(lambda x: np.roll(x, -1, 1))}
    planted: list[tuple[dict[str, Any], str]] = [
        ({"gradient": _wrong_gradient}, "the gradient for x0 is"),
        ({"gradient": _wrong_second}, "the gradient of x0's gradient for x0 is"),
        ({"reference": staticmethod(lambda x: x * x)}, "the kernel and the reference differ at ("),
        ({"formula": staticmethod(_beyond)}, "its formula reads beyond its inputs"),
        (shifted, "its kind is 'elementwise', but one element of x0 changes others than its own"),
    ]
    for parts, told in planted:
        error = error_of(dl.errors.OperatorError, dl.check_operator, cube(**parts), ROWS)
        assert told in error and error.startswith("cube_") and "made at test_check_operator.py:" in error, (
            error
        )
    rows = {**shifted, "kind": "rows"}
    of_rows = error_of(
        dl.errors.OperatorError, dl.check_operator, cube(**rows, gradient=_wrong_gradient), ROWS
    )
    assert "the gradient for x0" in of_rows  # a row may depend on all of itself


def test_an_unknown_kind_is_told_where_the_operator_is_registered() -> None:
    assert "its kind 'opaque' is not one of elementwise" in error_of(
        dl.GraphError, lambda: cube(kind="opaque")
    )


def test_shapes_are_compared() -> None:
    def infer_shape(self: Op, node: Node, input_shapes: list[Shape]) -> Shape:
        return (*input_shapes[0], 1)

    with pytest.raises(
        dl.ShapeError, match=r"infer_shape says float64\[3, 5, 1\], the \w+ gives float64\[3, 5\]"
    ):
        dl.check_operator(cube(infer_shape=infer_shape, kind="single"), ROWS)
