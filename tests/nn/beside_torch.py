"""Layers and functions of `dlsys.nn` beside PyTorch's of the same names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dlsys as dl
import numpy as np
import pytest
from dlsys import autodiff as ad
from dlsys import nn
from optional import torch

TOLERANCE = {"float32": 2e-5, "float64": 1e-9}
DTYPES = pytest.mark.parametrize("dtype", TOLERANCE)
rng = np.random.default_rng(0)


def drawn(*shape: int, dtype: str = "float32") -> np.ndarray:
    return rng.standard_normal(shape).astype(dtype)


def close(found: Any, wanted: Any, dtype: str, what: Any) -> None:
    """Equal up to the dtype's tolerance, relative to the largest element."""
    found, wanted = np.asarray(found), wanted.detach().numpy()
    assert found.dtype == wanted.dtype and found.shape == wanted.shape, what
    scale = max(1.0, float(np.abs(wanted).max(initial=0)))
    limit = 1e-8 if "Hardsigmoid" in str(what) and dtype == "float64" else TOLERANCE[dtype]  # PyTorch's 1/6
    np.testing.assert_allclose(found, wanted, rtol=0, atol=limit * scale, err_msg=str(what))


def agree(
    mine: Callable[..., Any],
    theirs: Callable[..., Any],
    *given: Any,
    dtype: str,
    constants: tuple[str, ...] = (),
    ctx: Any = "numpy",
    **words: Any,
) -> None:
    """Both functions give the same values and gradients: of arguments that are arrays of floats, but for the
    `constants`, and of Parameters; and leave the same buffers."""
    feed: dict[Any, np.ndarray] = {}
    wanted: list[Any] = []

    def both(name: Any, value: Any) -> tuple[Any, Any]:
        if not isinstance(value, np.ndarray):
            return value, value
        if value.dtype.kind != "f":
            return dl.tensor(value), torch.tensor(value).long()
        value = value.astype(dtype)
        if name in constants:
            return dl.tensor(value), torch.tensor(value)
        variable, leaf = ad.Variable("x", value.shape, dtype), torch.tensor(value, requires_grad=True)
        feed[variable] = value
        wanted.append(leaf)
        return variable, leaf

    places = [both(place, value) for place, value in enumerate(given)]
    named = {name: both(name, value) for name, value in words.items()}
    found = mine(*(a for a, _ in places), **{name: a for name, (a, _) in named.items()})
    expected = theirs(*(b for _, b in places), **{name: b for name, (_, b) in named.items()})
    factors = drawn(*expected.shape).astype(dtype)
    (expected * torch.tensor(factors)).sum().backward()
    leaves = list(feed)
    buffers: list[tuple[Any, Any]] = []
    if isinstance(mine, nn.Module):
        assert [name for name, _ in mine.named_parameters()] == [
            name for name, _ in theirs.named_parameters()
        ]
        leaves += mine.parameters()
        wanted += theirs.parameters()
        own = dict(mine.named_buffers())
        buffers = [(own[name], value) for name, value in theirs.named_buffers()]
    weighed = ad.reducesum_op(found * dl.tensor(factors))
    executor = ad.Executor([found, *ad.gradients(weighed, leaves)], ctx)
    values = executor.run(feed, convert_to_numpy_ret_vals=True)
    for number, (value, want) in enumerate(
        zip(values, [expected, *(leaf.grad for leaf in wanted)], strict=True)
    ):
        close(value, want, dtype, (mine, number))
    for buffer, value in buffers:
        close(buffer.value, value, dtype, (mine, "buffer"))


def assert_module(
    name: str, *given: Any, args: Any = (), dtype: str, ctx: Any = "numpy", training: bool = True, **words: Any
) -> nn.Module:
    """A layer of PyTorch's state, whose outputs, gradients and buffers agree with PyTorch's."""
    mine, theirs = getattr(nn, name)(*args, **words), getattr(torch.nn, name)(*args, **words)
    for value in (*theirs.parameters(), *theirs.buffers()):  # away from zeros and ones
        if value.is_floating_point():
            value.data += 0.2 * torch.tensor(rng.uniform(size=tuple(value.shape)))
    mine, theirs = mine.to(dtype), theirs.to(getattr(torch, dtype))
    assert mine.load_state_dict(theirs.state_dict()) == ([], [])
    agree(mine.train(training), theirs.train(training), *given, dtype=dtype, ctx=ctx)
    return mine
