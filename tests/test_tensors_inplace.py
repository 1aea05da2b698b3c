"""Tensors written in place, and what NumPy's functions make of tensors."""

from __future__ import annotations

import dlsys as dl
import numpy as np
from dlsys import nn
from dlsys.errors import DTypeError, GraphError, IndexRangeError, ShapeError
from helpers import error_of

VALUES = np.array([[1.0, -2.0, 3.0], [0.5, 4.0, -1.0]])


def test_leaves_are_written_and_computed_tensors_are_not() -> None:
    x = dl.zeros(2, 3)
    x[0] = 1.0
    x[:, 2] += 5
    x[dl.tensor([[True, False, False], [False, True, False]])] = 9
    assert x.tolist() == [[9, 1, 6], [0, 9, 5]]
    x[1, 1] *= 2
    x.copy_(x.clamp(max=7))
    assert x.tolist() == [[7, 1, 6], [0, 7, 5]] and x.copy_(x.masked_fill(x > 6, 0)).tolist()[0] == [0, 1, 6]
    before = y = x * 2.0
    y += 1
    assert y is not before and (y - before).tolist() == [[1] * 3] * 2
    for call in (
        lambda: before.__setitem__(0, 1.0),
        lambda: before.zero_(),
        lambda: before.add_(1),
        lambda: x.T.copy_(1.0),
        lambda: x[0].fill_(3),
    ):
        told = error_of(GraphError, call)
        assert "where() and masked_fill()" in told and ".clone()" in told, told
    row = x[0]  # a view of a leaf is a value
    x[0] = 4
    assert row.tolist() == [0, 1, 6]


def test_what_is_written_has_no_history_and_keeps_shape_and_dtype() -> None:
    x, w = dl.zeros(3), nn.Parameter(dl.ones(3))
    assert "has a history" in error_of(GraphError, x.__setitem__, 0, w.sum())
    assert "has a history" in error_of(GraphError, x.add_, w)
    assert "no_grad" in error_of(GraphError, w.__setitem__, 0, 1.0)
    with dl.no_grad():
        x[0] = w.sum()
        w.mul_(2)
    assert x.tolist() == [3, 0, 0] and w.tolist() == [2, 2, 2]
    integers = dl.tensor([1, 2, 3])
    for change in (lambda i: i.__iadd__(1.5), lambda i: i.__imul__(0.5), lambda i: i.add_(0.5), lambda i: i.div_(2)):
        assert "int64, and in place it cannot become float32" in error_of(DTypeError, change, integers)
    integers += 1
    assert integers.tolist() == [2, 3, 4]
    assert "(3,)" in error_of(ShapeError, x.add_, dl.zeros(2, 3))
    assert "shape (2,)" in error_of(ShapeError, x.__setitem__, slice(None), np.zeros(2))
    assert "out of bounds" in error_of(IndexRangeError, x.__setitem__, 7, 1.0)


def test_random_numbers() -> None:
    p = dl.tensor([[0.1, 0.0, 0.9], [0.0, 1.0, 0.0]])
    drawn = dl.multinomial(p, 1000, replacement=True).numpy()
    assert drawn.shape == (2, 1000) and set(drawn[0]) == {0, 2} and (drawn[1] == 1).all()
    assert abs((drawn[0] == 2).mean() - 0.9) < 0.05
    assert sorted(dl.multinomial(dl.ones(4), 4).tolist()) == [0, 1, 2, 3]
    assert set(dl.randint(2, 4, (50,)).tolist()) == {2, 3}
    assert "cannot be drawn" in error_of(GraphError, dl.multinomial, p, 2)
