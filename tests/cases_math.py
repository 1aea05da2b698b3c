"""Cases of the operators for elementary functions, comparisons, selections and reductions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cases import Case, cases_of, unary
from dlsys import ops
from dlsys.graph import Node, Shape

FEW = [((),), ((7,),), ((3, 31),), ((2, 0, 3),)]
PAIRS = [((), ()), ((3, 31), (3, 31)), ((4, 3), (3,)), ((4, 1), (1, 3)), ((2, 3), ()), ((1, 1), (0, 5))]
BOOL, INTEGER = ("bool", 0, 2), ("int64", -3, 4)
_INTEGERS = [("int32", -(2**31), 2**31), ("int64", -(2**62), 2**62), ("uint8", 0, 256), ("uint32", 0, 2**32),
    ("int8", -128, 128)]


def _few(function: Callable[[Node], Node], positive: bool = False) -> list[Case]:
    return cases_of(function, *FEW, positive=positive)


def _bits(function: Callable[..., Node], count: int) -> list[Case]:
    kinds = [*_INTEGERS, BOOL]
    shapes = [((5, 7), (7,)), ((3, 1), (4,)), ((), (2, 3)), ((0, 3), (3,)), ((31,), (31,)), ((2, 5), (2, 5))]
    return [_fixed(function, pair[:count], *(kind,) * count) for pair, kind in zip(shapes, kinds, strict=True)]


def _fixed(function: Callable[..., Node], shapes: tuple[Shape, ...], *kinds: tuple[str, int, int]) -> Case:
    return Case(function, shapes, fixed=tuple((i, *kind) for i, kind in enumerate(kinds)))


def _comparison(function: Callable[..., Node]) -> list[Case]:
    pair: tuple[Shape, Shape] = ((5, 7), (7,))
    return [
        *cases_of(function, *PAIRS[1:5]),
        _fixed(function, pair, INTEGER, INTEGER),
        _fixed(function, pair, ("uint32", 0, 4), ("uint32", 0, 4)),
    ]


def _logical(function: Callable[..., Node]) -> list[Case]:
    return [_fixed(function, pair, BOOL, BOOL) for pair in PAIRS[:4]]


def _where() -> list[Case]:
    shapes: list[tuple[Shape, Shape, Shape]] = [
        ((), (), ()),
        ((3, 31), (3, 31), (3, 31)),
        ((4, 1), (1, 3), (3,)),
        ((3,), (4, 3), ()),
        ((2, 3), (), (3,)),
        ((0, 3), (3,), (1, 1)),
    ]
    return [_fixed(ops.where_op, entry, BOOL) for entry in shapes] + [
        _fixed(ops.where_op, ((5, 7), (5, 7), (7,)), BOOL, INTEGER, INTEGER)
    ]


def _clip() -> list[Case]:
    bounds = [(-1.0, 1.2), (None, 0.0), (-0.7, None), (1.0, -1.0)]
    return _few(lambda x: ops.clip_op(x, -1.1, 0.9)) + [
        Case(lambda x, b=pair: ops.clip_op(x, *b), ((5, 7),)) for pair in bounds
    ]


def _cast() -> list[Case]:
    # to float32: test_ops_math.py, since weights here are float64
    found = [Case(lambda x: ops.cast_op(x, "float64"), ((3, 31),))]
    for dtype in ("int32", "int64", "uint32", "bool"):
        found.append(Case(lambda x, t=dtype: ops.cast_op(x, t), ((3, 31),), positive=True))
        kind = BOOL if dtype == "bool" else (dtype, 0, 5)
        found += [
            _fixed(lambda x, t=to: ops.cast_op(x, t), ((5, 7),), kind)
            for to in ("float64", "int64", "bool", "uint32")
        ]
    return found


def _cast_like() -> list[Case]:
    like = [("bool", (5, 7)), ("int64", ()), ("int32", (2, 3))]
    return [Case(ops.cast_like_op, ((5, 7), shape), fixed=((0, dtype, 0, 2),)) for dtype, shape in like]


REDUCED: list[tuple[Any, bool, Shape]] = [
    (None, False, (3, 4)),
    (None, True, ()),
    (0, False, (5, 3)),
    (-1, True, (2, 31)),
    (-1, False, (5, 4)),
    ((0, 2), False, (2, 3, 4)),
    (1, True, (3, 1)),
    (1, False, (0, 3)),
]


def _reduced(function: Callable[..., Node], integers: bool = True) -> list[Case]:
    found = [Case(lambda x, a=axes, k=keep: function(x, a, k), (shape,)) for axes, keep, shape in REDUCED]
    if integers:
        found += [_fixed(lambda x: function(x, 0), ((5, 7),), INTEGER)]
    return found


def _place(function: Callable[..., Node]) -> list[Case]:
    settings: list[tuple[Any, bool, Shape]] = [
        (None, False, (3, 4)),
        (None, True, (2, 3)),
        (None, False, ()),
        (0, False, (5, 3)),
        (-1, True, (2, 31)),
        (1, False, (2, 3, 4)),
        (1, False, (0, 3)),
    ]
    found = [Case(lambda x, a=axis, k=keep: function(x, a, k), (shape,)) for axis, keep, shape in settings]
    return [*found, _fixed(lambda x: function(x, 1), ((5, 7),), INTEGER)]


def _argsort() -> list[Case]:
    settings: list[tuple[Shape, int, bool, int | None]] = [
        ((7,), 0, False, None),
        ((3, 31), -1, True, None),
        ((4, 5, 3), 1, False, None),
        ((300, 2), 0, True, None),
        ((2, 70), 1, True, 3),
        ((70, 3), 0, False, 8),
        ((3, 5), 1, True, 0),
        ((0, 3), 1, False, 2),
        ((4, 0), 1, False, None),
    ]

    def places(axis: int, descending: bool, count: int | None) -> Callable[[Node], Node]:
        if count is None:
            return lambda x: ops.argsort_op(x, axis, descending)
        return lambda x: ops.topk_op(x, count, axis, descending)[1]

    found = [Case(places(*rest), (shape,)) for shape, *rest in settings]
    kinds = [INTEGER, BOOL, ("int32", -9, 9), ("uint8", 0, 255), ("uint32", 0, 4)]
    return [*found, *(_fixed(places(1, i % 2 == 0, None), ((5, 70),), kind) for i, kind in enumerate(kinds))]


def _sort() -> list[Case]:
    shapes, kinds = [((3, 31), -1), ((20, 2), 0), ((4, 7), 1), ((4, 0), 1)], [BOOL, ("uint32", 0, 2**32)]
    values = lambda axis, down: lambda x: ops.sort_op(x, axis, down)[0]  # noqa: E731
    found = [Case(values(axis, i % 2 == 1), (shape,)) for i, (shape, axis) in enumerate(shapes)]
    return [*found, *(_fixed(values(1, i % 2 == 0), ((5, 70),), kind) for i, kind in enumerate(kinds))]


def _cumulative(function: Callable[..., Node], inputs: int, integers: bool) -> list[Case]:
    settings: list[tuple[Shape, int, bool, bool]] = [
        ((7,), 0, False, False),
        ((3, 31), -1, False, True),
        ((2, 5, 3), 1, True, False),
        ((5, 70), 0, True, True),
        ((2, 3, 4), 0, False, False),
        ((1, 1), 1, False, False),
        ((1030,), 0, False, False),  # in two parts and two elements
        ((2, 1600), 1, True, True),
        ((1100, 2), -2, False, True),
        ((0, 3), 0, True, False),
        ((3, 0), 0, False, True),
    ]
    found = [
        Case(lambda *x, a=axis, e=exclusive, r=reverse: function(*x, a, e, r), (shape,) * inputs, within=(0.95, 1.05))
        for shape, axis, exclusive, reverse in settings
    ]
    kinds = [INTEGER, ("int32", -(2**31), 2**31), ("uint8", 0, 255), ("uint32", 0, 9)] if integers else []
    return [*found, *(_fixed(lambda x: function(x, 1), ((5, 70),), kind) for kind in kinds)]


def _along(function: Callable[..., Node]) -> list[Case]:
    settings: list[tuple[int, Shape]] = [(0, (5, 3)), (1, (2, 3, 4)), (1, (3, 31)), (0, (7,)), (0, (3, 0))]
    return [Case(lambda x, a=axis: function(x, a), (shape,)) for axis, shape in settings]


CASES: dict[str, list[Case]] = {
    "rsqrt": _few(ops.rsqrt_op, positive=True),
    "abs": [
        *_few(ops.abs_op),
        _fixed(ops.abs_op, ((5, 7),), INTEGER),
        _fixed(ops.abs_op, ((9,),), ("uint32", 0, 9)),
    ],
    "sign": [
        *_few(ops.sign_op),
        _fixed(ops.sign_op, ((5, 7),), INTEGER),
        _fixed(ops.sign_op, ((9,),), ("uint32", 0, 3)),
    ],
    "erf": unary(ops.erf_op),
    "sin": _few(ops.sin_op),
    "cos": _few(ops.cos_op),
    "floor": _few(ops.floor_op),
    "power": cases_of(ops.power_op, *PAIRS, positive=True),
    "fmod": [*cases_of(ops.fmod_op, *PAIRS), *_bits(ops.fmod_op, 2)[:-1]],
    "quotient": _bits(ops.quotient_op, 2)[:-1],
    "maximum": [*cases_of(ops.maximum_op, *PAIRS), _fixed(ops.maximum_op, ((5, 7), (7,)), INTEGER, INTEGER)],
    "minimum": [*cases_of(ops.minimum_op, *PAIRS), _fixed(ops.minimum_op, ((5, 7), (7,)), INTEGER, INTEGER)],
    "clip": _clip(),
    "round": _few(ops.round_op),
    "equal": [*_comparison(ops.equal_op), *_logical(ops.equal_op)],
    "not_equal": [*_comparison(ops.not_equal_op), *_logical(ops.not_equal_op)],
    "less": _comparison(ops.less_op),
    "less_equal": _comparison(ops.less_equal_op),
    "greater": _comparison(ops.greater_op),
    "greater_equal": _comparison(ops.greater_equal_op),
    "logical_and": _logical(ops.logical_and_op),
    "logical_or": _logical(ops.logical_or_op),
    "logical_not": [_fixed(ops.logical_not_op, shape, BOOL) for shape in FEW],
    "bitwise_and": _bits(ops.bitwise_and_op, 2),
    "bitwise_or": _bits(ops.bitwise_or_op, 2),
    "bitwise_xor": _bits(ops.bitwise_xor_op, 2),
    "bitwise_not": _bits(ops.bitwise_not_op, 1),
    "where": _where(),
    "cast": [*_cast(), *_cast_like()],
    "reducemax": _reduced(ops.max_op),
    "min": _reduced(ops.min_op),
    "argmax": _place(ops.argmax_op),
    "argmin": _place(ops.argmin_op),
    "argsort": _argsort(),
    "sort": _sort(),
    "cumsum": _cumulative(ops.cumsum_op, 1, True),
    "cumprod": _cumulative(ops.cumprod_op, 1, True),
    "recurrence": _cumulative(ops.recurrence_op, 2, False),
    "logsumexp": [
        *_reduced(ops.logsumexp_op, integers=False),
        Case(lambda x: ops.logsumexp_op(x, ()), ((2, 3),)),
    ],
    # integers, beside the cases of cases_basic
    "reducesum": [
        _fixed(lambda x: ops.sum_op(x, 0), ((5, 7),), kind) for kind in (INTEGER, ("uint32", 0, 9))
    ],
    "add": [_fixed(ops.add_op, ((5, 7), (7,)), kind, kind) for kind in (INTEGER, ("uint32", 2**31, 2**32))]
    + [_fixed(lambda x: ops.add_byconst_op(x, 3), ((5, 7),), kind) for kind in (INTEGER, ("uint32", 0, 9))],
    "sub": [_fixed(ops.sub_op, ((5, 7), (7,)), kind, kind) for kind in (INTEGER, ("uint32", 0, 9))],
    "mul": [
        *(_fixed(ops.mul_op, ((5, 7), (7,)), kind, kind) for kind in (INTEGER, ("uint32", 2**16, 2**32))),
        _fixed(lambda x: ops.mul_byconst_op(x, 0), ((5, 7),), INTEGER),
        _fixed(lambda x: ops.mul_byconst_op(x, 5), ((5, 7),), ("uint32", 2**29, 2**32)),
    ],
    "neg": [_fixed(ops.neg_op, ((5, 7),), kind) for kind in (INTEGER, ("uint32", 0, 9))],
    "matmul": [
        _fixed(ops.matmul_op, ((5, 40), (40, 33)), INTEGER, INTEGER),
        _fixed(ops.matmul_op, ((2, 3, 4), (4,)), ("int32", -9, 9), ("int32", -9, 9)),
        _fixed(lambda a, b: ops.matmul_op(a, b, True, True), ((7, 6), (3, 7)), ("uint32", 0, 2**16), ("uint32", 0, 9)),
    ],
}
