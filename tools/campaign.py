"""Draws graphs at random and compares their results: `python tools/campaign.py --seconds 3600`.

Each graph and its gradients run under several combinations of passes and threads, and on NumPy's rules, twice each.
All results are compared with PyTorch's. A failure prints its seed (`--seed 17 --seconds 0` repeats it) and the smallest
part of the program that still fails. The exit status is 1 if a graph failed.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import dlsys as dl
import numpy as np
from dlsys import autodiff as ad
from dlsys.compiler import NAMES

Step = tuple[str, int, int, int]
"""An operation, two values by their numbers, and a number that decides the rest. A step that does not fit is left out,
so any part of a program is a program."""
Program = list[Step]
Shapes = Sequence[tuple[int, ...]]

LEAVES = ((5, 7), (7,), (7, 6), (3, 1, 7))
MOST = 4096  # elements of a value


def always(shapes: Shapes) -> bool:
    """True: the operation takes any value."""
    return True


def has_axes(shapes: Shapes) -> bool:
    """Whether the value is no scalar."""
    return len(shapes[0]) > 0


def is_matrix(shapes: Shapes) -> bool:
    """Whether the value is a matrix."""
    return len(shapes[0]) == 2


def broadcast(shapes: Shapes) -> bool:
    """Whether two values broadcast to a result that is not large."""
    try:
        return int(np.prod(np.broadcast_shapes(*shapes))) <= MOST
    except ValueError:
        return False


def joined(shapes: Shapes) -> bool:
    """Whether two values differ at most in their first axis."""
    return 0 < len(shapes[0]) == len(shapes[1]) and shapes[0][1:] == shapes[1][1:]


def multiplied(shapes: Shapes) -> bool:
    """Whether two values are matrices with a product."""
    return len(shapes[0]) == len(shapes[1]) == 2 and shapes[0][1] == shapes[1][0]


@dataclass(frozen=True)
class Operation:
    """compute(lib, values..., number), where `lib` is dlsys or PyTorch, and the shapes that it takes."""

    compute: Callable[..., Any]
    fits: Callable[[Shapes], bool] = always
    inputs: int = 1


def along(name: str) -> Operation:
    """A function of one axis that keeps the shape."""
    return Operation(lambda lib, x, n: getattr(lib, name)(x, n % len(x.shape)), has_axes)


def reduced(name: str) -> Operation:
    """A reduction over one axis, which is kept or not."""

    def compute(lib: Any, x: Any, n: int) -> Any:
        return getattr(lib, name)(x, n % len(x.shape), keepdim=bool(n // 7 % 2))

    return Operation(compute, has_axes)


OPERATIONS = {
    "tanh": Operation(lambda lib, x, n: lib.tanh(x)),
    "sigmoid": Operation(lambda lib, x, n: lib.sigmoid(x)),
    "relu": Operation(lambda lib, x, n: lib.relu(x)),
    "exp": Operation(lambda lib, x, n: lib.exp(lib.tanh(x))),
    "log": Operation(lambda lib, x, n: lib.log(x * x + 1.0)),
    "sqrt": Operation(lambda lib, x, n: lib.sqrt(x * x + 0.5)),
    "gelu": Operation(lambda lib, x, n: lib.nn.functional.gelu(x)),
    "neg": Operation(lambda lib, x, n: -x),
    "half": Operation(lambda lib, x, n: x * 0.5),
    "shift": Operation(lambda lib, x, n: 1.5 - x),
    "clip": Operation(lambda lib, x, n: lib.clamp(x, -0.7, 0.9)),
    "add": Operation(lambda lib, a, b, n: a + b, broadcast, 2),
    "sub": Operation(lambda lib, a, b, n: a - b, broadcast, 2),
    "mul": Operation(lambda lib, a, b, n: a * b, broadcast, 2),
    "div": Operation(lambda lib, a, b, n: a / (b * b + 1.0), broadcast, 2),
    "maximum": Operation(lambda lib, a, b, n: lib.maximum(a, b + 0.1), broadcast, 2),
    "where": Operation(lambda lib, a, b, n: lib.where(a > 0.2, a, b), broadcast, 2),
    "sum": reduced("sum"),
    "mean": reduced("mean"),
    "max": reduced("amax"),
    "logsumexp": reduced("logsumexp"),
    "softmax": along("softmax"),
    "log_softmax": along("log_softmax"),
    "flip": Operation(lambda lib, x, n: lib.flip(x, (n % len(x.shape),)), has_axes),
    "total": Operation(lambda lib, x, n: x.sum()),
    "transpose": Operation(lambda lib, x, n: lib.swapaxes(x, 0, -1), has_axes),
    "flatten": Operation(lambda lib, x, n: x.reshape(-1)),
    "unsqueeze": Operation(
        lambda lib, x, n: x.unsqueeze(n % (len(x.shape) + 1)), lambda shapes: len(shapes[0]) < 4
    ),
    "slice": Operation(
        lambda lib, x, n: x[n % 2 :], lambda shapes: len(shapes[0]) > 0 and shapes[0][0] > 1
    ),
    "cat": Operation(lambda lib, a, b, n: lib.cat([a, b], 0), joined, 2),
    "matmul": Operation(lambda lib, a, b, n: a @ b * 0.2, multiplied, 2),
    "gram": Operation(lambda lib, x, n: x @ lib.swapaxes(x, 0, 1) * 0.1, is_matrix),
}


def drawn(seed: int) -> Program:
    """A program of 5 to 29 steps."""
    draw, names = random.Random(seed), sorted(OPERATIONS)
    return [
        (draw.choice(names), draw.randrange(1000), draw.randrange(1000), draw.randrange(1000))
        for _ in range(draw.randrange(5, 30))
    ]


def built(program: Program, leaves: list[Any], lib: Any) -> list[Any]:
    """The values of the steps, in the library of the leaves. The newest values are taken more often than old ones."""
    values = list(leaves)
    for name, first, second, number in program:
        operation, recent = OPERATIONS[name], values[-6:]
        inputs = [recent[first % len(recent)], values[second % len(values)]][: operation.inputs]
        if operation.fits([tuple(x.shape) for x in inputs]):
            values.append(operation.compute(lib, *inputs, number))
    return values[len(leaves) :] or values[:1]


def problem(program: Program, seed: int) -> str | None:
    """What is wrong with dlsys' results of a program, two values and their sum's gradients; None if nothing is."""
    import torch

    draw = np.random.default_rng(seed)
    arrays = [draw.standard_normal(shape) for shape in LEAVES]
    tensors = [torch.tensor(array, requires_grad=True) for array in arrays]
    variables = [ad.Variable(f"x{i}", array.shape, "float64") for i, array in enumerate(arrays)]
    theirs, ours = built(program, tensors, torch), built(program, variables, dl)
    theirs, ours = ([values[-1], values[len(values) // 2]] for values in (theirs, ours))
    grads = torch.autograd.grad(sum(x.sum() for x in theirs), tensors, allow_unused=True, materialize_grads=True)
    wanted = [x.detach().numpy() for x in (*theirs, *grads)]
    nodes = [*ours, *ad.gradients(sum(x.sum() for x in ours), variables)]
    feed = dict(zip(variables, arrays, strict=True))
    some, threads = [name for name in NAMES if draw.random() < 0.5], dl.get_num_threads()
    settings: list[tuple[Any, list[str], int]] = [
        ("numpy", list(NAMES), 1), (dl.cpu(0), list(NAMES), threads), (dl.cpu(0), some, 1), (dl.cpu(0), [], threads)
    ]  # fmt: skip
    for ctx, passes, count in settings:
        dl.set_num_threads(count)
        try:
            executor = ad.Executor(nodes, ctx, passes=passes)
            first, again = executor.run(feed, True), executor.run(feed, True)
        finally:
            dl.set_num_threads(threads)
        for number, (got, twice, want) in enumerate(zip(first, again, wanted, strict=True)):
            where = f"result {number} on {ctx} with passes {passes}, {count} threads"
            if got.shape != want.shape:
                return f"{where}: shape {got.shape}, not {want.shape}"
            if not np.array_equal(got, twice, equal_nan=True):
                return f"{where}: another value in the second run"
            scale = max(1.0, float(np.abs(want).max(initial=0)))
            if not np.allclose(got, want, rtol=1e-9, atol=1e-9 * scale, equal_nan=True):
                return f"{where}: off by {np.abs(got - want).max():.2g}"
    return None


def outcome(program: Program, seed: int) -> str | None:
    """`problem`, or the error that it raises."""
    try:
        return problem(program, seed)
    except Exception as error:  # noqa: BLE001 - printed
        return f"{type(error).__name__}: {error}"


def shrunk(program: Program, seed: int) -> Program:
    """The part of a failing program that fails, and would not with any one step less."""
    for i in reversed(range(len(program))):
        part = program[:i] + program[i + 1 :]
        if part and outcome(part, seed):
            return shrunk(part, seed)
    return program


def failure(program: Program, seed: int) -> str | None:
    """What is wrong with the smallest failing part of a program, and that part; None if the program is right."""
    if not outcome(program, seed):
        return None
    least = shrunk(program, seed)
    return f"seed {seed}: {outcome(least, seed)}; the smallest program: {least}"


def main() -> int:
    """Draws graphs until the time is over, at least one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60, help="how long")
    parser.add_argument("--seed", type=int, default=0, help="of the first graph")
    options = parser.parse_args()
    end, seed, failed = time.monotonic() + options.seconds, options.seed, 0
    while seed == options.seed or time.monotonic() < end:
        if found := failure(drawn(seed), seed):
            failed += 1
            print(found, flush=True)
        seed += 1
    print(f"{seed - options.seed} graphs, {failed} failed")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
