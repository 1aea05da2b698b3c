"""The step that is taken at once: a compiled program of an optimizer's update, fed with the gradients that are there.

The program is made when an optimizer first meets gradients of some types, and used again as long as its options stay.
It writes each parameter's new value to memory of its own, since what was made before may still read the old one;
state, which nothing else reads, is written in place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .. import autodiff as ad
from ..device import cpu, empty
from ..tensors import leaf
from ..tensors.state import changing
from ..tensors.values import arrays_of
from .groups import ParameterGroup

MOST_COMPILED = 8  # of an optimizer; those used last

Update = Callable[[Mapping[ad.Parameter, ad.Node], Mapping[ad.Parameter, ad.Parameter]], ad.Node]


@dataclass(frozen=True)
class _Compiled:
    """A compiled update: the variables of the gradients, and where each parameter's new value is written."""

    executor: ad.Executor
    gradients: dict[ad.Parameter, ad.Node]
    targets: dict[ad.Parameter, ad.Parameter]

    def run(self, gradients: Mapping[ad.Parameter, Any]) -> None:
        for target in self.targets.values():
            # the one before is the parameter's
            target.cell.content = empty(target.shape, target.dtype, self.executor.ctx)
        self.executor.run({variable: gradients[parameter] for parameter, variable in self.gradients.items()})
        for parameter, target in self.targets.items():
            parameter.cell.give(target.cell.content)


class Stepping:
    """An optimizer's compiled updates. A copy has none."""

    def __init__(self) -> None:
        self._compiled: dict[Any, _Compiled] = {}

    def __reduce__(self) -> Any:
        return Stepping, ()

    def take(self, groups: Sequence[ParameterGroup], update: Update) -> None:
        """Take a step down the parameters' `grad`. update: the node that takes a step down gradients, given for each
        parameter that has one, and where it writes the new values."""
        given = [p for group in groups for p in group.parameters if p.grad is not None]
        if not given:
            return
        with changing:
            values = arrays_of([p.grad for p in given if p.grad is not None])
            found = dict(zip(given, values, strict=True))
            types = tuple((p.id, value.shape, value.dtype, value.context) for p, value in found.items())
            key = (types, tuple(tuple(group.options.items()) for group in groups))
            compiled = self._compiled.pop(key, None) or _made(found, update)
            self._compiled[key] = compiled  # the last, as it is used last
            if len(self._compiled) > MOST_COMPILED:
                del self._compiled[next(iter(self._compiled))]
            compiled.run(found)


def _made(found: Mapping[ad.Parameter, Any], update: Update) -> _Compiled:
    gradients: dict[ad.Parameter, ad.Node] = {
        p: ad.Variable(f"{p.name}.grad", value.shape, value.dtype) for p, value in found.items()
    }
    targets: dict[ad.Parameter, Any] = {p: leaf(empty(p.shape, p.dtype), name=p.name) for p in found}
    ctx = next((value.context for value in found.values() if value.context.kind == "cuda"), cpu())
    return _Compiled(ad.Executor([update(gradients, targets)], ctx), gradients, targets)
