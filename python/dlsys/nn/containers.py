"""Modules made of modules."""

from __future__ import annotations

import operator
from collections.abc import ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView
from typing import Any

from ..autodiff import Node
from ..errors import GraphError
from .module import Module


def _entry(owner: Any, index: Any, length: int) -> int:
    """An index, which may be negative, as a position. Raises IndexError."""
    at = operator.index(index)
    if not -length <= at < length:
        raise IndexError(f"{type(owner).__name__}: index {at} is out of range for {length} entries")
    return at % length


def _pairs(owner: Any, values: Any) -> Iterable[tuple[Any, Any]]:
    """A dict or pairs of names and values as pairs. Raises GraphError."""
    if isinstance(values, (Mapping, ModuleDict)):
        return values.items()
    if not isinstance(values, Iterable) or isinstance(values, (str, Node)):
        raise GraphError(f"{type(owner).__name__}: needs a dict or pairs, not {type(values).__name__}")
    return list(values)


class _Numbered(Module):
    """Modules by number: "0", "1", ...; Sequential's may have names."""

    def _add(self, modules: Iterable[Any]) -> None:
        for module in modules:
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

    def append(self, module: Module) -> Any:
        """Add a module at the end; returns the container."""
        self._add([module])
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
        if not isinstance(modules, Iterable):
            raise GraphError(f"ModuleList: needs a list of modules, not {type(modules).__name__}")
        self._add(modules)

    def _part(self, entries: dict[str, Module]) -> Any:
        return ModuleList(entries.values())

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        raise GraphError("ModuleList: call its members, it has no forward of its own")


class ModuleDict(Module):
    """A dict of modules whose Parameters belong to the module that holds it; in the order in which they were added."""

    def __init__(self, modules: Any = None) -> None:
        """modules: a dict, or pairs of names and modules. Raises GraphError."""
        for name, module in () if modules is None else _pairs(self, modules):
            self[name] = module

    def __getitem__(self, name: str) -> Module:
        return self._modules[name]

    def __setitem__(self, name: str, module: Module) -> None:
        self.add_module(name, module)

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

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        raise GraphError("ModuleDict: call its members, it has no forward of its own")


class Residual(Module):
    """y = x + fn(x)."""

    def __init__(self, fn: Module) -> None:
        """Raises GraphError for what cannot be called."""
        if not callable(fn):
            raise GraphError(f"Residual: fn must be a Module, not {type(fn).__name__}")
        self.fn = fn

    def forward(self, x: Node) -> Node:
        return self.fn(x) + x
