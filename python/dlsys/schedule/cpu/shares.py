"""The loops around the tiles of a sum. Threads have shares of the results. In a share a long sum is made part by part,
for accuracy and so that what is read stays near. The blocking is that of Goto and van de Geijn, "Anatomy of
high-performance matrix multiplication" (2008): a panel stays in the first cache or the second while the rows of a block
pass it, and those stay in the second while the panels pass.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from tvm import tirx

from ..codegen import PARALLEL, SERIAL, array, block_of, sequence, unravelled
from ..common import near_divisor, renamed
from ..stages import Expr, Stage, in_place
from .border import has_borders, laid
from .nest import ZERO, Nest
from .packing import Packing, Part, Place
from .plan import Plan, tiles
from .tile import TileCode

TERMS = 512  # in a part of a long sum: to add up a tile of 12 x 2 vectors takes some 40 cycles, so many steps 6,000
TERMS_ALONG = 128  # vectors of them in a part, where vectors run along terms: a tile has few sums then
MOST = 8  # vectors of an image's row that are copied at once
BLOCK, PANEL = -1, -2  # loops beside those over groups: over blocks of tiles, over panels
NAMES = {BLOCK: "block", PANEL: "panel"}


@dataclass(frozen=True)
class _Image:
    """What a share computes of a stage before it reads it: of the axes that are `free`, in an array."""

    stage: Stage
    free: Sequence[int]
    array: Any


class Loops:
    """The loops of a plan."""

    def __init__(self, nest: Nest, plan: Plan, result: Stage | None, made: Mapping[Any, Stage]) -> None:
        """`result`: see `TileCode`; `made`: the stages before the sum, by their arrays."""
        self.nest, self.plan, self.made, self.machine = nest, plan, made, nest.machine
        self.tile = TileCode(nest, plan, result)
        self.counts, self.is_parallel = tiles(nest, plan), nest.is_parallel
        self.tiles: int = math.prod(self.counts)
        panels = 1 if self.tile.summed else -(-nest.sizes[plan.along] // plan.width)
        blocks = -(-self.tiles // plan.block)
        self.length: dict[int, int] = {BLOCK: blocks, PANEL: panels, **dict(enumerate(nest.sizes))}
        self.rest = [g for g in range(nest.results) if g != plan.along and g not in plan.groups]
        self.order: list[int] = self._order()

    def _order(self) -> list[int]:
        """The loops outside tiles, outermost first: panels that lie beyond the second cache pass once."""
        nest, plan = self.nest, self.plan
        still = [g for g in self.rest if not any(nest.strides[n][g] for n in plan.packed)]
        first = [g for g in self.rest if g not in still]
        panels = self.length[PANEL] * plan.width * nest.terms * nest.bytes
        if not plan.packed or panels <= self.machine.l2:
            return [*first, *still, BLOCK, PANEL]
        if still:
            return [*first, PANEL, *still, BLOCK]
        return [*first, BLOCK, PANEL]

    def size(self, loops: Sequence[int]) -> int:
        """The steps of some loops together."""
        return math.prod(self.length[g] for g in loops)

    # Parts of a long sum

    @property
    def most(self) -> int:
        """Terms, or vectors of terms, that a part should have."""
        return TERMS_ALONG if self.tile.summed else TERMS

    @property
    def is_long(self) -> bool:
        """Whether the sum is made in parts."""
        return self.nest.terms // (self.plan.width if self.tile.summed else 1) > 2 * self.most

    @cached_property
    def part(self) -> tuple[int, int, int, int]:
        """The group of terms that is cut into parts, how many of its indices go at once, its steps, and those of a
        part. Groups outside it have parts of one index."""
        sizes, along = self.nest.reduced.sizes, self.plan.along - self.nest.results
        own = [self.plan.width if g == along else 1 for g in range(len(sizes))]
        steps = [max(size // one, 1) for size, one in zip(sizes, own, strict=True)]
        long = [g for g in range(len(sizes)) if math.prod(steps[g:]) > 2 * self.most]
        group = max(long, default=0)
        group = along if 0 <= along < group else group  # whose indices go together
        most = max(self.most // math.prod(steps[group + 1 :]), 1)
        return group, own[group], sizes[group] // own[group], near_divisor(steps[group], most) or most

    def _parts(self, body: Callable[[Part], tirx.Stmt]) -> list[tirx.Stmt]:
        """`body` of each part, and of what is left where the cut group is not a whole number of vectors."""
        nest, (group, own, steps, length) = self.nest, self.part
        outer = nest.reduced.sizes[:group]

        def fixed(number: Expr) -> dict[int, Expr]:
            return dict(enumerate(map(nest.simple, unravelled(number, outer)))) if outer else {}

        def part(number: Expr) -> tirx.Stmt:
            *index, last = unravelled(number, [*outer, -(-steps // length)])
            first = nest.simple(last * length)
            count = length if steps % length == 0 else tirx.min(length, steps - first)
            return body(Part(dict(enumerate(index)), group, first, count, length))

        def left(number: Expr) -> tirx.Stmt:
            return body(Part(fixed(number), group, ZERO + steps, None, 1))

        parts = nest.loop(math.prod(outer) * -(-steps // length), part, name="part")
        return [parts, *([nest.loop(math.prod(outer), left)] if nest.reduced.sizes[group] % own else [])]

    # The nests

    def nests(self) -> list[Stage | tirx.Stmt]:
        """The loop nests, one after another: what all tiles need, and the tiles."""
        nest, plan = self.nest, self.plan
        found, own = list[tirx.Stmt](), list[tuple[Any, Callable[..., tirx.Stmt]]]()
        for n in plan.packed:
            packing = Packing(nest, plan, n, in_place(nest.loads[n], self.made))
            if self.size([g for g in self.rest if not nest.strides[n][g]]) == 1 and plan.block >= self.tiles:
                to, copied, self.tile.reads[n] = packing.of_share()
                own.append((to, copied))
            else:
                loops, self.tile.reads[n] = packing.whole(self.is_parallel)
                found.append(block_of("pack", loops))
        cuts = self._cuts(bool(own))
        images = {} if own else self._images(cuts)
        cuts = next((cuts for cuts, _ in images.values()), cuts)
        self.tile.images = {n: (image.array, image.free) for n, (_, image) in images.items()}
        laid_here = [image for _, image in images.values()]
        shares = _Shares(self, self.order[:cuts], self.order[cuts:], own, laid_here)
        found.append(block_of(nest.stage.name, shares.loops()))
        return [*self._before(laid_here), *found]

    def _cuts(self, packs: bool) -> int:
        """How many of the loops are shared out: all where a share packs a panel; else enough of them for threads, and
        for the sums of a share to stay in the second cache between two parts."""
        held = self.plan.block * math.prod(self.plan.counts) * self.plan.width * self.nest.bytes
        most = self.machine.l2 // 4 // held if self.is_long else math.inf
        wanted, order = 2 * self.machine.threads if self.is_parallel else 1, self.order
        if packs:
            return len(order)
        enough = (n for n in range(len(order)) if self.size(order[:n]) >= wanted and self.size(order[n:]) <= most)
        return next(enough, len(order))

    def _before(self, images: Sequence[_Image]) -> list[Stage | tirx.Stmt]:
        """The stages whose values have to lie somewhere before tiles read them, with those that they read in place."""
        made = {image.stage.buffer for image in images}
        read = [load.source for n, load in enumerate(self.nest.loads) if n not in self.tile.reads]
        found = list[Stage | tirx.Stmt]()
        for buffer, stage in self.made.items():
            if buffer not in read or buffer in made:
                continue
            stage, axes = replace(stage, value=in_place(stage.value, self.made)), range(len(stage.iters))
            if has_borders(stage):
                images = laid(stage, buffer, axes, {}, MOST * self.nest.lanes, self.is_parallel)
                found.append(block_of(stage.name, images))
            else:
                found.append(stage)
        return found

    def _images(self, cuts: int) -> dict[int, tuple[int, _Image]]:
        """By the number of its load a stage that a share computes by itself, as it reads its values alone, and how many
        loops are shared out then; at most one."""
        nest, order = self.nest, self.order
        for n, load in enumerate(nest.loads):
            stage = self.made.get(load.source)
            others = [one for one in nest.loads if one is not load and one.source.same_as(load.source)]
            if stage is None or n in self.tile.reads or others or len(stage.iters) < 2:
                continue
            last = next((i for i, g in enumerate(order) if g < 0 or not nest.strides[n][g]), len(order))
            for lead in range(last, cuts - (cuts > 0), -1):  # outer loops along all of which the load moves
                free = [d for d, index in enumerate(load.indices) if not self._is_known(index, order[:lead])]
                shape = [int(stage.buffer.shape[d]) for d in free]
                once = math.prod(shape) * self.size(order[:lead]) <= 1.1 * math.prod(map(int, stage.buffer.shape))
                if once and math.prod(shape) * nest.bytes <= self.machine.l2 // 2:
                    made = array(shape, str(stage.buffer.dtype), stage.name)
                    return {n: (lead, _Image(replace(stage, value=in_place(stage.value, self.made)), free, made))}
        return {}

    def _is_known(self, index: Expr, groups: Sequence[int]) -> bool:
        """Whether an index of a load is known where those of some groups are."""
        iters = self.nest.stage.iters
        known = {iters[axis].var for g in groups for axis in self.nest.spatial.parts[g]}
        known |= {v.var for v in iters if int(v.dom.extent) == 1}
        return all(v in known for v in tirx.analysis.undefined_vars(index))


class _Shares:
    """The loops over shares, `outer` ones, and those within a share."""

    def __init__(
        self,
        loops: Loops,
        outer: Sequence[int],
        inner: Sequence[int],
        own: Sequence[tuple[Any, Callable[..., tirx.Stmt]]],
        images: Sequence[_Image],
    ) -> None:
        """`own`: the arrays of the panels that a share packs, and their copies; `images`: what it computes before."""
        self.of, self.nest, self.plan, self.tile = loops, loops.nest, loops.plan, loops.tile
        self.outer, self.inner, self.own, self.images = outer, inner, own, images

    def loops(self) -> tirx.Stmt:
        """All of them."""
        kind = PARALLEL if self.of.is_parallel else SERIAL
        return self.nest.loop(self.of.size(self.outer), self._share, kind, "share")

    def _share(self, number: Expr) -> tirx.Stmt:
        """A share: its panels and images, and its tiles, part by part."""
        nest, plan, tile = self.nest, self.plan, self.tile
        index = dict(zip(self.outer, unravelled(number, [self.of.length[g] for g in self.outer]), strict=True))
        spatial = self._spatial(index)
        made = [tirx.AllocBuffer(image.array) for image in self.images]
        made += [self._image(image, spatial) for image in self.images]
        made += [tirx.AllocBuffer(to) for to, _ in self.own]
        made += [copied(spatial) for _, copied in self.own]
        if not self.of.is_long:
            return sequence([*made, self._walk(index, tile.code)])
        width = 1 if tile.summed else plan.width
        shape = (*(self.of.length[g] for g in self.inner), plan.block, *plan.counts, width)
        tile.total = array(shape, nest.dtype, "total")

        def part(one: Part) -> tirx.Stmt:
            return self._walk(index, lambda place: tile.code(replace(place, part=one)))

        parts = [self._walk(index, tile.cleared), *self.of._parts(part), self._walk(index, tile.code)]
        return sequence([*made, tirx.AllocBuffer(tile.total), *parts])

    def _spatial(self, at: Mapping[int, Expr]) -> list[Expr]:
        """The index of each group of results at an index of the loops, of panels their number."""
        found = [at.get(g, ZERO) for g in range(self.nest.results)]
        if not self.tile.summed:
            found[self.plan.along] = at.get(PANEL, ZERO)
        return found

    def _walk(self, index: Mapping[int, Expr], body: Callable[[Place], tirx.Stmt]) -> tirx.Stmt:
        """`body` of each tile of a share."""
        nest, block = self.nest, self.plan.block

        def within(slot: tuple[Expr, ...]) -> tirx.Stmt:
            if len(slot) < len(self.inner):
                g = self.inner[len(slot)]
                return nest.loop(self.of.length[g], lambda x: within((*slot, x)), name=NAMES.get(g, "i"))
            at = {**index, **dict(zip(self.inner, slot, strict=True))}
            first = at[BLOCK] * block

            def tile(number: Expr) -> tirx.Stmt:
                spatial = self._spatial(at)
                places = unravelled(nest.simple(first + number), self.of.counts) if self.of.counts else []
                for g, place in zip(self.plan.groups, places, strict=True):
                    spatial[g] = place
                return body(Place(spatial, (*slot, number)))

            left = block if self.of.tiles % block == 0 else tirx.min(block, self.of.tiles - first)
            return nest.loop_to(left, block, tile, name="tile")

        return within(())

    def _image(self, image: _Image, spatial: Sequence[Expr]) -> tirx.Stmt:
        """The loops of a stage's values that a share reads."""
        stage, nest = image.stage, self.nest
        load = next(one for one in nest.loads if one.source.same_as(stage.buffer))
        names = nest.at(spatial)
        fixed = {v.var: renamed(load.indices[d], names) for d, v in enumerate(stage.iters) if d not in image.free}
        return laid(stage, image.array, image.free, fixed, MOST * nest.lanes)
