"""Products, convolutions, pooling, normalisation and losses against PyTorch: values and gradients, compiled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import dlsys as dl
import numpy as np
import pytest
from dlsys import autodiff as ad
from dlsys import ops
from dlsys.compiler import NAMES, run_passes
from helpers import on_threads, typed_graph
from optional import optional, torch

F = optional("torch.nn.functional")


def test_special_values_are_pytorchs() -> None:
    logits = np.array([[1e4, -1e4, 0], [-np.inf, 0, 1], [np.nan, 0, 1], [0, 1, 2]], "float32")
    numbers = np.array([1, 0, 2, 2], "int64")
    x, t, p = ad.Variable("x"), ad.Variable("t"), ad.Variable("p")
    images = np.full((1, 1, 4, 4), -np.inf, "float32")
    images[0, 0, 1, 2], images[0, 0, 3, 3] = np.nan, np.inf
    losses, mean = ops.cross_entropy_op(x, t, reduction="none"), ops.cross_entropy_op(x, t, 2)
    executor = ad.Executor([losses, mean, ops.max_pool2d_op(p, 3, 2, 1)])
    found = executor.run({x: logits, t: numbers, p: images}, convert_to_numpy_ret_vals=True)
    tx, tt = torch.from_numpy(logits), torch.from_numpy(numbers)
    expected = [
        F.cross_entropy(tx, tt, reduction="none"),
        F.cross_entropy(tx, tt, ignore_index=2),
        F.max_pool2d(torch.from_numpy(images), 3, 2, 1),
    ]
    for ours, want in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, want.detach().numpy(), rtol=1e-6, atol=1e-40)


def test_targets_that_are_no_class_make_the_loss_nan_and_ignored_ones_leave_none() -> None:
    """Where a run computes them; those that are fed are looked at."""
    x, t, zero = ad.Variable("x"), ad.Variable("t"), ad.Variable("zero")
    of_run = t + zero
    losses, mean = ops.cross_entropy_op(x, of_run, reduction="none"), ops.cross_entropy_op(x, of_run)
    executor = ad.Executor([losses, mean, *ad.gradients(losses, [x])])
    nothing = np.zeros(4, "int64")
    logits = np.zeros((4, 3), "float32")
    for targets in (np.array([0, 3, -1, -100]), np.array([2**40, -(2**40), 3, 1])):
        each, total, grad = executor.run({x: logits, t: targets, zero: nothing}, convert_to_numpy_ret_vals=True)
        bad = (targets != -100) & ((targets < 0) | (targets >= 3))
        assert np.isnan(each[bad]).all() and np.isfinite(each[~bad]).all() and np.isnan(total)
        assert np.isnan(grad[bad]).all() and np.isfinite(grad[~bad]).all()
        assert not each[targets == -100].any() and not grad[targets == -100].any()
    ignored = np.full(4, -100)
    each, total, _ = executor.run({x: logits, t: ignored, zero: nothing}, convert_to_numpy_ret_vals=True)
    assert not each.any() and np.isnan(total)


def test_the_gradient_of_a_shared_matrix_is_one_product_of_matrices() -> None:
    x, w = ad.Variable("x"), ad.Variable("w")
    for trans_b in (False, True):
        grads = ad.gradients(ops.matmul_op(x, w, False, trans_b), [x, w])
        shapes = {x: (4, 8, 6), w: (5, 6) if trans_b else (6, 5)}
        graph = typed_graph(grads, [], {node: (shape, "float32") for node, shape in shapes.items()})
        nodes = run_passes(graph, NAMES).nodes
        products = [node for node in nodes if node.op.name == "matmul"]
        others = {node.op.name for node in nodes} - {"matmul", "full", "reshape"}
        assert len(products) == 2 and not others, nodes
        feed = {node: np.ones(shape, "float32") for node, shape in shapes.items()}
        _, grad = ad.Executor(grads).run(feed, convert_to_numpy_ret_vals=True)
        np.testing.assert_array_equal(grad, np.full(shapes[w], 32, "float32"))


@pytest.mark.slow
def test_strided_gradients_do_not_depend_on_threads():
    """TVM 0.27 simplified the taps of two phases, whose loops were fused to run in parallel, to a wrong index."""
    random = np.random.default_rng(4)
    x, f, g = (ad.Variable(name) for name in "xfg")
    for images, filters, stride, padding in (
        ((128, 64, 2, 2), (128, 64, 3, 3), 2, 1),
        ((128, 32, 6, 3), (64, 32, 5, 3), (3, 1), (2, 1)),
    ):
        node = ad.conv2d_input_gradient_op(f, g, x, stride, padding)
        out = ad.conv2d_op(x, f, stride, padding)
        shape = out.op.infer_shape(out, [images, filters])
        drawn = {n: random.standard_normal(s).astype("float32") for n, s in ((x, images), (f, filters), (g, shape))}
        (want,) = ad.Executor([node], "numpy").run(drawn)
        for threads in range(1, dl.get_num_threads() + 1):
            with on_threads(threads):
                (got,) = ad.Executor([node]).run(drawn, convert_to_numpy_ret_vals=True)
            np.testing.assert_allclose(got, want, atol=1e-4, err_msg=f"{images}, {threads} threads")


TOLERANCE = {"float32": 1e-4, "float64": 1e-9}


def compare(
    build: Callable[..., ad.Node], theirs: Callable[..., Any], shapes: Sequence[tuple[int, ...]], dtype: str
) -> None:
    """The output, all gradients of its weighted sum, and the gradients of the sum of the first one's squares."""
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(shape).astype(dtype) for shape in shapes]
    variables = [ad.Variable(f"x{i}") for i in range(len(shapes))]
    tensors = [torch.tensor(value, requires_grad=True) for value in arrays]
    expected = theirs(*tensors)
    weights = rng.standard_normal(expected.shape).astype(dtype)
    output = build(*variables)
    w = ad.Variable("w")
    grads = ad.gradients(output * w, variables)
    seconds = ad.gradients(grads[0] * grads[0], variables)
    feed = {**dict(zip(variables, arrays, strict=True)), w: weights}
    found = ad.Executor([output, *grads, *seconds]).run(feed, convert_to_numpy_ret_vals=True)
    firsts = torch.autograd.grad((expected * torch.tensor(weights)).sum(), tensors, create_graph=True)
    twice = torch.autograd.grad((firsts[0] ** 2).sum(), tensors, allow_unused=True)
    wanted = [expected, *firsts, *twice]
    for i, (a, b) in enumerate(zip(found, wanted, strict=True)):
        b_np = np.zeros_like(a) if b is None else b.detach().numpy()
        scale = max(1.0, float(np.abs(b_np).max(initial=0)))
        np.testing.assert_allclose(a, b_np, rtol=0, atol=TOLERANCE[dtype] * scale * (30 if i > len(shapes) else 1))


@pytest.mark.slow
def test_batch_norm() -> None:
    for dtype in TOLERANCE:
        for shape, axes in (((4, 3, 5, 2), (0, 2, 3)), ((7, 5), (0,)), ((3, 2, 4), (0, 2)), ((2, 1, 1, 1), (0, 2, 3))):
            c = shape[1]
            for affine in (True, False):
                shapes = [shape, (c,), (c,)] if affine else [shape]
                compare(
                    lambda x, *wb, a=axes: ad.batch_norm_op(x, *wb, axes=a)[0],
                    lambda x, *wb: torch.nn.functional.batch_norm(
                        x, None, None, *(wb or (None, None)), training=True
                    ),
                    shapes,
                    dtype,
                )


@pytest.mark.slow
def test_layer_and_root_mean_square_norm() -> None:
    for dtype in TOLERANCE:
        for shape, axes in (((4, 31), (-1,)), ((2, 3, 8), (-1,)), ((2, 3, 8), (-2, -1))):
            inner = shape[-len(axes) :]
            compare(
                lambda x, w, b, a=axes: ad.layer_norm_op(x, w, b, a),
                lambda x, w, b, s=inner: torch.nn.functional.layer_norm(x, s, w, b),
                [shape, inner, inner],
                dtype,
            )
            for weight, bias in ((True, False), (False, True)):
                compare(
                    lambda x, v, a=axes, w=weight, b=bias: ad.layer_norm_op(x, v if w else None, v if b else None, a),
                    lambda x, v, s=inner, w=weight, b=bias: torch.nn.functional.layer_norm(
                        x, s, v if w else None, v if b else None
                    ),
                    [shape, inner],
                    dtype,
                )


def test_gradients_of_layer_norm_read_what_it_read() -> None:
    """No kernel stores the normalised rows for another."""
    shapes = {"x": (64, 32), "w": (32,), "b": (32,), "g": (64, 32)}
    x, w, b, g = (ad.Variable(name, shape) for name, shape in shapes.items())
    y = ad.layer_norm_op(x, w, b)
    executor = ad.Executor([y, *ad.gradients(y * g, [x, w, b])])
    executor.run({node: np.ones(shapes[node.name], "float32") for node in (x, w, b, g)})
    rows, *sums = [line.split("->") for line in executor.groups().splitlines()[1:]]
    assert len(sums) == 2 and rows[1].count("[64, 32]") == 2 and rows[1].count("[64, 1]") == 2
    assert all("x[64, 32]" in reads for reads, writes in sums if "normalize" in reads)
