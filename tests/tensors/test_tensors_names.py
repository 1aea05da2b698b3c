"""Functions that are compositions of others, beside PyTorch's of the same names: values, dtypes, gradients."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import dlsys as dl
import numpy as np
import pytest
from beside_torch import agree_at_once as agree
from beside_torch import random
from dlsys.errors import GraphError
from helpers import error_of
from optional import torch

WHOLE = np.array([[3, -7, 0], [5, 1, -1]])
NEAR_ZERO = 10.0 ** np.arange(-30, 0)
EDGES = np.array([0.0, 1e-45, 0.3, 0.99, 1.0, 1.01, 20.0, 88.0, 1e30, math.inf, math.nan])


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_functions_at_each_index(dtype: str) -> None:
    functions: list[Callable[..., Any]] = [
        lambda lib, x, y, v, w: lib.square(x) + x.sign(),
        lambda lib, x, y, v, w: [lib.erf(x), lib.expm1(x), lib.log1p(y.abs()), lib.log1p(-y.sigmoid())],
        lambda lib, x, y, v, w: [lib.outer(v, w), v.outer(v)],
        lambda lib, x, y, v, w: [x.expand_as(y), y.view_as(x * y), y.type_as(x)],
    ]
    given = random(1, 5), random(3, 5), random(7), random(3)
    agree(functions, *(a.astype(dtype) for a in given), gradients=True)


@pytest.mark.parametrize("name", ["log1p", "expm1", "erf"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_few_digits_are_lost_near_zero_and_far_from_it(name: str, dtype: str) -> None:
    every = np.concatenate([NEAR_ZERO, -NEAR_ZERO, EDGES, -EDGES, random(1000), 40 * random(1000, seed=1)])
    given = every.astype(dtype)
    with np.errstate(all="ignore"):
        mine = dl.tensor(given, requires_grad=True)
        theirs = torch.tensor(given.astype("float64"), requires_grad=True)
        found, expected = getattr(dl, name)(mine), getattr(torch, name)(theirs)
        found.sum().backward()
        expected.sum().backward()
        want, slope = (t.detach().numpy().astype(dtype) for t in (expected, theirs.grad))
        slope = np.exp(given) if name == "expm1" else slope  # PyTorch's is the value + 1, of fewer digits
    rtol = 6 * float(np.finfo(dtype).eps)
    tiny = float(np.finfo(dtype).tiny)  # below, kernels take 0
    np.testing.assert_allclose(found.numpy(), want, rtol, tiny)
    np.testing.assert_allclose(mine.grad.numpy(), slope, 100 * rtol, 1e-30)


def test_signs_and_closeness_of_integers_and_of_what_is_not_finite() -> None:
    functions: list[Callable[..., Any]] = [
        lambda lib, i, b, x, y: [i.sign(), b.sign(), i.square(), i.prod(), i.prod(0), b.prod(1)],
        lambda lib, i, b, x, y: [lib.isclose(x, y), x.isclose(y, equal_nan=True), x.isclose(y, 0.1, 0.5)],
        lambda lib, i, b, x, y: [lib.isclose(i, i.flip(0)), i.isclose(i + 1, atol=1.0), lib.expm1(i)],
    ]
    x = np.array([1.0, math.inf, -math.inf, math.nan, math.nan, 1.0, 5.0, math.inf])
    y = np.array([1 + 1e-9, math.inf, math.inf, math.nan, 1.0, math.inf, 5.9, 1.0])
    agree(functions, WHOLE, WHOLE > 0, x, y)
    assert dl.isclose(dl.tensor([1.0, 2.0]), 1.0).tolist() == [True, False]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_quotients_of_floats_are_rounded_down_and_what_is_left_is_exact(dtype: str) -> None:
    functions: list[Callable[..., Any]] = [
        lambda lib, x, y: [x // y, x % y, x // 0.3, x % 0.3, x // -0.3, x % -0.3],
        lambda lib, x, y: [2 // y, 2 % y, lib.fmod(x, y), x.fmod(2), lib.div(x, y, rounding_mode="trunc")],
    ]
    random = np.random.default_rng(0).standard_normal
    agree(functions, random((5, 7)).astype(dtype), (random(7) + 0.1).astype(dtype))
    special = np.array([0.0, -0.0, 1e8, -1e8, 6.0, -6.0, 5.5, np.inf, np.nan, 1.0, -1.0, 3.0], dtype)
    of = np.array([3.0, 3.0, 3.0, 3.0, 3.0, 3.0, -2.0, 2.0, 1.0, np.inf, np.inf, 0.0], dtype)
    agree([lambda lib, x, y: [x // y, x % y, lib.fmod(x, y)]], special, of)
    agree([lambda lib, x: [x // 0.3, x // -2.0, x // 0.0]], np.array([1e30, -1e30, 0.0, np.inf, 2.0], dtype))
    slopes = [lambda lib, x, y: [lib.fmod(x, y), x % y, x % 0.7]]
    agree(slopes, random((4, 5)).astype(dtype), (random((4, 5)) + 0.1).astype(dtype), gradients=True)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("p", [0, 0.5, 1, 1.5, 2, 3, math.inf, -math.inf, -1])
def test_norms(p: float, dtype: str) -> None:
    functions: list[Callable[..., Any]] = [
        lambda lib, x: [
            lib.norm(x, p),
            x.norm(p, -1),
            x.norm(p, (0, 2), True),
            x.norm(p=p, dim=1, keepdim=True),
        ],
    ]
    agree(functions, (random(3, 5, 7) + 0.1).astype(dtype), gradients=p != 0)
    agree(functions[:1], np.zeros((2, 3, 1), dtype), gradients=p != 0)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(3, 5, 7), (1, 2, 8), (0, 3, 2)])
def test_products_along_axes(shape: tuple[int, ...]) -> None:
    functions: list[Callable[..., Any]] = [
        lambda lib, x: [lib.prod(x), x.prod(0), x.prod(-1, keepdim=True), x.prod(1, True), x.sum().prod()],
    ]
    given = random(*shape)
    given[..., 0] = 0.0 if shape[0] == 1 else 1.5  # a factor of 0 has a gradient
    agree(functions, given, gradients=True)
    agree([lambda lib, x: x.prod(1, dtype=lib.float64)], given.astype("float32"))


@pytest.mark.slow
def test_moves_of_elements() -> None:
    functions: list[Callable[..., Any]] = [
        lambda lib, x, n: [
            lib.roll(x, 2),
            x.roll(-8, 1),
            x.roll((1, -2), (0, -1)),
            x.roll(0, 0),
            x.roll((1,)),
        ],
        lambda lib, x, n: [x.roll(shifts=3, dims=1), lib.zeros(0, 3).roll(1, 0), lib.zeros(()).roll(1)],
        lambda lib, x, n: [
            lib.repeat_interleave(x, 2),
            x.repeat_interleave(3, -1),
            x.repeat_interleave(n, dim=0),
        ],
        lambda lib, x, n: [x.repeat_interleave(0, 0), x[0].repeat_interleave(n[:1], 0)],
        lambda lib, x, n: [lib.index_select(x, -1, n), x.index_select(0, n[1]), x.index_select(0, n[:0])],
        lambda lib, x, n: [
            lib.masked_select(x, x > 0),
            x.masked_select(n[:, None] > 1),
            x.masked_select(x > 99),
        ],
        lambda lib, x, n: [lib.scatter(x, 1, n[:, None], 2.5), x.scatter(-1, lib.stack([n, n], 1), -1)],
        lambda lib, x, n: [lib.index_add(x, 0, n, x * 2), x.index_add(-1, n, x[:, :3], alpha=0.5)],
    ]

    def with_indices(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda lib, x: function(lib, x, lib.tensor([2, 0, 2]))

    for dtype in ("float32", "float64"):
        agree([with_indices(f) for f in functions], random(3, 5).astype(dtype), gradients=True)
    agree([with_indices(f) for f in functions[:7]], np.arange(15).reshape(3, 5) - 7)


EQUATIONS: list[tuple[str, list[tuple[int, ...]]]] = [
    ("ij,jk->ik", [(3, 5), (5, 7)]),
    ("ij,jk", [(3, 5), (5, 7)]),
    ("ba", [(3, 5)]),  # transposed
    ("i,i->", [(7,), (7,)]),
    ("i,i->i", [(7,), (7,)]),
    ("i,j->ji", [(7,), (3,)]),
    ("ijk->ik", [(2, 3, 5)]),
    ("ijk->", [(2, 3, 5)]),
    ("bij,bjk->bik", [(2, 3, 5), (2, 5, 7)]),
    ("bhqd, bhkd -> bhqk", [(2, 3, 5, 4), (2, 3, 7, 4)]),
    ("bqhd,bkhd->bhqk", [(2, 5, 3, 4), (2, 7, 3, 4)]),
    ("bhqk,bkhd->bqhd", [(2, 3, 5, 7), (2, 7, 3, 4)]),
    ("bn,anm,bm->ba", [(2, 5), (3, 5, 4), (2, 4)]),  # a bilinear layer
    ("...ij,...jk->...ik", [(4, 3, 5), (2, 1, 5, 7)]),
    ("...i,ij->...j", [(2, 3, 5), (5, 7)]),
    ("i...,i...->...", [(5, 3, 2), (5, 3, 1)]),
    ("...ij->...ji", [(2, 3, 5)]),
    ("ab,bc,cd,de->ae", [(2, 3), (3, 5), (5, 1), (1, 4)]),
    ("ij,kl->kj", [(2, 3), (5, 4)]),
    ("ij,jk->ik", [(3, 0), (0, 7)]),
    ("bij,bjk->bik", [(0, 3, 5), (0, 5, 7)]),
    (",i->i", [(), (3,)]),
]


@pytest.mark.slow
@pytest.mark.parametrize(("equation", "shapes"), EQUATIONS)
def test_einsum(equation: str, shapes: list[tuple[int, ...]]) -> None:
    for dtype in ("float32", "float64"):
        arrays = [random(*shape, seed=i).astype(dtype) for i, shape in enumerate(shapes)]
        agree([lambda lib, *x: lib.einsum(equation, *x)], *arrays, gradients=True)


def test_equations_that_do_not_fit() -> None:
    x, y = dl.ones(2, 3), dl.ones(4, 2)
    assert (dl.einsum("ij,ki->jk", [x, y]).numpy() == 2).all()
    for equation in ("ij->ik", "ij->ii", "ij,jk->ik", "i9->i", "i.->i", "...ij...->ij"):
        assert equation in error_of(GraphError, dl.einsum, equation, x)


def test_tensors_that_are_made() -> None:
    functions: list[Callable[..., Any]] = [
        lambda lib, x: [
            lib.linspace(-1, 2, 7),
            lib.linspace(0, 1, 1),
            lib.linspace(0, 1, 0),
            lib.linspace(5, 1, 9),
        ],
        lambda lib, x: [
            lib.linspace(0, 10, 5, dtype=lib.int64),
            lib.linspace(4.3, -3.9, 15, dtype=lib.int64),
            lib.linspace(0.5, -3.5, 4, dtype=lib.float64),
        ],
        lambda lib, x: [
            x.new_zeros(2, 3),
            x.new_zeros((0, 4)),
            x.new_zeros(2, dtype=lib.int32),
            x.new_zeros(()),
        ],
    ]
    agree(functions, random(2))
    made = dl.randn_like(dl.zeros(1000, 3, dtype="float64"))
    assert (made.shape, made.dtype, dl.randn_like(made, dtype="float32").dtype) == (
        (1000, 3),
        "float64",
        "float32",
    )
    assert abs(float(made.mean())) < 0.1 and abs(float(made.std()) - 1) < 0.1
    assert dl.randn_like(np.zeros((2, 1)), requires_grad=True).requires_grad
    assert dl.randn_like(dl.zeros(())).shape == ()


def test_changes_in_place() -> None:
    def changed(lib: Any, x: Any) -> list[Any]:
        a, b, c = x.clone().detach(), x.clone().detach(), x.clone().detach()
        a.add_(x, alpha=-2).add_(1)
        b.clamp_(-0.5, max=0.5)
        c.masked_fill_(c > 0, 7)
        return [a, b, c, x.clone().detach().clamp_(min=0.1).add_(x, alpha=3)]

    agree([changed], random(3, 5))
    agree([changed], random(3, 5).astype("float32"))


@pytest.mark.slow
def test_vectors_distances_and_diagonals() -> None:
    functions: list[Callable[..., Any]] = [
        lambda lib, x, y, v: [x.mv(v), lib.mv(y, v), v.dot(v), lib.dot(v, x[0]), x.mT, lib.log10(x * x + 1)],
        lambda lib, x, y, v: [lib.cdist(x, y), lib.cdist(x, x, p=1), lib.linalg.norm(x), lib.linalg.norm(v, 3)],
        lambda lib, x, y, v: [lib.linalg.norm(x, dim=1, keepdim=True), lib.linalg.vector_norm(x, 1)],
        lambda lib, x, y, v: [lib.diag(v), v.diag(2), v.diag(-1), x.diag(), lib.diag(x, 1), x.diag(-2), x.diag(9)],
        lambda lib, x, y, v: [x.narrow(0, 1, 2), lib.narrow(y, 1, -3, 2), x.narrow(0, 0, 0)],
        lambda lib, x, y, v: [*lib.var_mean(x), *lib.var_mean(y, 1, keepdim=True, correction=0)],
        lambda lib, x, y, v: [*lib.var_mean(x, dim=(0, 1), unbiased=False), *lib.var_mean(x, False)],
        lambda lib, x, y, v: [*lib.meshgrid(v, x[0], indexing="ij"), *lib.meshgrid(v, x[0, :2], indexing="xy")],
        lambda lib, x, y, v: [*lib.meshgrid([v, y[0], v[0]], indexing="ij")],
    ]
    agree(functions, random(3, 4), random(5, 4, seed=1), random(4, seed=2), gradients=True)


def test_counts_and_occurring_values() -> None:
    functions: list[Callable[..., Any]] = [
        lambda lib, i, w: [lib.bincount(i), i.bincount(minlength=9), lib.bincount(i, w)],
        lambda lib, i, w: [i.unique(), *lib.unique(i.reshape(2, 3), return_inverse=True, return_counts=True)],
        lambda lib, i, w: [*lib.unique(w, return_counts=True)],
    ]
    agree(functions, np.array([3, 1, 1, 0, 5, 3]), random(6))
    assert "bincount" in error_of(GraphError, dl.bincount, dl.tensor([-1]))


def test_what_has_no_history_can_require_a_gradient() -> None:
    def run(lib: Any) -> list[Any]:
        a = lib.linspace(0, 1, 5)
        t = (a.view(-1, 1) * 2).requires_grad_(True)
        (slope,) = lib.autograd.grad((t**3).sum(), t, create_graph=True, only_inputs=True)
        (slope.sum() + (t * a).sum()).backward()
        first = t.grad.tolist()
        a.requires_grad_(True)
        (t * a).sum().backward()
        z = t * 2
        c = a.detach().clone()
        c[0] = 7.0
        kept = (c.clone() + 0).tolist()
        with lib.no_grad():
            d = t.clone()
            d.mul_(3)
        return [t.is_leaf, first, t.grad.tolist(), a.grad.tolist(), z.is_leaf, kept, d.tolist(), d.requires_grad]

    assert run(dl) == run(torch)
    x = dl.ones(2, requires_grad=True)
    assert "has a history" in error_of(GraphError, (x * 2).requires_grad_, False)
    t = (dl.ones(2) * 2).requires_grad_()
    assert not t.requires_grad_(False).requires_grad and t.is_leaf
    assert not (x * 2).clone().is_leaf and (x * 2).clone().requires_grad


def test_numbers_drawn_in_place_and_older_constructors() -> None:
    dl.manual_seed(3)
    x = dl.zeros(40, 50)
    assert x.uniform_(-2, 4) is x
    assert -2 <= x.min().item() < -1.9 and 3.9 < x.max().item() < 4 and abs(x.mean().item() - 1) < 0.2
    x.normal_(5, 0.5)
    assert abs(x.mean().item() - 5) < 0.1 and abs(x.std().item() - 0.5) < 0.1
    drawn = x.tolist()
    dl.manual_seed(3)
    assert dl.zeros(40, 50).uniform_().normal_(5, 0.5).tolist() == drawn
    assert (dl.FloatTensor([1, 2]).dtype, dl.LongTensor([[3.0]]).tolist()) == ("float32", [[3]])
