"""The step that is taken at once: a compiled program of an optimizer's update, fed with the gradients that are there.

The program is made when an optimizer first meets gradients of some types, and used again as long as its options stay.
It writes each parameter's new value to memory of its own, since what was made before may still read the old one;
state, which nothing else reads, is written in place.
"""

from __future__ import annotations

from collections import OrderedDict
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

Scalars = Callable[[ParameterGroup, ad.Parameter], Sequence[ad.Parameter]]
Sort = Callable[[ParameterGroup, ad.Parameter], Any]
Update = Callable[[Mapping[ad.Parameter, ad.Node], Sort, Mapping[ad.Parameter, ad.Parameter]], ad.Node]


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
        self._compiled: OrderedDict[Any, _Compiled] = OrderedDict()
        self._seen: tuple[Any, tuple[int, ...]] = ((), ())  # the scalars' versions, and their parameters' sorts

    def __reduce__(self) -> Any:
        return Stepping, ()

    def take(self, groups: Sequence[ParameterGroup], scalars: Scalars, update: Update) -> None:
        """Take a step down the parameters' `grad`.

        Args:
            scalars: a parameter's state of shape ().
            update: the node that takes a step down gradients, given for each parameter that has one; what it shares
                among parameters that are of one sort; where it writes the new values.
        """
        given = {p: scalars(group, p) for group in groups for p in group.parameters if p.grad is not None}
        if not given:
            return
        with changing:
            self._take(given, groups, update)

    def _take(self, given: Mapping[ad.Parameter, Any], groups: Sequence[ParameterGroup], update: Update) -> None:
        """The step of `given` parameters, with their scalars."""
        values = arrays_of([p.grad for p in given if p.grad is not None])
        found = dict(zip(given, values, strict=True))
        sorts = self._sorts(given)
        types = tuple((p.id, value.shape, value.dtype, value.context) for p, value in found.items())
        options = tuple(tuple(group.options.items()) for group in groups)
        key = (types, sorts, options)
        compiled = self._compiled.get(key)
        if compiled is None:
            compiled = self._compiled[key] = _made(found, dict(zip(given, sorts, strict=True)), update)
            if len(self._compiled) > MOST_COMPILED:
                self._compiled.popitem(last=False)
        self._compiled.move_to_end(key)
        compiled.run(found)
        self._seen = (_versions(given), sorts)

    def _sorts(self, given: Mapping[ad.Parameter, Sequence[ad.Parameter]]) -> tuple[int, ...]:
        """A number for each parameter, the same for those whose scalars are equal, and so equal after the step."""
        if _versions(given) == self._seen[0]:
            return self._seen[1]
        values = [tuple(float(scalar.value) for scalar in scalars) for scalars in given.values()]
        first = {value: number for number, value in reversed(list(enumerate(values)))}
        return tuple(first[value] for value in values)


def _versions(given: Mapping[ad.Parameter, Sequence[ad.Parameter]]) -> tuple[Any, ...]:
    return tuple((p.id, *(scalar.cell.version for scalar in scalars)) for p, scalars in given.items())


def _made(found: Mapping[ad.Parameter, Any], sort: Mapping[ad.Parameter, int], update: Update) -> _Compiled:
    gradients: dict[ad.Parameter, ad.Node] = {
        p: ad.Variable(f"{p.name}.grad", value.shape, value.dtype) for p, value in found.items()
    }
    targets: dict[ad.Parameter, Any] = {p: leaf(empty(p.shape, p.dtype), name=p.name) for p in found}
    node = update(gradients, lambda group, parameter: sort[parameter], targets)
    ctx = next((value.context for value in found.values() if value.context.kind == "cuda"), cpu())
    return _Compiled(ad.Executor([node], ctx), gradients, targets)
