"""The base of modules: parameters, buffers and submodules by name, as PyTorch names them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import numpy as np

from ..autodiff import Node, Parameter
from ..device import host_array
from ..eager import known_shape, tensor
from ..errors import DTypeError, GraphError, ShapeError
from ..graph import scope

ModuleType = TypeVar("ModuleType", bound="Module")


class _Calls(threading.local):
    """The modules that a thread is inside of, outermost first, each with its path below the first."""

    def __init__(self) -> None:
        self.stack: list[tuple[Module, str]] = []


_calls = _Calls()


class Module:
    """A part of a network: a subclass sets Parameters and Modules as attributes and defines `forward`.

    Calling a module makes the nodes of `forward`; nothing is computed yet. Attributes: `training`, see `train`.
    """

    training: bool

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        self = super().__new__(cls)
        for name in ("_parameters", "_buffers", "_modules"):
            object.__setattr__(self, name, {})
        object.__setattr__(self, "_not_saved", set())
        object.__setattr__(self, "training", True)
        return self

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the module computes."""
        raise NotImplementedError(f"{type(self).__name__} does not define forward")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """`forward`; arrays (of NumPy, PyTorch, dlsys) among the arguments become tensors."""
        path = self._path()
        _calls.stack.append((self, path))
        try:
            with scope(f"{path}: {self._label()}" if path else self._label()):
                args = tuple(map(_as_node, args))
                return self.forward(*args, **kwargs)
        finally:
            _calls.stack.pop()

    def _path(self) -> str:
        """The name by which the outermost module that is being called knows this one."""
        if not _calls.stack:
            return ""
        caller, path = _calls.stack[-1]
        own = next((name for name, module in caller.named_modules() if module is self), type(self).__name__)
        return f"{path}.{own}" if path and own else path or own

    def require(self, condition: bool, x: Node) -> None:
        """Raise a ShapeError that names the module's path and x's shape where the condition does not hold."""
        if not condition:
            path = _calls.stack[-1][1] if _calls.stack and _calls.stack[-1][0] is self else ""
            where = f"{path}: " if path else ""
            raise ShapeError(f"{where}{self._label()} got {known_shape(x)} [{x.name}, made at {x.location}]")

    def extra_repr(self) -> str:
        """The module's settings, for `repr` and errors."""
        return ""

    def _label(self) -> str:
        """The module in one line."""
        return f"{type(self).__name__}({self.extra_repr()})"

    # Names ---------------------------------------------------------------------------------------------------

    def __setattr__(self, name: str, value: Any) -> None:
        tables: dict[str, dict[str, Any]] = {key: self.__dict__[key] for key in ("_parameters", "_buffers", "_modules")}
        if isinstance(value, Parameter) and name in tables["_buffers"]:
            tables["_buffers"][name] = value
            return
        for table in tables.values():
            table.pop(name, None)
        if isinstance(value, Parameter):
            if value.name == f"parameter_{value.id}":
                value.name = name
            tables["_parameters"][name] = value
        elif isinstance(value, Module):
            tables["_modules"][name] = value
        else:
            object.__setattr__(self, name, value)
            return
        self.__dict__.pop(name, None)

    def __getattr__(self, name: str) -> Any:
        for table in ("_parameters", "_buffers", "_modules"):
            found = self.__dict__.get(table, {})
            if name in found:
                return found[name]
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")

    def __delattr__(self, name: str) -> None:
        for table in ("_parameters", "_buffers", "_modules"):
            if name in self.__dict__[table]:
                del self.__dict__[table][name]
                return
        object.__delattr__(self, name)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._parameters, *self._buffers, *self._modules]

    def register_buffer(self, name: str, value: Any, persistent: bool = True) -> None:
        """State that no optimizer trains, as a running mean: an array or a Parameter, read as `self.<name>`.
        `persistent`: whether it is part of `state_dict`."""
        given = value if isinstance(value, Parameter) else Parameter(value, name, requires_grad=False)
        given.requires_grad = False
        self._buffers[name] = given
        if not persistent:
            self._not_saved.add(name)

    def add_module(self, name: str, module: Module) -> None:
        """`self.<name> = module`, for names that are no identifiers."""
        if not isinstance(module, Module):
            raise GraphError(f"add_module: {name} must be a Module, not {type(module).__name__}")
        self._modules[name] = module

    # Walking -------------------------------------------------------------------------------------------------

    def named_modules(self, prefix: str = "") -> Iterator[tuple[str, Module]]:
        """The module itself and all below, each once, by their dotted names."""
        seen: set[int] = set()
        stack: list[tuple[str, Module]] = [(prefix, self)]
        while stack:
            name, module = stack.pop()
            if id(module) in seen:
                continue
            seen.add(id(module))
            yield name, module
            below = [(f"{name}.{key}" if name else key, child) for key, child in module._modules.items()]
            stack += reversed(below)

    def modules(self) -> Iterator[Module]:
        """The module itself and all below."""
        return (module for _, module in self.named_modules())

    def children(self) -> Iterator[Module]:
        """The modules directly below."""
        return iter(self._modules.values())

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """The modules directly below, by name."""
        return iter(self._modules.items())

    def _named(self, table: str) -> Iterator[tuple[str, Module, str, Parameter]]:
        seen: set[Parameter] = set()
        for prefix, module in self.named_modules():
            for key, value in getattr(module, table).items():
                if value not in seen:
                    seen.add(value)
                    yield f"{prefix}.{key}" if prefix else key, module, key, value

    def named_parameters(self) -> Iterator[tuple[str, Parameter]]:
        """All Parameters, each once, by their dotted names."""
        return ((name, value) for name, _, _, value in self._named("_parameters"))

    def parameters(self) -> list[Parameter]:
        """All Parameters, each once."""
        return [value for _, value in self.named_parameters()]

    def named_buffers(self) -> Iterator[tuple[str, Parameter]]:
        """All buffers, each once, by their dotted names."""
        return ((name, value) for name, _, _, value in self._named("_buffers"))

    def buffers(self) -> list[Parameter]:
        """All buffers, each once."""
        return [value for _, value in self.named_buffers()]

    def apply(self: ModuleType, function: Callable[[Module], Any]) -> ModuleType:
        """Call the function with every module, those below first; returns the module itself."""
        for module in reversed(list(self.modules())):
            function(module)
        return self

    # State ---------------------------------------------------------------------------------------------------

    def train(self: ModuleType, mode: bool = True) -> ModuleType:
        """Set `training` here and below, which dropout and batch norm obey in graphs made from now on."""
        for module in self.modules():
            object.__setattr__(module, "training", bool(mode))
        return self

    def eval(self: ModuleType) -> ModuleType:
        """`train(False)`."""
        return self.train(False)

    def requires_grad_(self: ModuleType, requires_grad: bool = True) -> ModuleType:
        """Set `requires_grad` of all Parameters."""
        for parameter in self.parameters():
            parameter.requires_grad = bool(requires_grad)
        return self

    def zero_grad(self) -> None:
        """Forget what `backward` left in the Parameters."""
        for parameter in self.parameters():
            parameter.grad = None

    def _saved(self) -> dict[str, Parameter]:
        """What `state_dict` holds, in PyTorch's order; a Parameter under each of its names."""
        found: dict[str, Parameter] = {}
        stack: list[tuple[str, Module]] = [("", self)]
        while stack:
            prefix, module = stack.pop()
            found |= {prefix + key: value for key, value in module._parameters.items()}
            found |= {prefix + k: v for k, v in module._buffers.items() if k not in module._not_saved}
            stack += reversed([(f"{prefix}{key}.", child) for key, child in module._modules.items()])
        return found

    def state_dict(self) -> dict[str, np.ndarray]:
        """Copies of Parameters and buffers by their dotted names, with PyTorch's names, order and layouts."""
        return {name: parameter.value for name, parameter in self._saved().items()}

    def load_state_dict(self, state: Mapping[str, Any], strict: bool = True) -> tuple[list[str], list[str]]:
        """Set Parameters and buffers from arrays (of NumPy, PyTorch, dlsys) by name, cast to their dtypes.

        Returns the missing and the unexpected names. Raises GraphError that lists them all if `strict`, ShapeError that
        lists all shapes that differ, DTypeError for what is no array; nothing is changed then.
        """
        own = self._saved()
        if not isinstance(state, Mapping):
            raise GraphError(f"load_state_dict: needs a dictionary, not {type(state).__name__}")
        missing, unexpected = [k for k in own if k not in state], [str(k) for k in state if k not in own]
        if strict and (missing or unexpected):
            parts = [("missing", missing), ("unexpected", unexpected)]
            told = "; ".join(f"{kind} keys: {', '.join(keys)}" for kind, keys in parts if keys)
            raise GraphError(f"{type(self).__name__}.load_state_dict: {told}")
        values, wrong = {}, []
        for name, parameter in own.items():
            if name in state:
                try:
                    values[name] = host_array(state[name], parameter.dtype)
                except DTypeError as error:
                    raise DTypeError(f"load_state_dict: {name}: {error}") from None
                if values[name].shape != parameter.shape:
                    wrong.append(f"{name} has shape {parameter.shape}, the value {values[name].shape}")
        if wrong:
            raise ShapeError(f"{type(self).__name__}.load_state_dict: {'; '.join(wrong)}")
        for name, value in values.items():
            own[name].value = value
        return missing, unexpected

    # Printing ------------------------------------------------------------------------------------------------

    def __repr__(self) -> str:
        """The tree: settings, each module's own Parameters with shapes, and how many numbers are below."""
        lines: list[str] = []

        def describe(name: str, module: Module, depth: int) -> None:
            own = ", ".join(f"{key} {list(value.shape)}" for key, value in module._parameters.items())
            count = sum(map(_size, module.parameters()))
            label = f"{'  ' * depth}{f'({name}): ' if name else ''}{module._label()}"
            facts = f"{own + '; ' if own else ''}{count:,} parameters" if count else ""
            lines.append(f"{label}  # {facts}" if facts else label)
            for key, child in module._modules.items():
                describe(key, child, depth + 1)

        describe("", self, 0)
        return "\n".join(lines)


def _size(parameter: Parameter) -> int:
    return int(np.prod(parameter.shape, dtype=np.int64))


def _as_node(value: Any) -> Any:
    is_array = isinstance(value, np.ndarray) or (hasattr(value, "__dlpack__") and not isinstance(value, Node))
    return tensor(value) if is_array else value
