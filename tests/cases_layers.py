"""Cases of the operators for batched products, general convolutions, pooling and what networks are made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from cases import Case, cases_of
from dlsys import ops
from dlsys.deploy import operators as last
from dlsys.graph import Node, Shape
from dlsys.ops.cross_entropy import class_counts
from dlsys.ops.pooling import avg_pool2d, max_pool2d, max_pool2d_place, pool_attributes

# a, b, trans_A, trans_B
PRODUCTS: list[tuple[Shape, Shape, bool, bool]] = [
    ((2, 3, 4), (2, 4, 5), False, False),
    ((2, 4, 3), (4, 5), True, False),
    ((2, 3, 4), (5, 4), False, True),
    ((4, 3), (2, 5, 4), True, True),
    ((2, 1, 3, 4), (3, 4, 2), False, False),
    ((1, 3, 4), (2, 4, 2), False, False),
    ((4,), (2, 4, 5), False, False),
    ((2, 3, 4), (4,), False, False),
    ((4, 3), (4,), True, False),
    ((5,), (5,), False, False),
    ((0, 3, 4), (4, 2), False, False),
    ((2, 3, 0), (2, 0, 2), False, False),
]


def _matmul() -> list[Case]:
    return [Case(lambda x, y, s=s, t=t: ops.matmul_op(x, y, s, t), (a, b)) for a, b, s, t in PRODUCTS]


def _scan() -> list[Case]:
    """Results of loops: a product with what is carried, two values carried, one backwards, one without slices."""

    def recurrent(h: Node, x: Node, w: Node) -> Node:
        def step(h: Node, x: Node) -> tuple[Node, Node]:
            z = ops.tanh_op(ops.matmul_op(h, w) + x)
            return z * 0.5 + h, ops.exp_op(-z * z)

        return ops.scan_op(step, h, x)[1]

    def running(total: Node, peak: Node, x: Node) -> Node:
        def step(carried: Any, x: Node) -> Any:
            total, peak = carried
            return (total + x * peak, ops.maximum_op(peak, x)), None

        return ops.scan_op(step, (total, peak), x, reverse=True)[0][0]

    def power(x: Node) -> Node:
        return ops.scan_op(lambda x, _: (ops.sin_op(x) + x, None), x, length=3)[0]

    return [
        Case(recurrent, ((2, 3), (4, 2, 3), (3, 3))),
        Case(recurrent, ((16, 64), (5, 16, 64), (64, 64))),
        Case(running, ((5,), (5,), (6, 5))),
        Case(running, ((), (), (1,))),
        Case(power, ((2, 3),)),
    ]


# images, filters, stride, padding, dilation, groups
GEOMETRIES: list[tuple[Shape, Shape, Any, Any, Any, int]] = [
    ((2, 3, 7, 9), (4, 3, 3, 3), 1, 1, 2, 1),
    ((1, 2, 8, 7), (3, 2, 2, 3), (2, 1), (1, 2), (3, 2), 1),
    ((2, 4, 6, 5), (6, 2, 3, 3), 1, 1, 1, 2),
    ((2, 6, 7, 6), (3, 2, 3, 2), 2, (1, 0), (1, 2), 3),
    ((2, 3, 6, 6), (3, 1, 3, 3), 1, 1, 1, 3),
    ((1, 2, 5, 6), (4, 1, 3, 3), 2, 2, 2, 2),
    ((1, 4, 4, 4), (4, 2, 1, 1), 1, 0, 1, 2),
    ((0, 4, 4, 4), (2, 2, 2, 2), 1, 0, 1, 2),
]


def conv_output(images: Shape, filters: Shape, stride: Any, padding: Any, dilation: Any) -> Shape:
    """The output's shape, counted rather than computed."""
    s, p, d = (np.broadcast_to(value, 2) for value in (stride, padding, dilation))
    ends = [images[2 + i] + 2 * int(p[i]) - int(d[i]) * (filters[2 + i] - 1) for i in (0, 1)]
    return (images[0], filters[0], *(len(range(0, ends[i], int(s[i]))) for i in (0, 1)))


def _convolution(kind: str) -> list[Case]:
    cases = []
    for x, f, *geometry in GEOMETRIES:
        g = conv_output(x, f, *geometry[:3])
        function, shapes, given = {
            "conv2d": (ops.conv2d_op, (x, f), ()),
            "input": (ops.conv2d_input_gradient_op, (f, g), (x,)),
            "filter": (ops.conv2d_filter_gradient_op, (x, g), (f,)),
        }[kind]
        cases.append(Case(lambda *v, fn=function, a=(*given, *geometry): fn(*v, *a), shapes))
    return cases


# images NHWC, panels of filters, filters, stride, padding, dilation
IN_PANELS: list[tuple[Shape, Shape, int, Any, Any, Any]] = [
    ((2, 7, 9, 3), (1, 3, 3, 3, 4), 4, 1, 1, 2),
    ((1, 8, 7, 2), (3, 2, 3, 2, 2), 5, (2, 1), (1, 2), (3, 2)),
    ((1, 5, 5, 4), (2, 3, 3, 4, 16), 32, 1, 1, 1),
    ((1, 6, 6, 4), (2, 1, 1, 4, 16), 32, 2, 0, 1),
    ((1, 7, 7, 16), (1, 3, 1, 16, 16), 16, 1, (1, 0), 1),
]
# images NHWC, filters of the planes, stride, padding, dilation
PLANES: list[tuple[Shape, Shape, Any, Any, Any]] = [
    ((2, 7, 9, 3), (3, 3, 3), 1, 1, 1),
    ((1, 8, 5, 33), (2, 3, 33), (2, 1), (1, 0), (1, 2)),
    ((1, 9, 9, 64), (5, 5, 64), 2, 2, 1),
]
# images NHWC, windows, stride, padding, means
WINDOWS_LAST: list[tuple[Shape, Any, Any, Any, bool]] = [
    ((2, 7, 9, 3), 3, 2, 1, False),
    ((1, 6, 5, 40), (2, 3), None, 0, True),
    ((1, 5, 8, 16), 3, 1, 1, True),
    ((1, 4, 4, 64), 2, None, 1, False),
]
# images, matrix, axis, tiles, stride, padding
TILES: list[tuple[Shape, Shape, int, int, int, int]] = [
    ((2, 9, 5), (6, 6), 1, 3, 4, 1),
    ((3, 4, 2, 16), (4, 3), 0, 2, 2, 0),
    ((1, 1, 33), (6, 6), 1, 1, 4, 1),
]
# transformed tiles, matrix, axis, extent
JOINED: list[tuple[Shape, Shape, int, int]] = [
    ((6, 2, 3, 5), (4, 6), 1, 9),
    ((3, 2, 16), (2, 3), 0, 4),
    ((6, 1, 33), (4, 6), 0, 1),
]


def _last() -> dict[str, list[Case]]:
    return {
        "conv2d_panels": [Case(lambda *v, a=a: last.conv2d_panels_op(*v, *a), (x, f)) for x, f, *a in IN_PANELS],
        "conv2d_planes": [
            Case(lambda *v, c=x[-1], a=a: last.conv2d_planes_op(*v, c, *a), (x, f)) for x, f, *a in PLANES
        ],
        "pool_last": [Case(lambda x, a=a: last.pool_last_op(x, *a), (x,)) for x, *a in WINDOWS_LAST],
        "transform_tiles": [Case(lambda *v, a=a: last.transform_tiles_op(*v, *a), (x, m)) for x, m, *a in TILES],
        "join_tiles": [Case(lambda *v, a=a: last.join_tiles_op(*v, *a), (x, m)) for x, m, *a in JOINED],
    }


# logits, targets, past the largest class number, ignore_index
TARGETS: list[tuple[Shape, Shape, int, int]] = [
    ((5, 3), (5,), 3, -100),
    ((4, 31), (4,), 31, 2),
    ((6, 2), (6,), 2, 1),
    ((1, 1), (1,), 1, -100),
    ((2, 4, 3, 2), (2, 3, 2), 4, 3),
    ((0, 4), (0,), 4, -100),
]


def _of_numbers(function: Callable[..., Node], more: int, **attrs: Any) -> list[Case]:
    """Cases of a function of class numbers, of which one is ignored, and of so many more, that are none."""
    return [
        Case(
            lambda x, n=logits[1], i=ignored: function(x, classes=n, ignore_index=i, **attrs), (targets,),
            fixed=((0, ("int32", "int64", "uint8")[number % 3], 0, classes + more),),
        )
        for number, (logits, targets, classes, ignored) in enumerate(TARGETS)
    ]  # fmt: skip


def _cross_entropy() -> list[Case]:
    cases = []
    for number, (logits, targets, classes, ignored) in enumerate(TARGETS):
        fixed = ((1, ("int32", "int64", "uint8")[number % 3], 0, classes),)
        for smoothing, reduction in ((0.0, "none"), (0.2, "sum")):
            given = {"ignore_index": ignored, "label_smoothing": smoothing, "reduction": reduction}
            cases.append(Case(lambda *v, a=given: ops.cross_entropy_op(*v, **a), (logits, targets), fixed=fixed))
    return cases


# images, kernel, stride, padding
POOLS: list[tuple[Shape, Any, Any, Any]] = [
    ((2, 3, 6, 4), 2, None, 0),
    ((2, 2, 7, 8), 3, 2, 1),
    ((1, 2, 5, 6), (3, 2), 1, (1, 0)),
    ((1, 2, 9, 7), (2, 3), (3, 4), 0),
    ((1, 1, 7, 7), 6, 1, 2),
    ((1, 2, 1, 1), 1, 1, 0),
    ((0, 2, 4, 4), 2, 2, 0),
]

def pooled(images: Shape, kernel: Any, stride: Any, padding: Any) -> Shape:
    """The shape of the pooled images."""
    one = (1, 1, *(int(k) for k in np.broadcast_to(kernel, 2)))
    return (*images[:2], *conv_output(images, one, kernel if stride is None else stride, padding, 1)[2:])


def _pool(name: str) -> list[Case]:
    cases = []
    for images, *window in POOLS:
        attrs, maxima = pool_attributes(name, *window), pooled(images, *window)
        function, shapes, more = {
            "max_pool2d": (max_pool2d, (images,), attrs),
            "max_pool2d_place": (max_pool2d_place, (images, maxima), attrs),
            "avg_pool2d": (avg_pool2d, (images,), attrs),
        }[name]
        cases.append(Case(lambda *v, fn=function, a=more: fn(*v, **a), shapes))
    return cases


def _layer_norm() -> list[Case]:
    return [
        *cases_of(ops.layer_norm_op, ((3, 31),), ((2, 5, 3), (3,)), ((2, 5, 3), (3,), (3,))),
        Case(lambda *v: ops.layer_norm_op(*v, axes=(-2, -1)), ((2, 4, 3), (4, 3), (4, 3))),
        Case(lambda x, bias: ops.layer_norm_op(x, None, bias), ((2, 5, 3), (3,))),
    ]


def _batch_norm() -> list[Case]:
    shapes = [((6, 5),), ((2, 5, 3),), ((2, 5, 3), (5,), (5,)), ((2, 3, 4, 5), (3,), (3,))]
    return cases_of(lambda *v: ops.batch_norm_op(*v)[0], *shapes)


CASES: dict[str, list[Case]] = {
    "batch_norm": _batch_norm(),
    "layer_norm": _layer_norm(),
    **_last(),
    "avg_pool2d": _pool("avg_pool2d"),
    "class_counts": _of_numbers(class_counts, 0, dtype="float64"),
    "cross_entropy": _cross_entropy(),
    "conv2d": _convolution("conv2d"),
    "conv2d_filter_gradient": _convolution("filter"),
    "conv2d_input_gradient": _convolution("input"),
    "matmul": _matmul(),
    "scan_result": _scan(),
    "max_pool2d": _pool("max_pool2d"),
    "max_pool2d_place": _pool("max_pool2d_place"),
}


def _panels() -> list[Case]:
    sizes = [(3, 5, 2, 4), (6, 31, 2, 16), (1, 1, 1, 4), (0, 3, 1, 4), (5, 0, 1, 4)]
    products = [Case(last.matmul_panels, ((m, k), (count, k, width))) for m, k, count, width in sizes]
    return [*products, Case(last.matmul_panels, ((2, 3, 5), (2, 2, 5, 4)))]


CASES["matmul_panels"] = _panels()
