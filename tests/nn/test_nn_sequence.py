"""Recurrent networks, attention, transformers beside PyTorch's."""

from __future__ import annotations

from typing import Any

import dlsys as dl
import numpy as np
import pytest
from beside_torch import agree, drawn, pair, rng
from dlsys import autodiff as ad
from dlsys import nn
from optional import torch

LIMIT = 1e-4  # of sums over steps


@pytest.mark.parametrize(
    ("name", "words"), [("RNNCell", {}), ("RNNCell", {"nonlinearity": "relu"}), ("LSTMCell", {}), ("GRUCell", {})]
)
def test_cells(name: str, words: dict[str, Any]) -> None:
    for bias in (True, False):
        modules = pair(name, 5, 4, bias=bias, **words)
        state = [drawn(3, 4), drawn(3, 4)] if name == "LSTMCell" else drawn(3, 4)
        agree(modules, drawn(3, 5), state, limit=LIMIT)
    agree(modules, drawn(3, 5), limit=LIMIT)
    agree(modules, drawn(5), limit=LIMIT)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("RNN", {}), ("RNN", {"nonlinearity": "relu"}), ("LSTM", {}), ("GRU", {}),
        ("LSTM", {"bidirectional": True}), ("GRU", {"bidirectional": True}),
    ],
)  # fmt: skip
def test_layers_over_time(name: str, words: dict[str, Any]) -> None:
    count = 4 if "bidirectional" in words else 2
    for first in (False, True):
        modules = pair(name, 5, 4, num_layers=2, batch_first=first, bias=not first, **words)
        x = drawn(3, 6, 5) if first else drawn(6, 3, 5)
        state = [drawn(count, 3, 4), drawn(count, 3, 4)] if name == "LSTM" else drawn(count, 3, 4)
        agree(modules, x, state, limit=LIMIT)
    agree(modules, x, limit=LIMIT)
    if name in ("LSTM", "GRU") and not words:
        agree(pair(name, 5, 8, num_layers=2 if name == "LSTM" else 1), drawn(4, 3, 5), ctx="cpu", limit=LIMIT)


def test_dropout_between_layers_is_for_training() -> None:
    lstm, x = nn.LSTM(3, 4, num_layers=2, dropout=1.0), drawn(4, 2, 3)

    def value() -> np.ndarray:
        return ad.Executor([lstm(x)[0]], ctx="numpy").run({})[0]

    trained = value()
    lstm.weight_ih_l1.value = np.zeros((16, 4))  # as the second layer's input is all zeros
    np.testing.assert_allclose(trained, value(), atol=1e-6)
    mine, theirs = pair("LSTM", 5, 4, num_layers=2, dropout=0.5)
    agree((mine.eval(), theirs.eval()), drawn(6, 3, 5), limit=LIMIT)


def of_itself(attention: Any, x: Any, **words: Any) -> Any:
    return attention(x, x, x, **words)


@pytest.mark.slow
def test_attention_and_its_masks() -> None:
    for words in ({}, {"bias": False}, {"batch_first": True}):
        modules = pair("MultiheadAttention", 8, 2, **words)
        q, k = drawn(3, 5, 8), drawn(3, 6, 8) if words.get("batch_first") else drawn(4, 5, 8)
        agree(modules, q, call=of_itself)
        agree(modules, q, k, k + 1)
    agree(modules, q, call=of_itself, need_weights=False)
    assert modules[0](q, q, q, need_weights=False)[1] is None
    hidden = rng.random((5, 5)) < 0.4
    hidden[:, 2] = False
    for mask in (hidden, drawn(5, 5), np.broadcast_to(hidden, (6, 5, 5)).copy(), drawn(6, 5, 5)):
        agree(modules, q, call=of_itself, attn_mask=mask, fixed=("attn_mask",))
    agree(modules, q, call=of_itself, key_padding_mask=np.arange(5) >= np.array([[5], [3], [1]]))
    causal = np.triu(np.full((5, 5), -np.inf), 1)  # which PyTorch needs beside is_causal
    agree(modules, q, call=of_itself, attn_mask=causal, fixed=("attn_mask",), is_causal=True, need_weights=False)
    mine, theirs = modules
    hidden = torch.tensor(causal).float()
    agree((lambda x: mine(x, x, x, is_causal=True)[0], lambda x: theirs(x, x, x, attn_mask=hidden)[0]), q)


def test_encoders() -> None:
    for words in (
        {"dropout": 0.0},
        {"dropout": 0.3, "activation": "gelu", "norm_first": True, "batch_first": True},
        {"dropout": 0.0, "norm_first": True, "layer_norm_eps": 1e-3, "bias": False},
    ):
        mine, theirs = pair("TransformerEncoderLayer", 8, 2, 12, **words)
        agree((mine.eval(), theirs.eval()), drawn(3, 4, 8), limit=LIMIT)
    theirs, mine = (
        t.TransformerEncoder(t.TransformerEncoderLayer(8, 2, 12, 0.0, batch_first=True), 2, t.LayerNorm(8), **words)
        for t, words in ((torch.nn, {"enable_nested_tensor": False}), (nn, {}))
    )
    mine.load_state_dict(theirs.state_dict())
    padding = np.arange(4) >= np.array([[4], [2], [3]])
    agree((mine, theirs), drawn(3, 4, 8), src_key_padding_mask=padding, limit=LIMIT)
    assert mine.layers[0].linear1.weight is not mine.layers[1].linear1.weight and len(mine.layers) == 2


@pytest.mark.slow
def test_a_causal_block() -> None:
    """`nn.GPTBlock` is PyTorch's layer that norms first, by other names; nothing sees what comes behind it."""
    theirs = torch.nn.TransformerEncoderLayer(8, 2, 32, 0.0, "gelu", batch_first=True, norm_first=True)
    names = {"self_attn": "attn", "linear1": "mlp.c_fc", "linear2": "mlp.c_proj", "norm1": "ln_1", "norm2": "ln_2"}
    state = {names[name.split(".")[0]] + name[name.index(".") :]: value for name, value in theirs.state_dict().items()}
    block, x = nn.GPTBlock(8, 2), drawn(1, 5, 8)
    assert block.load_state_dict(state) == ([], []) and next(iter(block.state_dict())) == "ln_1.weight"
    causal = torch.nn.Transformer.generate_square_subsequent_mask(5)
    for ctx in ("numpy", "cpu"):
        agree((lambda x: block(x), lambda x: theirs(x, src_mask=causal)), drawn(3, 5, 8), ctx=ctx)
    changed = x.copy()
    changed[0, 3, 0] += 1
    before, after = (ad.Executor([block(dl.tensor(a))], ctx="numpy").run({})[0] for a in (x, changed))
    np.testing.assert_array_equal(before[0, :3], after[0, :3])
    assert np.abs(before[0, 3:] - after[0, 3:]).min() > 0
