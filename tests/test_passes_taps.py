"""Filters lose the taps that meet nothing but padding, with the same results and gradients."""

from __future__ import annotations

import numpy as np
from dlsys import autodiff as ad
from dlsys.compiler import TypedGraph, run_passes, typed_graph
from helpers import check_form, evaluate

# images, filters, stride, padding, dilation, and the filters' extents that are left
CASES = (
    ((2, 3, 1, 1), (4, 3, 3, 3), 1, 1, 1, (1, 1)),
    ((2, 3, 2, 2), (4, 3, 3, 3), 2, 1, 1, (2, 2)),
    ((2, 3, 1, 4), (4, 3, 3, 3), 1, 1, 1, (1, 3)),
    ((2, 3, 2, 2), (4, 3, 5, 5), 1, 2, 1, (3, 3)),
    ((2, 3, 1, 1), (4, 3, 3, 3), 1, 2, 2, (1, 1)),
    ((2, 4, 1, 1), (4, 2, 3, 3), 1, 1, 1, (1, 1)),  # in two groups
    ((2, 3, 2, 2), (4, 3, 3, 3), 1, 1, 1, (3, 3)),  # every tap meets something
    ((2, 3, 3, 3), (4, 3, 4, 4), 2, 1, 1, (3, 3)),  # one position
    ((2, 3, 1, 1), (4, 3, 2, 2), 1, 1, 1, (2, 2)),  # four positions: each tap is met at one
    ((2, 3, 4, 4), (4, 3, 1, 3), (3, 2), (1, 1), 1, (1, 3)),
)


def test_taps_that_meet_only_padding_are_cut_off() -> None:
    for images, filters, stride, padding, dilation, left in CASES:
        x, f = ad.Variable("x"), ad.Variable("f")
        y = ad.conv2d_op(x, f, stride, padding, dilation, groups=images[1] // filters[1])
        outputs = [y, *ad.gradients(ad.exp_op(y), [x, f])]
        graph = typed_graph(outputs, [], {x: (images, "float64"), f: (filters, "float64")})
        after = run_passes(graph, ["taps"])
        check_form(after)
        rng = np.random.default_rng(0)
        feed = {x: rng.standard_normal(images), f: rng.standard_normal(filters)}
        for a, b in zip(evaluate(list(after.outputs), feed), evaluate(outputs, feed), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)
        read = {after.shapes[node.inputs[k]] for node in after.nodes for k in _filters_of(node)}
        assert read == {(*filters[:2], *left)}, (images, filters, read)
        assert _same(after, graph) == (left == filters[2:])


def _same(one: TypedGraph, other: TypedGraph) -> bool:
    """Whether the same nodes are computed; `==` of nodes compares their elements."""
    return [id(node) for node in one.nodes] == [id(node) for node in other.nodes]


def _filters_of(node: ad.Node) -> tuple[int, ...]:
    """Which of a convolution's inputs has the filters' shape."""
    return {"conv2d": (1,), "conv2d_input_gradient": (0,), "conv2d_filter_gradient": (2,)}.get(node.op.name, ())


def test_a_filter_that_meets_nothing_stays() -> None:
    x, f = ad.Variable("x"), ad.Variable("f")
    y = ad.conv2d_op(x, f, stride=3, padding=1)  # rows 0 and 3 of the padded image, which are padding
    graph = typed_graph([y], [], {x: ((1, 1, 2, 2), "float64"), f: ((1, 1, 1, 1), "float64")})
    assert _same(run_passes(graph, ["taps"]), graph)
