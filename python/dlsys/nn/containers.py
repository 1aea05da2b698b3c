"""Modules made of modules."""

from __future__ import annotations

import operator
from collections.abc import ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView
from typing import Any, Generic, Self, TypeVar

from ..autodiff import Parameter
from ..errors import GraphError
from ..graph import Node
from .module import Module

Entry = TypeVar("Entry")
Given = TypeVar("Given")


class _Numbered(Module, Generic[Entry, Given]):
    """Modules, or Parameters, by number: "0", "1", ...; Sequential's may have names."""

    _of = "modules"

    @property
    def _entries(self) -> dict[str, Any]:
        return self._modules

    def _put(self, name: str, value: Any) -> None:
        self.add_module(name, value)

    def _name(self, index: Any) -> str:
        """The name of an entry by its number, which may be negative. Raises IndexError."""
        at, names = operator.index(index), list(self._entries)
        if not -len(names) <= at < len(names):
            raise IndexError(f"{type(self).__name__}: index {at} is out of range for {len(names)} entries")
        return names[at]

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(list(self._entries.values()))

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return self._part(dict(list(self._entries.items())[index]))
        return self._entries[self._name(index)]

    def _part(self, entries: dict[str, Any]) -> Any:
        return type(self)(entries.values())

    def __setitem__(self, index: int, value: Entry) -> None:
        self._put(self._name(index), value)

    def append(self, value: Given) -> Self:
        """Add an entry at the end; returns the container. Raises GraphError, DTypeError."""
        return self.extend([value])

    def extend(self, values: Iterable[Given]) -> Self:
        """Add entries at the end, under the next free numbers; returns the container. Raises GraphError, DTypeError."""
        try:
            given = list(values)
        except TypeError:
            told = f"needs a list of {self._of}, not {type(values).__name__}"
            raise GraphError(f"{type(self).__name__}: {told}") from None
        for value in given:
            number = len(self)
            while str(number) in self._entries:
                number += 1
            self._put(str(number), value)
        return self


class Sequential(_Numbered[Module, Module]):
    """One module after another. Takes modules, or one dict of names to modules."""

    def __init__(self, *modules: Any) -> None:
        if len(modules) == 1 and isinstance(modules[0], Mapping):
            for name, module in modules[0].items():
                self.add_module(name, module)
        else:
            self.extend(modules)

    def _part(self, entries: dict[str, Any]) -> Any:
        return Sequential(entries)

    def forward(self, x: Any) -> Any:
        for module in self:
            x = module(x)
        return x


class ModuleList(_Numbered[Module, Module]):
    """A list of modules whose Parameters belong to the module that holds it."""

    def __init__(self, modules: Iterable[Module] = ()) -> None:
        """Raises GraphError for what are no modules."""
        self.extend(modules)

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


class ParameterList(_Numbered[Parameter, Any]):
    """A list of Parameters, "0", "1", ..., which belong to the module that holds it."""

    _of = "Parameters"

    def __init__(self, values: Iterable[Any] = ()) -> None:
        """Arrays and tensors become Parameters. Raises GraphError for what is no list of them, DTypeError."""
        self.extend(values)

    @property
    def _entries(self) -> dict[str, Any]:
        return self._parameters

    def _put(self, name: str, value: Any) -> None:
        setattr(self, name, value if isinstance(value, Parameter) else Parameter(value))

    def __setitem__(self, index: int, value: Parameter) -> None:
        setattr(self, self._name(index), value)

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
