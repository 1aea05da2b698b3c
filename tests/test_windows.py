"""Depthwise convolutions, their gradients, and the rule that schedules them."""

from __future__ import annotations

import dlsys
import numpy as np
from dlsys import autodiff as ad
from dlsys import compute, schedule
from dlsys.schedule.target import resolve_target
from helpers import on_threads
from tvm import te

# batch, channels, height, width, filters' height and width, stride, padding, dilation
CASES = (
    (2, 5, 8, 8, 3, 3, 1, 1, 1),
    (3, 4, 7, 9, 3, 3, 2, 1, 1),
    (1, 3, 56, 56, 3, 3, 1, 1, 1),
    (1, 4, 5, 5, 5, 5, 1, 2, 1),
    (1, 3, 10, 70, 3, 3, 1, 0, 1),
    (2, 3, 9, 1, 3, 3, 1, 1, 1),
    (2, 3, 1, 1, 3, 3, 1, 1, 1),
    (2, 3, 12, 12, 3, 3, 1, 2, 2),
    (2, 4, 20, 33, 3, 1, (2, 1), (1, 0), 1),
    (1, 3, 1, 14, 1, 7, 1, (1, 2), 1),  # rows of one element
    (1, 3, 9, 67, 7, 7, 1, 3, 1),  # no part of 67 makes vectors
    (1, 3, 20, 20, 9, 9, 1, 4, 1),  # more taps than are unrolled
)


def test_depthwise_convolutions_and_gradients_equal_the_numpy_rules() -> None:
    rng = np.random.default_rng(0)
    for number, (n, c, h, w, fy, fz, *geometry) in enumerate(CASES):
        dtype, tolerance = (("float32", 3e-6), ("float64", 1e-14))[number % 3 == 2]
        x, f, g = ad.Variable("x"), ad.Variable("f"), ad.Variable("g")
        y = ad.conv2d_op(ad.relu_op(x) if number % 2 else x, f, *geometry, groups=c)
        feed = {
            x: rng.standard_normal((n, c, h, w)).astype(dtype),
            f: rng.standard_normal((c, 1, fy, fz)).astype(dtype),
        }
        (out,) = ad.Executor([y], ctx=dlsys.numpy()).run(feed, convert_to_numpy_ret_vals=True)
        feed[g] = rng.standard_normal(out.shape).astype(dtype)
        outputs = [y, ad.relu_op(y) + 1.0, *ad.gradients(y * g, [x, f])]
        with on_threads(1 + number % 2):
            ours = ad.Executor(outputs).run(feed, convert_to_numpy_ret_vals=True)
        plain = ad.Executor(outputs, ctx=dlsys.numpy()).run(feed, convert_to_numpy_ret_vals=True)
        for a, b in zip(ours, plain, strict=True):
            np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * np.abs(b).max(), err_msg=str(CASES[number]))


def test_planes_are_scheduled_by_the_rule_for_windows() -> None:
    target = resolve_target({"kind": "llvm", "mcpu": "skylake-avx512", "num-cores": 2})
    n, c, size = 4, 32, 28
    x, f = (compute.placeholder(shape, "float32", "x") for shape in ((n, c, size, size), (c, 1, 3, 3)))
    ones = (1, 1)
    for inputs, formula in (
        ([x, f], compute.conv2d(x, f, ones, ones, ones, c)),
        ([f, x], compute.conv2d_input_gradient(f, x, (n, c, size, size), ones, ones, ones, c)),
        ([x], compute.conv2d_filter_gradient(x, x, (c, 1, 3, 3), ones, ones, ones, c)),
    ):
        function, rule = schedule.apply(te.create_prim_func([*inputs, formula]), target)
        assert rule.name == "windows" and "T.parallel" in function.script()
    two = compute.placeholder((2 * c, 1, 3, 3), "float32", "f")  # two filters a channel: a product
    function = te.create_prim_func([x, two, compute.conv2d(x, two, ones, ones, ones, c)])
    assert schedule.apply(function, target)[1].name != "windows"
