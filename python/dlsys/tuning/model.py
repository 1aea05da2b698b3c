"""Learned models of how long choices take: from their features to the logarithm of their time over the task's best.

The trees are scikit-learn's extremely randomized ones (Geurts, Ernst and Wehenkel, 2006). The MLP is a graph of dlsys,
trained by one compiled step: a network that learns which loops the kernels of networks should have. Both learn from all
tasks whose space has the same name.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

import numpy as np

from .. import autodiff as ad
from ..kernels.choices import Record
from ..optim import AdamW

TREES = 64
WORST = 3.0  # times as long as a task's best, beyond which one choice is as bad as another
FAR = 3.0  # standard deviations: what other tasks have never seen says nothing
FEW = 8  # numbers, of which a correlation says nothing
HIDDEN, STEPS, RATE, ROWS = 64, 400, 3e-3, 64  # of the MLP: width, steps of training, learning rate, rows of a batch
DECAY = 0.3  # of its weights: without it the rank correlation on unseen tasks was 0.2, with it 0.3


class Model(Protocol):
    """A model of times, which predicts them."""

    def fit(self, x: np.ndarray, y: np.ndarray) -> None:
        """Learns from features, shape (N, F), and targets, shape (N,)."""

    def predict(self, x: np.ndarray) -> np.ndarray:
        """The targets of features, shape (N, F); shape (N,)."""


class Trees:
    """ExtraTrees of scikit-learn."""

    def __init__(self) -> None:
        from sklearn.ensemble import ExtraTreesRegressor

        self._trees = ExtraTreesRegressor(TREES, min_samples_leaf=2, max_features=0.5, random_state=0)

    def fit(self, x: np.ndarray, y: np.ndarray) -> None:
        """See `Model`."""
        self._trees.fit(x, y)

    def predict(self, x: np.ndarray) -> np.ndarray:
        """See `Model`."""
        return np.asarray(self._trees.predict(x))


class Mlp:
    """Two hidden layers."""

    def __init__(self) -> None:
        self._scale: tuple[np.ndarray, np.ndarray, float] = (np.zeros(0), np.zeros(0), 0.0)
        self._executor: ad.Executor | None = None
        self._input = ad.Variable("x")

    def fit(self, x: np.ndarray, y: np.ndarray) -> None:
        """See `Model`."""
        random, widths = np.random.default_rng(0), (x.shape[1], HIDDEN, HIDDEN, 1)
        self._scale = x.mean(0), x.std(0) + 1e-3, float(y.mean())
        out, target, parameters = self._input, ad.Variable("y"), list[ad.Parameter]()
        for layer, (inputs, outputs) in enumerate(itertools.pairwise(widths)):
            w = random.standard_normal((inputs, outputs)).astype("float32") * math.sqrt(2 / inputs)
            parameters += [ad.Parameter(w, f"w{layer}"), ad.Parameter(np.zeros(outputs, "float32"), f"b{layer}")]
            out = out @ parameters[-2] + parameters[-1]
            out = ad.relu_op(out) if outputs > 1 else out
        loss = ad.mean_op((out - target) * (out - target))
        step = ad.Executor([AdamW(parameters, lr=RATE, weight_decay=DECAY).minimize(loss)])
        for _ in range(STEPS):
            rows = random.integers(0, len(x), ROWS)
            step.run({self._input: self._scaled(x[rows]), target: (y[rows, None] - self._scale[2]).astype("float32")})
        self._executor = ad.Executor([out])

    def predict(self, x: np.ndarray) -> np.ndarray:
        """See `Model`."""
        assert self._executor is not None
        found, padded = [], np.concatenate([x, np.zeros((-len(x) % ROWS, x.shape[1]))])
        for first in range(0, len(padded), ROWS):  # batches of one size: one plan
            (out,) = self._executor.run({self._input: self._scaled(padded[first : first + ROWS])}, True)
            found.append(out[:, 0])
        return np.concatenate(found)[: len(x)] + self._scale[2]

    def _scaled(self, x: np.ndarray) -> np.ndarray:
        return np.clip((x - self._scale[0]) / self._scale[1], -FAR, FAR).astype("float32")


MODELS: Mapping[str, Callable[[], Model]] = {"trees": Trees, "mlp": Mlp}
"""By the name that `tune` takes."""


def samples(records: Iterable[Record], space: str, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The features and targets of the records of a space with so many features. Times are those over the rule's, which
    were measured in turn."""
    tasks: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        if record["space"] == space and len(record["features"]) == count and "gain" not in record:
            tasks.setdefault((record["loops"], record["machine"]), []).append(record)
    x, y = list[list[float]](), list[float]()
    for own in tasks.values():
        ratios = [record["seconds"] / record["rule"] for record in own]
        x += [record["features"] for record in own]
        y += [math.log(min(ratio / min(ratios), WORST)) for ratio in ratios]
    return np.array(x, "float64").reshape(-1, count), np.array(y, "float64")


def rank_correlation(one: np.ndarray, other: np.ndarray) -> float:
    """Spearman's rank correlation of two rows of numbers; nan of few, and where one of them is constant."""
    if len(one) < FEW or np.ptp(one) == 0 or np.ptp(other) == 0:
        return math.nan
    from scipy.stats import spearmanr  # scikit-learn needs it

    return float(spearmanr(one, other).statistic)
