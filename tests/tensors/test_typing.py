"""What editors and type checkers know: `mypy` checks this file too, and `assert_type` is its test."""

from __future__ import annotations

import inspect
from typing import assert_type

import dlsys as dl
import numpy as np
from dlsys import Tensor, nn
from dlsys.tensors.reductions import Extremum


def test_tensors_are_made_and_computed_as_tensors() -> None:
    x = assert_type(dl.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True), Tensor)
    assert_type(dl.zeros(2, 3), Tensor)
    assert_type(x + 1, Tensor)
    assert_type(2.0 * x, Tensor)
    assert_type(-x @ x, Tensor)
    assert_type(x == x, Tensor)
    assert_type(x < 3, Tensor)
    assert_type(x[0, :], Tensor)
    assert_type(x.T, Tensor)
    assert_type(x.float(), Tensor)
    assert_type(x.exp().log().clamp(0, 1), Tensor)
    assert_type(x.reshape(4).unsqueeze(0), Tensor)
    assert_type(x.split(1), list[Tensor])
    assert_type(x.sum(axis=0, keepdims=True), Tensor)
    assert_type(x.max(), Tensor)
    assert_type(x.max(0), Extremum)
    assert_type(x.max(0).indices, Tensor)
    assert_type(x.detach().add_(1), Tensor)
    assert_type(list(x), list[Tensor])
    assert_type(dl.autograd.grad(x.sum(), x), tuple[Tensor | None, ...])
    x.sum().backward()
    assert_type(x.grad, Tensor | None)


def test_what_tensors_tell_is_of_python_and_numpy() -> None:
    x = dl.ones(2, 3)
    assert_type(x.shape, tuple[int, ...])
    assert_type(x.size(), tuple[int, ...])
    assert_type(x.size(0), int)
    assert_type(x.dtype, str)
    assert_type(x.numel(), int)
    assert_type(x.requires_grad, bool)
    assert_type(x.equal(x), bool)
    assert_type(x.numpy(), np.ndarray)
    assert_type(dl.float32, str)
    assert_type(dl.inf, float)


def test_a_function_is_the_method_and_takes_arrays_too() -> None:
    array = np.ones((2, 3))
    assert_type(dl.exp(array), Tensor)
    assert_type(dl.add(1.0, dl.ones(2)), Tensor)
    assert_type(dl.maximum(array, 0), Tensor)
    assert_type(dl.where(array > 0, array, 0.0), Tensor)
    assert_type(dl.cat([dl.ones(2), dl.ones(2)]), Tensor)
    functions = [name for name, of in vars(dl)["_public"]().items() if str(of).startswith("('.tensors', 'Tensor.")]
    assert functions
    for name in functions:
        assert getattr(dl, name) is inspect.getattr_static(Tensor, name), name


def test_parameters_are_tensors() -> None:
    assert_type(nn.Parameter(np.ones(2)) * 2, Tensor)
    assert type(nn.Parameter(np.ones(2)) * 2) is Tensor


def test_completion_shows_every_public_name() -> None:
    assert {"exp", "zeros", "nn", "autograd", "int64", "pi", "ShapeError", "fit"} <= set(dir(dl))
    assert {"exp", "sum", "reshape", "gather", "add_", "numel", "float", "T", "backward"} <= set(dir(Tensor))
    for name in dir(dl):
        getattr(dl, name)
    for name in ("exp", "sum", "reshape", "gather", "clone"):
        assert inspect.getdoc(getattr(Tensor, name)) and inspect.signature(getattr(Tensor, name))
