"""Code of a GPU's threads, and the loops that give it to them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import ir, tirx

from ...compute.loops import ravelled
from ...devices import VECTOR
from ...devices.machine import WARP as WARP  # for the rules too
from ..codegen import UNROLLED, VECTORIZED, VectorCode, block_of, loop, sequence
from ..common import renamed
from ..stages import Expr, Stage

BLOCK = 256  # threads of a block: eight warps, and several blocks to a multiprocessor
Combine = Callable[[Expr, Expr], Expr]
Part = tuple[int, int, Callable[[Expr], tirx.Stmt]]
"""How many indices there are, how many neighbours of them a thread takes, and its code for these, by the first."""
_ALL_LANES = tirx.const(0xFFFFFFFF, "uint32")


class ThreadCode(VectorCode):
    """The code of one thread, for some neighbouring indices at once. Values lie in registers: arrays whose loops are
    unrolled. What lies side by side in memory, from a multiple of its size on, is loaded and stored as one vector."""

    scope = "local"

    def loop(self) -> tirx.Stmt:
        """The code, statement by statement over the lanes."""
        return sequence([*self._allocated, *map(self._over_lanes, [*self._computed, *self._stores])])

    def _over_lanes(self, store: tirx.BufferStore) -> tirx.Stmt:
        """The store for each element of the thread's vector: one vector instruction for a copy, else unrolled."""
        moves = isinstance(store.value, ir.TensorLoad) and self.is_vector(store.buffer, store.indices)
        moves = moves and self.is_vector(store.value.source, store.value.indices)
        kind = VECTORIZED if moves else UNROLLED
        return loop(self.width, lambda lane: renamed(store, {self.lane: lane}), kind=kind, name="lane")

    def is_vector(self, buffer: ir.Var, indices: Sequence[Expr]) -> bool:
        """Whether the lanes lie side by side, from a multiple of their size on."""
        if str(buffer.dtype) == "bool" or buffer in self._own:
            return str(buffer.dtype) != "bool"
        place = ravelled(indices, buffer.shape)
        first = renamed(place, {self.lane: tirx.const(0, "int32")})
        return self.equal(place, first + self.lane) and self.equal(tirx.floormod(first, self.width), 0)


def lanes(stages: Iterable[Stage]) -> int:
    """Elements that a thread takes at once: vectors of the widest dtype that stages read or store."""
    arrays = [array for stage in stages for array in (stage.buffer, *(load.source for load in stage.loads()))]
    return max(1, VECTOR * 8 // max(32, *(tvm.DataType(str(array.dtype)).bits for array in arrays)))


def launch(name: str, grid: Sequence[tuple[Expr, int]], block: Sequence[tuple[Expr, int]], body: Any) -> Any:
    """One launch: the body for each index of the grid's blocks and of a block's threads, x first; `axis` makes them."""
    for kind, axes in (("threadIdx", block), ("blockIdx", grid)):
        for letter, (variable, extent) in zip("xyz", axes, strict=False):
            if isinstance(variable, tirx.IntImm):
                continue
            tag = f"{kind}.{letter}"
            bound = tirx.IterVar(None, tirx.Var(tag, "int32"), tirx.IterVar.ThreadIndex, tag)
            body = tirx.For(variable, 0, extent, tirx.ForKind.THREAD_BINDING, body, bound)
    return block_of(name, body)


def launch_over(name: str, parts: Sequence[Part]) -> tirx.Stmt:
    """One launch of parts that have nothing to do with each other, each by blocks of its own."""
    block, thread, ends, bodies = index("block"), index("thread"), [0], list[tirx.Stmt]()
    threads = min(BLOCK, max(ceil_div(total, width) for total, width, _ in parts))
    for total, width, code in parts:
        first = ((block - ends[-1]) * threads + thread) * width
        bodies.append(guarded([first < total] if total % (threads * width) else [], code(first)))
        ends.append(ends[-1] + ceil_div(total, width * threads))
    return launch(name, [(block, ends[-1])], [(thread, threads)], _chosen(block, ends[1:], bodies))


def _chosen(block: tirx.Var, ends: Sequence[int], bodies: Sequence[tirx.Stmt]) -> tirx.Stmt:
    """The body of the part to which a block belongs, the first whose end is beyond it: found by halves."""
    if len(bodies) == 1:
        return bodies[0]
    half = len(bodies) // 2
    first, last = _chosen(block, ends[:half], bodies[:half]), _chosen(block, ends[half:], bodies[half:])
    return tirx.IfThenElse(block < ends[half - 1], first, last)


def is_bound(func: tirx.PrimFunc) -> bool:
    """Whether threads make all stores of a function: of others TVM makes code for the CPU, which ends the process when
    it touches the GPU's memory."""
    alone = list[tirx.BufferStore]()

    def loop(item: tirx.For, visitor: Any) -> None:
        if item.kind != tirx.ForKind.THREAD_BINDING:
            visitor.default_visit(item)

    tvm_ffi.structural_visit(func.body, [(tirx.For, loop), (tirx.BufferStore, lambda item, _: alone.append(item))])
    return not alone


def index(name: str) -> tirx.Var:
    """A variable for an index."""
    return tirx.Var(name, "int32")


def axis(name: str, extent: int) -> Expr:
    """A variable for the index along an axis of a launch; 0 where there is but one."""
    return index(name) if extent > 1 else tirx.const(0, "int32")


def local(dtype: str, value: Expr, width: int = 1) -> tuple[tirx.Var, list[tirx.Stmt]]:
    """A thread's own array, and what makes it and fills it with a value."""
    buffer = tirx.decl_buffer((width,), dtype, "own", scope="local")
    filling = loop(width, lambda i: tirx.BufferStore(buffer, value, [i]), kind=UNROLLED, name="lane")
    return buffer, [tirx.AllocBuffer(buffer), filling]


def unrolled(variable: tirx.Var, extent: int, body: tirx.Stmt) -> tirx.Stmt:
    """A loop that CUDA's compiler unrolls."""
    return tirx.For(variable, 0, extent, tirx.ForKind.UNROLLED, body, None, {"pragma_unroll_explicit": False})


def shared(shape: Sequence[int], dtype: str, name: str) -> tirx.Var:
    """An array that the threads of a block share."""
    return tirx.decl_buffer(shape, dtype, name, scope="shared")


def barrier() -> tirx.Stmt:
    """Waits for all threads of the block, and makes what they stored visible to each other."""
    return tirx.Evaluate(tirx.call_intrin("void", "tirx.tvm_storage_sync", "shared"))


def folded(values: list[Expr], combine: Combine) -> Expr:
    """Values combined by pairs; a power of two of them."""
    while len(values) > 1:
        values = [combine(a, b) for a, b in zip(values[::2], values[1::2], strict=True)]
    return values[0]


def all_of(sums: tirx.Var, combine: Combine, thread: Expr, threads: int) -> tuple[tirx.Var, list[tirx.Stmt]]:
    """An array of one element, and what combines in it all of a thread's `sums`, with those of the other threads of its
    warp or block where `threads` is more than one: each of them has the result."""
    dtype, distance, found = str(sums.dtype), min(threads, WARP), list[tirx.Stmt]()
    value, made = local(dtype, folded([tirx.BufferLoad(sums, [i]) for i in range(int(sums.shape[0]))], combine))
    own = tirx.BufferLoad(value, [0])
    while distance > 1:
        distance //= 2
        other = tirx.call_extern(dtype, "__shfl_xor_sync", _ALL_LANES, own, distance)
        taken, more = local(dtype, other)
        found += [*more, tirx.BufferStore(value, combine(own, tirx.BufferLoad(taken, [0])), [0])]
    if threads <= WARP:
        return value, made + found
    every = shared((threads // WARP,), dtype, "every_warp")
    storing = tirx.BufferStore(every, own, [tirx.floordiv(thread, WARP)])
    first = tirx.IfThenElse(tirx.floormod(thread, WARP) == 0, storing, None)
    values = [tirx.BufferLoad(every, [i]) for i in range(threads // WARP)]
    last = tirx.BufferStore(value, folded(values, combine), [0])
    return value, [*made, tirx.AllocBuffer(every), *found, first, barrier(), last]


def guarded(guards: Sequence[Expr], body: tirx.Stmt) -> tirx.Stmt:
    """The body where all guards hold, asked in turn."""
    for guard in reversed(guards):
        body = tirx.IfThenElse(guard, body, None)
    return body


def ceil_div(a: int, b: int) -> int:
    """The quotient, rounded up."""
    return -(-a // b)
