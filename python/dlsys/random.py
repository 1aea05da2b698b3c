"""Random numbers by counters, so that they depend on the seed and on nothing else.

A `Generator` has a seed, a step and streams. Seed and step are its state, a Parameter that graphs read. Each node that
draws numbers has a stream of its own. Each run of an Executor that draws advances the step, so that every run has
other numbers; a value of a tensor is the same whenever it is computed. The numbers are those of Philox
(`autodiff.random_bits_op`; Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011), the same on every
target and for every number of threads.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Unpack

import numpy as np

from . import autodiff as ad
from .checks import flag, integer, too_large
from .errors import GraphError
from .graph import Handle
from .ops import leaf as leaf_of
from .scopes import scopes
from .tensors import Tensor, as_tensor, leaf, tensor
from .tensors.creation import Options, dtype_in, leaf_by, size_of
from .tensors.evaluate import array_of
from .tensors.typing import Nested, Size

_WORD = 0xFFFFFFFF


class Generator:
    """A source of random numbers.

    Attributes:
        state: the Parameter (uint32[4]): the seed's low and high word, 0, the step.
    """

    def __init__(self, seed: int = 0) -> None:
        """Raises GraphError for a seed that is no integer from 0 to 2**64 - 1."""
        self.state: Tensor = Handle.results.of(leaf_of(np.zeros(4, np.uint32), "random_state", roams=True))
        one = tensor(np.array([0, 0, 0, 1], np.uint32), name="one_step")
        self._one = one
        self._advance: Tensor | None = None
        self._advance_for: Any = None
        self.manual_seed(seed)

    def manual_seed(self, seed: int) -> Generator:
        """Restart from a seed, with step and streams 0; returns itself. Raises GraphError as the constructor."""
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
        """The number of a new stream; of a recorded function one that it keeps."""
        return self._new_stream() if scopes.recording is None else scopes.recording.stream(self._new_stream)

    def _new_stream(self) -> int:
        self._drawn += 1
        return (self._drawn - 1) & _WORD

    @property
    def streams(self) -> int:
        """How many streams are in use."""
        return self._drawn

    @contextlib.contextmanager
    def streams_from(self, first: int) -> Iterator[None]:
        """Inside, new streams are numbered from `first` on; afterwards from the largest number so far."""
        before = self._drawn
        self._drawn = first
        try:
            yield
        finally:
            self._drawn = max(before, self._drawn)

    def key(self) -> Tensor:
        """A node: the key of a new stream, which has another value in every step. See `drawing`."""
        stream = tensor(np.array([0, 0, self._next_stream(), 0], np.uint32), name="stream")
        return self.state + stream

    def drawing(self, node: ad.Node) -> Tensor:
        """The node, wrapped so that its evaluation advances the step; for nodes that use a `key`."""
        graph = scopes.recording or self.state.node
        if self._advance is None or self._advance_for is not graph:
            self._advance_for = graph
            self._advance = ad.assign(self.state, self.state + self._one, each_run=True)
        return ad.with_updates_op(node, [self._advance])

    def numpy(self) -> np.random.Generator:
        """A NumPy generator with a new stream, for initial values and the order of data. Raises CompileError in a
        function that `dlsys.compile` records."""
        if scopes.recording is not None:
            raise scopes.recording.asked([self.state])
        low, high, _, step = (int(word) for word in self.state.value)
        # Graphs draw from Philox4x32, NumPy's generator is Philox4x64: they share no numbers.
        key = np.array([low | high << 32, self._next_stream()], np.uint64)
        return np.random.Generator(np.random.Philox(counter=np.array([0, 0, step, 0], np.uint64), key=key))

    def state_dict(self) -> dict[str, Any]:
        """The state and the number of streams, for a checkpoint."""
        return {"state": np.array(self.state), "streams": self._drawn}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state_dict`, in a program that has built the same graphs.

        Raises GraphError for another argument than such a dictionary."""
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
    """Restart the default generator from a seed from 0 to 2**64 - 1; returns it. Raises GraphError for another seed."""
    return default_generator.manual_seed(seed)


def _drawn(operation: Callable[..., ad.Node], shape: Sequence[Size], options: Options, dtype: str) -> Tensor:
    """A leaf with numbers that are drawn now, as in PyTorch; graphs use `random_uniform_op` and `random_normal_op`."""
    known = dtype_in("random", options, dtype)
    node = default_generator.drawing(operation(default_generator.key(), size_of(shape), 0.0, 1.0, known))
    if scopes.recording is not None:  # each call draws
        return node.requires_grad_(options.get("requires_grad", False))
    return leaf_by(options, array_of(node))


def rand(*size: Size, **options: Unpack[Options]) -> Tensor:
    """Uniform numbers in [0, 1)."""
    return _drawn(ad.random_uniform_op, size, options, "float32")


def rand_like(x: Nested, **options: Unpack[Options]) -> Tensor:
    """Uniform numbers in [0, 1) in x's shape, and its dtype for None. The shape must be known."""
    own = as_tensor(x)
    return _drawn(ad.random_uniform_op, own.shape, options, own.dtype)


def randn(*size: Size, **options: Unpack[Options]) -> Tensor:
    """Numbers of the standard normal distribution."""
    return _drawn(ad.random_normal_op, size, options, "float32")


def randn_like(x: Nested, **options: Unpack[Options]) -> Tensor:
    """Numbers of the standard normal distribution in x's shape, and its dtype for None. The shape must be known."""
    own = as_tensor(x)
    return _drawn(ad.random_normal_op, own.shape, options, own.dtype)


def randperm(n: int, **options: Unpack[Options]) -> Tensor:
    """The integers below n in an order that is drawn; int64 for None."""
    order = default_generator.numpy().permutation(integer("randperm", "n", n, 0))
    return leaf_by(options, order.astype(dtype_in("randperm", options, "int64")))


def bernoulli(p: Nested) -> Tensor:
    """1 with the probability that p has at each index, else 0, in its dtype. Raises GraphError for no probabilities."""
    chances = as_tensor(p)
    values = np.asarray(chances)
    if not ((values >= 0) & (values <= 1)).all():
        raise GraphError("bernoulli: takes probabilities, from 0 to 1")
    return (rand_like(chances) < chances).to(chances.dtype)


def randint(
    low: int, high: int | Sequence[int], size: Size | None = None, **options: Unpack[Options]
) -> Tensor:
    """Integers in [low, high), or in [0, low) for `randint(low, size)`; the default dtype is int64.

    Raises GraphError for an empty range, and for bounds that are no integers of 64 bits.
    """
    if size is None:
        low, high, size = 0, low, high
    low, high = integer("randint", "low", low), integer("randint", "high", high)
    if not low < high:
        raise GraphError(f"randint: there is no integer in [{low}, {high})")
    if not -(2**63) <= low < high <= 2**63:
        raise GraphError(f"randint: [{low}, {high}) is not in int64's range")
    drawn = default_generator.numpy().integers(low, high, size_of((size,)), np.int64)
    return leaf_by(options, np.asarray(drawn, dtype_in("randint", options, "int64")))


def multinomial(weights: Nested, num_samples: int, replacement: bool = False) -> Tensor:
    """Indices drawn with probabilities proportional to `weights`, int64: shape (num_samples,), or (rows, num_samples)
    for a matrix of weights, one row each. Without `replacement` an index is drawn at most once.

    Raises GraphError for weights that are no finite numbers >= 0, and if fewer than `num_samples` can be drawn."""
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
