"""The base of modules: parameters, buffers and submodules by name, as PyTorch names them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self, TypeVar, overload

import numpy as np

from ..autodiff import Parameter
from ..checks import flag, has_no_effect
from ..devices import copied, host_array
from ..errors import DTypeError, GraphError, ShapeError, StateError
from ..graph import Node, is_node
from ..scopes import scopes
from ..tensors import Tensor, is_leaf, known_shape, leaf
from ..tensors.backward import zero_gradients
from ..tensors.creation import tensors_in
from ..tensors.evaluate import array_of
from .casts import move
from .checks import as_node, warn_of_hidden
from .printing import settings, tree

ModuleType = TypeVar("ModuleType", bound="Module")
LeafType = TypeVar("LeafType", bound=Tensor)
Result = TypeVar("Result")
Returned = TypeVar("Returned", covariant=True)


class Part:
    """A call of a module, from within `caller`, the call of another one or None.

    Attributes:
        module: which was called.
    """

    __slots__ = ("_caller", "_told", "module")

    def __init__(self, caller: Part | None, module: Module) -> None:
        self.module: Module = module
        self._caller = caller
        self._told = ""

    @property
    def path(self) -> str:
        """The name by which the module that was called first knows this one."""
        return "" if self._caller is None else self._caller._path_of(self.module)

    def _path_of(self, module: Module) -> str:
        """The path of a module that is called from within."""
        own = next((name for name, child in self.module._modules.items() if child is module), None)
        if own is None:  # deeper, as in a list, or not below
            names = (name for name, one in self.module.named_modules() if one is module)
            own = next(names, type(module).__name__)
        path = self.path
        return f"{path}.{own}" if path and own else path or own

    def __str__(self) -> str:
        """Path and settings."""
        if not self._told:
            label, path = self.module._label(), self.path
            self._told = f"{path}: {label}" if path else label
        return self._told


class IncompatibleKeys(NamedTuple):
    """The names that `load_state_dict` did not find, and those for which it had no place."""

    missing_keys: list[str]
    unexpected_keys: list[str]


class ForwardHook:
    """A function that a module calls after `forward`, until `remove`."""

    def __init__(self, hooks: list[ForwardHook], function: Callable[[Any, tuple[Any, ...], Any], Any]) -> None:
        self.function = function
        self._hooks = hooks
        hooks.append(self)

    def remove(self) -> None:
        """Have the function not be called any more."""
        self._hooks[:] = [hook for hook in self._hooks if hook is not self]


class Parameters(list[LeafType]):
    """A list whose entries `next` takes out, as PyTorch's iterators of parameters do: next(model.parameters())."""

    def __next__(self) -> LeafType:
        if not self:
            raise StopIteration
        return self.pop(0)


class Forward(Protocol[Returned]):
    """A module whose `forward` returns something; a node is always a tensor."""

    def forward(self, *args: Any, **kwargs: Any) -> Returned: ...


class Module:
    """A part of a network: a subclass sets Parameters and Modules as attributes and defines `forward`.

    Calling a module makes the nodes of `forward`; nothing is computed yet. Attributes: `training`, see `train`.
    """

    _training: bool
    _parameters: dict[str, Parameter]
    _buffers: dict[str, Tensor]
    _modules: dict[str, Module]
    _not_saved: set[str]
    _forward_hooks: list[ForwardHook]

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """The module with empty tables, so that a subclass need not call `super().__init__()`."""
        self = super().__new__(cls)
        for name in ("_parameters", "_buffers", "_modules"):
            object.__setattr__(self, name, {})
        object.__setattr__(self, "_not_saved", set())
        object.__setattr__(self, "_forward_hooks", [])
        object.__setattr__(self, "_training", True)
        return self

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Computes the module's result; a subclass defines it."""
        raise NotImplementedError(f"{type(self).__name__} does not define forward")

    @overload
    def __call__(self: Forward[Node], *args: Any, **kwargs: Any) -> Tensor: ...
    @overload
    def __call__(self: Forward[Result], *args: Any, **kwargs: Any) -> Result: ...
    def __call__(self: Module, *args: Any, **kwargs: Any) -> Any:
        """`forward`, and the hooks; arrays (of NumPy, PyTorch, dlsys) among the arguments become tensors."""
        caller = scopes.part
        scopes.part = Part(caller, self)
        try:
            args = tuple(map(as_node, args))
            kwargs = {name: as_node(value) for name, value in kwargs.items()} if kwargs else kwargs
            found = self.forward(*args, **kwargs)
            for hook in list(self._forward_hooks):
                replaced = hook.function(self, args, found)
                found = found if replaced is None else replaced
        finally:
            scopes.part = caller
        if caller is None:
            for output in tensors_in(found):  # of these a program asks the accuracy when the parameters have changed
                output.node.keeps = True
        return found

    def register_forward_hook(self, hook: Callable[[Any, tuple[Any, ...], Any], Any]) -> ForwardHook:
        """Have each call of the module call `hook(module, args, output)` after `forward`; what it returns, unless that
        is None, is the output. Returns a handle, whose `remove` ends that. Raises GraphError.

        A call makes nodes: a hook is called where a graph is made, not where it is run."""
        if not callable(hook):
            raise GraphError(f"register_forward_hook: takes a function, not {type(hook).__name__}")
        return ForwardHook(self._forward_hooks, hook)

    def require(self, condition: bool, x: Node) -> None:
        """Raise a ShapeError that names the module's path and x's shape where the condition does not hold."""
        if not condition:
            told = scopes.part if scopes.part is not None and scopes.part.module is self else self._label()
            raise ShapeError(f"{told} got {known_shape(x)} [{x.name}, made at {x.location}]")

    def extra_repr(self) -> str:
        """The module's settings, for `repr` and errors: the arguments that made it."""
        return settings(self)

    def _label(self) -> str:
        """The module in one line."""
        return f"{type(self).__name__}({self.extra_repr()})"

    @property
    def training(self) -> bool:
        """Whether the module is in training; a compiled function that reads it is recorded anew for another mode."""
        if scopes.recording is not None:
            scopes.recording.depends(self, "_training")
        return self._training

    @training.setter
    def training(self, mode: bool) -> None:
        object.__setattr__(self, "_training", mode)

    # Names ---------------------------------------------------------------------------------------------------

    def __setattr__(self, name: str, value: Any) -> None:
        """Puts a Parameter, a Module or a buffer's new state into its table, anything else among the attributes. Raises
        GraphError for a parameter's, module's or buffer's name with another kind of value."""
        own = f"{type(self).__name__}.{name}"
        kinds = (
            (Parameter, self._parameters, "parameter: assign an nn.Parameter"),
            (Module, self._modules, "module: assign a Module"),
        )
        home: dict[str, Any] | None = None
        for kind, table, told in kinds:
            if isinstance(value, kind):
                home = table
            elif name in table and value is not None:
                given = "tensor" if is_node(value) else type(value).__name__
                raise GraphError(f"{own} is a {told} or None, not a {given}")
        if name in self._buffers and home is None and value is not None:
            if not is_node(value):
                raise GraphError(f"{own} is a buffer: assign a tensor or None, not a {type(value).__name__}")
            if scopes.recording is not None and self._buffers[name] is not None:
                self._buffers[name].assign(value)  # it lives from call to call
            else:
                self._buffers[name] = value if is_leaf(value) else value.detach()  # type: ignore[attr-defined]
            return
        for other in (self._parameters, self._buffers, self._modules):
            if other is not home:
                other.pop(name, None)
        if home is None:
            warn_of_hidden(own, value)
            object.__setattr__(self, name, value)
            return
        if isinstance(value, Parameter):
            value.name = name if value.name == f"parameter_{value.id}" else value.name
            if scopes.recording is not None:
                scopes.recording.keeps(value)
        home[name] = value
        self.__dict__.pop(name, None)

    if not TYPE_CHECKING:  # for a checker a name is what `__init__` assigns or the class declares; another is an error

        def __getattr__(self, name: str) -> Any:
            for table in ("_parameters", "_buffers", "_modules"):
                found = self.__dict__.get(table, {})
                if name in found:
                    return found[name]
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")

    def __delattr__(self, name: str) -> None:
        """Removes a parameter, a buffer, a module or another attribute."""
        for table in ("_parameters", "_buffers", "_modules"):
            if name in self.__dict__[table]:
                del self.__dict__[table][name]
                return
        object.__delattr__(self, name)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._parameters, *self._buffers, *self._modules]

    def register_parameter(self, name: str, parameter: Any) -> None:
        """`self.<name> = Parameter`, for names that are no identifiers; None for one that is left out. Raises
        GraphError."""
        self._check_name("register_parameter", name)
        if parameter is not None and not isinstance(parameter, Parameter):
            raise GraphError(f"register_parameter: {name} must be a Parameter, not {type(parameter).__name__}")
        setattr(self, name, parameter)

    def register_buffer(self, name: str, value: Any, persistent: bool = True) -> None:
        """State that no optimizer trains, as a running mean: an array or a leaf, read as `self.<name>`; None for one
        that is left out. A tensor that is assigned to the name is the new state; a Parameter becomes the module's, as
        under another name. `persistent`: whether it is part of `state_dict`. Raises GraphError, DTypeError."""
        self._check_name("register_buffer", name)
        persistent = flag("register_buffer", "persistent", persistent)
        if value is None:
            setattr(self, name, None)
            return
        given = value if is_leaf(value) else leaf(np.array(host_array(value), order="C"), name=name)
        given.requires_grad = False
        if scopes.recording is not None:
            scopes.recording.keeps(given)
        self.__dict__.pop(name, None)
        self._buffers[name] = given
        self._not_saved.discard(name)
        if not persistent:
            self._not_saved.add(name)

    def add_module(self, name: str, module: Module) -> None:
        """`self.<name> = module`, for names that are no identifiers. Raises GraphError."""
        self._check_name("add_module", name)
        if not isinstance(module, Module):
            raise GraphError(f"add_module: {name} must be a Module, not {type(module).__name__}")
        self._modules[name] = module

    def _check_name(self, function: str, name: Any) -> None:
        """Raises GraphError for a name that is no text, has a dot, or is an attribute of the class."""
        if not isinstance(name, str) or not name or "." in name:
            raise GraphError(f"{function}: a name must be text without dots, not {name!r}")
        if hasattr(type(self), name):
            raise GraphError(f"{function}: {type(self).__name__} has an attribute {name!r} already")

    def get_submodule(self, target: str) -> Module:
        """The module of a dotted name, as `named_modules` says them; "" is the module itself. Raises GraphError."""
        if not isinstance(target, str):
            raise GraphError(f"get_submodule: a name must be text, not {target!r}")
        module: Any = self
        for part in target.split(".") if target else ():
            if part not in module._modules:
                raise GraphError(f"get_submodule: {type(module).__name__} has no module {part!r} (of {target!r})")
            module = module._modules[part]
        return module

    def get_parameter(self, target: str) -> Parameter:
        """The Parameter of a dotted name, as `named_parameters` says them. Raises GraphError."""
        path, _, name = target.rpartition(".") if isinstance(target, str) else ("", "", target)
        found = self.get_submodule(path)._parameters.get(name)
        if found is None:
            raise GraphError(f"get_parameter: {type(self).__name__} has no parameter {target!r}")
        return found

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

    def _named(self, table: str, prefix: str, recurse: bool) -> Iterator[tuple[str, Module, str, Any]]:
        """Of each entry of a table, "_parameters" or "_buffers", once: its dotted name, its module, its own name, its
        value."""
        seen: set[Node] = set()
        for path, module in self.named_modules(prefix) if flag("parameters", "recurse", recurse) else [(prefix, self)]:
            for key, value in getattr(module, table).items():
                if value not in seen:
                    seen.add(value)
                    yield f"{path}.{key}" if path else key, module, key, value

    def named_parameters(self, prefix: str = "", recurse: bool = True) -> Iterator[tuple[str, Parameter]]:
        """All Parameters, each once, by their dotted names; without `recurse` the module's own."""
        return ((name, value) for name, _, _, value in self._named("_parameters", prefix, recurse))

    def parameters(self, recurse: bool = True) -> Parameters[Parameter]:
        """All Parameters, each once; without `recurse` the module's own."""
        return Parameters(value for _, value in self.named_parameters(recurse=recurse))

    def named_buffers(self, prefix: str = "", recurse: bool = True) -> Iterator[tuple[str, Tensor]]:
        """All buffers, each once, by their dotted names; without `recurse` the module's own."""
        return ((name, value) for name, _, _, value in self._named("_buffers", prefix, recurse))

    def buffers(self, recurse: bool = True) -> Parameters[Tensor]:
        """All buffers, each once; without `recurse` the module's own."""
        return Parameters(value for _, value in self.named_buffers(recurse=recurse))

    def apply(self: ModuleType, function: Callable[[Module], Any]) -> ModuleType:
        """Call the function with every module, those below first; returns the module itself. Raises GraphError."""
        if not callable(function):
            raise GraphError(f"{type(self).__name__}.apply: takes a function of a module, not {function!r}")
        for module in reversed(list(self.modules())):
            function(module)
        return self

    # State ---------------------------------------------------------------------------------------------------

    def train(self: ModuleType, mode: bool = True) -> ModuleType:
        """Set `training` here and below; dropout and batch norm obey it in new graphs. Raises GraphError."""
        if not isinstance(mode, (bool, np.bool_)):
            raise GraphError(f"{type(self).__name__}.train: mode must be True or False, not {mode!r}")
        for module in self.modules():
            module.training = bool(mode)
        return self

    def eval(self: ModuleType) -> ModuleType:
        """`train(False)`."""
        return self.train(False)

    def requires_grad_(self: ModuleType, requires_grad: bool = True) -> ModuleType:
        """Set `requires_grad` of all Parameters."""
        for parameter in self.parameters():
            parameter.requires_grad = requires_grad
        return self

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget what `backward` left in the Parameters, or set it to zeros."""
        zero_gradients(self.parameters(), set_to_none)

    def to(
        self: ModuleType, *args: Any, dtype: Any = None, device: Any = None, non_blocking: bool = False
    ) -> ModuleType:
        """Parameters and buffers of floats in another dtype, "float32", "float64" or a tensor's; or on another device,
        "cpu", "cuda:0" or a context, where they stay the same Parameters. Returns the module.

        In another dtype they become other Parameters: make optimizers and graphs afterwards. Raises DTypeError,
        DeviceError.
        """
        if non_blocking:
            has_no_effect("to", "non_blocking=True", "what is computed afterwards waits for the copy")
        for value in (*args, *(given for given in (dtype, device) if given is not None)):
            move(self, value)
        return self

    def float(self: ModuleType) -> ModuleType:
        """`to("float32")`."""
        return self.to("float32")

    def double(self: ModuleType) -> ModuleType:
        """`to("float64")`."""
        return self.to("float64")

    def cpu(self: ModuleType) -> ModuleType:
        """`to("cpu")`."""
        return self.to("cpu")

    def cuda(self: ModuleType, device: Any = None) -> ModuleType:
        """`to` a GPU, the first for None."""
        return self.to("cuda:0" if device is None else f"cuda:{device}")

    def _saved(self) -> dict[str, Tensor]:
        """The Parameters and buffers of `state_dict`, in PyTorch's order; one that modules share under each of its
        names, but for those of a path that comes back to a module on it."""
        found: dict[str, Tensor] = {}
        stack: list[tuple[str, Module, tuple[Module, ...]]] = [("", self, ())]
        while stack:
            prefix, module, above = stack.pop()
            if module in above:
                continue
            found |= {prefix + key: value for key, value in module._parameters.items()}
            found |= {prefix + k: v for k, v in module._buffers.items() if k not in module._not_saved}
            path = (*above, module)
            stack += reversed([(f"{prefix}{key}.", child, path) for key, child in module._modules.items()])
        return found

    def state_dict(self, *, prefix: str = "") -> dict[str, Tensor]:
        """Tensors with copies of Parameters and buffers by their dotted names, after `prefix`, with PyTorch's names,
        order and layouts. Training changes the module, not these. Raises GraphError for a prefix that is no text."""
        if not isinstance(prefix, str):
            raise GraphError(f"state_dict: the prefix must be text, not {prefix!r}")
        return {prefix + name: leaf(copied(array_of(value)), name=name) for name, value in self._saved().items()}

    def load_state_dict(self, state: Mapping[str, Any], strict: bool = True) -> IncompatibleKeys:
        """Set Parameters and buffers from arrays (of NumPy, PyTorch, dlsys) by name, cast to their dtypes. Returns the
        missing and the unexpected names. Raises StateError, a RuntimeError as PyTorch's, that lists them all if
        `strict`, or all shapes that differ; DTypeError for what is no array. Nothing is changed then."""
        own, strict = self._saved(), flag("load_state_dict", "strict", strict)
        if not isinstance(state, Mapping):
            raise StateError(f"load_state_dict: needs a dictionary, not {type(state).__name__}")
        missing, unexpected = [k for k in own if k not in state], [str(k) for k in state if k not in own]
        if strict and (missing or unexpected):
            parts = [("missing", missing), ("unexpected", unexpected)]
            told = "; ".join(f"{kind} keys: {', '.join(keys)}" for kind, keys in parts if keys)
            raise StateError(f"{type(self).__name__}.load_state_dict: {told}")
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
            raise StateError(f"{type(self).__name__}.load_state_dict: {'; '.join(wrong)}")
        for name, value in values.items():
            own[name].value = value
        return IncompatibleKeys(missing, unexpected)

    def __repr__(self) -> str:
        """The tree: settings, each module's own Parameters with shapes, and how many numbers are below."""
        return tree(self)


@contextlib.contextmanager
def in_mode(module: Module, training: bool) -> Iterator[None]:
    """The module in training, or in evaluation; afterwards each part is as it was."""
    modes = [(part, part.training) for part in module.modules()]
    module.train(training)
    try:
        yield
    finally:
        for part, mode in modes:
            part.training = mode
