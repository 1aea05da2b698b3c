"""Cases of the operators for indexing, joining, padding and random numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cases import Case
from dlsys import autodiff as ad
from dlsys import ops
from dlsys.graph import OPS, Node, Shape

WHOLE = slice(None)

# a shape, an index of it, which drops and adds no axes
SLICES: list[tuple[Shape, Any]] = [
    ((7,), slice(5, 1, -2)),
    ((3, 31), (slice(1, None), slice(2, 29, 3))),
    ((5, 6), (slice(-1, None), slice(None, None, -1))),
    ((2, 3, 4), (slice(0, 1), slice(9, 1, -1), slice(-3, None))),
    ((4, 3), slice(2, 2)),
    ((2, 0, 3), (WHOLE, WHOLE, slice(1, 3))),
]
# and some that do
RESHAPED: list[tuple[Shape, Any]] = [
    ((), None),
    ((7,), 3),
    ((5, 6), (-1, slice(None, None, -1))),
    ((2, 3, 4), (None, ..., 1)),
    ((2, 3, 4), (slice(0, 1), None, slice(9, 1, -1), slice(-3, None))),
]


def _by(function: Callable[..., Node], *entries: tuple[Any, ...]) -> list[Case]:
    """Cases of entries (shape, arguments...)."""
    return [Case(lambda x, a=rest: function(x, *a), (shape,)) for shape, *rest in entries]


def _make(name: str, **attrs: Any) -> Callable[..., Node]:
    """An operator that a function makes beneath others, applied to variables."""
    return lambda *inputs: OPS[name](*inputs, **attrs)


def _place() -> list[Case]:
    """The gradients of slices."""
    cases = []
    for shape, key in SLICES:
        node = ops.slice_op(ad.Variable("x", shape, "float32"), key)
        if node.op is OPS["slice"]:
            regions = {name: node.attrs[name] for name in ("starts", "steps")}
            cases.append(Case(_make("place", shape=shape, **regions, value=0.0), (node.shape,)))
    return cases


PADDED: list[tuple[Any, ...]] = [
    ((7,), ((2, 0),), 1.5),
    ((3, 5), ((0, 1), (2, 3))),
    ((2, 3, 4), ((1, 0), (0, 0), (0, 2)), -2.0),
    ((2, 0, 3), ((1, 1), (2, 1), (0, 1)), 0.5),
]
# shapes, axis
JOINED: list[tuple[tuple[Shape, ...], int]] = [
    (((3,), (4,)), 0),
    (((3, 5),), 1),
    (((2, 3), (2, 1), (2, 4)), -1),
    (((1, 3, 2), (2, 3, 2)), 0),
    (((2, 3, 4), (2, 2, 4), (2, 0, 4)), 1),
    (((0, 3), (0, 2)), 1),
]
STACKED: list[tuple[tuple[Shape, ...], int]] = [
    (((), ()), 0),
    (((5,), (5,), (5,)), 1),
    (((5,), (5,)), -2),
    (((2, 3),), 1),
    (((2, 3, 4), (2, 3, 4)), -1),
    (((0, 3), (0, 3)), 0),
]

# values, indices, axis
TAKEN: list[tuple[Shape, Shape, int]] = [
    ((7,), (), 0),
    ((5, 3), (4,), 0),
    ((5, 3), (2, 6), 0),
    ((2, 5, 3), (4,), 1),
    ((3, 7), (2, 3), -1),
    ((1, 300), (9,), 0),
    ((5, 0), (3,), 0),
    ((0, 3), (0,), 0),
]
ALONG: list[tuple[Shape, Shape, int]] = [
    ((7,), (3,), 0),
    ((5, 3), (5, 1), 1),
    ((5, 3), (4, 3), 0),
    ((2, 5, 3), (2, 7, 3), -2),
    ((2, 3), (2, 0), 1),
]


def _indices(shape: Shape, axis: int, dtype: str = "int64") -> tuple[tuple[int, str, int, int], ...]:
    """Of the second input those of an axis; of one without elements none are drawn."""
    extent = max(shape[axis], 1)
    return ((1, dtype, 0 if dtype[0] == "u" else -extent, extent),)


def _take() -> list[Case]:
    dtypes = ("int64", "int32", "uint32")
    return [
        Case(
            lambda x, i, a=axis: ops.take_op(x, i, a),
            (shape, where),
            fixed=_indices(shape, axis, dtype),
        )
        for (shape, where, axis), dtype in zip(TAKEN, dtypes * 3, strict=False)
    ]


def _index_add() -> list[Case]:
    cases = []
    for shape, where, axis in TAKEN:
        at = axis % len(shape)
        values = (*shape[:at], *where, *shape[at + 1 :])
        added = _make("index_add", shape=shape, axis=at, from_start=False)
        cases.append(Case(added, (values, where), fixed=_indices(shape, axis)))
    return cases


def _along() -> list[Case]:
    take = lambda axis: lambda x, i: ops.take_along_axis_op(x, i, axis)  # noqa: E731
    return [Case(take(axis), (shape, where), fixed=_indices(shape, axis)) for shape, where, axis in ALONG]


def _scatter_add() -> list[Case]:
    return [
        Case(_make("scatter_add", shape=shape, axis=axis % len(shape)), (where, where), fixed=_indices(shape, axis))
        for shape, where, axis in ALONG
    ]


def _one_hot() -> list[Case]:
    settings: list[tuple[Shape, int, str]] = [
        ((), 3, "float64"),
        ((7,), 5, "float64"),
        ((2, 3), 4, "int32"),
        ((3,), 1, "bool"),
        ((0,), 4, "float64"),
        ((2, 0), 0, "float64"),
    ]
    return [
        Case(lambda i, n=classes, d=dtype: ops.one_hot_op(i, n, d), (shape,), fixed=((0, "int64", 0, max(classes, 1)),))
        for shape, classes, dtype in settings
    ]


def _in_range() -> list[Case]:
    settings: list[tuple[Shape, int, int, str]] = [
        ((7,), 5, -5, "int64"),
        ((2, 3), 1, -1, "int32"),
        ((), 4, 0, "uint32"),
        ((300,), 256, 0, "uint8"),
        ((0,), 0, 0, "int64"),
    ]
    return [
        Case(_make("in_range", extent=n), (shape,), fixed=((0, dtype, low, max(n, 1)),))
        for shape, n, low, dtype in settings
    ]


WORDS = 2**32
KEY = (0, "uint32", 0, WORDS)


def _random_bits() -> list[Case]:
    shapes: list[Shape] = [(), (1,), (4,), (7,), (3, 31), (2, 0, 3)]
    return [Case(lambda key, s=shape: ops.random_bits_op(key, s), ((4,),), fixed=(KEY,)) for shape in shapes]


def _random(function: Callable[..., Node], *options: float) -> list[Case]:
    shapes: list[Shape] = [(3, 31), (), (7,), (2, 0)]
    return [Case(lambda key, s=shape: function(key, s, *options), ((4,),), fixed=(KEY,)) for shape in shapes]


def _dropout() -> list[Case]:
    return [
        Case(lambda x, key, p=p: ops.dropout_op(x, key, p), (shape, (4,)), fixed=((1, "uint32", 0, WORDS),))
        for shape, p in [((3, 31), 0.5), ((), 0.5), ((7,), 0.1), ((2, 3, 4), 0.9), ((2, 0), 0.5)]
    ]


CASES: dict[str, list[Case]] = {
    "slice": _by(ops.slice_op, *SLICES) + _by(ops.flip_op, ((2, 3, 4), (-3, -1)), ((3, 31), 1)),
    "place": _place() + _by(ops.pad_op, *PADDED),
    "concatenate": [Case(lambda *x, a=axis: ops.concatenate_op(x, a), shapes) for shapes, axis in JOINED]
    + [Case(lambda *x, a=axis: ops.stack_op(x, a), shapes) for shapes, axis in STACKED],
    "reshape": _by(ops.slice_op, *RESHAPED)
    + _by(ops.expand_dims_op, ((), 0), ((3, 4), (0, -1)), ((0, 3), 1))
    + _by(ops.squeeze_op, ((1, 3, 1),), ((1,),), ((1, 3, 1), -1))
    + _by(ops.flatten_op, ((2, 3, 4),), ((),), ((2, 3, 0), 1, 2)),
    "transpose": _by(ops.swapaxes_op, ((3, 31), 0, 1), ((2, 3, 4, 5), -2, 1), ((2, 0, 3), 0, 2)),
    "take": _take(),
    "index_add": _index_add(),
    "take_along_axis": _along(),
    "scatter_add": _scatter_add(),
    "one_hot": _one_hot(),
    "in_range": _in_range(),
    "random_bits": _random_bits(),
    "random_uniform": _random(ops.random_uniform_op, -1.0, 3.0),
    "random_normal": _random(ops.random_normal_op),
    "dropout": _dropout(),
}
