"""Tensors written in place, and what NumPy's functions make of tensors."""

from __future__ import annotations

import dlsys as dl
import numpy as np
import torch
from dlsys import autodiff as ad
from dlsys import nn
from dlsys.errors import DTypeError, GraphError, IndexRangeError, ShapeError
from helpers import error_of

VALUES = np.array([[1.0, -2.0, 3.0], [0.5, 4.0, -1.0]])


def test_clones_are_written_with_gradients() -> None:
    def of(library: object) -> list[object]:
        x = library.tensor(VALUES, requires_grad=True)
        v = library.tensor([7.0, 8.0], dtype=library.float64, requires_grad=True)
        y = x.clone()
        before = y * 2  # reads what y is now
        y[0] = 9.0
        y[:, 1] = v
        y[y < -0.5] = v[0] * 2
        y[1, [0, 2]] = library.tensor([1.0, 2.0], dtype=library.float64)
        y[0, 0] += v[1]
        y += 1
        y *= v.sum()
        y.add_(x, alpha=2).clamp_(max=400)
        y.masked_fill_(y > 300, 0.25)
        (y * y + before).sum().backward()
        return [y, before, x.grad, v.grad]

    for mine, theirs in zip(of(dl), of(torch), strict=True):
        np.testing.assert_allclose(mine.numpy(), theirs.detach().numpy(), rtol=1e-12)


def test_clones_of_data_are_written_at_once() -> None:
    x = dl.tensor(VALUES)
    y, same = x.clone(), x
    z = y
    y[0] = y[1]
    y[1, 1] = 5
    assert z is y and y.tolist() == [[0.5, 4.0, -1.0], [0.5, 5.0, -1.0]] and same.numpy().tolist() == VALUES.tolist()
    total = dl.zeros(4).clone()
    w = dl.tensor([1.0, 2.0], requires_grad=True)
    for i in range(4):
        total[i] = (w * i).sum() + (total[i - 1] if i else 0.0)
    total[-1].backward()
    assert total.tolist() == [0, 3, 9, 18] and w.grad.tolist() == [6, 6]
    i = dl.tensor([1, 2, 3]).clone()
    i[0] = 7.9
    assert i.tolist() == [7, 2, 3] and i.dtype == "int64"
    assert "cannot become float32" in error_of(DTypeError, i.add_, 0.5)
    nothing = dl.ones(2, requires_grad=True).clone()
    nothing[dl.tensor([False, False])] = nothing[:0]
    assert nothing.tolist() == [1, 1]
    v = ad.Variable("v", (3,), "float32").clone()
    v[1] = 5.0
    (value,) = ad.Executor([v]).run({v.inputs[2].inputs[0]: np.zeros(3, "float32")}, True)
    assert value.tolist() == [0, 5, 0]


def test_slices_are_written_with_what_they_are_of() -> None:
    def of(library: object) -> list[object]:
        x = library.tensor(VALUES)
        x[0].zero_()
        x[:, 1].fill_(5).add_(1)
        x[1][0] = -3
        x[0, 1:][1] -= 4
        row = x[1]
        twice = (row * 2).tolist()
        row += 10
        row[2] = 7
        w = library.tensor(VALUES, requires_grad=True)
        y = w * 1
        z = y.clone()
        z[0].mul_(w[1])
        part = z[:, 1]
        part *= 3
        part[0] = w[1, 1]
        other = z.clone()
        z += other
        other[0] = 0
        z[1, 1:] **= 2
        (z * z).sum().backward()
        return [x, row, library.tensor(twice), z, other, w.grad]

    for mine, theirs in zip(of(dl), of(torch), strict=True):
        np.testing.assert_allclose(mine.numpy(), theirs.detach().numpy(), rtol=1e-12)
    w = nn.Parameter(dl.ones(2, 2))
    w.data[0].zero_()
    with dl.no_grad():
        w[1].fill_(5)
        w[1, 0] += 1
    assert w.tolist() == [[0, 0], [6, 5]]
    h = w[0]
    h += 1.0  # of what requires a gradient another tensor
    assert h.requires_grad and w.tolist() == [[0, 0], [6, 5]]
    x = dl.zeros(2, 2)
    total = x[0]
    total += w[1]
    assert total.tolist() == [6, 5] and x.tolist() == [[0, 0], [0, 0]]
    assert "has a history" in error_of(GraphError, x[0].add_, w[1])
    for tensor in (x, x.clone()):
        row = tensor[0]
        tensor[0] = 5.0
        if tensor is x:
            assert "again" in error_of(GraphError, row.add_, 1)
        else:
            row.sub_(0)
        assert tensor.tolist() == [[5, 5], [0, 0]]
    i = dl.tensor([[1, 2], [3, 4]])
    i[0] += i[1]
    i[:, 0] //= 2
    assert i.tolist() == [[2, 6], [1, 4]]


def test_what_cannot_be_written_says_so() -> None:
    x, w = dl.zeros(2, 3), dl.tensor([1.0, 2.0, 3.0], requires_grad=True)
    assert "has a history" in error_of(GraphError, x[:1].copy_, w * 2)
    assert "has a history" in error_of(GraphError, x.T.add_, w.sum())
    assert "no_grad" in error_of(GraphError, w.__setitem__, 0, 1.0)
    x[0] = w.detach()
    with dl.no_grad():
        x[1] = w
        w[0] = 5.0
        w.clamp_(max=2.5)
    assert x.tolist() == [[1, 2, 3], [1, 2, 3]] and w.tolist() == [2.5, 2, 2.5]
    v = ad.Variable("v", (2, 3), "float32")
    for call in (lambda: v.__setitem__(0, 1), v.zero_, v[0].zero_, lambda: v.add_(1)):
        assert "clone()" in error_of(GraphError, call)
    history = w * 2
    with dl.no_grad():
        assert "detach()" in error_of(GraphError, history.zero_)
    assert "clone()" in error_of(GraphError, (w * x).T.reshape(-1).zero_)
    assert "would become (2, 2, 3)" in error_of(ShapeError, x.add_, dl.ones(2, 2, 3))
    wrong = [
        (5, 1, IndexRangeError, "out of bounds"),
        ((0, 0, 0), 1, IndexRangeError, "too many indices"),
        (1.5, 1, IndexRangeError, "only integers"),
        (np.array([True]), 1, IndexRangeError, "boolean index"),
        (0, [1, 2], ShapeError, "a value of shape (2,) cannot be set into the indexed (3,)"),
        (slice(None), np.ones((4, 3)), ShapeError, "(4, 3) cannot be set into the indexed (2, 3)"),
        (0, "a", DTypeError, "numbers"),
    ]
    for target in (x, x.clone()):
        for key, value, kind, words in wrong:
            assert words in error_of(kind, target.__setitem__, key, value), (key, value)
    assert x.tolist() == [[1, 2, 3], [1, 2, 3]]


def test_random_numbers_in_place() -> None:
    dl.manual_seed(3)
    x = dl.zeros(200, 50)
    x.normal_(2, 0.5)
    values = x.numpy()
    assert abs(values.mean() - 2) < 0.02 and abs(values.std() - 0.5) < 0.02 and x.dtype == "float32"
    u = dl.zeros(10000).uniform_(-1, 3).numpy()
    assert -1 <= u.min() < -0.9 and 2.9 < u.max() < 3 and abs(u.mean() - 1) < 0.1
    assert abs(dl.zeros(10000).bernoulli_(0.3).numpy().mean() - 0.3) < 0.03
    assert abs(dl.zeros(10000).exponential_(2).numpy().mean() - 0.5) < 0.03
    assert set(dl.zeros(500, dtype=dl.int64).random_(2, 5).tolist()) == {2, 3, 4}
    weight = nn.Parameter(dl.ones(3))
    assert "no_grad" in error_of(GraphError, weight.normal_)
    weight.data.normal_()
    assert len(set(weight.tolist())) == 3
    for call in (lambda: x.normal_(0, -1), lambda: x.uniform_(2, 1), lambda: x.random_(3, 3)):
        error_of(GraphError, call)
    dl.manual_seed(3)
    np.testing.assert_array_equal(dl.zeros(200, 50).normal_(2, 0.5).numpy(), values)
    p = dl.tensor([[0.1, 0.0, 0.9], [0.0, 1.0, 0.0]])
    drawn = dl.multinomial(p, 1000, replacement=True).numpy()
    assert drawn.shape == (2, 1000) and set(drawn[0]) == {0, 2} and (drawn[1] == 1).all()
    assert abs((drawn[0] == 2).mean() - 0.9) < 0.05
    assert sorted(dl.multinomial(dl.ones(4), 4).tolist()) == [0, 1, 2, 3]
    assert dl.randint_like(dl.zeros(50), 2, 4).numpy().dtype == "float32"
    assert set(dl.randint_like(dl.zeros(50), 2, 4).tolist()) == {2, 3}
    assert "cannot be drawn" in error_of(GraphError, dl.multinomial, p, 2)
    assert dl.bernoulli(dl.tensor([0.0, 1.0])).tolist() == [0, 1] and dl.normal(5.0, 0.0, (2,)).tolist() == [5, 5]
