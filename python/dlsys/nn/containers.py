"""Modules made of modules."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ..autodiff import Node
from ..errors import GraphError
from .module import Module


class _Numbered(Module):
    """Modules by number: "0", "1", ..."""

    def _add(self, modules: Iterable[Any]) -> None:
        for module in modules:
            self.add_module(str(len(self._modules)), module)

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[Module]:
        return iter(list(self._modules.values()))

    def __getitem__(self, index: Any) -> Any:
        members = list(self._modules.values())
        if isinstance(index, slice):
            return type(self)(members[index]) if isinstance(self, ModuleList) else type(self)(*members[index])
        return members[index]

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

    def forward(self, x: Any) -> Any:
        for module in self:
            x = module(x)
        return x


class ModuleList(_Numbered):
    """A list of modules whose Parameters belong to the module that holds it."""

    def __init__(self, modules: Iterable[Module] = ()) -> None:
        self._add(modules)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        raise GraphError("ModuleList: call its members, it has no forward of its own")


class Residual(Module):
    """y = x + fn(x)."""

    def __init__(self, fn: Module) -> None:
        self.fn = fn

    def forward(self, x: Node) -> Node:
        return self.fn(x) + x
