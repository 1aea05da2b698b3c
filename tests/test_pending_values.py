"""What was not asked for while parameters changed has the value of the time when it was made, as in PyTorch."""

from __future__ import annotations

import gc
from typing import Any

import dlsys as dl
import numpy as np
import torch
from dlsys import nn, optim
from dlsys.eager.trace_cache import is_leaf
from dlsys.errors import GraphError, ShapeError
from helpers import error_of

RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((16, 4)).astype("float32"), RNG.integers(0, 3, 16)


def equal(mine: list[Any], theirs: list[Any]) -> None:
    assert len(mine) == len(theirs)
    for a, b in zip(mine, theirs, strict=True):
        np.testing.assert_allclose(a.numpy(), b.detach().numpy(), rtol=1e-4, atol=1e-5)


def test_a_training_loop_may_keep_what_it_never_asked_for() -> None:
    def train(model: Any, functional: Any, make: Any, library: Any) -> tuple[list[Any], list[Any]]:
        opt = library.SGD(model.parameters(), lr=0.5, momentum=0.9)
        actions, others = [], []
        for _ in range(5):
            model.train()
            actions.append(model[0](make(X)).argmax(1))
            others.append(functional.cross_entropy(model[0](make(X)), make(Y)))
            hidden = model[0](make(X))  # what is made of it is asked for, it is not
            (hidden * 2).sum().item()
            others.append(hidden)
            opt.zero_grad()
            functional.cross_entropy(model(make(X)), make(Y)).backward()
            opt.step()
            model.eval()
            others.append(model(make(X)))  # by the running mean and variance of now
        return actions, others

    theirs = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.BatchNorm1d(5), torch.nn.Linear(5, 3))
    mine = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))
    mine.load_state_dict(theirs.state_dict())
    actions, others = train(mine, nn.functional, dl.tensor, optim)
    their_actions, their_others = train(theirs, torch.nn.functional, torch.tensor, torch.optim)
    equal(others, their_others)
    for a, b in zip(actions, their_actions, strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())


def test_every_way_of_changing_a_leaf() -> None:
    def in_place(w: Any, lib: Any) -> None:
        with lib.no_grad():
            w -= 0.5

    def by_data(w: Any, lib: Any) -> None:
        w.data = w.data * 2

    def copied(w: Any, lib: Any) -> None:
        with lib.no_grad():
            w.copy_(lib.tensor([3.0, 1.0, 2.0]))

    for change in (in_place, by_data, copied):
        found = []
        for lib in (dl, torch):
            w = lib.tensor([1.0, 2.0, 3.0], requires_grad=True)
            kept = []
            for _ in range(4):
                kept.append((w * w).sum())
                change(w, lib)
            found.append([float(value.detach()) for value in kept])
        np.testing.assert_allclose(*found, rtol=1e-6)
    model = nn.Linear(4, 3)
    state = model.state_dict()
    out, want = model(X), X @ state["weight"].T + state["bias"]
    for factor in (0, 2, 3):
        model.load_state_dict({name: factor * value for name, value in state.items()})
    np.testing.assert_allclose(out.numpy(), want, rtol=1e-5, atol=1e-5)


def test_nothing_is_computed_that_is_not_held() -> None:
    w = dl.tensor(np.ones(3, "float32"), requires_grad=True)
    computed: list[str] = []
    kept = []
    for _ in range(4):
        loss = (w * 3).tanh().sum()
        loss.backward()
        kept.append(loss)  # holds its graph, whose parts nobody asks for
        with dl.no_grad():
            w -= 0.1
    stack, seen = [value for loss in kept for value in loss.inputs], set()
    while stack:
        node = stack.pop()
        if node.inputs and node not in seen:
            seen.add(node)
            computed += [node.name] if is_leaf(node) else []
            stack += node.inputs
    assert seen and not computed
    np.testing.assert_allclose([float(v) for v in kept], 3 * np.tanh([3, 2.7, 2.4, 2.1]), rtol=1e-5)


def test_lists_of_readers_do_not_grow() -> None:
    model = nn.Linear(4, 3)
    opt = optim.Adam(model.parameters())
    counts = []
    for _ in range(30):
        opt.zero_grad()
        nn.functional.cross_entropy(model(X), dl.tensor(Y)).backward()
        opt.step()
        gc.collect()
        counts.append(len(model.weight._readers))
    assert max(counts[5:]) == counts[5] < 40


def test_what_cannot_be_computed_says_so_when_it_is_asked_for() -> None:
    w = dl.tensor(np.ones(3, "float32"), requires_grad=True)
    wrong = w @ dl.tensor(np.ones(4, "float32"))  # an error of its own, which no change of w raises
    waiting = w * dl.autodiff.Variable("x")
    for _ in range(3):
        with dl.no_grad():
            w -= 0.1
    assert "gone" in error_of((GraphError, ShapeError), wrong.numpy) or "matmul" in error_of(ShapeError, wrong.numpy)
    assert "variable" in error_of(GraphError, waiting.numpy)
    value = w * 2
    opt = optim.SGD([w], lr=0.1)
    step = dl.autodiff.Executor([opt.minimize((w * w).sum())])
    step.run({})  # writes w's own memory
    assert "gone" in error_of(GraphError, value.numpy)
