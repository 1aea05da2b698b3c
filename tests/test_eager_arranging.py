"""Tensors put together, taken apart and multiplied in further ways, against PyTorch."""

from __future__ import annotations

from typing import Any

import dlsys as dl
import numpy as np
import torch
from against_torch import agree, random
from dlsys.errors import GraphError, IndexRangeError, ShapeError
from helpers import error_of


def test_put_together() -> None:
    def functions(m: Any, a: Any, b: Any, v: Any) -> list[Any]:
        return [
            *(m.vstack([a, b]), m.vstack((v, v)), m.row_stack([a, v]), m.hstack([a, b]), m.hstack((v, v))),
            *(m.dstack([a, b]), m.dstack([v, v]), m.column_stack([v, v]), m.column_stack([v[:3], a])),
            *(m.tile(a, (2, 1)), a.tile(3), v.tile(2, 2, 1), *m.broadcast_tensors(a, v, b[:, :1])),
            *(*m.meshgrid(v, v[:2], indexing="ij"), *m.meshgrid([v, v[:2], v[:3]], indexing="xy"), a.expand_as(b)),
            *(m.atleast_1d(v[0]), m.atleast_2d(v[0]), m.atleast_2d(v), m.atleast_3d(v), m.atleast_3d(a)),
        ]

    agree([functions], random(3, 4), random(3, 4, seed=1), random(4, seed=2), gradients=True)
    agree([lambda m, a: [m.hstack([a, a]), m.vstack([a[0], a[0]]), m.tile(a, (2,))]], np.arange(6).reshape(2, 3))
    assert "indexing" in error_of(GraphError, dl.meshgrid, dl.ones(2), dl.ones(2), indexing="yx")
    assert "vectors" in error_of(ShapeError, dl.meshgrid, dl.ones(2, 2))
    error_of(ShapeError, dl.broadcast_tensors, dl.ones(2), dl.ones(3))


def test_taken_apart() -> None:
    def functions(m: Any, x: Any) -> list[Any]:
        return [
            *(*m.tensor_split(x, 3, 1), *x.tensor_split([1, 3], dim=1), x.narrow(1, 1, 2), m.narrow(x, 0, -1, 1)),
            *(x.select(1, -1), m.select(x, 0, 1), x.unflatten(1, (2, -1)), m.unflatten(x, 2, (5, 1))),
            *(m.fliplr(x), x.flipud(), m.rot90(x), x.rot90(2, (1, 2)), m.rot90(x, -1, (2, 0)), x.rot90(4)),
            *(m.diff(x), x.diff(2, 0), m.block_diag(x[0], x[1, 0], x[2]), m.take_along_dim(x, x.argsort(0), 0)),
            *(m.moveaxis(x, 0, 2), x.swapdims(0, 1), m.t(x[0]), m.ravel(x), *m.tensor_split(x, (2,), 2)),
        ]

    agree([functions], random(3, 4, 5), gradients=True)
    x = dl.ones(3, 4)
    assert "narrow" in error_of(ShapeError, x.narrow, 1, 3, 2)
    assert "two axes" in error_of(ShapeError, x.rot90, 1, (0, 0))
    assert "out of range" in error_of(IndexRangeError, x.select, 0, 3)
    assert "one part" in error_of(GraphError, x.tensor_split, 0)


def test_diagonals() -> None:
    def functions(m: Any, a: Any, v: Any) -> list[Any]:
        return [
            *(m.diag(a), a.diag(1), m.diag(a, -2), v.diag(), m.diag(v, 2), m.diag(v, -1), a.trace(), m.trace(a.t())),
            *(m.diagonal(a, 1), a.diagonal(-1), m.diag_embed(a), a.diag_embed(1), m.diag_embed(a, -1, 0, 2)),
            *(m.stack([a, 2 * a]).diagonal(0, 1, 2), m.stack([a, 2 * a]).diagonal(1, 0, -1), a.diagonal(9)),
            *(m.diag_embed(v, 1, 1, 0), m.tril(a, -1), a.triu(1)),
        ]

    agree([functions], random(3, 4), random(3, seed=1), gradients=True)
    agree([lambda m, i: [i.diag(), m.diag(i[0]), i.trace(), m.diag(i[0] > 1)]], np.arange(12).reshape(3, 4))
    for offset in (-1, 0, 2):
        assert dl.tril_indices(3, 4, offset).tolist() == torch.tril_indices(3, 4, offset).tolist()
        assert dl.triu_indices(3, 4, offset).tolist() == torch.triu_indices(3, 4, offset).tolist()
    square = dl.ones(2, 2)
    for call in (lambda: dl.diag(square[None]), lambda: dl.trace(square[0]), lambda: square.diagonal(0, 1, 1)):
        error_of(ShapeError, call)


def test_products() -> None:
    def functions(m: Any, a: Any, b: Any, v: Any) -> list[Any]:
        first, second = m.stack([a, b]), m.stack([b.t(), a.t()])
        return [
            *(m.mv(a, v), a.mv(v), m.inner(a, b), m.inner(v, v), m.tensordot(a, b, 2), m.tensordot(a, b.t(), 1)),
            *(m.tensordot(first, second, ([1, 2], [2, 1])), m.kron(a, b), a.kron(v), m.kron(first, v)),
            *(m.addmm(a[:, :3], a, b.t()), a[:, :3].addmm(a, b.t(), beta=0.5, alpha=-2), m.addmv(a[:, 0], a, v)),
            *(m.baddbmm(first[:, :, :3], first, second), m.addr(a, a[:, 1], v), m.addmm(a[:, :3], a, b.t(), beta=0)),
            *(m.cdist(a, b), m.cdist(first, first + 1, p=1.0), m.cdist(a, b, p=3.0), m.cdist(a, b, p=float("inf"))),
            *(m.vdot(v, v), m.dist(a, b), a.dist(b, p=1.0)),
            *(m.cross(a[:, :3], b[:, :3], dim=1), a.cross(b, dim=0)),
        ]

    agree([functions], random(3, 4), random(3, 4, seed=1), random(4, seed=2), gradients=True)
    x = dl.tensor(random(3, 2), requires_grad=True)
    dl.cdist(x, x).sum().backward()
    assert np.isfinite(x.grad.numpy()).all()
    nan = dl.tensor([[np.nan]])
    assert dl.addmm(nan, dl.ones(1, 1), dl.ones(1, 1), beta=0).tolist() == [[1.0]]
    for call in (
        lambda: dl.mv(dl.ones(2), dl.ones(2)),
        lambda: dl.tensordot(dl.ones(2, 3), dl.ones(2, 3), 1),
        lambda: dl.cdist(dl.ones(2, 3), dl.ones(2, 4)),
        lambda: dl.cross(dl.ones(2), dl.ones(2)),
    ):
        error_of(ShapeError, call)


def test_einstein_sums() -> None:
    equations = [
        *(("ii", "a"), ("ii->i", "a"), ("ij,jj->i", "aa"), ("...i,...i->...", "cc"), ("...ij->...ji", "c")),
        *(("b...,b...->...", "cc"), ("...", "c"), ("...i,ij->...j", "ca"), ("ij,...jk", "ac"), ("i...i", "a")),
        *(("iij->ij", "d"), ("iij", "d"), ("iii->i", "e"), ("ab...,b...->a...", "ca"), ("i,j,k->kji", "vvv")),
        *(("ij,ij->", "aa"), ("bi,oi->bo", "ao"), ("...a,...a", "ca"), ("i...->...", "c"), ("ij, jk -> ik", "aa")),
    ]
    tensors = {"a": random(3, 3), "c": random(2, 3, 3, seed=1), "d": random(3, 3, 2, seed=2)}
    tensors |= {"e": random(2, 2, 2, seed=3), "v": random(3, seed=4), "o": random(1, 3, seed=5)}
    def of(m: Any, *given: Any) -> list[Any]:
        own = dict(zip(tensors, given, strict=True))
        return [m.einsum(equation, *(own[name] for name in names)) for equation, names in equations]

    agree([of], *tensors.values(), gradients=True)
    one, three = np.ones((4, 1)), random(4, 3)
    agree([lambda m, a, b: [m.einsum("bi,bi->b", a, b), m.einsum("bi,bj->ij", a, b), m.einsum("bi->i", a)]], one, three)
    agree([lambda m, a, b: [m.einsum("bi,bi->bi", a, a), m.einsum("...i,...i", b, a)]], one, three)
    a = dl.ones(2, 3)
    for equation in ("ij->k", "ij,jk", "i1->i", "ij->ii", "ij->...i"):
        assert "does not fit" in error_of(GraphError, dl.einsum, equation, a)
    assert "'i' is 2 and 3" in error_of(ShapeError, dl.einsum, "ii->i", a)
    assert "3 letters" in error_of(ShapeError, dl.einsum, "ijk->i", a) and "1 letters" in error_of(
        ShapeError, dl.einsum, "i", a
    )


def test_indices_that_are_true_or_false() -> None:
    x = random(3, 4)
    agree(
        [
            lambda m, x: [x[True], x[False], x[True, 0], x[0, True], x[:, True], x[None, True, False]],
            lambda m, x: [x[m.tensor(True)], x[True, [0, 1]], x[..., True], x[m.tensor(False)], x[True, True, 1:]],
        ],
        x,
    )
    t = dl.tensor(x)
    assert "one ellipsis" in error_of(IndexRangeError, lambda: t[..., ...])
    mask = np.array([[True], [False], [True]])
    agree([lambda m, x, b: [x.masked_select(b), m.masked_select(x, x > 0), m.masked_select(x[:, :1], b)]], x, mask)
    assert "a mask of shape (3,) does not fit a tensor of shape (3, 4)" in error_of(
        ShapeError, t.masked_select, dl.tensor([True, False, True])
    )
    assert "mask of booleans" in error_of(GraphError, t.masked_select, dl.tensor([1, 0, 1, 1]))
