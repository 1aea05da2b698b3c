"""Leaves that are written with what has a history: they become computed tensors, as in PyTorch."""

from __future__ import annotations

import copy
from typing import Any

import dlsys as dl
import numpy as np
import torch
from dlsys import nn
from dlsys.errors import GraphError
from helpers import error_of


def compare(program: Any) -> None:
    """The program's results are PyTorch's, tensors and what is none."""
    mine, theirs = program(dl), program(torch)
    for a, b in zip(mine, theirs, strict=True):
        if isinstance(b, torch.Tensor):
            np.testing.assert_allclose(a.detach().numpy(), b.detach().numpy(), rtol=1e-5, atol=1e-6)
        else:
            assert a == b


def test_rows_are_written_into_zeros() -> None:
    def program(lib: Any) -> list[Any]:
        w = lib.tensor([1.0, 2.0, 3.0], requires_grad=True)
        out = lib.zeros(2, 3)
        early = out * 5 + 1  # has read the zeros, and keeps them
        out[0] = w * 2
        out[1] += w**2
        (out * lib.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])).sum().backward()
        return [early, out, w.grad, out.requires_grad, out.is_leaf, w.is_leaf]

    compare(program)


def test_a_loop_fills_a_tensor() -> None:
    def program(lib: Any) -> list[Any]:
        w = lib.tensor([0.5, -1.0], requires_grad=True)
        states = lib.empty(4, 2)
        state = lib.tensor([1.0, 1.0])
        for i in range(4):
            state = lib.tanh(state * w)
            states[i] = state
        states.pow(2).mean().backward()
        return [states, w.grad]

    compare(program)


def test_experts_write_their_rows() -> None:
    x = np.random.default_rng(0).standard_normal((6, 3)).astype("float32")
    weights = [np.random.default_rng(i).standard_normal((3, 3)).astype("float32") for i in (1, 2)]

    def program(lib: Any) -> list[Any]:
        given, experts = lib.tensor(x), [lib.tensor(w, requires_grad=True) for w in weights]
        values, which = lib.topk(given @ lib.tensor(weights[0][:, :2]), 1, dim=-1)
        out = lib.zeros_like(given)
        for i, expert in enumerate(experts):
            rows, places = lib.where(which == i)
            out[rows] += values[rows, places, None] * (given[rows] @ expert)
        out.sum().backward()
        return [out, *[expert.grad for expert in experts]]

    compare(program)


def test_what_stays_an_error() -> None:
    w = dl.tensor([1.0, 2.0], requires_grad=True)
    own = dl.tensor([0.0, 0.0])
    assert "requires a gradient" in error_of(GraphError, w.__setitem__, 0, w.sum())
    assert "clone()" in error_of(GraphError, own.data.__setitem__, 0, w.sum())
    assert "clone()" in error_of(GraphError, own[:1].add_, w.sum())
    model = nn.BatchNorm1d(2)
    assert "clone()" in error_of(GraphError, model.running_mean.__setitem__, 0, w.sum())
    kept = copy.deepcopy(own)
    own[1] = w[0]
    with dl.no_grad():
        kept[1] = w[0]  # no history: it stays a leaf
    assert kept.is_leaf and not own.is_leaf and kept.tolist() == own.tolist() == [0.0, 1.0]
