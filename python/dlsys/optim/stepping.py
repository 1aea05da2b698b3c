"""`optimizer.step()`: a compiled update, which is fed with the gradients.

It is compiled for the shapes and dtypes of the gradients, the group's options and the settings of kernels, and used
again while these stay.
Each parameter's new value gets new memory, since nodes made before may still read the old one; state, which nothing
else reads, is written in place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .. import autodiff as ad
from ..devices import cpu, empty, new_array
from ..tensors import leaf
from ..tensors.state import changing
from ..tensors.trace import settings
from ..tensors.values import arrays_of
from .averages import averages
from .groups import ParameterGroup

MOST_COMPILED = 8  # of an optimizer; those used last

Update = Callable[[Mapping[ad.Parameter, ad.Node], Mapping[ad.Parameter, ad.Parameter]], ad.Node]


@dataclass(frozen=True)
class _Compiled:
    """A compiled update: a variable for each gradient, and a leaf to which each parameter's new value is written."""

    executor: ad.Executor
    gradients: dict[ad.Parameter, ad.Node]
    targets: dict[ad.Parameter, ad.Parameter]

    def run(self, gradients: Mapping[ad.Parameter, Any]) -> None:
        """Runs the step; each parameter takes the array that was written."""
        for target in self.targets.values():
            # the last run's array belongs to the parameter
            target.cell.content = new_array(target.shape, target.dtype, self.executor.ctx)
        self.executor.run({variable: gradients[parameter] for parameter, variable in self.gradients.items()})
        for parameter, target in self.targets.items():
            parameter.cell.give(target.cell.content)


class Stepping:
    """An optimizer's compiled updates. A copy has none of them."""

    def __init__(self) -> None:
        self._compiled: dict[Any, _Compiled] = {}

    def __reduce__(self) -> Any:
        return Stepping, ()

    def take(self, groups: Sequence[ParameterGroup], update: Update) -> None:
        """Take a step with the parameters' `grad`. `update` returns the node that takes a step, from the gradient of
        each parameter that has one and from the leaf to which its new value is written."""
        with changing:
            grads = {p: grad for group in groups for p in group.parameters if (grad := p.grad) is not None}
            if not grads:
                return
            found = dict(zip(grads, arrays_of([*grads.values()]), strict=True))
            types = tuple((p.id, value.shape, value.dtype, value.context) for p, value in found.items())
            key = (types, settings(), averages.count(), tuple(tuple(group.options.items()) for group in groups))
            compiled = self._compiled.pop(key, None) or _made(found, update)
            self._compiled[key] = compiled  # the last, as it is used last
            if len(self._compiled) > MOST_COMPILED:
                del self._compiled[next(iter(self._compiled))]
            compiled.run(found)


def _made(found: Mapping[ad.Parameter, Any], update: Update) -> _Compiled:
    """The compiled step of these parameters, on the GPU of their gradients if they are on one."""
    gradients: dict[ad.Parameter, ad.Node] = {
        p: ad.Variable(f"{p.name}.grad", value.shape, value.dtype) for p, value in found.items()
    }
    targets: dict[ad.Parameter, Any] = {p: leaf(empty(p.shape, p.dtype), name=p.name) for p in found}
    ctx = next((value.context for value in found.values() if value.context.kind == "cuda"), cpu())
    return _Compiled(ad.Executor([update(gradients, targets)], ctx), gradients, targets)
