"""Sums and products of all elements up to each, along an axis, and the recurrence that their gradients are.

Along an axis runs a chain: each value is computed from the one before. A few long ones are cut into parts: the total of
each part, the totals of all parts before each, and then its own chain, which begins there (Blelloch, Prefix Sums and
Their Applications, 1990). Values of float32 are computed in float64, as PyTorch does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import reduce
from itertools import accumulate

from tvm import te, tirx

from .base import Expr, constant, full, shape_of
from .elementwise import is_float
from .integers import product_of, sum_of
from .loops import Buffer, Source, Words, loop, program, sequence, unravelled

PARTS, LEAST = 512, 1024  # parts of all chains, at most; elements of each, at least
TOGETHER = 4  # elements that are put together before the value before them: a step waits once for them all
LANES = 16  # totals of elements that far from each other, for vectors
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
    """The values of the chains along `axis`, which begin with `first`. `step` puts those of one input together too."""
    shape, dtype = shape_of(inputs[0]), str(inputs[0].dtype)
    if 0 in shape:
        return full(shape, 0, dtype)
    wide = "float64" if is_float(inputs[0]) else dtype
    outer, extent, inner = shape[:axis], shape[axis], shape[axis + 1 :]
    before, behind = math.prod(outer), math.prod(inner)
    parts = max(min(PARTS // (before * behind), extent // LEAST), 1) if len(inputs) == 1 else 1
    length, begin = extent // parts, constant(first, wide)

    def body(sources: list[Source], out: Buffer, *scratch: Buffer) -> tirx.Stmt:
        def place(o: Expr, i: Expr, c: Expr) -> list[Expr]:
            return [*unravelled(o, outer), extent - 1 - i if reverse else i, *unravelled(c, inner)]

        def values(o: Expr, i: Expr, c: Expr) -> list[Expr]:
            return [source(place(o, i, c)).astype(wide) for source in sources]

        def chain(o: Expr, c: Expr, value: Expr, start: Expr, count: int) -> tirx.Stmt:
            """Stores the values of so many elements, from the one at `start` on, before which there is a value."""
            width = TOGETHER if len(inputs) == 1 and count > TOGETHER else 1
            held = Words(width, wide)

            def some(at: Expr, number: int) -> list[tirx.Stmt]:
                """The next elements. The last word is the value before, and then the new one."""
                own = [values(o, at + i, c) for i in range(number)]
                if number > 1:
                    own = [[total] for total in accumulate((v for (v,) in own), step)]
                words = [*range(number - 1), width - 1]
                new = [held.put(word, step(held[-1], *v)) for word, v in zip(words, own, strict=True)]
                shown = [-1, *words[:-1]] if exclusive else words
                put = lambda i, word: tirx.BufferStore(out, held[word].astype(dtype), place(o, at + i, c))  # noqa: E731
                stores = [put(i, word) for i, word in enumerate(shown)]
                return [stores[0], *new[:-1], *stores[1:], new[-1]] if exclusive else [*new, *stores]

            left = count % width
            steps = loop(count // width, lambda i: sequence(some(start + i * width, width)))
            rest = some(start + count - left, left) if left else []
            return sequence([held.made, held.put(width - 1, value), steps, *rest])

        def total(o: Expr, p: Expr, c: Expr) -> tirx.Stmt:
            """Stores what the elements of a part are together."""
            # LLVM makes vectors of one sum of integers, and poor ones of many; of floats it may not change the order
            lanes = LANES if behind == 1 and is_float(inputs[0]) else 1
            held, start = Words(lanes, wide), p * length

            add = lambda i, n: sequence([held.put(k, step(held[k], *values(o, i + k, c))) for k in range(n)])  # noqa: E731
            left = length % lanes
            return sequence([
                held.made,
                *(held.put(k, begin) for k in range(lanes)),
                loop(length // lanes, lambda i: add(start + i * lanes, lanes)),
                *([add(start + length - left, left)] if left else []),
                tirx.BufferStore(scratch[0], reduce(step, [held[k] for k in range(lanes)]), [o, p, c]),
            ])  # fmt: skip

        def starts(o: Expr, _: Expr, c: Expr) -> tirx.Stmt:
            """Stores in place of the parts' totals those of all before, and behind them that of all."""
            held = Words(2, wide)

            def one(p: Expr) -> tirx.Stmt:
                later = held.put(1, step(held[0], tirx.BufferLoad(scratch[0], [o, p, c])))
                return sequence([later, tirx.BufferStore(scratch[0], held[0], [o, p, c]), held.put(0, held[1])])

            whole = tirx.BufferStore(scratch[0], held[0], [o, parts, c])
            return sequence([held.made, held.put(0, begin), loop(parts, one), whole])

        def part(o: Expr, p: Expr, c: Expr, count: int = length) -> tirx.Stmt:
            return chain(o, c, tirx.BufferLoad(scratch[0], [o, p, c]), p * length, count)

        def each(function: Callable[[Expr, Expr, Expr], tirx.Stmt], count: int) -> tirx.Stmt:
            """The function of all chains' first `count` parts."""
            return loop(before, lambda o: loop(count, lambda p: loop(behind, lambda c: function(o, p, c))))

        if parts == 1:
            return each(lambda o, p, c: chain(o, c, begin, tirx.const(0, "int32"), extent), 1)
        found = [each(total, parts), each(starts, 1), each(part, parts)]
        if left := extent - parts * length:
            found.append(each(lambda o, p, c: part(o, tirx.const(parts, "int32"), c, left), 1))
        return sequence(found)

    totals = [((before, parts + 1, behind), wide)] if parts > 1 else []
    return program(name, shape, dtype, inputs, body, totals)
