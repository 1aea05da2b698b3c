"""What the inner loop of a product holds: the next rows are fetched ahead, and sums stay in registers."""

from __future__ import annotations

import platform
import re

import numpy as np
from dlsys import tvm_op
from helpers import on_threads


def _inner_loops(asm: str) -> list[list[str]]:
    """The straight pieces of code that prefetch, as instructions with their operands."""
    pieces: list[list[str]] = [[]]
    for line in asm.splitlines():
        code = line.split("#")[0].strip()
        if code.startswith("."):  # a directive, or a label that nothing jumps to
            continue
        if code.endswith(":") or re.match(r"j\w+\s", code):
            pieces.append([])
        elif code:
            pieces[-1].append(code)
    return [piece for piece in pieces if any("prefetch" in code for code in piece)]


def _check(shape_a: tuple[int, int], shape_b: tuple[int, int], trans_a: bool, trans_b: bool) -> None:
    kernel = tvm_op.make_matrix_mul(shape_a, trans_a, shape_b, trans_b, "llvm", "llvm", "product")
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(shape).astype(np.float32) for shape in (shape_a, shape_b))
    expected = (a.T if trans_a else a) @ (b.T if trans_b else b)
    out = np.zeros(expected.shape, np.float32)
    kernel(a, b, out)
    np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-3)
    loops = _inner_loops(kernel.source("asm"))
    assert loops, "no loop fetches ahead"
    for loop in loops:
        fused = [code for code in loop if code.startswith(("vfmadd", "vfnmadd"))]
        stores = [code for code in loop if re.match(r"vmov\w+\s+%[xyz]mm\d+, .*\(", code)]
        assert len(fused) >= 8 and not stores, "\n".join(loop)


def test_products_fetch_ahead_and_keep_their_sums_in_registers() -> None:
    if platform.machine() != "x86_64" or "vfmadd" not in _any_product():
        return  # other processors have other names for it
    for threads in (1, 2):
        with on_threads(threads):
            _check((160, 128), (128, 64), False, False)
            _check((160, 128), (64, 128), False, True)
            _check((128, 160), (128, 64), True, False)
            _check((640, 256), (256, 512), False, False)
            _check((256, 480), (256, 512), True, False)


def _any_product() -> str:
    return tvm_op.make_matrix_mul((64, 64), False, (64, 64), False, "llvm", "llvm", "product").source("asm")
