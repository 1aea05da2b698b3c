"""Cases of the operators of the first floor: arithmetic, matrix products, convolutions, sums, layout, losses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from cases import BROADCAST, EXPANDED, ONE, ROWS, SAME, Case, cases_of, unary
from dlsys import ops
from dlsys.distributed import mean_over_ranks
from dlsys.graph import Node, Shape


def _by_const(
    function: Callable[[Node, float], Node], *constants: float, positive: bool = False
) -> list[Case]:
    first = cases_of(lambda x: function(x, constants[0]), *ONE, positive=positive)
    return first + [Case(lambda x, c=c: function(x, c), ((3, 5),), positive) for c in constants[1:]]


BYTES = ((0, "uint8", 0, 256), (1, "int8", -128, 128))


def _matmul() -> list[Case]:
    cases = []
    for trans_a in (False, True):
        for trans_b in (False, True):
            for m, k, n in [(1, 1, 1), (3, 5, 2), (7, 1, 4), (1, 31, 1), (4, 0, 3), (0, 2, 3)]:
                a, b = ((k, m) if trans_a else (m, k)), ((n, k) if trans_b else (k, n))
                build = lambda x, y, s=trans_a, t=trans_b: ops.matmul_op(x, y, s, t)  # noqa: E731
                cases.append(Case(build, (a, b)))
    return [*cases, *(replace(case, fixed=BYTES) for case in cases)]


# images, filters, stride, padding
GEOMETRIES: list[tuple[Shape, Shape, Any, Any]] = [
    ((1, 1, 1, 1), (1, 1, 1, 1), 1, 0),
    ((2, 3, 6, 5), (4, 3, 3, 3), 1, 1),
    ((2, 2, 7, 6), (3, 2, 3, 2), 2, 0),
    ((1, 2, 8, 7), (2, 2, 3, 3), (2, 3), (1, 2)),
    ((1, 1, 4, 4), (1, 1, 1, 1), 1, 2),
    ((2, 1, 5, 5), (2, 1, 5, 5), 1, 0),
    ((1, 2, 4, 4), (2, 2, 2, 2), 3, 0),
    ((0, 2, 4, 4), (2, 2, 3, 3), 1, 1),
]


def conv_output(images: Shape, filters: Shape, stride: Any, padding: Any) -> Shape:
    """The output's shape, counted rather than computed."""
    s, p = np.broadcast_to(stride, 2), np.broadcast_to(padding, 2)
    space = [len(range(0, images[2 + i] + 2 * int(p[i]) - filters[2 + i] + 1, int(s[i]))) for i in (0, 1)]
    return (images[0], filters[0], space[0], space[1])


def _convolution(kind: str) -> list[Case]:
    cases = []
    for x, f, stride, padding in GEOMETRIES:
        g = conv_output(x, f, stride, padding)
        function, shapes, given = {
            "conv2d": (ops.conv2d_op, (x, f), ()),
            "input": (ops.conv2d_input_gradient_op, (f, g), (x,)),
            "filter": (ops.conv2d_filter_gradient_op, (x, g), (f,)),
        }[kind]
        cases.append(Case(lambda *v, fn=function, a=(*given, stride, padding): fn(*v, *a), shapes))
    return [*cases, *(replace(case, fixed=BYTES) for case in cases if kind == "conv2d")]


def _reduction() -> list[Case]:
    settings: list[tuple[Any, bool, Shape]] = [
        (None, False, (3, 4)),
        (None, True, (3, 4)),
        (None, False, ()),
        (0, False, (5, 3)),
        (0, False, (7,)),
        (-1, True, (2, 31)),
        ((0, 2), False, (2, 3, 4)),
        ((-1, 0), True, (2, 3, 4)),
        (1, False, (3, 1)),
        ((), False, (2, 3)),
        (0, False, (0, 3)),
        (1, True, (0, 3)),
        (1, False, (3, 0)),
    ]
    return [
        Case(lambda x, a=axes, k=keep: ops.reducesum_op(x, a, k), (shape,)) for axes, keep, shape in settings
    ]


def _reshape() -> list[Case]:
    settings: list[tuple[Shape, Any]] = [
        ((2, 6), (3, 4)),
        ((2, 3, 4), -1),
        ((12,), (-1, 4)),
        ((), (1, 1)),
        ((1,), ()),
        ((0, 3), (3, 0)),
    ]
    return [Case(lambda x, s=to: ops.reshape_op(x, s), (shape,)) for shape, to in settings]


def _transpose() -> list[Case]:
    reversed_axes = cases_of(ops.transpose_op, ((3, 5),), ((2, 3, 4),), ((0, 2),))
    orders = [(2, 0, 1), (1, 0, 2), (-1, 0, 1)]
    return reversed_axes + [Case(lambda x, a=axes: ops.transpose_op(x, a), ((2, 3, 4),)) for axes in orders]


def _full() -> list[Case]:
    settings: list[tuple[Any, float]] = [((), 1.5), (7, 0.0), ((3, 31), -2.0), ((2, 0, 3), 0.1)]
    return [Case(lambda s=shape, v=value: ops.full_op(s, v, "float64"), ()) for shape, value in settings]


def _broadcast_shape() -> list[Case]:
    wider = [(a, shape) for a, shape in EXPANDED if a != shape]
    like = cases_of(ops.broadcastto_op, *wider)
    return [Case(lambda x, s=shape: ops.broadcast_shape_op(x, s), (a,)) for a, shape in wider] + like


NO_CASES = {
    "constant": "it stands in the code of what reads it: the cases of add, mul, div and power",
    "parameter": "its value is given, as a placeholder's, of which it is one more kind",
    "function": "its gradient is a Python function that the node holds: test_autograd_function.py",
    "group": "it has no value",
    "latest": "an assignment's value stands for it: test_state.py",
    "scan": "its value is a tuple of values, which `scan_result` takes",
    "scan_result_gradient": "a loop's gradient takes sums of it apart: nothing computes it",
    "with_gradient": "what it has stands for it: test_stated.py",
    "with_updates": "its inputs but the first are assignments, which the executor takes out: test_state.py",
}
"""Operators that need none, and why."""

CASES: dict[str, list[Case]] = {
    "placeholder": cases_of(lambda x: x, *ONE),
    "assign": [Case(ops.assign_op, shapes, parameters=(0,)) for shapes in SAME],
    "copy": unary(ops.copy_op),
    "mean_over_ranks": unary(mean_over_ranks),  # as in a group of one; others: distributed/
    "full": [*_full(), *unary(ops.oneslike_op), *unary(ops.zeroslike_op)],
    "add": cases_of(ops.add_op, *BROADCAST) + _by_const(ops.add_byconst_op, 2.5, 0.0, -1e-3),
    "sub": cases_of(ops.sub_op, *BROADCAST) + _by_const(lambda x, c: c - x, 2.5, 0.0),
    "mul": cases_of(ops.mul_op, *BROADCAST) + _by_const(ops.mul_byconst_op, -2.5, 0.0, 1.0, 0.1),
    "div": cases_of(ops.div_op, *BROADCAST)
    + _by_const(ops.div_byconst_op, 3.0, -0.7)
    + _by_const(lambda x, c: ops.const_div_op(c, x), 3.0, -0.7, 0.0),
    "neg": unary(ops.neg_op),
    "power": _by_const(ops.power_byconst_op, 2.0, 3.0, -1.0, -2.0, 0.0, 1.0, 5.0)
    + _by_const(ops.power_byconst_op, 0.5, -1.5, positive=True),
    "exp": unary(ops.exp_op),
    "log": unary(ops.log_op, positive=True),
    "sqrt": unary(ops.sqrt_op, positive=True),
    "tanh": unary(ops.tanh_op),
    "sigmoid": unary(ops.sigmoid_op),
    "relu": unary(ops.relu_op),
    "relu_gradient": cases_of(ops.relu_gradient_op, *SAME),
    "matmul": _matmul(),
    "broadcast_shape": _broadcast_shape(),
    "reshape": _reshape() + cases_of(ops.reshape_like_op, ((2, 6), (3, 4)), ((1, 1), ()), ((0, 2), (0,))),
    "transpose": _transpose(),
    "reducesum": _reduction()
    + cases_of(ops.reducesumaxiszero_op, ((5, 3),))
    + cases_of(ops.sum_to_like_op, *((b, a) for a, b in EXPANDED if a != b and b != (5, 2, 3, 4))),
    "softmax": cases_of(ops.softmax_op, *ROWS),
    "log_softmax": cases_of(ops.log_softmax_op, *ROWS),
    "softmaxcrossentropy": cases_of(ops.softmaxcrossentropy_op, *(2 * s for s in ROWS if s != ((0, 4),))),
    "conv2d": _convolution("conv2d"),
    "conv2d_input_gradient": _convolution("input"),
    "conv2d_filter_gradient": _convolution("filter"),
}
