"""Normalisation against PyTorch: forward, gradients, and gradients of gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from dlsys import autodiff as ad
from dlsys.errors import GraphError, ShapeError
from helpers import error_of

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


def test_statistics_are_those_of_the_axes() -> None:
    x_np = np.random.default_rng(1).standard_normal((6, 3, 4)) * 3 + 5
    x = ad.Variable("x")
    _, mean, var = ad.batch_norm_op(x, axes=(0, 2))
    found = ad.Executor([mean, var]).run({x: x_np}, convert_to_numpy_ret_vals=True)
    np.testing.assert_allclose(found[0], x_np.mean((0, 2), keepdims=True))
    np.testing.assert_allclose(found[1], x_np.var((0, 2), keepdims=True))


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


def test_mistakes_are_named() -> None:
    x, w = ad.Variable("x"), ad.Variable("w")
    assert "both" in error_of(GraphError, ad.batch_norm_op, x, w)
    assert "axes" in error_of(GraphError, ad.layer_norm_op, x, None, None, (1.5,))
    executor = ad.Executor([ad.batch_norm_op(x, w, w)[0]])
    error_of(ShapeError, executor.run, {x: np.zeros((2, 3, 4, 4)), w: np.zeros(2)})
