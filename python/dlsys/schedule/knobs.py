"""Choices that a search may make in the place of a rule: a finite space of named knobs, the rule's own choice first.

A rule that has a choice makes it, and gives it to `pick` with the space of all others. `pick` returns it as it is,
unless `choosing` says otherwise: a search looks at the space, a tuned kernel is written by the knobs that were found.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
from tvm import tirx

from ..system import warn
from .common import VECTORS, nbytes_of
from .target import Machine, ScheduleWarning

Knobs = Mapping[str, int | str]
"""A value for each knob of a space, by name."""
Made = TypeVar("Made")
ROWS = 8  # that are read at once where registers hold no row's sums
OTHER_VECTORS = (1, 2, 4, 8)


@dataclass(frozen=True)
class Space:
    """The choices that one rule has for one function: its own, and the values of each knob. `make` returns what the
    rule is to write for knobs, None for those that are not legal.

    Spaces of one `name` have the same knobs and `features`: numbers for a learned model of how long the loops of legal
    knobs take, the first one the binary logarithm of the rule's own estimate. `flop`: operations; 0 if they say little.
    """

    name: str
    own: Knobs
    domains: Mapping[str, tuple[int | str, ...]]
    make: Callable[[Knobs], Any] = field(repr=False)
    features: Callable[[Knobs], Sequence[float]] = field(repr=False)
    flop: float = 0.0

    def legal(self, knobs: Knobs) -> bool:
        """Whether these are knobs of the space by which its loops can be written."""
        named = knobs.keys() == self.domains.keys()
        return named and all(knobs[name] in values for name, values in self.domains.items()) and bool(self.make(knobs))

    def drawn(self, random: np.random.Generator) -> Knobs:
        """Legal knobs, each with the same chance."""
        while True:
            knobs = {name: values[random.integers(len(values))] for name, values in self.domains.items()}
            if self.make(knobs):
                return knobs

    def moved(self, knobs: Knobs, random: np.random.Generator) -> Knobs:
        """The knobs with another value of one; the same where what is drawn is not legal."""
        name, values = list(self.domains.items())[random.integers(len(self.domains))]
        other = {**knobs, name: values[random.integers(len(values))]}
        return other if self.make(other) else knobs

    def neighbours(self, knobs: Knobs) -> Iterator[Knobs]:
        """The legal knobs of which one has another value."""
        for name, values in self.domains.items():
            for value in values:
                if value != knobs[name] and self.make(other := {**knobs, name: value}):
                    yield other


Chooser = Callable[[Space], Knobs]
_chooser: ContextVar[Chooser | None] = ContextVar("chooser", default=None)


@contextlib.contextmanager
def choosing(chooser: Chooser | None) -> Iterator[None]:
    """Within it rules of this thread take the knobs that the function returns; None: their own."""
    token = _chooser.set(chooser)
    try:
        yield
    finally:
        _chooser.reset(token)


def wanting(knobs: Knobs | None) -> Chooser | None:
    """The chooser that always returns these knobs; None for None."""
    return None if knobs is None else lambda space: knobs


def pick(own: Made, space: Callable[[], Space]) -> Made:
    """The rule's own choice, or, within `choosing`, that of legal knobs of the space. Warns of others."""
    if (chooser := _chooser.get()) is None:
        return own
    found = space()
    if not found.legal(knobs := chooser(found)):
        warn(f"the space {found.name} of a kernel has not the knobs {dict(knobs)}: its rule chooses", ScheduleWarning)
        return own
    made: Made = found.make(knobs)
    return made


@dataclass(frozen=True)
class Steps:
    """How loops along memory step, 1 or 0 for yes or no: `vectors` of a step; `rows` read at once without registers;
    `finer` shares; whether `threads` share large work, a next row is fetched, rows are `short`, straight-line code."""

    vectors: int = VECTORS
    rows: int = ROWS
    finer: int = 1
    threads: int = 1
    fetches: int = 1
    short: int = 0


OWN = Steps()


def step_vectors(func: tirx.PrimFunc, machine: Machine) -> int:
    """Vectors of a step; fewer where the arrays of a function take more than half of L3, so that they lie in memory: of
    four lines then, two of an array, as 16 take 1.6 times as long (a layer norm's gradients)."""
    sizes = [*map(nbytes_of, func.params)]
    if 2 * sum(sizes) <= machine.l3:
        return VECTORS
    far = max(sum(size >= machine.l2 for size in sizes), 2)
    return min(VECTORS, max(4 * machine.line * 8 // (far * machine.vector_bits), 1))


Looked = tuple[Mapping[str, Sequence[int]], int, int]
"""Values of knobs beside the rule's own, simple operations of the function, and elements along memory."""


def chosen(name: str, own: Steps, func: tirx.PrimFunc, machine: Machine, look: Callable[[], Looked]) -> Steps:
    """The rule's own steps, or those of a search, from a space of this name; `look` is asked for what that needs."""

    def space() -> Space:
        others, work, length = look()
        knobs = {key: int(getattr(own, key)) for key in others}
        domains = {key: tuple(sorted({knobs[key], *values})) for key, values in others.items()}

        def make(knobs: Knobs) -> Steps:
            return replace(own, **{key: int(value) for key, value in knobs.items()})

        def features(knobs: Knobs) -> Sequence[float]:
            nbytes = [*map(nbytes_of, func.params)]
            caches = (sum(nbytes) / size for size in (machine.l1, machine.l2, machine.l3))
            logs = [round(math.log2(max(value, 1e-9)), 2) for value in (work, length, *caches, len(nbytes))]
            ragged = length / (machine.lanes("float32") * int(knobs["vectors"]))
            return [*logs, round(ragged % 1, 3), *(float(value) for value in knobs.values())]

        return Space(name, knobs, domains, make, features)

    return pick(own, space)
