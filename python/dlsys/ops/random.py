"""Random numbers by a key: the same key gives the same numbers, on every context and number of threads.

A key is four words of uint32: (seed low, seed high, stream, step). The bits are those of Philox4x32-10 (J. K. Salmon,
M. A. Moraes, R. O. Dror, D. E. Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011) under the Philox key
(seed low, seed high): element e of a result is word e % 4 of the block whose counter is
(e // 4 mod 2^32, e // 4 div 2^32, stream, step). Two draws with one key are not independent: change the stream or step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, cast

import numpy as np

from .. import compute
from ..checks import number
from ..errors import GraphError
from ..graph import FLOATS, Formula, Made, Node, Op, Shape, register, shape_error
from .elementwise import add_byconst_op, cast_op, clip_op, full_op, mul_byconst_op
from .primitive import OfNode, primitive
from .rules import dtype_attribute, real_constant, require_same, shape_attribute

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_WORD = np.uint64(0xFFFFFFFF)


def philox(counter: np.ndarray, key: np.ndarray) -> np.ndarray:
    """Philox4x32-10: four words for each counter, (..., 4), under a key of two; all of uint32."""
    c0, c1, c2, c3 = (counter[..., i].astype(np.uint64) for i in range(4))
    k0, k1 = (int(word) for word in key)
    for _ in range(10):
        p0, p1 = c0 * np.uint64(_MULTIPLIERS[0]), c2 * np.uint64(_MULTIPLIERS[1])
        shift = np.uint64(32)
        c0, c1, c2, c3 = (
            (p1 >> shift) ^ c1 ^ np.uint64(k0),
            p1 & _WORD,
            (p0 >> shift) ^ c3 ^ np.uint64(k1),
            p0 & _WORD,
        )
        k0, k1 = (k0 + _WEYL[0]) & 0xFFFFFFFF, (k1 + _WEYL[1]) & 0xFFFFFFFF
    return np.stack([c0, c1, c2, c3], axis=-1).astype(np.uint32)


def _random_bits(key: np.ndarray, shape: Shape) -> np.ndarray:
    """Words of 32 random bits by NumPy: Philox of the counters 0, 1, 2, ..., four words each."""
    size = math.prod(shape)
    blocks = np.arange(-(-size // 4), dtype=np.uint64)
    counter = np.empty((blocks.size, 4), np.uint32)
    counter[:, 0], counter[:, 1] = blocks & _WORD, blocks >> np.uint64(32)
    counter[:, 2:] = key[2:]
    return philox(counter, key[:2]).ravel()[:size].reshape(shape)


def _unit(words: np.ndarray, above: int = 0) -> Any:
    """(n + above) / 2^24, where n are the upper 24 bits of a word; float32."""
    return ((words >> np.uint32(8)).astype(np.int32) + above).astype(np.float32) * np.float32(2.0**-24)


def _normal(bits: np.ndarray) -> Any:
    u, v = _unit(bits[0], above=1).astype(np.float64), _unit(bits[1]).astype(np.float64)
    return np.asarray(np.sqrt(-2 * np.log(u)) * np.cos(2 * np.pi * v), np.float32)


def _dropped(x: np.ndarray, bits: np.ndarray, threshold: int, scale: float) -> np.ndarray:
    return x * np.where(bits >= np.uint32(threshold), scale, 0.0).astype(x.dtype)


@register
class RandomBits(Op):
    """Uniform words of uint32 of like's shape: inputs (key, like); like's values are not read."""

    name = "random_bits"
    flat = True
    dtypes: ClassVar[tuple[str]] = ("uint32",)
    shape_only: ClassVar[Sequence[int]] = (1,)
    formula: ClassVar[Formula] = compute.random_bits
    reference: ClassVar[Formula] = _random_bits
    takes: ClassVar[Sequence[str]] = ("shape",)

    def infer_shape(self, node: Node, input_shapes: list[Shape]) -> Shape:
        if input_shapes[0] != (4,):
            raise shape_error(node, f"the key must have shape (4,), not {input_shapes[0]}")
        return input_shapes[1]


_uniform: OfNode = primitive(
    "random_uniform", te=compute.uniform, numpy=_unit, dtypes=("uint32",), dtype="float32",
    doc="Of each word of bits a number of [0, 1), a multiple of 2^-24, float32.",
)  # fmt: skip


@register
class RandomNormal(Op):
    """sqrt(-2 log u) cos(2 pi v), u uniform in (0, 1], v in [0, 1), of the two words along the first axis, float32:
    G. E. P. Box, M. E. Muller, "A note on the generation of random normal deviates", 1958."""

    name = "random_normal"
    result = "float32"
    flat = True
    dtypes: ClassVar[tuple[str]] = ("uint32",)
    formula: ClassVar[Formula] = compute.normal
    reference: ClassVar[Formula] = _normal

    def infer_shape(self, node: Node, input_shapes: list[Shape]) -> Shape:
        if input_shapes[0][:1] != (2,):
            raise shape_error(node, f"the bits must have a first axis of 2, not shape {input_shapes[0]}")
        return input_shapes[0][1:]


@register
class Dropout(Op):
    """x * mask / (1 - p), where mask is 1 with probability 1 - p: inputs (x, bits), the mask is bits >= 2^32 p.

    Its own gradient: the same bits, the same mask.
    """

    name = "dropout"
    kind = "elementwise"
    apart: ClassVar[Mapping[int, tuple[str, ...]]] = {1: ("uint32",)}
    formula: ClassVar[Formula] = compute.dropout
    reference: ClassVar[Formula] = _dropped

    def infer_shape(self, node: Node, input_shapes: list[Shape]) -> Shape:
        return require_same(node, *input_shapes)

    def arguments(self, node: Node, shapes: list[Shape], shape: Shape) -> tuple[Any, ...]:
        p = node.attrs["p"]
        return min(round(p * 2.0**32), 2**32 - 1), 1 / (1 - p)

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        return [Dropout.make([output_grad, node.inputs[1]], node.attrs), None]


def random_bits_op(key: Node, shape: Any) -> Made:
    """Uniform words of uint32 of a shape, by a key of uint32, (4,): (seed low, seed high, stream, step).

    Raises GraphError for a shape that is none.
    """
    return RandomBits.make([key, full_op(shape_attribute("random_bits", shape), 0.0, "uint32")])


def random_bits_like_op(key: Node, like: Node) -> Made:
    """Uniform words of uint32 of like's shape; see `random_bits_op`."""
    return RandomBits.make([key, like])


def random_uniform_op(key: Node, shape: Any, low: float = 0.0, high: float = 1.0, dtype: Any = "float32") -> Made:
    """Numbers uniform in [low, high): multiples of (high - low) / 2^24, rounded to float32.

    Raises GraphError for a wrong shape or dtype, and for limits that are not finite or not in order.
    """
    known = dtype_attribute("random_uniform", dtype, FLOATS)
    start, end = (np.float32(real_constant("random_uniform", limit)) for limit in (low, high))
    with np.errstate(over="ignore", invalid="ignore"):
        span = end - start
    if not 0 < span < np.inf:
        raise GraphError(f"random_uniform: the limits must be finite and low < high, not {low!r} and {high!r}")
    unit = _uniform(random_bits_op(key, shape_attribute("random_uniform", shape)))
    if (start, end) != (0, 1):  # below `high` also where a sum rounds up
        unit = add_byconst_op(mul_byconst_op(unit, float(span)), float(start))
        unit = clip_op(unit, high=float(np.nextafter(end, start)))
    return unit if known == "float32" else cast_op(unit, known)


def random_normal_op(key: Node, shape: Any, mean: float = 0.0, std: float = 1.0, dtype: Any = "float32") -> Made:
    """Numbers of the normal distribution, rounded to float32. Raises GraphError for a shape or dtype that is none, or a
    negative std."""
    known = dtype_attribute("random_normal", dtype, FLOATS)
    centre, spread = real_constant("random_normal", mean), real_constant("random_normal", std)
    if not (math.isfinite(centre) and 0 <= spread < math.inf):
        raise GraphError(f"random_normal: mean and std must be finite and std >= 0, not {mean!r} and {std!r}")
    unit = RandomNormal.make([random_bits_op(key, (2, *shape_attribute("random_normal", shape)))])
    if (centre, spread) != (0, 1):
        unit = add_byconst_op(mul_byconst_op(unit, spread), centre)
    return unit if known == "float32" else cast_op(unit, known)


def dropout_op(x: Node, key: Node, p: float) -> Made:
    """x with elements set to 0 with probability p, the others divided by 1 - p; the key as `random_bits_op` takes it.

    p = 0 gives x itself. Raises GraphError for a p outside [0, 1).
    """
    probability = number("dropout", "p", p, below=1)
    if probability == 0:
        return cast("Made", x)
    return Dropout.make([x, random_bits_like_op(key, x)], {"p": probability})
