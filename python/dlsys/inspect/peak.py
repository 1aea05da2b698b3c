"""What this machine can do at most, measured: its multiply-adds and its memory's bandwidth.

A kernel's speed is read against these: the roofline of Williams, Waterman and Patterson (2009) has the first as its
ceiling and the second as its slope.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np
import tvm
from tvm import tirx
from tvm.script import tirx as T

from ..schedule.target import host_target, machine_of

FMA_STEPS = 1 << 18
FMA_SECONDS = 0.12  # for each form: the clock needs some milliseconds to reach its height
ARRAY_BYTES = 128 * 1024 * 1024  # of each of the triad's three arrays: together beyond all but a server's last cache
TRIAD_ROUNDS = 8


def fma_kernel(accumulators: int, lanes: int, threads: int, dtype: str = "float32") -> tirx.PrimFunc:
    """k(x, out): FMA_STEPS * accumulators multiply-adds of `lanes` elements on every thread.

    x: (2, lanes), out: (threads, accumulators * lanes). The accumulators start from values that differ, live
    in registers, and all reach `out`, so that the compiler can neither merge nor drop them.
    """
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


def triad_kernel(threads: int, rows: int, lanes: int) -> tirx.PrimFunc:
    """k(a, b, c): a = 0.5 * b + c in float32, all of shape (threads, rows, lanes)."""

    @T.prim_func(s_tir=True)
    def triad(a_handle: T.handle, b_handle: T.handle, c_handle: T.handle):  # type: ignore[no-untyped-def]
        T.func_attr({"global_symbol": "triad", "tirx.noalias": True})
        a = T.match_buffer(a_handle, (threads, rows, lanes), "float32")
        b = T.match_buffer(b_handle, (threads, rows, lanes), "float32")
        c = T.match_buffer(c_handle, (threads, rows, lanes), "float32")
        for thread in T.parallel(threads):
            for row in T.serial(rows):
                for lane in T.vectorized(lanes):
                    a[thread, row, lane] = T.float32(0.5) * b[thread, row, lane] + c[thread, row, lane]

    return triad


def measure_fma(threads: int, dtype: str = "float32") -> float:
    """GFLOP/s of multiply-adds, each two operations, on that many threads, which TVM's pool must have
    (`dlsys.set_num_threads`): the best of all forms and rounds, which takes about half a second.

    A form is a number of accumulators, enough to hide the latency of all pipes, and the bits of each. With AVX-512 also
    half its width is tried: some processors run that at more than half the speed.
    """
    machine, best = machine_of(host_target()), 0.0
    for bits in sorted({machine.vector_bits, min(machine.vector_bits, 256)}):
        accumulators = 24 if bits == 128 and machine.registers == 32 else 12
        lanes = bits // (8 * np.dtype(dtype).itemsize)
        kernel = _compile(fma_kernel(accumulators, lanes, threads, dtype))
        x = tvm.runtime.tensor(np.stack([np.full(lanes, 0.5, dtype), np.ones(lanes, dtype)]))
        out = tvm.runtime.empty((threads, accumulators * lanes), dtype, tvm.cpu())
        flop = 2 * FMA_STEPS * accumulators * lanes * threads
        best = max(best, flop / _best(partial(kernel, x, out), FMA_SECONDS, rounds=3) / 1e9)
    return best


fma_peak = cache(measure_fma)  # once a process


@cache
def memory_bandwidth(threads: int) -> float:
    """GB/s of STREAM's triad, a = 0.5 * b + c, on that many threads: the best of all rounds.

    Counted are the 12 bytes that an element of float32 needs, two reads and a write, as STREAM counts them; that most
    processors read `a` too before they write it is not. Measured once a process, in about half a second.
    """
    lanes = 64  # several vectors a step, on every machine
    rows = ARRAY_BYTES // (4 * lanes * threads)
    kernel = _compile(triad_kernel(threads, rows, lanes))
    arrays = [tvm.runtime.empty((threads, rows, lanes), "float32", tvm.cpu()) for _ in range(3)]
    for array in arrays:  # written, lest all its pages be one page of zeros
        np.from_dlpack(array)[...] = 1
    return 12 * threads * rows * lanes / _best(partial(kernel, *arrays), 0.0, TRIAD_ROUNDS) / 1e9


def _compile(function: tirx.PrimFunc) -> Callable[..., Any]:
    """The function's machine code for this processor."""
    return tvm.compile(function, target=host_target())[str(function.attrs["global_symbol"])]


def _best(call: Callable[[], object], seconds: float, rounds: int) -> float:
    """The least seconds of a call, among at least so many rounds and for at least so many seconds."""
    call()
    times: list[float] = []
    while len(times) < rounds or sum(times) < seconds:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)
