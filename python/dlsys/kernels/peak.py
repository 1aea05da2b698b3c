"""This machine's measured peaks: multiply-adds per second and the memory's bandwidth.

They limit a kernel's speed: the roofline of Williams, Waterman and Patterson (2009) has the first as its ceiling and
the second as its slope.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from timeit import repeat

import numpy as np
import tvm
import tvm_ffi
from tvm import tirx
from tvm.script import tirx as T

from .. import compute
from ..devices import zeros
from ..schedule.target import host_target, machine_of
from .cache import get
from .kernel import Kernel
from .spec import KernelSpec

FMA_STEPS = 1 << 18
FMA_ROUNDS = 200  # of half a millisecond, for each form: the clock needs some milliseconds to reach its height
ARRAY_BYTES = 128 * 1024 * 1024  # of each of the triad's three arrays: together beyond all but a server's last cache
TRIAD_ROUNDS = 8
NOTHING = tvm_ffi.get_global_func("testing.nop")  # a function of any arguments that does nothing: what a call costs


def fma_kernel(accumulators: int, lanes: int, threads: int, dtype: str = "float32") -> tirx.PrimFunc:
    """k(x, out): FMA_STEPS * accumulators multiply-adds of `lanes` elements on every thread. x: (2, lanes), out:
    (threads, accumulators * lanes). The accumulators differ and all reach `out`: none can be merged or dropped."""
    width = accumulators * lanes

    @T.prim_func(s_tir=True)
    def fma(x_handle: T.handle, out_handle: T.handle):  # type: ignore[no-untyped-def]  # TVM reads the annotations
        T.func_attr({"global_symbol": "fma", "tirx.noalias": True})
        x = T.match_buffer(x_handle, (2, lanes), dtype)
        out = T.match_buffer(out_handle, (threads, width), dtype)
        for thread in T.parallel(threads):
            tile = T.alloc_buffer((width,), dtype, scope="local")
            for i in T.unroll(accumulators):
                for lane in T.vectorized(lanes):
                    tile[i * lanes + lane] = T.Cast(dtype, i)
            for _ in T.serial(FMA_STEPS):
                for i in T.unroll(accumulators):
                    for lane in T.vectorized(lanes):
                        tile[i * lanes + lane] = tile[i * lanes + lane] * x[0, lane] + x[1, lane]
            for i in T.unroll(accumulators):
                for lane in T.vectorized(lanes):
                    out[thread, i * lanes + lane] = tile[i * lanes + lane]

    return fma


def triad_kernel(count: int) -> Kernel:
    """k(b, c, a): a = 0.5 * b + c in float32 for so many elements, on all threads that kernels use now."""

    def formula(b: compute.Tensor, c: compute.Tensor) -> compute.Tensor:
        return compute.add(compute.mul_by_const(b, 0.5), c)

    own = ((count,), "float32")
    return get([KernelSpec("triad", "triad", (own, own), formula, outputs=(own,))])[0]


def measure_fma(threads: int, dtype: str = "float32") -> float:
    """GFLOP/s of multiply-adds, each two operations, on that many threads, which TVM's pool must have
    (`dlsys.set_num_threads`): the best of all rounds, in half a second; of AVX-512 half its width is tried too."""
    machine, best = machine_of(host_target()), 0.0
    for bits in sorted({machine.vector_bits, min(machine.vector_bits, 256)}):
        accumulators = 24 if bits == 128 and machine.registers == 32 else 12
        lanes = bits // (8 * np.dtype(dtype).itemsize)
        kernel = tvm.compile(fma_kernel(accumulators, lanes, threads, dtype), target=host_target())["fma"]
        x = tvm.runtime.tensor(np.stack([np.full(lanes, 0.5, dtype), np.ones(lanes, dtype)]))
        out = tvm.runtime.empty((threads, accumulators * lanes), dtype, tvm.cpu())
        flop = 2 * FMA_STEPS * accumulators * lanes * threads
        best = max(best, flop / min(repeat(partial(kernel, x, out), number=1, repeat=FMA_ROUNDS)) / 1e9)
    return best


fma_peak: Callable[..., float] = cache(measure_fma)  # once a process


@cache
def memory_bandwidth(threads: int) -> float:
    """GB/s of STREAM's triad, a = 0.5 * b + c: the best of all rounds, once a process, in about half a second. Counted
    are 12 bytes an element of float32, two reads and a write. `threads`: how many kernels use now."""
    count = ARRAY_BYTES // 4
    arrays = [zeros((count,)).tensor for _ in range(3)]
    return 12 * count / min(repeat(partial(triad_kernel(count).function, *arrays), number=1, repeat=TRIAD_ROUNDS)) / 1e9
