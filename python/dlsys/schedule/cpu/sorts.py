"""Sorts (`compute.sorting`) with vectors: rows side by side go through the network together, a lane each. Of few and
long rows each is cut into as many columns as there are lanes: these are sorted side by side, then merged, in steps that
compare lanes with each other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import s_tir, tirx

from ...compute.sorting import GROUP, SORT, Network, Order, Registers, exchanged
from .. import common
from ..codegen import UNROLLED, array, block_of, lanes, loop, sequence
from ..common import PARALLEL_WORK
from ..squares import SIDE, turned
from ..stages import Expr, with_nests
from ..target import Machine, Rule
from ..varying import Varying, bound, extent_of, for_threads, usual

ACROSS = 1.5  # a row's columns take so much longer than as many rows: they are merged


def schedule(func: tirx.PrimFunc, machine: Machine) -> tirx.PrimFunc | None:
    """The sort of a function that is one, of an array in memory. Declines all others."""
    block = next((one for one in common.found_in(func.body, s_tir.SBlock) if SORT in one.annotations), None)
    if block is None or len(func.params) != 2:
        return None
    x, out = func.params
    told = block.annotations[SORT]
    options = int(told["axis"]), bool(told["descending"]), bool(told["places"])
    order = Order(tuple(map(extent_of, x.shape)), str(x.dtype), *options)
    code = _Sort(order, x, out, machine).code()
    return with_nests(func, [block_of(block.name_hint, code)])


class _Sort:
    """The code of a sort: groups of rows side by side, or rows one by one."""

    def __init__(self, order: Order, x: Any, out: Any, machine: Machine) -> None:
        self.order, self.x, self.out = order, x, out
        self.count = int(out.shape[order.axis])
        self.lanes: int = machine.lanes(order.words[0])
        rows, threads = usual(order.rows), machine.threads
        groups = -(-rows // self.lanes)
        together, alone = -(-groups // threads), -(-rows // threads)
        long = order.extent >= self.lanes << GROUP
        self.across: bool = long and alone * ACROSS < together * self.lanes
        length = -(-order.extent // self.lanes) if self.across else order.extent  # of a column
        self.size: int = 1 << max(GROUP, (length - 1).bit_length())
        self.arrays = [array((self.size, self.lanes), word, "columns") for word in order.words]
        element = len(order.words) * machine.vector_bits // 8  # bytes of one of each column
        near = self.size if 2 * self.size * element <= machine.l2 else machine.l1 // element  # less code, if not far
        self.block: int = near.bit_length() - 1
        self.network: Network = self._of(length)

    def _of(self, length: int) -> Network:
        """The network for columns of a length."""
        whole = tirx.Ramp(0, 1, self.lanes)
        return Network(self.arrays, lambda i: [i, whole], length, self.lanes, self.block)

    def code(self) -> tirx.Stmt:
        """The loop over groups of rows, or rows."""
        rows = self.order.rows
        groups = rows if self.across else -(-rows // self.lanes)
        parallel = for_threads(rows * self.order.extent) * GROUP >= PARALLEL_WORK
        return loop(groups, self._across if self.across else self._together, parallel=bool(parallel))

    def _key(self, row: Expr, i: Expr) -> Expr:
        return self.order.key(tirx.BufferLoad(self.x, self.order.at(row, i)))

    def _put(
        self, key: Callable[[Expr], Expr], place: Callable[[Expr], Expr], at: Callable[[Expr], list[Expr]], width: int
    ) -> tirx.Stmt:
        """The store of the words of `width` elements in neighbouring lanes."""

        def word(number: int) -> tirx.Stmt:
            words = lambda lane: self.order.packed(key(lane), place(lane))  # noqa: E731
            return lanes(width, lambda lane: tirx.BufferStore(self.arrays[number], words(lane)[number], at(lane)))

        return sequence([word(number) for number in range(len(self.arrays))])

    def _filled(self, first: int) -> list[tirx.Stmt]:
        """Stores the words that come behind all elements, in the columns from element `first` on."""
        last = [tirx.Broadcast(word, self.lanes) for word in self.order.last()]
        return [loop(self.size - first, lambda i: self.network.put(first + i, last))] if first < self.size else []

    # Rows side by side

    def _together(self, group: Expr) -> tirx.Stmt:
        """Some rows."""
        order, first = self.order, group * self.lanes
        rows = bound(order.rows, "int32")
        ragged = isinstance(order.rows % self.lanes, Varying) or order.rows % self.lanes != 0
        row = lambda lane: tirx.min(first + lane, rows - 1) if ragged else first + lane  # noqa: E731
        high = min(SIDE, self.lanes)

        def given(lane: Expr, start: Expr, width: int) -> tirx.Stmt:
            key = lambda r, c: self._key(row(lane + r), start + c)  # noqa: E731
            made, element = turned(key, high, width, order.integer, "int32")

            def column(c: Expr) -> tirx.Stmt:
                i = start + c
                return self._put(lambda r: element(r, c), lambda r: i, lambda r: [i, lane + r], high)

            return sequence([made, loop(width, column, kind=UNROLLED)])

        def stored(lane: Expr, start: Expr, width: int) -> tirx.Stmt:
            made, element = self._results(start, width, lane, high)

            def one(c: Expr) -> tirx.Stmt:
                to = first + lane + c
                line = lanes(width, lambda r: tirx.BufferStore(self.out, element(r, c), order.at(to, start + r)))
                return tirx.IfThenElse(to < rows, line, None) if ragged else line

            return sequence([made, loop(high, one, kind=UNROLLED)])

        def squares(extent: int, body: Callable[[Expr, Expr, int], tirx.Stmt]) -> tirx.Stmt:
            def parts(start: Expr, width: int) -> tirx.Stmt:
                return loop(self.lanes // high, lambda n: body(n * high, start, width))

            if extent <= SIDE:
                return parts(tirx.const(0, "int32"), extent)
            steps = -(-extent // SIDE)  # the last one begins earlier, and goes over some elements again
            return loop(steps, lambda i: parts(tirx.min(i * SIDE, extent - SIDE), SIDE))

        def plain(i: Expr) -> tirx.Stmt:
            return self._put(lambda r: self._key(row(r), i), lambda r: i, lambda r: [i, r], self.lanes)

        def out(i: Expr) -> tirx.Stmt:
            value = lambda r: order.result([tirx.BufferLoad(own, [i, r]) for own in self.arrays])  # noqa: E731
            store = lambda r: tirx.BufferStore(self.out, value(r), order.at(first + r, i))  # noqa: E731
            if not ragged:
                return lanes(self.lanes, store)
            return loop(self.lanes, lambda r: tirx.IfThenElse(first + r < rows, store(r), None))

        apart = order.inner == 1  # else rows are side by side in memory too
        before = squares(order.extent, given) if apart else loop(order.extent, plain)
        after = squares(self.count, stored) if apart else loop(self.count, out)
        own = map(tirx.AllocBuffer, self.arrays)
        return sequence([*own, before, *self._filled(order.extent), *self.network.sorted(), after])

    def _results(
        self, start: Expr, height: int, lane: Expr, width: int
    ) -> tuple[tirx.Stmt, Callable[[Expr, Expr], Expr]]:
        """The results of some elements of some columns, transposed, see `turned`."""
        read = lambda r, c: [tirx.BufferLoad(own, [start + r, lane + c]) for own in self.arrays]  # noqa: E731
        return turned(lambda r, c: self.order.result(read(r, c)), height, width, self.order.output, "int32")

    # Columns of a row

    def _across(self, row: Expr) -> tirx.Stmt:
        """One row: element i is in lane i % lanes; once sorted, the first column has the first elements."""
        width, network = self.lanes, self._of(self.size)
        whole, rest = divmod(int(self.order.extent), width)

        def given(j: Expr, some: int) -> tirx.Stmt:
            place = lambda lane: j * width + lane  # noqa: E731
            return self._put(lambda lane: self._key(row, place(lane)), place, lambda lane: [j, lane], some)

        def merge(number: Expr) -> tirx.Stmt:
            *others, (_, first) = [(i, self._between(2 << i)) for i in range(width.bit_length() - 1)]
            for i, one in others[::-1]:
                first = tirx.IfThenElse(number == i, one, first)
            return sequence([first, *network.merged(tirx.const(network.steps, "int32"))])

        before = [*self._filled(whole), loop(whole, lambda j: given(j, width))]
        before += [given(tirx.const(whole, "int32"), rest)] if rest else []
        merges = loop(width.bit_length() - 1, merge)
        arrays = map(tirx.AllocBuffer, self.arrays)
        return sequence([*arrays, *before, *self.network.sorted(), merges, self._out(row)])

    def _between(self, columns: int) -> tirx.Stmt:
        """The steps of a merge that compare lanes: of two runs of `columns / 2` columns each, elements at the same
        distance from both ends, then those some columns apart."""
        width, half = self.lanes, columns // 2
        held = Registers(self.order.words, width, 4)
        every = range(width)

        def picked(
            number: int, source: Callable[[int], int], bit: int, others: bool = False
        ) -> list[tirx.Stmt]:
            """An element of which each lane is one of the lesser ones, in register 2, or of those in 3: these where the
            number of the lane that it comes from has a bit, or has it not."""
            places = [source(lane) + width * (bool(source(lane) & bit) != others) for lane in every]
            return held.put(number, [tirx.Shuffle(list(both), places) for both in zip(held[2], held[3], strict=True)])

        def compared(a: Sequence[Expr], b: Sequence[Expr]) -> list[tirx.Stmt]:
            less, more = exchanged(a, b)
            return [*held.put(2, less), *held.put(3, more)]

        def moved(words: Sequence[Expr], distance: int) -> list[Expr]:
            return [tirx.Shuffle([word], [lane ^ distance for lane in every]) for word in words]

        def pair(j: Expr) -> tirx.Stmt:
            end, turn, apart = self.size - 1 - j, columns - 1, half
            code = [*held.made, *held.put(0, self.network.get(j)), *held.put(1, moved(self.network.get(end), turn))]
            code += compared(held[0], held[1])
            code += picked(0, lambda lane: lane, half)
            code += picked(1, lambda lane: lane ^ turn, half, others=True)
            while apart := apart // 2:
                for number in (0, 1):
                    code += [*compared(held[number], moved(held[number], apart))]
                    code += picked(number, lambda lane: lane, apart)
            return sequence([*code, self.network.put(j, held[0]), self.network.put(end, held[1])])

        return loop(self.size // 2, pair)

    def _out(self, row: Expr) -> tirx.Stmt:
        """The stores of the row, column after column."""
        height, width = min(SIDE, self.size), min(SIDE, self.lanes)

        def square(start: Expr, first: int) -> tirx.Stmt:
            made, element = self._results(start, height, tirx.const(first, "int32"), width)

            def column(c: int) -> tirx.Stmt:
                begin = (first + c) * self.size + start
                store = lambda r: tirx.BufferStore(self.out, element(r, c), self.order.at(row, begin + r))  # noqa: E731
                if (first + c + 1) * self.size <= self.count:
                    return lanes(height, store)
                return loop(height, lambda r: tirx.IfThenElse(begin + r < self.count, store(r), None))

            columns = [c for c in range(width) if (first + c) * self.size < self.count]
            return sequence([made, *map(column, columns)]) if columns else tirx.Evaluate(0)

        squares = lambda i: sequence([square(i * height, first) for first in range(0, self.lanes, width)])  # noqa: E731
        return loop(self.size // height, squares)


RULE = Rule("sorts", "llvm", schedule, sums=False)
