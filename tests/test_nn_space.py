"""Layers of images and sequences against PyTorch's: single examples."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from dlsys import autodiff as ad
from dlsys import nn

rng = np.random.default_rng(5)


def drawn(*shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype("float32")


def compare(name: str, args: tuple[Any, ...], kwargs: dict[str, Any], x: np.ndarray, ctx: Any = "numpy") -> None:
    """Output and all gradients of a layer with PyTorch's initial values."""
    mine, theirs = getattr(nn, name)(*args, **kwargs), getattr(torch.nn, name)(*args, **kwargs)
    mine.load_state_dict(theirs.state_dict())
    variable, tensor = ad.Variable("x", x.shape, "float32"), torch.tensor(x, requires_grad=True)
    y, expected = mine(variable), theirs(tensor)
    (expected * expected).sum().backward()
    wanted = [expected, tensor.grad, *(parameter.grad for parameter in theirs.parameters())]
    executor = ad.Executor([y, *ad.gradients(y * y, [variable, *mine.parameters()])], ctx)
    found = executor.run({variable: x}, convert_to_numpy_ret_vals=True)
    for value, reference in zip(found, wanted, strict=True):
        reference = reference.detach().numpy()
        assert value.shape == reference.shape, (name, args, value.shape, reference.shape)
        np.testing.assert_allclose(value, reference, rtol=2e-4, atol=1e-4, err_msg=f"{name} {args} {kwargs}")
    for key, value in theirs.state_dict().items():
        assert mine.state_dict()[key].shape == tuple(value.shape)


def test_one_example_is_taken_without_a_batch() -> None:
    for name, args, kwargs, shape in (
        ("Conv2d", (3, 4, 3), {"padding": 1}, (3, 5, 6)),
        ("MaxPool2d", (2,), {"ceil_mode": True}, (3, 5, 4)),
        ("AvgPool2d", (3, 2, 1), {}, (3, 5, 4)),
        ("AdaptiveAvgPool2d", ((2, 3),), {}, (3, 5, 4)),
    ):  # fmt: skip
        compare(name, args, kwargs, drawn(*shape))
