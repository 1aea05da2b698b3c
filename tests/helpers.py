"""What several suites share: sample cases of every operator and a NumPy interpreter of graphs.

`CASES` maps an operator's name to cases whose `build` makes a node of that operator from variables. A suite
that loops over it covers every operator, also those added later (test_ops.py fails for one without cases).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from dlsys import ops
from dlsys.graph import Node, Shape, find_topo_sort
from dlsys.passes import TypedGraph, value_inputs


@dataclass(frozen=True)
class Case:
    """A node of one operator: `build(*variables)`, of inputs of `shapes`, drawn by `draw`.

    Magnitudes lie in [0.5, 2], clear of kinks and poles at 0; signs are drawn too unless `positive`. The inputs are
    variables, but those at `parameters`, which must be such; they are fed all the same.
    """

    build: Callable[..., Node]
    shapes: tuple[Shape, ...]
    positive: bool = False
    parameters: tuple[int, ...] = ()

    def variables(self) -> list[Node]:
        return [
            ops.Parameter(np.zeros(shape), f"p{i}") if i in self.parameters else ops.Variable(f"x{i}", shape)
            for i, shape in enumerate(self.shapes)
        ]

    def draw(self, dtype: str = "float64", seed: int = 0) -> list[np.ndarray]:
        rng = np.random.default_rng(seed)
        return [np.asarray(self._values(rng, shape), dtype) for shape in self.shapes]

    def _values(self, rng: np.random.Generator, shape: Shape) -> np.ndarray:
        sign = 1.0 if self.positive else rng.choice([-1.0, 1.0], size=shape)
        return sign * rng.uniform(0.5, 2.0, size=shape)


def _cases(build: Callable[..., Node], *shapes: Any, positive: bool = False) -> list[Case]:
    """One case per entry of `shapes`: a tuple of input shapes."""
    return [Case(build, entry, positive) for entry in shapes]


_ONE = [((),), ((1,),), ((7,),), ((5, 1),), ((3, 31),), ((2, 3, 4),), ((0,),), ((2, 0, 3),)]
_SAME = [(entry[0], entry[0]) for entry in _ONE]
_BROADCAST = [
    *_SAME,
    ((4, 3), (3,)),
    ((3,), (4, 3)),
    ((4, 1), (1, 3)),
    ((), (2, 3)),
    ((2, 3), (1,)),
    ((2, 1, 4), (3, 1)),
    ((1, 1), (0, 5)),
]
_EXPANDED = [
    ((3,), (4, 3)),
    ((1, 5), (4, 5)),
    ((4, 1), (4, 3)),
    ((), (2, 3)),
    ((2, 1, 4), (5, 2, 3, 4)),
    ((1,), (1,)),
    ((2, 3), (2, 3)),
    ((1, 3), (0, 3)),
    ((3,), (0, 3)),
]
_ROWS = [((1,),), ((7,),), ((5, 1),), ((3, 31),), ((2, 3, 4),), ((0, 4),), ((3, 0),)]


def _unary(function: Callable[[Node], Node], positive: bool = False) -> list[Case]:
    return _cases(function, *_ONE, positive=positive)


def _by_const(
    function: Callable[[Node, float], Node], *constants: float, positive: bool = False
) -> list[Case]:
    first = _cases(lambda x: function(x, constants[0]), *_ONE, positive=positive)
    return first + [Case(lambda x, c=c: function(x, c), ((3, 5),), positive) for c in constants[1:]]


def _matmul() -> list[Case]:
    cases = []
    for trans_a in (False, True):
        for trans_b in (False, True):
            for m, k, n in [(1, 1, 1), (3, 5, 2), (7, 1, 4), (1, 31, 1), (4, 0, 3), (0, 2, 3)]:
                a, b = ((k, m) if trans_a else (m, k)), ((n, k) if trans_b else (k, n))
                build = lambda x, y, s=trans_a, t=trans_b: ops.matmul_op(x, y, s, t)  # noqa: E731
                cases.append(Case(build, (a, b)))
    return cases


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
        function, shapes = {
            "conv2d": (ops.conv2d_op, (x, f)),
            "input": (ops.conv2d_input_gradient_op, (f, g, x)),
            "filter": (ops.conv2d_filter_gradient_op, (x, g, f)),
        }[kind]
        cases.append(Case(lambda *v, fn=function, s=stride, p=padding: fn(*v, stride=s, padding=p), shapes))
    return cases


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


def _broadcast_axes() -> list[Case]:
    settings: list[tuple[Any, bool, Shape, Shape]] = [
        (None, False, (), (3, 4)),
        (0, False, (3,), (5, 3)),
        (-1, True, (2, 1), (2, 7)),
        ((0, 2), False, (3,), (2, 3, 4)),
        ((2, 0), True, (1, 3, 1), (2, 3, 4)),
        (0, False, (3,), (0, 3)),
    ]
    return [
        Case(lambda x, y, a=axes, k=keep: ops.broadcast_axes_op(x, y, a, k), (shape, like))
        for axes, keep, shape, like in settings
    ]


def _reshape() -> list[Case]:
    settings: list[tuple[Shape, Any]] = [
        ((2, 6), (3, 4)),
        ((2, 3, 4), -1),
        ((12,), (-1, 4)),
        ((), (1, 1)),
        ((1,), ()),
        ((2, 3), (2, 3)),
        ((0, 3), (3, 0)),
        ((0, 3), (-1, 3)),
    ]
    return [Case(lambda x, s=to: ops.reshape_op(x, s), (shape,)) for shape, to in settings]


def _transpose() -> list[Case]:
    reversed_axes = _cases(ops.transpose_op, ((3, 5),), ((),), ((4,),), ((2, 3, 4),), ((0, 2),))
    orders = [(2, 0, 1), (1, 0, 2), (-1, 0, 1)]
    return reversed_axes + [Case(lambda x, a=axes: ops.transpose_op(x, a), ((2, 3, 4),)) for axes in orders]


def _div_by_extent() -> list[Case]:
    settings: list[tuple[Any, Shape, Shape]] = [
        ("rows", (1,), (5, 3)),
        ("rows", (2, 3), (2, 4, 3)),
        ("rows", (3,), (3,)),
        (None, (), (3, 4)),
        (-1, (2, 3), (2, 7)),
        ((0, 1), (4,), (2, 3, 5)),
    ]
    return [
        Case(lambda x, y, a=axes: ops.div_by_extent_op(x, y, a), (shape, like))
        for axes, shape, like in settings
    ]


def _full() -> list[Case]:
    settings: list[tuple[Any, float]] = [((), 1.5), (7, 0.0), ((3, 31), -2.0), ((2, 0, 3), 0.1)]
    return [Case(lambda s=shape, v=value: ops.full_op(s, v, "float64"), ()) for shape, value in settings]


def _broadcast_shape() -> list[Case]:
    return [Case(lambda x, s=shape: ops.broadcast_shape_op(x, s), (a,)) for a, shape in _EXPANDED]


NO_CASES = {
    "parameter": "its value is given, as a placeholder's, of which it is one more kind",
    "group": "it has no value",
}
"""Operators that need none, and why."""

CASES: dict[str, list[Case]] = {
    "placeholder": _cases(lambda x: x, *_ONE),
    "assign": [Case(ops.assign_op, shapes, parameters=(0,)) for shapes in _SAME],
    "copy": _unary(ops.copy_op),
    "full": _full(),
    "oneslike": _unary(ops.oneslike_op),
    "zeroslike": _unary(ops.zeroslike_op),
    "add": _cases(ops.add_op, *_BROADCAST),
    "sub": _cases(ops.sub_op, *_BROADCAST),
    "mul": _cases(ops.mul_op, *_BROADCAST),
    "div": _cases(ops.div_op, *_BROADCAST),
    "neg": _unary(ops.neg_op),
    "add_byconst": _by_const(ops.add_byconst_op, 2.5, 0.0, -1e-3),
    "mul_byconst": _by_const(ops.mul_byconst_op, -2.5, 0.0, 1.0, 0.1),
    "div_byconst": _by_const(ops.div_byconst_op, 3.0, -0.7),
    "const_div": _by_const(lambda x, c: ops.const_div_op(c, x), 3.0, -0.7, 0.0) + _unary(ops.reciprocal_op),
    "power_byconst": _by_const(ops.power_byconst_op, 2.0, 3.0, -1.0, -2.0, 0.0, 1.0, 5.0)
    + _by_const(ops.power_byconst_op, 0.5, -1.5, positive=True),
    "exp": _unary(ops.exp_op),
    "log": _unary(ops.log_op, positive=True),
    "sqrt": _unary(ops.sqrt_op, positive=True),
    "tanh": _unary(ops.tanh_op),
    "sigmoid": _unary(ops.sigmoid_op),
    "relu": _unary(ops.relu_op),
    "relu_gradient": _cases(ops.relu_gradient_op, *_SAME),
    "matmul": _matmul(),
    "broadcastto": _cases(ops.broadcastto_op, *_EXPANDED),
    "broadcast_shape": _broadcast_shape(),
    "sum_to_like": _cases(ops.sum_to_like_op, *((b, a) for a, b in _EXPANDED)),
    "reshape": _reshape(),
    "reshape_like": _cases(ops.reshape_like_op, ((2, 6), (3, 4)), ((1, 1), ()), ((5,), (5,)), ((0, 2), (0,))),
    "transpose": _transpose(),
    "reducesum": _reduction() + _cases(ops.reducesumaxiszero_op, ((5, 3),)),
    "broadcast_axes": _broadcast_axes(),
    "div_by_extent": _div_by_extent(),
    "softmax": _cases(ops.softmax_op, *_ROWS),
    "log_softmax": _cases(ops.log_softmax_op, *_ROWS),
    "softmaxcrossentropy": _cases(ops.softmaxcrossentropy_op, *(2 * s for s in _ROWS if s != ((0, 4),))),
    "conv2d": _convolution("conv2d"),
    "conv2d_input_gradient": _convolution("input"),
    "conv2d_filter_gradient": _convolution("filter"),
    "sgd_update": _cases(lambda x, g: ops.sgd_update_op(x, g, 0.1), *_SAME),
}


def evaluate(nodes: Iterable[Node], feed: dict[Node, np.ndarray]) -> list[np.ndarray]:
    """The nodes' values by the operators' NumPy rules; each must have the inferred shape and dtype."""
    nodes = list(nodes)
    values = dict(feed)
    for node in find_topo_sort(nodes):
        if node in values:
            continue
        inputs = [values[value] for value in node.inputs]
        result = node.op.numpy(node, inputs)
        shape = node.op.infer_shape(node, [value.shape for value in inputs])
        dtype = node.op.infer_dtype(node, [str(value.dtype) for value in inputs])
        assert isinstance(result, np.ndarray), (node.op.name, type(result))
        assert result.shape == shape, (node.op.name, result.shape, shape)
        assert str(result.dtype) == dtype, (node.op.name, result.dtype, dtype)
        values[node] = result
    return [values[node] for node in nodes]


def expression(node: Node) -> str:
    """The expression below a node; attributes that are None or False are left out."""
    if node.op.name == "placeholder":
        return node.name
    attributes = [
        f"{k}={v}" for k, v in node.attrs.items() if v is not None and v is not False and k != "dtype"
    ]
    return f"{node.op.name}({', '.join([*map(expression, node.inputs), *attributes])})"


def check_form(graph: TypedGraph) -> None:
    """Inputs stand before their users, types are those that the operators infer, roots are there."""
    standing = set(graph.fed)
    for node in graph.nodes:
        assert node not in standing and all(value in standing for value in value_inputs(node)), node
        standing.add(node)
        shape = node.op.infer_shape(node, [graph.shapes[value] for value in node.inputs])
        dtype = node.op.infer_dtype(node, [graph.dtypes[value] for value in node.inputs])
        assert (graph.shapes[node], graph.dtypes[node]) == (shape, dtype), node
    assert standing.issuperset(graph.roots)


def error_of(kind: type[Exception], function: Callable[..., Any], *args: Any, **kwargs: Any) -> str:
    """The text of the exception of `kind` that the call must raise."""
    try:
        function(*args, **kwargs)
    except kind as error:
        return str(error)
    raise AssertionError(f"no {kind.__name__} was raised")
