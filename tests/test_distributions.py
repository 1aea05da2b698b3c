"""Distributions beside PyTorch's: log-probabilities, entropies and divergences with gradients, and what is drawn."""

from __future__ import annotations

from typing import Any

import dlsys as dl
import numpy as np
import torch
from dlsys import autodiff as ad
from dlsys import eager
from dlsys.errors import GraphError
from helpers import error_of

DRAW = np.random.default_rng(0)
A, B = DRAW.standard_normal((2, 3)), DRAW.uniform(0.2, 0.9, (2, 3))


def quantities(m: Any, a: Any, b: Any) -> list[Any]:
    d = m.distributions
    first, second = d.Normal(a, b), d.Normal(0.5, b * 2)
    flat, wide = d.Uniform(a, a + b), d.Uniform(a - b, a + 3 * b)
    coin, other = d.Bernoulli(probs=b), d.Bernoulli(logits=a)
    one, two = d.Categorical(logits=a), d.Categorical(probs=b)
    numbers = m.tensor(np.array([2, 0]))
    ones = m.tensor(np.array([[0.0, 1, 1], [1, 0, 1]]))
    return [
        first.log_prob(m.tensor(B)),
        first.log_prob(m.tensor(B[:1])),
        first.entropy(),
        first.mean + first.stddev + first.variance,
        second.log_prob(m.tensor(A)),
        second.cdf(m.tensor(A)),
        d.kl_divergence(first, second),
        flat.log_prob((a + 0.3 * b).detach()),
        flat.entropy(),
        flat.mean + flat.variance + flat.stddev,
        flat.cdf(m.tensor(A) + 0.1),
        d.kl_divergence(flat, wide),
        coin.log_prob(ones),
        other.log_prob(ones),
        coin.entropy() + other.entropy(),
        coin.mean + other.variance + coin.logits + other.probs,
        d.kl_divergence(coin, other),
        one.log_prob(numbers),
        two.log_prob(numbers),
        two.log_prob(m.tensor(np.array([[2, 0], [1, 1], [0, 2]]))),
        one.entropy() + two.entropy(),
        two.probs * one.logits,
        d.kl_divergence(one, two),
    ]


def test_formulas_are_pytorchs() -> None:
    mine = [dl.tensor(v, requires_grad=True) for v in (A, B)]
    theirs = [torch.tensor(v, requires_grad=True) for v in (A, B)]
    found, expected = quantities(dl, *mine), quantities(torch, *theirs)
    eager.evaluate(found)  # in one run
    for number, (a, b) in enumerate(zip(found, expected, strict=True)):
        assert a.shape == tuple(b.shape) and a.dtype == "float64", number
        np.testing.assert_allclose(a.numpy(), b.detach().numpy(), rtol=1e-9, err_msg=str(number))
    sum((node.sum() for node in found), dl.tensor(0.0)).backward()
    sum((node.sum() for node in expected), torch.tensor(0.0)).backward()
    for a, b in zip(mine, theirs, strict=True):
        np.testing.assert_allclose(a.grad.numpy(), b.grad.numpy(), rtol=1e-8)


def test_edges() -> None:
    for m in (dl, torch):
        d = m.distributions
        uniform = d.Uniform(m.zeros(2), m.ones(2), validate_args=False)
        assert uniform.log_prob(m.tensor([1.0, 0.0])).tolist() == [-np.inf, 0.0]
        sure = d.Bernoulli(probs=m.tensor([0.0, 1.0]))
        assert sure.sample((50,)).mean(0).tolist() == [0, 1] and np.isfinite(sure.logits.numpy()).all()
        chosen = d.Categorical(probs=m.tensor([0.0, 3.0, 0.0]))
        assert set(chosen.sample((50,)).tolist()) == {1} and abs(chosen.entropy().item()) < 1e-5
        outside = d.kl_divergence(d.Uniform(0.0, 2.0), d.Uniform(0.0, 1.0))
        assert outside.item() == np.inf


def test_what_is_drawn() -> None:
    dl.manual_seed(0)
    d = dl.distributions
    a, b = dl.tensor(A, requires_grad=True), dl.tensor(B, requires_grad=True)
    n = 10000
    drawn = d.Normal(a, b).sample((n,))
    assert drawn.shape == (n, 2, 3) and drawn.dtype == "float64" and not drawn.requires_grad
    np.testing.assert_allclose(drawn.numpy().mean(0), A, atol=0.04)
    np.testing.assert_allclose(drawn.numpy().std(0), B, rtol=0.04)
    assert d.Normal(0.0, 1.0).sample().shape == () and d.Normal(0.0, 1.0).sample((3,)).dtype == "float32"
    flat = d.Uniform(a, a + b).sample((n,)).numpy()
    assert (flat >= A).all() and (flat < A + B).all()
    np.testing.assert_allclose(flat.mean(0), A + B / 2, atol=0.03)
    coin = d.Bernoulli(probs=b).sample((n,))
    assert set(np.unique(coin.numpy())) == {0.0, 1.0}
    np.testing.assert_allclose(coin.numpy().mean(0), B, atol=0.03)
    one = d.Categorical(logits=a)
    numbers = one.sample((n,))
    assert numbers.dtype == "int64" and numbers.shape == (n, 2)
    shares = (numbers.numpy()[..., None] == np.arange(3)).mean(0)
    np.testing.assert_allclose(shares, np.exp(A) / np.exp(A).sum(1, keepdims=True), atol=0.03)
    assert one.log_prob(numbers).shape == (n, 2)
    dl.manual_seed(3)
    first = d.Normal(a, b).sample()
    dl.manual_seed(3)
    np.testing.assert_array_equal(first.numpy(), d.Normal(a, b).sample().numpy())
    assert (first.numpy() != d.Normal(a, b).sample().numpy()).all()


def test_gradients_go_through_rsample() -> None:
    dl.manual_seed(0)
    a, b = dl.tensor(A, requires_grad=True), dl.tensor(B, requires_grad=True)
    x = dl.distributions.Normal(a, b).rsample((4,))
    (x * x).sum().backward()
    noise = (x.numpy() - A) / B
    np.testing.assert_allclose(a.grad.numpy(), 2 * x.numpy().sum(0), rtol=1e-9)
    np.testing.assert_allclose(b.grad.numpy(), (2 * x.numpy() * noise).sum(0), rtol=1e-9)
    a.grad = b.grad = None
    u = dl.distributions.Uniform(a, b + 3).rsample()
    u.sum().backward()
    share = (u.numpy() - A) / (B + 3 - A)
    np.testing.assert_allclose(a.grad.numpy(), 1 - share, rtol=1e-9)
    np.testing.assert_allclose(b.grad.numpy(), share, rtol=1e-9)
    try:
        dl.distributions.Categorical(logits=a).rsample()
    except NotImplementedError as error:
        assert "Categorical has no rsample" in str(error)
    else:
        raise AssertionError("numbers of a Categorical have no derivative")


def test_compiled_graphs_draw_anew() -> None:
    dl.manual_seed(0)
    loc = ad.Variable("loc", (1000,), "float32")
    x = dl.distributions.Normal(loc, 2.0)
    drawn = x.rsample()
    run = ad.Executor([drawn, x.log_prob(drawn), *ad.gradients(drawn, [loc])])
    feed = {loc: np.full(1000, 3, "float32")}
    first, second = ([np.array(value) for value in run.run(feed)] for _ in range(2))
    assert (first[0] != second[0]).mean() > 0.99 and (first[2] == 1).all()
    for values, log_prob, _ in (first, second):
        assert abs(values.mean() - 3) < 0.3 and abs(values.std() - 2) < 0.2
        theirs = torch.distributions.Normal(3.0, 2.0).log_prob(torch.tensor(values))
        np.testing.assert_allclose(log_prob, theirs.numpy(), rtol=1e-4)


def test_policy_gradient_learns() -> None:
    """REINFORCE on a bandit, as PyTorch's documentation writes it."""
    dl.manual_seed(0)
    logits = dl.nn.Parameter(np.zeros(3, np.float32))
    optimizer = dl.optim.Adam([logits], lr=0.2)
    rewards = dl.tensor([0.0, 0.1, 1.0])
    for _ in range(30):
        policy = dl.distributions.Categorical(logits=logits)
        action = policy.sample((16,))
        loss = -(policy.log_prob(action) * rewards[action]).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert dl.distributions.Categorical(logits=logits).probs.numpy()[2] > 0.9


def test_errors() -> None:
    d = dl.distributions
    assert "scale of shape (2,) must be greater than 0" in error_of(GraphError, d.Normal, 0.0, dl.tensor([1.0, 0.0]))
    assert d.Normal(0.0, -1.0, validate_args=False).batch_shape == ()
    assert "high - low" in error_of(GraphError, d.Uniform, 1.0, 1.0)
    assert "in [0, 1]" in error_of(GraphError, d.Bernoulli, 1.5)
    assert "sum > 0" in error_of(GraphError, d.Categorical, dl.zeros(3))
    assert "either probs or logits" in error_of(GraphError, d.Categorical)
    assert "a number is none" in error_of(GraphError, d.Categorical, 0.5)
    assert "from 0 to 1" in error_of(GraphError, d.Categorical(dl.ones(2)).log_prob, dl.tensor([2]))
    assert "must be known" in error_of(GraphError, d.Normal, ad.Variable("loc"), 1.0)
    try:
        d.kl_divergence(d.Normal(0.0, 1.0), d.Uniform(0.0, 1.0))
    except NotImplementedError as error:
        assert "Normal and Uniform" in str(error)
    else:
        raise AssertionError("there is no such divergence")
