"""Operators, and the graph of nodes that apply them: its topological order, and errors that name a node.

Nothing recurses, so a graph may be as deep as memory allows.
"""

from __future__ import annotations

import inspect
import math
import pkgutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from operator import attrgetter
from typing import Any, ClassVar, NamedTuple, TypeVar, cast

import numpy as np

from .errors import DlsysError, DTypeError, GraphError, ShapeError
from .hooks import hooks
from .node import DTYPES as DTYPES
from .node import FLOATS as FLOATS
from .node import INTEGERS as INTEGERS
from .node import NODES as NODES
from .node import NUMBERS as NUMBERS
from .node import UNSIGNED as UNSIGNED
from .node import Handle as Handle
from .node import Made as Made
from .node import Node as Node
from .node import Shape as Shape
from .node import Type as Type
from .node import handle_of as handle_of
from .node import handles as handles
from .node import is_node as is_node
from .node import kind_of_results as kind_of_results
from .node import mapped as mapped
from .node import named as named
from .node import stamp as stamp
from .node import type_of as type_of
from .scopes import scopes


class IndexRange(NamedTuple):
    """The indices that a node accepts in its input number `position`: `least` up to, not including, `beyond`, and the
    one number `besides`. `told` names what they count, for errors."""

    position: int
    least: int
    beyond: int
    told: str
    besides: int | None = None


KINDS = (
    *("elementwise", "reduction", "rows", "contraction", "view", "join", "scan", "loop", "communication", "single"),
)
"""How an operator uses its inputs, see `Op.kind`."""


class Op:
    """An operator: all that dlsys knows about one formula. Called with nodes it makes a node."""

    name: ClassVar[str]
    kind: ClassVar[str] = "single"
    """How it uses its inputs; the kinds of fused groups have the same names:

    elementwise: output[i] depends on inputs[i] only, after NumPy's broadcasting; may run in place;
    reduction: the elements along `attrs["axes"]` become one, their sum, maximum or minimum;
    rows: needs whole rows, along the last axis or `attrs["axes"]`; the results are rows, or one value per row;
    contraction: a sum of products over indices of two inputs, a matrix product or a convolution;
    view: the first input's memory under another shape; join: the inputs, side by side;
    scan: a loop, whose value is a tuple and whose steps are kernels; loop: one of its values;
    single: anything else.
    """
    costly: ClassVar[bool] = False
    """Its formula takes many instructions, as exp's polynomial does: its value is stored, not computed twice."""
    broadcasts: bool = False
    """Whether it is elementwise with several inputs, which are broadcast by NumPy's rules."""
    picks: ClassVar[bool] = False
    """Whether every element of the result is an element of the first input."""
    commutative: ClassVar[bool] = False
    """Whether the order of the two inputs makes no difference."""
    constant: ClassVar[bool] = False
    """Whether every element is `attrs["value"]`, so that it costs nothing to compute again."""
    leaf: ClassVar[bool] = False
    """Whether gradients end at it, and an Executor reads its array: it holds one, or was assigned a value."""
    immediate: ClassVar[bool] = False
    """Whether it is a constant that is part of its readers' code, without a value in memory."""
    variable: ClassVar[bool] = False
    """Whether its value is fed to each run."""
    dtypes: ClassVar[tuple[str, ...]] = FLOATS
    """The dtypes that the inputs may have."""
    apart: ClassVar[Mapping[int, tuple[str, ...]]] = {}
    """Positions of inputs whose dtype is one of these, whatever that of the others: indices, conditions, random bits.
    """
    onnx: ClassVar[str] = ""
    """ONNX's operator of the same inputs and meaning."""
    by_numpy: ClassVar[bool] = False
    """Whether its kernel is the reference, which runs on the host and has no formula. Such a kernel computes one node.
    """
    index_range: Callable[[Node, Sequence[Shape]], IndexRange] | None = None
    """From a node and its inputs' shapes: which input holds indices, and in what range. None if none does."""
    never: ClassVar[str] = ""
    """Why it has no formula, for errors; empty if it has one."""
    count: int | None = None
    """How many inputs and attributes it takes; None where that varies."""
    builtin: bool = True
    """Whether this package defines it, so that its tests have checked its parts against each other."""
    edition: int = 0
    """How many operators of this name the program has defined before."""

    def __reduce__(self) -> Any:
        return _defined, (self.__module__, self.name)  # there is one instance of each

    def __deepcopy__(self, memo: Any) -> Op:
        return self

    def __call__(self, *inputs: Any, **attrs: Any) -> Made:
        """A new node that applies the operator to nodes; a handle of it where one of the inputs is a handle.

        Raises GraphError for an input that is neither, for another number of them, and for an attribute of a program's
        own operator that cannot be told from others by its text."""
        kind: Any = None
        nodes: list[Node] = []
        for value in inputs:
            if isinstance(value, Node):
                nodes.append(value)
            elif isinstance(value, Handle):
                kind = value.results if kind is None or kind is Handle.results else kind
                nodes.append(value.node)
            else:
                return self.of_others(inputs, attrs)
        stated = len(attrs) - ("precision" in attrs) if attrs else 0
        if self.count is not None and len(nodes) + stated != self.count:
            raise GraphError(f"{self.name}: takes {self.count - stated} nodes, not {len(nodes)}")
        if self.kind == "contraction" and scopes.precision is not None:
            attrs = {"precision": scopes.precision, **attrs}
        if attrs and not self.builtin:
            for key, value in attrs.items():
                require_value(f"{self.name}: the attribute {key}", value)
        node = Node(self, nodes, attrs)
        return cast(Made, node) if kind is None else kind.of(node)

    def of_others(self, inputs: Sequence[Any], attrs: dict[str, Any]) -> Made:
        """The result for inputs that are not all nodes. Raises GraphError."""
        position, value = next((i, value) for i, value in enumerate(inputs) if not is_node(value))
        raise GraphError(f"{self.name}: input {position} must be a node, not {type(value).__name__}")

    def type_of(self, node: Node) -> Type | None:
        """The node's type, by `infer_shape` and `infer_dtype`; None where an input has none yet. The same question is
        answered once."""
        key = (self, *node.attrs.items(), *map(_value_type, node.inputs))
        known = _types.get(key)
        if known is None and None not in (types := [value.value_type for value in node.inputs]):
            shape = self.infer_shape(node, [one.shape for one in types])  # type: ignore[union-attr]
            dtype = self.infer_dtype(node, [one.dtype for one in types])  # type: ignore[union-attr]
            if not self.builtin:
                require_inferred(node, shape, dtype)
            if len(_types) >= MOST_TYPES:
                _types.clear()
            _types[key] = known = type_of(shape, dtype)
        return known

    def replayed(self, node: Node, inputs: list[Node]) -> Any:
        """The node applied to inputs whose types are known, see `dlsys.replay`."""
        return self(*inputs, **node.attrs)

    def infer_shape(self, node: Node, input_shapes: list[Shape]) -> Shape:
        """The output's shape; by default the first input's, or without inputs `attrs["shape"]`. Raises ShapeError if
        the inputs' shapes do not fit."""
        return input_shapes[0] if input_shapes else node.attrs["shape"]

    def replacement(self, node: Node) -> Node | None:
        """The node that takes its place in a run's graph, when all gradients have been made; None if it stays."""
        return None

    def infer_dtype(self, node: Node, input_dtypes: list[str]) -> str:
        """The output's dtype; by default the common dtype of the inputs, without those in `apart`, or without inputs
        `attrs["dtype"]`. Raises DTypeError if they differ or are not in `dtypes`, and for one that is not as `apart`
        says."""
        dtype = input_dtypes[0] if input_dtypes and not self.apart else ""
        if dtype in self.dtypes and input_dtypes.count(dtype) == len(input_dtypes):
            return dtype  # the usual case, fast
        if not input_dtypes:
            return node.attrs["dtype"]
        first = next(i for i in range(len(input_dtypes)) if i not in self.apart)
        common = input_dtypes[first]
        for i, dtype in enumerate(input_dtypes):
            known = self.apart.get(i, self.dtypes)
            if dtype not in known:
                told = f"input {node.inputs[i].name} is {dtype}, not one of {', '.join(known)}"
                raise error_at(node, DTypeError, told)
            if dtype != common and i not in self.apart:
                told = f"dtypes differ: {node.inputs[first].name} is {common}, {node.inputs[i].name} is {dtype}"
                raise error_at(node, DTypeError, told)
        return common

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        """The gradient with respect to each input, as new nodes; None where it is zero."""
        if not node.inputs:
            return []
        raise error_at(node, GraphError, "there is no gradient")

    def differentiated(self, node: Node) -> Sequence[Node]:
        """The inputs that gradients may go to."""
        return node.inputs

    def gradient_as_tuple(self, out_grad: Node, node: Node) -> tuple[Node, ...]:
        """The gradient of sum(node * out_grad) with respect to each input of `node` that is no number; needle's
        name."""
        kind = kind_of_results((node, out_grad))
        found = hooks.gradient_as_tuple(named(out_grad), named(node))
        return found if kind is None else handles(found, kind)

    def flop(self, node: Node, input_shapes: list[Shape], shape: Shape) -> int:
        """How many operations a product takes, a multiply-add being two; 0 of other nodes, which memory bounds."""
        return 0

    def scatters(self, node: Node) -> bool:
        """Whether its kernel stores neighbouring results far apart, so that a fused elementwise node would read its
        other inputs slowly."""
        return False

    def te(self, node: Node, inputs: list[Any], shape: Shape, dtype: str) -> Any:
        """The result as a `te.Tensor`, computed from those of the inputs. Raises GraphError where it has no formula."""
        raise error_at(node, GraphError, self.never or "it has no formula")

    def numpy(self, node: Node, inputs: list[np.ndarray]) -> np.ndarray:
        """The result by NumPy, for tests and the `numpy` context: in row-major order; a copy, unless it is a view.
        Raises GraphError where it has no reference."""
        raise error_at(node, GraphError, self.never or "it has no reference")


MOST_TYPES = 1 << 16
_value_type = attrgetter("value_type")
_types: dict[Any, Type] = {}
"""The types of nodes, by operator, attributes and the inputs' types."""

_VALUES = (bool, int, float, complex, str, bytes, type, Enum, np.generic, np.dtype)


def require_value(what: str, value: Any) -> None:
    """Raises GraphError, which names `what`, for an attribute that its text does not tell from every other: equal nodes
    are computed once, and kernels are kept, by the text of their attributes."""
    if isinstance(value, (tuple, frozenset)):
        for part in value:
            require_value(what, part)
    elif value is not None and not isinstance(value, _VALUES):
        told = "an attribute is None, a number, text, a dtype, or a tuple of these; an array is an input"
        raise GraphError(f"{what} is {type(value).__name__}: {told}")


def require_takes(
    node: Node,
    part: str,
    function: Callable[..., Any],
    arguments: Sequence[Any],
    words: Mapping[str, Any] | None = None,
) -> None:
    """Raises GraphError if a part of the node's operator does not take these arguments; called after a call of it has
    failed."""
    try:
        signature = inspect.signature(function)
    except ValueError:  # some functions in C have no signature
        return
    try:
        signature.bind(*arguments, **(words or {}))
    except TypeError as error:
        count = f"{len(arguments)} argument{'s'[: len(arguments) != 1]}"
        count += f" and {', '.join(words)}" if words else ""
        raise error_at(node, GraphError, f"its {part} takes {signature}, and is called with {count}") from error


OPS: dict[str, Op] = {}
"""Every operator by its name, one instance each."""


def _defined(module: str, name: str) -> Op:
    """The operator of this name, which a module defines."""
    if name not in OPS:
        pkgutil.resolve_name(module)
    return OPS[name]


OpType = TypeVar("OpType", bound=Op)


def register(operator: OpType) -> OpType:
    """The operator, which is in `OPS` from now on. A program may define its operator again, as when a notebook's cell
    is run twice. Raises GraphError for the name of another operator, and for an unknown kind."""
    name, module = operator.name, operator.__module__
    if operator.kind not in KINDS:
        raise GraphError(f"operator {name}: its kind {operator.kind!r} is not one of {', '.join(KINDS)}")
    before = OPS.get(name)
    if before is not None:
        owner = before.__module__
        if operator.builtin or owner != module:
            raise GraphError(f"operator {name} exists already, in {owner}: give the one of {module} another name")
        operator.edition = before.edition + 1
    OPS[name] = operator
    return operator


ErrorClass = TypeVar("ErrorClass", bound=DlsysError)


def error_at(node: Node, kind: type[ErrorClass], message: str) -> ErrorClass:
    """The error `<op>: <message> [node <name>, made at <file:line>]`, for the caller to raise."""
    return kind(f"{node.op.name}: {message} [node {node.name}, made at {node.location}]")


def require_type(node: Node, part: str, given: tuple[Shape, str], shape: Shape, dtype: str) -> None:
    """Raises ShapeError or DTypeError if a part of the node's operator gives an array of another shape or dtype than
    the one that was inferred."""
    if given == (shape, dtype):
        return
    kind, rule = (ShapeError, "shape") if given[0] != shape else (DTypeError, "dtype")
    told, found = (f"{dtype}{list(extents)}" for extents, dtype in ((shape, dtype), given))
    raise error_at(node, kind, f"its {rule} rule says {told}, the {part} gives {found}")


def require_inferred(node: Node, shape: Any, dtype: Any) -> None:
    """Raises ShapeError or DTypeError for what an operator's rules return that is no shape or no dtype, and for a view
    of another size than its input."""
    if type(shape) is not tuple or any(type(extent) is not int for extent in shape) or min(shape, default=0) < 0:
        raise shape_error(node, f"its shape rule must return a tuple of integers that are not negative, not {shape!r}")
    if node.op.kind == "view" and math.prod(shape) != math.prod(node.inputs[0].shape):
        raise shape_error(node, f"a view has as many elements as its input: {shape} for {node.inputs[0].shape}")
    if type(dtype) is not str or dtype not in DTYPES:
        told = f"its dtype rule must return the name of a dtype, one of {', '.join(DTYPES)}, not {dtype!r}"
        raise error_at(node, DTypeError, told)


def shape_error(node: Node, message: str) -> ShapeError:
    """A ShapeError that names the node and the user's line."""
    return error_at(node, ShapeError, message)


def find_topo_sort(nodes: Iterable[Any]) -> list[Any]:
    """`nodes` and every node that they depend on, each once, inputs before users: depth-first, in linear time. Of
    handles it returns handles. Raises GraphError for another argument than a list of nodes, and for a graph that
    somebody has made cyclic.
    """
    if is_node(nodes) or isinstance(nodes, np.ndarray) or not isinstance(nodes, Iterable):
        raise GraphError(f"takes a list of nodes, not {type(nodes).__name__}")
    nodes = list(nodes)
    if (kind := kind_of_results(nodes)) is not None:
        return [handle_of(node, kind) for node in find_topo_sort(named(nodes))]
    order: list[Node] = []
    seen, above = set[Node](), set[Node]()  # all that were met; those on the stack
    for root in nodes:
        if not isinstance(root, Node):
            raise GraphError(f"takes a list of nodes, not of {type(root).__name__}")
        if root in seen:
            continue
        seen.add(root)
        above.add(root)
        stack = [(root, iter(root.inputs))]
        while stack:
            node, rest = stack[-1]
            for child in rest:
                if child not in seen:
                    seen.add(child)
                    above.add(child)
                    stack.append((child, iter(child.inputs)))
                    break
                if child in above:
                    raise error_at(node, GraphError, f"its input {child.name} depends on it: the graph has a circle")
            else:
                order.append(node)
                above.discard(node)
                stack.pop()
    return order


def below(roots: Iterable[Node], is_behind: Callable[[Node], bool]) -> list[Node]:
    """`roots` and the nodes below them, inputs first, without those for which `is_behind` and what only they need."""
    found, stack = set(), list(roots)
    while stack:
        node = stack.pop()
        if node not in found and not is_behind(node):
            found.add(node)
            stack += node.inputs
    return sorted(found, key=lambda node: node.id)  # a node has a larger id than its inputs
