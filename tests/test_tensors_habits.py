"""Habits of those who come from PyTorch that once did nothing, or something else, without a word."""

from __future__ import annotations

import warnings

import dlsys as dl
import numpy as np
import torch
from dlsys import autodiff as ad
from dlsys import data, nn, optim
from dlsys.errors import DeviceError, DTypeError, GraphError, ShapeError
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
    np.testing.assert_array_equal(taken.numpy(), [[2, 2, 2], [4, 4, 4]])  # one cell
    taken[0] = 1
    np.testing.assert_array_equal(weight.numpy(), [[1, 1, 1], [4, 4, 4]])


def test_leaves_change_in_place() -> None:
    a = dl.zeros(3)
    b = a
    b += 1
    assert a.tolist() == [1, 1, 1] and b is a
    a.add_(2).mul_(2).sub_(1).div_(5)
    assert a.tolist() == [1, 1, 1] and a.fill_(3).tolist() == [3] * 3 and a.zero_().tolist() == [0] * 3
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


def test_devices_are_named_where_tensors_are_made() -> None:
    for device in (None, "cpu", dl.cpu(), torch.device("cpu")):
        for make in (dl.zeros, dl.ones, dl.rand, dl.randn):
            assert make(2, 3, device=device).shape == (2, 3)
        x = dl.tensor([1.0, 2.0], device=device, requires_grad=True)
        for like in (dl.zeros_like, dl.ones_like):
            assert like(x, device=device).shape == (2,)
        made = (dl.arange(3, device=device), dl.eye(2, device=device))
        made += (dl.full((2,), 1.0, device=device), dl.as_tensor([1], device=device))
        assert x.requires_grad and [m.shape[0] for m in made] == [3, 2, 2, 1]
    for device in ("cuda", dl.cuda(0), torch.device("cuda:0")):
        assert "tensors are on the CPU, not on cuda" in error_of(DeviceError, dl.zeros, 2, device=device)
    assert "not on" in error_of(DeviceError, dl.tensor, [1.0], device="abc")


def test_modules_in_plain_lists_are_told() -> None:
    class Hidden(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = [nn.Linear(2, 2)]
            self.by_name = {"w": nn.Parameter(np.ones(2))}
            self.sizes, self.tensors = [2, 2], [dl.ones(2)]

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        assert not list(Hidden().parameters())
    assert [str(w.message).split(": ")[1] for w in told] == ["use nn.ModuleList", "use an attribute for each"]
    assert "Hidden.layers is a list" in str(told[0].message) and told[0].filename == __file__


def test_errors_name_tensors_and_do_not_print_them() -> None:
    x, layer = dl.tensor(np.ones((3, 2)), name="x"), nn.Linear(2, 2)
    told = error_of(DTypeError, lambda: layer(x).numpy())
    assert "dtypes differ: x is float64, weight is float32" in told and len(told) < 200, told
    mixed = ad.where_op(x > 0, x, dl.ones(3, 2))
    assert "dtypes differ: x is float64" in error_of(DTypeError, mixed.numpy)
    assert "indices x are float64" in error_of(DTypeError, ad.take_op(x, x, 0).numpy)


def test_batches_of_texts_are_refused() -> None:
    assert "samples of <U1" in error_of(DTypeError, data.default_collate, [np.array(["a"])] * 2)


def test_ranges_index() -> None:
    x = dl.arange(12).reshape(3, 4)
    assert x[range(2)].tolist() == x[[0, 1]].tolist()
    assert x[:, range(1, 4, 2)].tolist() == [[1, 3], [5, 7], [9, 11]]


def test_tensors_and_modules_are_made_as_in_torch() -> None:
    x = dl.Tensor([[1, 2], [3, 4]], requires_grad=True)
    assert x.dtype == "float32" and isinstance(x, dl.Tensor) and isinstance(x * 2, dl.Tensor)
    assert dl.Tensor(np.arange(3), dtype="int64").dtype == "int64" and not isinstance(np.zeros(2), dl.Tensor)
    (x * x).sum().backward()
    assert x.grad.tolist() == [[2, 4], [6, 8]]
    layer = nn.Linear(3, 4, device=None, dtype="float64")
    assert layer.weight.dtype == "float64" and nn.Linear(3, 4, device="cpu").weight.dtype == "float32"
    assert nn.LSTM(3, 4, device=None, dtype="float32")(dl.ones(2, 1, 3))[0].shape == (2, 1, 4)
    assert "CPU" in error_of(dl.DeviceError, lambda: nn.Linear(3, 4, device="cuda"))
    assert "at most 10000" in error_of(GraphError, lambda: nn.LSTM(3, 4, 2**70))
