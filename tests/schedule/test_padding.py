"""Convolutions beside their borders: taps that meet only zeros are cut off; depthwise convolutions."""

from __future__ import annotations

from typing import Any

import dlsys
import numpy as np
import pytest
from dlsys import autodiff as ad
from dlsys import optim, tvm_op
from dlsys.compiler import TypedGraph, run_passes
from dlsys.graph import Shape
from dlsys.ops.conv import ROLES
from helpers import check_form, evaluate, on_threads, typed_graph


def _reference(x: np.ndarray, f: np.ndarray, stride: tuple[int, int], padding: tuple[int, int]) -> np.ndarray:
    x = np.pad(x, ((0, 0), (0, 0), *((p, p) for p in padding)))
    windows = np.lib.stride_tricks.sliding_window_view(x, f.shape[2:], (2, 3))[:, :, :: stride[0], :: stride[1]]
    return np.einsum("ncyzij,ocij->noyz", windows, f, optimize=True)


@pytest.mark.slow
def test_convolutions_of_any_border_equal_numpy():
    random = np.random.default_rng(0)
    for number in range(16):
        size, taps = random.integers(1, 15, 2), random.integers(1, 5, 2)
        least = np.maximum(0, -(-(taps - size) // 2))  # for filters to fit into the images
        padding = tuple(int(v) for v in random.integers(least, taps + 1))
        stride = tuple(int(v) for v in random.integers(1, 3, 2))
        dtype = "float64" if number % 4 == 3 else "float32"
        x = random.standard_normal((2, int(random.choice([3, 16, 20])), *size)).astype(dtype)
        f = random.standard_normal((int(random.choice([7, 16, 40])), x.shape[1], *taps)).astype(dtype)
        want = _reference(x, f, stride, padding)
        with on_threads(1 + number % 2):
            kernel = tvm_op.make_conv2d(
                x.shape, f.shape, "llvm", "llvm", "conv", dtype, stride=stride, padding=padding
            )
        out = np.full(want.shape, np.nan, dtype)
        kernel(x, f, out)
        np.testing.assert_allclose(
            out, want, rtol=0, atol=np.abs(want).max() * (2e-6 if dtype == "float32" else 1e-14)
        )


def test_a_width_that_is_a_prime_has_tiles_of_one_row() -> None:
    x, f = ad.Variable("x"), ad.Variable("f")
    executor = ad.Executor([ad.conv2d_op(x, f, padding=(1, 4))])
    random = np.random.default_rng(3)
    a, b = (random.standard_normal(s).astype("float32") for s in ((2, 110, 1, 14), (16, 110, 2, 4)))
    (found,) = executor.run({x: a, f: b}, convert_to_numpy_ret_vals=True)
    np.testing.assert_allclose(found, _reference(a, b, (1, 1), (1, 4)), atol=1e-3)


@pytest.mark.slow
def test_gradients_over_borders_equal_the_numpy_rules():
    random = np.random.default_rng(2)
    cases = (  # height and width of images, of filters, stride, padding, dilation
        ((6, 6), (3, 3), 1, 1, 1),
        ((2, 2), (3, 3), 1, 1, 1),
        ((1, 4), (3, 3), 1, 1, 1),
        ((5, 7), (5, 3), 1, (2, 1), 1),
        ((8, 8), (3, 3), 2, 1, 1),  # by phases
        ((6, 4), (4, 4), (2, 1), (1, 2), 1),
        ((7, 7), (3, 3), 2, 1, 1),  # with zeros between
        ((6, 5), (3, 3), 1, (1, 0), 1),
        ((6, 5), (3, 2), 1, (0, 1), 1),
        ((9, 9), (3, 3), 1, 2, 2),
        ((4, 1), (3, 3), 3, (3, 1), 1),  # one column, of which one tap is left
        ((1, 4), (3, 3), 3, (1, 3), 1),
        ((3, 1), (3, 2), 2, 3, (1, 2)),  # no tap meets the one column
    )
    for number, (size, taps, *geometry) in enumerate(cases):
        x, f, g = ad.Variable("x"), ad.Variable("f"), ad.Variable("g")
        y = ad.conv2d_op(x, f, *geometry)
        values = {
            x: random.standard_normal((3, 16, *size)).astype(np.float32),
            f: random.standard_normal((24, 16, *taps)).astype(np.float32),
        }
        (out,) = ad.Executor([y], ctx=dlsys.numpy()).run(values, convert_to_numpy_ret_vals=True)
        values[g] = random.standard_normal(out.shape).astype(np.float32)
        outputs = [y, *ad.gradients(y * g, [x, f])]
        with on_threads(1 + number % 2):
            ours = ad.Executor(outputs).run(values, convert_to_numpy_ret_vals=True)
        plain = ad.Executor(outputs, ctx=dlsys.numpy()).run(values, convert_to_numpy_ret_vals=True)
        for a, b in zip(ours, plain, strict=True):
            np.testing.assert_allclose(a, b, rtol=0, atol=3e-6 * np.abs(b).max(), err_msg=str(cases[number]))


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


def _without_taps(images: Shape, filters: Shape, *how: Any) -> tuple[TypedGraph, TypedGraph]:
    """The graph of a convolution and its gradients, and what the pass makes of it, which has the same values."""
    x, f = ad.Variable("x", images, "float64"), ad.Variable("f", filters, "float64")
    y = ad.conv2d_op(x, f, *how, groups=images[1] // filters[1])
    outputs = [y, *ad.gradients(ad.exp_op(y), [x, f])]
    graph = typed_graph(outputs, [], {x: (images, "float64"), f: (filters, "float64")})
    after = run_passes(graph, ["taps"])
    check_form(after)
    rng = np.random.default_rng(0)
    feed = {x: rng.standard_normal(images), f: rng.standard_normal(filters)}
    for a, b in zip(evaluate(list(after.outputs), feed), evaluate(outputs, feed), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)
    return graph, after


def test_taps_that_meet_only_padding_are_cut_off() -> None:
    for images, filters, stride, padding, dilation, left in CASES:
        graph, after = _without_taps(images, filters, stride, padding, dilation)
        read = {x.shape for node in after.nodes for x in _filters_of(node)}
        assert read == {(*filters[:2], *left)}, (images, filters, read)
        assert _same(after, graph) == (left == filters[2:])


def _same(one: TypedGraph, other: TypedGraph) -> bool:
    """Whether the same nodes are computed; `==` of nodes compares their elements."""
    return [id(node) for node in one.nodes] == [id(node) for node in other.nodes]


def _filters_of(node: ad.Node) -> list[ad.Node]:
    """Which of a convolution's inputs and its result has the filters' shape."""
    roles = ROLES.get(node.op.name, ())
    return [x for what, x in zip(roles, (*node.inputs, node), strict=False) if what == "filters"]


def test_a_filter_that_meets_nothing_stays() -> None:
    x, f = ad.Variable("x"), ad.Variable("f")
    y = ad.conv2d_op(x, f, stride=3, padding=1)  # rows 0 and 3 of the padded image, which are padding
    graph = typed_graph([y], [], {x: ((1, 1, 2, 2), "float64"), f: ((1, 1, 1, 1), "float64")})
    assert _same(run_passes(graph, ["taps"]), graph)


# images, filters, stride
ONE_TAP = (
    ((2, 4, 6, 6), (8, 4, 1, 1), 2),
    ((2, 4, 5, 8), (8, 2, 1, 1), (1, 3)),  # in two groups
    ((1, 3, 1, 7), (5, 3, 1, 1), 2),
    ((2, 3, 2, 2), (5, 3, 1, 1), 4),  # one position
)


def test_a_gradient_of_a_strided_convolution_of_one_tap_loses_its_stride() -> None:
    for images, filters, stride in ONE_TAP:
        _, after = _without_taps(images, filters, stride)
        of_images = [node for node in after.nodes if node.op.name == "conv2d_input_gradient"]
        assert [node.attrs["stride"] for node in of_images] == [(1, 1)], (images, filters)


@pytest.mark.slow
def test_convolutions_of_one_tap_run_along_the_pixels_of_an_image() -> None:
    random = np.random.default_rng(0)
    for images, filters in (((8, 64, 7, 7), 96), ((3, 70, 7, 7), 33), ((2, 40, 5, 7), 64), ((4, 96, 14, 14), 128)):
        x = random.standard_normal(images).astype(np.float32)
        f = random.standard_normal((filters, images[1], 1, 1)).astype(np.float32)
        for threads in (1, 2):
            with on_threads(threads):
                kernel = tvm_op.make_conv2d(x.shape, f.shape, "llvm", "llvm", "conv")
            want = _reference(x, f, (1, 1), (0, 0))
            out = np.full(want.shape, np.nan, np.float32)
            kernel(x, f, out)
            np.testing.assert_allclose(out, want, rtol=0, atol=3e-6 * np.abs(want).max())


# batch, channels, height, width, filters' height and width, stride, padding, dilation
PLANES = (
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


@pytest.mark.slow
def test_depthwise_convolutions_and_gradients_equal_the_numpy_rules() -> None:
    rng = np.random.default_rng(0)
    for number, (n, c, h, w, fy, fz, *geometry) in enumerate(PLANES):
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
            np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * np.abs(b).max(), err_msg=str(PLANES[number]))


@pytest.mark.slow
def test_filters_of_planes_are_updated_where_their_gradient_is_made() -> None:
    """The update of depthwise filters follows their gradient's sums in one kernel, whose rule must not fail."""
    random = np.random.default_rng(0)
    for count, channels, height, width, fy, fz, *geometry in PLANES[:5]:
        x = random.standard_normal((count, channels, height, width)).astype(np.float32)
        start = random.standard_normal((channels, 1, fy, fz)).astype(np.float32)
        found = []
        for ctx in (dlsys.cpu(), dlsys.numpy()):
            images, filters = ad.Variable("images", x.shape), ad.Parameter(start.copy(), "filters")
            loss = ad.mean_op(ad.conv2d_op(images, filters, *geometry, groups=channels) ** 2)
            executor = ad.Executor([optim.SGD([filters], lr=0.1, momentum=0.9).minimize(loss)], ctx=ctx)
            for _ in range(2):
                executor.run({images: x})
            found.append(filters.numpy())
        np.testing.assert_allclose(*found, rtol=0, atol=1e-5 * np.abs(found[1]).max())
