"""Habits of those who come from PyTorch that once did nothing, or something else, without a word."""

from __future__ import annotations

import dlsys as dl
import numpy as np
from dlsys import autodiff as ad
from dlsys import nn, optim
from dlsys.errors import GraphError, ShapeError
from helpers import error_of


class _Averaged(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(dl.ones(2))
        self.register_buffer("seen", dl.zeros(1))
        self.register_buffer("mean", dl.zeros(2))
        self.scale = dl.ones(2)  # a tensor: neither parameter nor buffer

    def forward(self, x: ad.Node) -> ad.Node:
        self.seen += 1
        self.mean = self.mean * 0.5 + 0.5 * x.detach().mean(0)
        return x * self.w * self.scale


def test_buffers_stay_and_tensors_are_no_parameters() -> None:
    module = _Averaged()
    for _ in range(2):
        module(dl.ones(3, 2))
    assert [name for name, _ in module.named_parameters()] == ["w"]
    state = module.state_dict()
    assert list(state) == ["w", "seen", "mean"] and state["seen"] == [2]
    np.testing.assert_allclose(state["mean"], 0.75)
    for value in (module.w * 2, dl.ones(2), dl.randn(2), module.w.detach()):
        assert "is a parameter" in error_of(GraphError, setattr, module, "w", value)


def test_data_writes_to_the_leaf() -> None:
    weight = nn.Linear(3, 2).weight
    weight.data[:] = 0
    weight.data[0] += 1
    weight.data[np.array([False, True])] = 2
    np.testing.assert_array_equal(weight.numpy(), [[1, 1, 1], [2, 2, 2]])
    taken = weight.data
    weight.data *= 2
    assert "take it again" in error_of(GraphError, taken.__setitem__, 0, 1)
    np.testing.assert_array_equal(weight.numpy(), [[2, 2, 2], [4, 4, 4]])


def test_leaves_change_in_place() -> None:
    a = dl.zeros(3)
    b = a
    b += 1
    assert a.tolist() == [1, 1, 1] and b is a
    a.add_(1, alpha=2).mul_(2).sub_(1).div_(5)
    assert a.tolist() == [1, 1, 1] and a.fill_(3).tolist() == [3] * 3 and a.zero_().tolist() == [0] * 3
    assert "another shape" in error_of(GraphError, a.view(3, 1).__iadd__, 1)
    total, w = dl.zeros(1), nn.Parameter(dl.ones(1))
    for _ in range(3):
        total += 2 * w  # has a history, so it is a node of its own
    total.sum().backward(retain_graph=True)
    assert w.grad.item() == 6 and w.grad.zero_().item() == 0
    assert "no_grad" in error_of(GraphError, w.fill_, 1)
    assert w.requires_grad_(False).fill_(4).item() == 4


def test_small_numbers_are_shown() -> None:
    assert repr(dl.tensor([1e-8, 2e-7])) == "tensor([1.e-08, 2.e-07])"
    assert f"{dl.tensor(1.5)} {dl.tensor(2.5) * 2} {dl.tensor(1.5):.2f}" == "1.5 5.0 1.50"
    assert f"{ad.Variable('x')}" == "x"


def test_floor_division_by_zero() -> None:
    got = dl.tensor([1.0, -2.0, 0.0]) // 0
    np.testing.assert_array_equal(got.numpy(), [np.inf, -np.inf, np.nan])
    assert (dl.tensor([1, 2]) // 0.0).tolist() == [np.inf] * 2


def test_optimizers_pass_over_what_takes_no_part_and_check_shapes() -> None:
    used, unused = nn.Parameter(dl.ones(2)), nn.Parameter(dl.ones(2))
    optimizer = optim.AdamW([used, unused], 0.1, weight_decay=0.5)
    x = ad.Variable("x", (2,), "float32")
    loss = (used * x).sum()
    ad.Executor([loss, optimizer.minimize(loss)]).run({x: np.ones(2, "float32")})
    assert unused.tolist() == [1, 1] and used.tolist() != [1, 1]
    used.grad = dl.ones(3)
    assert "its grad (3,)" in error_of(ShapeError, optimizer.step)


def test_losses_promote() -> None:
    assert nn.MSELoss()(dl.ones(4), dl.ones(4).double() * 3).item() == 4
    assert nn.MSELoss()(dl.ones(4), dl.zeros(4, dtype=dl.int64)).item() == 1
