"""The search of one task: batches of choices that a model of their time proposes, and at the end a descent.

A batch comes from parallel simulated annealing over the model's predictions, as in Chen et al., "Learning to optimize
tensor programs" (2018): many chains, each of which changes one knob at a time. Some of a batch are drawn at random.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from ..kernels.choices import LEAST_GAIN, Record
from ..schedule.knobs import Knobs
from .measure import Measured, Measurer
from .model import MODELS, Model, rank_correlation, samples
from .tasks import Task

BATCH = 8  # choices that are compiled and measured together
CHAINS, MOVES = 64, 40  # of annealing
HOT, COLD = 0.2, 0.01  # temperatures, in logarithms of times
RANDOM = 0.15  # of a batch that is drawn
APART = 2  # knobs in which the choices of a batch differ, as far as there are such
DESCENT = 0.25  # of the trials, or of the time, is left for the descent
EXPECTED = 0.01  # a gain below which another batch is not worth its time
LEAST = 2 * BATCH  # choices that are measured before the model's expectation ends the search
COMPARED = 3  # choices, the best first, that are compared with the rule's own at the end
Key = tuple[int | str, ...]


class Search:
    """A task with all that is known of it, and the choices to try next.

    Attributes:
        task: what is searched.
        rule: seconds of a call by the rule's own choice.
        gain: how many times as fast the choice that kernels will use is, 1 for the rule's own.
        best: the fastest choice; the rule's own at first.
        ratio: its time over the rule's, 1 at first.
        trials: how many choices were measured here, or failed.
        history: the least ratio after each trial.
        failed: why choices could not be measured.
    """

    best: Knobs
    gain: float
    ratio: float
    trials: int
    done: bool

    def __init__(
        self, task: Task, known: list[Record], models: Sequence[str], rule: float, seed: int = 0
    ) -> None:
        """`known`: records of all tasks, to which those of this one are added; `models`: names in MODELS, of which the
        first one leads; `rule`: seconds of a call by the rule's own choice."""
        self.task = task
        self.rule = rule
        self.gain = 1.0
        self.best, self.ratio, self.trials = task.space.own, 1.0, 0
        self.history: list[float] = []
        self.failed: list[str] = []
        self.done = False
        self._leading = models[0]
        self._first: dict[str, Model] = {}  # which know nothing of this task
        self._pairs: dict[str, list[tuple[float, float, Key]]] = {name: [] for name in models}  # predicted, measured
        self._names, self._random = tuple(task.space.domains), np.random.default_rng(seed)
        self._features: dict[Key, Sequence[float]] = {}
        self._known = known
        self._models: dict[str, Model] = {}
        self._seen: dict[Key, float] = {self._key(task.space.own): 1.0}
        for record in self._known:
            if record["loops"] == task.loops and "gain" not in record and task.space.legal(record["knobs"]):
                self._note(record["knobs"], record["seconds"] / record["rule"])
        self._descending = False

    def _key(self, knobs: Knobs) -> Key:
        return tuple(knobs[name] for name in self._names)

    def _note(self, knobs: Knobs, ratio: float) -> None:
        """Notes a measured ratio, and the knobs if it is the best so far."""
        key = self._key(knobs)
        self._seen[key] = min(ratio, self._seen.get(key, math.inf))
        if ratio < self.ratio:
            self.best, self.ratio = knobs, ratio

    def _forget_best(self) -> None:
        """The next is the best: this one was compared for long."""
        self._seen[self._key(self.best)] = math.inf
        key = min(self._seen, key=lambda key: self._seen[key])
        self.best, self.ratio = dict(zip(self._names, key, strict=True)), self._seen[key]

    @property
    def share(self) -> float:
        """Seconds of a step by the rule's own choice."""
        return self.task.calls * self.rule

    # What to try

    def batch(self, left: int, share: float) -> list[Knobs]:
        """The next choices, at most `left`; `share`: of the trials and the time that is left. None where none promises
        a gain."""
        self._learn()
        count = min(BATCH, left)
        if not self._descending and share > DESCENT:
            found = self._annealed()
            expected = self._expected(found)
            if found and (self.trials < LEAST or expected > EXPECTED):
                return self._diverse(found, count)
        self._descending = True
        found = [knobs for knobs in self.task.space.neighbours(self.best) if self._key(knobs) not in self._seen]
        costs = self._predicted(found) if found else np.zeros(0)
        return [found[i] for i in np.argsort(costs, kind="stable")[:count]]

    def _learn(self) -> None:
        """Fit the models to all that is known."""
        count = len(self._features_of([self.task.space.own])[0])
        x, y = samples(self._known, self.task.space.name, count)
        if len(x) < BATCH:
            return
        for name in self._pairs:
            self._models[name] = MODELS[name]()
            self._models[name].fit(x, y)
        if not any(record["loops"] == self.task.loops for record in self._known):
            self._first = dict(self._models)

    def _features_of(self, choices: Iterable[Knobs]) -> np.ndarray:
        """The features of choices, one row each; computed once for each choice."""
        rows = []
        for knobs in choices:
            if (key := self._key(knobs)) not in self._features:
                self._features[key] = self.task.space.features(knobs)
            rows.append(self._features[key])
        return np.array(rows)

    def _predicted(self, choices: Sequence[Knobs], name: str = "") -> np.ndarray:
        """The predictions of the model; before there is one, the logarithm of the rule's own estimate."""
        x, model = self._features_of(choices), self._models.get(name or self._leading)
        return x[:, 0] * math.log(2) if model is None else model.predict(x)

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

    def _expected(self, found: Sequence[Knobs]) -> float:
        """The gain that the model expects of the best of some choices over the best one known."""
        if not found or not self._models:
            return 1.0 if found else 0.0
        known, new = self._predicted([self.best])[0], self._predicted(found[:1])[0]
        return float(1 - math.exp(new - known))

    def _diverse(self, found: Sequence[Knobs], count: int) -> list[Knobs]:
        """The first of some choices that differ from each other, and some drawn ones."""
        chosen: list[Knobs] = []
        drawn = int(self._random.binomial(count, RANDOM))
        for apart in range(APART, -1, -1):
            for knobs in found:
                distances = (sum(knobs[name] != other[name] for name in self._names) for other in chosen)
                if len(chosen) < count - drawn and all(distance >= max(apart, 1) for distance in distances):
                    chosen.append(knobs)
        for _ in range(drawn):
            knobs = self._drawn()
            if self._key(knobs) not in self._seen and knobs not in chosen:
                chosen.append(knobs)
        return chosen

    # What came of it

    def try_some(self, measurer: Measurer, left: int, share: float, about: Record) -> list[Record]:
        """Measures a batch; the records of what was measured. `about`: what all records of the task say."""
        chosen = self.batch(left, share)
        if not chosen:
            self.done = True
            return []
        predicted = {name: self._predicted(chosen, name) for name in self._models}
        found = measurer.measure(chosen, self.ratio * self.rule)
        records = []
        for knobs, one in zip(chosen, found, strict=True):
            self.trials += 1
            self._seen.setdefault(self._key(knobs), math.inf)
            if one.error:
                self.failed.append(one.error)
            else:
                self._note(knobs, one.ratio)
                records.append({**about, **self._record(knobs, one)})
            self.history.append(self.ratio)
        for name, values in predicted.items():
            for value, one, knobs in zip(values, found, chosen, strict=True):
                if not one.error:
                    self._pairs[name].append((float(value), one.ratio, self._key(knobs)))
        if records and not any(record["loops"] == self.task.loops for record in self._known):
            own = Measured(self.rule, self.rule)
            records.insert(0, {**about, **self._record(self.task.space.own, own)})
        self._known += records
        return records

    def correlations(self) -> dict[str, tuple[float, float]]:
        """By model: the rank correlation of measured times with its predictions before this task had a measurement (nan
        where it knew no other task), and with those that it made from batch to batch."""
        found = {}
        for name, pairs in self._pairs.items():
            predicted, ratios = (np.array([pair[at] for pair in pairs]) for at in (0, 1))
            before = math.nan
            if name in self._first and pairs:
                x = np.array([self._features[key] for _, _, key in pairs])
                before = rank_correlation(self._first[name].predict(x), ratios)
            found[name] = before, rank_correlation(predicted, ratios)
        return found

    def verdict(self, measurer: Measurer, about: Record) -> list[Record]:
        """Compares the best choices with the rule's own for long, which stays the best where they gain too little; a
        record for each formula of the task."""
        found, own = Measured(self.rule, self.rule, 1.0), self.task.space.own
        for _ in range(COMPARED):
            if self.ratio >= 1 / LEAST_GAIN:
                break
            if (one := measurer.compare(self.best)).gain >= max(LEAST_GAIN, found.gain):
                found, own = one, self.best
            self._forget_best()
        self.best = own
        self.gain = found.gain
        self.ratio = 1 / found.gain
        record = {**about, **self._record(own, found), "gain": round(found.gain, 4)}
        return [{**record, "formula": formula} for formula in self.task.formulas or ("",)]

    def _record(self, knobs: Knobs, one: Measured) -> Record:
        features = [float(value) for value in self._features_of([knobs])[0]]
        times = {"seconds": float(f"{one.seconds:.4g}"), "rule": float(f"{one.rule:.4g}")}
        return {"knobs": dict(knobs), "features": features, **times}
