"""Compiled training and validation steps, one for each signature of a batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from .. import autodiff as ad
from .. import random
from ..errors import GraphError, ShapeError
from ..graph import DTYPES
from ..nn import Module
from ..optim import Optimizer, clip_grad_norm
from ..tensors import known_shape

Function = Callable[..., ad.Node]
Batch = tuple[np.ndarray, ...]


def as_batch(given: Any) -> Batch:
    """The batch of a loader as arrays of dtypes that operators take: labels of bytes become int64, halves float32.

    Raises GraphError for a batch that is no tuple of arrays."""
    if isinstance(given, (np.ndarray, ad.Node)):
        given = (given,)
    if not isinstance(given, (tuple, list)) or not given:
        raise GraphError(f"fit: a batch must be a tuple of arrays (input, target, ...), not {type(given).__name__}")
    arrays = [np.asarray(value) for value in given]
    return tuple(value if str(value.dtype) in DTYPES else value.astype(_nearest(value.dtype)) for value in arrays)


def _nearest(dtype: np.dtype) -> str:
    if dtype.kind in "iu":
        return "int64"
    if dtype.kind == "f":
        return "float32"
    raise GraphError(f"fit: a batch holds an array of {dtype}, which operators do not take")


class Steps:
    """The steps of one model: `model(input)`, `loss(output, *targets)` and metrics of the same arguments.

    A graph is built and compiled for every signature of a batch (shapes and dtypes), and for training and validation.
    """

    def __init__(
        self,
        model: Module,
        loss: Function,
        optimizer: Optimizer | None,
        metrics: Mapping[str, Function],
        clip_norm: float | None,
        first_stream: int,
    ) -> None:
        self.model, self.loss, self.optimizer = model, loss, optimizer
        self.metrics, self.clip_norm = dict(metrics), clip_norm
        self.first_stream = first_stream
        self._built: dict[Any, tuple[ad.Executor, Sequence[ad.Node]]] = {}

    def train(self, batch: Batch) -> dict[str, float]:
        """One step of the optimizer; the loss and the metrics before it."""
        return self._run(batch, True)

    def measure(self, batch: Batch) -> dict[str, float]:
        """The loss and the metrics, in the model's `eval` mode."""
        return self._run(batch, False)

    def _run(self, batch: Batch, training: bool) -> dict[str, float]:
        signature = (training, *((value.shape, str(value.dtype)) for value in batch))
        if signature not in self._built:
            self._built[signature] = self._build(batch, training)
        executor, variables = self._built[signature]
        found = executor.run(dict(zip(variables, batch, strict=True)))
        names = ["loss", *self.metrics]
        return {name: float(value.numpy().reshape(())) for name, value in zip(names, found, strict=False)}

    def _build(self, batch: Batch, training: bool) -> tuple[ad.Executor, Sequence[ad.Node]]:
        """The executor of a step or a measurement for batches of these types."""
        names = ["input", *(f"target{i}" if i else "target" for i in range(len(batch) - 1))]
        variables = [ad.Variable(n, v.shape, str(v.dtype)) for n, v in zip(names, batch, strict=True)]
        before = self.model.training
        self.model.train(training)
        # Each graph draws from the same streams: which were built before, and when, changes no number.
        with random.default_generator.streams_from(self.first_stream):
            output = self.model(variables[0])
            loss = self.loss(output, *variables[1:])
            values = [loss, *(metric(output, *variables[1:]) for metric in self.metrics.values())]
        self.model.train(before)
        for name, value in zip(["loss", *self.metrics], values, strict=True):
            shape = known_shape(value)
            if shape is not None and np.prod(shape, dtype=np.int64) != 1:
                raise ShapeError(f"fit: the {name} must be one number, it has shape {shape}")
        if training and self.optimizer is not None:
            gradients = self.optimizer.gradients(loss)
            if self.clip_norm is not None:
                clipped = iter(clip_grad_norm([g for g in gradients if g is not None], self.clip_norm))
                gradients = [None if g is None else next(clipped) for g in gradients]
            values.append(self.optimizer.update(gradients))
        return ad.Executor(values), variables


def accuracy(output: ad.Node, target: ad.Node) -> ad.Node:
    """The share of rows whose largest output is at the target's index: (N, C), integers (N,) -> ()."""
    hits = ad.equal_op(ad.argmax_op(output, -1), target)
    return ad.mean_op(ad.cast_op(hits, "float32"))
