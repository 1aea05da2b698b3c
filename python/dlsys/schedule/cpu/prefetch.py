"""Memory fetched ahead of its use, where the processor does not foresee it: a tile's rows, which lie apart, the next
panel of weights (`tile_code`), rows that elements are picked of (`next_row`), the row behind one that is passed over
several times (`lines`), and the lines that a tile is stored to (`to_store`: a product of 64 x 27 and 27 x 12,321
matrices took 420 us, not 600 to 800). Beyond the end of an array a fetch is harmless, since it never faults.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm_ffi
from tvm import DataType, ir, tirx

from ..codegen import VectorCode
from ..common import found_in, nbytes_of, renamed, rewritten, strides_of
from ..stages import Stage, loads_of
from ..target import Machine

_NAME = "llvm.prefetch"
_FETCH = tirx.call_llvm_intrin("void", _NAME, 0, 0, 0, 0)


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


def of(value: Any, offset: Any = 0) -> tirx.Stmt:
    """The fetch of the line that an expression loads from first, or of one so many elements behind."""
    first = loads_of([value])[0]
    *lead, last = first.indices
    return _fetch(first.source, [*lead, last + offset])


def to_store(store: tirx.BufferStore) -> tirx.Stmt:
    """The fetch of the line that is stored to."""
    return _fetch(store.buffer, store.indices, to_write=1)


def _is_fetch(statement: tirx.Evaluate) -> bool:
    call = statement.value
    return isinstance(call, ir.Call) and call.op.name == _FETCH.op.name and call.args[0] == _FETCH.args[0]


def is_in(code: Any) -> bool:
    """Whether code fetches anything ahead."""
    return any(map(_is_fetch, found_in(code, tirx.Evaluate)))


def without(code: Any) -> Any:
    """The code without its fetches, to show what they save."""
    return rewritten(code, {tirx.Evaluate: lambda one: tirx.Evaluate(0) if _is_fetch(one) else one})


def _fetch(buffer: Any, indices: Any, to_write: int = 0) -> tirx.Stmt:
    """The fetch of the line of an element."""
    at = tirx.address_of(buffer[tuple(indices)])
    into_l2, data = 2, 1  # as LLVM has it; into L1 was 4 % slower, where the panel of B lies
    numbers = [tirx.IntImm("int32", number) for number in (to_write, into_l2, data)]
    return tirx.Evaluate(tirx.call_llvm_intrin("void", _NAME, at, *numbers))
