"""Recurrent networks, attention, loaders and arrays of needle's course, hw2 and hw4, as its programs call them."""

from __future__ import annotations

import copy
import gc
import itertools
from typing import Any

import dlsys as ndl
import numpy as np
import torch
from dlsys import nn
from dlsys.errors import DeviceError, DTypeError, GraphError, ShapeError
from helpers import error_of

RNG = np.random.default_rng(3)


def drawn(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype("float32")


def set_from(cell: Any, theirs: Any, suffix: str = "", bias: bool = True) -> None:
    cell.W_ih = ndl.Tensor(getattr(theirs, f"weight_ih{suffix}").detach().numpy().T, device=ndl.cpu())
    cell.W_hh = ndl.Tensor(getattr(theirs, f"weight_hh{suffix}").detach().numpy().T, device=ndl.cpu())
    for name in ("bias_ih", "bias_hh") if bias else ():
        setattr(cell, name, ndl.Tensor(getattr(theirs, f"{name}{suffix}").detach().numpy()))


def test_cells_take_needles_weights() -> None:
    x, h0, c0 = drawn(4, 3), drawn(4, 5), drawn(4, 5)
    for bias, nonlinearity in itertools.product((True, False), ("tanh", "relu")):
        theirs = torch.nn.RNNCell(3, 5, bias, nonlinearity)
        mine = nn.RNNCell(3, 5, device=ndl.cpu(), bias=bias, nonlinearity=nonlinearity)
        set_from(mine, theirs, bias=bias)
        h, wanted = mine(ndl.Tensor(x), None), theirs(torch.tensor(x))
        np.testing.assert_allclose(h.numpy(), wanted.detach().numpy(), rtol=1e-5, atol=1e-5)
        assert mine.W_ih.grad is None
        h.sum().backward()
        wanted.sum().backward()
        np.testing.assert_allclose(mine.W_ih.grad.numpy(), theirs.weight_ih.grad.numpy().T, rtol=1e-5, atol=1e-5)
        assert list(mine.state_dict()) == list(theirs.state_dict())
    theirs, mine = torch.nn.LSTMCell(3, 5), nn.LSTMCell(3, 5)
    set_from(mine, theirs)
    state = mine(ndl.Tensor(x), (ndl.Tensor(h0), ndl.Tensor(c0)))
    for found, value in zip(state, theirs(torch.tensor(x), (torch.tensor(h0), torch.tensor(c0))), strict=True):
        np.testing.assert_allclose(found.numpy(), value.detach().numpy(), rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(copy.deepcopy(mine).W_hh.numpy(), mine.weight_hh.value.T)
    assert "bias=False" in error_of(GraphError, setattr, nn.RNNCell(3, 5, bias=False), "bias_ih", ndl.Tensor(h0[0]))
    assert "shape" in error_of(ShapeError, setattr, mine, "W_ih", ndl.Tensor(x))


def test_layers_take_needles_weights_and_arguments() -> None:
    x, h0 = drawn(6, 2, 3), drawn(2, 2, 5)
    theirs = torch.nn.RNN(3, 5, 2, nonlinearity="relu")
    mine = nn.RNN(3, 5, 2, True, device=ndl.cpu(), nonlinearity="relu")
    lstm, their_lstm = nn.LSTM(3, 5, 2, True, device=ndl.cpu(), dtype="float32"), torch.nn.LSTM(3, 5, 2)
    for k in range(2):
        set_from(mine.rnn_cells[k], theirs, f"_l{k}")
        set_from(lstm.lstm_cells[k], their_lstm, f"_l{k}")
    output, h = mine(ndl.Tensor(x), ndl.Tensor(h0))
    wanted, last = theirs(torch.tensor(x), torch.tensor(h0))
    np.testing.assert_allclose(output.numpy(), wanted.detach().numpy(), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(h.numpy(), last.detach().numpy(), rtol=1e-5, atol=1e-5)
    output.sum().backward()
    wanted.sum().backward()
    for k in range(2):
        own, other = mine.rnn_cells[k].W_ih.grad.detach().numpy(), getattr(theirs, f"weight_ih_l{k}").grad
        np.testing.assert_allclose(own, other.numpy().T, rtol=1e-4, atol=1e-4)
    found = lstm(ndl.Tensor(x))[0].numpy()
    np.testing.assert_allclose(found, their_lstm(torch.tensor(x))[0].detach().numpy(), rtol=1e-5, atol=1e-5)
    # By place: PyTorch's order, and needle's where the first is True or False.
    assert nn.RNN(3, 5, 1, "relu", False).nonlinearity == nn.RNN(3, 5, 1, False, "relu").nonlinearity == "relu"
    assert not nn.RNN(3, 5, 1, "relu", False).bias and not nn.RNN(3, 5, 1, False).bias
    assert "not 3 settings" in error_of(GraphError, nn.RNN, 3, 5, 1, True, "relu", False)
    assert "no 'W_ho'" in error_of(AttributeError, getattr, mine.rnn_cells[0], "W_ho")


def test_attention_is_pytorchs() -> None:
    q, k, v = drawn(2, 3, 4, 8), drawn(2, 3, 4, 8), drawn(2, 3, 4, 8)
    for causal in (False, True):
        result, weights = nn.MultiHeadAttention(dropout=0.0, causal=causal, device=ndl.cpu())(q, k, v)
        parts = [torch.tensor(a) for a in (q, k, v)]
        wanted = torch.nn.functional.scaled_dot_product_attention(*parts, is_causal=causal)
        np.testing.assert_allclose(result.numpy(), wanted.numpy(), rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(weights.numpy().sum(-1), 1, rtol=1e-5)
        assert np.all(np.triu(weights.numpy(), 1) == 0) == causal
    _, weights = nn.MultiHeadAttention(causal=True)(q[:, :, :2], k, v)  # the last query sees all keys
    assert np.all(weights.numpy()[..., 1, :] > 0) and np.all(weights.numpy()[..., 0, 3] == 0)
    assert "do not fit" in error_of(ShapeError, nn.MultiHeadAttention(), q, k[:, :, :3], v)


def test_transformer_of_needle() -> None:
    ndl.manual_seed(0)
    x = drawn(2, 5, 6)
    layer = nn.AttentionLayer(6, 2, 4, k_features=3, v_features=7, out_features=9, causal=False)
    assert layer(x, drawn(2, 4, 3), drawn(2, 4, 7)).shape == (2, 5, 9)
    model = nn.Transformer(6, 16, 2, num_head=2, dim_head=4, causal=True, device=ndl.cpu(), batch_first=True)
    assert isinstance(model, nn.needle.Transformer)
    result, state = model(ndl.Tensor(x))
    changed = x.copy()
    changed[:, 3:] += 1  # the future
    again = model(ndl.Tensor(changed))[0].numpy()
    np.testing.assert_allclose(again[:, :3], result.numpy()[:, :3], rtol=1e-5, atol=1e-5)
    assert np.abs(again[:, 3:] - result.numpy()[:, 3:]).max() > 0.1 and not state.numpy().any()
    model.batch_first = False
    np.testing.assert_allclose(model(x.swapaxes(0, 1))[0].numpy(), result.numpy().swapaxes(0, 1), rtol=1e-5, atol=1e-5)
    result.sum().backward()
    assert all(p.grad is not None for p in model.parameters())
    short = nn.Transformer(6, 16, 1, num_head=2, sequence_len=4, batch_first=True)
    assert "(2, 5, 6)" in error_of(ShapeError, short, x)


def test_numbers_of_classes_may_be_floats() -> None:
    logits, classes = drawn(5, 4), np.array([0, 3, 1, 1, 2], "uint8")
    given = ndl.Tensor(classes)
    assert given.dtype == "float32"
    wanted = torch.nn.functional.cross_entropy(torch.tensor(logits), torch.tensor(classes).long())
    np.testing.assert_allclose(nn.SoftmaxLoss()(ndl.Tensor(logits), given).numpy(), wanted.numpy(), rtol=1e-5)
    table = nn.Embedding(4, 3, device=ndl.cpu(), dtype="float32")
    np.testing.assert_array_equal(table(given.long()).numpy(), table.weight.value[classes])
    half = ndl.Tensor([0.0, 1.5])
    assert "use .long()" in error_of(DTypeError, table, half)
    assert "not whole" in error_of(DTypeError, nn.SoftmaxLoss(), ndl.Tensor(logits[:2]), half)


def test_loaders_and_batches_take_devices() -> None:
    data = ndl.data.NDArrayDataset(RNG.standard_normal((10, 3)), np.arange(10))
    loader = ndl.data.DataLoader(dataset=data, batch_size=4, device=ndl.cpu(), dtype="float32")
    x, y = next(iter(loader))
    assert x.dtype == "float32" and y.dtype == "int64" and isinstance(x.cached_data, ndl.NDArray)
    x, y = next(iter(ndl.data.DataLoader(data, 4, collate_fn=ndl.data.collate_ndarray)))
    assert isinstance(x, ndl.Tensor) and x.dtype == "float64" and y.tolist() == [0, 1, 2, 3]
    assert "CPU" in error_of(DeviceError, next, iter(ndl.data.DataLoader(data, 4, device="cuda:0", prefetch=0)))
    tokens = ndl.data.batchify(np.arange(26), 4, device=ndl.cpu(), dtype="float32")
    x, y = ndl.data.get_batch(tokens, 0, 5, device=ndl.cpu())
    assert isinstance(x, ndl.Tensor) and x.dtype == "float32" and x.device == ndl.cpu()
    assert x.shape == (5, 4) and y.shape == (20,) and y.tolist()[:4] == [1, 7, 13, 19]


def test_arrays_and_small_names() -> None:
    nd = ndl.backend_ndarray
    a = nd.NDArray(np.arange(6).reshape(2, 3), device=nd.cpu())
    assert a.dtype == np.float32 and a.device == ndl.cpu() and type(a.numpy()) is np.ndarray
    np.testing.assert_array_equal(a.pad(((0, 1), (2, 0))), np.pad(a.numpy(), ((0, 1), (2, 0))))
    np.testing.assert_array_equal(a.flip((1,)), a.numpy()[:, ::-1])
    assert not a.permute((1, 0)).is_compact() and a.permute((1, 0)).compact().is_compact()
    assert a.broadcast_to((4, 2, 3)).shape == (4, 2, 3) and isinstance(nd.array([1.0]), nd.NDArray)
    assert "1 pairs for 2 axes" in error_of(GraphError, a.pad, ((0, 1),))
    parts = [ndl.Tensor(drawn(3, 2)) for _ in range(3)]
    out = ndl.stack(parts, axis=1)
    weights = drawn(*out.shape)
    found = out.op.gradient_as_tuple(ndl.Tensor(weights), out)
    assert len(found) == 3 and not isinstance(found[0], ndl.TensorTuple) and isinstance(out.op, ndl.Op)
    for i, gradient in enumerate(found):
        np.testing.assert_array_equal(gradient.numpy(), weights[:, i])
    assert [part.shape for part in ndl.split(out, axis=1)] == [(3, 2)] * 3
    assert "size of a part" in error_of(GraphError, ndl.split, out)
    gc.collect()
    before = ndl.autograd.TENSOR_COUNTER
    kept = [ndl.Tensor([float(i)]) for i in range(50)]
    assert before + len(kept) == ndl.autograd.TENSOR_COUNTER
