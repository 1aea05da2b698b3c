"""Memory fetched ahead of its use, where the processor does not foresee it: rows that elements are picked of
(`next_row`), the row behind one that is passed over several times (`lines`), and rows of a product's first operand
(`tile`). Beyond the end of an array a fetch is harmless, since it never faults.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm_ffi
from tvm import DataType, tirx

from ..codegen import VectorCode
from ..common import nbytes_of, renamed, strides_of
from ..stages import Stage, loads_of
from ..target import Machine


def next_row(stage: Stage, row: Sequence[Any], machine: Machine) -> list[tirx.Stmt]:
    """The fetches of the row behind the one of which the stage picks elements, where most of its lines are read."""
    *rows, last = stage.iters
    for load in stage.loads():
        shape, step = list(map(int, load.source.shape)), line(load.source, machine)
        own = len(shape) == len(rows) + 1 and all(i.same_as(v.var) for i, v in zip(load.indices, rows, strict=False))
        many = int(last.dom.extent) * step >= shape[-1] and is_far(load.source, machine)
        if own and many and strides_of(stage.block, load.source, load.indices) is None:
            at = tirx.Var("line", "int32")
            fetch = _fetch(load.source, [*row, shape[-1] + at * step])
            return [tirx.For(at, 0, -(-shape[-1] // step), tirx.ForKind.SERIAL, fetch)]
    return []


def lines(buffer: Any, indices: Sequence[Any], vector: VectorCode, machine: Machine) -> list[tirx.Stmt]:
    """The fetches of the lines of a vector's lanes."""
    lanes = (tirx.IntImm("int32", at) for at in range(0, vector.width, line(buffer, machine)))
    return [_fetch(buffer, renamed(tvm_ffi.convert(list(indices)), {vector.lane: at})) for at in lanes]


def line(buffer: Any, machine: Machine) -> int:
    """Elements of an array's cache line."""
    return machine.line * 8 // max(DataType(str(buffer.dtype)).bits, 8)


def is_far(buffer: Any, machine: Machine) -> bool:
    """Whether an array fills L2."""
    return nbytes_of(buffer) >= machine.l2


def of(value: Any) -> tirx.Stmt:
    """The fetch of the line that an expression loads from first."""
    first = loads_of([value])[0]
    return _fetch(first.source, first.indices)


def _fetch(buffer: Any, indices: Any) -> tirx.Stmt:
    """The fetch of the line of an element, to be read."""
    at = tirx.address_of(buffer[tuple(indices)])
    to_read, into_l2, data = (tirx.IntImm("int32", number) for number in (0, 2, 1))  # as LLVM numbers them
    return tirx.Evaluate(tirx.call_llvm_intrin("void", "llvm.prefetch", at, to_read, into_l2, data))
