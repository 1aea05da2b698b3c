"""The table of functions: methods, functions of `dl`, NumPy's words; the stubs; its smaller rows beside PyTorch's."""

from __future__ import annotations

import math
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dlsys as dl
import numpy as np
import pytest
from beside_torch import agree_at_once as agree
from beside_torch import random
from dlsys import autodiff as ad
from dlsys.errors import DTypeError, GraphError, ShapeError
from dlsys.tensors.table import TABLE, function
from helpers import error_of
from optional import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
F = dl.nn.functional


def test_stubs_are_what_their_tool_writes() -> None:
    import stubs

    for name, written in stubs.STUBS.items():
        told = f"{name} is not what `python tools/stubs.py` writes"
        assert (stubs.PACKAGE / name).read_text(encoding="utf-8") == written(), told


def test_a_row_is_a_method_and_a_function_of_arrays_and_numbers() -> None:
    for name, row in TABLE.items():
        assert getattr(dl.Tensor, name) is row
        assert getattr(dl, name, row) is row or name in dl.CONSTANTS or name in ("cpu", "cuda"), name
        assert name == "__getitem__" or pickle.loads(pickle.dumps(row)) is row
    assert dl.square(3).item() == 9 and dl.square(np.array([2.0])).tolist() == [4]
    assert dl.sum(input=np.ones(3)).item() == 3 and dl.cdist(x1=dl.ones(1, 2), x2=dl.ones(1, 2)).item() == 0
    assert dl.searchsorted(sorted_sequence=np.arange(3), input=dl.tensor([1])).tolist() == [1]
    assert "str is no tensor" in error_of(GraphError, dl.exp, "text")
    with pytest.raises(TypeError, match="unexpected keyword argument 'foo'"):
        dl.ones(2).sum(foo=1)


def test_numpys_words_are_pytorchs() -> None:
    x = dl.tensor(random(3, 4))
    for name in ("sum", "mean", "std", "amax", "argmin", "all", "logsumexp", "norm"):
        mine, same = getattr(x, name)(axis=1, keepdims=True), getattr(x, name)(dim=1, keepdim=True)
        assert mine.shape == (3, 1) and mine.tolist() == same.tolist()
    assert x.max(axis=0).tolist() == x.max(0).values.tolist() and x.split(2, axis=1)[0].shape == (3, 2)


def test_a_row_waits_for_types() -> None:
    @function(method=False)
    def doubled_rows(x: Any) -> Any:
        return x.reshape(x.shape[0], -1) * x.shape[0]

    x = ad.Variable("x")
    (found,) = ad.Executor([doubled_rows(x)]).run({x: np.ones((2, 2, 2), "float32")}, True)
    assert found.tolist() == [[2] * 4] * 2


@pytest.mark.slow
def test_smaller_functions_at_each_index() -> None:
    unary = (
        *("tan", "atan", "asin", "acos", "sinh", "cosh", "asinh", "atanh", "exp2", "trunc", "reciprocal", "logit"),
        *("square", "nan_to_num"),
    )
    functions: list[Callable[..., Any]] = [
        *(lambda lib, x, y, name=name: getattr(lib, name)(x) for name in unary),
        lambda lib, x, y: [lib.acosh(x + 2), lib.log2(x + 2), x.logit(0.2), lib.lerp(x, y, 0.3), x.lerp(y, y)],
        lambda lib, x, y: [lib.atan2(x, y), x.atan2(-y), lib.logaddexp(x, 30 * y), lib.addcmul(x, y, y, value=0.5)],
        lambda lib, x, y: [lib.addcdiv(x, y, y + 2), lib.add(x, y, alpha=3), x.sub(y, alpha=2), lib.sub(x, 1)],
    ]
    for dtype in ("float32", "float64"):
        agree(functions, *((0.98 * np.tanh(random(3, 5, seed=i))).astype(dtype) for i in (0, 1)), gradients=True)
    of_integers: list[Callable[..., Any]] = [
        lambda lib, i: [i.trunc(), lib.bitwise_and(i, 3), i.bitwise_or(1), i.bitwise_xor(i * 5), lib.bitwise_not(i)],
        lambda lib, i: [lib.logical_xor(i, i & 2), lib.exp2(i), lib.nan_to_num(i), lib.round(i), lib.nansum(i > 0)],
        lambda lib, i: [lib.isclose(i > 0, i > 1), lib.round(i / 7, decimals=2), (i / 7).round()],
    ]
    agree(of_integers, np.array([3, 0, -7]))


def test_angles_at_their_ends() -> None:
    inf = math.inf
    ends = np.array([0.0, 1, -1, inf, -inf, 3e-20, 2], "float32")
    y, x = np.meshgrid(ends, ends)
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(dl.atan2(y, x).numpy(), np.arctan2(y, x), rtol=1e-6)
        for name, theirs in (("atan", np.arctan), ("asin", np.arcsin), ("acos", np.arccos)):
            for dtype in ("float32", "float64"):
                given = np.concatenate([np.linspace(-1.5, 1.5, 401), [inf, -inf, 1e-30, math.nan]]).astype(dtype)
                found = getattr(dl, name)(given).numpy()
                np.testing.assert_allclose(found, theirs(given), rtol=8 * float(np.finfo(dtype).eps))
    given = np.array([math.nan, inf, -inf], "float32")
    assert dl.nan_to_num(given).tolist() == np.nan_to_num(given).tolist()
    assert dl.logaddexp(dl.tensor([inf, -inf]), dl.tensor([inf, -inf])).tolist() == [inf, -inf]


@pytest.mark.slow
def test_smaller_functions_of_shapes() -> None:
    functions: list[Callable[..., Any]] = [
        lambda lib, x, v: [lib.tile(x, (2, 1)), v.tile(2, 3), x.tile(2), lib.hstack([x, x]), lib.hstack([v, v])],
        lambda lib, x, v: [lib.vstack([x, v]), lib.ravel(x), x.unflatten(1, (2, -1)), lib.atleast_2d(v)],
        lambda lib, x, v: [lib.diagonal(x), x.diagonal(1), x.diagonal(-1, 1, 0), lib.trace(x)],
        lambda lib, x, v: [lib.diff(x), x.diff(2, 0)],
        lambda lib, x, v: [lib.movedim(lib.stack([x, x]), 0, 2), lib.stack([x, x]).movedim((0, 1), (-1, 0))],
        lambda lib, x, v: [lib.tensordot(x, x, 2), lib.tensordot(x, v, 1), lib.tensordot(x, x, ([0], [0]))],
        lambda lib, x, v: [lib.addmm(x[:, :3], x, x.T, beta=2, alpha=0.5), lib.std_mean(x, 1)[0], lib.nansum(x, 1)],
        lambda lib, x, v: [lib.diagonal(lib.stack([x, x]), 1, 1, 2), lib.count_nonzero(x > 0, 1), lib.atleast_1d(v[0])],
    ]
    agree(functions, random(3, 4), random(4, seed=1), gradients=True)
    assert "extents 3 and 2" in error_of(ShapeError, dl.tensordot, dl.ones(2, 3), dl.ones(2, 3), 1)


def test_smaller_functions_of_indices() -> None:
    def with_indices(lib: Any, x: Any) -> list[Any]:
        i = lib.tensor([[0, 2, 1, 0], [2, 2, 0, 1]])
        return [
            *(lib.scatter_reduce(x, 0, i, 2 * x[:2], how) for how in ("sum", "mean")),
            *(x.scatter_reduce(0, i, 2 * x[:2], how, include_self=False) for how in ("sum", "mean")),
            lib.take_along_dim(x, i, 0),
            lib.take_along_dim(x, i[:1], 0),
            lib.take_along_dim(x, i),
            *lib.where(x > 0),
            *lib.nonzero(x > 0, as_tuple=True),
        ]

    agree([lambda lib, x: with_indices(lib, x)[:7]], random(3, 4), gradients=True)
    agree([with_indices], random(3, 4))
    ends: list[Callable[..., Any]] = [
        lambda lib, i: [*lib.nonzero(i[0, 0], as_tuple=True), i.scatter_reduce(0, i * 0, i, "mean")],
    ]
    agree(ends, np.array([[3, -8], [1, 2]]))
    places = [lambda lib, v: [lib.searchsorted(v, v[1:3] + 0.1), lib.searchsorted(v, v, right=True)]]
    agree(places, np.sort(random(7)))
    repeated: list[Callable[..., Any]] = [
        lambda lib, i: [lib.unique_consecutive(i), *lib.unique_consecutive(i, return_inverse=True, return_counts=True)]
    ]
    agree(repeated, np.array([[1, 1, 2], [2, 2, 1]]))
    agree(repeated, np.array([0.5]))


def test_limits_of_dtypes() -> None:
    for dtype in ("float32", "float64"):
        theirs = torch.finfo(getattr(torch, dtype))
        mine = dl.finfo(getattr(dl, dtype))
        assert [float(getattr(mine, of)) for of in ("eps", "max", "min", "tiny")] == [
            float(getattr(theirs, of)) for of in ("eps", "max", "min", "tiny")
        ]
    assert dl.iinfo(dl.int32).max == 2**31 - 1 and dl.iinfo("uint8").min == 0
    assert "takes a dtype of floats" in error_of(DTypeError, dl.finfo, dl.int64)
    assert "takes a dtype of integers" in error_of(DTypeError, dl.iinfo, dl.float32)


def test_smaller_activations() -> None:
    functions: list[Callable[..., Any]] = [
        lambda f, x: [f.logsigmoid(20 * x), f.glu(x), f.glu(x, 0), f.hardtanh(x), f.hardtanh(x, -0.2, 0.4)],
        lambda f, x: [f.selu(x), f.softsign(x)],
    ]
    agree([lambda lib, x, of=of: of(lib.nn.functional, x) for of in functions], random(4, 6), gradients=True)


def test_tensors_that_are_made_beside_others() -> None:
    functions: list[Callable[..., Any]] = [
        lambda lib, x: [lib.full_like(x, 2.5), lib.full_like(x, 7, dtype=lib.int64), x.new_ones(2, 3)],
        lambda lib, x: [x.new_ones((0,)), x.new_full((2, 2), 3), x.new_tensor([1, 2]), x.new_ones(2, dtype=lib.int32)],
    ]
    agree(functions, random(2, 3))
    assert dl.empty_like(np.ones((2, 1))).shape == (2, 1)
    x = ad.Variable("x")
    made = [dl.full_like(x, 2.5), dl.ones_like(x), dl.full_like(x, 3, dtype="int64")]
    found = ad.Executor(made).run({x: np.zeros((2, 2), "float32")}, True)
    assert [(one.dtype, one.flat[0]) for one in found] == [("float32", 2.5), ("float32", 1), ("int64", 3)]


def test_tensors_that_are_drawn() -> None:
    dl.manual_seed(0)
    like = dl.zeros(100, 30, dtype="float64")
    drawn = dl.rand_like(like)
    assert (drawn.shape, drawn.dtype) == (like.shape, "float64") and abs(float(drawn.mean()) - 0.5) < 0.02
    assert sorted(dl.randperm(50).tolist()) == list(range(50)) and dl.randperm(3).dtype == "int64"
    hits = dl.bernoulli(dl.full((2000,), 0.25))
    assert set(hits.unique().tolist()) == {0, 1} and abs(float(hits.mean()) - 0.25) < 0.04
    assert "takes probabilities" in error_of(GraphError, dl.bernoulli, [1.5])


def test_options_that_change_nothing_are_taken() -> None:
    x = dl.ones(2, 3, layout="strided", pin_memory=True, memory_format=None)
    assert x.contiguous(memory_format="channels_last") is x
    assert x.clone(memory_format=None).tolist() == dl.zeros_like(x, memory_format=None).add(1).tolist()
    for make in (dl.zeros, dl.rand, dl.arange, dl.eye):
        with pytest.raises(TypeError, match="unexpected keyword argument 'shape'"):
            make(2, shape=(2,))  # type: ignore[operator]
