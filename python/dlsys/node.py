"""Nodes: applications of operators to nodes, which are what a graph is made of.

A `Node` has no shape, dtype or value: modules that walk a graph in the order of `graph.find_topo_sort` compute those.
"""

from __future__ import annotations

import copyreg
import itertools
import math
import os
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, ClassVar, TypeGuard
from weakref import ref

from .hooks import hooks
from .scopes import scopes

if TYPE_CHECKING:
    from .graph import Op

Shape = tuple[int, ...]

FLOATS: tuple[str, ...] = ("float32", "float64")
UNSIGNED: tuple[str, ...] = ("uint8", "uint32")
INTEGERS: tuple[str, ...] = ("int8", "int32", "int64", *UNSIGNED)
NUMBERS: tuple[str, ...] = (*FLOATS, *INTEGERS)
DTYPES: tuple[str, ...] = (*NUMBERS, "bool")
"""The dtypes of values; gradients are of FLOATS."""
ITEMSIZE: dict[str, int] = {dtype: int("".join(filter(str.isdigit, dtype)) or 8) // 8 for dtype in DTYPES}
"""The bytes of an element."""

class Type:
    """A shape and a dtype, and how many elements and bytes an array of it has. Of a loop, whose value is a tuple, the
    tuples of shapes and of dtypes, and 0 bytes. There is one object for each pair (`type_of`), so types compare by
    identity.
    """

    __slots__ = ("dtype", "nbytes", "shape", "size")
    shape: Any
    dtype: Any
    size: int
    nbytes: int

    def __init__(self, shape: Any, dtype: Any) -> None:
        self.shape, self.dtype = shape, dtype
        self.size = math.prod(shape) if isinstance(dtype, str) else 0
        self.nbytes = self.size * ITEMSIZE[dtype] if isinstance(dtype, str) else 0

    def __repr__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"

    def __reduce__(self) -> Any:
        return type_of, (self.shape, self.dtype)


_types: dict[tuple[Any, Any], Type] = {}


def type_of(shape: Any, dtype: Any) -> Type:
    """The type of this shape and dtype."""
    kept = _types.get((shape, dtype))
    if kept is None:
        kept = _types[shape, dtype] = Type(shape, dtype)
    return kept


_WITHOUT_GRADIENT = (*INTEGERS, "bool")
_PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep
_files: dict[str, str | None] = {}  # a file's name without its folder; None for a file of this package
_ids = itertools.count(1)


def stamp() -> int:
    """A number that is larger than the ids of all nodes made so far."""
    return next(_ids)


def user_line() -> str:
    """`train.py:31`, the line of the first caller outside this package."""
    frame = _user_frame()
    return f"{frame.f_code.co_filename.rpartition(os.sep)[2]}:{frame.f_lineno}"


def _user_frame() -> Any:
    """The frame of the first caller outside this package."""
    frame = sys._getframe(2)
    while True:
        path = frame.f_code.co_filename
        try:
            name = _files[path]
        except KeyError:
            name = _files[path] = None if path.startswith(_PACKAGE) else path.rpartition(os.sep)[2]
        if name is not None or frame.f_back is None:
            return frame
        frame = frame.f_back


def _operator(name: str) -> Callable[..., Any]:
    """The method of nodes for one of Python's operators, which `dlsys.ops` defines."""
    return lambda self, *others: hooks.operate(name, self, *others)


class Node:
    """An operator applied to nodes.

    A node never changes: not its operator, its inputs or attributes. `==` and `!=` make nodes, as `<` does, so look
    for a node in a set or dictionary, which compare by identity, or by `is`; `in` of a list does not work.

    Attributes:
        op: the operator, the one instance in `OPS`.
        inputs: the nodes it is applied to.
        attrs: the operator's constants by name, such as axes: numbers, text, None, or tuples of these.
        function: the name of the function whose result it is, if that is not its operator; None else.
        place: the code that made it, and the offset of the instruction there; of a node from a file the text: see
            `line`.
        gradient_of: the name of the node of whose gradient it is a part, which has this line; None for other nodes.
        no_grad: whether it was made where gradients are off; then no gradient passes through it.
        id: the process's counter of nodes; an input's is smaller than its user's.
        held: the Array of its value: of a leaf from the start, of a computed node once it is kept; None else.
        is_open: whether it depends on a variable, so that it has no value of its own.
        tracks: whether it depends on a leaf that requires a gradient, and gradients pass through it.
        keeps, met: whether its value is kept once it is computed; whether an evaluation has computed it on its way.
        owner: a weak reference to the `Handle` that names it, or named it last; None for none.
        reads: what `dlsys.compiler.value_inputs` has said; None before.
        value_type, shape, dtype: the type, and its parts; None where they depend on what is fed, see `dlsys.replay`.
    """

    __slots__ = (
        *("_name", "attrs", "dtype", "function", "gradient_of", "held", "id", "inputs", "is_open", "keeps", "met"),
        *("_part", "no_grad", "op", "owner", "place", "reads", "shape", "tracks", "value_type"),
    )
    op: Op
    inputs: list[Node]
    attrs: dict[str, Any]
    place: tuple[Any, int] | str
    function: str | None
    _part: Any
    gradient_of: str | None
    no_grad: bool
    id: int
    reads: list[Node] | None
    value_type: Type | None
    shape: Shape
    dtype: str
    held: Any
    is_open: bool
    tracks: bool
    keeps: bool
    met: bool
    owner: Callable[[], Any] | None

    __array_ufunc__: Any = None  # so that `array + node` calls the node's method, not NumPy's

    def __init__(
        self,
        op: Op,
        inputs: list[Node],
        attrs: dict[str, Any],
        name: str | None = None,
        value_type: Type | None = None,
    ) -> None:
        """`value_type`: the type, where it is known before; else the operator says it."""
        self.op = op
        self.inputs = inputs
        self.attrs = attrs
        self.id = next(_ids)
        self._name = name
        self.function = None
        own = scopes.__dict__  # the thread's
        no_grad = own["no_grad"]
        if (differentiated := own["differentiated"]) is not None:
            self.placed_as(differentiated)
            self.gradient_of, self.no_grad = differentiated.name, no_grad
        elif (origin := own["origin"]) is not None:
            self.placed_as(origin)
            self.no_grad = origin.no_grad or no_grad
        else:
            frame = _user_frame()
            self.place = frame.f_code, frame.f_lasti
            self._part, self.no_grad, self.gradient_of = own["part"], no_grad, None
        self.held = self.owner = self.reads = None
        self.keeps = self.met = False
        self.value_type = known = op.type_of(self) if value_type is None else value_type
        is_open, tracks = op.variable, False
        for value in inputs:
            is_open = is_open or value.is_open
            tracks = tracks or value.tracks
        if known is not None:
            self.shape, self.dtype = known.shape, known.dtype
            tracks = tracks and known.dtype not in _WITHOUT_GRADIENT
        self.is_open, self.tracks = is_open, tracks and not self.no_grad

    @property
    def name(self) -> str:
        """The user's name, or `<op>_<id>`; of a function's result `<function>_<id>`."""
        return f"{self.function or self.op.name}_{self.id}" if self._name is None else self._name

    @name.setter
    def name(self, name: str | None) -> None:
        self._name = name

    @property
    def part(self) -> str | None:
        """The module call in whose `forward` it was made, as text, see `scopes.scope`; None outside."""
        return None if self._part is None else str(self._part)

    @property
    def line(self) -> str:
        """`train.py:31`, the user's line that made it."""
        if isinstance(self.place, str):
            return self.place
        code, at = self.place
        line = next((line for start, end, line in code.co_lines() if start <= at < end), None)
        return f"{code.co_filename.rpartition(os.sep)[2]}:{line}"

    def __reduce_ex__(self, protocol: Any) -> Any:
        """A pickle, or a copy, has the text of the line in the place of code, and no owner: who names it says so."""
        unknown = ("owner",) if self.value_type is not None else ("owner", "shape", "dtype")
        state = {name: getattr(self, name) for name in self.__slots__ if name not in unknown}
        state |= {"place": self.line, "_part": self.part, "owner": None}
        return copyreg.__newobj__, (type(self),), (None, state)  # type: ignore[attr-defined]

    @property
    def location(self) -> str:
        """Where it was made: `train.py:31 in encoder.ff: Linear(8, 32), gradient of matmul_9`."""
        place = self.line if self.part is None else f"{self.line} in {self.part}"
        return place if self.gradient_of is None else f"{place}, gradient of {self.gradient_of}"

    def placed_as(self, other: Node) -> None:
        """Take the source line, module call, `gradient_of` and `no_grad` of another node, which this one replaces."""
        part = other._part
        self.place, self._part = other.place, part if part is None else str(part)  # which keeps no module
        self.gradient_of, self.no_grad = other.gradient_of, other.no_grad

    if not TYPE_CHECKING:  # checkers shall find names that are not there

        def __getattr__(self, name: str) -> Any:
            """The shape or dtype of a node without a type, where it follows from declarations; ShapeError or DTypeError
            where it depends on what is fed. Python asks for what is not there."""
            if name in ("shape", "dtype"):
                return hooks.type_of(self, name)
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)

    @property
    def const_attr(self) -> float | None:
        """The Python number among its operands, as in `add_byconst_op(x, 2)`; None without one."""
        numbers = [value.attrs["value"] for value in self.inputs if value.op.immediate]
        numbers += [value for value in self.attrs.get("args", ()) if isinstance(value, (int, float))]  # of a call
        return numbers[0] if numbers else None

    @property
    def matmul_attr_trans_A(self) -> bool:
        """Whether a matmul reads its first operand transposed."""
        return self.attrs.get("trans_A", False)

    @property
    def matmul_attr_trans_B(self) -> bool:
        """Whether a matmul reads its second operand transposed."""
        return self.attrs.get("trans_B", False)

    def __repr__(self) -> str:
        return self.name

    if TYPE_CHECKING:  # `dlsys.ops.operators` installs them

        def __add__(self, other: Any) -> Made: ...
        def __radd__(self, other: Any) -> Made: ...
        def __sub__(self, other: Any) -> Made: ...
        def __rsub__(self, other: Any) -> Made: ...
        def __mul__(self, other: Any) -> Made: ...
        def __rmul__(self, other: Any) -> Made: ...
        def __truediv__(self, other: Any) -> Made: ...
        def __rtruediv__(self, other: Any) -> Made: ...
        def __matmul__(self, other: Any) -> Made: ...
        def __rmatmul__(self, other: Any) -> Made: ...
        def __pow__(self, other: Any) -> Made: ...
        def __rpow__(self, other: Any) -> Made: ...
        def __and__(self, other: Any) -> Made: ...
        def __rand__(self, other: Any) -> Made: ...
        def __or__(self, other: Any) -> Made: ...
        def __ror__(self, other: Any) -> Made: ...
        def __xor__(self, other: Any) -> Made: ...
        def __rxor__(self, other: Any) -> Made: ...
        def __lt__(self, other: Any) -> Made: ...
        def __gt__(self, other: Any) -> Made: ...
        def __le__(self, other: Any) -> Made: ...
        def __ge__(self, other: Any) -> Made: ...
        def __eq__(self, other: Any) -> Made: ...  # type: ignore[override]
        def __ne__(self, other: Any) -> Made: ...  # type: ignore[override]
        def __neg__(self) -> Made: ...
        def __invert__(self) -> Made: ...
        def __getitem__(self, key: Any) -> Made: ...
        def __hash__(self) -> int: ...
    else:
        __add__, __radd__ = _operator("__add__"), _operator("__radd__")
        __sub__, __rsub__ = _operator("__sub__"), _operator("__rsub__")
        __mul__, __rmul__ = _operator("__mul__"), _operator("__rmul__")
        __truediv__, __rtruediv__ = _operator("__truediv__"), _operator("__rtruediv__")
        __matmul__, __rmatmul__ = _operator("__matmul__"), _operator("__rmatmul__")
        __pow__, __rpow__ = _operator("__pow__"), _operator("__rpow__")
        __and__, __rand__ = _operator("__and__"), _operator("__rand__")
        __or__, __ror__ = _operator("__or__"), _operator("__ror__")
        __xor__, __rxor__ = _operator("__xor__"), _operator("__rxor__")
        __lt__, __gt__, __le__, __ge__ = map(_operator, ("__lt__", "__gt__", "__le__", "__ge__"))
        __eq__, __ne__ = _operator("__eq__"), _operator("__ne__")
        __neg__, __invert__ = _operator("__neg__"), _operator("__invert__")
        __hash__ = object.__hash__

    __iter__: Any = None  # with __getitem__ alone, Python would iterate for ever: no index fails before the run


if TYPE_CHECKING:
    _Named = Node  # for a checker a handle is a node
else:
    _Named = object


class Handle(_Named):
    """A name for a node. An assignment makes it name another node, and what was made of the one before stays as it is.

    `dlsys.Tensor`, which has the methods, is what users hold: the functions of nodes take handles too, and then return
    handles. What a node answers, its handle answers for it.

    Attributes:
        node: the node of now.
        results: of a class, the class of what functions make of its handles.
    """

    __slots__ = ("__weakref__", "node")
    node: Node
    results: ClassVar[Any]

    @classmethod
    def of(cls, node: Node) -> Any:
        """A new handle that names the node."""
        made = cls.__new__(cls)
        made.node = node
        if node.owner is None or node.owner() is None:
            node.owner = ref(made)
        return made

    if not TYPE_CHECKING:

        op = property(lambda self: self.node.op, doc="The operator.")
        attrs = property(lambda self: self.node.attrs, doc="The operator's constants by name.")
        inputs = property(
            lambda self: [handle_of(node, self.results) for node in self.node.inputs], doc="What it is applied to."
        )
        id = property(lambda self: self.node.id, doc="The process's number of the node.")
        shape = property(lambda self: self.node.shape, doc="The shape; ShapeError where it depends on what is fed.")
        dtype = property(lambda self: self.node.dtype, doc="The dtype; DTypeError where it depends on what is fed.")
        value_type = property(lambda self: self.node.value_type, doc="The type; None where it depends on what is fed.")
        function = property(lambda self: self.node.function, doc="The function whose result it is, if one's.")
        part = property(lambda self: self.node.part, doc="The module call in which it was made; None outside.")
        gradient_of = property(lambda self: self.node.gradient_of, doc="Of whose gradient it is a part, by name.")
        no_grad = property(lambda self: self.node.no_grad, doc="Whether it was made where gradients are off.")
        is_open = property(lambda self: self.node.is_open, doc="Whether it depends on a variable.")
        line = property(lambda self: self.node.line, doc="The line that made it: `train.py:31`.")
        location = property(lambda self: self.node.location, doc="Where it was made.")
        held = property(lambda self: self.node.held, doc="The Array of its value, if the node holds it.")
        const_attr = property(lambda self: self.node.const_attr, doc="The number among its operands; None without one.")
        matmul_attr_trans_A = property(lambda self: self.node.matmul_attr_trans_A)
        matmul_attr_trans_B = property(lambda self: self.node.matmul_attr_trans_B)

        @property
        def name(self) -> str:
            """The node's name."""
            return self.node.name

        @name.setter
        def name(self, name: str | None) -> None:
            self.node.name = name

        def __repr__(self) -> str:
            return self.node.name


def handle_of(node: Node, kind: Any = None) -> Any:
    """The handle that names a node: the user's, while there is one, else a new one, of the class `kind`."""
    handle = None if node.owner is None else node.owner()
    return handle if handle is not None and handle.node is node else (kind or Handle.results).of(node)


NODES = (Node, Handle)
"""What functions take as nodes."""


def is_node(value: Any) -> TypeGuard[Node]:
    """Whether the value is a node, or a handle of one."""
    return isinstance(value, NODES)


def named(value: Any) -> Any:
    """The node that a handle names; anything else as it is; in lists, tuples and dictionaries too."""
    if isinstance(value, Handle):
        return value.node
    if type(value) in (list, tuple):
        return type(value)([named(one) for one in value])
    if type(value) is dict:
        return {named(key): named(one) for key, one in value.items()}
    return value


def kind_of_results(values: Iterable[Any]) -> Any:
    """The class of the handles that a function returns of these arguments; None where none of them is a handle."""
    kind = None
    for value in values:
        if isinstance(value, Handle):
            kind = value.results if kind is None or kind is Handle.results else kind
        elif type(value) in (list, tuple) and value and (inner := kind_of_results(value)) is not None:
            kind = inner if kind is None or kind is Handle.results else kind
    return kind


def mapped(value: Any, function: Callable[[Any], Any]) -> Any:
    """`function` of a value; of a list, tuple or dictionary the same with `function` of each value in it."""
    if type(value) in (list, tuple):
        return type(value)([mapped(one, function) for one in value])
    return {key: mapped(one, function) for key, one in value.items()} if type(value) is dict else function(value)


def handles(value: Any, kind: Any) -> Any:
    """Results with a handle of this class in the place of each node, in lists and tuples too."""
    return mapped(value, lambda one: kind.of(one) if isinstance(one, Node) else one)

if TYPE_CHECKING:
    from .tensors.base import Tensor as Made
else:
    Made = Node
"""The class of what operators make of handles: for a checker `dlsys.Tensor`, whose module is above this one."""
