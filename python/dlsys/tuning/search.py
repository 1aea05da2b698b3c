"""The search of one task: batches of choices that a model of their time proposes, and at the end a descent.

A batch comes from parallel simulated annealing over the model's predictions, as in Chen et al., "Learning to optimize
tensor programs" (2018): many chains, each of which changes one knob at a time. Some of a batch are drawn at random.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ..kernels.choices import LEAST_GAIN, Record
from ..schedule.knobs import Knobs
from .measure import Measured, Measurer
from .model import Model, learned, of_task, samples
from .tasks import Task

BATCH = 8  # choices that are compiled and measured together
CHAINS, MOVES = 64, 40  # of annealing
HOT, COLD = 0.2, 0.01  # temperatures, in logarithms of times
RANDOM = 0.15  # of a batch that is drawn
APART = 2  # knobs in which the choices of a batch differ, as far as there are such
DESCENT = 0.25  # of the trials, or of the time, is left for the descent
EXPECTED = 0.01  # a gain below which another batch is not worth its time
LEAST = 4 * BATCH  # choices that are measured before the model's expectation ends the search
COMPARED = 6  # choices, the best first, that are compared with the rule's own at the end
Key = tuple[int | str, ...]


class Search:
    """A task with all that is known of it, and the choices to try next.

    Attributes:
        task: what is searched.
        rule: seconds of a call by the rule's own choice.
        gain: how many times as fast the choice that kernels will use is, 1 for the rule's own.
        best: the fastest choice; the rule's own at first.
        ratio: its time over the rule's, 1 at first.
        history: the least ratio after each trial, of choices that were measured here, or failed.
        failed: why choices could not be measured.
        done: whether nothing promises a gain any more.
    """

    def __init__(self, task: Task, known: list[Record], model: str, rule: float, seed: int = 0) -> None:
        """`known`: records of all tasks, to which those of this one are added; `model`: a name in MODELS; `rule`:
        seconds of a call by the rule's own choice."""
        self.task, self.rule, self.gain = task, rule, 1.0
        self.best, self.ratio = task.space.own, 1.0
        self.history, self.failed = list[float](), list[str]()
        self.done = self._descending = False
        self._names, self._random = tuple(task.space.domains), np.random.default_rng(seed)
        self._known, self._name = known, model
        self._model: Model | None = None
        self._features: dict[Key, Sequence[float]] = {}
        self._seen = {self._key(task.space.own): 1.0}
        for record in of_task(known, task.loops):
            if task.space.legal(record["knobs"]):
                self._note(record["knobs"], record["seconds"] / record["rule"])

    @property
    def trials(self) -> int:
        """How many choices were measured here, or failed."""
        return len(self.history)

    @property
    def share(self) -> float:
        """Seconds of a step by the rule's own choice."""
        return self.task.calls * self.rule

    def _key(self, knobs: Knobs) -> Key:
        return tuple(knobs[name] for name in self._names)

    def _note(self, knobs: Knobs, ratio: float) -> None:
        key = self._key(knobs)
        self._seen[key] = min(ratio, self._seen.get(key, math.inf))
        if ratio < self.ratio:
            self.best, self.ratio = knobs, ratio

    # What to try

    def batch(self, left: int, share: float) -> list[Knobs]:
        """The next choices, at most `left`; `share`: of the trials and the time that is left. None where none promises
        a gain."""
        self._model = learned(self._name, *samples(self._known, self.task.space))
        count = min(BATCH, left)
        if not self._descending and share > DESCENT:
            found = self._annealed()
            if found and (self.trials < LEAST or self._expected(found[0]) > EXPECTED):
                return self._diverse(found, count)
        self._descending = True
        found = [knobs for knobs in self.task.space.neighbours(self.best) if self._key(knobs) not in self._seen]
        costs = self._predicted(found) if found else np.zeros(0)
        return [found[i] for i in np.argsort(costs, kind="stable")[:count]]

    def _features_of(self, choices: Sequence[Knobs]) -> np.ndarray:
        keys = [self._key(knobs) for knobs in choices]
        for key, knobs in zip(keys, choices, strict=True):
            if key not in self._features:
                self._features[key] = self.task.space.features(knobs)
        return np.array([self._features[key] for key in keys])

    def _predicted(self, choices: Sequence[Knobs]) -> np.ndarray:
        """The model's predictions; before there is one, the logarithm of the rule's own estimate."""
        x = self._features_of(choices)
        return x[:, 0] * math.log(2) if self._model is None else self._model.predict(x)

    def _drawn(self) -> Knobs:
        """Legal knobs, each with the same chance."""
        space = self.task.space
        while True:
            knobs = {name: values[self._random.integers(len(values))] for name, values in space.domains.items()}
            if space.make(knobs):
                return knobs

    def _moved(self, knobs: Knobs) -> Knobs:
        """The knobs with another value of one; the same where the one drawn is not legal."""
        name = self._names[self._random.integers(len(self._names))]
        values = self.task.space.domains[name]
        other = {**knobs, name: values[self._random.integers(len(values))]}
        return other if self.task.space.make(other) else knobs

    def _annealed(self) -> list[Knobs]:
        """Choices that were not measured, the best predicted first."""
        chains = [self.best, *(self._drawn() for _ in range(CHAINS - 1))]
        costs = self._predicted(chains)
        visited = {self._key(knobs): (cost, knobs) for knobs, cost in zip(chains, costs, strict=True)}
        for move in range(MOVES):
            heat = HOT * (COLD / HOT) ** (move / MOVES)
            moved = [self._moved(knobs) for knobs in chains]
            own = self._predicted(moved)
            taken = self._random.random(CHAINS) < np.exp(np.minimum((costs - own) / heat, 0))
            chains = [new if take else old for new, old, take in zip(moved, chains, taken, strict=True)]
            costs = np.where(taken, own, costs)
            visited |= {self._key(knobs): (cost, knobs) for knobs, cost in zip(moved, own, strict=True)}
        ordered = sorted(visited.items(), key=lambda item: item[1][0])
        return [knobs for key, (_, knobs) in ordered if key not in self._seen]

    def _expected(self, knobs: Knobs) -> float:
        """The gain that the model expects of a choice over the best one known; 1 before there is a model."""
        best, new = self._predicted([self.best])[0], self._predicted([knobs])[0]
        return float(1 - math.exp(new - best)) if self._model else 1.0

    def _diverse(self, found: Sequence[Knobs], count: int) -> list[Knobs]:
        """The first of some choices that differ from each other, and some drawn ones."""
        chosen: list[Knobs] = []
        drawn = int(self._random.binomial(count, RANDOM))
        for apart in range(APART, 0, -1):
            for knobs in found:
                distances = (sum(knobs[name] != other[name] for name in self._names) for other in chosen)
                if len(chosen) < count - drawn and all(distance >= apart for distance in distances):
                    chosen.append(knobs)
        others = (self._drawn() for _ in range(drawn))
        return [*chosen, *(knobs for knobs in others if self._key(knobs) not in self._seen and knobs not in chosen)]

    # What came of it

    def try_some(self, measurer: Measurer, left: int, share: float, about: Record) -> list[Record]:
        """Measures a batch; the records of what was measured. `about`: what all records of the task say."""
        chosen = self.batch(left, share)
        self.done = not chosen
        found = measurer.measure(chosen, self.ratio) if chosen else []
        records = []
        for knobs, one in zip(chosen, found, strict=True):
            self._seen.setdefault(self._key(knobs), math.inf)
            if one.error:
                self.failed.append(one.error)
            else:
                self._note(knobs, one.ratio)
                records.append({**about, **self._record(knobs, one)})
            self.history.append(self.ratio)
        if records and not of_task(self._known, self.task.loops):
            records.insert(0, {**about, **self._record(self.task.space.own, Measured(self.rule, self.rule))})
        self._known += records
        return records

    def verdict(self, measurer: Measurer, about: Record) -> list[Record]:
        """Compares the best choices with the rule's own for long, and the best of these again: the least of noisy times
        flatters. The rule's own stays where that gains too little. A record for each formula of the task."""
        best, found = self.task.space.own, Measured(self.rule, self.rule)
        keys = sorted(self._seen, key=lambda key: self._seen[key])[:COMPARED]
        knobs = [dict(zip(self._names, key, strict=True)) for key in keys if self._seen[key] < 1]
        if knobs:
            ratios = [one.ratio for one in measurer.measure(knobs)]
            first = knobs[int(np.argmin(ratios))]
            (again,) = measurer.measure([first])
            if max(again.ratio, min(ratios)) <= 1 / LEAST_GAIN:
                best, found = first, again
        self.best, self.ratio, self.gain = best, found.ratio, 1 / found.ratio
        record = {**about, **self._record(best, found), "gain": round(self.gain, 4)}
        return [{**record, "formula": formula} for formula in self.task.formulas or ("",)]

    def _record(self, knobs: Knobs, one: Measured) -> Record:
        features = [float(value) for value in self._features_of([knobs])[0]]
        times = {"seconds": float(f"{one.seconds:.4g}"), "rule": float(f"{one.rule:.4g}")}
        return {"knobs": dict(knobs), "features": features, **times}
