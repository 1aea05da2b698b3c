"""Random numbers by a key: the same key gives the same numbers, on every context and number of threads.

A key is four words of uint32: (seed low, seed high, stream, step). The bits are those of Philox4x32-10 (J. K. Salmon,
M. A. Moraes, R. O. Dror, D. E. Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011) under the Philox key
(seed low, seed high): element e of a result is word e % 4 of the block whose counter is
(e // 4 mod 2^32, e // 4 div 2^32, stream, step). Two draws with one key are not independent: change the stream or step.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .. import compute
from ..compute import Tensor
from ..errors import DTypeError, GraphError
from ..graph import FLOATS, Node, Op, Shape, error_at, register, shape_error
from .inputs import full_op
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


@register
class RandomBits(Op):
    """Uniform words of uint32 of like's shape: inputs (key, like); like's values are not read."""

    name = "random_bits"
    dtypes = ("uint32",)
    shape_only = (1,)

    def infer_shape(self, node: Node, input_shapes: list[Shape]) -> Shape:
        if input_shapes[0] != (4,):
            raise shape_error(node, f"the key must have shape (4,), not {input_shapes[0]}")
        return input_shapes[1]

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        return [None, None]

    def te(self, node: Node, inputs: list[Tensor], shape: Shape, dtype: str) -> Tensor:
        return compute.random_bits(inputs[0], shape)

    def numpy(self, node: Node, inputs: list[np.ndarray]) -> np.ndarray:
        key, shape = inputs[0], inputs[1].shape
        size = math.prod(shape)
        blocks = np.arange(-(-size // 4), dtype=np.uint64)
        counter = np.empty((blocks.size, 4), np.uint32)
        counter[:, 0], counter[:, 1] = blocks & _WORD, blocks >> np.uint64(32)
        counter[:, 2:] = key[2:]
        return philox(counter, key[:2]).ravel()[:size].reshape(shape)


def _unit(words: np.ndarray, dtype: str, above: int = 0) -> np.ndarray:
    """(n + above) / 2^b, where n is b random bits: 24 of one word along the first axis, or 53 of two."""
    if dtype == "float32":
        return ((words[0] >> np.uint32(8)).astype(np.int32) + above).astype(np.float32) * np.float32(2.0**-24)
    high, low = (words[0] >> np.uint32(5)).astype(np.int64), (words[1] >> np.uint32(6)).astype(np.int64)
    return ((high << 26) + low + above).astype(np.float64) * 2.0**-53


class _Distribution(Op):
    """Numbers of `attrs["dtype"]` made of bits, whose first axis holds the words of an element."""

    dtypes = ("uint32",)
    _words: int  # of float32; float64 takes twice as many

    def infer_shape(self, node: Node, input_shapes: list[Shape]) -> Shape:
        words = self.words(node.attrs["dtype"])
        if not input_shapes[0] or input_shapes[0][0] != words:
            raise shape_error(
                node, f"the bits must have a first axis of {words}, not shape {input_shapes[0]}"
            )
        return input_shapes[0][1:]

    def words(self, dtype: str) -> int:
        """The words of bits that an element takes."""
        return self._words * (2 if dtype == "float64" else 1)

    def infer_dtype(self, node: Node, input_dtypes: list[str]) -> str:
        super().infer_dtype(node, input_dtypes)
        return node.attrs["dtype"]

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        return [None]


@register
class RandomUniform(_Distribution):
    """low + (high - low) u, u uniform in [0, 1): a number of [low, high), also where that rounds up."""

    name = "random_uniform"
    _words = 1

    def te(self, node: Node, inputs: list[Tensor], shape: Shape, dtype: str) -> Tensor:
        return compute.uniform(inputs[0], node.attrs["low"], node.attrs["high"], dtype)

    def numpy(self, node: Node, inputs: list[np.ndarray]) -> np.ndarray:
        dtype = node.attrs["dtype"]
        low, high = (np.asarray(node.attrs[name], dtype) for name in ("low", "high"))
        unit = _unit(inputs[0], dtype)
        if (low, high) == (0, 1):
            return np.asarray(unit)
        value = low + (high - low) * unit
        return np.asarray(np.where(value < high, value, np.nextafter(high, low)), dtype)


@register
class RandomNormal(_Distribution):
    """mean + std sqrt(-2 log u) cos(2 pi v), u uniform in (0, 1], v in [0, 1): G. E. P. Box, M. E. Muller, "A note on
    the generation of random normal deviates", 1958."""

    name = "random_normal"
    _words = 2

    def te(self, node: Node, inputs: list[Tensor], shape: Shape, dtype: str) -> Tensor:
        return compute.normal(inputs[0], node.attrs["mean"], node.attrs["std"], dtype)

    def numpy(self, node: Node, inputs: list[np.ndarray]) -> np.ndarray:
        dtype = node.attrs["dtype"]
        half = self.words(dtype) // 2
        u = _unit(inputs[0][:half], dtype, above=1).astype(np.float64)
        v = _unit(inputs[0][half:], dtype).astype(np.float64)
        return np.asarray(
            node.attrs["mean"] + node.attrs["std"] * np.sqrt(-2 * np.log(u)) * np.cos(2 * np.pi * v), dtype
        )


@register
class Dropout(Op):
    """x * mask / (1 - p), where mask is 1 with probability 1 - p: inputs (x, bits), the mask is bits >= 2^32 p.

    Its own gradient: the same bits, the same mask.
    """

    name = "dropout"
    elementwise = True

    def infer_shape(self, node: Node, input_shapes: list[Shape]) -> Shape:
        return require_same(node, *input_shapes)

    def infer_dtype(self, node: Node, input_dtypes: list[str]) -> str:
        x, bits = (str(dtype) for dtype in input_dtypes)
        if x not in FLOATS or bits != "uint32":
            raise error_at(
                node, DTypeError, f"takes {' or '.join(FLOATS)} and bits of uint32, not {x} and {bits}"
            )
        return x

    def _threshold(self, node: Node) -> int:
        return min(round(node.attrs["p"] * 2.0**32), 2**32 - 1)

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        return [Dropout.make([output_grad, node.inputs[1]], node.attrs), None]

    def te(self, node: Node, inputs: list[Tensor], shape: Shape, dtype: str) -> Tensor:
        return compute.dropout(inputs[0], inputs[1], self._threshold(node), 1 / (1 - node.attrs["p"]))

    def numpy(self, node: Node, inputs: list[np.ndarray]) -> np.ndarray:
        x, bits = inputs
        factor = np.where(bits >= np.uint32(self._threshold(node)), 1 / (1 - node.attrs["p"]), 0.0)
        with np.errstate(invalid="ignore"):
            return np.asarray(x * factor.astype(x.dtype))


def random_bits_op(key: Node, shape: Any) -> Node:
    """Uniform words of uint32 of a shape, by a key of uint32, (4,): (seed low, seed high, stream, step).

    Raises GraphError for a shape that is none.
    """
    return RandomBits.make([key, full_op(shape_attribute("random_bits", shape), 0.0, "uint32")])


def random_bits_like_op(key: Node, like: Node) -> Node:
    """Uniform words of uint32 of like's shape; see `random_bits_op`."""
    return RandomBits.make([key, like])


def random_uniform_op(
    key: Node, shape: Any, low: float = 0.0, high: float = 1.0, dtype: Any = "float32"
) -> Node:
    """Numbers uniform in [low, high): multiples of (high - low) / 2^24 in float32, / 2^53 in float64.

    Raises GraphError for a shape or dtype that is none, or limits that are not finite and in order.
    """
    known = dtype_attribute("random_uniform", dtype, FLOATS)
    start, end = real_constant("random_uniform", low), real_constant("random_uniform", high)
    with np.errstate(over="ignore", invalid="ignore"):
        span = np.subtract(np.asarray(end, known), np.asarray(start, known))
    if not 0 < span < np.inf:
        raise GraphError(
            f"random_uniform: the limits must be finite and low < high, not {low!r} and {high!r}"
        )
    words = RandomUniform().words(known)
    bits = random_bits_op(key, (words, *shape_attribute("random_uniform", shape)))
    return RandomUniform.make([bits], {"low": start, "high": end, "dtype": known})


def random_normal_op(
    key: Node, shape: Any, mean: float = 0.0, std: float = 1.0, dtype: Any = "float32"
) -> Node:
    """Numbers of the normal distribution. Raises GraphError for a shape or dtype that is none, or a negative std."""
    known = dtype_attribute("random_normal", dtype, FLOATS)
    centre, spread = real_constant("random_normal", mean), real_constant("random_normal", std)
    if not (math.isfinite(centre) and 0 <= spread < math.inf):
        raise GraphError(f"random_normal: mean and std must be finite and std >= 0, not {mean!r} and {std!r}")
    bits = random_bits_op(key, (RandomNormal().words(known), *shape_attribute("random_normal", shape)))
    return RandomNormal.make([bits], {"mean": centre, "std": spread, "dtype": known})


def dropout_op(x: Node, key: Node, p: float) -> Node:
    """x with elements set to 0 with probability p, the others divided by 1 - p; the key as `random_bits_op` takes it.

    p = 0 gives x itself. Raises GraphError for a p outside [0, 1).
    """
    probability = real_constant("dropout", p)
    if not 0 <= probability < 1:
        raise GraphError(f"dropout: p must be in [0, 1), not {p!r}")
    if probability == 0:
        return x
    return Dropout.make([x, random_bits_like_op(key, x)], {"p": probability})
