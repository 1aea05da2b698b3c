"""Shapes, parts, reductions and creation of tensors by PyTorch's names: values and gradients are PyTorch's."""

from __future__ import annotations

import dlsys as dl
import numpy as np
import torch
from against_torch import agree, random
from dlsys.errors import DTypeError, GraphError, ShapeError
from helpers import error_of


def test_axes_and_extents_by_name() -> None:
    functions = [
        lambda m, x: [m.flip(x, dims=(0, 2)), x.flip(dims=[1])],
        lambda m, x: [m.permute(x, dims=(2, 0, 1)), x.permute(dims=(0, 2, 1))],
        lambda m, x: [m.transpose(x, dim0=0, dim1=2), x.transpose(0, dim1=-1)],
        lambda m, x: [m.reshape(x, shape=(4, -1)), x.reshape(shape=(24,))],
        lambda m, x: [m.broadcast_to(x, size=(2, 2, 3, 4))],
    ]
    agree(functions, random(2, 3, 4), gradients=True)


def test_a_number_has_one_axis_to_go_along() -> None:
    def along(m: object, x: dl.Tensor) -> list[dl.Tensor]:
        names = ("sum", "mean", "prod", "logsumexp", "softmax", "log_softmax", "cumsum", "cumprod", "logcumsumexp")
        found = [getattr(x, name)(d) for name in (*names, "amax", "amin", "squeeze") for d in (0, -1)]
        return [*found, x.flip(0), x.max(0).values, x.min(-1).values, x.sum(0, keepdim=True), x.norm(2, 0)]

    def without(m: object, x: dl.Tensor) -> list[dl.Tensor]:
        return [x.argmax(0), x.argmin(-1), x.max(0).indices, (x > 0).any(0), (x > 0).all(-1), x.var(0, unbiased=False)]

    agree([along], np.array(1.5), gradients=True)
    agree([without], np.array(1.5))
    assert "axis 1 is out of range" in error_of(ShapeError, dl.tensor(1.5).sum(1).numpy)


def test_shapes_and_parts() -> None:
    functions = [
        lambda m, x: [
            m.split(x, 4, dim=1),
            x.split([1, 2, 3], 1),
            m.chunk(x, 3, 1),
            x.chunk(4),
            m.unbind(x, 1),
        ],
        lambda m, x: [
            m.flip(x, [1]),
            x.flip(0, 1),
            m.roll(x, 1),
            m.roll(x, -2, 1),
            m.roll(x, (1, 2), (0, 1)),
        ],
        lambda m, x: [
            x.repeat(2, 1),
            x.repeat(2, 1, 3),
            x[:1].expand(3, -1),
            x.expand(2, -1, -1),
            x.expand(2, 4, 6),
        ],
        lambda m, x: [
            x.permute(1, 0),
            m.permute(x, (1, 0)),
            m.transpose(x, 0, 1),
            x.unsqueeze(1).squeeze(),
            x.mT,
        ],
        lambda m, x: [
            x.unsqueeze(dim=0).squeeze(0),
            x.squeeze(1),
            m.reshape(x, (2, -1)),
            m.flatten(x),
            x.view(-1, 3),
        ],
        lambda m, x: [
            m.movedim(x.reshape(2, 2, 6), 0, 2),
            x.reshape(2, 2, 6).movedim((0, 1), (1, 0)),
            x.ravel(),
        ],
        lambda m, x: [
            m.tril(x),
            x.triu(1),
            m.tril(x, -1),
            m.repeat_interleave(x, 2, 1),
            x.repeat_interleave(2),
        ],
    ]
    agree(functions, random(4, 6))
    differentiated = [
        lambda m, x: [m.roll(x, (1, 2), (0, 1)), x.repeat(2, 1), m.tril(x), x.split([1, 2, 3], 1)]
    ]
    agree(differentiated, random(4, 6), gradients=True)
    x = dl.ones(4, 6)
    assert (x.dim(), x.numel(), x.size(1), x.size()) == (2, 24, 6, (4, 6))
    assert "add up to 6" in error_of(ShapeError, x.split, [1, 2], 1)


def test_reductions() -> None:
    functions = [
        lambda m, x: [
            x.sum(()),
            x.sum(0),
            m.sum(x, (0, 2), keepdim=True),
            x.mean(-1),
            m.mean(x, dim=(0, 1)),
            x.sum(dim=1),
        ],
        lambda m, x: [
            x.var(0, True),
            x.var(0, False),
            x.var(False),
            x.std(1, keepdim=True),
            m.std(x, correction=0),
        ],
        lambda m, x: [
            m.max(x),
            m.max(x, 1),
            x.max(dim=-1, keepdim=True),
            x.min(0),
            m.amax(x, (0, 1)),
            x.amin(),
        ],
        lambda m, x: [
            m.argmax(x),
            x.argmax(1),
            m.argmin(x, dim=0, keepdim=True),
            m.logsumexp(x, 1),
            x.logsumexp((0, 1)),
        ],
        lambda m, x: [
            m.softmax(x, 0),
            x.log_softmax(dim=1),
            m.cumsum(x, 1),
            x.prod(),
            m.prod(x, 1),
            x.prod(2, True),
        ],
        lambda m, x: [
            m.norm(x),
            x.norm(1),
            x.norm(3, dim=1),
            x.norm(float("inf"), 0),
            m.norm(x, p=2, dim=(0, 1)),
        ],
        lambda m, x: [m.sort(x, 1), x.sort(descending=True), m.topk(x, 2), x.topk(1, 0, largest=False)],
        lambda m, x: [
            m.argsort(x, 1),
            x.all(1),
            m.any(x > 1.0, 2),
            x.sum(0, dtype=getattr(m, "float32", "float32")),
        ],
    ]
    agree(functions, random(3, 4, 5))
    differentiated = [
        lambda m, x: [
            x.var(0, True),
            x.std(1),
            m.max(x, 1),
            m.cumsum(x, 1),
            x.prod(1),
            x.norm(3, dim=1),
            x.sort(1),
        ]
    ]
    agree(differentiated, random(3, 4, 5), gradients=True)
    zeros = [lambda m, x: [x.prod(1)], lambda m, x: [x.norm(dim=1)[:1]]]
    agree(zeros, np.array([[0.0, 2.0, 3.0], [0.0, 0.0, 3.0], [1.0, 2.0, 3.0]]), gradients=True)
    x = dl.tensor(random(3, 4))
    np.testing.assert_array_equal(x.max(axis=1).numpy(), x.numpy().max(1))  # NumPy's word: the values alone
    np.testing.assert_array_equal(x.sum(axis=0, keepdims=True).numpy(), x.numpy().sum(0, keepdims=True))
    values, indices = x.max(1)
    assert values.shape == indices.shape == (3,) and indices.dtype == "int64"
    ties = np.array([[2.0, 1.0, 2.0, np.nan], [1.0, 1.0, 0.0, 1.0]])
    order = dl.argsort(dl.tensor(ties), 1, descending=True).numpy()
    want = torch.sort(torch.tensor(ties), dim=1, descending=True, stable=True).indices
    np.testing.assert_array_equal(order, want)
    assert "5 elements" in error_of(ShapeError, dl.topk, x, 5)


def test_creation() -> None:
    made = [
        lambda m: [
            m.zeros(2, 3),
            m.zeros((2, 3)),
            m.ones(2),
            m.ones([2, 1]),
            m.full((2,), 7),
            m.full((2,), 0.5),
            m.eye(3),
        ],
        lambda m: [
            m.arange(5),
            m.arange(2, 7, 2),
            m.arange(1.0, 0.0, -0.25),
            m.arange(0, 1, 0.1),
            m.arange(5, 5),
            m.eye(2, 4),
        ],
        lambda m: [
            m.linspace(0, 1, 5),
            m.linspace(3, -1, 1),
            m.full((), True),
            m.zeros(0, 3),
            m.arange(-3, 5, 3),
        ],
    ]
    agree(made)
    x = dl.tensor([[1, 2]])
    likes = [dl.zeros_like(x), dl.ones_like(x), dl.full_like(x, 3), dl.ones_like(x, dtype=np.float32)]
    assert [(v.dtype, v.tolist()) for v in likes[:3]] == [
        ("int64", [[0, 0]]),
        ("int64", [[1, 1]]),
        ("int64", [[3, 3]]),
    ]
    assert likes[3].dtype == "float32" and dl.zeros(2, dtype=torch.float64).dtype == "float64"
    w = dl.randn(3, 2, requires_grad=True)
    (w * w).sum().backward()
    np.testing.assert_allclose(w.grad.numpy(), 2 * w.numpy(), rtol=1e-6)
    assert w.is_leaf and dl.zeros(2, requires_grad=True).requires_grad
    assert isinstance(dl.zeros((2, 3), "float32", dl.cpu()), dl.Array) and dl.rand_like(w).shape == (3, 2)
    dl.manual_seed(3)
    drawn = [dl.randint(-2, 3, (50,)), dl.randperm(6), dl.randint(4, (2, 2)), dl.randn_like(w)]
    assert set(drawn[0].tolist()) == {-2, -1, 0, 1, 2} and sorted(drawn[1].tolist()) == list(range(6))
    dl.manual_seed(3)
    assert dl.equal(dl.randint(-2, 3, (50,)), drawn[0]) and dl.equal(dl.randperm(6), drawn[1])
    assert "only floats" in error_of(DTypeError, dl.ones, 2, dtype="int64", requires_grad=True)
    assert "negative" in error_of(ShapeError, dl.zeros, -1)
    assert "no integer of [3, 3)" in error_of(GraphError, dl.randint, 3, 3, (1,))
    assert "does not lead" in error_of(GraphError, dl.arange, 0, 5, -1)
