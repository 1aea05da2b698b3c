"""Modules made of modules."""

from __future__ import annotations

import operator
from collections.abc import ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView
from typing import Any, Self

from ..autodiff import Node, Parameter
from ..errors import GraphError
from .module import Module


def _entry(owner: Any, index: Any, length: int) -> int:
    """An index, which may be negative, as a position. Raises IndexError."""
    at = operator.index(index)
    if not -length <= at < length:
        raise IndexError(f"{type(owner).__name__}: index {at} is out of range for {length} entries")
    return at % length


def _listed(owner: Module, values: Any, of: str) -> list[Any]:
    """The values as a list. Raises GraphError for what is no iterable."""
    try:
        return list(values)
    except TypeError:
        raise GraphError(f"{type(owner).__name__}: needs a list of {of}, not {type(values).__name__}") from None


class _Numbered(Module):
    """Modules by number: "0", "1", ...; Sequential's may have names."""

    def _add(self, modules: Iterable[Any]) -> None:
        """Adds modules under the next free numbers."""
        for module in _listed(self, modules, "modules"):
            number = len(self._modules)
            while str(number) in self._modules:
                number += 1
            self.add_module(str(number), module)

    def _name(self, index: Any) -> str:
        return list(self._modules)[_entry(self, index, len(self._modules))]

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[Module]:
        return iter(list(self._modules.values()))

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return self._part(dict(list(self._modules.items())[index]))
        return self._modules[self._name(index)]

    def _part(self, entries: dict[str, Module]) -> Any:
        raise NotImplementedError

    def __setitem__(self, index: int, module: Module) -> None:
        self.add_module(self._name(index), module)

    def append(self, module: Module) -> Self:
        """Add a module at the end; returns the container."""
        return self.extend([module])

    def extend(self, modules: Iterable[Module]) -> Self:
        """Add modules at the end; returns the container. Raises GraphError for what are none."""
        self._add(modules)
        return self


class Sequential(_Numbered):
    """One module after another. Takes modules, or one dict of names to modules."""

    def __init__(self, *modules: Any) -> None:
        if len(modules) == 1 and isinstance(modules[0], Mapping):
            for name, module in modules[0].items():
                self.add_module(name, module)
        else:
            self._add(modules)

    def _part(self, entries: dict[str, Module]) -> Any:
        return Sequential(entries)

    def forward(self, x: Any) -> Any:
        for module in self:
            x = module(x)
        return x


class ModuleList(_Numbered):
    """A list of modules whose Parameters belong to the module that holds it."""

    def __init__(self, modules: Iterable[Module] = ()) -> None:
        """Raises GraphError for what are no modules."""
        self._add(modules)

    def _part(self, entries: dict[str, Module]) -> Any:
        return ModuleList(entries.values())

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        raise GraphError("ModuleList: call its members, it has no forward of its own")


class ModuleDict(Module):
    """A dictionary of modules, whose Parameters belong to the module that holds it."""

    def __init__(self, modules: Mapping[str, Module] | Iterable[tuple[str, Module]] = ()) -> None:
        """Raises GraphError for what are no modules by names without dots."""
        self.update(modules)

    def update(self, modules: Mapping[str, Module] | Iterable[tuple[str, Module]]) -> None:
        """Add modules, or put them in others' places. Raises GraphError."""
        try:
            given = dict(modules)
        except (TypeError, ValueError):
            raise GraphError(f"ModuleDict: needs a dictionary of modules, not {modules!r}") from None
        for name, module in given.items():
            self[name] = module

    def __setitem__(self, name: str, module: Module) -> None:
        self.add_module(name, module)

    def __getitem__(self, name: str) -> Any:
        return self._modules[name]

    def __delitem__(self, name: str) -> None:
        del self._modules[name]

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules)

    def __contains__(self, name: object) -> bool:
        return name in self._modules

    def keys(self) -> KeysView[str]:
        """The names."""
        return self._modules.keys()

    def values(self) -> ValuesView[Module]:
        """The modules."""
        return self._modules.values()

    def items(self) -> ItemsView[str, Module]:
        """Names and modules."""
        return self._modules.items()

    def pop(self, name: str) -> Module:
        """Take a module out; returns it. Raises KeyError."""
        return self._modules.pop(name)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        raise GraphError("ModuleDict: call its members, it has no forward of its own")


class ParameterList(Module):
    """A list of Parameters, "0", "1", ..., which belong to the module that holds it."""

    def __init__(self, values: Iterable[Any] = ()) -> None:
        """Arrays and tensors become Parameters. Raises GraphError for what is no list of them, DTypeError."""
        self.extend(values)

    def extend(self, values: Iterable[Any]) -> ParameterList:
        """Add Parameters at the end; returns the list. Raises GraphError, DTypeError."""
        for value in _listed(self, values, "Parameters"):
            self.append(value)
        return self

    def append(self, value: Any) -> ParameterList:
        """Add a Parameter at the end; returns the list. Raises DTypeError."""
        setattr(self, str(len(self)), value if isinstance(value, Parameter) else Parameter(value))
        return self

    def __len__(self) -> int:
        return len(self._parameters)

    def __iter__(self) -> Iterator[Parameter]:
        return iter(list(self._parameters.values()))

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return ParameterList(list(self)[index])
        return self._parameters[str(_entry(self, index, len(self)))]

    def __setitem__(self, index: int, value: Any) -> None:
        setattr(self, str(_entry(self, index, len(self))), value)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        raise GraphError("ParameterList: read its members, it has no forward of its own")


class Residual(Module):
    """y = x + fn(x)."""

    def __init__(self, fn: Module) -> None:
        """Raises GraphError for what cannot be called."""
        if not callable(fn):
            raise GraphError(f"Residual: fn must be a Module, not {type(fn).__name__}")
        self.fn = fn

    def forward(self, x: Node) -> Node:
        return self.fn(x) + x
