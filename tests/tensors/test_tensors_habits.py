"""Habits of those who come from PyTorch that once did something else without a word; tensors of bytes, as images."""

from __future__ import annotations

import itertools
import math
import operator
import warnings
from typing import Any

import dlsys as dl
import numpy as np
import pytest
from beside_torch import agree_at_once as agree
from dlsys import autodiff as ad
from dlsys import nn
from dlsys.errors import DeviceError, DTypeError, GraphError, ShapeError
from dlsys.nn import functional as F
from helpers import error_of
from optional import torch


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
    assert list(state) == ["w", "seen", "mean"] and state["seen"].tolist() == [2]
    np.testing.assert_allclose(state["mean"], 0.75)
    for value in (module.w * 2, dl.ones(2), dl.randn(2), module.w.detach()):
        assert "is a parameter" in error_of(GraphError, setattr, module, "w", value)


def test_small_numbers_are_shown() -> None:
    assert repr(dl.tensor([1e-8, 2e-7])) == "tensor([1.e-08, 2.e-07])"
    assert f"{dl.tensor(1.5)} {dl.tensor(2.5) * 2} {dl.tensor(1.5):.2f}" == "1.5 5.0 1.50"
    assert f"{ad.Variable('x')}" == "x"


def test_losses_promote() -> None:
    assert nn.MSELoss()(dl.ones(4), dl.ones(4).double() * 3).item() == 4
    assert nn.MSELoss()(dl.ones(4), dl.zeros(4, dtype=dl.int64)).item() == 1


@pytest.mark.slow
def test_operands_of_two_dtypes_are_promoted_as_in_pytorch() -> None:
    operators = [operator.add, operator.mul, operator.truediv, operator.floordiv, operator.mod, operator.pow]
    operators = [*operators, lambda x, y: x.div(y, rounding_mode="trunc"), lambda x, y: x.maximum(y)]
    kinds = list(itertools.product(["float32", "float64", "int64", "int32", "uint8", "bool"], [(), (2,)]))
    for (first, shape), (second, other) in itertools.product(kinds, kinds):
        given = [np.ones(shape, first), np.ones(other, second)]
        for function in operators:
            try:
                wanted = function(*map(torch.tensor, given))
            except RuntimeError:  # not of booleans
                continue
            found = function(*map(dl.tensor, given))
            assert f"torch.{found.dtype}" == str(wanted.dtype), (function, given)


@pytest.mark.slow
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
    for device in ("cuda:1000", dl.cuda(1000), torch.device("cuda:100")):
        assert "is not available" in error_of(DeviceError, dl.zeros, 2, device=device)
        assert "is not available" in error_of(DeviceError, dl.ones(2).to, device)
    assert "unknown context" in error_of(DeviceError, dl.tensor, [1.0], device="abc")


def test_modules_in_plain_lists_are_told() -> None:
    class Hidden(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = [nn.Linear(2, 2)]
            self.by_name = {"w": nn.Parameter(np.ones(2))}
            self.heads, self.scales = {"a": nn.Linear(2, 2)}, [nn.Parameter(np.ones(2))]
            self.sizes, self.tensors = [2, 2], [dl.ones(2)]

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        assert not list(Hidden().parameters())
    homes = ["nn.ModuleList", "an attribute for each", "nn.ModuleDict", "nn.ParameterList"]
    assert [str(w.message).split(": use ")[1] for w in told] == homes
    assert "Hidden.layers is a list" in str(told[0].message) and told[0].filename == __file__


def test_errors_name_tensors_and_do_not_print_them() -> None:
    x, layer = dl.tensor(np.ones((3, 2)), name="x"), nn.Linear(2, 2)
    told = error_of(DTypeError, lambda: layer(x).numpy())
    assert "dtypes differ: x is float64, weight is float32" in told and len(told) < 200, told
    assert "dtypes differ: x is float64" in error_of(DTypeError, ad.where_op, x > 0, x, dl.ones(3, 2))
    assert "input x is float64" in error_of(DTypeError, ad.take_op, x, x, 0)


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
    assert "at most 10000" in error_of(GraphError, lambda: nn.LSTM(3, 4, 2**70))


DRAW = np.random.default_rng(0)
PIXELS = DRAW.integers(0, 256, (3, 4, 5), np.uint8)
OTHER = DRAW.integers(0, 256, (4, 5), np.uint8)
SMALL = np.array([[0, 1, 7], [3, 2, 5]], np.uint8)


def test_images_become_floats() -> None:
    agree(
        [
            lambda m, x, y: [x / 255, x.float() / 255, x.permute(2, 0, 1), x.flatten(1), x[:, 1:3, ::2], x.double()],
            lambda m, x, y: [m.stack([y, y]), m.cat([x, x], 1), m.flip(x, (2,)), x.repeat(2, 1, 1), x.long()],
            lambda m, x, y: [x.float().mean((1, 2)), (x.float() * 2).to(m.uint8), m.where(y > 100, y, 0 * y)],
            lambda m, x, y: [x[m.tensor([2, 0])], m.nn.functional.pad(y.float(), (1, 1)), m.zeros_like(y), x.int()],
        ],
        PIXELS,
        OTHER,
    )
    given = (dl.tensor([1, 255], dtype=dl.uint8), dl.zeros(2, dtype=dl.uint8))
    for made in (dl.from_numpy(PIXELS), dl.tensor(PIXELS), *given):
        assert made.dtype == "uint8" and made.nbytes == made.numel()
    np.testing.assert_array_equal(torch.from_dlpack(dl.tensor(OTHER)).numpy(), OTHER)


@pytest.mark.slow
def test_arithmetic_and_comparisons_of_bytes() -> None:
    agree(
        [
            lambda m, x, y: [x + y, x - y, x * y, -x, x + 1, x - 1, x * 3, 7 - x, x**2],
            lambda m, x, y: [x == y, x < y, x >= 100, x != 7],
            lambda m, x, y: [x.sum(), x.sum(0), x.max(), x.min(), x.argmax(), m.maximum(x, y), x.clamp(10, 200)],
            lambda m, x, y: [x.max(1), (x > 9).sum(), x.sort(1)[0], m.abs(x)],
            lambda m, x, y: [x + y.long(), x * y.float(), x + y.int(), (x > y) + x, x + 0.5, x * True],
            lambda m, x, y: [x.nonzero(), x.masked_fill(x > 99, 5)],
        ],
        OTHER,
        OTHER[::-1].copy(),
    )
    x = dl.tensor(SMALL)
    assert (x < 300).numpy().all() and (x > -1).numpy().all()  # of these numbers PyTorch takes the lowest bits
    assert (x**3).tolist() == (SMALL**3).tolist()
    assert "no uint8" in error_of(DTypeError, lambda: x + 300)
    assert "only floats" in error_of(DTypeError, dl.tensor, SMALL, requires_grad=True)
    assert "from 0 to 256 is no uint8" in error_of(DTypeError, dl.tensor, [0, 256], "uint8")


@pytest.mark.slow
def test_bytes_are_masks_and_labels() -> None:
    mask = (SMALL > 2).astype(np.uint8)
    x = dl.tensor(np.arange(6.0).reshape(2, 3))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = torch.arange(6.0).reshape(2, 3)[torch.tensor(mask)]
    assert x[dl.tensor(mask)].tolist() == expected.tolist()
    logits, labels = dl.tensor(DRAW.standard_normal((4, 3))), np.array([0, 2, 1, 2], np.uint8)
    mine = dl.nn.functional.cross_entropy(logits, dl.tensor(labels))
    theirs = torch.nn.functional.cross_entropy(torch.tensor(logits.numpy()), torch.tensor(labels).long())
    np.testing.assert_allclose(mine.item(), theirs.item())
    table = dl.tensor(DRAW.standard_normal((300, 2)))  # of more rows than a byte counts
    found = dl.nn.functional.embedding(dl.tensor([0, 255], dtype=dl.uint8), table)
    np.testing.assert_array_equal(found.numpy(), table.numpy()[[0, 255]])
    assert nn.functional.one_hot(dl.tensor([0, 2], dtype=dl.uint8)).tolist() == [[1, 0, 0], [0, 0, 1]]


def test_bytes_are_written_fed_and_cast() -> None:
    x = dl.zeros(2, 3, dtype=dl.uint8)
    x[0] = 200
    x[:, 1] += 5
    assert x.tolist() == [[200, 205, 200], [0, 5, 0]]
    for ctx in (dl.cpu(), dl.numpy()):
        image: Any = ad.Variable("image", (3, 4, 5), "uint8")
        run = ad.Executor([image / 255, ad.cast_op(image, "int64") - 300, image.sum()], ctx)
        scaled, shifted, total = (np.asarray(value) for value in run.run({image: PIXELS}))
        np.testing.assert_allclose(scaled, PIXELS / np.float32(255), rtol=1e-6)
        assert (shifted == PIXELS.astype(np.int64) - 300).all() and total == PIXELS.sum()
        free = ad.Variable("x")
        zeros, ones = ad.Executor([dl.zeros_like(free), dl.ones_like(free)], ctx).run({free: np.array([True])}, True)
        assert zeros.dtype == ones.dtype == bool and ones and not zeros
        (cast,) = ad.Executor([ad.cast_op(free, "uint8")], ctx).run({free: np.array([0.9, 1.5, 254.9, 3.0])})
        assert np.asarray(cast).tolist() == [0, 1, 254, 3]
    loader = dl.data.DataLoader(dl.data.TensorDataset(PIXELS, np.arange(3)), 2)
    batch = next(iter(loader))[0]
    assert batch.dtype == "uint8" and (batch.float() / 255).shape == (2, 4, 5)


def test_a_cross_entropy_of_no_rows_is_nan() -> None:
    for library, functional in ((dl, F), (torch, torch.nn.functional)):
        rows, classes = library.tensor(np.zeros((0, 3), "float32")), library.tensor(np.zeros(0, "int64"))
        assert math.isnan(float(functional.cross_entropy(rows, classes)))


def test_edges_at_which_pytorch_differs_as_its_page_says() -> None:
    def gradient(library: Any, function: str) -> list[float]:
        x = library.tensor([math.nan, 1.0, 2.0], requires_grad=True)
        getattr(x, function)().sum().backward()
        return x.grad.tolist()

    differ = {"relu": (0.0, 1.0), "abs": (math.nan, 0.0), "max": (math.nan, 1.0), "min": (math.nan, 1.0)}
    for function, (ours, theirs) in differ.items():
        found = gradient(dl, function)
        np.testing.assert_equal([found[0], gradient(torch, function)[0]], [ours, theirs])
        assert all(map(math.isnan, found)) or function in ("relu", "abs")
    images, filters = np.zeros((1, 0, 4, 4), "float32"), np.zeros((2, 0, 3, 3), "float32")
    assert (F.conv2d(dl.tensor(images), dl.tensor(filters)).numpy() == np.zeros((1, 2, 2, 2))).all()
    large = [3e38, 3.1e38]
    assert math.isnan(float(dl.tensor(large).var())) and math.isinf(float(torch.tensor(large).var()))
    for sorted_one in (lambda: dl.tensor(2.0).sort(), lambda: dl.tensor(2.0).topk(1)):
        assert "out of range for 0 dimensions" in error_of(ShapeError, lambda make: make()[0].numpy(), sorted_one)
