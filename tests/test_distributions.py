"""Distributions: formulas and their gradients against PyTorch, samples by their frequencies."""

from __future__ import annotations

from typing import Any

import dlsys as dl
import numpy as np
import pytest
from beside_torch import DTYPES, agree
from dlsys import distributions
from dlsys.errors import GraphError
from helpers import error_of
from optional import torch

LOC, SCALE = [[0.5], [-1.0]], [0.5, 1.0, 2.0]
LOGITS = [[-30.0, 0.1, 2.0], [0.0, 0.5, 40.0]]
PROBS = [[0.2, 0.5, 0.3], [0.9, 0.0, 0.1]]
CASES: dict[str, tuple[str, dict[str, Any], Any]] = {
    "normal": ("Normal", {"loc": LOC, "scale": SCALE}, [[0.1, 2.0, -3.0]]),
    "bernoulli by logits": ("Bernoulli", {"logits": LOGITS}, [[1.0, 0.0, 1.0]]),
    "bernoulli by probs": ("Bernoulli", {"probs": PROBS}, 1.0),
    "categorical by logits": ("Categorical", {"logits": LOGITS}, [2, 0]),
    "categorical by probs": ("Categorical", {"probs": PROBS}, [[0], [2]]),
}


@pytest.mark.parametrize("name", CASES)
@DTYPES
def test_formulas_and_gradients(name: str, dtype: str) -> None:
    kind, given, at = CASES[name]

    def of(library: Any) -> Any:
        def results(value: Any, **parameters: Any) -> Any:
            p = getattr(library.distributions, kind)(**parameters)
            return p.log_prob(value), p.entropy()

        return results

    parameters = {name: np.array(value, dtype) for name, value in given.items()}
    value = np.array(at, "int64" if kind == "Categorical" else dtype)
    agree((of(dl), of(torch)), value, dtype=dtype, fixed=(0,), **parameters)


@pytest.mark.parametrize("name", CASES)
def test_samples(name: str) -> None:
    dl.manual_seed(3)
    kind, given, _ = CASES[name]
    p = getattr(distributions, kind)(**{k: dl.tensor(v, requires_grad=True) for k, v in given.items()})
    whole = np.broadcast_shapes(*(np.shape(value) for value in given.values()))
    assert p.batch_shape == whole[: -1 if kind == "Categorical" else None]
    drawn = p.sample((4000,))
    assert drawn.shape == (4000, *p.batch_shape) and not drawn.requires_grad
    values = drawn.numpy()
    if kind == "Categorical":
        found = np.stack([(values == i).mean(0) for i in range(3)], -1)
        np.testing.assert_allclose(found, p.probs.detach().numpy(), atol=0.04)
        assert drawn.dtype == "int64" and p.sample().shape == p.batch_shape
    else:
        mean, deviation = (p.loc, p.scale) if kind == "Normal" else (p.probs, (p.probs * (1 - p.probs)).sqrt())
        for found, wanted in ((values.mean(0), mean), (values.std(0), deviation)):
            np.testing.assert_allclose(found, np.broadcast_to(wanted.detach().numpy(), p.batch_shape), atol=0.15)


def test_gradients_pass_rsample() -> None:
    loc, scale = dl.tensor([1.0], requires_grad=True), dl.tensor([2.0], requires_grad=True)
    drawn = distributions.Normal(loc, scale).rsample((5,))
    drawn.sum().backward()
    np.testing.assert_allclose(loc.grad.numpy(), [5.0])
    np.testing.assert_allclose(scale.grad.numpy(), [(drawn.detach().numpy() - 1).sum() / 2], rtol=1e-5)


def test_one_parameter_is_given_and_what_is_out_of_range_is_nan() -> None:
    for kind in (distributions.Bernoulli, distributions.Categorical):
        for given in ({}, {"probs": [0.5], "logits": [0.0]}):
            assert "either probs or logits" in error_of(GraphError, kind, **given)
    assert "one axis or more" in error_of(GraphError, distributions.Categorical, 0.5)
    category = distributions.Categorical(logits=dl.tensor([0.1, 0.2, 0.3]))
    found = [distributions.Bernoulli(3.0).log_prob(1.0), distributions.Normal(0.0, -3.0).log_prob(1.0)]
    found += [category.log_prob(value) for value in (3, dl.tensor([-1]))]
    assert all(np.isnan(value.numpy()).all() for value in found)
