"""Functions of dlsys and PyTorch, of the same names, side by side."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dlsys as dl
import numpy as np
from dlsys import tensors
from optional import torch


def random(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


def flat(values: Any) -> list[Any]:
    """Tensors in lists and named tuples, one behind another."""
    if isinstance(values, (tuple, list)):
        return [item for value in values for item in flat(value)]
    return [values]


def agree(functions: list[Callable[..., Any]], *arrays: np.ndarray, gradients: bool = False) -> None:
    """Each function of (library, tensors) gives with dlsys what it gives with PyTorch; gradients too."""
    mine, theirs = [dl.tensor(a) for a in arrays], [torch.tensor(a) for a in arrays]
    if gradients:
        mine = [dl.tensor(a, requires_grad=True) for a in arrays]
        theirs = [t.requires_grad_() for t in theirs]
    found, expected = (
        [flat(f(library, *x)) for f in functions] for library, x in ((dl, mine), (torch, theirs))
    )
    assert [len(f) for f in found] == [len(e) for e in expected]
    tensors.evaluate([node for nodes in found for node in nodes])  # in one run
    for number, (a, b) in enumerate(zip(flat(found), flat(expected), strict=True)):
        value, want = a.numpy(), b.detach().numpy()
        assert (value.shape, value.dtype) == (want.shape, want.dtype), (number, value, want)
        np.testing.assert_allclose(value, want, rtol=1e-5, atol=1e-6, err_msg=str(number))
    if gradients:
        mine_sum, their_sum = (
            sum((node * node).sum() for node in flat(nodes) if "float" in str(node.dtype))
            for nodes in (found, expected)
        )
        mine_sum.backward()
        their_sum.backward()
        for a, b in zip(mine, theirs, strict=True):
            np.testing.assert_allclose(a.grad.numpy(), b.grad.numpy(), rtol=1e-5, atol=1e-6)
