"""What a plan costs on a machine, in cycles: multiply-adds and loads of each step, what the steps read from each level
of the cache, stores of the results, and copies into panels.
"""

from __future__ import annotations

import math
from collections.abc import Container, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from ..common import CORES
from ..squares import CONSTANTS, SIDE, STRIDES
from .nest import PARALLEL_FLOP, Nest
from .plan import Plan, is_packed_by_squares, others, packings, plans, run_of, tiles

# In cycles. The manuals of Zen 5 and Sapphire Rapids say half a cycle for a load at best and 4 for a multiply-add; the
# others were set by timing plans of products and convolutions on CPUs with AVX-512.
LOAD = 0.6  # loading a vector, or an element into all lanes
LATENCY = 4.6  # of a multiply-add: a sum waits for its last one
AHEAD = 448  # instructions that the processor looks ahead
OVERHEAD = 0.3  # of a loop's counter and branch
VECTOR = 0.1  # more for each vector, whose line may not be there yet
STREAM = 32  # bytes of a cycle from the second cache
LINE = 9.0  # a line from the second cache, fetched ahead
COPY = 4.0  # copying a vector of neighbours into a panel: a line is read and another one written
SQUARE = 0.25  # copying or storing an element square by square
STORED = 1.0  # computing an element on the way, as images in their borders
ELEMENT = 4.0  # copying an element by itself into a panel
SCATTER = 0.5  # storing an element by itself
ALIASED = 6.0  # the same where lines share few sets of the first cache
PIECE = 25.0  # storing a row of a tile where the rows of the result share sets of the first cache
PAGE = 4096  # bytes
LIKELY = 6  # plans of the same groups whose costs are looked at
RAGGED = 1.04  # factor of tiles with rows left over, which have code of their own


class Cost:
    """The cycles of the plans of a sum."""

    def __init__(self, nest: Nest, made: Container[Any] = ()) -> None:
        self.nest, self.machine, self.made = nest, nest.machine, made

    def pieces(self, group: int, count: int) -> list[tuple[int, int]]:
        """How wide the tiles along a group are, and how many of each there are."""
        whole, rest = divmod(self.nest.sizes[group], count)
        return [(n, times) for n, times in ((count, whole), (rest, 1)) if n and times]

    def shapes(self, plan: Plan) -> list[tuple[tuple[int, ...], int, int]]:
        """The rows and the width of the tiles, and how many of each there are."""
        rows = [self.pieces(g, n) for g, n in plan.rows]
        widths = [(plan.width, 1)] if self.is_summed(plan) else self.pieces(plan.along, plan.width)
        outer = math.prod(self.nest.sizes[g] for g in others(self.nest, plan))
        return [
            (tuple(n for n, _ in one), width, outer * many * math.prod(times for _, times in one))
            for *one, (width, many) in product(*rows, widths)
        ]

    def is_summed(self, plan: Plan) -> bool:
        """Whether vectors run along terms, and are added up at the end."""
        return plan.along >= self.nest.results

    def steps(self, plan: Plan) -> float:
        """Steps of the terms of a tile."""
        size = self.nest.sizes[plan.along]
        return self.nest.terms / size * -(-size // plan.width) if self.is_summed(plan) else self.nest.terms

    def least(self, plan: Plan) -> float:
        """The cycles of multiply-adds, loads and stores, as if all that is read were at hand."""
        nest, machine, steps, found = self.nest, self.machine, self.steps(plan), 0.0
        moves = [(s[plan.along] != 0, [i for i, g in enumerate(plan.groups) if s[g]]) for s in nest.strides[:-1]]
        for counts, width, times in self.shapes(plan):
            vectors = -(-width // nest.lanes)
            loads = sum(math.prod([counts[i] for i in own]) * (vectors if along else 1) for along, own in moves)
            busy = max(math.prod(counts) * vectors * machine.fma, loads * LOAD) + OVERHEAD + VECTOR * vectors
            found += times * (max(busy * steps, self.pieces_of_rows(plan, counts)) + self.stores(plan, counts, width))
        return found

    def cycles(self, plan: Plan) -> float:
        """Of all tiles and copies."""
        steps, total = self.steps(plan), 0.0
        whole = self.read(plan) > self.machine.l1
        for counts, width, times in self.shapes(plan):
            busy = max(self.step(plan, counts, width, whole) * steps, self.pieces_of_rows(plan, counts))
            total += times * (busy + self.stores(plan, counts, width))
        ragged = any(self.nest.sizes[g] % n for g, n in plan.rows)
        copies = sum(self.copied(n, plan) for n in plan.packed)
        before = sum(self.computed(n, plan) for n in range(len(self.nest.loads)))
        return total * (RAGGED if ragged else 1.0) + copies + before

    def computed(self, load: int, plan: Plan) -> float:
        """Of storing what is computed on the way before tiles read it; a share can do it where loops outside tiles go
        along it."""
        source = self.nest.loads[load].source
        if source not in self.made or load in plan.packed:
            return 0.0
        shared = any(self.nest.strides[load][g] and self.nest.sizes[g] > 1 for g in others(self.nest, plan))
        return math.prod(map(int, source.shape)) * (STORED if shared else 2 * STORED)

    def read(self, plan: Plan) -> float:
        """Bytes that a tile reads."""
        nest = self.nest
        terms = [(g, nest.sizes[g]) for g in range(nest.results, len(nest.sizes))]
        own = [*plan.rows, *terms] if self.is_summed(plan) else [*plan.rows, (plan.along, plan.width), *terms]
        return nest.bytes * sum(
            math.prod(n for g, n in own if strides[g] != 0) for strides in nest.strides[:-1]
        )

    def step(self, plan: Plan, counts: Sequence[int], width: int, whole: bool) -> float:
        """Of a step of the terms in a tile of so many rows and columns; `whole`: whether tiles read more than the first
        cache holds."""
        nest, machine, summed = self.nest, self.machine, self.is_summed(plan)
        vectors, rows = -(-width // nest.lanes), math.prod(counts)
        loads = far = streamed = jumps = 0.0
        for n, strides in enumerate(nest.strides[:-1]):
            own = math.prod(count for g, count in zip(plan.groups, counts, strict=True) if strides[g] != 0)
            moves = strides[plan.along]
            gathered = 1 if n in plan.packed else self.gathered(moves)
            loads += own * (vectors * gathered if moves else 1)
            if whole or all(strides[g] for g in range(nest.results)):
                streamed += own * (vectors * machine.vector_bits / 8 if moves else nest.bytes)
            if moves == 1 and n not in plan.packed and not summed:
                jumps += (strides[-1] or 0) > width
            if not moves and not summed:
                far += own * max((self.far(n, strides[g]) for g in plan.groups if strides[g] != 0), default=0.0)
        # tiles of few instructions are computed side by side, as far as the processor looks ahead
        waits = LATENCY * min(self.steps(plan) * (rows * vectors + loads + 2) / AHEAD, 1)
        busy = max(rows * vectors * machine.fma, (loads + far) * LOAD, streamed / STREAM, waits, self.line(plan))
        return busy + OVERHEAD + VECTOR * vectors + 0.1 * far + 0.3 * jumps

    def gathered(self, step: int) -> int:
        """Loads of a vector of elements so far apart."""
        return 1 if step in (0, 1) else step if step in STRIDES else 2 * self.nest.lanes  # each is inserted

    def far(self, load: int, row: int) -> float:
        """Of a row's element beside its load: in lines, or pages, of their own, which serve few terms."""
        run = self.nest.sizes[-1] if self.nest.strides[load][-1] == 1 else 1
        nbytes, line = row * self.nest.bytes, self.machine.line
        each = 1.0 if nbytes >= PAGE else 0.25 * min(nbytes / line, 1) if row > 1 else 0.0
        return each / min(run, line // self.nest.bytes)

    def line(self, plan: Plan) -> float:
        """The least of a step of which each reads other lines for its rows."""
        nest, machine = self.nest, self.machine
        for n, strides in enumerate(nest.strides[:-1]):
            across = strides[plan.along] == 0 and len(plan.rows) == 1 and nest.moves(n, plan.groups)
            if self.is_summed(plan) or not across:
                continue
            apart = strides[-1] * nest.bytes
            again = 2 if apart % 1024 == 0 else 1  # lines that share few sets
            if again * nest.terms * min(apart, machine.line) > machine.l1:
                return LINE * (min(apart / machine.line, 1) if apart < PAGE else 2)
        return 0.0

    def pieces_of_rows(self, plan: Plan, counts: Sequence[int]) -> float:
        """The least of a tile whose rows in the result share sets of the first cache: the first line of each waits for
        another one to leave."""
        strides = self.nest.strides[-1]
        shared = any(strides[g] * self.nest.bytes % 2048 == 0 for g, n in plan.rows if n > 1)
        return PIECE * math.prod(counts) if shared and strides[plan.along] == 1 else 0.0

    def stores(self, plan: Plan, counts: Sequence[int], width: int) -> float:
        """Of storing a tile's results."""
        nest, strides, rows = self.nest, self.nest.strides[-1], math.prod(counts)
        if self.is_summed(plan):
            return rows * (width // nest.lanes + 2 * math.log2(min(nest.lanes, width)))
        if strides[plan.along] == 1:
            return rows * -(-width // nest.lanes)
        run = run_of(nest, plan, counts)
        if run == rows and self.stores_squares(plan, rows, width):
            return SQUARE * rows * width
        aliased = strides[plan.along] * nest.bytes % 1024 == 0
        return rows * width * (ALIASED if aliased and run < rows else SCATTER)

    def stores_squares(self, plan: Plan, rows: int, width: int) -> bool:
        """Whether rows that lie side by side in the result are stored square by square."""
        return 2 * rows >= SIDE and width % SIDE == 0 and self.has_squares(plan)

    def has_squares(self, plan: Plan) -> bool:
        """Whether the tile leaves registers for what exchanges of squares need. Else LLVM, which keeps that through all
        loops, does not keep the sums."""
        held = (math.prod(plan.counts) + 1) * -(-plan.width // self.nest.lanes) + 1
        return self.nest.bytes == 4 and held <= self.machine.registers - CONSTANTS

    def copied(self, load: int, plan: Plan) -> float:
        """Of packing a load."""
        nest, strides = self.nest, self.nest.strides[load]
        group, width = plan.along, plan.width
        elements = nest.terms * math.prod(nest.sizes[g] for g in range(nest.results) if strides[g])
        if strides[group] == 1:
            each = COPY / min(nest.lanes, width)
        elif is_packed_by_squares(nest, load, group, width):
            each = SQUARE if self.has_squares(plan) else 4 * SQUARE
        elif strides[group] in STRIDES:
            each = COPY * strides[group] / min(nest.lanes, width)
        else:
            each = ELEMENT
        return elements * each


def wanted(nest: Nest) -> int:
    """The parts that many threads should have, of a sum if more regions take less time than they spare; 1 for few
    threads."""
    threads = nest.machine.threads
    return 2 * threads if threads >= CORES and 2 * nest.work >= 5 * PARALLEL_FLOP else 1


def choose(nest: Nest, made: Container[Any] = ()) -> Plan | None:
    """The plan of the fewest cycles, of those with parts enough for many threads; None where there is none."""
    cost, parts, best = Cost(nest, made), wanted(nest), None
    fewest = (0, math.inf)
    for least, plan in _likely(nest, cost):
        missing = max(parts - shares(nest, plan), 0) if parts > 1 else 0
        if (missing, least) < fewest:
            for one in packings(nest, plan, made):
                if (found := (missing, cost.cycles(one))) < fewest:
                    best, fewest = one, found
    return None if best is None else blocked(nest, best)


def _likely(nest: Nest, cost: Cost) -> list[tuple[float, Plan]]:
    """The plans that may be the best, with their least cycles: of each choice of groups some; all for many threads,
    which small tiles give more parts."""
    found: dict[tuple[int, tuple[int, ...]], list[tuple[float, Plan]]] = {}
    for plan in plans(nest):
        found.setdefault((plan.along, plan.groups), []).append((cost.least(plan), plan))
    most = None if wanted(nest) > 1 else LIKELY
    chosen = [one for group in found.values() for one in sorted(group, key=lambda one: one[0])[:most]]
    return sorted(chosen, key=lambda one: one[0])


def shares(nest: Nest, plan: Plan) -> int:
    """The tiles of a plan, among which threads share out the work."""
    rows = math.prod(tiles(nest, plan)) * math.prod(nest.sizes[g] for g in others(nest, plan))
    return rows * (1 if plan.along >= nest.results else -(-nest.sizes[plan.along] // plan.width))


def parts(nest: Nest, plan: Plan) -> int:
    """`shares`, or those of tiles of one vector and as many rows as keep it busy, if these are fewer."""
    rows, groups = int(4 / nest.machine.fma), [g for g in plan.groups if g != plan.along]
    good = -(-math.prod(nest.sizes[g] for g in groups) // rows) * math.prod(nest.sizes[g] for g in others(nest, plan))
    good *= 1 if plan.along >= nest.results else -(-nest.sizes[plan.along] // nest.lanes)
    return min(good, shares(nest, plan))


def blocked(nest: Nest, plan: Plan) -> Plan:
    """The plan with its block, whose rows stay in the second cache while panels pass; all blocks are alike, and enough
    for threads."""
    count, rows = math.prod(tiles(nest, plan)), math.prod(plan.counts)
    fitting = max(nest.machine.l2 // (rows * min(nest.terms, 1024) * nest.bytes), 1)
    block = -(-count // -(-count // min(count, fitting)))
    if nest.is_parallel:
        block = min(block, max(shares(nest, plan) // (2 * nest.machine.threads), 1))
    return replace(plan, block=block)
