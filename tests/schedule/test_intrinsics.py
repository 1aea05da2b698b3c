"""Declared instructions: what they compute is what they say, and products of bytes are exact by each of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cuda_on_cpu
import dlsys as dl
import numpy as np
import pytest
from dlsys import autodiff as ad
from dlsys import tvm_op
from dlsys.schedule import resolve_target
from dlsys.schedule.cuda.threads import WARP
from dlsys.schedule.intrinsics import DECLARED
from dlsys.schedule.target import machine_of, refusal
from helpers import on_threads, python
from instructions import drawn, of_lanes
from optional import skip

TESTS = Path(__file__).resolve().parents[1]

FEATURES = machine_of(resolve_target("llvm")).features
CPUS = {"haswell": "pmaddwd", "alderlake": "vpdpbusd", "skylake-avx512": "pmaddwd", "cascadelake": "vpdpbusd"} | {
    "x86-64": ""
}
"""The instruction by which a CPU multiplies bytes; the oldest has none that we declare."""


EACH = [(name, lanes) for name, one in DECLARED.items() for lanes in ((WARP,) if one.warp else (1, 2, 4, 8, 16))]


@pytest.mark.parametrize(("name", "lanes"), EACH)
def test_an_instruction_computes_what_it_says(name: str, lanes: int) -> None:
    intrinsic = DECLARED[name]
    if intrinsic.warp is not None:
        if lacking := cuda_on_cpu.missing():
            skip(lacking)
        python("-m", "instructions", name, cwd=TESTS)
        return
    if intrinsic.feature not in FEATURES or (lanes == 16 and "avx512" not in intrinsic.feature):
        pytest.skip(f"this CPU lacks {intrinsic.feature}, or vectors of {lanes}")
    np.testing.assert_array_equal(*of_lanes(intrinsic, lanes))


@pytest.mark.parametrize("cpu", CPUS)
def test_products_of_bytes_are_exact(cpu: str) -> None:
    rng = np.random.default_rng(0)
    target = {"kind": "llvm", "mcpu": cpu, "num-cores": 1}
    for m, k, n in ((65, 130, 77), (7, 9, 5), (64, 64, 64), (3, 4, 1), (30, 3, 16), (4, 5000, 20)):
        a, b = drawn(rng, "uint8", (m, k)), drawn(rng, "int8", (k, n))
        for flags in ((False, False), (True, True)):
            x, y = (np.ascontiguousarray(v.T) if flag else v for v, flag in zip((a, b), flags, strict=True))
            kernel = tvm_op.make_matrix_mul(x.shape, flags[0], y.shape, flags[1], target, "llvm", "bytes", dtype="int8")
            if refusal(resolve_target(target)):
                continue
            out = np.full((m, n), -1, "int32")
            kernel(x, y, out)
            np.testing.assert_array_equal(out, a.astype("int32") @ b.astype("int32"))
    assert CPUS[cpu] in kernel.source("asm")


def agree(node: ad.Node, feed: dict[ad.Node, np.ndarray], threads: int = 1) -> np.ndarray:
    """The node's value, which is NumPy's."""
    with on_threads(threads):
        (found,) = ad.Executor([node]).run(feed, True)
    (expected,) = ad.Executor([node], ctx=dl.numpy()).run(feed, True)
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)
    return found


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    "shapes", [((70, 300), (300, 90)), ((3, 20, 33), (33, 18)), ((2, 9, 8), (2, 8, 17)), ((40,), (40, 7))]
)
def test_products_of_bytes_in_a_graph(shapes: tuple[Any, Any], threads: int) -> None:
    rng = np.random.default_rng(0)
    x, w = ad.Variable("x", shapes[0], "uint8"), ad.Variable("w", shapes[1], "int8")
    feed = {x: drawn(rng, "uint8", shapes[0]), w: drawn(rng, "int8", shapes[1])}
    found = agree(ad.matmul_op(x, w), feed, threads)
    assert found.dtype == np.int32
    scaled = ad.relu_op(ad.cast_op(ad.matmul_op(x, w), "float32") * 0.125 + 3.0)  # in the product's kernel
    agree(scaled, feed, threads)


@pytest.mark.parametrize("stride, padding, groups, channels", [(1, 1, 1, 16), (2, 1, 1, 6), (1, 0, 2, 8), (1, 1, 8, 8)])
def test_convolutions_of_bytes(stride: int, padding: int, groups: int, channels: int) -> None:
    rng = np.random.default_rng(0)
    shape, filters = (2, channels, 13, 11), (24, channels // groups, 3, 3)
    x, f = ad.Variable("x", shape, "uint8"), ad.Variable("f", filters, "int8")
    node = ad.conv2d_op(x, f, stride=stride, padding=padding, groups=groups)
    found = agree(node, {x: drawn(rng, "uint8", shape), f: drawn(rng, "int8", filters)})
    assert found.dtype == np.int32


def test_other_pairs_of_dtypes_are_errors() -> None:
    x, y = ad.Variable("x", (3, 4), "int8"), ad.Variable("y", (4, 5), "int32")
    with pytest.raises(dl.DTypeError, match="dtypes differ: x is int8, y is int32"):
        ad.Executor([ad.matmul_op(x, y)]).run({x: np.ones((3, 4), "int8"), y: np.ones((4, 5), "int32")})
