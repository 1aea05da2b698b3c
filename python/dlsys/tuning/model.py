"""Learned models of how long choices take: from their features to the logarithm of their time over the task's best.

The trees are scikit-learn's extremely randomized ones (Geurts, Ernst and Wehenkel, 2006). The MLP is a graph of dlsys,
trained by one compiled step: a network that learns which loops the kernels of networks should have. Both learn from all
tasks whose space has the same name.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence

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

Model = Callable[[np.ndarray], np.ndarray]
"""Predicts the targets, shape (N,), of features, shape (N, F)."""


def trees(x: np.ndarray, y: np.ndarray) -> Model:
    """ExtraTrees of scikit-learn."""
    from sklearn.ensemble import ExtraTreesRegressor

    model: Model = ExtraTreesRegressor(TREES, min_samples_leaf=2, max_features=0.5, random_state=0).fit(x, y).predict
    return model


def mlp(x: np.ndarray, y: np.ndarray) -> Model:
    """Two hidden layers."""
    random, widths, parameters = np.random.default_rng(0), (x.shape[1], HIDDEN, HIDDEN, 1), list[ad.Parameter]()
    centre, spread, mean = x.mean(0), x.std(0) + 1e-3, float(y.mean())
    inputs, target = ad.Variable("x"), ad.Variable("y")
    out: ad.Node = inputs
    for layer, (before, behind) in enumerate(itertools.pairwise(widths)):
        w = random.standard_normal((before, behind)).astype("float32") * math.sqrt(2 / before)
        parameters += [ad.Parameter(w, f"w{layer}"), ad.Parameter(np.zeros(behind, "float32"), f"b{layer}")]
        out = (ad.relu_op(out) if layer else out) @ parameters[-2] + parameters[-1]
    loss = ad.mean_op((out - target) * (out - target))
    step = ad.Executor([AdamW(parameters, lr=RATE, weight_decay=DECAY).minimize(loss)])

    def scaled(x: np.ndarray) -> np.ndarray:
        return np.clip((x - centre) / spread, -FAR, FAR).astype("float32")

    for _ in range(STEPS):
        rows = random.integers(0, len(x), ROWS)
        step.run({inputs: scaled(x[rows]), target: (y[rows, None] - mean).astype("float32")})
    executor = ad.Executor([out])

    def predict(x: np.ndarray) -> np.ndarray:
        padded = scaled(np.concatenate([x, np.zeros((-len(x) % ROWS, x.shape[1]))]))
        batches = (padded[at : at + ROWS] for at in range(0, len(padded), ROWS))  # of one size: one plan
        found = [executor.run({inputs: batch}, True)[0] for batch in batches]
        return np.concatenate(found)[: len(x), 0] + mean

    return predict


MODELS: Mapping[str, Callable[[np.ndarray, np.ndarray], Model]] = {"trees": trees, "mlp": mlp}
"""By the name that `tune` takes: learns from features, shape (N, F), and targets, shape (N,)."""


def samples(records: Iterable[Record], space: Space) -> tuple[np.ndarray, np.ndarray]:
    """The features and targets of the records of spaces of this name. Times are those over the rule's, which were
    measured in turn."""
    count, best, own = len(space.features(space.own)), dict[tuple[str, str], float](), list[tuple[Record, float]]()
    for record in records:
        if record["space"] == space.name and len(record["features"]) == count and "gain" not in record:
            task, ratio = (record["loops"], record["machine"]), record["seconds"] / record["rule"]
            best[task] = min(ratio, best.get(task, math.inf))
            own.append((record, ratio))
    y = [math.log(min(ratio / best[record["loops"], record["machine"]], WORST)) for record, ratio in own]
    return np.array([record["features"] for record, _ in own], "float64").reshape(-1, count), np.array(y, "float64")


def learned(name: str, records: Iterable[Record], space: Space) -> Model | None:
    """A model that has learned from records; None where there are too few."""
    x, y = samples(records, space)
    return MODELS[name](x, y) if len(x) >= FEW else None


def rank_correlation(one: np.ndarray, other: np.ndarray) -> float:
    """Spearman's rank correlation of two rows of numbers; nan of few, and where one of them is constant."""
    if len(one) < FEW or np.ptp(one) == 0 or np.ptp(other) == 0:
        return math.nan
    from scipy.stats import spearmanr  # scikit-learn needs it

    return float(spearmanr(one, other).statistic)


def correlation(name: str, records: Sequence[Record], loops: str, space: Space) -> float:
    """The rank correlation of the times of a task's records with what a model predicts that learned from those of all
    other tasks; nan where there are too few."""
    own = (record for record in records if record["loops"] == loops)
    others = (record for record in records if record["loops"] != loops)
    (x, y), model = samples(own, space), learned(name, others, space)
    return rank_correlation(model(x), y) if model and len(x) else math.nan
