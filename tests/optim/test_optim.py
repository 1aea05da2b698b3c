"""Optimizers against PyTorch, in compiled graphs and in steps that are taken at once."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import dlsys as dl
import numpy as np
import pytest
from dlsys import autodiff as ad
from dlsys import nn, optim
from dlsys.optim.methods import one_minus_power
from helpers import evaluate
from optional import torch

STEPS = 40
TOLERANCE = {"float32": 1e-5, "float64": 1e-11}


def batches(dtype: str) -> list[tuple[np.ndarray, np.ndarray]]:
    """Two batches of inputs and one-hot labels: gradients keep changing their signs."""
    rng = np.random.default_rng(0)
    return [
        (rng.standard_normal((9, 5)).astype(dtype), np.eye(3, dtype=dtype)[rng.integers(0, 3, 9)])
        for _ in range(2)
    ]


def start(dtype: str) -> list[np.ndarray]:
    """Weights (5, 3) and a bias (3,)."""
    rng = np.random.default_rng(1)
    return [rng.standard_normal((5, 3)).astype(dtype), rng.standard_normal(3).astype(dtype)]


class Model:
    """Logistic regression, and the optimizer that `make` makes of its two parameters."""

    def __init__(self, make: Callable[[list[ad.Parameter]], optim.Optimizer], dtype: str, ctx: Any) -> None:
        self.x, self.y = ad.Variable("X"), ad.Variable("y_")
        self.parameters = [
            ad.Parameter(value, name) for value, name in zip(start(dtype), ("W", "b"), strict=True)
        ]
        w, b = self.parameters
        self.loss = ad.softmaxcrossentropy_op(self.x @ w + b, self.y)
        self.opt = make(self.parameters)
        self.executor = ad.Executor([self.loss, self.opt.minimize(self.loss)], ctx=ctx)
        self.batches = batches(dtype)

    def train(self, steps: int, first: int = 0) -> list[list[np.ndarray]]:
        """The parameters after each step."""
        history = []
        for step in range(first, first + steps):
            x, y = self.batches[step % 2]
            loss, nothing = self.executor.run({self.x: x, self.y: y})
            assert nothing is None and np.asarray(loss).shape == (1,)
            history.append([parameter.value for parameter in self.parameters])
        return history


CONFIGURATIONS: list[tuple[str, dict[str, Any]]] = [
    ("SGD", {"lr": 0.5}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    ("SGD", {"lr": 0.2, "momentum": 0.8, "weight_decay": 0.02}),
    ("Adam", {}),
    ("Adam", {"lr": 0.05, "betas": (0.8, 0.99), "eps": 1e-6, "weight_decay": 0.1}),
    ("Adam", {"lr": 0.01, "betas": (0.0, 0.5)}),
    ("AdamW", {"lr": 0.05}),
    ("AdamW", {"lr": 0.01, "weight_decay": 0.0}),
    ("Adagrad", {"lr": 0.1}),
    ("Adagrad", {"lr": 0.3, "lr_decay": 0.05, "weight_decay": 0.01, "initial_accumulator_value": 0.2, "eps": 1e-6}),
    ("RMSprop", {}),
    ("RMSprop", {"lr": 0.003, "alpha": 0.9, "momentum": 0.9, "weight_decay": 0.01}),
    ("RMSprop", {"eps": 1e-4}),
    ("Adam", {"lr": 0.1, "betas": (0.5, 0.5), "amsgrad": True}),
    ("AdamW", {"lr": 0.05, "betas": (0.9, 0.3), "amsgrad": True}),
]
COMPILED = [CONFIGURATIONS[i] for i in (1, 3, 5, 7, 11, 12)]


def agree(found: list[list[np.ndarray]], expected: list[list[Any]], dtype: str, what: Any) -> None:
    assert len(found) == len(expected)
    for step, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        for a, b in zip(ours, theirs, strict=True):
            assert str(a.dtype) == dtype
            np.testing.assert_allclose(a, b, rtol=0, atol=TOLERANCE[dtype], err_msg=f"{what}, {step}")
    assert np.abs(found[0][0] - found[-1][0]).max() > 0.02, what  # a way on which rules differ


def make(name: str, options: dict[str, Any]) -> Callable[[list[ad.Parameter]], optim.Optimizer]:
    return lambda parameters: getattr(optim, name)(parameters, **options)


def torch_history(name: str, options: dict[str, Any], dtype: str) -> list[list[np.ndarray]]:
    """The parameters after each step of PyTorch's optimizer."""
    tensors = [torch.tensor(value, requires_grad=True) for value in start(dtype)]
    optimizer = getattr(torch.optim, name)(tensors, **options)
    history = []
    for step in range(STEPS):
        x, y = (torch.tensor(array) for array in batches(dtype)[step % 2])
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(x @ tensors[0] + tensors[1], y).backward()
        optimizer.step()
        history.append([tensor.detach().numpy().copy() for tensor in tensors])
    return history


@pytest.mark.slow
@pytest.mark.parametrize(("name", "options"), CONFIGURATIONS)
def test_optimizers_follow_torch_and_compile_once(name: str, options: dict[str, Any]) -> None:
    for dtype in TOLERANCE:
        expected = torch_history(name, options, dtype)
        agree(Model(make(name, options), dtype, dl.numpy()).train(STEPS), expected, dtype, (name, options))
        if dtype == "float32" and (name, options) in COMPILED:
            model = Model(make(name, options), dtype, dl.cpu())
            agree(model.train(STEPS), expected, dtype, (name, options))
            assert model.executor.compilations == 1


def test_parameters_of_two_dtypes_share_one_learning_rate() -> None:
    single, double = ad.Parameter(np.ones(3, "float32")), ad.Parameter(np.ones((2, 2)))
    opt = optim.Adam([single, double], lr=0.25)
    grads = [*ad.gradients(single * 3, [single]), *ad.gradients(double * -2, [double])]
    executor = ad.Executor([opt.update(grads)], ctx="numpy")
    executor.run({})
    opt.lr = 0.5
    executor.run({})  # the gradients are constant, so Adam moves by lr
    np.testing.assert_allclose(single.value, np.full(3, 0.25), rtol=1e-6)
    np.testing.assert_allclose(double.value, np.full((2, 2), 1.75), rtol=1e-7)
    assert (single.value.dtype, double.value.dtype) == (np.float32, np.float64)


def test_bias_correction_keeps_its_digits() -> None:
    steps = np.array([1, 2, 3, 10, 100, 1000, 12345, 1e6, 2**24])
    step = ad.Variable("step")
    for beta in (0.0, 0.5, 0.9, 0.999, 0.999999):
        exact = np.array([1 - beta**t if beta < 0.99 else -math.expm1(t * math.log(beta)) for t in steps])
        node = one_minus_power(beta, step)
        for dtype, rtol in (("float32", 1e-6), ("float64", 1e-14)):
            (value,) = evaluate([node], {step: steps.astype(dtype)})
            np.testing.assert_allclose(value, exact, rtol=rtol)
            if beta == 0.999:
                (value,) = ad.Executor([node]).run({step: steps.astype(dtype)}, True)
                np.testing.assert_allclose(value, exact, rtol=rtol)


rng = np.random.default_rng(3)


def _pair(shapes: list[tuple[int, ...]]) -> tuple[list[dl.Tensor], list[torch.Tensor]]:
    values = [rng.standard_normal(shape) for shape in shapes]
    return [nn.Parameter(v) for v in values], [torch.nn.Parameter(torch.tensor(v)) for v in values]


def _backward(parameters: list, scale: float) -> None:
    sum((p * p * (scale + i)).sum() for i, p in enumerate(parameters)).backward()


def _close(mine: list[dl.Tensor], theirs: list[torch.Tensor]) -> None:
    for a, b in zip(mine, theirs, strict=True):
        np.testing.assert_allclose(a.numpy(), b.detach().numpy(), rtol=1e-9, atol=1e-12)


@pytest.mark.slow
def test_a_parameter_that_sits_out_leaves_the_groups_count() -> None:
    mine, theirs = _pair([(4,), (2, 2)])
    a, b = optim.Adam(mine, lr=0.1), torch.optim.Adam(theirs, lr=0.1)
    for step in range(6):
        a.zero_grad(), b.zero_grad()
        out = {1: 0, 3: 1}.get(step)
        chosen = [i for i in range(2) if i != out]
        _backward([mine[i] for i in chosen], step + 1.0), _backward([theirs[i] for i in chosen], step + 1.0)
        for kept in b.state.values():
            kept["step"].fill_(step)  # PyTorch counts for each parameter
        a.step(), b.step()
        _close(mine, theirs)
    state = a.state_dict()["state"]
    assert [float(state[i]["step"]) for i in range(2)] == [6, 6]
    assert a.state[mine[0]]["step"] is a.state[mine[1]]["step"]
    assert len(a._stepping._compiled) == 3  # for both, and for each alone
    twin = optim.Adam(mine, lr=0.1)
    twin.load_state_dict(b.state_dict() | {"state": {i: {**b.state_dict()["state"][i], "step": 3 * i} for i in (0, 1)}})
    assert float(twin.state[mine[0]]["step"].value) == 3


def test_a_gradient_may_be_a_node_and_an_optimizer_be_copied() -> None:
    (w,), (v,) = _pair([(3,)])
    a, b = optim.AdamW([w], lr=0.1), torch.optim.AdamW([v], lr=0.1)
    for _ in range(2):
        a.zero_grad(), b.zero_grad()
        _backward([w], 1.0), _backward([v], 1.0)
        w.grad, v.grad = w.grad * 3 + 1, v.grad * 3 + 1
        a.step(), b.step()
    _close([w], [v])
    twin = copy.deepcopy(a)
    other = twin.parameters[0]
    other.grad = dl.tensor(np.ones(3))
    twin.step()
    _close([w], [v])
    assert other is not w and not np.allclose(other.numpy(), w.numpy())
