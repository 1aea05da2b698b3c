"""Sums and products of all elements up to each, along an axis, and the recurrence that their gradients are.

Along an axis runs a chain: each value is computed from the one before. Values of float32 are computed in float64, as
PyTorch does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from tvm import te, tirx

from .base import Expr, constant, full, shape_of
from .elementwise import is_float
from .integers import product_of, sum_of
from .loops import Buffer, Source, Word, loop, program, sequence, unravelled

Step = Callable[..., Expr]
"""The next value of a chain, from the one before it and an element of each input."""


def cumsum(x: te.Tensor, axis: int, exclusive: bool, reverse: bool) -> te.Tensor:
    """The sums of the elements up to each along `axis`, without its own if `exclusive`, from the last on if
    `reverse`."""
    zero = -0.0 if is_float(x) and not exclusive else 0  # 0.0 + -0.0 is 0.0
    return _chains("cumsum", [x], axis, exclusive, reverse, zero, sum_of)


def cumprod(x: te.Tensor, axis: int, exclusive: bool, reverse: bool) -> te.Tensor:
    """The products of the elements up to each; see `cumsum`."""
    return _chains("cumprod", [x], axis, exclusive, reverse, 1, product_of)


def recurrence(a: te.Tensor, b: te.Tensor, axis: int, exclusive: bool, reverse: bool) -> te.Tensor:
    """h_i = a_i h_(i-1) + b_i along `axis`, h before the first is 0; h_(i-1) if `exclusive`, from the last on if
    `reverse`."""
    return _chains("recurrence", [a, b], axis, exclusive, reverse, 0, lambda h, a, b: a * h + b)


def _chains(
    name: str, inputs: Sequence[te.Tensor], axis: int, exclusive: bool, reverse: bool, first: float, step: Step
) -> te.Tensor:
    """The values of the chains along `axis`, which begin with `first`."""
    shape, dtype = shape_of(inputs[0]), str(inputs[0].dtype)
    if 0 in shape:
        return full(shape, 0, dtype)
    wide = "float64" if is_float(inputs[0]) else dtype
    outer, extent, inner = shape[:axis], shape[axis], shape[axis + 1 :]

    def body(sources: list[Source], out: Buffer) -> tirx.Stmt:
        def chain(o: Expr, c: Expr) -> tirx.Stmt:
            held = Word(wide)

            def element(i: Expr) -> tirx.Stmt:
                at = [*unravelled(o, outer), extent - 1 - i if reverse else i, *unravelled(c, inner)]
                following = held.put(step(held.value, *(source(at).astype(wide) for source in sources)))
                store = tirx.BufferStore(out, held.value.astype(dtype), at)
                return sequence([store, following] if exclusive else [following, store])

            return sequence([held.made, held.put(constant(first, wide)), loop(extent, element)])

        return loop(math.prod(outer), lambda o: loop(math.prod(inner), lambda c: chain(o, c)))

    return program(name, shape, dtype, inputs, body)
