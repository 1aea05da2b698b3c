"""Modules made of modules."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Mapping
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


class _Numbered(Module):
    """Modules by number: "0", "1", ...; Sequential's may have names."""

    def _add(self, modules: Iterable[Any]) -> None:
        try:
            given = list(modules)
        except TypeError:
            told = f"needs a list of modules, not {type(modules).__name__}"
            raise GraphError(f"{type(self).__name__}: {told}") from None
        for module in given:
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
        self._add(modules)

    def _part(self, entries: dict[str, Module]) -> Any:
        return ModuleList(entries.values())

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        raise GraphError("ModuleList: call its members, it has no forward of its own")


class Residual(Module):
    """y = x + fn(x)."""

    def __init__(self, fn: Module) -> None:
        """Raises GraphError for what cannot be called."""
        if not callable(fn):
            raise GraphError(f"Residual: fn must be a Module, not {type(fn).__name__}")
        self.fn = fn

    def forward(self, x: Node) -> Node:
        return self.fn(x) + x
