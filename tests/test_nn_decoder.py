"""Decoders, sequences of several lengths and weights of a norm of their own, against PyTorch."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import dlsys as dl
import numpy as np
import torch
from dlsys import autodiff as ad
from dlsys import nn
from dlsys.errors import GraphError, ShapeError
from dlsys.nn.utils import rnn
from helpers import error_of
from test_nn_sequence import both, close, compare, drawn

LENGTHS = [5, 3, 1]


def test_decoders_compute_what_torch_computes() -> None:
    target, memory = drawn(4, 2, 8), drawn(6, 2, 8)
    hidden = np.array([[False] * 5 + [True], [False, True] * 3])
    causal = np.triu(np.ones((4, 4), bool), 1)
    for kwargs in ({"dropout": 0.0}, {"dropout": 0.0, "norm_first": True, "activation": "gelu"}):
        mine, theirs = both("TransformerDecoderLayer", 8, 2, 16, **kwargs)
        compare(mine, theirs, [target, memory], lambda m, t: m(*t))

        def masked(module: Any, t: Any) -> Any:
            library = torch if isinstance(t[0], torch.Tensor) else dl
            seen, padded = library.tensor(causal), library.tensor(hidden)
            return module(*t, tgt_mask=seen, memory_key_padding_mask=padded)

        compare(mine, theirs, [target, memory], masked)
    layers = [home.TransformerDecoderLayer(8, 2, 16, 0.0, batch_first=True) for home in (nn, torch.nn)]
    mine = nn.TransformerDecoder(layers[0], 2, nn.LayerNorm(8))
    theirs = torch.nn.TransformerDecoder(layers[1], 2, torch.nn.LayerNorm(8))
    compare(mine, theirs, [target.swapaxes(0, 1), memory.swapaxes(0, 1)], lambda m, t: m(*t))
    one, two = (layer.linear1.weight.numpy() for layer in nn.TransformerDecoder(layers[0], 2).layers)
    assert abs(one - two).max() > 0


def test_encoder_and_decoder_together() -> None:
    source, target = drawn(5, 2, 8), drawn(4, 2, 8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch's, that it will not use nested tensors
        mine, theirs = both("Transformer", 8, 2, 1, 2, 16, 0.0)

    def call(module: Any, t: Any) -> Any:
        return module(*t, tgt_mask=module.generate_square_subsequent_mask(4))

    compare(mine, theirs, [source, target], call)
    mask = nn.Transformer.generate_square_subsequent_mask(3)
    np.testing.assert_array_equal(mask.numpy(), theirs.generate_square_subsequent_mask(3).numpy())
    tensors = [dl.tensor(source), dl.tensor(target)]
    found = ad.Executor([mine(*tensors, tgt_is_causal=True), call(mine, tensors)], "numpy").run({})
    close(*map(np.array, found))
    assert 0.3 < abs(nn.Transformer(8, 2, 1, 1, 16).encoder.layers[0].linear1.weight.numpy()).max() <= 0.5 + 1e-6


def test_layers_are_made_or_copied() -> None:
    linear = nn.Linear(3, 3)
    decoder = nn.TransformerEncoder(nn.Sequential(linear), 2, enable_nested_tensor=False)
    assert decoder.layers[1][0] is not linear and decoder.layers[0][0] is not decoder.layers[1][0]
    np.testing.assert_array_equal(decoder.layers[1][0].weight.numpy(), linear.weight.numpy())
    assert "takes a TransformerDecoderLayer" in error_of(GraphError, nn.TransformerDecoder, 3, 2)
    assert 'activation must be "relu" or "gelu"' in error_of(
        GraphError, nn.TransformerDecoderLayer, 8, 2, activation="tanh"
    )


def test_sequences_are_padded_and_taken_apart() -> None:
    parts = [drawn(n, 2) for n in LENGTHS]
    theirs = [torch.tensor(part) for part in parts]
    for first in (False, True):
        padded = rnn.pad_sequence([dl.tensor(part) for part in parts], first, -1.0)
        expected = torch.nn.utils.rnn.pad_sequence(theirs, first, -1.0)
        np.testing.assert_array_equal(padded.numpy(), expected.numpy())
        for a, b in zip(rnn.unpad_sequence(padded, LENGTHS, first), parts, strict=True):
            np.testing.assert_array_equal(a.numpy(), b)
    packed = rnn.pack_sequence(parts[::-1], enforce_sorted=False)
    for total in (None, 7):
        found, lengths = rnn.pad_packed_sequence(packed, True, 2.0, total)
        other = torch.nn.utils.rnn.pack_sequence(theirs[::-1], enforce_sorted=False)
        expected, counts = torch.nn.utils.rnn.pad_packed_sequence(other, True, 2.0, total)
        np.testing.assert_array_equal(found.numpy(), expected.numpy())
        assert lengths.numpy().tolist() == counts.tolist() == LENGTHS[::-1]
    short = rnn.pack_padded_sequence(dl.tensor(drawn(6, 2, 1)), [3, 2])  # what is behind the longest is left out
    assert rnn.pad_packed_sequence(short)[0].shape == (3, 2, 1)
    x = dl.tensor(drawn(5, 3, 2))
    for words, function, args in (
        ("needs a list of sequences", rnn.pad_sequence, ([],)),
        ("needs a list of sequences", rnn.pad_sequence, ([ad.Variable("x")],)),
        ("must be 3 integers", rnn.pack_padded_sequence, (x, [1, 2])),
        ("must be 3 integers", rnn.pack_padded_sequence, (x, [1.0, 1.0, 1.0])),
        ("from 1 to 5", rnn.pack_padded_sequence, (x, [5, 3, 0])),
        ("the longest sequence must come first", rnn.pack_padded_sequence, (x, [1, 3, 2])),
        ("needs a PackedSequence", rnn.pad_packed_sequence, (x,)),
        ("less than the longest", rnn.pad_packed_sequence, (packed, False, 0.0, 4)),
    ):
        assert words in error_of(GraphError, function, *args), words  # type: ignore[arg-type]
    assert "more than their lengths" in error_of(ShapeError, rnn.pad_sequence, [drawn(2, 3), drawn(2, 4)])


def test_recurrent_layers_hold_the_state_behind_a_sequence() -> None:
    for name, kwargs in (
        ("LSTM", {"bidirectional": True, "num_layers": 2}),
        ("GRU", {"batch_first": True}),
        ("RNN", {"bidirectional": True}),
    ):
        first = kwargs.get("batch_first", False)
        mine, theirs = both(name, 3, 4, **kwargs)
        x = drawn(3, 5, 3) if first else drawn(5, 3, 3)

        def call(module: Any, t: Any, first: Any = first) -> Any:
            home = torch.nn.utils.rnn if isinstance(t[0], torch.Tensor) else rnn
            for lengths in ([3, 5, 1], [5, 5, 5]):
                packed = home.pack_padded_sequence(t[0], lengths, first, enforce_sorted=False)
                output, states = module(packed, *t[1:])
                if lengths[0] == 3:
                    kept = home.pad_packed_sequence(output, first)[0], states
            return (*kept, home.pad_packed_sequence(output, first)[0], states)

        compare(mine, theirs, [x], call)
        if name == "RNN":
            compare(mine, theirs, [x, drawn(2, 3, 4)], call)
    packed = rnn.pack_padded_sequence(drawn(4, 2, 7), [4, 2])
    assert "GRU(3, 4, batch_first=True) got (4, 2, 7)" in error_of(ShapeError, nn.GRU(3, 4, batch_first=True), packed)


def test_weights_of_a_norm_of_their_own() -> None:
    for make, x in (
        (lambda home: home.Linear(4, 3), drawn(5, 4)),
        (lambda home: home.Conv2d(2, 3, 3, padding=1), drawn(1, 2, 4, 4)),
    ):
        for dim in (0, 1, None):
            mine, theirs = nn.utils.weight_norm(make(nn), dim=dim), make(torch.nn)
            weight = theirs.weight.detach().numpy().copy()
            torch.nn.utils.parametrizations.weight_norm(theirs, dim=dim)
            state = {"bias": theirs.bias.detach()}
            parts = theirs.parametrizations.weight
            state |= {"weight_g": parts.original0.detach(), "weight_v": parts.original1.detach()}
            mine.load_state_dict(state)
            compare_weights(mine, theirs, x)
            again = copy.deepcopy(mine)
            before = mine(x).numpy()
            close(again(x).numpy(), before)
            nn.utils.remove_weight_norm(mine)
            assert sorted(mine.state_dict()) == ["bias", "weight"] and not mine._forward_pre_hooks
            close(mine.weight.numpy(), weight)
            close(mine(x).numpy(), before)
    layer = nn.utils.weight_norm(nn.Linear(4, 3))
    assert sorted(layer.state_dict()) == ["bias", "weight_g", "weight_v"]
    optimizer = dl.optim.SGD(layer.parameters(), 0.1)
    first = layer(x := drawn(5, 4)).numpy()
    layer(x).sum().backward()
    optimizer.step()
    assert abs(layer(x).numpy() - first).max() > 1e-3
    for words, function, args in (
        ("has no parameter 'kernel'", nn.utils.weight_norm, (nn.Linear(2, 2), "kernel")),
        ("has no axis 5", nn.utils.weight_norm, (nn.Linear(2, 2), "weight", 5)),
        ("needs a module, not int", nn.utils.weight_norm, (3,)),
        ("has no weight_norm of 'weight'", nn.utils.remove_weight_norm, (nn.Linear(2, 2),)),
    ):
        assert words in error_of(GraphError, function, *args), words


def compare_weights(mine: Any, theirs: Any, x: np.ndarray) -> None:
    """Output and gradients of length and direction."""
    expected = theirs(torch.tensor(x))
    (expected * expected).sum().backward()
    y = mine(dl.tensor(x))
    values = ad.Executor([y, *ad.gradients(y * y, [mine.weight_g, mine.weight_v])], "numpy").run({})
    parts = theirs.parametrizations.weight
    for value, wanted in zip(values, (expected, parts.original0.grad, parts.original1.grad), strict=True):
        close(value, wanted.detach().numpy())
