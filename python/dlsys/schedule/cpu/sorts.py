"""Sorts (`schedule.sorts`) with vectors: rows side by side go through the network together, a lane each. Of few and
long rows each is cut into as many columns as there are lanes: these are sorted side by side, then merged, in steps that
compare lanes with each other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import tirx

from ...compute.sorting import exchanged
from ..codegen import UNROLLED, array, block_of, lanes, loop, sequence
from ..common import PARALLEL_WORK
from ..sorts import GROUP, Elements, Network, Sort, as_loops, registers, sort_of
from ..squares import SIDE, turned
from ..stages import Expr, with_nests
from ..target import Machine, Rule
from . import loops

ACROSS = 1.5  # a row's columns take so much longer than as many rows: they are merged


def schedule(func: tirx.PrimFunc, machine: Machine) -> tirx.PrimFunc | None:
    """The sort of a function that is one, of an array in memory. Declines all others."""
    if (sort := sort_of(func)) is None:
        return None
    if sort.few:
        return loops.schedule(as_loops(func, sort), machine)
    return with_nests(func, [block_of(sort.name, _Code(sort, machine).code())])


class _Code:
    """The code of a sort: groups of rows side by side, or rows one by one."""

    def __init__(self, sort: Sort, machine: Machine) -> None:
        self.sort = sort
        self.lanes: int = machine.lanes(sort.dtypes[0])
        rows, threads = sort.rows, machine.threads
        groups = -(-rows // self.lanes)
        together, alone = -(-groups // threads), -(-rows // threads)
        long = sort.extent >= self.lanes << GROUP
        self.across: bool = long and alone * ACROSS < together * self.lanes
        length = -(-sort.extent // self.lanes) if self.across else sort.extent  # of a column
        self.size: int = 1 << max(GROUP, (length - 1).bit_length())
        arrays, whole = [array((self.size, self.lanes), w, "columns") for w in sort.dtypes], tirx.Ramp(0, 1, self.lanes)
        self.columns = Elements(arrays, lambda i: [i, whole])
        element = len(sort.dtypes) * machine.vector_bits // 8  # bytes of one of each column
        near = self.size if 2 * self.size * element <= machine.l2 else machine.l1 // element  # less code, if not far
        self.block: int = near.bit_length() - 1
        self.network: Network = self._of(length)

    def _of(self, length: int) -> Network:
        """The network for columns of a length."""
        return Network(self.columns, length, self.lanes, self.block)

    def code(self) -> tirx.Stmt:
        """The loop over groups of rows, or rows."""
        rows = self.sort.rows
        groups = rows if self.across else -(-rows // self.lanes)
        parallel = rows * self.sort.extent * GROUP >= PARALLEL_WORK
        return loop(groups, self._across if self.across else self._together, parallel=bool(parallel))

    def _put(
        self, key: Callable[[Expr], Expr], place: Callable[[Expr], Expr], at: Callable[[Expr], list[Expr]], width: int
    ) -> tirx.Stmt:
        """The store of the words of `width` elements in neighbouring lanes."""

        def word(number: int, words: Any) -> tirx.Stmt:
            own = lambda lane: self.sort.words(key(lane), place(lane))[number]  # noqa: E731
            return lanes(width, lambda lane: tirx.BufferStore(words, own(lane), at(lane)))

        return sequence([word(*one) for one in enumerate(self.columns.arrays)])

    def _filled(self, first: int) -> list[tirx.Stmt]:
        """Stores the words that come behind all elements, in the columns from element `first` on."""
        return self.columns.filled(first, self.size, [tirx.Broadcast(word, self.lanes) for word in self.sort.last])

    # Rows side by side

    def _together(self, group: Expr) -> tirx.Stmt:
        """Some rows."""
        sort, first = self.sort, group * self.lanes
        rows = tirx.IntImm("int32", sort.rows)
        ragged = sort.rows % self.lanes != 0
        row = lambda lane: tirx.min(first + lane, rows - 1) if ragged else first + lane  # noqa: E731
        high = min(SIDE, self.lanes)

        def given(lane: Expr, start: Expr, width: int) -> tirx.Stmt:
            key = lambda r, c: sort.key(row(lane + r), start + c)  # noqa: E731
            made, element = turned(key, high, width, sort.key_dtype, "int32")

            def column(c: Expr) -> tirx.Stmt:
                i = start + c
                return self._put(lambda r: element(r, c), lambda r: i, lambda r: [i, lane + r], high)

            return sequence([made, loop(width, column, kind=UNROLLED)])

        def stored(lane: Expr, start: Expr, width: int) -> tirx.Stmt:
            made, element = self._results(start, width, lane, high)

            def one(c: Expr) -> tirx.Stmt:
                to = first + lane + c
                line = lanes(width, lambda r: sort.store(to, start + r, element(r, c)))
                return tirx.IfThenElse(to < rows, line, None) if ragged else line

            return sequence([made, loop(high, one, kind=UNROLLED)])

        def squares(extent: int, body: Callable[[Expr, Expr, int], tirx.Stmt]) -> tirx.Stmt:
            width = min(extent, SIDE)
            start = lambda i: tirx.min(i * SIDE, extent - width)  # noqa: E731 - the last goes over some elements again
            parts = lambda i: loop(self.lanes // high, lambda n: body(n * high, start(i), width))  # noqa: E731
            return loop(-(-extent // SIDE), parts)

        def plain(i: Expr) -> tirx.Stmt:
            return self._put(lambda r: sort.key(row(r), i), lambda r: i, lambda r: [i, r], self.lanes)

        def out(i: Expr) -> tirx.Stmt:
            store = lambda r: sort.store(first + r, i, self._result(i, r))  # noqa: E731
            if not ragged:
                return lanes(self.lanes, store)
            return loop(self.lanes, lambda r: tirx.IfThenElse(first + r < rows, store(r), None))

        apart = sort.inner == 1  # else rows are side by side in memory too
        before = squares(sort.extent, given) if apart else loop(sort.extent, plain)
        after = squares(sort.count, stored) if apart else loop(sort.count, out)
        return sequence([*self.columns.made, before, *self._filled(sort.extent), *self.network.sorted(), after])

    def _result(self, i: Expr, lane: Expr) -> Expr:
        """The result of an element of a column."""
        return self.sort.result(tirx.BufferLoad(self.columns.arrays[-1], [i, lane]))

    def _results(
        self, start: Expr, height: int, lane: Expr, width: int
    ) -> tuple[tirx.Stmt, Callable[[Expr, Expr], Expr]]:
        """The results of some elements of some columns, transposed, see `turned`."""
        return turned(lambda r, c: self._result(start + r, lane + c), height, width, self.sort.dtype, "int32")

    # Columns of a row

    def _across(self, row: Expr) -> tirx.Stmt:
        """One row: element i is in lane i % lanes; once sorted, the first column has the first elements."""
        width, network = self.lanes, self._of(self.size)
        whole, rest = divmod(int(self.sort.extent), width)

        def given(j: Expr, some: int) -> tirx.Stmt:
            place = lambda lane: j * width + lane  # noqa: E731
            return self._put(lambda lane: self.sort.key(row, place(lane)), place, lambda lane: [j, lane], some)

        def merge(number: Expr) -> tirx.Stmt:
            *others, (_, first) = [(i, self._between(2 << i)) for i in range(width.bit_length() - 1)]
            for i, one in others[::-1]:
                first = tirx.IfThenElse(number == i, one, first)
            return sequence([first, *network.merged(tirx.const(network.steps, "int32"))])

        before = [*self._filled(whole), loop(whole, lambda j: given(j, width))]
        before += [given(tirx.const(whole, "int32"), rest)] if rest else []
        merges = loop(width.bit_length() - 1, merge)
        return sequence([*self.columns.made, *before, *self.network.sorted(), merges, self._out(row)])

    def _between(self, columns: int) -> tirx.Stmt:
        """The steps of a merge that compare lanes: of two runs of `columns / 2` columns each, elements at the same
        distance from both ends, then those some columns apart."""
        width, half = self.lanes, columns // 2
        held = registers(self.sort.dtypes, 4, width)
        every = range(width)

        def picked(number: int, source: Callable[[int], int], bit: int, others: bool = False) -> tirx.Stmt:
            """An element of which each lane is one of the lesser ones, in register 2, or of those in 3: these where the
            number of the lane that it comes from has a bit, or has it not."""
            places = [source(lane) + width * (bool(source(lane) & bit) != others) for lane in every]
            return held.put(number, [tirx.Shuffle(list(both), places) for both in zip(held[2], held[3], strict=True)])

        def compared(a: Sequence[Expr], b: Sequence[Expr]) -> list[tirx.Stmt]:
            return [held.put(2 + i, words) for i, words in enumerate(exchanged(a, b))]

        def moved(words: Sequence[Expr], distance: int) -> list[Expr]:
            return [tirx.Shuffle([word], [lane ^ distance for lane in every]) for word in words]

        def pair(j: Expr) -> tirx.Stmt:
            end, turn, apart = self.size - 1 - j, columns - 1, half
            code = [*held.made, held.put(0, self.columns[j]), held.put(1, moved(self.columns[end], turn))]
            code += compared(held[0], held[1])
            code += [picked(0, lambda lane: lane, half), picked(1, lambda lane: lane ^ turn, half, others=True)]
            while apart := apart // 2:
                for number in (0, 1):
                    code += compared(held[number], moved(held[number], apart))
                    code.append(picked(number, lambda lane: lane, apart))
            return sequence([*code, self.columns.put(j, held[0]), self.columns.put(end, held[1])])

        return loop(self.size // 2, pair)

    def _out(self, row: Expr) -> tirx.Stmt:
        """The stores of the row, column after column."""
        height, width = min(SIDE, self.size), min(SIDE, self.lanes)

        def square(start: Expr, first: int) -> tirx.Stmt:
            made, element = self._results(start, height, tirx.const(first, "int32"), width)

            def column(c: int) -> tirx.Stmt:
                begin = (first + c) * self.size + start
                store = lambda r: self.sort.store(row, begin + r, element(r, c))  # noqa: E731
                if (first + c + 1) * self.size <= self.sort.count:
                    return lanes(height, store)
                return loop(height, lambda r: tirx.IfThenElse(begin + r < self.sort.count, store(r), None))

            columns = [c for c in range(width) if (first + c) * self.size < self.sort.count]
            return sequence([made, *map(column, columns)]) if columns else tirx.Evaluate(0)

        squares = lambda i: sequence([square(i * height, first) for first in range(0, self.lanes, width)])  # noqa: E731
        return loop(self.size // height, squares)


RULE = Rule("sorts", "llvm", schedule, sums=False)
