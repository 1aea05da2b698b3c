"""LBFGS against PyTorch: whole steps of a closure, its state, and what it is not."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import dlsys as dl
import numpy as np
import torch
from dlsys import autodiff as ad
from dlsys import optim
from dlsys.errors import GraphError
from helpers import error_of


def start() -> list[np.ndarray]:
    rng = np.random.default_rng(1)
    return [rng.standard_normal((3, 2)), rng.standard_normal(3)]


def made(home: Any, **options: Any) -> tuple[Any, list[Any], list[float], Any]:
    """An optimizer, its parameters, the losses that its closure saw, and the closure: a valley that is no parabola."""
    if home is torch:
        parameters = [torch.tensor(value, requires_grad=True) for value in start()]
    else:
        parameters = [ad.Parameter(value) for value in start()]
    optimizer = home.optim.LBFGS(parameters, **options)
    losses: list[float] = []

    def closure() -> Any:
        optimizer.zero_grad()
        w, b = parameters
        loss = ((w * w - 1.0) ** 2).sum() + ((w.sum(1) - b) ** 2).sum() * 3.0
        loss.backward()
        losses.append(loss.item())
        return loss

    return optimizer, parameters, losses, closure


def test_steps_are_those_of_pytorch() -> None:
    for options in (
        {"lr": 0.1},
        {"lr": 0.5, "max_iter": 5, "history_size": 3},
        {"lr": 0.2, "max_iter": 9, "max_eval": 4},
        {"lr": 0.1, "tolerance_grad": 1.0},
        {"lr": 0.1, "tolerance_change": 0.05},
        {"line_search_fn": "strong_wolfe"},
        {"lr": 0.1, "max_iter": 7, "line_search_fn": "strong_wolfe"},
        {"lr": 30.0, "max_iter": 6, "max_eval": 9, "history_size": 2, "line_search_fn": "strong_wolfe"},
    ):
        mine, theirs = made(dl, **options), made(torch, **options)
        for _ in range(4):
            first, expected = mine[0].step(mine[3]), theirs[0].step(theirs[3])
            np.testing.assert_allclose(first.item(), expected.item(), rtol=1e-8)
        assert len(mine[2]) == len(theirs[2])
        np.testing.assert_allclose(mine[2], theirs[2], rtol=1e-8, err_msg=str(options))
        for a, b in zip(mine[1], theirs[1], strict=True):
            np.testing.assert_allclose(a.numpy(), b.detach().numpy(), rtol=1e-8)


def test_line_search_crosses_a_curved_valley() -> None:
    """Rosenbrock's function, on which steps of fixed length go wrong."""
    found = []
    for home in (dl, torch):
        x = home.tensor(np.array([-1.2, 1.0]), requires_grad=True)
        optimizer = home.optim.LBFGS([x], max_iter=60, line_search_fn="strong_wolfe")
        losses: list[float] = []

        def closure(x: Any = x, optimizer: Any = optimizer, losses: list[float] = losses) -> Any:
            optimizer.zero_grad()
            loss = 100 * (x[1] - x[0] ** 2) ** 2 + (1 - x[0]) ** 2
            loss.backward()
            losses.append(loss.item())
            return loss

        optimizer.step(closure)
        found.append((losses, x.detach().numpy()))
    (mine, at), (theirs, expected) = found
    assert len(mine) == len(theirs) and min(mine) < 1e-8
    np.testing.assert_allclose(mine[:20], theirs[:20], rtol=1e-6)
    np.testing.assert_allclose(at, [1, 1], rtol=1e-4)
    np.testing.assert_allclose(at, expected, rtol=1e-6)


def test_a_state_goes_on_from_a_file() -> None:
    optimizer, parameters, losses, closure = made(dl, lr=0.2, max_iter=4, line_search_fn="strong_wolfe")
    optimizer.step(closure)
    again, others, later, other = made(dl)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "state"
        dl.save({"opt": optimizer.state_dict(), "values": [parameter.value for parameter in parameters]}, path)
        found = dl.load(path)
    again.load_state_dict(found["opt"])
    assert again.lr == 0.2 and again.groups[0]["max_iter"] == 4
    for parameter, value in zip(others, found["values"], strict=True):
        parameter.value = value
    seen = len(losses)
    optimizer.step(closure)
    again.step(other)
    assert later == losses[seen:] and later[-1] < later[0]


def test_what_it_is_not() -> None:
    optimizer, parameters, _, _ = made(dl)
    loss = (parameters[0] * 1.0).sum()
    for words, function, args in (
        ("use step(closure)", optimizer.minimize, (loss,)),
        ("use step(closure)", optimizer.update, ([None, None],)),
        ("needs a closure", optimizer.step, ()),
        ('None or "strong_wolfe", not', lambda: optim.LBFGS(parameters, line_search_fn="armijo"), ()),
        ("one group", lambda: optim.LBFGS([{"params": [p]} for p in parameters]), ()),
        ("as state_dict gives it", optimizer.load_state_dict, ({"state": {}, "param_groups": []},)),
    ):
        assert words in error_of(GraphError, function, *args), words
