"""The random state of a program: counter-based, so that numbers depend on the seed and on nothing else.

A `Generator` has a seed, a step and streams. The state, the first two, is a Parameter that graphs read; every place
in a graph that draws has a stream of its own. Each run of an Executor that draws advances the step, so that a
compiled step draws anew each time; what is computed on demand is the same whenever it is asked for. The numbers come
from Philox (`autodiff.random_bits_op`), the same on every target and thread count.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from . import autodiff as ad
from .checks import flag, integer, too_large
from .errors import GraphError
from .ops import dtype_name
from .tensors import leaf, tensor
from .tensors.creation import size_of
from .tensors.values import array_of

_WORD = 0xFFFFFFFF


class Generator:
    """A source of random numbers.

    Attributes:
        state: the Parameter (uint32[4]): the seed's low and high word, 0, the step.
    """

    def __init__(self, seed: int = 0) -> None:
        """Raises GraphError for a seed that is no integer from 0 to 2**64 - 1."""
        self.state: ad.Parameter = ad.Parameter(np.zeros(4, np.uint32), "random_state", requires_grad=False)
        self.state.cell.roams = True
        one = tensor(np.array([0, 0, 0, 1], np.uint32), name="one_step")
        self._advance = ad.assign(self.state, self.state + one, each_run=True)
        self.manual_seed(seed)

    def manual_seed(self, seed: int) -> Generator:
        """Start anew from a seed."""
        try:
            seed = operator.index(seed)
        except TypeError:
            raise GraphError(f"manual_seed: the seed must be an integer, not {seed!r}") from None
        if not 0 <= seed < 2**64:
            raise GraphError(f"manual_seed: the seed must be from 0 to 2**64 - 1, not {seed}")
        self.state.value = np.array([seed & _WORD, seed >> 32, 0, 0], np.uint32)
        self._drawn = 0
        return self

    def _next_stream(self) -> int:
        self._drawn += 1
        return (self._drawn - 1) & _WORD

    @property
    def streams(self) -> int:
        """How many streams were given out."""
        return self._drawn

    @contextlib.contextmanager
    def streams_from(self, first: int) -> Iterator[None]:
        """Inside, streams are given out from number `first` on; afterwards from where they were, or beyond."""
        before = self._drawn
        self._drawn = first
        try:
            yield
        finally:
            self._drawn = max(before, self._drawn)

    def key(self) -> ad.Node:
        """The key of a new stream: a node that has another value in every step. See `drawing`."""
        stream = tensor(np.array([0, 0, self._next_stream(), 0], np.uint32), name="stream")
        return self.state + stream

    def drawing(self, node: ad.Node) -> ad.Node:
        """The node, whose evaluation advances the step: what uses a `key` is wrapped so."""
        return ad.with_updates_op(node, [self._advance])

    def numpy(self) -> np.random.Generator:
        """A NumPy generator of a stream of its own, for initial values and orders of data."""
        low, high, _, step = (int(word) for word in self.state.value)
        # Streams of graphs are counters of Philox4x32; NumPy's generator is Philox4x64: no block is shared.
        key = np.array([low | high << 32, self._next_stream()], np.uint64)
        return np.random.Generator(np.random.Philox(counter=np.array([0, 0, step, 0], np.uint64), key=key))

    def state_dict(self) -> dict[str, Any]:
        """Where the generator stands, for a checkpoint."""
        return {"state": np.array(self.state), "streams": self._drawn}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was taken, in a program that has built the same graphs.

        Raises GraphError for what is no such dictionary."""
        name = "Generator.load_state_dict"
        if not isinstance(state, Mapping) or set(state) != {"state", "streams"}:
            raise GraphError(f'{name}: needs a dictionary with "state" and "streams"')
        words = np.asarray(state["state"])
        if words.shape != (4,) or words.dtype.kind not in "iu" or not 0 <= words.min() <= words.max() <= _WORD:
            raise GraphError(f"{name}: the state must be four integers of 32 bits")
        drawn = integer(name, "streams", state["streams"], 0)
        self.state.value, self._drawn = words.astype(np.uint32), drawn


default_generator: Generator = Generator()


def manual_seed(seed: int) -> Generator:
    """Start the default generator anew; returns it. Raises GraphError for a seed that is none."""
    return default_generator.manual_seed(seed)


def _drawn(operation: Any, shape: Any, dtype: Any, requires_grad: bool, device: Any) -> Any:
    """Numbers drawn here and now, as in PyTorch; a graph draws by `random_uniform_op` and its like."""
    name = dtype_name("random", "float32" if dtype is None else dtype)
    node = default_generator.drawing(operation(default_generator.key(), size_of(shape), 0.0, 1.0, name))
    return leaf(array_of(node), requires_grad, device=device)


def rand(*size: Any, dtype: Any = None, requires_grad: bool = False, device: Any = None) -> Any:
    """Uniform numbers of [0, 1); float32 for None."""
    return _drawn(ad.random_uniform_op, size, dtype, requires_grad, device)


def randn(*size: Any, dtype: Any = None, requires_grad: bool = False, device: Any = None) -> Any:
    """Numbers of the standard normal distribution; float32 for None."""
    return _drawn(ad.random_normal_op, size, dtype, requires_grad, device)


def randint(low: int, high: Any, size: Any = None, *, dtype: Any = None, device: Any = None) -> Any:
    """Integers of [low, high), of [0, low) in `randint(low, size)`; int64 for None.

    Raises GraphError for an empty range, and for bounds that are no integers.
    """
    if size is None:
        low, high, size = 0, low, high
    low, high = integer("randint", "low", low), integer("randint", "high", high)
    if not low < high:
        raise GraphError(f"randint: there is no integer of [{low}, {high})")
    if not -(2**63) <= low < high <= 2**63:
        raise GraphError(f"randint: [{low}, {high}) are not of int64")
    known = dtype_name("randint", "int64" if dtype is None else dtype)
    drawn = default_generator.numpy().integers(low, high, size_of((size,)), np.int64)
    return leaf(np.asarray(drawn, known), device=device)


def multinomial(weights: Any, num_samples: int, replacement: bool = False) -> Any:
    """int64: numbers drawn with these weights, a row of them for each row of weights; each once at most unless
    `replacement`. Raises GraphError for weights that are none, and for more than there are."""
    count = integer("multinomial", "num_samples", num_samples, 1)
    if reason := too_large((count,)):
        raise GraphError(f"multinomial: {reason}")
    replacement = flag("multinomial", "replacement", replacement)
    try:
        values = np.asarray(weights, np.float64)
    except (TypeError, ValueError):
        raise GraphError(f"multinomial: the weights must be numbers, not {weights!r}") from None
    rows = np.atleast_2d(values)
    fits = rows.ndim == 2 and np.isfinite(rows).all() and (rows >= 0).all() and (rows.sum(-1) > 0).all()
    if not fits or (not replacement and (rows > 0).sum(-1).min() < count):
        raise GraphError(f"multinomial: {count} numbers cannot be drawn by these weights, shape {values.shape}")
    generator = default_generator.numpy()
    drawn = [generator.choice(len(row), count, replacement, row / row.sum()) for row in rows]
    return leaf(np.reshape(np.asarray(drawn, np.int64), (*values.shape[:-1], count)))
