"""State changes in the order of the calls, whether or not anybody looks at their output; who has gradients."""

from __future__ import annotations

from typing import Any

import dlsys as dl
import numpy as np
import torch
from dlsys import autodiff as ad
from dlsys import nn
from dlsys.nn import functional as F

DRAW = np.random.default_rng(0)
BATCHES = [(DRAW.standard_normal((8, 3)) + i).astype("float32") for i in range(11)]


def pair(momentum: float | None = 0.1) -> tuple[Any, Any]:
    return nn.BatchNorm1d(3, momentum=momentum), torch.nn.BatchNorm1d(3, momentum=momentum)


def same(mine: Any, theirs: Any) -> None:
    for name, value in theirs.named_buffers():
        own = dict(mine.named_buffers())[name].numpy()
        np.testing.assert_allclose(own, value.numpy(), rtol=1e-5, atol=1e-6, err_msg=name)


def test_statistics_move_though_nobody_looks() -> None:
    for count in (1, 2, 5, 11):
        mine, theirs = pair()
        with dl.no_grad():
            for x in BATCHES[:count]:
                mine(x), theirs(torch.tensor(x))
        same(mine, theirs)


def test_the_order_is_that_of_the_calls() -> None:
    for order in ((0, 1, 2), (2, 0, 1), (1,), (2,), ()):
        mine, theirs = pair(None)
        ys, zs = [mine(x) for x in BATCHES[:3]], [theirs(torch.tensor(x)) for x in BATCHES[:3]]
        for i in order:
            np.testing.assert_allclose(ys[i].numpy(), zs[i].detach().numpy(), atol=1e-5)
        same(mine, theirs)
        np.testing.assert_allclose(ys[0].numpy(), zs[0].detach().numpy(), atol=1e-5)
        same(mine, theirs)


def test_saving_and_compiled_steps_come_after_what_waits() -> None:
    mine, theirs = pair()
    mine(BATCHES[0]), theirs(torch.tensor(BATCHES[0]))
    assert mine.state_dict()["num_batches_tracked"] == 1
    mine(BATCHES[1]), theirs(torch.tensor(BATCHES[1]))
    x = ad.Variable("x", (8, 3))
    executor = ad.Executor([mine(x)])
    for batch in BATCHES[2:5]:
        executor.run({x: batch}), theirs(torch.tensor(batch))
    same(mine, theirs)


def test_draws_do_not_depend_on_what_is_asked_first() -> None:
    def drawn(order: tuple[int, ...]) -> list[Any]:
        dl.manual_seed(3)
        made = [F.dropout(dl.ones(40), 0.5) for _ in range(3)]
        found = {i: made[i].numpy() for i in order}
        (made[0] * 2).numpy()
        return [found[i].tolist() for i in range(3)]

    first = drawn((0, 1, 2))
    assert first == drawn((2, 0, 1)) == drawn((1, 2, 0)) and first[0] != first[1] != first[2]


def test_parameters_of_modules_that_took_part_have_gradients() -> None:
    rnn = nn.RNN(3, 4)
    output, _ = rnn(dl.tensor(BATCHES[0][:1, None]))
    output.sum().backward()
    assert all(p.grad is not None for p in rnn.parameters()) and not rnn.weight_hh_l0.grad.numpy().any()
    layer, unused = nn.Linear(3, 4), nn.Linear(3, 4)
    x = dl.tensor(BATCHES[0], requires_grad=True)
    (grad,) = dl.autograd.grad(F.relu(layer(x)).sum(), x, create_graph=True)
    (grad * grad).sum().backward()
    assert layer.weight.grad.numpy().any() and layer.bias.grad.tolist() == [0] * 4 and unused.weight.grad is None
