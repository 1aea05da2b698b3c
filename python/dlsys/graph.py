"""The computation graph: nodes, operators, topological order and the graph as text.

A `Node` is the application of an operator to nodes. It owns no shape, dtype or value: interpreters compute those, which
walk `find_topo_sort`. Nothing recurses: a graph may be as deep as memory allows. No TVM.
"""

from __future__ import annotations

import inspect
import itertools
import math
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self, TypeVar

import numpy as np

from .errors import DlsysError, DTypeError, GraphError, ShapeError
from .hooks import hooks
from .scopes import scopes

Shape = tuple[int, ...]

FLOATS = ("float32", "float64")
UNSIGNED = ("uint8", "uint32")
INTEGERS = ("int32", "int64", *UNSIGNED)
NUMBERS = (*FLOATS, *INTEGERS)
DTYPES = (*NUMBERS, "bool")
"""The dtypes of values; gradients are of FLOATS."""

_PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep
_files: dict[str, str | None] = {}  # the last name of a file, None of one of this package
_ids = itertools.count(1)


def stamp() -> int:
    """A number beyond the ids of all nodes made so far."""
    return next(_ids)


def _user_line() -> str:
    """`file.py:line` of the first caller outside this package."""
    frame = sys._getframe(2)
    while True:
        path = frame.f_code.co_filename
        try:
            name = _files[path]
        except KeyError:
            name = _files[path] = None if path.startswith(_PACKAGE) else path.rpartition(os.sep)[2]
        if name is not None or frame.f_back is None:
            break
        frame = frame.f_back
    return f"{name}:{frame.f_lineno}"


_arithmetic: dict[str, Callable[..., Any]] = {}


def _both_ways(symbol: str) -> tuple[Callable[[Any, Any], Any], Callable[[Any, Any], Any]]:
    """The methods of an operator of two, for a node on its left and on its right."""
    return lambda self, other: _arithmetic[symbol](self, other), lambda self, other: _arithmetic[symbol](other, self)


class Node:
    """An operator applied to nodes. Made by the functions of `dlsys.ops`, as a tensor: see `hooks.make_node`.

    A node never changes: not its operator, its inputs or attributes. `==` and `!=` are operators as `<` is; as a key of
    a dictionary or set a node is itself and no other. A node is looked for in a set, or by `is`: a list compares by
    `==`.

    Attributes:
        op: the operator, the one instance in `OPS`.
        inputs: the nodes it is applied to.
        attrs: what else the operator needs; values are hashable.
        name: the user's, or `<op>_<id>`.
        line: `train.py:31`, the user's line that made it.
        part: the call of a module in whose `forward` it was made, see `scopes.scope`; None outside.
        no_grad: whether it was made where gradients are off, so that none goes through it.
        id: creation counter of the process; an input's is smaller than its user's.
        cell: of a leaf the place of its value (`dlsys.ops.state.Cell`), None of others.
        types: its shape and its dtype, kept by `dlsys.ops.types` once they are known.
    """

    __slots__ = ("attrs", "cell", "id", "inputs", "line", "name", "no_grad", "op", "part", "types")
    op: Op
    inputs: list[Node]
    attrs: dict[str, Any]
    name: str
    line: str
    part: Any
    no_grad: bool
    id: int
    cell: Any
    types: list[Any]
    __array_ufunc__ = None  # NumPy scalars and arrays on the left leave arithmetic to us

    def __init__(self, op: Op, inputs: list[Node], attrs: dict[str, Any], name: str | None = None) -> None:
        self.op = op
        self.inputs = inputs
        self.attrs = attrs
        self.id = next(_ids)
        self.name = name if name is not None else f"{op.name}_{self.id}"
        if (origin := scopes.origin) is not None:
            self.placed_as(origin)
        else:
            self.line, self.part, self.no_grad = _user_line(), scopes.part, scopes.no_grad
        self.cell = None
        self.types = [None, None]

    @property
    def location(self) -> str:
        """Where it was made: `train.py:31 in encoder.ff: Linear(8, 32)`."""
        return self.line if self.part is None else f"{self.line} in {self.part}"

    def placed_as(self, other: Node) -> None:
        """Say of itself that it was made where another node was: of what takes its place."""
        self.line, self.part, self.no_grad = other.line, other.part, other.no_grad

    @property
    def known_value(self) -> Any:
        """The Array of its value, where that need not be computed: of a leaf, and see `TensorNode`. None else."""
        return None if self.cell is None else self.cell.known_value

    @property
    def const_attr(self) -> float | None:
        """The number of its operand that is one, as of `add_byconst_op` and its like; None where there is none."""
        return next((value.attrs["value"] for value in self.inputs if value.op.immediate), None)

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

    if TYPE_CHECKING:  # as a checker reads what follows

        def __add__(self, other: Any) -> Self: ...
        def __radd__(self, other: Any) -> Self: ...
        def __sub__(self, other: Any) -> Self: ...
        def __rsub__(self, other: Any) -> Self: ...
        def __mul__(self, other: Any) -> Self: ...
        def __rmul__(self, other: Any) -> Self: ...
        def __truediv__(self, other: Any) -> Self: ...
        def __rtruediv__(self, other: Any) -> Self: ...
        def __matmul__(self, other: Any) -> Self: ...
        def __rmatmul__(self, other: Any) -> Self: ...
        def __pow__(self, other: Any) -> Self: ...
        def __rpow__(self, other: Any) -> Self: ...
        def __and__(self, other: Any) -> Self: ...
        def __rand__(self, other: Any) -> Self: ...
        def __or__(self, other: Any) -> Self: ...
        def __ror__(self, other: Any) -> Self: ...
        def __xor__(self, other: Any) -> Self: ...
        def __rxor__(self, other: Any) -> Self: ...
        def __lt__(self, other: Any) -> Self: ...
        def __gt__(self, other: Any) -> Self: ...
        def __le__(self, other: Any) -> Self: ...
        def __ge__(self, other: Any) -> Self: ...
        def __eq__(self, other: object) -> Self: ...  # type: ignore[override]
        def __ne__(self, other: object) -> Self: ...  # type: ignore[override]
        def __neg__(self) -> Self: ...
        def __invert__(self) -> Self: ...
        def __getitem__(self, key: Any) -> Node: ...
    else:
        __add__, __radd__ = _both_ways("+")
        __sub__, __rsub__ = _both_ways("-")
        __mul__, __rmul__ = _both_ways("*")
        __truediv__, __rtruediv__ = _both_ways("/")
        __matmul__, __rmatmul__ = _both_ways("@")
        __pow__, __rpow__ = _both_ways("**")
        __and__, __rand__ = _both_ways("&")
        __or__, __ror__ = _both_ways("|")
        __xor__, __rxor__ = _both_ways("^")
        __lt__, __gt__ = _both_ways("<")[0], _both_ways(">")[0]
        __le__, __ge__ = _both_ways("<=")[0], _both_ways(">=")[0]

        def __eq__(self, other):
            return _arithmetic["=="](self, other)

        def __ne__(self, other):
            return _arithmetic["!="](self, other)

        def __neg__(self):
            return _arithmetic["neg"](self)

        def __invert__(self):
            return _arithmetic["~"](self)

        def __getitem__(self, key):
            return _arithmetic["[]"](self, key)

    # Dictionaries ask for identity first, and `==` only where two hashes are equal.
    __hash__: ClassVar[Callable[[Any], int]] = object.__hash__

    __iter__: Any = None  # with __getitem__ alone Python would count up without end: no index fails before the run


def set_arithmetic(functions: dict[str, Callable[..., Any]]) -> None:
    """Install what `+ - * / @ ** == != < <= > >= & | ^ ~ [] neg` of nodes mean, as `dlsys.ops` does. A function of two
    operands gets them as written, one being a node, or returns NotImplemented for what it cannot take."""
    _arithmetic.update(functions)


class IndexRange(NamedTuple):
    """The indices that a node takes: those of its input number `position`, from `least` to below `beyond`, and the
    number `besides`. `told`: what they count, for errors."""

    position: int
    least: int
    beyond: int
    told: str
    besides: int | None = None


class Op:
    """An operator: all that dlsys knows about one formula. `register` makes a subclass's one instance."""

    name: ClassVar[str]
    shape_only: ClassVar[tuple[int, ...]] = ()
    """Positions of the inputs that are read for their shape, never for their values."""
    kind: ClassVar[str] = "single"
    """What it does with its inputs, in the words of the kinds of fused groups:

    elementwise: output[i] depends on inputs[i] only, after NumPy's broadcasting; may run in place;
    reduction: elements along `attrs["axes"]` are added, or the largest or least taken, into one;
    rows: reads whole rows, along the last axis or `attrs["axes"]`; the results are rows or one value of each;
    contraction: a sum of products over indices of two inputs, a matrix product or a convolution;
    view: the first input's memory under another shape; join: the inputs, side by side;
    loop: a result of a loop, whose step has kernels of its own, and scan: a loop, whose value is a tuple of values;
    single: anything else.
    """
    costly: ClassVar[bool] = False
    """Its formula reads its input many times over, as a polynomial does: better stored than written out twice."""
    broadcasts: ClassVar[bool] = False
    """Elementwise of several inputs, which are broadcast by NumPy's rules."""
    picks: ClassVar[bool] = False
    """Every element of the result is an element of the first input."""
    commutative: ClassVar[bool] = False
    """The order of the two inputs changes nothing."""
    flops: ClassVar[int] = 1
    flops_of_input: ClassVar[int] = 0
    """Operations per element of the result and of the first input, a transcendental function being one; see `flop`."""
    constant: ClassVar[bool] = False
    """The one value `attrs["value"]` at every index: it costs nothing to compute again, wherever it is read."""
    immediate: ClassVar[bool] = False
    """A constant that stands in the code of what reads it: no value in memory."""
    variable: ClassVar[bool] = False
    """Its value is fed to each run."""
    lifts: ClassVar[bool] = False
    """Whether some of its Python numbers may become inputs: see `numbers`, `number` and `lifted`."""
    dtypes: ClassVar[tuple[str, ...]] = FLOATS
    """What the inputs that are read for their values may be."""
    formula: ClassVar[Callable[..., Any] | None] = None
    reference: ClassVar[Callable[..., Any]]
    """The tensor expression of the inputs that are read for their values and the `arguments`, and NumPy's function."""
    never: ClassVar[str] = ""
    """Why there is no formula, where there is none."""
    builtin: ClassVar[bool] = False
    """Whether it is one of this package, whose tests compare its formula, its rules and its gradient; set for each
    class."""
    edition: ClassVar[int] = 0
    """How many operators of this name the program has defined before."""

    def __init_subclass__(cls) -> None:
        cls.builtin = cls.__module__.startswith(f"{__package__}.")

    def __reduce__(self) -> Any:
        return _operator, (self.name,)  # of each there is one instance

    def __deepcopy__(self, memo: Any) -> Op:
        return self

    @classmethod
    def make(cls, inputs: Sequence[Node], attrs: dict[str, Any] | None = None, name: str | None = None) -> Node:
        """A new node applying this operator. Raises GraphError for an input that is no node, and of a class that is
        not registered."""
        for position, value in enumerate(inputs):
            if not isinstance(value, Node):
                raise GraphError(f"{cls.name}: input {position} must be a node, not {type(value).__name__}")
        if cls.kind == "contraction":
            origin = scopes.origin
            precision = scopes.precision if origin is None else origin.attrs.get("precision")
            attrs = attrs if precision is None else {"precision": precision, **(attrs or {})}
        op = _instances.get(cls)
        if op is None:
            raise GraphError(f"{cls.__qualname__} is not registered as an operator: write @register above the class")
        return hooks.make_node(op, list(inputs), attrs if attrs is not None else {}, name)

    def infer_shape(self, node: Node, input_shapes: list[Shape]) -> Shape:
        """The output's shape: the first input's, unless an operator says otherwise. Raises ShapeError."""
        return input_shapes[0]

    def view(self, node: Node, x: Any) -> Any:
        """The `View` of an array that the result is, where the first input is the view `x` of it; None where it is
        none."""
        return x.reshaped(self.infer_shape(node, [x.shape])) if self.kind == "view" else None

    def known(self, node: Node, shapes: Sequence[Shape], dtypes: Sequence[str]) -> Node | None:
        """Of an operator with inputs in `shape_only`: the plain node of the same value, for inputs of these types. Type
        inference always puts it in the node's place, so such an operator needs no formula. None for one that stays; it
        reads constants in place of the inputs that are read for their shape."""
        return None

    def infer_dtype(self, node: Node, input_dtypes: list[str]) -> str:
        """The output's dtype: the one on which all inputs read for values agree. Raises DTypeError."""
        dtype = input_dtypes[0] if input_dtypes and not self.shape_only else ""
        if dtype in self.dtypes and input_dtypes.count(dtype) == len(input_dtypes):
            return dtype  # as nearly always
        read = [i for i in range(len(input_dtypes)) if i not in self.shape_only] or list(self.shape_only)
        found = [str(input_dtypes[i]) for i in read]
        for i, dtype in zip(read, found, strict=True):
            if dtype not in self.dtypes:
                known = ", ".join(self.dtypes)
                raise error_at(node, DTypeError, f"input {node.inputs[i].name} is {dtype}, not one of {known}")
            if dtype != found[0]:
                first, other = node.inputs[read[0]], node.inputs[i]
                raise error_at(node, DTypeError, f"dtypes differ: {first.name} is {found[0]}, {other.name} is {dtype}")
        return found[0]

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        """The gradient with respect to each input, as new nodes; None where it is zero."""
        told = "there is no gradient: write `gradient` in its class, which returns one for each input, None for zero"
        raise error_at(node, GraphError, told)

    def checked(self, node: Node, grads: Any) -> Sequence[Node | None]:
        """The gradients that `gradient` has returned. Those of operators not of this package are compared with
        their inputs, in shape and dtype, where types are inferred. Raises GraphError for what are no gradients."""
        right = isinstance(grads, (list, tuple)) and len(grads) == len(node.inputs)
        if not right or any(not isinstance(grad, Node) for grad in grads if grad is not None):
            told = f"gradient must return a list of {len(node.inputs)}, a node or None for each input, not {grads!r}"
            raise error_at(node, GraphError, told)
        if self.builtin:
            return grads
        found: list[Node | None] = []
        for grad, x in zip(grads, node.inputs, strict=True):
            if grad is not None:
                grad = OPS["as_gradient"].make([grad, x], {"by": self.name})
                grad.placed_as(node)
            found.append(grad)
        return found

    def adds_up(self, node: Node, like: Node) -> bool:
        """Whether the node has the shape of `like`, its last input, by summing: of inputs with one more axis in front
        it is the sum over that axis."""
        return False

    def gradient_as_tuple(self, out_grad: Node, node: Node) -> tuple[Node, ...]:
        """needle's: the gradient of sum(node * out_grad) with respect to each input of `node` that is no number."""
        pairs = zip(node.inputs, self.checked(node, self.gradient(node, out_grad)), strict=True)
        found = [(value, grad) for value, grad in pairs if not value.op.immediate]
        return tuple(OPS["zeroslike"].make([value]) if grad is None else grad for value, grad in found)

    def index_range(self, node: Node, input_shapes: Sequence[Shape]) -> IndexRange | None:
        """Which of its inputs holds indices, and of what range; None where none does."""
        return None

    def numbers(self, node: Node) -> tuple[Any, Sequence[Any]]:
        """The attributes without the numbers that may become inputs, and those; for an operator that `lifts`."""
        raise NotImplementedError

    def number(self, node: Node, which: int) -> np.ndarray:
        """One of these numbers as the array to feed."""
        raise NotImplementedError

    def lifted(self, node: Node, inputs: list[Node], numbers: dict[int, Node]) -> Node:
        """The same of `inputs`, in which nodes stand for some of the numbers."""
        raise NotImplementedError

    def flop(self, node: Node, input_shapes: list[Shape], shape: Shape) -> int:
        """How many operations it takes; a multiply-add is two."""
        of_input = self.flops_of_input * math.prod(input_shapes[0]) if input_shapes else 0
        return self.flops * math.prod(shape) + of_input

    def scatters(self, node: Node) -> bool:
        """Whether its kernel stores results apart: reading other arrays there costs more than another kernel."""
        return False

    def arguments(self, node: Node, shapes: list[Shape], shape: Shape) -> tuple[Any, ...]:
        """The arguments of `formula` and `reference` behind the inputs, from the inputs' shapes and the result's."""
        return ()

    def te(self, node: Node, inputs: list[Any], shape: Shape, dtype: str) -> Any:
        """The tensor expression, a `te.Tensor` of such; of inputs in `shape_only` only the shape is used."""
        return self._applied("formula", node, inputs, shape)

    def numpy(self, node: Node, inputs: list[np.ndarray]) -> np.ndarray:
        """The reference, also the `numpy` context: in row-major order, in memory of its own but for views."""
        shape = self.infer_shape(node, [x.shape for x in inputs])
        with np.errstate(all="ignore"):  # infinities and NaN are results like others
            result = np.asarray(self._applied("reference", node, inputs, shape), order="C")
        return result if result.base is None or self.kind == "view" else result.copy()

    def _applied(self, which: str, node: Node, inputs: list[Any], shape: Shape) -> Any:
        """`formula` or `reference` of the inputs that are read for their values, and the arguments."""
        function = getattr(type(self), which, None)
        if function is None:
            raise error_at(node, GraphError, self.never or f"its class has no {which}")
        shapes = [tuple(map(int, getattr(x, "shape", ()))) for x in inputs]
        read = [x for i, x in enumerate(inputs) if i not in self.shape_only]
        arguments = *read, *self.arguments(node, shapes, shape)
        try:
            return function(*arguments)
        except TypeError:
            require_takes(node, which, function, arguments)
            raise


def require_takes(node: Node, part: str, function: Callable[..., Any], arguments: Sequence[Any]) -> None:
    """Raises GraphError for a part of the node's operator that does not take so many arguments; asked when a call of it
    has failed."""
    try:
        signature = inspect.signature(function)
    except ValueError:  # some functions in C do not tell
        return
    try:
        signature.bind(*arguments)
    except TypeError as error:
        count = f"{len(arguments)} argument{'s'[: len(arguments) != 1]}"
        raise error_at(node, GraphError, f"its {part} takes {signature}, and is called with {count}") from error


OPS: dict[str, Op] = {}
"""Every operator by its name, one instance each."""


_instances: dict[type[Op], Op] = {}  # of each class, also of one whose name another operator has taken since


def _operator(name: str) -> Op:
    return OPS[name]


OpClass = TypeVar("OpClass", bound=type[Op])


def register(cls: OpClass) -> OpClass:
    """Class decorator: put an operator's one instance into `OPS`.

    A program may define its operator again, as when a notebook's cell is run twice: a class of the same module and
    name takes the place of the one before, whose nodes stay what they are. Raises GraphError for a class without a
    name, and for the name of another operator.
    """
    name = getattr(cls, "name", None)
    if not (isinstance(cls, type) and issubclass(cls, Op) and isinstance(name, str)):
        raise GraphError(f"{cls!r} is no class of an operator: it is derived from `Op`, and has a `name`")
    before = OPS.get(name)
    if before is not None:
        owner, own = (f"{kind.__module__}.{kind.__qualname__}" for kind in (type(before), cls))
        if owner != own or cls.builtin:
            raise GraphError(f"operator {name} is there already, as {owner}: give {own} another name")
        cls.edition = before.edition + 1
    OPS[name] = _instances[cls] = cls()
    return cls


ErrorClass = TypeVar("ErrorClass", bound=DlsysError)


def error_at(node: Node, kind: type[ErrorClass], message: str) -> ErrorClass:
    """`<op>: <message> [node <name>, made at <file:line>]`, to be raised by the caller."""
    return kind(f"{node.op.name}: {message} [node {node.name}, made at {node.location}]")


def require_type(node: Node, part: str, given: tuple[Shape, str], shape: Shape, dtype: str) -> None:
    """Raises ShapeError or DTypeError where a part of the node's operator gives an array of another type than that
    which was inferred."""
    if given == (shape, dtype):
        return
    kind, rule = (ShapeError, "infer_shape") if given[0] != shape else (DTypeError, "infer_dtype")
    told, found = (f"{dtype}{list(extents)}" for extents, dtype in ((shape, dtype), given))
    raise error_at(node, kind, f"{rule} says {told}, the {part} gives {found}")


def shape_error(node: Node, message: str) -> ShapeError:
    """A ShapeError that names the node and the user's line."""
    return error_at(node, ShapeError, message)


def find_topo_sort(nodes: Iterable[Node]) -> list[Node]:
    """Every node that `nodes` depend on, and they themselves, each once, inputs before users: depth-first, in linear
    time. Raises GraphError for what is no list of nodes, and where somebody has put a node among the inputs of what it
    depends on."""
    if isinstance(nodes, (Node, np.ndarray)) or not isinstance(nodes, Iterable):
        raise GraphError(f"takes a list of nodes, not {type(nodes).__name__}")
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
    """The nodes below these and they themselves, inputs first, as far as the border: what is behind it is not there."""
    found, stack = set(), list(roots)
    while stack:
        node = stack.pop()
        if node not in found and not is_behind(node):
            found.add(node)
            stack += node.inputs
    return sorted(found, key=lambda node: node.id)  # a node has a larger id than its inputs
