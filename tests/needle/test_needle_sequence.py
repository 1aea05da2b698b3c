"""Recurrent networks, attention, loaders and arrays of needle's course, hw2 to hw4, as its programs call them."""

from __future__ import annotations

import gc
import itertools
import operator
from typing import Any

import dlsys.needle as ndl
import numpy as np
import pytest
from dlsys.errors import DeviceError, DTypeError, GraphError, ShapeError
from dlsys.needle import backend_ndarray as nd
from dlsys.needle import nn
from helpers import error_of
from optional import torch

RNG = np.random.default_rng(3)


def drawn(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype("float32")


def set_from(cell: Any, theirs: Any, suffix: str = "", bias: bool = True) -> None:
    cell.W_ih = nn.Parameter(getattr(theirs, f"weight_ih{suffix}").detach().numpy().T, device=ndl.cpu())
    cell.W_hh = nn.Parameter(getattr(theirs, f"weight_hh{suffix}").detach().numpy().T, device=ndl.cpu())
    for name in ("bias_ih", "bias_hh") if bias else ():
        setattr(cell, name, nn.Parameter(getattr(theirs, f"{name}{suffix}").detach().numpy()))


@pytest.mark.slow
def test_cells_are_pytorchs() -> None:
    x, h0, c0 = drawn(4, 3), drawn(4, 5), drawn(4, 5)
    for bias, nonlinearity in itertools.product((True, False), ("tanh", "relu")):
        theirs = torch.nn.RNNCell(3, 5, bias, nonlinearity)
        mine = nn.RNNCell(3, 5, device=ndl.cpu(), bias=bias, nonlinearity=nonlinearity)
        set_from(mine, theirs, bias=bias)
        h, wanted = mine(ndl.Tensor(x), None), theirs(torch.tensor(x))
        np.testing.assert_allclose(h.numpy(), wanted.detach().numpy(), rtol=1e-5, atol=1e-5)
        h.sum().backward()
        wanted.sum().backward()
        np.testing.assert_allclose(mine.W_ih.grad.numpy(), theirs.weight_ih.grad.numpy().T, rtol=1e-5, atol=1e-5)
    theirs, mine = torch.nn.LSTMCell(3, 5), nn.LSTMCell(3, 5)
    set_from(mine, theirs)
    state = mine(ndl.Tensor(x), (ndl.Tensor(h0), ndl.Tensor(c0)))
    for found, value in zip(state, theirs(torch.tensor(x), (torch.tensor(h0), torch.tensor(c0))), strict=True):
        np.testing.assert_allclose(found.numpy(), value.detach().numpy(), rtol=1e-5, atol=1e-5)
    assert "tanh or relu" in error_of(GraphError, nn.RNNCell, 3, 5, True, "sigmoid")


@pytest.mark.slow
def test_layers_are_pytorchs() -> None:
    x, h0, c0 = drawn(6, 2, 3), drawn(2, 2, 5), drawn(2, 2, 5)
    theirs = torch.nn.RNN(3, 5, 2, nonlinearity="relu")
    mine = nn.RNN(3, 5, 2, True, "relu", device=ndl.cpu(), dtype="float32")
    lstm, their_lstm = nn.LSTM(3, 5, 2, True, device=ndl.cpu(), dtype="float32"), torch.nn.LSTM(3, 5, 2)
    for k in range(2):
        set_from(mine.rnn_cells[k], theirs, f"_l{k}")
        set_from(lstm.lstm_cells[k], their_lstm, f"_l{k}")
    for state in (None, h0):
        output, h = mine(ndl.Tensor(x), None if state is None else ndl.Tensor(state))
        wanted, last = theirs(torch.tensor(x), None if state is None else torch.tensor(state))
        np.testing.assert_allclose(output.numpy(), wanted.detach().numpy(), rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(h.numpy(), last.detach().numpy(), rtol=1e-5, atol=1e-5)
    output.sum().backward()
    wanted.sum().backward()
    for k in range(2):
        own, other = mine.rnn_cells[k].W_ih.grad.detach().numpy(), getattr(theirs, f"weight_ih_l{k}").grad
        np.testing.assert_allclose(own, other.numpy().T, rtol=1e-4, atol=1e-4)
    found, (h, c) = lstm(ndl.Tensor(x), (ndl.Tensor(h0), ndl.Tensor(c0)))
    wanted, last = their_lstm(torch.tensor(x), (torch.tensor(h0), torch.tensor(c0)))
    for a, b in zip((found, h, c), (wanted, *last), strict=True):
        np.testing.assert_allclose(a.numpy(), b.detach().numpy(), rtol=1e-5, atol=1e-5)
    assert len(lstm.parameters()) == 8


def test_attention_is_pytorchs() -> None:
    q, k, v = (ndl.Tensor(drawn(2, 3, 4, 8)) for _ in range(3))
    for causal in (False, True):
        result, weights = nn.MultiHeadAttention(dropout=0.0, causal=causal, device=ndl.cpu())(q, k, v)
        parts = [torch.tensor(a.numpy()) for a in (q, k, v)]
        wanted = torch.nn.functional.scaled_dot_product_attention(*parts, is_causal=causal)
        np.testing.assert_allclose(result.numpy(), wanted.numpy(), rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(weights.numpy().sum(-1), 1, rtol=1e-5)
        assert np.all(np.triu(weights.numpy(), 1) == 0) == causal
    _, weights = nn.MultiHeadAttention(causal=True)(ndl.Tensor(q.numpy()[:, :, :2]), k, v)  # the last query sees all
    assert np.all(weights.numpy()[..., 1, :] > 0) and np.all(weights.numpy()[..., 0, 3] == 0)
    assert "do not fit" in error_of(ShapeError, nn.MultiHeadAttention(), q, ndl.Tensor(k.numpy()[:, :, :3]), v)


@pytest.mark.slow
def test_transformer() -> None:
    np.random.seed(0)
    x = drawn(2, 5, 6)
    layer = nn.AttentionLayer(6, 2, 4, k_features=3, v_features=7, out_features=9, causal=False)
    assert layer(ndl.Tensor(x), ndl.Tensor(drawn(2, 4, 3)), ndl.Tensor(drawn(2, 4, 7))).shape == (2, 5, 9)
    model = nn.Transformer(6, 16, 2, num_head=2, dim_head=4, causal=True, device=ndl.cpu(), batch_first=True)
    result, state = model(ndl.Tensor(x))
    changed = x.copy()
    changed[:, 3:] += 1  # the future
    again = model(ndl.Tensor(changed))[0].numpy()
    np.testing.assert_allclose(again[:, :3], result.numpy()[:, :3], rtol=1e-5, atol=1e-5)
    assert np.abs(again[:, 3:] - result.numpy()[:, 3:]).max() > 0.1 and not state.numpy().any()
    model.batch_first = False
    swapped = model(ndl.Tensor(x.swapaxes(0, 1)))[0].numpy()
    np.testing.assert_allclose(swapped, result.numpy().swapaxes(0, 1), rtol=1e-5, atol=1e-5)
    result.sum().backward()
    assert all(p.grad is not None for p in model.parameters())
    short = nn.Transformer(6, 16, 1, num_head=2, sequence_len=4, batch_first=True)
    assert "(2, 5, 6)" in error_of(ShapeError, short, ndl.Tensor(x))


def test_numbers_of_classes_may_be_floats() -> None:
    logits, classes = drawn(5, 4), np.array([0, 3, 1, 1, 2], "uint8")
    given = ndl.Tensor(classes)
    assert given.dtype == "float32"
    wanted = torch.nn.functional.cross_entropy(torch.tensor(logits), torch.tensor(classes).long())
    np.testing.assert_allclose(nn.SoftmaxLoss()(ndl.Tensor(logits), given).numpy(), wanted.numpy(), rtol=1e-5)
    table = nn.Embedding(4, 3, device=ndl.cpu(), dtype="float32")
    np.testing.assert_array_equal(table(given).numpy(), table.weight.numpy()[classes])
    half = ndl.Tensor([0.0, 1.5])
    for call in (lambda: table(half), lambda: nn.SoftmaxLoss()(ndl.Tensor(logits[:2]), half)):
        assert "not whole" in error_of(DTypeError, call)


def test_loaders() -> None:
    data = ndl.data.NDArrayDataset(RNG.standard_normal((10, 3)), np.arange(10))
    loader = ndl.data.DataLoader(dataset=data, batch_size=4, device=ndl.cpu(), dtype="float32")
    x, y = next(iter(loader))
    assert x.dtype == "float32" and y.tolist() == [0, 1, 2, 3] and isinstance(x.cached_data, nd.NDArray)
    assert len(loader) == len(list(loader)) == 3 and isinstance(x, ndl.Tensor)
    np.random.seed(7)
    orders = [[int(i) for _, y in ndl.data.DataLoader(data, 4, shuffle=True) for i in y.tolist()] for _ in range(2)]
    np.random.seed(7)
    for order in orders:
        want = np.arange(10)
        np.random.shuffle(want)
        assert order == want.tolist()
    assert "not on cuda()" in error_of(DeviceError, next, iter(ndl.data.DataLoader(data, 4, device=ndl.cuda())))


def test_arrays_have_needles_views_and_strides() -> None:
    values = drawn(4, 5, 6)
    a = nd.array(values, device=nd.cpu())
    assert a.dtype == np.float32 and a.device == ndl.cpu() and type(a.numpy()) is np.ndarray
    assert a.strides == nd.NDArray.compact_strides((4, 5, 6)) == (30, 6, 1)
    views = [
        (a[1:3, ::2, -1:], values[1:3, ::2, -1:]),
        (a.permute((2, 0, 1)), values.transpose(2, 0, 1)),
        (a[:1].broadcast_to((3, 5, 6)), np.broadcast_to(values[:1], (3, 5, 6))),
        (a.reshape((20, 6)), values.reshape(20, 6)),
    ]
    for view, want in views:
        np.testing.assert_array_equal(view.numpy(), want)
        assert view.strides == tuple(step // 4 for step in want.strides) and isinstance(view, nd.NDArray)
        assert np.shares_memory(view, a)
    assert not views[1][0].is_compact() and views[1][0].compact().is_compact() and a.compact() is a
    b = a.as_strided((5, 4), (6, 30))
    np.testing.assert_array_equal(b, values[:, :, 0].T)
    a[1:3, :, 0] = nd.array(np.ones((2, 5)))
    a[0, 0, :] = 7.0
    values[1:3, :, 0], values[0, 0, :] = 1, 7
    np.testing.assert_array_equal(a, values)
    np.testing.assert_array_equal(a.flip((1,)), np.flip(values, 1))
    np.testing.assert_array_equal(a.pad(((0, 1), (2, 0), (0, 0))), np.pad(values, ((0, 1), (2, 0), (0, 0))))
    assert "1 pairs for 3 axes" in error_of(GraphError, a.pad, ((0, 1),))
    positive = nd.array(np.abs(values) + 1)
    for name in ("exp", "log", "tanh"):
        want = getattr(np, name)(np.abs(values) + 1)
        np.testing.assert_allclose(getattr(positive, name)(), want, rtol=1e-5)
        np.testing.assert_allclose(getattr(nd, name)(positive), want, rtol=1e-5)
    np.testing.assert_array_equal(a.maximum(0.5), np.maximum(values, 0.5))
    for axis, keepdims in ((0, True), (2, False), (None, False)):
        np.testing.assert_allclose(a.sum(axis=axis, keepdims=keepdims), values.sum(axis, keepdims=keepdims), rtol=1e-4)
        np.testing.assert_array_equal(a.max(axis=axis, keepdims=keepdims), values.max(axis, keepdims=keepdims))
    for function in (operator.add, operator.mul, operator.sub, operator.truediv, operator.ge, operator.eq):
        np.testing.assert_array_equal(function(positive, a[:, :, ::-1]), function(positive.numpy(), values[:, :, ::-1]))
    np.testing.assert_allclose(a[0] @ a[0].permute((1, 0)), values[0] @ values[0].T, rtol=1e-4)
    assert nd.full((2,), 3.0).tolist() == [3, 3] and nd.empty((2, 3)).shape == (2, 3) and nd.NDArray([1]).dtype == "f4"
    assert nd.NDArray.make((2, 3), device=nd.cpu()).strides == (3, 1)
    assert nd.NDArray.make((2, 3), (1, 2), nd.cpu()).strides == (1, 2)


@pytest.mark.slow
def test_tuples_and_the_count_of_tensors() -> None:
    parts = [ndl.Tensor(drawn(3, 2)) for _ in range(3)]
    out = ndl.stack(parts, axis=1)
    weights = drawn(*out.shape)
    found = out.op.gradient_as_tuple(ndl.Tensor(weights), out)
    assert len(found) == 3 and isinstance(found, tuple)
    for i, gradient in enumerate(found):
        np.testing.assert_array_equal(gradient.numpy(), weights[:, i])
    assert [part.shape for part in ndl.split(out, axis=1)] == [(3, 2)] * 3
    gc.collect()
    before = ndl.autograd.TENSOR_COUNTER
    kept = [ndl.Tensor([float(i)]) for i in range(50)]
    assert before + len(kept) == ndl.autograd.TENSOR_COUNTER
