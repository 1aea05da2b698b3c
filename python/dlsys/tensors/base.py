"""`Tensor`: every node that a user meets. Types, values, conversions, and operators as methods by PyTorch's names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Self, cast, overload
from weakref import ref

import numpy as np

from .. import ops
from ..checks import flag
from ..devices import Array, copied, host_array
from ..errors import DlsysError, DTypeError, GraphError
from ..graph import DTYPES, FLOATS, Handle, Node, Shape, stamp
from ..ops import shape_of
from ..ops.operators import Arithmetic
from ..ops.state import is_array
from ..ops.state import leaf as leaf_of
from ..scopes import no_grad, scopes
from .about import About, Conversions, numel
from .arguments import dim_of
from .backward import backward
from .creation import leaf, values_of
from .elementwise import where
from .evaluate import array_of, changing
from .inplace import InPlace, hold, kept, settle, settled, write
from .methods import Methods
from .structure import ends_gradients, settled_of
from .structure import hold as hold_value
from .typing import ArrayLike, Device, DType, Nested
from .ufuncs import UFuncs


def _read_only(values: np.ndarray) -> np.ndarray:
    """The array, which cannot be written any more."""
    values.flags.writeable = False
    return values


class Values(Handle):
    """What a tensor is: the node that it names, its gradient, its type and value.

    Attributes:
        grad: what `backward` left here; None before.
    """

    __slots__ = ("_grad", "_names")
    _grad: Tensor | None
    _names: list[Any]  # weak references to what `detach` has returned

    @classmethod
    def of(cls, node: Node) -> Any:
        """A new tensor that names a node."""
        made = cls.__new__(cls)
        made.node = node
        made._grad = None
        if node.owner is None or node.owner() is None:
            node.owner = ref(made)
        return made

    def __reduce_ex__(self, protocol: Any) -> Any:
        """A copy, or a pickle, names a leaf of the value; of what depends on variables a node of the same graph."""
        node: Node = self.node
        if not (is_array(node) or node.is_open or node.op.immediate):
            node = leaf_of(array_of(self), node.name)
        kind = Tensor if type(self) is Detached else type(self)
        return _restored, (kind, node, self._grad), getattr(self, "__dict__", None)

    def name_node(self, node: Node) -> None:
        """Name another node from now on."""
        if scopes.recording is not None:
            scopes.recording.changes(self)
        self.node = node
        node.owner = ref(self)

    def hold(self, array: Array) -> None:
        """Name a leaf of an array, which becomes the tensor's own."""
        hold(self, array)

    def settle(self) -> None:
        """Name a leaf of the value that was computed."""
        settle(self)

    @property
    def grad(self) -> Tensor | None:
        """What `backward` left here; None before."""
        if scopes.recording is not None:
            return scopes.recording.grad_of(self)
        return self._grad

    @grad.setter
    def grad(self, grad: Tensor | None) -> None:
        if scopes.recording is not None:
            scopes.recording.grad_changes(self)
        self._grad = grad

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(shape_of(self))

    @property
    def requires_grad(self) -> bool:
        """Whether `backward` leaves a gradient somewhere. Set it, see `requires_grad_`."""
        return self.node.tracks

    @requires_grad.setter
    def requires_grad(self, requires_grad: bool) -> None:
        self.requires_grad_(requires_grad)

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """Set whether `backward` leaves a gradient in a leaf; itself. So it does in a computed tensor without a
        history, as `linspace(0, 1, 5).view(5, 1)`: the value is computed now, and gradients end there. Raises
        DTypeError for what is of no floats, GraphError for what depends on variables, or would lose a history."""
        requires_grad = flag("requires_grad_", "requires_grad", requires_grad)
        if requires_grad and self.dtype not in FLOATS:
            raise DTypeError(f"requires_grad_: only floats have gradients, not {self.dtype}")
        if requires_grad != self.node.tracks:
            if not (requires_grad or ends_gradients(self.node)):
                raise GraphError(f"{self.name} has a history of gradients: {self.name}.detach() has none")
            before = self.node
            if scopes.recording is not None and before.is_open:
                node = settled_of(before, before._name)
            else:
                before = before if is_array(before) else settled(self)
                node = leaf_of(before.held, before._name, **kept(before))
            node.tracks = requires_grad
            self.name_node(node)
        return self

    @property
    def is_leaf(self) -> bool:
        """Whether it holds data that no operator computed, or has no history of gradients, as in PyTorch."""
        return ends_gradients(self.node) or not self.node.tracks

    @overload
    def size(self, axis: None = None) -> Shape: ...
    @overload
    def size(self, axis: int) -> int: ...
    def size(self, axis: int | None = None) -> Shape | int:
        """The shape, or its extent along an axis. Raises GraphError, and ShapeError for an axis that it has not."""
        return self.shape if axis is None else self.shape[dim_of("size", self, axis)]

    def dim(self) -> int:
        """The number of axes."""
        return len(shape_of(self))

    @property
    def tensor(self) -> object:
        """The value as a TVM tensor, in its own memory."""
        return array_of(self).tensor

    def numpy(self) -> np.ndarray:
        """The value, a copy; read-only, as what is written there would not reach the tensor. Computed at the first
        request, then cached. Raises GraphError for a graph with variables."""
        return _read_only(array_of(self).numpy())

    @property
    def value(self) -> np.ndarray:
        """`numpy()`. Set it, of a leaf, from anything that `tensor` takes, of the same shape; it is cast to the leaf's
        dtype. Raises ShapeError for another shape."""
        return _read_only(array_of(self).numpy())

    @value.setter
    def value(self, value: Nested) -> None:
        write(self, value)

    def item(self) -> Any:
        """The value of the one element as a Python number. Raises GraphError where there are more or none."""
        value = self.numpy()
        if value.size != 1:
            raise GraphError(f"{self.name} has shape {value.shape}: only one element makes a Python number")
        return value.item()

    def tolist(self) -> Any:
        """The value as nested lists."""
        return self.numpy().tolist()

    def detach(self) -> Tensor:
        """The tensor without its history. Of a leaf, and of what has no history, another name: what is written to
        either is written to both."""
        tensor, node = cast(Tensor, self), self.node
        if ends_gradients(node) or not (node.tracks or (node.is_open and scopes.recording is None)):
            return Detached.from_tensor(tensor)
        if not node.is_open or scopes.recording is not None:
            return Tensor.of(settled_of(node, f"{node.name}.detach"))
        with no_grad():
            return ops.copy_op(tensor)

    @property
    def data(self) -> Tensor:
        """`detach`. Set it, of a leaf, from anything of the same shape. Raises GraphError for a tensor that has a
        history of gradients, which it would lose."""
        return self.detach()

    @data.setter
    def data(self, value: Nested) -> None:
        if self.node.tracks and not ends_gradients(self.node):
            raise GraphError(f"{self.name} has a history of gradients, which it would lose: use .copy_(value)")
        if isinstance(value, Detached) and value.names(self):  # x.data -= y has written it already
            return
        for name in getattr(self, "_names", ()) if scopes.recording is None else ():
            if (detached := name()) is not None:
                detached.keep()
        write(self, value)

    def backward(
        self,
        gradient: Nested | None = None,
        retain_graph: bool | None = None,
        create_graph: bool = False,
        inputs: Node | Sequence[Node] | None = None,
    ) -> None:
        """See `dlsys.tensors.backward`. Graphs are always retained."""
        backward(self, gradient, create_graph, inputs)

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __bool__(self) -> bool:
        return bool(self.item())

    def __index__(self) -> int:
        if self.dtype in FLOATS:
            raise TypeError(f"{self.name} of {self.dtype} is no index")
        return int(self.item())

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("a tensor of shape () has no length")
        return self.shape[0]

    def __iter__(self) -> Iterator[Tensor]:
        tensor = cast(Tensor, self)
        return (tensor[i] for i in range(len(self)))

    def __array__(self, dtype: DType = None, copy: bool | None = None) -> np.ndarray:
        """The value for NumPy: `np.array` makes a copy to write in, `np.asarray` one that is read-only. With
        `copy=False` it is the value's memory, read-only, which a compiled step may overwrite; ValueError where that
        cannot be."""
        found = array_of(self)
        if copy is not False:
            values = np.array(found, dtype)
            return values if copy else _read_only(values)
        if found.context.kind != "cpu" or np.dtype(dtype or found.dtype) != found.dtype:
            raise ValueError(f"{self.name} is {found.dtype} on {found.context}: this needs a copy")
        return _read_only(np.asarray(found))

    def __dlpack__(self, **kwargs: object) -> object:
        return array_of(self).tensor.__dlpack__(**kwargs)

    def __dlpack_device__(self) -> tuple[int, int]:
        return array_of(self).tensor.__dlpack_device__()

    def __dlsys_array__(self, writing: bool = False) -> Array:
        """The value's memory, for kernels and feeds; to be written, only a leaf's. Raises GraphError."""
        if writing:
            if self.node.tracks and not ends_gradients(self.node):
                raise GraphError(f"{self.name} has a history of gradients: write into {self.name}.detach()")
            with changing:
                node = self.node if is_array(self.node) else settled(self)
                node.held.written = stamp()
        return array_of(self)

    def copyfrom(self, source: Nested) -> Self:
        """Set all values of a leaf, cast to its dtype; itself. Raises ShapeError for a source of another shape."""
        self.__dlsys_array__(writing=True).copyfrom(source)
        return self

    def __repr__(self) -> str:
        """The values as NumPy prints them; the name of a tensor that depends on variables."""
        if self.op.immediate:
            return repr(self.attrs["value"])
        try:
            if self.is_open:
                return self.name
            values = self.numpy()
        except DlsysError as error:  # told, not raised: it would hide the one that a message with this text tells
            return f"<tensor that fails: {type(error).__name__}: {error}>"
        shown = np.array2string(
            values, separator=", ", prefix="tensor(", precision=4, threshold=200, edgeitems=3
        )
        own = "" if self.dtype in ("float32", "int64", "bool") else f", dtype={self.dtype}"
        return f"tensor({shown}{own}{', requires_grad=True' if self.requires_grad else ''})"

    def _repr_html_(self) -> str | None:
        """A table of the values for Jupyter; None, so that `repr` is shown, unless it has one or two axes."""
        try:
            if self.op.immediate or self.is_open or self.ndim not in (1, 2):
                return None
            from ..inspect import notebook  # here: it loads what draws pictures

            return notebook.tensor(self.numpy(), f"{self.dtype} {self.shape}")
        except DlsysError:
            return None

    def __format__(self, spec: str) -> str:
        """The one element in a format, `f"{loss:.3f}"`; without one, `repr` of several."""
        if spec:
            return format(self.item(), spec)
        try:
            return format(self.item()) if not self.is_open and numel(self) == 1 else repr(self)
        except DlsysError:
            return repr(self)


class Tensor(Values, Methods, InPlace, About, Conversions, UFuncs, Arithmetic):
    """A name for a node: for a leaf, which holds data, or for an operator applied to tensors, whose value is computed
    on demand. An assignment (`x += 1`, `x[0] = 1`, `x.data = v`) makes it name another node.

    `Tensor(data, dtype="float32", device=None, requires_grad=False)` is a leaf that holds a copy of the data. What
    depends on variables has no value of its own: an `Executor` runs it.
    """

    __slots__ = ()
    results: ClassVar[type[Tensor]]
    """The class of what operators make of tensors of this class."""

    def __init__(
        self,
        data: Nested,
        dtype: DType = None,
        device: Device = None,
        requires_grad: bool = False,
        name: str | None = None,
    ) -> None:
        """See above. Raises DTypeError for what is no array of numbers, DeviceError for a device that is not there."""
        values = values_of(data, "float32" if dtype is None else dtype)
        self._hold(
            values if device is None else array_of(leaf(values, device=device)), name, requires_grad
        )

    def _hold(self, values: np.ndarray | Array, name: str | None, requires_grad: bool) -> None:
        """Become a leaf of these values, an array of NumPy or of dlsys, in their memory."""
        self._grad = None
        self.name_node(leaf_of(values, name))
        self.requires_grad_(requires_grad)

    @property
    def T(self) -> Tensor:
        """The axes reversed."""
        return ops.transpose_op(self)

    @property
    def mT(self) -> Tensor:
        """The last two axes exchanged."""
        return self.swapaxes(-1, -2)

    def where(self, condition: ArrayLike, other: ArrayLike) -> Tensor:
        """The values where the condition holds, the other's elsewhere."""
        return where(condition, self, other)


class Parameter(Tensor):
    """A leaf that need not be fed and that optimizers change; a module knows those that are its attributes.

    The value lies where it was used last: on the first executor's context it moves there, and stays. Executors
    that share a parameter see each other's updates.
    """

    __slots__ = ()

    def __init__(self, value: Nested, name: str | None = None, requires_grad: bool | None = None) -> None:
        """Args:
            value: a NumPy, dlsys or TVM array, anything with `__dlpack__`, a number or nested lists (float32 then).
                It is copied.
            name: for printing and errors; need not be unique.
            requires_grad: whether `backward` fills its `grad`; None: if it is of a float dtype.

        Raises DTypeError for an array of a dtype that is none of `dlsys.graph.DTYPES`.
        """
        given = host_array(value, np.float32)
        if str(given.dtype) not in DTYPES:
            raise DTypeError(f"parameter: dtype {given.dtype} is not one of {', '.join(DTYPES)}")
        wanted = str(given.dtype) in FLOATS if requires_grad is None else requires_grad
        self._hold(np.array(given, order="C"), name, wanted)


class Detached(Tensor):
    """`x.detach()`: another name for what x names, without its history. What is written to one is written to both."""

    __slots__ = ("_leaf", "_of", "_own", "_source")
    _source: Tensor
    _of: Node | None
    _leaf: Node
    _own: bool

    @classmethod
    def from_tensor(cls, source: Tensor) -> Detached:
        """Without the history of `source`."""
        made = cls.__new__(cls)
        made._source, made._of, made._own, made._grad = source, None, False, None
        source._names = [name for name in getattr(source, "_names", ()) if name() is not None] + [ref(made)]
        return made

    def names(self, tensor: object) -> bool:
        """Whether it is another name of this tensor, and no name of its own."""
        return self._source is tensor and not self._own

    def keep(self) -> None:
        """Stay what it is, a name of its own, as the tensor gets other memory by `data = `."""
        source = self._source.node
        if not self._own:
            name = f"{source.name}.detach"
            self._own = True
            self.name_node(leaf_of(source.held, name) if is_array(source) else settled_of(source, name))

    @property
    def node(self) -> Node:  # type: ignore[override]
        """What the tensor names, without its history."""
        if self._own:
            return self._leaf
        source = self._source.node
        if self._of is not source:
            name = f"{source.name}.detach"
            if is_array(source):
                made = leaf_of(source.held, name, **kept(source))
                made.owner = ref(self._source)
            elif not (source.tracks or ends_gradients(source)):
                made = source
            else:
                with no_grad():
                    made = ops.copy_op(source)
                    made.name = name
            self._of, self._leaf = source, made
        elif is_array(source) and self._leaf.held is not source.held:
            self._leaf.held = source.held
        return self._leaf

    def name_node(self, node: Node) -> None:
        """Let the tensor be that from now on; of a leaf that requires a gradient a leaf that does."""
        if self._own:
            if scopes.recording is not None:
                scopes.recording.changes(self)
            self._leaf, node.owner = node, ref(self)
            return
        source = self._source.node
        if source.tracks and ends_gradients(source):
            made = settled_of(node, source._name)
            if node.held is not None:
                hold_value(made, node.held)
            node, node.tracks = made, True
        self._source.name_node(node)

    def requires_grad_(self, requires_grad: bool = True) -> Any:
        """See `Tensor.requires_grad_`; a name of its own from now on, which holds a copy."""
        if requires_grad and not self._own:
            made = leaf_of(copied(array_of(self)), self.name)
            self._own = True
            self.name_node(made)
        return super().requires_grad_(requires_grad)


def _restored(kind: type[Tensor], node: Node, grad: Tensor | None) -> Tensor:
    """The tensor of a pickle or a copy."""
    made = kind.__new__(kind)
    made.node, made._grad = node, grad
    node.owner = ref(made)
    return made


Tensor.results = Tensor
Handle.results = Tensor
