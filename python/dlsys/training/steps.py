"""Compiled training and validation steps, one for each signature of a batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .. import autodiff as ad
from .. import random
from ..data.dataset import nearest_dtype
from ..errors import GraphError, ShapeError
from ..nn import Module
from ..optim import Optimizer, clip_grad_norm
from ..tensors import known_shape

Function = Callable[..., ad.Node]
Batch = tuple[np.ndarray, ...]


def _as_batch(given: Any) -> Batch:
    """The batch of a loader as arrays of dtypes that operators take: labels of bytes become int64, halves float32.

    Raises GraphError for a batch that is no tuple of arrays."""
    if isinstance(given, (np.ndarray, ad.Node)):
        given = (given,)
    if not isinstance(given, (tuple, list)) or not given:
        raise GraphError(f"fit: a batch must be a tuple of arrays (input, target, ...), not {type(given).__name__}")
    arrays = [np.asarray(value) for value in given]
    if wrong := [str(array.dtype) for array in arrays if array.dtype.kind not in "biuf"]:
        raise GraphError(f"fit: a batch holds an array of {wrong[0]}, which operators do not take")
    return tuple(array.astype(nearest_dtype(array.dtype), copy=False) for array in arrays)


@dataclass
class Steps:
    """The steps of one model: `model(input)`, `loss(output, *targets)` and metrics of the same arguments.

    A graph is built and compiled for every signature of a batch (shapes and dtypes), and for training and validation.
    """

    model: Module
    loss: Function
    optimizer: Optimizer | None
    metrics: Mapping[str, Function]
    clip_norm: float | None
    first_stream: int
    built: dict[Any, tuple[ad.Executor, Sequence[ad.Node]]] = field(default_factory=dict)

    def run(self, given: Any, training: bool) -> tuple[dict[str, float], int]:
        """The loss and the metrics of a batch, in training before a step of the optimizer, else in `eval` mode; and the
        batch's size."""
        batch = _as_batch(given)
        signature = (training, *((value.shape, str(value.dtype)) for value in batch))
        if signature not in self.built:
            self.built[signature] = self._build(batch, training)
        executor, variables = self.built[signature]
        found = executor.run(dict(zip(variables, batch, strict=True)))
        names = ["loss", *self.metrics]
        values = {name: float(value.numpy().reshape(())) for name, value in zip(names, found, strict=False)}
        return values, len(batch[0])

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
    return ad.mean_op(ad.cast_op(ad.equal_op(ad.argmax_op(output, -1), target), "float32"))
