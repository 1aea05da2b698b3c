"""Derivatives of functions, beside torch.autograd.functional and torch.func."""

from __future__ import annotations

import warnings
from typing import Any

import dlsys as dl
import numpy as np
import torch
from dlsys.errors import GraphError, ShapeError
from helpers import error_of

DRAW = np.random.default_rng(0)
A, B, V = (DRAW.standard_normal(shape) for shape in ((2, 3), (3,), (2, 3)))


def flat(values: Any) -> list[Any]:
    if isinstance(values, (tuple, list)):
        return [item for value in values for item in flat(value)]
    return [values]


def same(mine: Any, theirs: Any) -> None:
    """Of one form, and of equal values."""
    assert isinstance(mine, tuple) == isinstance(theirs, tuple)
    for a, b in zip(flat(mine), flat(theirs), strict=True):
        value = b.detach().numpy()
        assert a.shape == value.shape and a.dtype == str(value.dtype)
        np.testing.assert_allclose(a.numpy(), value, rtol=1e-9, atol=1e-12)


def several(a: Any, b: Any) -> Any:
    return (a * b).sum(1) ** 2, a.tanh()


def one(a: Any, b: Any) -> Any:
    return ((a * b) ** 3).sum() + b.exp().prod()


def test_functional() -> None:
    for name, function, inputs, v in (
        ("jacobian", several, (A, B), None),
        ("jacobian", lambda a: a @ a.T, A, None),
        ("jacobian", lambda a: a.sum(), A, None),
        ("hessian", one, (A, B), None),
        ("hessian", lambda b: (b**4).sum(), B, None),
        ("vjp", several, (A, B), (B[:2], V)),
        ("vjp", lambda a: (a**2).sum(), A, None),
        ("vjp", lambda a: a**2, A, V),
        ("jvp", several, (A, B), (V, B)),
        ("jvp", lambda a: a**2, A, V),
        ("vhp", one, (A, B), (V, B)),
        ("hvp", lambda a: (a**3).sum(), A, V),
    ):
        found = []
        for m in (dl, torch):
            given = tuple(map(m.tensor, inputs)) if isinstance(inputs, tuple) else m.tensor(inputs)
            weights = () if v is None else (tuple(map(m.tensor, v)) if isinstance(v, tuple) else m.tensor(v),)
            found.append(getattr(m.autograd.functional, name)(function, given, *weights))
        same(*found)


def test_create_graph_and_strict() -> None:
    found = []
    for m in (dl, torch):
        x = m.tensor(B, requires_grad=True)
        rows = m.autograd.functional.jacobian(lambda v: v**3, x, create_graph=True)
        output, product = m.autograd.functional.vjp(lambda v: v**3, x, m.tensor(B), create_graph=True)
        (rows.sum() + (product * output).sum()).backward()
        found.append(x.grad)
        assert not m.autograd.functional.jacobian(lambda v: v**3, x).requires_grad
    same(*found)
    functional, x = dl.autograd.functional, dl.tensor(B)
    unused = functional.jacobian(lambda a, b: a * 2, (x, x))
    assert not unused[1].numpy().any()
    told = error_of(GraphError, functional.jacobian, lambda a, b: a * 2, (x, x), strict=True)
    assert "output 0 is independent of input 1" in told
    assert "v may be left out" in error_of(GraphError, functional.vjp, lambda a: a * 2, x)
    assert "v has shape (2,)" in error_of(ShapeError, functional.vjp, lambda a: a * 2, x, x[:2])
    assert "v has 2 tensors" in error_of(GraphError, functional.jvp, lambda a: a * 2, x, (x, x))
    assert "not float" in error_of(GraphError, functional.jacobian, lambda a: 1.0, x)
    assert "one element" in error_of(GraphError, functional.hessian, lambda a: a * 2, x)


def test_func() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # which torch.func's own imports give
        found = [_func(m) for m in (dl, torch)]
    for mine, theirs in zip(*found, strict=True):
        same(tuple(flat(mine)), tuple(flat(theirs)))
    a, b = dl.tensor(A), dl.tensor(B)
    assert "argnums 2 of 2" in error_of(GraphError, dl.func.grad(one, argnums=2), a, b)
    assert "tensor of one element, not (2, 3)" in error_of(GraphError, dl.func.grad(lambda x: x * 2), a)
    assert "has_aux" in error_of(GraphError, dl.func.grad(lambda x: x.sum(), has_aux=True), a)
    assert "tuples of tensors" in error_of(GraphError, dl.func.jvp, one, a, b)


def _func(m: Any) -> tuple[Any, ...]:
    """What the functions of `m.func` give."""
    f, a, b, v = m.func, m.tensor(A), m.tensor(B), m.tensor(V)
    output, product = f.vjp(several, a, b)
    return (
        f.grad(one)(a, b),
        f.grad(one, argnums=(0, 1))(a, b),
        f.grad(lambda x: f.grad(lambda y: (y**3).sum())(x).sum())(b),
        f.grad_and_value(one)(a, b),
        f.grad(lambda x: ((x**2).sum(), x * 2), has_aux=True)(a),
        output,
        product((b[:2], v)),
        f.jvp(several, (a, b), (v, b)),
        f.jacrev(several, argnums=1)(a, b),
        f.jacrev(lambda x: x**2, argnums=(0,))(b),
        f.jacfwd(lambda x: x.sin())(b),
        f.hessian(lambda x: (x**3).sum())(b),
        f.vjp(lambda x: (x * 2, x.sum()), b, has_aux=True)[2],
    )


def test_func_of_variables() -> None:
    x = dl.autodiff.Variable("x", (3,), "float64")
    (rows,) = dl.autodiff.Executor([dl.func.jacrev(lambda v: v**2)(x)]).run({x: B})
    np.testing.assert_allclose(np.asarray(rows), np.diag(2 * B))
