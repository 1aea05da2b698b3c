"""Layers, activations and losses that compose others, against torch.nn: values, gradients, states, errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dlsys as dl
import numpy as np
import pytest
from dlsys import nn
from dlsys.nn import functional as F
from helpers import error_of
from optional import torch

TOLERANCE = {"float32": 2e-5, "float64": 1e-8}
DTYPES = pytest.mark.parametrize("dtype", TOLERANCE)
rng = np.random.default_rng(0)


def drawn(*shape: int) -> np.ndarray:
    return rng.standard_normal(shape)


def close(found: Any, wanted: Any, dtype: str, what: Any) -> None:
    found, wanted = np.asarray(found), wanted.detach().numpy()
    assert found.dtype == wanted.dtype and found.shape == wanted.shape, what
    scale = max(1.0, float(np.abs(wanted).max(initial=0)))
    np.testing.assert_allclose(found, wanted, rtol=0, atol=TOLERANCE[dtype] * scale, err_msg=str(what))


def both(values: Any, dtype: str, gradients: bool = True) -> tuple[Any, Any]:
    """An array of floats, in the dtype, as leaves of dlsys and PyTorch; anything else in it as it is."""
    if not isinstance(values, np.ndarray):
        return values, values
    is_float = values.dtype.kind == "f"
    values, wants = values.astype(dtype) if is_float else values, is_float and gradients
    return dl.tensor(values, requires_grad=wants), torch.tensor(values, requires_grad=wants)


def agree(
    mine: Callable[..., Any],
    theirs: Callable[..., Any],
    *given: Any,
    dtype: str,
    constants: tuple[str, ...] = (),
    **words: Any,
) -> None:
    """Both functions give the same values and gradients of the arguments, arrays or settings."""
    places = [both(value, dtype) for value in given]
    named = {name: both(value, dtype, name not in constants) for name, value in words.items()}
    found = mine(*(a for a, _ in places), **{name: a for name, (a, _) in named.items()})
    wanted = theirs(*(b for _, b in places), **{name: b for name, (_, b) in named.items()})
    close(found, wanted, dtype, mine)
    factors = drawn(*wanted.shape).astype(dtype)
    (found * dl.tensor(factors)).sum().backward()
    (wanted * torch.tensor(factors)).sum().backward()
    for number, (a, b) in enumerate([*places, *named.values()]):
        if isinstance(a, dl.Tensor) and a.requires_grad:
            close(a.grad, b.grad, dtype, (mine, number))


def module(name: str, *given: Any, args: tuple[Any, ...] = (), dtype: str, **words: Any) -> nn.Module:
    """A layer of PyTorch's state, whose outputs and gradients agree with PyTorch's, as its Parameters' do."""
    mine, theirs = getattr(nn, name)(*args, **words), getattr(torch.nn, name)(*args, **words)
    for value in theirs.parameters():
        value.data += 0.2 * torch.tensor(rng.uniform(size=tuple(value.shape)))
    mine, theirs = mine.to(dtype), theirs.to(getattr(torch, dtype))
    assert mine.load_state_dict(theirs.state_dict()) == ([], [])
    agree(mine, theirs, *given, dtype=dtype)
    wanted = dict(theirs.named_parameters())
    assert [key for key, _ in mine.named_parameters()] == list(wanted)
    for key, value in mine.named_parameters():
        close(value.grad, wanted[key].grad, dtype, (mine, key))
    return mine


SPREAD = np.concatenate([drawn(3, 7) * 4, [[0.0, 3.0, -3.0, 25.0, -25.0, 90.0, -90.0]]])
"""With the places where formulas change, and numbers whose exponential is infinite."""


@DTYPES
@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("SiLU", ()), ("Hardswish", ()), ("LeakyReLU", ()), ("LeakyReLU", (0.3,)), ("ELU", ()), ("ELU", (0.7,)),
        ("Softplus", ()), ("Softplus", (2.0, 5.0)),
    ],
)  # fmt: skip
def test_activations(name: str, args: tuple[float, ...], dtype: str) -> None:
    made = module(name, SPREAD, args=args, dtype=dtype)
    assert repr(made).startswith(f"{name}({'negative_slope=0.3' if args == (0.3,) else ''}") or args


def test_activations_refuse_what_is_no_number_and_no_tensor() -> None:
    for name in ("LeakyReLU", "ELU", "Softplus"):
        assert f"{name}: " in error_of(dl.errors.GraphError, getattr(nn, name), "wide")
    for function in (F.silu, F.hardswish, F.leaky_relu, F.elu, F.softplus):
        error_of(dl.errors.GraphError, function, np.ones(2))
    with pytest.warns(RuntimeWarning, match="inplace=True has no effect"):
        nn.SiLU(inplace=True)
