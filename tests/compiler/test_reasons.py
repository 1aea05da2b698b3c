"""Every decision of passes and fusion has a reason, and the executor prints it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
from dlsys import autodiff as ad
from dlsys import ops
from dlsys.compiler import PASSES, fuse, run_passes
from dlsys.graph import Node, Shape
from helpers import check_groups_reasons, check_reasons, typed_graph

SHAPES: dict[str, Shape] = {"x": (3, 4), "y": (3, 4), "v": (8,), "t": (2, 3, 4)}
OF_RULES: list[tuple[str, str, Any]] = [  # the pass, the reason, and a graph in which it is one; others: test_passes.py
    ("taps", "the other taps meet nothing but padding",
     lambda v: ops.conv2d_op(ops.reshape_op(v.x, (3, 4, 1, 1)), ops.full_op((2, 4, 3, 3), 0.5), padding=1)),
    ("taps", "a stride of one tap reads a part of the images",
     lambda v: ops.conv2d_input_gradient_op(
         ops.full_op((2, 2, 1, 1), 0.5), ops.reshape_op(v.t, (2, 2, 2, 3)), (2, 2, 4, 5), stride=2)),
]  # fmt: skip


def drawn_variables() -> tuple[SimpleNamespace, dict[Node, tuple[Shape, str]]]:
    nodes = {name: ops.variable(name, shape, "float32") for name, shape in SHAPES.items()}
    return SimpleNamespace(**nodes), {node: (SHAPES[name], "float32") for name, node in nodes.items()}


def test_rules_give_their_reasons() -> None:
    for name, why, build in OF_RULES:
        v, fed = drawn_variables()
        before = typed_graph([build(v)], [], fed)
        after = run_passes(before, tuple(PASSES))
        assert (name, why) in {(rule, reason) for rule, _, reason in after.reasons}, why
        check_reasons(before, after)


def test_kernels_say_why_they_are_one_or_two() -> None:
    x, w, b = ad.Variable("x"), ad.Variable("w"), ad.Variable("b")
    hidden = ad.tanh_op(x @ w + b)
    other = ad.Variable("other")
    nodes = [ad.softmax_op(hidden) * 2.0, ad.reducesum_op(hidden, 0), ad.exp_op(ad.exp_op(other)), other + 1.0]
    fed = {x: (96, 32), w: (32, 80), b: (80,), other: (7, 5)}
    graph = typed_graph(nodes, [], {node: (shape, "float32") for node, shape in fed.items()})
    reasons: list = []
    groups = fuse(graph, reasons=reasons)
    check_groups_reasons(groups, reasons)
    assert {why for _, _, why in reasons} >= {
        "nothing else reads it", "reads it", "shares an input with it", "its sums must be complete first"
    }  # fmt: skip


def test_executors_print_reasons() -> None:
    x, w = ad.Variable("x"), ad.Parameter(np.ones((3, 4), "float32"), "w")
    product = x @ w
    loss = ad.reducesum_op(ad.softmax_op(ad.relu_op(product) + ad.neg_op(product)))
    executor = ad.Executor([loss, ad.assign(w, w - 0.5 * ad.gradients(loss, [w])[0])])
    shapes = {x: (5, 3)}
    plain, told = executor.graph(True, shapes), executor.graph(True, reasons=True)
    assert told.startswith(plain + "\n") and "# the other operand is one number" in told
    assert executor.graph() == executor.graph(reasons=True)  # as it was written
    lines = told[len(plain) + 1 :].splitlines()
    assert len(lines) == len(executor.latest_plan().graph.reasons)
    assert any(line.startswith("dead: ") and line.endswith("# nothing returned depends on it") for line in lines)
    plain, told = executor.groups(), executor.groups(reasons=True)
    assert told.startswith(plain + "\n") and " joined " in told
    assert "0 | 1: " in told and " is apart from " in told


def test_loops_print_the_reasons_of_their_steps() -> None:
    x, h = ad.Variable("x"), ad.Variable("h")
    last, _ = ops.scan_op(lambda state, value: (ad.tanh_op(state + value) * 0.5, value), h, x)
    executor = ad.Executor([last])
    told = executor.groups({x: (6, 4, 4), h: (4, 4)}, reasons=True)
    assert any(" joined " in line and line.split(":")[0].count(".") == 1 for line in told.splitlines()), told
