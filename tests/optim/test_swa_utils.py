"""Averages of parameters over a training, beside PyTorch's."""

from __future__ import annotations

from typing import Any

import dlsys as dl
import numpy as np
import pytest
from dlsys import nn, optim
from dlsys.errors import GraphError
from helpers import error_of
from optional import torch


def options_of(library: Any, name: str) -> dict[str, Any]:
    utils = library.optim.swa_utils
    return {
        "mean": {},
        "function": {"avg_fn": lambda a, p, n: a * 0.5 + p / (n + 2)},
        "ema": {"avg_fn": utils.get_ema_avg_fn(0.9)},
        "ema of all": {"multi_avg_fn": utils.get_ema_multi_avg_fn(0.8)},
        "buffers": {"multi_avg_fn": utils.get_ema_multi_avg_fn(0.7), "use_buffers": True},
    }[name]


def network(library: Any) -> Any:
    return library.nn.Sequential(library.nn.Linear(3, 5), library.nn.BatchNorm1d(5), library.nn.Linear(5, 2))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mean", "function", "ema", "ema of all", "buffers"])
def test_averages_follow_torch(name: str) -> None:
    theirs, mine = network(torch), network(dl)
    mine.load_state_dict(theirs.state_dict())
    averages = [
        library.optim.swa_utils.AveragedModel(model, **options_of(library, name))
        for library, model in ((dl, mine), (torch, theirs))
    ]
    x = np.random.default_rng(0).standard_normal((4, 3)).astype("float32")
    for step in range(5):
        for library, model, average in ((dl, mine, averages[0]), (torch, theirs, averages[1])):
            optimizer = library.optim.SGD(model.parameters(), lr=0.1)
            optimizer.zero_grad()
            (model(library.tensor(x)) ** 2).mean().backward()
            optimizer.step()
            average.update_parameters(model)
        found, expected = (average.state_dict() for average in averages)
        assert list(found) == list(expected) and int(found["n_averaged"]) == step + 1
        for key, value in expected.items():
            if "num_batches" not in key:
                np.testing.assert_allclose(found[key], value.numpy(), rtol=1e-4, atol=1e-5, err_msg=key)
    other = optim.swa_utils.AveragedModel(network(dl))
    other.load_state_dict(averages[1].state_dict())
    results = [average.eval()(library.tensor(x)) for library, average in ((dl, other), (torch, averages[1]))]
    np.testing.assert_allclose(results[0].numpy(), results[1].detach().numpy(), rtol=1e-4, atol=1e-5)


def test_mistakes_of_averages_are_named() -> None:
    utils, model = optim.swa_utils, nn.Linear(2, 2)
    assert "a module" in error_of(GraphError, utils.AveragedModel, [])
    two = {"avg_fn": utils.get_ema_avg_fn(), "multi_avg_fn": utils.get_ema_multi_avg_fn()}
    assert "not both" in error_of(GraphError, utils.AveragedModel, model, **two)
    assert "[0, 1]" in error_of(GraphError, utils.get_ema_avg_fn, 1.5)
    assert "n_averaged" in error_of(GraphError, utils.AveragedModel(model).load_state_dict, {})
