"""Recurrent networks, attention, transformers: names, numbers and gradients are PyTorch's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import dlsys as dl
import numpy as np
import pytest
from dlsys import autodiff as ad
from dlsys import nn
from optional import torch

RNG = np.random.default_rng(7)


def drawn(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype("float32")


def flat(value: Any) -> list[Any]:
    """The leaves of nested tuples."""
    return [leaf for item in value for leaf in flat(item)] if isinstance(value, (tuple, list)) else [value]


def close(mine: np.ndarray, theirs: np.ndarray, what: str = "") -> None:
    scale = max(float(np.abs(theirs).max(initial=0)), 1e-3)
    np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-4 * scale, err_msg=what)


def compare(
    mine: nn.Module, theirs: torch.nn.Module, arrays: Sequence[np.ndarray], call: Any, ctx: Any = None
) -> None:
    """Outputs of `call(module, tensors)`, and gradients of a weighted sum of them, are PyTorch's; by the operators'
    NumPy rules, as to compile so many small graphs takes minutes, unless another context is given."""
    assert list(mine.state_dict()) == list(theirs.state_dict())
    assert mine.load_state_dict(theirs.state_dict()) == ([], [])
    theirs.zero_grad()
    xs = [dl.tensor(a, requires_grad=True) for a in arrays]
    ts = [torch.tensor(a, requires_grad=True) for a in arrays]
    outputs = [y for y in flat(call(mine, xs)) if y is not None]
    wanted = [y for y in flat(call(theirs, ts)) if y is not None]
    assert [y.shape for y in outputs] == [tuple(y.shape) for y in wanted]
    weights = [drawn(*y.shape) for y in outputs]
    total: Any = 0
    for y, w in zip(outputs, weights, strict=True):
        total = ad.reducesum_op(y * dl.tensor(w)) + total
    sum((y * torch.tensor(w)).sum() for y, w in zip(wanted, weights, strict=True)).backward()
    parameters = dict(mine.named_parameters())
    leaves = [*xs, *parameters.values()]
    grads = ad.gradients(total, leaves)
    values = ad.Executor([*outputs, *grads], ctx=ctx or dl.numpy()).run({}, convert_to_numpy_ret_vals=True)
    for value, y in zip(values, wanted, strict=False):
        close(value, y.detach().numpy())
    expected = [*ts, *dict(theirs.named_parameters()).values()]
    names = [*(f"input {i}" for i in range(len(xs))), *parameters]
    for name, value, leaf in zip(names, values[len(outputs) :], expected, strict=True):
        close(value, np.zeros(leaf.shape) if leaf.grad is None else leaf.grad.numpy(), f"gradient of {name}")


def both(name: str, *args: Any, **kwargs: Any) -> tuple[nn.Module, torch.nn.Module]:
    torch.manual_seed(3)
    return getattr(nn, name)(*args, **kwargs), getattr(torch.nn, name)(*args, **kwargs)


def state_of(name: str, states: Sequence[Any]) -> Any:
    return tuple(states) if "LSTM" in name else states[0]


def test_cells() -> None:
    for name, kwargs in (("RNNCell", {}), ("RNNCell", {"nonlinearity": "relu"}), ("LSTMCell", {}), ("GRUCell", {})):
        for bias in (True, False):
            mine, theirs = both(name, 5, 4, bias=bias, **kwargs)
            states = [drawn(3, 4) for _ in range(2 if name == "LSTMCell" else 1)]
            compare(mine, theirs, [drawn(3, 5), *states], lambda m, t, n=name: m(t[0], state_of(n, t[1:])))
        compare(mine, theirs, [drawn(3, 5)], lambda m, t: m(t[0]))
        compare(mine, theirs, [drawn(5)], lambda m, t: m(t[0]))


@pytest.mark.slow
def test_layers_over_time() -> None:
    both_ways = {"bidirectional": True}
    for name, kwargs in (
        ("RNN", {}), ("RNN", {"nonlinearity": "relu"}), ("LSTM", {}), ("GRU", {}),
        ("LSTM", both_ways), ("GRU", both_ways),
    ):  # fmt: skip
        for first in (False, True):
            mine, theirs = both(name, 5, 4, num_layers=2, batch_first=first, bias=not first, **kwargs)
            count = 4 if kwargs is both_ways else 2
            states = [drawn(count, 3, 4) for _ in range(2 if name == "LSTM" else 1)]
            x = drawn(3, 6, 5) if first else drawn(6, 3, 5)
            compare(mine, theirs, [x, *states], lambda m, t, n=name: m(t[0], state_of(n, t[1:])))
        compare(mine, theirs, [x], lambda m, t: m(t[0]))


@pytest.mark.slow
def test_dropout_between_layers_is_for_training() -> None:
    lstm, x = nn.LSTM(3, 4, num_layers=2, dropout=1.0), drawn(4, 2, 3)

    def value() -> np.ndarray:
        (found,) = ad.Executor([lstm(x)[0]], ctx=dl.numpy()).run({})
        return found

    trained = value()
    lstm.weight_ih_l1.value = np.zeros((16, 4))  # as the second layer's input is all zeros
    np.testing.assert_allclose(trained, value(), atol=1e-6)
    mine, theirs = both("LSTM", 5, 4, num_layers=2, dropout=0.5)
    compare(mine.eval(), theirs.eval(), [drawn(6, 3, 5)], lambda m, t: m(t[0]))


@pytest.mark.slow
def test_compiled_layers_over_time() -> None:
    for name, layers in (("LSTM", 2), ("GRU", 1)):
        mine, theirs = both(name, 5, 8, num_layers=layers)
        compare(mine, theirs, [drawn(4, 3, 5)], lambda m, t: m(t[0]), dl.cpu())


@pytest.mark.slow
def test_attention() -> None:
    for kwargs in ({}, {"batch_first": True}, {"bias": False}):
        mine, theirs = both("MultiheadAttention", 8, 2, **kwargs)
        q, k = drawn(3, 4, 8), drawn(5, 4, 8) if not kwargs.get("batch_first") else drawn(3, 6, 8)
        compare(mine, theirs, [q], lambda m, t: m(t[0], t[0], t[0]))
        compare(mine, theirs, [q, k, k + 1], lambda m, t: m(*t))
    compare(mine, theirs, [drawn(4, 2, 8)], lambda m, t: m(t[0], t[0], t[0], need_weights=False))
    assert mine(*[drawn(4, 2, 8)] * 3, need_weights=False)[1] is None


def masked(kind: str, mask: np.ndarray) -> Any:
    """A call of self-attention, batch first, with a mask by PyTorch's name for it."""

    def call(module: Any, tensors: Any) -> Any:
        given = dl.tensor(mask) if isinstance(module, nn.Module) else torch.tensor(mask)
        return module(tensors[0], tensors[0], tensors[0], **{kind: given})

    return call


def test_masks_of_attention() -> None:
    mine, theirs = both("MultiheadAttention", 8, 2, batch_first=True)
    x = drawn(3, 5, 8)
    hidden = RNG.random((5, 5)) < 0.4
    hidden[:, 2] = False
    for mask in (hidden, drawn(5, 5), np.broadcast_to(hidden, (6, 5, 5)).copy(), drawn(6, 5, 5)):
        compare(mine, theirs, [x], masked("attn_mask", mask))
    padding = np.arange(5) >= np.array([[5], [3], [1]])
    compare(mine, theirs, [x], masked("key_padding_mask", padding))
    causal = torch.nn.Transformer.generate_square_subsequent_mask(5)

    def call(module: Any, t: Any) -> Any:
        own = {} if isinstance(module, nn.Module) else {"attn_mask": causal}
        return module(t[0], t[0], t[0], is_causal=True, need_weights=False, **own)

    compare(mine, theirs, [x], call)


def test_encoders() -> None:
    for kwargs in (
        {"dropout": 0.0},
        {"dropout": 0.3, "activation": "gelu", "norm_first": True, "batch_first": True},
        {"dropout": 0.0, "norm_first": True, "layer_norm_eps": 1e-3, "bias": False},
    ):
        mine, theirs = both("TransformerEncoderLayer", 8, 2, 12, **kwargs)
        compare(mine.eval(), theirs.eval(), [drawn(3, 4, 8)], lambda m, t: m(t[0]))
    torch.manual_seed(1)
    layer = torch.nn.TransformerEncoderLayer(8, 2, 12, 0.0, batch_first=True)
    theirs = torch.nn.TransformerEncoder(layer, 2, torch.nn.LayerNorm(8), enable_nested_tensor=False)
    mine = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 12, 0.0, batch_first=True), 2, nn.LayerNorm(8))
    padding = np.arange(4) >= np.array([[4], [2], [3]])

    def call(module: Any, t: Any) -> Any:
        given = dl.tensor(padding) if isinstance(module, nn.Module) else torch.tensor(padding)
        return module(t[0], src_key_padding_mask=given)

    compare(mine, theirs, [drawn(3, 4, 8)], call)
    first, second = mine.layers
    made = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 12), 2)
    assert first.linear1.weight is not second.linear1.weight and len(made.layers) == 2


class TorchBlock(torch.nn.Module):
    """What `nn.GPTBlock` computes."""

    def __init__(self) -> None:
        super().__init__()
        self.ln_1 = torch.nn.LayerNorm(8)
        self.attn = torch.nn.MultiheadAttention(8, 2, batch_first=True)
        self.ln_2 = torch.nn.LayerNorm(8)
        self.mlp = torch.nn.Sequential()
        self.mlp.add_module("c_fc", torch.nn.Linear(8, 32))
        self.mlp.add_module("gelu", torch.nn.GELU())
        self.mlp.add_module("c_proj", torch.nn.Linear(32, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.ln_1(x)
        causal = torch.nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        x = x + self.attn(y, y, y, attn_mask=causal, need_weights=False)[0]
        return x + self.mlp(self.ln_2(x))


@pytest.mark.slow
def test_a_causal_block() -> None:
    torch.manual_seed(2)
    compare(nn.GPTBlock(8, 2), TorchBlock(), [drawn(3, 5, 8)], lambda m, t: m(t[0]))
    compare(nn.GPTBlock(8, 2), TorchBlock(), [drawn(3, 5, 8)], lambda m, t: m(t[0]), dl.cpu())
    block, x = nn.GPTBlock(8, 2), drawn(1, 5, 8)
    changed = x.copy()
    changed[0, 3, 0] += 1
    (before,), (after,) = (ad.Executor([block(a)], ctx=dl.numpy()).run({}) for a in (x, changed))
    np.testing.assert_array_equal(before[0, :3], after[0, :3])
    assert np.abs(before[0, 3:] - after[0, 3:]).min() > 0
