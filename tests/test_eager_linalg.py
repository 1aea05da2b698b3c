"""Norms, products and covariances beside torch.linalg's; shifts of integers, and tensors of undefined values."""

from __future__ import annotations

import math

import dlsys as dl
import numpy as np
import torch
from against_torch import agree, random
from dlsys.errors import DTypeError, GraphError, ShapeError
from helpers import error_of


def test_norms() -> None:
    vectors = [
        (lambda m, x, o=o, d=d, k=k: m.linalg.vector_norm(x, o, d, k))
        for o, d, k in ((2, None, False), (1, 0, True), (3.5, (0, 2), False), (math.inf, 1, True))
    ]
    matrices = [
        (lambda m, x, o=o, d=d, k=k: m.linalg.matrix_norm(x, o, d, k))
        for o, d, k in (("fro", (0, 2), True), (1, (-2, -1), False), (-1, (0, 2), True), (math.inf, (2, 0), False))
    ]
    either = [
        lambda m, x: m.linalg.norm(x),
        lambda m, x: m.linalg.norm(x, 1, 0),
        lambda m, x: m.linalg.norm(x, dim=(0, 1), keepdim=True),
        lambda m, x: m.linalg.norm(x, 1, (2, 1)),
        lambda m, x: m.linalg.norm(x[0], math.inf),
        lambda m, x: m.linalg.norm(x[0, 1], 4),
        lambda m, x: m.linalg.vecdot(x, x * 2, dim=1),
    ]
    agree([*vectors, *matrices, *either], random(2, 3, 4), gradients=True)
    agree([lambda m, x: m.linalg.vector_norm(x, 0, 1), lambda m, x: m.linalg.matrix_norm(x, -math.inf)], random(2, 3))
    assert dl.linalg.norm(dl.tensor([3, 4]), dtype="float64").item() == 5


def test_norms_say_what_they_do_not_take() -> None:
    x = dl.tensor(random(2, 3))
    for ord in (2, "nuc"):
        assert "singular values" in error_of(GraphError, dl.linalg.norm, x, ord)
    assert "no norm of matrices" in error_of(GraphError, dl.linalg.matrix_norm, x, 3)
    assert "must be two axes" in error_of(GraphError, dl.linalg.matrix_norm, x, "fro", (0, -2))
    assert "ord must be a number" in error_of(GraphError, dl.linalg.vector_norm, x, "fro")
    assert "a vector or a matrix" in error_of(GraphError, dl.linalg.norm, x.reshape(1, 2, 3), 1)
    assert "takes floats" in error_of(DTypeError, dl.linalg.norm, dl.tensor([1, 2]))
    assert "no linalg.svd" in error_of(AttributeError, getattr, dl.linalg, "svd")


def test_products() -> None:
    shapes = ((3, 5), (5, 2), (2, 6), (6, 4))
    given = [random(*shape, seed=i) for i, shape in enumerate(shapes)]
    agree(
        [
            lambda m, *x: m.linalg.multi_dot(x),
            lambda m, *x: m.linalg.multi_dot([x[0][0], *x[1:]]),
            lambda m, *x: m.linalg.multi_dot([x[0][0], x[1], x[2][:, 0]]),
            lambda m, *x: m.linalg.matmul(x[0], x[1]),
        ],
        *given,
        gradients=True,
    )
    agree([(lambda m, x, n=n: m.linalg.matrix_power(x, n)) for n in (0, 1, 2, 5)], random(2, 3, 3) / 2, gradients=True)
    a, b = map(dl.tensor, given[:2])
    assert "two matrices or more" in error_of(GraphError, dl.linalg.multi_dot, [a])
    assert "(5, 2), (3, 5) are no chain" in error_of(ShapeError, dl.linalg.multi_dot, [b, a])
    assert "square" in error_of(ShapeError, dl.linalg.matrix_power, a, 2)
    assert "n must be an integer >= 0" in error_of(GraphError, dl.linalg.matrix_power, a @ a.T, -1)


def test_covariances() -> None:
    often, heavy = np.array([1, 3, 2, 1]), np.array([0.5, 1.0, 2.0, 0.25])
    agree(
        [
            lambda m, x: m.cov(x),
            lambda m, x: m.cov(x[0]),
            lambda m, x: m.cov(x, correction=0),
            lambda m, x: m.cov(x, fweights=m.tensor(often)),
            lambda m, x: m.cov(x, aweights=m.tensor(heavy)),
            lambda m, x: m.cov(x, correction=0, fweights=m.tensor(often), aweights=m.tensor(heavy)),
            lambda m, x: m.corrcoef(x),
            lambda m, x: m.corrcoef(x[1]),
        ],
        random(3, 4),
        gradients=True,
    )
    x = dl.tensor(random(3, 4))
    assert "a vector or a matrix" in error_of(ShapeError, dl.cov, x.reshape(1, 3, 4))
    assert "for 4 observations" in error_of(ShapeError, dl.cov, x, fweights=dl.tensor([1, 2]))
    assert "must be integers" in error_of(DTypeError, dl.cov, x, fweights=dl.ones(4))


def test_shifts() -> None:
    values, places = np.array([-9, -1, 0, 5, 2**30 + 7]), np.array([1, 0, 3, 2, 4])
    for dtype in ("int32", "int64"):
        agree(
            [
                lambda m, x, n: x << 3,
                lambda m, x, n: x >> 2,
                lambda m, x, n: x << n,
                lambda m, x, n: x >> n,
                lambda m, x, n: 3 << n,
                lambda m, x, n: m.bitwise_left_shift(x, n),
                lambda m, x, n: x.bitwise_right_shift(1),
                lambda m, x, n: x >> 31,
            ],
            values.astype(dtype),
            places.astype(dtype),
        )
    unsigned = dl.tensor(np.array([2**32 - 1, 6], np.uint32))
    assert (unsigned >> 4).tolist() == [2**28 - 1, 0] and (unsigned << 28).tolist() == [15 << 28, 6 << 28 & 2**32 - 1]
    assert (dl.tensor([5, -5]) >> 64).tolist() == [0, -1] and (dl.tensor([5]) << 64).tolist() == [0]
    assert "integers" in error_of(DTypeError, lambda: dl.ones(2) << 1)
    assert "integers" in error_of(DTypeError, lambda: dl.tensor([1]) >> 0.5)


def test_undefined_values() -> None:
    for made, shape, dtype in (
        (dl.empty(2, 3), (2, 3), "float32"),
        (dl.empty((2, 3), dtype=dl.int64), (2, 3), "int64"),
        (dl.empty([2], dtype="float64", requires_grad=True), (2,), "float64"),
        (dl.empty(()), (), "float32"),
    ):
        assert dl.is_tensor(made) and (made.shape, made.dtype) == (shape, dtype)
        assert made.detach().fill_(3).numpy().min() == 3
    array = dl.empty((2, 3), "float32", dl.cpu())
    assert isinstance(array, dl.Array) and not dl.is_tensor(array)
    assert torch.from_dlpack(dl.empty(4)).shape == (4,)
    assert "no negative extent" in error_of(ShapeError, dl.empty, -1)
    assert "only floats" in error_of(DTypeError, dl.empty, 2, dtype="int64", requires_grad=True)
