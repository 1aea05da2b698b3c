"""Drawn graphs and their gradients: passes, threads and repeated runs, against NumPy's rules and PyTorch."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import dlsys as dl
import numpy as np
from dlsys import autodiff as ad
from dlsys.compiler import NAMES

Step = tuple[str, int, int, int]
"""An operation, two values by their numbers, and a number that decides the rest. One that does not fit is left out, so
that any part of a program is a program."""


@dataclass(frozen=True)
class Operation:
    """The same of dlsys and PyTorch, as functions of values and a number; None where it does not fit."""

    ours: Callable[..., Any]
    theirs: Callable[..., Any]
    fits: Callable[[Sequence[tuple[int, ...]], int], bool] = lambda shapes, number: True
    inputs: int = 1


def _unary(ours: Callable[[Any], Any], theirs: Callable[[Any], Any]) -> Operation:
    return Operation(lambda x, n: ours(x), lambda t, x, n: theirs(x))


def _broadcast(shapes: Sequence[tuple[int, ...]], _: int) -> bool:
    try:
        found = np.broadcast_shapes(*shapes)
    except ValueError:
        return False
    return int(np.prod(found)) <= 4096


def _axis(x_rank: int, number: int) -> int:
    return number % x_rank


def _has_axes(shapes: Sequence[tuple[int, ...]], _: int) -> bool:
    return len(shapes[0]) > 0


def _along(ours: Callable[..., Any], theirs: Callable[..., Any]) -> Operation:
    return Operation(
        lambda x, n: ours(x, _axis(len(x.shape), n)), lambda t, x, n: theirs(x, _axis(x.dim(), n)), _has_axes
    )


def _reduced(name: str) -> Operation:
    def ours(x: Any, n: int) -> Any:
        axis, keep = _axis(len(x.shape), n), bool(n // 7 % 2)
        return {"sum": ad.reducesum_op, "mean": ad.mean_op, "amax": ad.max_op, "logsumexp": ad.logsumexp_op}[
            name
        ](x, (axis,), keep)

    return Operation(
        ours, lambda t, x, n: getattr(x, name)(_axis(x.dim(), n), keepdim=bool(n // 7 % 2)), _has_axes
    )


def operations() -> dict[str, Operation]:
    """All operations by name."""
    import torch

    part = torch.nn.functional
    return {
        "tanh": _unary(ad.tanh_op, torch.tanh),
        "sigmoid": _unary(ad.sigmoid_op, torch.sigmoid),
        "relu": _unary(ad.relu_op, torch.relu),
        "exp": _unary(lambda x: ad.exp_op(ad.tanh_op(x)), lambda x: torch.exp(torch.tanh(x))),
        "log": _unary(lambda x: ad.log_op(x * x + 1.0), lambda x: torch.log(x * x + 1)),
        "sqrt": _unary(lambda x: ad.sqrt_op(x * x + 0.5), lambda x: torch.sqrt(x * x + 0.5)),
        "gelu": _unary(ad.gelu_op, part.gelu),
        "neg": _unary(lambda x: -x, lambda x: -x),
        "half": _unary(lambda x: x * 0.5, lambda x: x * 0.5),
        "shift": _unary(lambda x: 1.5 - x, lambda x: 1.5 - x),
        "clip": _unary(lambda x: ad.clip_op(x, -0.7, 0.9), lambda x: torch.clamp(x, -0.7, 0.9)),
        "add": Operation(lambda a, b, n: a + b, lambda t, a, b, n: a + b, _broadcast, 2),
        "sub": Operation(lambda a, b, n: a - b, lambda t, a, b, n: a - b, _broadcast, 2),
        "mul": Operation(lambda a, b, n: a * b, lambda t, a, b, n: a * b, _broadcast, 2),
        "div": Operation(
            lambda a, b, n: a / (b * b + 1.0), lambda t, a, b, n: a / (b * b + 1), _broadcast, 2
        ),
        "maximum": Operation(
            lambda a, b, n: ad.maximum_op(a, b + 0.1),
            lambda t, a, b, n: torch.maximum(a, b + 0.1),
            _broadcast,
            2,
        ),
        "where": Operation(
            lambda a, b, n: ad.where_op(a > 0.2, a, b),
            lambda t, a, b, n: torch.where(a > 0.2, a, b),
            _broadcast,
            2,
        ),
        "sum": _reduced("sum"),
        "mean": _reduced("mean"),
        "max": _reduced("amax"),
        "logsumexp": _reduced("logsumexp"),
        "softmax": _along(ad.softmax_op, torch.softmax),
        "log_softmax": _along(ad.log_softmax_op, torch.log_softmax),
        "flip": _along(lambda x, a: ad.flip_op(x, a), lambda x, a: torch.flip(x, (a,))),
        "total": _unary(ad.reducesum_op, torch.sum),
        "transpose": Operation(
            lambda x, n: ad.swapaxes_op(x, 0, -1), lambda t, x, n: torch.swapaxes(x, 0, -1), _has_axes
        ),
        "flatten": Operation(lambda x, n: ad.reshape_op(x, (-1,)), lambda t, x, n: x.reshape(-1)),
        "unsqueeze": Operation(
            lambda x, n: ad.expand_dims_op(x, n % (len(x.shape) + 1)),
            lambda t, x, n: x.unsqueeze(n % (x.dim() + 1)),
            lambda shapes, n: len(shapes[0]) < 4,
        ),
        "slice": Operation(
            lambda x, n: x[n % 2 :],
            lambda t, x, n: x[n % 2 :],
            lambda shapes, n: len(shapes[0]) > 0 and shapes[0][0] > 1,
        ),
        "cat": Operation(
            lambda a, b, n: ad.concatenate_op([a, b], 0),
            lambda t, a, b, n: torch.cat([a, b], 0),
            lambda shapes, n: 0 < len(shapes[0]) == len(shapes[1]) and shapes[0][1:] == shapes[1][1:],
            2,
        ),
        "matmul": Operation(
            lambda a, b, n: a @ b * 0.2,
            lambda t, a, b, n: a @ b * 0.2,
            lambda shapes, n: len(shapes[0]) == len(shapes[1]) == 2 and shapes[0][1] == shapes[1][0],
            2,
        ),
        "gram": Operation(
            lambda x, n: ad.matmul_op(x, x, trans_B=True) * 0.1,
            lambda t, x, n: x @ x.mT * 0.1,
            lambda shapes, n: len(shapes[0]) == 2,
        ),
    }


Program = list[Step]
LEAVES = ((5, 7), (7,), (7, 6), (3, 1, 7))


def drawn(seed: int) -> Program:
    """A program of some 5 to 30 steps."""
    draw, names = random.Random(seed), sorted(operations())
    return [
        (draw.choice(names), draw.randrange(1000), draw.randrange(1000), draw.randrange(1000))
        for _ in range(draw.randrange(5, 30))
    ]


def built(program: Program, leaves: list[Any], torch: Any = None) -> list[Any]:
    """The values of the steps, of dlsys or PyTorch. The newest values are taken more often than old ones."""
    table, values = operations(), list(leaves)
    for name, first, second, number in program:
        operation = table[name]
        recent = values[-6:]
        given = [recent[first % len(recent)], values[second % len(values)]][: operation.inputs]
        if operation.fits([tuple(x.shape) for x in given], number):
            values.append(
                operation.theirs(torch, *given, number) if torch else operation.ours(*given, number)
            )
    return values[len(leaves) :] or values[:1]


def problem(program: Program, seed: int) -> str | None:
    """What is wrong with what dlsys makes of a program; None if nothing is."""
    import torch

    draw = np.random.default_rng(seed)
    arrays = [draw.standard_normal(shape) for shape in LEAVES]
    tensors = [torch.tensor(array, requires_grad=True) for array in arrays]
    theirs = built(program, tensors, torch)
    variables = [ad.Variable(f"x{i}", a.shape, "float64") for i, a in enumerate(arrays)]
    ours = built(program, variables)
    chosen = [-1, len(ours) // 2]
    loss = sum(ad.reducesum_op(ours[i]) for i in chosen)
    their_loss = sum(theirs[i].sum() for i in chosen)
    grads = torch.autograd.grad(their_loss, tensors, allow_unused=True)
    wanted = [theirs[i].detach().numpy() for i in chosen]
    wanted += [np.zeros(a.shape) if g is None else g.numpy() for a, g in zip(arrays, grads, strict=True)]
    nodes = [*(ours[i] for i in chosen), *ad.gradients(loss, variables)]
    feed = dict(zip(variables, arrays, strict=True))
    settings: list[tuple[Any, Any, int]] = [("numpy", None, 1), (dl.cpu(0), None, dl.get_num_threads())]
    some = [name for name in NAMES if draw.random() < 0.5]
    settings += [(dl.cpu(0), some, 1), (dl.cpu(0), [], dl.get_num_threads())]
    before = dl.get_num_threads()
    for ctx, passes, threads in settings:
        dl.set_num_threads(threads)
        try:
            executor = ad.Executor(nodes, ctx) if passes is None else ad.Executor(nodes, ctx, passes=passes)
            first = executor.run(feed, convert_to_numpy_ret_vals=True)
            again = executor.run(feed, convert_to_numpy_ret_vals=True)
        finally:
            dl.set_num_threads(before)
        for number, (got, twice, want) in enumerate(zip(first, again, wanted, strict=True)):
            where = f"result {number} on {ctx} with passes {'all' if passes is None else passes}, {threads} threads"
            if got.shape != want.shape:
                return f"{where}: shape {got.shape}, not {want.shape}"
            if not np.array_equal(got, twice, equal_nan=True):
                return f"{where}: another value in the second run"
            scale = max(1.0, float(np.abs(want).max(initial=0)))
            if not np.allclose(got, want, rtol=1e-9, atol=1e-9 * scale, equal_nan=True):
                return f"{where}: off by {np.abs(got - want).max():.2g}"
    return None


def shrunk(program: Program, fails: Callable[[Program], bool]) -> Program:
    """A program that still fails when any one step less would not."""
    smaller = True
    while smaller:
        smaller = False
        for i in reversed(range(len(program))):
            part = program[:i] + program[i + 1 :]
            if part and fails(part):
                program, smaller = part, True
    return program


def graphs(seed: int, count: Counter, tell: Callable[[str], None]) -> None:
    """One drawn graph."""
    program = drawn(seed)

    def outcome(part: Program) -> str | None:
        try:
            return problem(part, seed)
        except Exception as error:  # noqa: BLE001 - told
            return f"{type(error).__name__}: {error}"

    found = outcome(program)
    count["wrong" if found else "right"] += 1
    if found:
        least = shrunk(program, lambda part: outcome(part) is not None)
        tell(f"{outcome(least)}; the smallest program: {least}")
