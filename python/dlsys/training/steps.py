"""The compiled step of training, the compiled measurement, and the record of a run."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
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
from ..graph import is_node
from ..nn import Module
from ..optim import Optimizer, clip_grad_norm_
from ..serialization import write
from ..tensors import Tensor
from ..tensors.compile import CompiledFunction, compile

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


Function = Callable[..., Any]
"""A loss or a metric: (output, *targets) -> a tensor of one number."""
Values = dict[str, Any]
"""The loss and the metrics by name."""
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


class Steps:
    """What a run does with a batch: `model(input)`, `loss(output, *targets)` and metrics of the same arguments.

    A step of training and a measurement are compiled functions. In a group of processes each takes its share of a
    batch; loss, metrics and gradients are means over all samples.

    Attributes:
        step, measure: (*batch, weight) -> loss and metrics by name. `step.executor` shows every stage.
        asks: whether this rank asks all to stop after the step.
        asked: whether one has.
    """

    def __init__(self, model: Module, loss: Function, metrics: Mapping[str, Function], first_stream: int = 0) -> None:
        self.model, self.first_stream = model, first_stream
        self._functions: dict[str, Function] = {"loss": loss, **metrics}
        self.measure: CompiledFunction = compile(self._measured)
        self.step: CompiledFunction = self.measure  # until `trains`
        self.asks = self.asked = False

    def trains(self, optimizer: Optimizer, clip_norm: float | None) -> None:
        """Let `step` be one of this optimizer."""

        def forget() -> None:
            self.model.zero_grad()  # also of parameters that are not trained
            optimizer.zero_grad()

        def step(*batch: Tensor, weight: Tensor | None) -> Values:
            forget()
            values = self._values(*batch, weight=weight)
            values["loss"].backward()
            with distributed.averaged(optimizer):
                if clip_norm is not None:
                    clip_grad_norm_(optimizer.parameters, clip_norm)
                optimizer.step()
            forget()  # nothing is left behind
            return _over_ranks(values)

        self.step = compile(step)

    def run(self, given: Any, training: bool) -> tuple[dict[str, float], int]:
        """The loss and the metrics of a batch, and its size. With `training` the optimizer takes a step."""
        batch = _as_batch(given)
        total, weight = len(batch[0]), None
        if distributed.size() > 1:
            own = distributed.share(total)
            share = (own.stop - own.start) * distributed.size() / max(total, 1)
            own = own if own.stop > own.start else slice(0, 1)  # stands for an empty share, and counts as none
            batch = tuple(value[own] for value in batch)
            weight = np.array(share, next((parameter.dtype for parameter in self.model.parameters()), "float32"))
            self.asked = self.asked or bool(distributed.all_reduce(int(self.asks), "max"))
        found = (self.step if training else self.measure)(*batch, weight=weight)
        return {name: float(value) for name, value in found.items()}, total

    def _measured(self, *batch: Tensor, weight: Tensor | None) -> Values:
        return _over_ranks(self._values(*batch, weight=weight))

    def _values(self, x: Tensor, *targets: Tensor, weight: Tensor | None) -> Values:
        """The loss and the metrics, times `weight`, that of this rank's samples in a mean over the ranks."""
        # All functions draw from the same streams, so the order in which they are recorded changes no number.
        # Each rank draws from others.
        with random.default_generator.streams_from(self.first_stream + STREAMS * distributed.rank()):
            output = self.model(x)
            values = {name: function(output, *targets) for name, function in self._functions.items()}
        for name, value in values.items():
            if not is_node(value):
                raise GraphError(f"fit: the {name} must be a tensor, not {type(value).__name__}")
            if math.prod(value.shape) != 1:
                raise ShapeError(f"fit: the {name} must be one number, it has shape {value.shape}")
        if weight is not None:
            values = {name: value * ad.cast_like_op(weight, value) for name, value in values.items()}
        return values


def _over_ranks(values: Values) -> Values:
    """The means over the ranks."""
    if distributed.size() == 1:
        return values
    return {name: distributed.mean_over_ranks(value) for name, value in values.items()}


def accuracy(output: ad.Node, target: ad.Node) -> ad.Node:
    """The share of rows whose largest output is at the target's index: (N, C), integers (N,) -> ()."""
    return ad.mean_op(ad.cast_op(ad.equal_op(ad.argmax_op(output, -1), target), "float32"))
