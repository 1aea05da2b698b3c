"""`Network`: a graph as a module; and modules as graphs."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import autodiff as ad
from ..autodiff import Executor
from ..compiler import feed_type
from ..errors import FeedError, GraphError, ShapeError
from ..graph import Node, find_topo_sort, handle_of, named
from ..nn import Module
from ..nn.module import in_mode
from ..scopes import scopes
from ..tensors import known_shape, leaf
from ..tensors.creation import tensors_in
from ..tensors.evaluate import array_of


class Imported(Module):
    """A module whose arguments have names and dtypes.

    Attributes:
        inputs: a Variable for each argument, of its name and dtype, and of its shape where that is known.
    """

    inputs: tuple[Node, ...]


class Network(Imported):
    """A graph as a module. Called with values of its inputs, in their order, it returns the outputs' values: one alone
    as it is, else a tuple. An Executor runs the graph itself: `Executor(network.outputs).run({network.inputs[0]: x})`.

    Attributes:
        inputs: its Variables.
        outputs: its nodes, of the buffers as they were made; after `to` they are of the former ones.
    """

    outputs: tuple[Node, ...]
    _order: list[Node]
    _variables: list[Node]
    _places: list[tuple[Any, Module, str]]
    _executor: Executor
    _told: str

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...  # buffers and modules by the names of where they come from

    def __init__(self, inputs: Sequence[Node], outputs: Sequence[Node], buffers: Iterable[Node] = ()) -> None:
        self.inputs, self.outputs = (tuple([handle_of(node) for node in named(list(x))]) for x in (inputs, outputs))
        order = find_topo_sort(named(self.outputs))
        buffers = [handle_of(node) for node in named(list(buffers))]
        places = []
        for buffer in buffers:
            *path, name = place(self, buffer.name, buffer, trained=False).split(".")
            home: Module = self
            for part in path:
                home = home._modules[part]
            places.append((buffer, home, name))
        taken = ", ".join(f"{node.name} {node.attrs['shape']}" for node in self.inputs)
        told = f"{taken}; {sum(bool(node.inputs) for node in order)} operators"
        own = {"_order": order, "_variables": named(self.inputs), "_places": places, "_told": told}
        for name, value in (*own.items(), ("_executor", Executor(self.outputs))):  # where no parameters are looked for
            object.__setattr__(self, name, value)

    def extra_repr(self) -> str:
        """The inputs with their shapes, and the number of operators."""
        return self._told

    def forward(self, *values: Node) -> Any:
        require_count(self, values)
        for node, value in zip(self.inputs, values, strict=True):
            if (shape := known_shape(value)) not in (None, wanted := node.attrs["shape"]):
                raise ShapeError(f"{node.name} must be {wanted}, as it was frozen, not {shape}")
        if self._runs(values):
            arrays = [array_of(value) for value in values]
            results = self._executor.run_copied(dict(zip(self._variables, arrays, strict=True)))
            found: list[Node] = [leaf(result) for result in results]
            return found[0] if len(found) == 1 else tuple(found)
        known: dict[Node, Any] = dict(zip(self._variables, values, strict=True))
        known.update((buffer.node, getattr(home, name)) for buffer, home, name in self._places)  # `to` makes others
        for node in self._order:
            if node not in known:
                known[node] = node.op(*[known[v] for v in node.inputs], **node.attrs) if node.inputs else node
        found = [known[node] for node in named(self.outputs)]
        return found[0] if len(found) == 1 else tuple(found)

    def _runs(self, values: Sequence[Any]) -> bool:
        """Whether the network's own Executor computes the outputs: of leaves on the CPU that need no gradient, with the
        buffers where they were made."""
        for value in values:
            node = value.node
            if not node.op.leaf or node.tracks or node.held is None or node.held.context.kind != "cpu":
                return False
        if scopes.recording is not None:
            return False
        return all(home._buffers.get(name) is buffer for buffer, home, name in self._places)


def require_count(network: Imported, values: Sequence[Any]) -> None:
    """Raises GraphError for more or fewer values than the network has inputs."""
    if len(values) != len(network.inputs):
        names = ", ".join(node.name for node in network.inputs)
        raise GraphError(f"takes {len(network.inputs)} values, {names}; got {len(values)}")


def place(network: Module, dotted: str, leaf: Node, trained: bool) -> str:
    """Make a parameter, or a buffer, the attribute of a dotted name, `layer1.0.weight` that of module `0` of module
    `layer1`; returns this name, with `_` behind parts that are empty or taken."""
    *path, name = dotted.split(".")
    home, names = network, []
    for part in path:
        while not part or (part not in home._modules and hasattr(home, part)):
            part += "_"
        if part not in home._modules:
            home.add_module(part, Module())
        home = home._modules[part]
        names.append(part)
    while not name or hasattr(home, name):
        name += "_"
    (home.register_parameter if trained else home.register_buffer)(name, leaf)
    return ".".join([*names, name])


class Traced(NamedTuple):
    """A module as a graph: Variables for its arguments, its outputs, and the names of its parameters and buffers."""

    inputs: list[Node]
    outputs: list[Node]
    names: dict[Node, str]


def traced(function: str, module: Any, feed_shapes: Mapping[str, Any] | None) -> Traced:
    """The graph of a module in evaluation, whose arguments have these shapes; those of an imported one its own where
    none are given. Raises GraphError for what is no module, FeedError for shapes that are no dictionary by names, or do
    not fit `forward`, ShapeError for extents that are no numbers."""
    if not isinstance(module, Module):
        raise GraphError(f"{function}: takes a module, not {type(module).__name__}")
    declared = module.inputs if isinstance(module, Imported) else ()
    if feed_shapes is None and declared:
        feed_shapes = {node.name: node.attrs["shape"] for node in declared}
        if unknown := [name for name, shape in feed_shapes.items() if shape is None]:
            raise ShapeError(f"{function}: {unknown[0]} has no known shape: give feed_shapes={{{unknown[0]!r}: ...}}")
    if not isinstance(feed_shapes, Mapping):
        raise FeedError(f"{function}: feed_shapes is a dictionary, not {type(feed_shapes).__name__}")
    if any(isinstance(extent, str) for shape in feed_shapes.values() if isinstance(shape, tuple) for extent in shape):
        raise ShapeError(f"{function}: an extent is a number, not a name: {dict(feed_shapes)}")
    variables: list[Node] = []
    for position, (name, value) in enumerate(feed_shapes.items()):
        if not isinstance(name, str):
            raise FeedError(f"{function}: of a module, feed_shapes has names of arguments, not {name!r}")
        dtype = declared[position].attrs["dtype"] if position < len(declared) else None
        variables.append(ad.Variable(name, *feed_type(ad.Variable(name, dtype=dtype), value)))
    try:
        inspect.signature(module.forward).bind(*variables)
    except TypeError as error:
        raise FeedError(f"{function}: {type(module).__name__}.forward: {error}") from None
    with in_mode(module, False):
        outputs: list[Node] = list(tensors_in(module(*variables)))
    names: dict[Node, str] = {x.node: name for name, x in [*module.named_parameters(), *module.named_buffers()]}
    return Traced(named(variables), named(outputs), names)
