"""The step that is taken at once: compiled once for gradients of some types, and as the one of a graph."""

from __future__ import annotations

import copy

import dlsys as dl
import numpy as np
import torch
from dlsys import nn, optim

rng = np.random.default_rng(3)


def _pair(shapes: list[tuple[int, ...]]) -> tuple[list[dl.Tensor], list[torch.Tensor]]:
    values = [rng.standard_normal(shape) for shape in shapes]
    return [nn.Parameter(v) for v in values], [torch.nn.Parameter(torch.tensor(v)) for v in values]


def _backward(parameters: list, scale: float) -> None:
    sum((p * p * (scale + i)).sum() for i, p in enumerate(parameters)).backward()


def _close(mine: list[dl.Tensor], theirs: list[torch.Tensor]) -> None:
    for a, b in zip(mine, theirs, strict=True):
        np.testing.assert_allclose(a.numpy(), b.detach().numpy(), rtol=1e-9, atol=1e-12)


def test_a_step_is_compiled_once_for_the_same_gradients_and_options() -> None:
    mine, theirs = _pair([(3, 4), (5,), ()])
    for name, options in (("Adam", {"lr": 0.02}), ("SGD", {"lr": 0.1, "momentum": 0.9}), ("RMSprop", {"lr": 0.01})):
        a, b = getattr(optim, name)(mine, **options), getattr(torch.optim, name)(theirs, **options)
        rates = [optim.lr_scheduler.StepLR(a, 2), torch.optim.lr_scheduler.StepLR(b, 2)]
        for step in range(5):
            a.zero_grad(), b.zero_grad()
            _backward(mine, 0.1 + step), _backward(theirs, 0.1 + step)
            a.step(), b.step()
            [rate.step() for rate in rates]
            _close(mine, theirs)
        assert len(a._stepping._compiled) == 1, name
        for group in (a.param_groups[0], b.param_groups[0]):
            group["weight_decay"] = 0.3
        for _ in range(2):
            a.step(), b.step()
            _close(mine, theirs)
        assert len(a._stepping._compiled) == 2, name


def test_parameters_that_sit_out_have_counts_of_their_own() -> None:
    mine, theirs = _pair([(4,), (2, 2)])
    a, b = optim.Adam(mine, lr=0.1), torch.optim.Adam(theirs, lr=0.1)
    for step in range(6):
        a.zero_grad(), b.zero_grad()
        out = {1: 0, 3: 1}.get(step)
        chosen = [i for i in range(2) if i != out]
        _backward([mine[i] for i in chosen], step + 1.0), _backward([theirs[i] for i in chosen], step + 1.0)
        a.step(), b.step()
        _close(mine, theirs)
    state = a.state_dict()["state"]
    assert [float(state[i]["step"]) for i in range(2)] == [5, 5]
    counts = len(a._stepping._compiled)
    _backward(mine, 1.0), _backward(theirs, 1.0)
    a.step(), b.step()
    _close(mine, theirs)
    assert len(a._stepping._compiled) == counts  # both have five steps behind them again


def test_a_gradient_may_be_a_node_and_an_optimizer_be_copied() -> None:
    (w,), (v,) = _pair([(3,)])
    a, b = optim.AdamW([w], lr=0.1), torch.optim.AdamW([v], lr=0.1)
    for _ in range(2):
        a.zero_grad(), b.zero_grad()
        _backward([w], 1.0), _backward([v], 1.0)
        w.grad, v.grad = w.grad * 3 + 1, v.grad * 3 + 1
        a.step(), b.step()
    _close([w], [v])
    twin = copy.deepcopy(a)
    other = twin.parameters[0]
    other.grad = dl.tensor(np.ones(3))
    twin.step()
    _close([w], [v])
    assert other is not w and not np.allclose(other.numpy(), w.numpy())
