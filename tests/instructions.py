"""What a declared instruction computes: its lowering, compiled and run, beside its behaviour, in NumPy. That of a GPU
runs on the emulated device, in a process of its own: `python -m instructions NAME`.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

if __name__ == "__main__":
    import cuda_on_cpu

    cuda_on_cpu.install()  # before anything imports TVM

import tvm
from dlsys.schedule import machine_code, resolve_target
from dlsys.schedule.codegen import array, sequence
from dlsys.schedule.cuda.threads import WARP, index, launch
from dlsys.schedule.intrinsics import DECLARED, Intrinsic
from tvm import s_tir, tirx


def drawn(rng: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    """Values of all of a dtype, the limits often."""
    if dtype.startswith("float"):
        return rng.standard_normal(shape).astype(dtype)
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    if dtype == "int16":  # as bytes are converted to
        low, high = -128, 255
    values = rng.integers(low, high + 1, shape)
    values = np.where(rng.random(shape) < 0.2, low, np.where(rng.random(shape) < 0.2, high, values))
    return values.astype(dtype)


def of_lanes(intrinsic: Intrinsic, lanes: int) -> tuple[np.ndarray, np.ndarray]:
    """What the lowering for so many lanes of a CPU's vector gives, and the behaviour."""
    total, a, b, out = (array((lanes,), "int32", name) for name in ("total", "a", "b", "out"))
    at = tirx.Ramp(0, 1, lanes) if lanes > 1 else tirx.IntImm("int32", 0)
    read = (tirx.BufferLoad(buffer, [at]) for buffer in (total, a, b))
    store = tirx.BufferStore(out, intrinsic.lowered(lanes, *read), [at])
    block = s_tir.SBlockRealize([], True, s_tir.SBlock([], [], [], "root", store))
    function = tirx.PrimFunc([total, a, b, out], block).with_attr("global_symbol", "step")
    rng = np.random.default_rng(0)
    groups = [drawn(rng, dtype, (lanes, intrinsic.terms)) for dtype in (intrinsic.a, intrinsic.b)]
    start = rng.integers(-(2**20), 2**20, lanes).astype("int32")
    words = [group.view("int32").reshape(lanes) for group in groups]
    found = run(function, "llvm", start, *words, np.zeros(lanes, "int32"))
    expected = intrinsic.behaviour(start[:, None, None], groups[0][:, None, :], groups[1][:, :, None])
    return found, expected[:, 0, 0]


def of_warp(intrinsic: Intrinsic) -> tuple[np.ndarray, np.ndarray]:
    """What a warp's lowering gives on a GPU, each lane holding what the layout says; and the behaviour."""
    assert intrinsic.warp is not None
    (m, n, words), terms, warp = intrinsic.piece, intrinsic.terms, intrinsic.warp
    shapes = {"total": (m, n), "a": (m, words * terms), "b": (words * terms, n), "out": (m, n)}
    total, a, b, out = (array(shape, intrinsic.total, name) for name, shape in shapes.items())
    own = [
        tirx.decl_buffer((len(places),), "float32", name, scope="local")
        for places, name in ((warp.total, "total_own"), (warp.a, "a_own"), (warp.b, "b_own"))
    ]
    thread = index("thread")
    g, t = tirx.floordiv(thread, 4), tirx.floormod(thread, 4)
    body: list[Any] = [*map(tirx.AllocBuffer, own)]
    for number, (row, column) in enumerate(warp.total):
        body.append(tirx.BufferStore(own[0], tirx.BufferLoad(total, [g + row, 2 * t + column]), [number]))
    for number, (row, word) in enumerate(warp.a):
        elements = [tirx.BufferLoad(a, [g + row, (t + word) * terms + i]) for i in range(terms)]
        body.append(tirx.BufferStore(own[1], warp.word(*elements), [number]))
    for number, (column, word) in enumerate(warp.b):
        elements = [tirx.BufferLoad(b, [(t + word) * terms + i, g + column]) for i in range(terms)]
        body.append(tirx.BufferStore(own[2], warp.word(*elements), [number]))
    pointers = [tirx.address_of(tirx.BufferLoad(buffer, [0])) for buffer in own]
    body.append(tirx.Evaluate(intrinsic.lowering(WARP, *pointers)))
    for number, (row, column) in enumerate(warp.total):
        body.append(tirx.BufferStore(out, tirx.BufferLoad(own[0], [number]), [g + row, 2 * t + column]))
    block = index("block")
    nest = launch("step", [(block, 1)], [(thread, WARP)], sequence(body))
    root = s_tir.SBlockRealize([], True, s_tir.SBlock([], [], [], "root", nest))
    function = tirx.PrimFunc([total, a, b, out], root).with_attr("global_symbol", "step")
    rng = np.random.default_rng(0)
    dtypes = intrinsic.total, *intrinsic.takes
    arrays = [drawn(rng, dtype, shape) for dtype, shape in zip(dtypes, shapes.values(), strict=False)]
    found = run(function, "cuda", *arrays, np.full((m, n), np.nan, intrinsic.total))
    return found, intrinsic.behaviour(*arrays)


def run(function: Any, target: str, *arrays: np.ndarray) -> np.ndarray:
    """The last array, after a function of all has run."""
    step = machine_code.compiled({"step": function}, resolve_target(target))["step"]
    device = tvm.cpu(0) if target == "llvm" else tvm.cuda(0)
    given = [tvm.runtime.tensor(x, device) for x in arrays]
    step(*given)
    return given[-1].numpy()


def main() -> None:
    """Compares a GPU's instruction with its behaviour, which rounds sums in another order."""
    found, expected = of_warp(DECLARED[sys.argv[1]])
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    assert np.abs(found - expected).max() < 1e-4 < np.abs(expected).max()


if __name__ == "__main__":
    main()
