"""Averages of a model's parameters over its training, by torch.optim.swa_utils's names."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..checks import number
from ..errors import GraphError
from ..tensors import Parameter, Tensor, leaf, no_grad
from ..tensors.values import arrays_of

Average = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(the average, the model's parameter, of how many models the average is) -> the new average."""
Averages = Callable[[Sequence[Tensor], Sequence[Tensor], Tensor], Any]
"""The same for all parameters, of which it writes the averages."""


def get_ema_avg_fn(decay: float = 0.999) -> Average:
    """decay * average + (1 - decay) * parameter. Raises GraphError for a decay that is no number in [0, 1]."""
    kept = number("get_ema_avg_fn", "decay", decay, most=1)
    return lambda average, parameter, n_averaged: average * kept + parameter * (1 - kept)


def get_ema_multi_avg_fn(decay: float = 0.999) -> Averages:
    """`get_ema_avg_fn` of all parameters, in one run."""
    return _together(get_ema_avg_fn(decay))


def _together(average: Average) -> Averages:
    """A function that averages all tensors, from one that averages a pair."""

    def write(averages: Sequence[Tensor], parameters: Sequence[Tensor], n_averaged: Tensor) -> None:
        pairs = zip(averages, parameters, strict=True)
        for tensor, value in zip(averages, arrays_of([average(a, p, n_averaged) for a, p in pairs]), strict=True):
            tensor.value = value

    return write


class AveragedModel:
    """A copy of a model, whose parameters become an average of the model's: `module`; called as the model is.

    Attributes: module, n_averaged: of how many models it is the average, a tensor.
    """

    def __init__(
        self,
        model: Any,
        device: Any = None,
        avg_fn: Average | None = None,
        multi_avg_fn: Averages | None = None,
        use_buffers: bool = False,
    ) -> None:
        """Args:
            model: a module. device: where the copy is, None for the model's.
            avg_fn, multi_avg_fn: how a parameter, or all of them, are averaged; the mean of all models for None.
            use_buffers: whether buffers are averaged, too; else they are the model's.

        Raises GraphError for what is no module, and for two functions.
        """
        if not callable(getattr(model, "parameters", None)):
            raise GraphError(f"AveragedModel: takes a module, not {type(model).__name__}")
        if avg_fn is not None and multi_avg_fn is not None:
            raise GraphError("AveragedModel: takes avg_fn or multi_avg_fn, not both")
        self.module: Any = copy.deepcopy(model)
        self.use_buffers = use_buffers
        if device is not None:
            self.module.to(device)
        self.n_averaged: Tensor = leaf(np.zeros((), np.int64), name="n_averaged")
        self._average = multi_avg_fn or _together(avg_fn or (lambda a, p, n: a + (p - a) / (n + 1)))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The copy's result."""
        return self.module(*args, **kwargs)

    def update_parameters(self, model: Any) -> None:
        """Take the model's parameters into the average; the first time they are the average."""
        own, given = ([p.detach() for p in m.parameters()] for m in (self.module, model))
        buffers = [[b.detach() for b in m.buffers()] for m in (self.module, model)]
        if self.use_buffers:
            own, given, buffers = own + buffers[0], given + buffers[1], [[], []]
        with no_grad():
            if self.n_averaged.item():
                self._average(own, given, self.n_averaged)
            else:
                buffers = [own + buffers[0], given + buffers[1]]
            for mine, theirs in zip(*buffers, strict=True):
                mine.value = theirs
        self.n_averaged.value = self.n_averaged.item() + 1

    def parameters(self) -> list[Parameter]:
        """The averages."""
        return self.module.parameters()

    def train(self, mode: bool = True) -> AveragedModel:
        """The copy's `train`; itself."""
        self.module.train(mode)
        return self

    def eval(self) -> AveragedModel:
        """The copy's `eval`; itself."""
        return self.train(False)

    def state_dict(self) -> dict[str, np.ndarray]:
        """The copy's, by names that begin with "module.", and "n_averaged", as in PyTorch."""
        saved = {f"module.{name}": value for name, value in self.module.state_dict().items()}
        return {"n_averaged": np.array(self.n_averaged), **saved}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state_dict`, also PyTorch's. Raises GraphError and ShapeError as the module's does."""
        if not isinstance(state, Mapping) or "n_averaged" not in state:
            raise GraphError('AveragedModel.load_state_dict: needs a dictionary with "n_averaged"')
        rest = {name.removeprefix("module."): value for name, value in state.items() if name != "n_averaged"}
        self.module.load_state_dict(rest)
        self.n_averaged.value = state["n_averaged"]
