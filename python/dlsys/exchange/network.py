"""`Network`: a graph that was read from elsewhere, as a module."""

from __future__ import annotations

import contextlib
import inspect
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from .. import autodiff as ad
from ..autodiff import Executor, Node, Parameter
from ..compiler import feed_type
from ..errors import DlsysError, FeedError, GraphError, ShapeError
from ..graph import find_topo_sort
from ..nn import Module
from ..nn.module import in_mode
from ..scopes import scope
from ..tensors import dtype_of, known_shape, shape_of, tensor
from ..tensors.creation import tensors_in

MOST_FOLDED = 2**28
"""Bytes and operations of the values that are computed while a graph is read."""
_FREE = 4096
Value = Any
"""A value on the way: an `np.ndarray` where it does not depend on inputs or parameters, else a node."""


class Network(Module):
    """A graph as a module. Called with values of its inputs, in their order, it returns the outputs' values: one alone
    as it is, else a tuple. An Executor runs the graph itself: `Executor(network.outputs).run({network.inputs[0]: x})`.

    Parameters and buffers have the names that they had where they come from; optimizers train the parameters. What
    was for inference stays so: batch norm takes its running statistics, dropout does nothing.

    Attributes:
        inputs: its Variables, with the dtypes that it is made for.
        shapes: of the inputs; a name, as "batch", stands for any extent.
        outputs: its nodes, of the parameters as they were read; after `to` they are of the former ones.
        fixed: the leaves that are its buffers.
    """

    inputs: tuple[Node, ...]
    outputs: tuple[Node, ...]
    shapes: tuple[tuple[int | str, ...], ...]
    fixed: tuple[Node, ...]
    _order: list[Node]
    _places: list[tuple[Node, Module, str]]

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...  # parameters and modules by the names of where they come from

    def __init__(
        self,
        inputs: Sequence[Node],
        outputs: Sequence[Node],
        buffers: Iterable[Node] = (),
        shapes: Sequence[tuple[Any, ...]] | None = None,
    ) -> None:
        self.inputs, self.outputs = tuple(inputs), tuple(outputs)
        self.shapes = tuple(node.attrs["shape"] for node in inputs) if shapes is None else tuple(map(tuple, shapes))
        order, fixed = find_topo_sort(self.outputs), dict.fromkeys(buffers)
        object.__setattr__(self, "fixed", tuple(fixed))
        named = [node for node in order if node in fixed or isinstance(node, Parameter)]
        places = [(leaf, *_place(self, leaf, leaf in fixed)) for leaf in named]
        for name, value in (("_order", order), ("_places", places)):  # where no parameters are looked for
            object.__setattr__(self, name, value)

    def extra_repr(self) -> str:
        """The inputs with their shapes, and the number of operators."""
        shapes = (f"({', '.join(map(str, shape))}{',' * (len(shape) == 1)})" for shape in self.shapes)
        taken = ", ".join(f"{node.name} {shape}" for node, shape in zip(self.inputs, shapes, strict=True))
        return f"{taken}; {sum(bool(node.inputs) for node in self._order)} operators"

    def named_shapes(self) -> dict[str, tuple[Any, ...]] | None:
        """The inputs' shapes by name, of a network for any batch; None for others."""
        if not any(isinstance(extent, str) for shape in self.shapes for extent in shape):
            return None
        return {node.name: shape for node, shape in zip(self.inputs, self.shapes, strict=True)}

    def forward(self, *values: Node) -> Any:
        if len(values) != len(self.inputs):
            names = ", ".join(node.name for node in self.inputs)
            raise GraphError(f"takes {len(self.inputs)} values, {names}; got {len(values)}")
        extents: dict[Any, int] = {}  # of names
        for node, value, wanted in zip(self.inputs, values, self.shapes, strict=True):
            shape = known_shape(value)
            if shape is None:
                continue
            named = [(a, b) for a, b in zip(wanted, shape, strict=False) if isinstance(a, str)]
            pairs = zip(wanted, shape, strict=False)
            fits = tuple(extents.setdefault(a, b) if isinstance(a, str) else a for a, b in pairs)
            if len(wanted) != len(shape) or fits != shape:
                same = f", with the same {named[0][0]}" if named and len(wanted) == len(shape) else ""
                raise ShapeError(f"{node.name} must be {wanted}, as imported{same}, not {shape}")
        known = dict(zip(self.inputs, values, strict=True))
        known.update((leaf, getattr(home, name)) for leaf, home, name in self._places)  # `to` makes others of them
        for node in self._order:
            if node not in known:
                known[node] = (
                    node if not node.inputs else node.op.make([known[v] for v in node.inputs], node.attrs)
                )
        found = tuple(known[node] for node in self.outputs)
        return found[0] if len(found) == 1 else found


def _place(network: Module, leaf: Node, fixed: bool) -> tuple[Module, str]:
    """Make a parameter, or a buffer, the attribute of a dotted name, `layer1.0.weight` that of module `0` of module
    `layer1`; returns this module and the last name."""
    *path, name = leaf.name.split(".")
    home = network
    for part in path:
        while not part or (part not in home._modules and hasattr(home, part)):
            part += "_"
        if part not in home._modules:
            home.add_module(part, Module())
        home = home._modules[part]
    while not name or hasattr(home, name):
        name += "_"
    (home.register_buffer if fixed else home.register_parameter)(name, leaf)
    return home, name


class Traced(NamedTuple):
    """A module as a graph: Variables for its arguments, its outputs, and the names of its parameters and buffers."""

    inputs: list[Node]
    outputs: list[Node]
    names: dict[Node, str]


def traced(function: str, module: Any, feed_shapes: Mapping[str, Any] | None) -> Traced:
    """The graph of a module in evaluation; of a Network its own where no shapes are given. Raises GraphError for what
    is no module, FeedError for shapes that are no dictionary by names, or do not fit `forward`."""
    if not isinstance(module, Module):
        raise GraphError(f"{function}: takes a module, not {type(module).__name__}")
    names: dict[Node, str] = {leaf: name for name, leaf in [*module.named_parameters(), *module.named_buffers()]}
    if isinstance(module, Network) and feed_shapes is None:
        feed_shapes = module.named_shapes()
    if isinstance(module, Network) and feed_shapes is None:
        return Traced(list(module.inputs), list(module.outputs), names)
    if not isinstance(feed_shapes, Mapping):
        raise FeedError(f"{function}: feed_shapes is a dictionary, not {type(feed_shapes).__name__}")
    if any(isinstance(extent, str) for shape in feed_shapes.values() if isinstance(shape, tuple) for extent in shape):
        raise ShapeError(f"{function}: an extent is a number, not a name: {dict(feed_shapes)}")
    variables: list[Node] = []
    for name, value in feed_shapes.items():
        if not isinstance(name, str):
            raise FeedError(f"{function}: of a module, feed_shapes has names of arguments, not {name!r}")
        variables.append(ad.Variable(name, *feed_type(ad.Variable(name), value)))
    try:
        inspect.signature(module.forward).bind(*variables)
    except TypeError as error:
        raise FeedError(f"{function}: {type(module).__name__}.forward: {error}") from None
    with in_mode(module, False):
        outputs: list[Node] = list(tensors_in(module(*variables)))
    return Traced(variables, outputs, names)


def export(
    model: Module | Executor,
    path: Any,
    feed_shapes: Mapping[Any, Any] | None = None,
    *,
    constants: bool = False,
    mcpu: str | None = None,
) -> str:
    """Writes a run as the function `step` of a shared library, with a header for C and the parameters' values in a
    safetensors file beside it. Returns what `Executor.export` does.

    Args:
        model: a module, which is run in evaluation and whose parameters have their dotted names, `0.weight`; or an
            executor.
        path: of the library.
        feed_shapes: for a module a shape or an array for each argument of `forward`, in order, by the name that it
            shall have; a Network has its own. For an executor see `infer_shape`.
        constants: whether the values become part of the library.
        mcpu: the CPU by LLVM's name; None for this one.

    Raises GraphError for another model, and what `Executor.export` and `to_onnx` raise.
    """
    if isinstance(model, Executor):
        return model.export(path, feed_shapes, constants=constants, mcpu=mcpu)
    inputs, outputs, names = traced("export", model, feed_shapes)
    shapes = {node: node.attrs["shape"] for node in inputs}
    return Executor(outputs).export(path, shapes, constants=constants, mcpu=mcpu, names=names)


class Folding:
    """Computes what depends on constants alone while a graph is read, by the operators' NumPy rules.

    A value that takes more than 4,096 bytes and operations is computed as long as all such values of the graph take no
    more than `MOST_FOLDED`. What is larger stays a node: a file of 200 bytes may tile a constant to 2**36 elements.
    """

    def __init__(self) -> None:
        self._left = MOST_FOLDED

    def folded(self, values: Sequence[Value]) -> list[Value]:
        """The values, arrays in place of the nodes that are computed."""
        nodes = [value for value in values if isinstance(value, Node)]
        cost = _cost(nodes)
        if not nodes or cost > max(_FREE, self._left):
            return list(values)
        self._left -= cost if cost > _FREE else 0
        found = dict(zip(map(id, nodes), ad.Executor(nodes, ctx="numpy").run({}), strict=True))
        return [found.get(id(value), value) for value in values]


def _cost(nodes: Sequence[Node]) -> int:
    """The bytes and operations of computing nodes from constants."""
    total = 0
    for node in find_topo_sort(nodes):
        if node.cell is None and not node.op.immediate:
            shape = shape_of(node)
            total += math.prod(shape) * np.dtype(dtype_of(node)).itemsize
            total += node.op.flop(node, [shape_of(value) for value in node.inputs], shape)
    return total


class Reader:
    """The base of the readers of other programs' graphs: collects inputs, parameters and buffers. Errors begin with
    `source` and name the node."""

    unfit: ClassVar[type[DlsysError]] = GraphError
    """The error for inputs and attributes that do not fit the function here."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._inputs: list[Node] = []
        self._buffers: list[Node] = []

    def network(self) -> tuple[Network, dict[str, Parameter]]:
        """The network, and its parameters by name."""
        outputs = self.outputs()
        made = Network(self._inputs, outputs, self._buffers)
        return made.eval(), dict(made.named_parameters())

    def outputs(self) -> list[Node]:
        """The outputs' nodes, of inputs and stored values."""
        raise NotImplementedError

    def _input(self, name: str, shape: Sequence[Any], dtype: str) -> Node:
        self._inputs.append(ad.Variable(name, tuple(shape), dtype))
        return self._inputs[-1]

    def _stored(self, value: np.ndarray, name: str, trained: bool) -> Node:
        """A Parameter, or a buffer."""
        if trained:
            return Parameter(value, name)
        self._buffers.append(tensor(value, name=name))
        return self._buffers[-1]

    @contextlib.contextmanager
    def _applying(self, told: str) -> Iterator[None]:
        """A context in which the operators of one node are applied, `told` in messages: errors inside name it."""
        try:
            with scope(told):
                yield
        except DlsysError as error:
            text = str(error).removeprefix(f"{self._source}: ")
            raise type(error)(f"{self._source}: {text if told in text else f'{told}: {text}'}") from None
        except (ArithmeticError, AttributeError, LookupError, MemoryError, TypeError, ValueError) as error:
            unfit = f"{told} has inputs or attributes that do not fit: {first_line(error)}"
            raise self.unfit(f"{self._source}: {unfit}") from error


def first_line(error: BaseException) -> str:
    """The first line of an error's message; the error's class if there is none."""
    return next(iter(str(error).splitlines()), type(error).__name__)


def require_known(source: str, applied: Iterable[tuple[str, str, Any]]) -> None:
    """Raises a GraphError that lists what has no operator here: of each node the operator's name, its own, and what is
    known for it."""
    unknown: dict[str, list[str]] = {}
    for name, node, found in applied:
        if not found:
            unknown.setdefault(name, []).append(node)
    told = "; ".join(
        f"{name} ({', '.join(nodes[:3])}{', ...' * (len(nodes) > 3)})" for name, nodes in unknown.items()
    )
    if told:
        raise GraphError(f"{source}: no operator for {told}")
