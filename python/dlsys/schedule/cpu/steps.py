"""The steps of loops along memory, which a rule takes as they are by themselves, and a search may choose others."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from tvm import tirx

from ..common import VECTORS
from ..knobs import Knobs, Space, pick
from ..target import Machine

ROWS = 8  # that are read at once where registers hold no row's sums
OTHER_VECTORS = (1, 2, 4, 8)


@dataclass(frozen=True)
class Steps:
    """How loops along memory step, 1 or 0 for yes or no: `vectors` of a step; `rows` that are read at once where their
    sums lie in no register; `finer` times as many shares for threads; whether `threads` share large work; whether the
    next row of large arrays is fetched; whether rows are `short`, straight-line code."""

    vectors: int = VECTORS
    rows: int = ROWS
    finer: int = 1
    threads: int = 1
    fetches: int = 1
    short: int = 0


OWN = Steps()
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
            nbytes = [math.prod(map(int, v.shape)) * machine.line / machine.lanes(str(v.dtype)) for v in func.params]
            caches = (sum(nbytes) / size for size in (machine.l1, machine.l2, machine.l3))
            logs = [round(math.log2(max(value, 1e-9)), 2) for value in (work, length, *caches, len(nbytes))]
            ragged = length / (machine.lanes("float32") * int(knobs["vectors"]))
            return [*logs, round(ragged % 1, 3), *(float(value) for value in knobs.values())]

        return Space(name, knobs, domains, make, features)

    return pick(own, space)
