"""The search of one task: batches of choices that a model of their time proposes, and at the end a descent.

A batch comes from parallel simulated annealing over the model's predictions, as in Chen et al., "Learning to optimize
tensor programs" (2018): many chains, each of which changes one knob at a time. Some of a batch are drawn at random.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..kernels.choices import LEAST_GAIN, Record, versions
from ..schedule.knobs import Knobs, Space
from .measure import Measured, Worker
from .model import Model, correlation, learned

BATCH = 8  # choices that are compiled and measured together
CHAINS, HEATS = 64, np.geomspace(0.2, 0.01, 40)  # of annealing; temperatures, in logarithms of times
RANDOM = 0.15  # of a batch that is drawn
APART = 2  # knobs in which the choices of a batch differ, as far as there are such
DESCENT = 0.25  # of the trials, or of the time, is left for the descent
EXPECTED = 0.01  # a gain below which another batch is not worth its time
LEAST = 4 * BATCH  # choices that are measured before the model's expectation ends the search
COMPARED = 6  # choices, the best first, that are compared with the rule's own at the end


def key(knobs: Knobs) -> tuple[tuple[str, int | str], ...]:
    """Knobs to look up, of which `dict` makes knobs again."""
    return tuple(sorted(knobs.items()))


@dataclass
class Task:
    """One kernel to tune.

    Attributes:
        name: the kernel's.
        loops: the structural hash of its plain loops.
        space: of its choices.
        request: to load it: the loops and the target as TVM's JSON, the precision, the bytes of a step's arrays.
        formulas: digests of the specs that have these loops; none for loops of a Relax module.
        calls: how often a step calls it.
    """

    name: str
    loops: str
    space: Space
    request: dict[str, Any] = field(repr=False)
    formulas: tuple[str, ...] = ()
    calls: int = 0


class Search:
    """A task with all that is known of it, and the choices to try next.

    Attributes:
        task: what is searched.
        rule: seconds of a call by the rule's own choice,
        share: and of all calls of a step.
        gain: how many times as fast the choice that kernels will use is, 1 for the rule's own.
        best: the fastest choice; the rule's own at first.
        ratio: its time over the rule's, 1 at first.
        history: the least ratio after each trial, of choices that were measured here, or failed.
        failed: why choices could not be measured.
    """

    def __init__(self, task: Task, known: list[Record], model: str, rule: float, machine: str = "", seed: int = 0):
        """`known`: records of all tasks, to which those of this one are added, with the `machine`; `model`: a name in
        MODELS."""
        self.task, self.rule, self.share = task, rule, task.calls * rule
        self.best, self.ratio, self.gain = task.space.own, 1.0, 1.0
        self.history, self.failed = list[float](), list[str]()
        self._known, self._name, self._random = known, model, np.random.default_rng(seed)
        self._model: Model | None = None
        self._descending = False
        self._features = functools.cache(lambda one: task.space.features(dict(one)))
        self._seen = {key(self.best): 1.0}
        self._about = {"loops": task.loops, "formula": "", "machine": machine, "versions": versions(),
                       "name": task.name, "space": task.space.name}  # fmt: skip
        for record in known:
            own = record["loops"] == task.loops and record["machine"] == machine and "gain" not in record
            if own and task.space.legal(record["knobs"]):
                self._note(record["knobs"], record["seconds"] / record["rule"])

    def __str__(self) -> str:
        flop, best = self.task.space.flop, self.rule * self.ratio
        speeds = f" ({flop / best / 1e9:.1f} GFLOP/s)" if flop else ""
        failed = f", {len(self.failed)} failed ({self.failed[-1]})" if self.failed else ""
        return (f"{self.task.name}: {self.trials} tried{failed}, best {1e6 * best:.1f} us{speeds}, "
                f"rule {1e6 * self.rule:.1f} us, {self.rule / best:.2f} of the rule")  # fmt: skip

    @property
    def trials(self) -> int:
        """How many choices were measured here, or failed."""
        return len(self.history)

    def correlations(self) -> dict[str, float]:
        """By model: the rank correlation of the measured times with predictions from other kernels' records; nan where
        there are too few. It is less than that of drawn choices, as most of these are what its model took for best."""
        names = dict.fromkeys([self._name, "trees"])
        return {name: correlation(name, self._known, self.task.loops, self.task.space) for name in names}

    def searched(self, measurer: Worker, trials: int, until: float = math.inf) -> Iterator[list[Record]]:
        """Tries so many choices, or until a time of `time.monotonic`; the records of each batch."""
        begun = time.monotonic()
        while self.trials < trials and (now := time.monotonic()) < until:
            left = min(1 - self.trials / trials, 1 - (now - begun) / (until - begun))
            chosen = self.batch(min(BATCH, trials - self.trials), left)
            if not chosen:
                return
            records = [] if self.history else [self._record(self.task.space.own, Measured(self.rule, self.rule))]
            for knobs, one in zip(chosen, measurer.measure(chosen, self.ratio), strict=True):
                self._note(knobs, one.ratio)
                self.history.append(self.ratio)
                self.failed += [one.error] if one.error else []
                records += [] if one.error else [self._record(knobs, one)]
            self._known += records
            yield records

    def verdict(self, measurer: Worker) -> list[Record]:
        """Compares the best choices with the rule's own for long, and the best of these again: the least of noisy times
        flatters. The rule's own stays where that gains too little. A record for each formula of the task."""
        best, found = self.task.space.own, Measured(self.rule, self.rule)
        first = sorted(self._seen, key=self._seen.__getitem__)[:COMPARED]
        if faster := [dict(one) for one in first if self._seen[one] < 1]:
            ratios = [one.ratio for one in measurer.measure(faster)]
            fastest = faster[int(np.argmin(ratios))]
            (again,) = measurer.measure([fastest])
            if max(again.ratio, min(ratios)) <= 1 / LEAST_GAIN:
                best, found = fastest, again
        self.best, self.ratio, self.gain = best, found.ratio, 1 / found.ratio
        record = {**self._record(best, found), "gain": round(self.gain, 4)}
        return [{**record, "formula": formula} for formula in self.task.formulas or ("",)]

    def _note(self, knobs: Knobs, ratio: float) -> None:
        self._seen[key(knobs)] = min(ratio, self._seen.get(key(knobs), math.inf))
        if ratio < self.ratio:
            self.best, self.ratio = knobs, ratio

    def _record(self, knobs: Knobs, one: Measured) -> Record:
        times = {"seconds": float(f"{one.seconds:.4g}"), "rule": float(f"{one.rule:.4g}")}
        return {**self._about, "knobs": dict(knobs), "features": list(map(float, self._features(key(knobs)))), **times}

    def batch(self, count: int, left: float) -> list[Knobs]:
        """The next choices, at most so many; `left`: the share of the trials and the time that is left. None where none
        promises a gain."""
        self._model = learned(self._name, self._known, self.task.space)
        if not self._descending and left > DESCENT:
            found = self._annealed()
            best, new = self._predicted([self.best, *found[:1]])[[0, -1]]
            if found and (self.trials < LEAST or self._model is None or 1 - math.exp(new - best) > EXPECTED):
                return self._diverse(found, count)
        self._descending = True
        near = [knobs for knobs in self.task.space.neighbours(self.best) if key(knobs) not in self._seen]
        return [near[i] for i in np.argsort(self._predicted(near), kind="stable")[:count]] if near else []

    def _predicted(self, choices: Sequence[Knobs]) -> np.ndarray:
        """The model's predictions; before there is one, the logarithm of the rule's own estimate."""
        x = np.array([self._features(key(knobs)) for knobs in choices])
        return self._model(x) if self._model else x[:, 0] * math.log(2)

    def _annealed(self) -> list[Knobs]:
        """Choices that were not measured, the best predicted first."""
        space = self.task.space
        chains = [self.best, *(space.drawn(self._random) for _ in range(CHAINS - 1))]
        costs = self._predicted(chains)
        visited = dict(zip(map(key, chains), costs, strict=True))
        for heat in HEATS:
            moved = [space.moved(knobs, self._random) for knobs in chains]
            own = self._predicted(moved)
            visited.update(zip(map(key, moved), own, strict=True))
            taken = self._random.random(CHAINS) < np.exp(np.minimum((costs - own) / heat, 0))
            chains = [new if take else old for new, old, take in zip(moved, chains, taken, strict=True)]
            costs = np.where(taken, own, costs)
        return [dict(one) for one in sorted(visited, key=lambda one: visited[one]) if one not in self._seen]

    def _diverse(self, found: Sequence[Knobs], count: int) -> list[Knobs]:
        """The first of some choices that differ from each other, and some drawn ones."""
        chosen, drawn = list[Knobs](), min(int(self._random.binomial(count, RANDOM)), count - 1)
        for apart in range(APART, 0, -1):
            for knobs in found:
                distances = (sum(knobs[name] != other[name] for name in knobs) for other in chosen)
                if len(chosen) < count - drawn and all(distance >= apart for distance in distances):
                    chosen.append(knobs)
        known, others = {*self._seen, *map(key, chosen)}, (self.task.space.drawn(self._random) for _ in range(drawn))
        return [*chosen, *(dict(one) for one in {key(knobs): None for knobs in others} if one not in known)]
