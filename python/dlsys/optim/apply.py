"""Where the new values of parameters and state are written: by a node of a graph, or now."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .. import autodiff as ad
from ..scopes import scopes
from ..tensors.evaluate import evaluate
from ..tensors.inplace import write

Values = Mapping[Any, Any]
"""A node for each parameter: its gradient, or its new value."""


def assigned(values: Values) -> ad.Node:
    """A node whose evaluation writes each new value to the parameter."""
    return ad.group([ad.assign(parameter, value) for parameter, value in values.items()])


def apply_now(values: Values) -> None:
    """Write each new value into the parameter's memory, computed in one run with the gradients, which wait. Within a
    function that `dlsys.compile` records, let the parameter name the value."""
    for parameter, value in values.items():
        write(parameter, value)
    if scopes.recording is None:
        evaluate([], in_place=[*values])
