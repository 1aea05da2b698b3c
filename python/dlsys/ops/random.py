"""Random numbers by a key: the same key gives the same numbers, on every context and number of threads.

A key is four words of uint32: (seed low, seed high, stream, step). The bits are those of `compute.philox` under the key
(seed low, seed high): element e of a result is word e % 4 of the block whose counter is
(e // 4 mod 2^32, e // 4 div 2^32, stream, step). Two draws with one key are not independent: change the stream or step.
"""

from __future__ import annotations

import math
from typing import Any, cast

import numpy as np

from .. import compute
from ..checks import number
from ..errors import GraphError, ShapeError
from ..graph import FLOATS, Made, Node, Shape
from .elementwise import (
    add_op,
    cast_op,
    clip_op,
    cos_op,
    greater_equal_op,
    less_op,
    log_op,
    mul_op,
    quotient_op,
    sqrt_op,
    where_op,
)
from .primitive import primitive
from .replay import function
from .rules import dtype_attribute, real_constant, shape_attribute
from .state import constant_op, with_gradient


def _random_bits(key: np.ndarray, shape: Shape) -> np.ndarray:
    """Words of 32 random bits by NumPy: Philox of the counters 0, 1, 2, ..., four words each."""
    size = math.prod(shape)
    blocks = np.arange(-(-size // 4), dtype=np.uint64)
    counter = [blocks.astype(np.uint32), (blocks >> np.uint64(32)).astype(np.uint32), key[2], key[3]]
    words = compute.philox(counter, [key[0], key[1]], lambda n, dtype: np.dtype(dtype).type(n), lambda x: x)
    return np.stack(np.broadcast_arrays(*words), axis=-1).ravel()[:size].reshape(shape)


def _shape_of_bits(key: Shape, shape: Shape) -> Shape:
    if key != (4,):
        raise ShapeError(f"the key must have shape (4,), not {key}")
    return shape


random_bits = primitive(
    "random_bits", grad=None, numpy=_random_bits, te=compute.random_bits, shape=_shape_of_bits, dtypes=("uint32",),
    kind="single",
    doc="Uniform words of uint32 of a shape, by a key.",
)  # fmt: skip


def _unit(bits: Node, above: float = 0.0) -> Made:
    """(n + above) / 2^24 of each word, n being its upper 24 bits; float32."""
    return mul_op(add_op(cast_op(quotient_op(bits, 2**8), "float32"), above), 2.0**-24)


def random_bits_op(key: Node, shape: Any) -> Made:
    """Uniform words of uint32 of a shape, by a key of uint32, (4,): (seed low, seed high, stream, step).

    Raises GraphError for a shape that is none.
    """
    return random_bits(key, shape=shape_attribute("random_bits", shape))


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
    unit = _unit(random_bits(key, shape=shape_attribute("random_uniform", shape)))
    if (start, end) != (0, 1):  # below `high` also where a sum rounds up
        unit = add_op(mul_op(unit, float(span)), float(start))
        unit = clip_op(unit, high=float(np.nextafter(end, start)))
    return unit if known == "float32" else cast_op(unit, known)


def random_normal_op(key: Node, shape: Any, mean: float = 0.0, std: float = 1.0, dtype: Any = "float32") -> Made:
    """Numbers of the normal distribution, rounded to float32: sqrt(-2 log u) cos(2 pi v), u uniform in (0, 1], v in
    [0, 1) (G. E. P. Box, M. E. Muller, "A note on the generation of random normal deviates", 1958). Raises GraphError
    for a shape or dtype that is none, or a negative std."""
    known = dtype_attribute("random_normal", dtype, FLOATS)
    centre, spread = real_constant("random_normal", mean), real_constant("random_normal", std)
    if not (math.isfinite(centre) and 0 <= spread < math.inf):
        raise GraphError(f"random_normal: mean and std must be finite and std >= 0, not {mean!r} and {std!r}")
    words = random_bits(key, shape=(2, *shape_attribute("random_normal", shape)))
    u, v = _unit(words[0], above=1.0), _unit(words[1])
    unit = sqrt_op(log_op(u) * -2.0) * cos_op(v * (2 * math.pi))
    if (centre, spread) != (0, 1):
        unit = add_op(mul_op(unit, spread), centre)
    return unit if known == "float32" else cast_op(unit, known)


def _of_dropout(g: Node, y: Node, x: Node, bits: Node, threshold: int, scale: float) -> tuple[Node, None]:
    """What was kept, by another comparison than the result's: one mask for both would be stored."""
    return g * where_op(greater_equal_op(bits, threshold), constant_op(scale, x.dtype), 0.0), None


@function()
def dropout_op(x: Node, key: Node, p: float) -> Made:
    """x with elements set to 0 with probability p, the others divided by 1 - p; the key as `random_bits_op` takes it.

    p = 0 gives x itself. Raises GraphError for a p outside [0, 1).
    """
    probability = number("dropout", "p", p, below=1)
    if probability == 0:
        return cast("Made", x)
    bits = random_bits(key, shape=x.shape)
    threshold, scale = min(round(probability * 2.0**32), 2**32 - 1), 1 / (1 - probability)
    kept = where_op(less_op(bits, threshold), 0.0, constant_op(scale, x.dtype))  # infinity times 0 is NaN, as PyTorch's
    return with_gradient(x * kept, [x, bits], _of_dropout, threshold=threshold, scale=scale)
