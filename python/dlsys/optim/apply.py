"""Where the new values of parameters and state are written: by a node of a graph, or at once.

A step at once is a compiled one that is fed with the gradients. It is compiled for their shapes and dtypes, the
optimizer's settings and the settings of kernels, and used again while these stay. Each parameter takes new memory,
since nodes made before may still read the old one; state, which nothing else reads, is written in place.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Mapping
from typing import Any, NamedTuple

from .. import autodiff as ad
from ..devices import Array, cpu, empty, new_array
from ..tensors import leaf
from ..tensors.trace import settings
from ..tensors.values import arrays_of

MOST_COMPILED = 8  # of an optimizer; those used last

Values = Mapping[ad.Parameter, ad.Node]
"""A node for each parameter: its gradient, or its new value."""


class _Step(NamedTuple):
    """A compiled step: a variable for each gradient, and a leaf to which each parameter's new value is written."""

    executor: ad.Executor
    gradients: dict[ad.Parameter, ad.Node]
    targets: dict[ad.Parameter, Any]


_steps: weakref.WeakKeyDictionary[Any, dict[Hashable, _Step]] = weakref.WeakKeyDictionary()


def assigned(values: Values, targets: Mapping[ad.Parameter, Any] | None = None) -> ad.Node:
    """A node whose evaluation writes each new value to the parameter, or to `targets[parameter]`."""
    targets = targets or {}
    return ad.group([ad.assign(targets.get(parameter, parameter), value) for parameter, value in values.items()])


def apply_now(optimizer: object, gradients: Values, new_values: Callable[[Values], Values], fixed: Hashable) -> None:
    """Write the new values for these gradients, which are tensors with values. `fixed`: the settings on which
    `new_values` depends."""
    found = dict(zip(gradients, arrays_of([*gradients.values()]), strict=True))
    types = tuple((p.id, value.shape, value.dtype, value.context) for p, value in found.items())
    steps, key = _steps.setdefault(optimizer, {}), (types, fixed, settings())
    kept: _Step | None = steps.pop(key, None)
    steps[key] = step = kept or _compile(found, new_values)  # the last, as it is used last
    if len(steps) > MOST_COMPILED:
        del steps[next(iter(steps))]
    for target in step.targets.values():
        target.cell.content = new_array(target.shape, target.dtype, step.executor.ctx)
    step.executor.run({variable: found[parameter] for parameter, variable in step.gradients.items()})
    for parameter, target in step.targets.items():
        parameter.cell.give(target.cell.content)


def _compile(found: Mapping[ad.Parameter, Array], new_values: Callable[[Values], Values]) -> _Step:
    """The compiled step for gradients of these types, on their GPU if they are on one."""
    gradients: dict[ad.Parameter, ad.Node] = {
        p: ad.Variable(f"{p.name}.grad", value.shape, value.dtype) for p, value in found.items()
    }
    targets: dict[ad.Parameter, Any] = {p: leaf(empty(p.shape, p.dtype), name=p.name) for p in found}
    ctx = next((value.context for value in found.values() if value.context.kind == "cuda"), cpu())
    return _Step(ad.Executor([assigned(new_values(gradients), targets)], ctx), gradients, targets)
