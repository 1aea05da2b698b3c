"""Learned models of how long choices take: from their features to the logarithm of their time over the task's best.

The trees are scikit-learn's extremely randomized ones (Geurts, Ernst and Wehenkel, 2006). The MLP is a graph of dlsys,
trained by one compiled step: a network that learns which loops the kernels of networks should have. Both learn from all
tasks whose space has the same name.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

import numpy as np

from .. import autodiff as ad
from ..kernels.choices import Record
from ..optim import AdamW
from ..schedule.knobs import Space

TREES = 64
WORST = 3.0  # times as long as a task's best, beyond which one choice is as bad as another
FAR = 3.0  # standard deviations: what other tasks have never seen says nothing
FEW = 8  # samples, of which nothing is learned, and whose correlation says nothing
HIDDEN, STEPS, RATE, ROWS = 64, 400, 3e-3, 64  # of the MLP: width, steps of training, learning rate, rows of a batch
DECAY = 0.3  # of its weights: without it the rank correlation on unseen tasks was 0.2, with it 0.3


class Model(Protocol):
    """A model of times, which predicts them."""

    def fit(self, x: np.ndarray, y: np.ndarray) -> None:
        """Learns from features, shape (N, F), and targets, shape (N,)."""

    def predict(self, x: np.ndarray) -> np.ndarray:
        """The targets of features, shape (N, F); shape (N,)."""


def trees() -> Model:
    """ExtraTrees of scikit-learn."""
    from sklearn.ensemble import ExtraTreesRegressor

    model: Model = ExtraTreesRegressor(TREES, min_samples_leaf=2, max_features=0.5, random_state=0)
    return model


class Mlp:
    """Two hidden layers."""

    def fit(self, x: np.ndarray, y: np.ndarray) -> None:
        """See `Model`."""
        random, widths, parameters = np.random.default_rng(0), (x.shape[1], HIDDEN, HIDDEN, 1), list[ad.Parameter]()
        self._centre, self._spread, self._mean = x.mean(0), x.std(0) + 1e-3, float(y.mean())
        self._input, target = ad.Variable("x"), ad.Variable("y")
        out: ad.Node = self._input
        for layer, (inputs, outputs) in enumerate(itertools.pairwise(widths)):
            w = random.standard_normal((inputs, outputs)).astype("float32") * math.sqrt(2 / inputs)
            parameters += [ad.Parameter(w, f"w{layer}"), ad.Parameter(np.zeros(outputs, "float32"), f"b{layer}")]
            out = (ad.relu_op(out) if layer else out) @ parameters[-2] + parameters[-1]
        loss = ad.mean_op((out - target) * (out - target))
        step = ad.Executor([AdamW(parameters, lr=RATE, weight_decay=DECAY).minimize(loss)])
        for _ in range(STEPS):
            rows = random.integers(0, len(x), ROWS)
            step.run({self._input: self._scaled(x[rows]), target: (y[rows, None] - self._mean).astype("float32")})
        self._executor = ad.Executor([out])

    def predict(self, x: np.ndarray) -> np.ndarray:
        """See `Model`."""
        found, padded = [], np.concatenate([x, np.zeros((-len(x) % ROWS, x.shape[1]))])
        for first in range(0, len(padded), ROWS):  # batches of one size: one plan
            found += self._executor.run({self._input: self._scaled(padded[first : first + ROWS])}, True)
        return np.concatenate(found)[: len(x), 0] + self._mean

    def _scaled(self, x: np.ndarray) -> np.ndarray:
        return np.clip((x - self._centre) / self._spread, -FAR, FAR).astype("float32")


MODELS: Mapping[str, Callable[[], Model]] = {"trees": trees, "mlp": Mlp}
"""By the name that `tune` takes."""


def of_task(records: Iterable[Record], loops: str) -> list[Record]:
    """The measurements of a task, without verdicts."""
    return [record for record in records if record["loops"] == loops and "gain" not in record]


def samples(records: Iterable[Record], space: Space) -> tuple[np.ndarray, np.ndarray]:
    """The features and targets of the records of spaces of this name. Times are those over the rule's, which were
    measured in turn."""
    count, tasks = len(space.features(space.own)), dict[tuple[str, str], list[Record]]()
    for record in records:
        if record["space"] == space.name and len(record["features"]) == count and "gain" not in record:
            tasks.setdefault((record["loops"], record["machine"]), []).append(record)
    x, y = list[list[float]](), list[float]()
    for own in tasks.values():
        ratios = [record["seconds"] / record["rule"] for record in own]
        x += [record["features"] for record in own]
        y += [math.log(min(ratio / min(ratios), WORST)) for ratio in ratios]
    return np.array(x, "float64").reshape(-1, count), np.array(y, "float64")


def learned(name: str, x: np.ndarray, y: np.ndarray) -> Model | None:
    """A model that has learned from samples; None where there are too few."""
    if len(x) < FEW:
        return None
    model = MODELS[name]()
    model.fit(x, y)
    return model


def rank_correlation(one: np.ndarray, other: np.ndarray) -> float:
    """Spearman's rank correlation of two rows of numbers; nan of few, and where one of them is constant."""
    if len(one) < FEW or np.ptp(one) == 0 or np.ptp(other) == 0:
        return math.nan
    from scipy.stats import spearmanr  # scikit-learn needs it

    return float(spearmanr(one, other).statistic)


def correlation(name: str, records: Sequence[Record], loops: str, space: Space) -> float:
    """The rank correlation of the times of a task's records with what a model predicts that learned from those of all
    other tasks; nan where there are too few."""
    x, y = samples(of_task(records, loops), space)
    model = learned(name, *samples((record for record in records if record["loops"] != loops), space))
    return rank_correlation(model.predict(x), y) if model and len(x) else math.nan
