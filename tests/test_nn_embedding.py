"""Embeddings whose rows are of bounded norm, and whose gradients are divided by frequency, beside PyTorch's."""

from __future__ import annotations

import dlsys as dl
import numpy as np
import torch
from against_torch import random
from dlsys import autodiff as ad
from dlsys import nn
from dlsys.errors import GraphError
from helpers import error_of


def test_embeddings_of_bounded_norm_and_gradients_by_frequency() -> None:
    rows, numbers = 2 * random(6, 3), np.array([[0, 4, 4], [2, 4, 0]])
    for options in (
        {"max_norm": 1.5},
        {"max_norm": 0.7, "norm_type": 1.0, "scale_grad_by_freq": True},
        {"scale_grad_by_freq": True, "padding_idx": 0},
    ):
        found = []
        for m, home in ((dl, nn), (torch, torch.nn)):
            layer = home.Embedding.from_pretrained(m.tensor(rows), freeze=False, **options)
            output = layer(m.tensor(numbers))
            (output**2).sum().backward()
            found.append((output.detach().numpy(), layer.weight.detach().numpy(), layer.weight.grad.numpy()))
        for mine, theirs in zip(*found, strict=True):
            if "padding_idx" in options and mine is found[0][0]:
                mine, theirs = mine[numbers > 0], theirs[numbers > 0]  # PyTorch reads the row, which here is zeros
            np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)
    x = ad.Variable("x", (2, 3), "int64")
    layer = nn.Embedding(6, 3, scale_grad_by_freq=True)
    (gradient,) = ad.Executor(ad.gradients(layer(x), [layer.weight])).run({x: numbers})
    np.testing.assert_allclose(np.asarray(gradient)[:, 0], [1, 0, 1, 0, 1, 0], rtol=1e-6)
    assert "indices data" in error_of(GraphError, nn.Embedding(6, 3, max_norm=1.0), x)
    assert "max_norm must be a number > 0" in error_of(GraphError, nn.Embedding(6, 3, max_norm=-1.0), numbers)
    assert "max_norm=1.0" in repr(nn.Embedding(6, 3, max_norm=1.0))
