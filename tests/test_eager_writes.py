"""Computed tensors written in place, and views of them: values and gradients are PyTorch's."""

from __future__ import annotations

import copy
import gc
import pickle
from collections.abc import Callable
from typing import Any

import dlsys as dl
import numpy as np
import torch
from dlsys import autodiff as ad
from dlsys import nn
from dlsys.errors import DTypeError, GraphError, ShapeError
from helpers import error_of
from hypothesis import given, settings
from hypothesis import strategies as st

VALUES = np.array([[1.0, -2.0, 3.0], [0.5, 4.0, -1.0]])


def agree(function: Callable[[Any], list[Any]]) -> None:
    """`function(library)` gives dlsys's and PyTorch's tensors, which must be equal."""
    for number, (mine, theirs) in enumerate(zip(function(dl), function(torch), strict=True)):
        want = theirs.detach().numpy()
        found = mine.numpy()
        assert found.shape == want.shape and str(found.dtype) == str(want.dtype), number
        np.testing.assert_allclose(found, want, rtol=1e-12, atol=1e-12, err_msg=str(number))


def test_what_is_computed_is_written_with_gradients() -> None:
    def of(library: Any) -> list[Any]:
        x = library.tensor(VALUES, requires_grad=True)
        v = library.tensor([7.0, 8.0], dtype=library.float64, requires_grad=True)
        y = x * 2
        same, before = y, y + 1  # the first is y whatever it means, the second read what it was
        y[y < 0] = 0
        y[0] = 1.0
        y[:, 1] = v
        y += 1
        y.mul_(v[0]).clamp_(min=30)
        z = x * x
        z[1].zero_()
        z[0, 0] -= v[1]
        w = x + z
        w.zero_()
        w.add_(x, alpha=2)
        (y * y + before * z + w).sum().backward()
        return [y, same, before, z, w, x.grad, v.grad]

    agree(of)


def test_views_of_leaves_are_written_with_them() -> None:
    def of(library: Any) -> list[Any]:
        x = library.tensor(VALUES)
        x.T[0] = 7
        x.view(-1)[1] = 8
        x[:, 1:].transpose(0, 1)[1].zero_()
        t = x.t()
        t += 1
        w = library.tensor(VALUES, requires_grad=True)
        with library.no_grad():
            w.T[1] = 5
            w.view(6)[0].add_(1)
        return [x, t, w]

    agree(of)

    def parts(library: Any) -> list[Any]:  # with gradients PyTorch refuses to write to one of several views
        y = library.tensor(VALUES) * 2
        y.chunk(3, 1)[2].mul_(2)
        y.unbind(0)[1].add_(y.split(1)[0][0])
        return [y]

    agree(parts)
    w = nn.Parameter(dl.ones(2, 2))
    for view in (w[0], w.T, w.view(-1), w[:, 0]):
        assert "no_grad" in error_of(GraphError, view.zero_)
        assert "no_grad" in error_of(GraphError, view.__setitem__, 0, 1.0)
    assert w.tolist() == [[1, 1], [1, 1]]
    x = dl.zeros(2, 2)
    assert "has a history" in error_of(GraphError, x.T.add_, w)
    assert x.tolist() == [[0, 0], [0, 0]]


KEYS = [
    *(0, -1, slice(None), slice(1, None), slice(None, None, 2), Ellipsis, None, (0, 1), (slice(None), 1)),
    *((Ellipsis, -1), (slice(None), None, slice(0, 2)), (1, slice(None, None, 2)), [0, 1], ([1, 0], [2, 0])),
    *((slice(None), [0, 2]), (0, [1, 1 + 1])),
]
VIEWS = [
    *(lambda y: y, lambda y: y[0:2], lambda y: y.T, lambda y: y.reshape(3, 2), lambda y: y[:, 0:2]),
    *(lambda y: y.unsqueeze(0)[0], lambda y: y.flip(0), lambda y: y.T.contiguous().clone(), lambda y: y * 1),
    *(lambda y: y.view(6).view(2, 3), lambda y: y.swapaxes(0, 1)[:2], lambda y: y[[0, 1]]),
]
METHODS = [
    *(lambda y, v: y.zero_(), lambda y, v: y.clamp_(min=0), lambda y, v: y.mul_(2), lambda y, v: y.add_(v)),
    *(lambda y, v: y.fill_(3.0), lambda y, v: y.copy_(v), lambda y, v: y.masked_fill_(y > 1, 0.5)),
    *(lambda y, v: y.exp_(), lambda y, v: y.sub_(v * 2), lambda y, v: y.clone().zero_()),
]
WRITE = st.tuples(st.integers(0, len(VIEWS) - 1), st.sampled_from(["number", "value", "mask", "method", "iadd"]))
STEP = st.tuples(WRITE, st.integers(0, len(KEYS) - 1), st.integers(0, len(METHODS) - 1))
CASE = st.lists(STEP, min_size=1, max_size=4)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(CASE)
def test_drawn_writes(case: Any) -> None:
    def of(library: Any) -> list[Any]:
        x = library.tensor(VALUES, requires_grad=True)
        v = library.tensor(0.75, dtype=library.float64, requires_grad=True)
        y = x * 1.5
        read, views = [], [y]
        for (which, kind), key, method in case:
            target = VIEWS[which](y)
            views.append(target)
            read.append(target * 2)  # keeps what it is now; PyTorch needs no value of it for the gradient
            if kind == "method":
                METHODS[method](target, v)
            elif kind == "mask":
                target[target.detach() < 1] = v
            elif kind == "iadd":
                target[KEYS[key]] += v
            else:
                target[KEYS[key]] = v if kind == "value" else -2.5
        found = [*views, *read]
        weights = [library.arange(6, dtype=library.float64)[: t.numel()].reshape(t.shape) + 1 for t in found]
        total = sum((t * w).sum() for t, w in zip(found, weights, strict=True))
        total.backward()
        grad = v.grad if v.grad is not None else library.zeros((), dtype=library.float64)
        return [*found, x.grad, grad]

    try:
        want = of(torch)
    except (IndexError, RuntimeError) as error:  # an index out of range; what PyTorch does not save for a gradient
        assert "out of" in str(error) or "too many" in str(error) or "modified by an inplace" in str(error), error
        return
    for number, (mine, theirs) in enumerate(zip(of(dl), want, strict=True)):
        np.testing.assert_allclose(mine.numpy(), theirs.detach().numpy(), rtol=1e-12, err_msg=f"{number} of {case}")


def test_what_is_saved_for_gradients_may_be_written() -> None:
    x = dl.tensor([1.0, 2.0], requires_grad=True)
    y = dl.exp(x)
    z = y * y
    y.zero_()  # PyTorch raises in backward, as it would need the y that was
    z.sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), 2 * np.exp([2.0, 4.0]), rtol=1e-6)
    assert y.tolist() == [0, 0] and np.allclose(z.numpy(), np.exp([2.0, 4.0]))


def test_what_has_been_evaluated_is_written() -> None:
    w = dl.tensor([1.0, 2.0], requires_grad=True)
    y = w * 2
    assert y.tolist() == [2, 4]
    row = y[0:1]
    assert row.tolist() == [2]
    y[0] = 5
    assert y.tolist() == [5, 4] and row.tolist() == [5]
    y.sum().backward()
    assert w.grad.tolist() == [0, 2]
    counts = (dl.tensor([1, 2, 3]) * 2).add_(1)
    counts[0] = 7.9
    assert counts.tolist() == [7, 5, 7] and counts.dtype == "int64"
    assert "cannot become float32" in error_of(DTypeError, counts.__iadd__, 0.5)
    assert "would become (2, 2)" in error_of(ShapeError, y.__iadd__, dl.ones(2, 2))
    mask = w.detach() * 2 > 3
    mask[0] = True
    assert mask.tolist() == [True, True]


def test_layers_work_in_place() -> None:
    def of(library: Any, nn: Any) -> list[Any]:
        layer = nn.BatchNorm1d(3)
        x = library.tensor(np.float32(VALUES), requires_grad=True)
        y = layer(x)
        y.clamp_(min=0)
        y[0, 0] = 0.5
        (y * y).sum().backward()
        layer.eval()
        return [y, x.grad, layer.weight.grad, layer.running_mean, layer.num_batches_tracked, layer(x)]

    for mine, theirs in zip(of(dl, nn), of(torch, torch.nn), strict=True):
        np.testing.assert_allclose(mine.numpy(), theirs.detach().numpy(), atol=1e-5)


def test_graphs_of_variables_are_written_where_shapes_are_known() -> None:
    x = ad.Variable("x", (3,), "float32")
    y = x * 2
    first = y + 0
    y[1] = 5.0
    y += 1
    u = ad.Variable("u")
    z = u * 2
    old = z
    z += 1  # the shape is not known: another node
    assert z is not old
    found = ad.Executor([first, y, z, old]).run({x: np.ones(3, "float32"), u: np.ones(2, "float32")}, True)
    assert [v.tolist() for v in found] == [[2, 2, 2], [3, 6, 3], [3, 3], [2, 2]]


def test_readers_are_forgotten() -> None:
    w = dl.tensor([1.0], requires_grad=True)
    y = w * 2
    for _ in range(1000):
        y + 1
    gc.collect()
    assert len(y._readers) < 200
    other = copy.deepcopy(y)
    kept = y * 3
    y.zero_()
    assert other.tolist() == [2] and kept.tolist() == [6] and y.tolist() == [0]
    y + 1
    assert len(y._readers) == 1 and pickle.loads(pickle.dumps(y._readers)) == []
