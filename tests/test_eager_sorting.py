"""Orders, counts and further reductions of tensors against PyTorch's."""

from __future__ import annotations

from typing import Any

import dlsys as dl
import numpy as np
import torch
from against_torch import agree, random
from dlsys import autodiff as ad
from dlsys.errors import DTypeError, GraphError, IndexRangeError, ShapeError
from helpers import error_of


def test_of_booleans() -> None:
    agree(
        [
            lambda m, b: [b.max(), b.min(), b.amax(0), b.amin(1), b.amax((0, 1), keepdim=True), b.any(), b.all(0)],
            lambda m, b: [b.max(1).values, b.min(0).values, m.max(b, 1, keepdim=True).values, b.prod(), b.cumprod(1)],
            lambda m, b: [m.count_nonzero(b), m.count_nonzero(b, 1), b.sum(1), b.any(1), b.all((0, 1))],
        ],
        np.array([[True, False, True], [False, False, False]]),
    )
    b = dl.tensor([[False, True], [True, True], [False, False]])
    assert b.max(1).indices.tolist() == [1, 0, 0] and b.argmin(1).tolist() == [0, 0, 0] and b.argmax().item() == 1
    assert dl.zeros(0, dtype=dl.bool).max().item() is False


def test_reductions_along_the_way() -> None:
    def functions(m: Any, x: Any) -> list[Any]:
        return [
            *(m.cumprod(x, 0), x.cumprod(-1), m.logcumsumexp(x, 0), (100 * x).logcumsumexp(2)),
            *(m.nansum(x, 1), x.nansum(), m.nanmean(x), x.nanmean(0, keepdim=True), *m.std_mean(x, 1)),
            *(*m.var_mean(x), *m.aminmax(x), *x.aminmax(dim=1, keepdim=True)),
        ]

    agree([functions], random(2, 3, 4), gradients=True)
    holes = random(3, 4)
    holes[0, 1], holes[2, 2:] = np.nan, np.nan
    agree([lambda m, x: [x.nansum(1), m.nanmean(x, 0), x.nansum(), x.cumprod(1), x.logcumsumexp(1)]], holes)
    agree([lambda m, i: [i.cumprod(0), i.nansum(), m.count_nonzero(i), i.int().cumprod(1)]], np.arange(6).reshape(2, 3))
    extreme = np.array([[-1000.0, 0.0, 1000.0], [-np.inf, -np.inf, 2.0], [np.inf, 0.0, np.inf]])
    agree([lambda m, x: [x.logcumsumexp(1), x.logcumsumexp(0)]], extreme)
    x = dl.tensor(extreme[:1], requires_grad=True)
    x.logcumsumexp(1).sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), [[1.0, 1.0, 1.0]], atol=1e-12)


def test_orders() -> None:
    ties = np.array([[3.0, 1.0, 2.0, 1.0, 3.0], [0.0, 0.0, -1.0, 5.0, 0.0]])

    def functions(m: Any, x: Any) -> list[Any]:
        return [
            *(*m.sort(x, stable=True), *m.sort(x, dim=0, descending=True, stable=True), m.msort(x)),
            *(*x.topk(2, sorted=True), x.kthvalue(2).values, m.kthvalue(x, 1, 0, True).values, x.median()),
            *(x.median(1).values, m.median(x, 0, keepdim=True).values, x.quantile(0.3), m.quantile(x, 0.5, 1)),
            *(x.cummax(1).values, m.cummin(x, 0).values),
            *(m.quantile(x, m.tensor([0.1, 0.9], dtype=x.dtype), 1), x.quantile(0.25, 0, keepdim=True)),
            *(m.quantile(x, m.tensor([0.0, 0.4, 1.0], dtype=x.dtype), dim=1, keepdim=True), x.quantile(1.0)),
        ]

    agree([functions], random(4, 5), gradients=True)
    for how in ("linear", "lower", "higher", "midpoint", "nearest"):
        agree([lambda m, x, how=how: [m.quantile(x, 0.37, 1, interpolation=how)]], random(3, 6))
    mine, theirs = dl.tensor(ties).sort(1), torch.tensor(ties).sort(dim=1, stable=True)
    assert mine.indices.tolist() == theirs.indices.tolist()
    mine, theirs = (m.sort(m.tensor(ties), dim=1, descending=True, stable=True) for m in (dl, torch))
    assert mine.indices.tolist() == theirs.indices.tolist() == [[0, 4, 2, 1, 3], [3, 0, 1, 4, 2]]
    assert dl.tensor(ties).topk(3).indices.tolist() == [[0, 4, 2], [3, 0, 1]]  # the first of equals first
    assert dl.tensor(ties).topk(3, largest=False).indices.tolist() == [[1, 3, 2], [2, 0, 1]]
    assert dl.tensor(ties).argsort(descending=True).tolist() == [[0, 4, 2, 1, 3], [3, 0, 1, 4, 2]]
    gap = np.array([[1.0, np.nan, 3.0], [4.0, 5.0, 6.0]])
    agree(
        [
            lambda m, x: [x.median(), *x.median(1), *x.cummax(1), *m.cummin(x, 1), x.quantile(0.5)],
            lambda m, x: [x.quantile(0.5, 1), x.sort(1).values],
        ],
        gap,
    )
    down = np.arange(12)[::-1].reshape(3, 4).copy()
    agree([lambda m, i: [i.median(), i.median(1).values, i.kthvalue(3, 1).values]], down)
    x = dl.tensor(ties)
    assert "element number 6" in error_of(ShapeError, x.kthvalue, 6)
    assert "nothing along axis" in error_of(ShapeError, dl.zeros(0).median)
    assert "[0, 1]" in error_of(GraphError, x.quantile, 1.5)
    assert "interpolation" in error_of(GraphError, x.quantile, 0.5, interpolation="cubic")
    assert ".float()" in error_of(DTypeError, dl.tensor([1, 2]).quantile, 0.5)
    assert "variable" in error_of(GraphError, ad.Variable("v", (3,), "float32").median)


def test_counts_and_places() -> None:
    agree(
        [
            lambda m, i, w: [m.unique(i), *m.unique(i, return_inverse=True, return_counts=True), i.unique(dim=0)],
            lambda m, i, w: [m.bincount(i.reshape(-1)), m.bincount(i[0], w[0], minlength=9), i[1].bincount()],
            lambda m, i, w: [m.unique_consecutive(i), *i.unique_consecutive(return_inverse=True, return_counts=True)],
            lambda m, i, w: [m.argwhere(i > 1), m.isin(i, m.tensor([1, 4])), *m.cummax(i, 1), *w.cummin(0)],
            lambda m, i, w: [m.histc(w, 5, -1, 1), w.histc(bins=4), m.histc(i * 1.0)],
        ],
        np.array([[3, 1, 1, 4], [0, 3, 3, 1], [3, 1, 1, 4]]), random(3, 4),
    )  # fmt: skip
    line = np.array([1.0, 2.0, 2.0, 5.0])
    agree(
        [
            lambda m, s, v: [m.searchsorted(s, v), m.searchsorted(s, v, right=True), m.bucketize(v, s)],
            lambda m, s, v: [m.bucketize(v, s, right=True)],
            lambda m, s, v: [m.searchsorted(m.stack([s, s + 1, s - 2]), v, side="right")],
        ],
        line, np.array([[0.0, 2.0], [5.0, 9.0], [1.0, 2.5]]),
    )  # fmt: skip
    assert "vector of integers" in error_of(GraphError, dl.bincount, dl.tensor([-1]))
    assert "weights of shape" in error_of(ShapeError, dl.bincount, dl.tensor([1]), dl.ones(2))
    assert "sequences of shape" in error_of(ShapeError, dl.searchsorted, dl.ones(2, 3), dl.ones(3, 3))


def test_scattered_values() -> None:
    index, rows = np.array([[2, 0, 1, 0], [0, 0, 2, 1]]), np.array([2, 0])

    def functions(m: Any, x: Any, y: Any, i: Any, r: Any) -> list[Any]:
        return [
            *(x.scatter(0, i, y[:2]), m.scatter(x, 1, i[:, :2], y), x.scatter(0, i[:1], 7.0)),
            *(m.scatter_add(x, 0, i, y[:2]), x.scatter_add(1, i[:, :2], y), m.scatter_add(x, 1, i, y * 2)),
            *(x.index_add(0, r, y[:2]), m.index_add(x, 1, r, y[:, :2], alpha=3), x.index_copy(0, r, y[:2])),
            *(x.index_fill(1, r, 0.5), m.index_add(x, 0, m.tensor([1, 1]), y[:2]), m.scatter(x, 0, i[:0], y)),
        ]

    def distinct(m: Any, x: Any, y: Any, i: Any, r: Any) -> list[Any]:
        own = m.tensor([[0, 1, 2, 3], [2, 0, 3, 1], [1, 3, 0, 2]])
        some = [x.scatter(1, own, y), x.index_copy(1, r, y[:, :2]), m.scatter_add(x, 1, i, y[:2])]
        return [*some, functions(m, x, y, i, r)[3], *functions(m, x, y, i, r)[6:10]]

    mine, theirs = ([f(m.tensor(a)) for a in (random(3, 4), random(3, 4, seed=1))] for m, f in _makers())
    i, r = (dl.tensor(index), dl.tensor(rows)), (torch.tensor(index), torch.tensor(rows))
    for function in (functions, distinct):
        for a, b in zip(function(dl, *mine, *i), function(torch, *theirs, *r), strict=True):
            np.testing.assert_allclose(a.numpy(), b.detach().numpy())
    sum((a * a).sum() for a in distinct(dl, *mine, *i)).backward()
    sum((b * b).sum() for b in distinct(torch, *theirs, *r)).backward()
    for a, b in zip(mine, theirs, strict=True):
        np.testing.assert_allclose(a.grad.numpy(), b.grad.numpy())
    whole = dl.tensor([10, 20, 30])
    assert whole.scatter_add(0, dl.tensor([0, 0, 2]), dl.tensor([1, 2, 3])).tolist() == [13, 20, 33]
    assert whole.index_add(0, dl.tensor([-1]), dl.tensor([5])).tolist() == [10, 20, 35]
    assert "index 3" in error_of(IndexRangeError, whole.scatter, 0, dl.tensor([3]), 1)
    assert "do not fit axis" in error_of(ShapeError, whole.scatter, 0, dl.tensor([[0]]), 1)
    assert "values of shape" in error_of(ShapeError, whole.index_add, 0, dl.tensor([0, 1]), dl.tensor([1, 2, 3]))
    assert "must be a vector" in error_of(ShapeError, whole.index_fill, 0, dl.tensor([[0]]), 1)


def _makers() -> Any:
    return (dl, lambda x: x.requires_grad_()), (torch, lambda x: x.requires_grad_())
