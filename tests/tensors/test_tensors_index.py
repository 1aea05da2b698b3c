"""Indices of tensors by PyTorch's rules, and tensors written in place."""

from __future__ import annotations

import dlsys as dl
import numpy as np
import pytest
from beside_torch import random
from dlsys import autodiff as ad
from dlsys import nn
from dlsys.errors import DTypeError, GraphError, IndexRangeError
from helpers import error_of
from optional import torch


@pytest.mark.slow
def test_indices_of_every_kind() -> None:
    rows, columns, mask = np.array([2, 0, -1]), np.array([[1], [-3]]), random(3, 4) > 0
    keys = [
        *(np.s_[rows], np.s_[rows, [1, 2, 3]], np.s_[columns, rows], np.s_[:, [1, 2]], np.s_[..., [0, -1]]),
        *(
            np.s_[mask],
            np.s_[mask, 1:],
            np.s_[:, random(4, 5, seed=1) > 0],
            np.s_[1, :, [0, 2]],
            np.s_[[0, 1], :, [2, 3]],
        ),
        *(
            np.s_[[0, 2], 1],
            np.s_[None, rows, None, 1:3],
            np.s_[rows, ..., columns],
            np.s_[[]],
            np.s_[1:, [1, 0], ::2],
        ),
        *(np.s_[random(3, 4, 5) > 1e9], np.s_[1, 2, 3], np.s_[-1, ..., None], np.s_[np.array(1)]),
        *(np.s_[np.array(1), ..., rows], np.s_[rows, np.array(-1), None, [1, 2, 3]], np.s_[rows, :, 1:]),
    ]
    x = random(3, 4, 5)
    t, d = torch.tensor(x, requires_grad=True), dl.tensor(x, requires_grad=True)

    def of(library: object, key: object) -> object:
        items = key if isinstance(key, tuple) else (key,)
        make = torch.tensor if library is torch else dl.tensor
        found = tuple(make(item) if isinstance(item, np.ndarray) else item for item in items)
        return found if isinstance(key, tuple) else found[0]

    found, want = [d[of(dl, key)] for key in keys], [t[of(torch, key)] for key in keys]
    for key, a, b in zip(keys, found, want, strict=True):
        assert a.shape == tuple(b.shape), key
        np.testing.assert_array_equal(a.numpy(), b.detach().numpy(), err_msg=str(key))
    sum((a * a).sum() for a in found).backward()
    sum((b * b).sum() for b in want).backward()
    np.testing.assert_allclose(d.grad.numpy(), t.grad.numpy())
    v, i, j = (
        ad.Variable("v", (3, 4)),
        ad.Variable("i", dtype="int64", shape=2),
        ad.Variable("j", dtype="int32", shape=2),
    )
    executor, values = ad.Executor([v[i, j]]), x[:, :, 0]
    (value,) = executor.run({v: values, i: np.array([0, -3]), j: np.int32([-1, 3])}, True)
    np.testing.assert_array_equal(value, x[[0, 0], [3, 3], 0])
    told = error_of(IndexRangeError, executor.run, {v: values, i: np.array([0, -3]), j: np.int32([-1, 4])})
    assert "index 4 is out of range for an axis of 4" in told


def test_tensors_are_written_and_views_are_values() -> None:
    x = dl.zeros(2, 3)
    x[0] = 1.0
    x[:, 2] += 5
    x[dl.tensor([[True, False, False], [False, True, False]])] = 9
    assert x.tolist() == [[9, 1, 6], [0, 9, 5]]
    x[1, 1] *= 2
    x.copy_(x.clamp(max=7))
    assert x.tolist() == [[7, 1, 6], [0, 7, 5]] and x.copy_(x.masked_fill(x > 6, 0)).tolist()[0] == [0, 1, 6]
    before = y = x * 2.0
    z = y * 1
    y += 1
    assert y is before and (y - z).tolist() == [[1] * 3] * 2
    y[0] = 3.0
    assert y.tolist()[0] == [3] * 3 and y.zero_() is y and y.tolist() == [[0] * 3] * 2 and z.tolist()[1] == [0, 0, 10]
    for call in (lambda: x.T.copy_(1.0), lambda: x[0].fill_(3), lambda: x[0].__setitem__(0, 3)):
        told = error_of(GraphError, call)
        assert "is a value of its own, no view" in told and ".clone()" in told, told
    row = x[0]  # a view of a leaf is a value
    x[0] = 4
    assert row.tolist() == [0, 1, 6]
    row += 1
    assert row.tolist() == [1, 2, 7] and x.tolist()[0] == [4, 4, 4]
    v = ad.Variable("v", (3,))
    assert "depends on variables" in error_of(GraphError, (v * 1).add_, 1)


def test_what_is_written_may_have_a_history_and_keeps_shape_and_dtype() -> None:
    x, w = dl.zeros(3), nn.Parameter(dl.ones(3))
    x[0] = w.sum()
    x[1:] = w[1:] * dl.tensor([2.0, 3.0])
    x *= w
    x.sum().backward()
    assert x.tolist() == [3, 2, 3] and w.grad.tolist() == [5 - 1, 5, 7]
    x, w.grad = dl.zeros(3), None
    with dl.no_grad():
        x[0] = w.sum()
        w.mul_(2)
    assert x.tolist() == [3, 0, 0] and w.tolist() == [2, 2, 2] and not x.requires_grad
    integers = dl.tensor([1, 2, 3])
    for change in (lambda i: i.__iadd__(1.5), lambda i: i.__imul__(0.5), lambda i: i.add_(0.5), lambda i: i.div_(2)):
        assert "int64, and in place it cannot become float32" in error_of(DTypeError, change, integers)
    integers += 1
    assert integers.tolist() == [2, 3, 4]


def test_random_numbers() -> None:
    p = dl.tensor([[0.1, 0.0, 0.9], [0.0, 1.0, 0.0]])
    drawn = dl.multinomial(p, 1000, replacement=True).numpy()
    assert drawn.shape == (2, 1000) and set(drawn[0]) == {0, 2} and (drawn[1] == 1).all()
    assert abs((drawn[0] == 2).mean() - 0.9) < 0.05
    assert sorted(dl.multinomial(dl.ones(4), 4).tolist()) == [0, 1, 2, 3]
    assert set(dl.randint(2, 4, (50,)).tolist()) == {2, 3}
    assert "cannot be drawn" in error_of(GraphError, dl.multinomial, p, 2)
