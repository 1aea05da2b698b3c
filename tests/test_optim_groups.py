"""Optimizers against PyTorch where parameters do not all move together: own step counts, groups, changed settings."""

from __future__ import annotations

from typing import Any

import dlsys as dl
import numpy as np
import torch
from dlsys import autodiff as ad
from dlsys import optim
from helpers import error_of

TOLERANCE = {"float32": 2e-5, "float64": 1e-11}
RULES: list[tuple[str, dict[str, Any]]] = [
    ("SGD", {"lr": 0.1, "momentum": 0.8, "weight_decay": 0.02}),
    ("SGD", {"lr": 0.05, "momentum": 0.9, "nesterov": True}),
    ("Adam", {"lr": 0.05, "weight_decay": 0.1}),
    ("AdamW", {"lr": 0.02}),
    ("RMSprop", {"lr": 0.01, "momentum": 0.5}),
]
SHAPES = ((3, 2), (4,), ())


def drawn(dtype: str, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [np.asarray(rng.standard_normal(shape), dtype) for shape in SHAPES]


def moved(step: int) -> list[bool]:
    """Which parameters have a gradient in a step: the second now and then, the third from step 7 on."""
    return [True, step % 3 != 1, step >= 7]


def gradients(step: int, dtype: str) -> list[np.ndarray | None]:
    return [g if has else None for g, has in zip(drawn(dtype, 1 + step % 5), moved(step), strict=True)]


def torch_history(name: str, options: dict[str, Any], dtype: str, steps: int) -> list[list[np.ndarray]]:
    tensors = [torch.tensor(value, requires_grad=True) for value in drawn(dtype)]
    reference = getattr(torch.optim, name)(tensors, **options)
    history = []
    for step in range(steps):
        for tensor, value in zip(tensors, gradients(step, dtype), strict=True):
            tensor.grad = None if value is None else torch.tensor(value)
        reference.step()
        history.append([tensor.detach().numpy().copy() for tensor in tensors])
    return history


def close(found: list[ad.Parameter], wanted: list[np.ndarray], dtype: str, what: Any) -> None:
    for parameter, value in zip(found, wanted, strict=True):
        np.testing.assert_allclose(parameter.value, value, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype], err_msg=what)


def test_each_parameter_has_its_own_step_count() -> None:
    for name, options in RULES:
        for dtype in TOLERANCE:
            parameters = [ad.Parameter(value) for value in drawn(dtype)]
            opt = getattr(optim, name)(parameters, **options)
            feeds = [ad.Variable(f"g{i}", value.shape, dtype) for i, value in enumerate(drawn(dtype))]
            executors: dict[tuple[bool, ...], ad.Executor] = {}
            executors[True, True, True] = ad.Executor([opt.update(feeds)], "numpy")  # made first, run last
            for step, wanted in enumerate(torch_history(name, options, dtype, 100)):
                has = tuple(moved(step))
                if has not in executors:
                    update = opt.update([f if h else None for f, h in zip(feeds, has, strict=True)])
                    executors[has] = ad.Executor([update], "numpy")
                given = zip(feeds, gradients(step, dtype), strict=True)
                executors[has].run({f: g for f, g in given if g is not None})
                close(parameters, wanted, dtype, f"{name} {options}, step {step}")


def test_a_group_joins_and_settings_change() -> None:
    first, second, third = drawn("float64")
    mine = [ad.Parameter(first), ad.Parameter(second)]
    theirs = [torch.tensor(value, requires_grad=True) for value in (first, second)]
    opt, reference = optim.SGD(mine[:1], lr=0.3), torch.optim.SGD(theirs[:1], lr=0.3)
    for step in range(6):
        for parameter, tensor, value in zip(mine, theirs, drawn("float64", step), strict=False):
            parameter.grad, tensor.grad = dl.tensor(value), torch.tensor(value)
        opt.step(), reference.step()
        close(mine, [tensor.detach().numpy() for tensor in theirs], "float64", f"step {step}")
        groups: list[Any] = [opt.param_groups, reference.param_groups]
        if step == 1:
            for optimizer, values in ((opt, mine), (reference, theirs)):
                optimizer.add_param_group({"params": values[1:], "lr": 0.1, "weight_decay": 0.2})
        elif step == 3:
            for each in groups:
                each[0]["lr"] *= 0.5
                each[1]["momentum"] = 0.9
                each[1]["weight_decay"] = 0.0
    assert groups[0][1]["lr"] == 0.1 and groups[0][0]["initial_lr"] == 0.15
    assert groups[0][1]["params"] == [mine[1]] and groups[1][0].keys() >= {"params", "lr", *opt.defaults}
    assert groups[0][0].keys() == {"params", "lr", "initial_lr", *opt.defaults}
    for message, call in (
        ("parameter_", lambda: opt.add_param_group({"params": mine[:1]})),
        ("unknown settings: betas", lambda: opt.add_param_group({"params": ad.Parameter(third), "betas": 1})),
        ('must have the key "params"', lambda: opt.add_param_group({"lr": 1})),
        ("must be a dict, not a list", lambda: opt.add_param_group([ad.Parameter(third)])),
        ("momentum must be a number >= 0", lambda: groups[0][0].update(momentum=-1)),
        ("no setting 'rate'", lambda: groups[0][0].update(rate=-1)),
        ("lr must be a number >= 0", lambda: groups[0][0].update(lr=-1)),
    ):
        text = error_of(dl.GraphError, call)
        assert message in text, text
    assert len(opt.groups) == 2 and len(opt.state) == 2


def test_closure_and_gradients_of_zeros() -> None:
    parameter = ad.Parameter(np.ones(2, "float32"))
    opt = optim.SGD([parameter], lr=0.5)

    def closure() -> ad.Node:
        opt.zero_grad()
        loss = (parameter * parameter).sum()
        loss.backward()
        return loss

    assert float(opt.step(closure)) == 2 and parameter.value.tolist() == [0, 0]
    opt.zero_grad(set_to_none=False)
    assert parameter.grad.numpy().tolist() == [0, 0]
