"""Compiled training and validation steps, one for each signature of a batch; and the record of a run."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from .. import autodiff as ad
from .. import distributed, random
from ..charts import chart
from ..data.dataset import nearest_dtype
from ..devices import host_array
from ..errors import GraphError, ShapeError
from ..nn import Module
from ..nn.module import in_mode
from ..optim import Optimizer, clip_grad_norm
from ..serialization import write
from ..tensors import known_shape

STREAMS = 1 << 20  # of random numbers, that each rank has at most


@dataclass(repr=False)
class History:
    """The numbers of a run.

    Attributes:
        epochs: a row for each epoch: "epoch", "steps", "loss", the metrics, "lr", "seconds", and with validation
            "validation_loss" and so on.
        losses: the loss of every step.
    """

    epochs: list[dict[str, Any]] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)

    def __repr__(self) -> str:
        return "\n".join(map(line_of, self.epochs)) or "no epoch yet"

    def write(self, path: Path) -> None:
        """The rows as JSON lines, null for what JSON has no number for. Replaces the file in one step. Raises
        DataError."""
        rows = (
            {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()}
            for row in self.epochs
        )
        write(path, "".join(json.dumps(row) + "\n" for row in rows).encode())

    def draw(self, path: Path) -> None:
        """The losses of steps and epochs as a picture. Raises OSError."""
        curves = (("loss", "#2f6db5", "mean of an epoch"), ("validation_loss", "#d9822b", "validation"))
        with chart(path, "Loss", "step", "loss") as axes:
            steps = range(1, len(self.losses) + 1)
            axes.plot(steps, self.losses, color="#9dbbe0", linewidth=0.8, label="loss of a step")
            for name, hue, label in curves:
                if rows := [row for row in self.epochs if name in row]:
                    axes.plot([row["steps"] for row in rows], [row[name] for row in rows], ".-", color=hue, label=label)
            axes.set_ylim(bottom=min([0.0, *self.losses]))


def line_of(row: dict[str, Any]) -> str:
    """An epoch in one line."""
    shown = [f"epoch {row['epoch']}"]
    for name, value in row.items():
        if name == "seconds":
            shown.append(f"{value:.1f} s")
        elif name == "lr":
            shown.append(f"lr {value:.3g}")
        elif name not in ("epoch", "steps"):
            shown.append(f"{name.replace('_', ' ')} {value:.4f}")
    return ", ".join(shown)


Function = Callable[..., ad.Node]
Batch = tuple[np.ndarray, ...]


def _as_batch(given: Any) -> Batch:
    """A loader's batch as arrays of dtypes that operators accept: labels of bytes become int64, half precision float32.

    Raises GraphError for a batch that is no tuple of arrays."""
    if isinstance(given, (np.ndarray, ad.Node)):
        given = (given,)
    if not isinstance(given, (tuple, list)) or not given:
        raise GraphError(f"fit: a batch must be a tuple of arrays (input, target, ...), not {type(given).__name__}")
    arrays = [host_array(v, None) if isinstance(v, ad.Node) else np.asarray(v) for v in given]  # tensors without a copy
    if wrong := [str(array.dtype) for array in arrays if array.dtype.kind not in "biuf"]:
        raise GraphError(f"fit: a batch holds an array of {wrong[0]}, which operators do not accept")
    return tuple(array.astype(nearest_dtype(array.dtype), copy=False) for array in arrays)


@dataclass
class Steps:
    """The steps of one model: `model(input)`, `loss(output, *targets)` and metrics of the same arguments.

    A graph is built and compiled for every signature of a batch (shapes and dtypes), and for training and validation.
    In a group of processes each takes its share of a batch; loss, metrics and gradients are means over all samples.

    Attributes:
        asks: whether this rank asks all to stop after the step.
        asked: whether one has.
    """

    model: Module
    loss: Function
    optimizer: Optimizer | None
    metrics: Mapping[str, Function]
    clip_norm: float | None
    first_stream: int
    built: dict[Any, tuple[ad.Executor, Sequence[ad.Node]]] = field(default_factory=dict)
    asks: bool = False
    asked: bool = False

    def run(self, given: Any, training: bool) -> tuple[dict[str, float], int]:
        """The loss and the metrics of a batch, and its size. With `training` the optimizer takes a step, else the
        model is in `eval` mode."""
        batch = _as_batch(given)
        total = len(batch[0])
        if distributed.size() > 1:
            own = distributed.share(total)
            weight = (own.stop - own.start) * distributed.size() / max(total, 1)
            own = own if own.stop > own.start else slice(0, 1)  # stands for an empty share, and counts as none
            dtype = next((parameter.dtype for parameter in self.model.parameters()), "float32")
            batch = (*(value[own] for value in batch), np.array(weight, dtype))
            self.asked = self.asked or bool(distributed.all_reduce(int(self.asks), "max"))
        signature = (training, *((value.shape, str(value.dtype)) for value in batch))
        if signature not in self.built:
            self.built[signature] = self._build(batch, training)
        executor, variables = self.built[signature]
        found = executor.run(dict(zip(variables, batch, strict=True)))
        pairs = zip(["loss", *self.metrics], found, strict=False)
        return {name: float(value.numpy().reshape(())) for name, value in pairs}, total

    def _build(self, batch: Batch, training: bool) -> tuple[ad.Executor, Sequence[ad.Node]]:
        """The executor of a step, or of a measurement, for batches with these shapes and dtypes, and its variables."""
        names = ["input", *(f"target{i}" if i else "target" for i in range(len(batch) - 1))]
        if distributed.size() > 1:
            names[-1] = "weight"  # of this rank's samples in a mean over ranks
        variables = [ad.Variable(n, v.shape, str(v.dtype)) for n, v in zip(names, batch, strict=True)]
        # Each graph draws from the same streams, so the order in which graphs are built changes no number.
        # Each rank draws from others.
        first = self.first_stream + STREAMS * distributed.rank()
        weight = variables[-1] if distributed.size() > 1 else None
        given = variables[:-1] if distributed.size() > 1 else variables
        with in_mode(self.model, training), random.default_generator.streams_from(first):
            output = self.model(given[0])
            loss = self.loss(output, *given[1:])
            values = [loss, *(metric(output, *given[1:]) for metric in self.metrics.values())]
        for name, value in zip(["loss", *self.metrics], values, strict=True):
            shape = known_shape(value)
            if shape is not None and np.prod(shape, dtype=np.int64) != 1:
                raise ShapeError(f"fit: the {name} must be one number, it has shape {shape}")
        if weight is not None:
            values = [value * ad.cast_like_op(weight, value) for value in values]
            loss, values = values[0], list(map(distributed.mean_over_ranks, values))
        if training and self.optimizer is not None:
            gradients = self.optimizer.gradients(loss)
            if self.clip_norm is not None:
                clipped = clip_grad_norm([*gradients.values()], self.clip_norm)
                gradients = dict(zip(gradients, clipped, strict=True))
            values.append(self.optimizer.apply_gradients(gradients))
        device = next((parameter.device for parameter in self.model.parameters()), None)
        return ad.Executor(values, device), variables


def accuracy(output: ad.Node, target: ad.Node) -> ad.Node:
    """The share of rows whose largest output is at the target's index: (N, C), integers (N,) -> ()."""
    return ad.mean_op(ad.cast_op(ad.equal_op(ad.argmax_op(output, -1), target), "float32"))
