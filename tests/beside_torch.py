"""dlsys beside PyTorch: the same calls in both libraries, whose values, gradients and buffers agree: `agree` by a graph
and an Executor, `agree_at_once` by tensors' values and `backward`."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any

import dlsys as dl
import numpy as np
import pytest
from dlsys import autodiff as ad
from dlsys import nn, tensors
from optional import torch

TOLERANCE = {"float32": 2e-5, "float64": 1e-9}
DTYPES = pytest.mark.parametrize("dtype", TOLERANCE)
rng = np.random.default_rng(0)
Given = Any
"""An argument of a call: an array, a shape that is drawn, a list of such, or what both libraries take as it is."""


def drawn(*shape: int, dtype: str = "float32") -> np.ndarray:
    """Normally distributed numbers, the same in each test."""
    return rng.standard_normal(shape).astype(dtype)


def random(*shape: int, seed: int = 0) -> np.ndarray:
    """Normally distributed numbers in float64, the same for a seed."""
    return np.random.default_rng(seed).standard_normal(shape)


def flat(values: Any) -> list[Any]:
    """The tensors in nested lists and tuples, without None."""
    if isinstance(values, (tuple, list)):
        return [item for value in values for item in flat(value)]
    return [] if values is None else [values]


def close(found: Any, wanted: Any, what: Any = "", limit: float | None = None) -> None:
    """Equal shapes, dtypes and values, up to the dtype's tolerance relative to the largest element."""
    found, wanted = (np.asarray(value.detach() if hasattr(value, "detach") else value) for value in (found, wanted))
    assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape), what
    scale = max(1.0, float(np.abs(wanted).max(initial=0)))
    atol = scale * (limit or TOLERANCE.get(str(wanted.dtype), 0))
    np.testing.assert_allclose(found, wanted, rtol=0, atol=atol, err_msg=str(what))


def pair(name: str, *args: Any, dtype: str = "float32", **words: Any) -> tuple[Any, Any]:
    """The layer of that name of `dlsys.nn` and of `torch.nn`, with one state, away from zeros and ones."""
    torch.manual_seed(3)
    mine, theirs = getattr(nn, name)(*args, **words), getattr(torch.nn, name)(*args, **words)
    for value in (*theirs.parameters(), *theirs.buffers()):
        if value.is_floating_point():
            value.data += 0.2 * torch.tensor(rng.uniform(size=tuple(value.shape)))
    mine, theirs = mine.to(dtype), theirs.to(getattr(torch, dtype))
    assert list(mine.state_dict()) == list(theirs.state_dict())
    assert mine.load_state_dict(theirs.state_dict()) == ([], [])
    return mine, theirs


def agree(
    functions: str | tuple[Any, Any],
    *given: Given,
    dtype: str = "float32",
    fixed: tuple[str | int, ...] = (),
    ctx: Any = "numpy",
    call: Callable[..., Any] = lambda function, *args, **words: function(*args, **words),
    limit: float | None = None,
    **words: Given,
) -> None:
    """Two functions, or those of a name as "nn.functional.pad", give the same values and gradients: of arguments that
    are arrays of floats, but for the `fixed`, and of Parameters. Modules leave the same buffers. The operators' NumPy
    rules compute unless another `ctx` is given."""
    mine, theirs = [attrgetter(functions)(x) for x in (dl, torch)] if isinstance(functions, str) else functions
    leaves: list[tuple[Any, Any, Any]] = []

    def both(name: Any, value: Given) -> tuple[Any, Any]:
        if isinstance(value, list):
            a, b = zip(*(both(name, one) for one in value), strict=True)
            return a, b
        if not isinstance(value, np.ndarray):
            return value, value
        if value.dtype.kind != "f":
            return dl.tensor(value), torch.tensor(value if value.dtype == bool else value.astype("int64"))
        moves = name not in fixed
        a = dl.tensor(value.astype(dtype), requires_grad=moves)
        b = torch.tensor(value.astype(dtype), requires_grad=moves)
        leaves.extend([(name, a, b)] if moves else [])
        return a, b

    places = [both(place, value) for place, value in enumerate(given)]
    named = {name: both(name, value) for name, value in words.items()}
    found = flat(call(mine, *(a for a, _ in places), **{name: a for name, (a, _) in named.items()}))
    wanted = flat(call(theirs, *(b for _, b in places), **{name: b for name, (_, b) in named.items()}))
    buffers: list[Any] = []
    if isinstance(mine, nn.Module):
        own, other = dict(mine.named_parameters()), dict(theirs.named_parameters())
        assert list(own) == list(other)
        leaves += [(name, own[name], other[name]) for name in own]
        buffers = [(name, dict(mine.named_buffers())[name], value) for name, value in theirs.named_buffers()]
    factors = [drawn(*value.shape, dtype=dtype) for value in wanted]
    assert len(found) == len(wanted)
    mine_sum = sum(ad.reducesum_op(x * dl.tensor(factor)) for x, factor in zip(found, factors, strict=True))
    sum((x * torch.tensor(factor)).sum() for x, factor in zip(wanted, factors, strict=True)).backward()
    executor = ad.Executor([*found, *ad.gradients(mine_sum, [a for _, a, _ in leaves])], ctx)
    values = executor.run({}, convert_to_numpy_ret_vals=True)
    for place, (value, want) in enumerate(zip(values, wanted, strict=False)):
        close(value, want, (functions, place), limit)
    for (name, _, b), value in zip(leaves, values[len(wanted) :], strict=True):
        close(value, torch.zeros_like(b) if b.grad is None else b.grad, (functions, f"gradient of {name}"), limit)
        b.grad = None
    for name, buffer, want in buffers:
        close(buffer.value, want, (functions, name), limit)


def agree_at_once(functions: list[Callable[..., Any]], *arrays: np.ndarray, gradients: bool = False) -> None:
    """Each function of (library, tensors) gives with dlsys what it gives with PyTorch; gradients of the arrays too."""
    mine = [dl.tensor(a, requires_grad=gradients) for a in arrays]
    theirs = [torch.tensor(a, requires_grad=gradients) for a in arrays]
    found, wanted = ([flat(f(library, *x)) for f in functions] for library, x in ((dl, mine), (torch, theirs)))
    assert [len(values) for values in found] == [len(values) for values in wanted]
    tensors.evaluate(flat(found))  # in one run
    for number, (a, b) in enumerate(zip(flat(found), flat(wanted), strict=True)):
        close(a.numpy(), b, number)
    if gradients:
        for values in (found, wanted):
            sum((value * value).sum() for value in flat(values) if "float" in str(value.dtype)).backward()
        for a, b in zip(mine, theirs, strict=True):
            close(a.grad.numpy(), b.grad)
