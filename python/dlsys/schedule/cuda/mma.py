"""Instructions of tensor cores: a warp multiplies pieces of 16 x 8 and 8 x 8 words, of float32 numbers that are rounded
before, and adds the products up in float32. A word is one number in TF32, which keeps 10 of the 23 bits behind the
point, or two of neighbouring k: in bfloat16, which keeps 7, or float16, which keeps 10 and has a smaller range.

What a lane holds of a piece is fixed by the instructions mma.m16n8k8 and m16n8k16 (PTX ISA, "Matrix fragments for
mma"). With g = lane / 4 and t = lane % 4 these are of A the words (g, t), (g + 8, t), (g, t + 4), (g + 8, t + 4), of B
(t, g), (t + 4, g), of C the numbers (g, 2 t), (g, 2 t + 1) and those 8 rows below.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
from tvm import tirx

from ..intrinsics import DECLARED, Intrinsic, Warp, declared
from ..stages import Expr

_A, _B, _C = ((0, 0), (8, 0), (0, 4), (8, 4)), ((0, 0), (0, 4)), ((0, 0), (0, 1), (8, 0), (8, 1))
_ROUND = {
    1: """\
__device__ __forceinline__ float dlsys_{name}(float x) {{
  unsigned bits;
  asm("cvt.rna.{name}.f32 %0, %1;" : "=r"(bits) : "f"(x));
  return __uint_as_float(bits);
}}
""",
    2: """
__device__ __forceinline__ float dlsys_{name}(float first, float second) {{
  unsigned bits;
  asm("cvt.rn.{name}x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(second), "f"(first));
  return __uint_as_float(bits);
}}""",
}
"""By how many numbers are a word."""
_MULTIPLY = """
__device__ __forceinline__ void dlsys_mma_{name}(float* c, const float* a, const float* b) {{
  asm volatile("mma.sync.aligned.m16n8k{depth}.row.col.f32.{name}.{name}.f32 "
      "{{%0,%1,%2,%3}}, {{%4,%5,%6,%7}}, {{%8,%9}}, {{%0,%1,%2,%3}};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(__float_as_uint(a[0])), "r"(__float_as_uint(a[1])), "r"(__float_as_uint(a[2])), "r"(__float_as_uint(a[3])),
        "r"(__float_as_uint(b[0])), "r"(__float_as_uint(b[1])));
}}"""


def _mma(dtype: str, name: str, terms: int, converted: Callable[[np.ndarray], np.ndarray]) -> Intrinsic:
    """The instruction for float32 numbers that are rounded to a dtype, which PTX calls `name`."""

    def lowering(lanes: int, *of: Expr) -> Expr:
        return tirx.call_extern("int32", f"dlsys_mma_{name}", *of)

    source = _ROUND[terms].format(name=name), _MULTIPLY.format(name=name, depth=8 * terms)
    held = Warp(_A, _B, _C, partial(tirx.call_extern, "float32", f"dlsys_{name}"), source)
    takes, piece = ("float32", "float32"), (16, 8, 8)
    return Intrinsic(f"mma.{name}", "sm_80", dtype, dtype, takes, lowering, "float32", piece, converted, held)


def _tf32(x: np.ndarray) -> np.ndarray:
    """float32 rounded to 10 bits behind the point, of two nearest to the one further from zero."""
    bits = x.view("uint32")
    return np.where(np.isfinite(x), (bits + 0x1000) & 0xFFFFE000, bits).astype("uint32").view("float32")


def _bfloat16(x: np.ndarray) -> np.ndarray:
    """float32 rounded to 7 bits behind the point, of two nearest to the even one."""
    bits = x.view("uint32")
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000
    return np.where(np.isfinite(x), rounded, bits).astype("uint32").view("float32")


declared(_mma("tf32", "tf32", 1, _tf32))
declared(_mma("bfloat16", "bf16", 2, _bfloat16))
declared(_mma("float16", "f16", 2, lambda x: x.astype("float16")))


def instruction(rounds_to: str, features: tuple[str, ...]) -> Intrinsic | None:
    """The instruction for float32 numbers rounded to a dtype, on a GPU with these features; None for none."""
    found = (one for one in DECLARED.values() if one.warp is not None and one.feature in features)
    return next((one for one in found if one.a == rounds_to), None)


def sources() -> str:
    """CUDA C++ of the functions that all instructions are calls of."""
    warps = [one.warp for one in DECLARED.values() if one.warp is not None]
    return "".join(warp.source[part] for part in (0, 1) for warp in warps)
