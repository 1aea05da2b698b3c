"""needle's tensors, and tuples of them: a tensor requires a gradient unless told, and gradients can be differentiated
again."""

from __future__ import annotations

import gc
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import GraphError
from ..graph import FLOATS, Node, Op, handle_of, is_node, named
from ..graph import find_topo_sort as _find_topo_sort
from ..ops import broadcast_shape_op, copy_op, reducesum_op, reshape_op, swapaxes_op
from ..tensors import Tensor as DlsysTensor
from ..ops import variable
from ..ops.state import leaf as leaf_of
from ..tensors.backward import gradients_of, leaves_below, weight_of
from ..tensors.evaluate import array_of, evaluate
from ..tensors.inplace import write
from .backend_ndarray import BACKEND, NDArray, cpu, require_cpu

_NARROWED = "iu" if BACKEND == "np" else "iuf"  # kinds of arrays that become float32


def find_topo_sort(node_list: list[Node]) -> list[Node]:
    """The tensors of a graph, inputs first. A number, as 3 of `3 * x`, is no tensor."""
    return [handle_of(node, Tensor) for node in _find_topo_sort(named(list(node_list))) if not node.op.immediate]


class Tensor(DlsysTensor):
    """A leaf that holds a copy of an array; or, as `placeholder`, a variable of its shape and dtype, which is fed to an
    Executor. Without a `dtype` a tensor keeps its own and an array becomes float32; with needle's NumPy backend, see
    `backend_ndarray.BACKEND`, arrays of floats keep theirs. Two tensors are equal where they are one."""

    __slots__ = ()

    if TYPE_CHECKING:

        def __hash__(self) -> int: ...
    else:
        __hash__ = DlsysTensor.__hash__

    def __init__(
        self,
        array: Any,
        *,
        device: Any = None,
        dtype: Any = None,
        requires_grad: bool = True,
        placeholder: bool = False,
        name: str | None = None,
    ) -> None:
        """Raises DTypeError for what is no array of numbers, DeviceError for another device than the CPU."""
        require_cpu(device)
        values = np.array(array, dtype)
        if dtype is None and values.dtype.kind in _NARROWED and not is_node(array):
            values = values.astype("float32")
        if placeholder:
            self._grad = None
            self.name_node(variable(name or "placeholder", values.shape, str(values.dtype)))
        else:
            self._hold(values, name, requires_grad and str(values.dtype) in FLOATS)

    @staticmethod
    def make_const(data: Any, requires_grad: bool = False) -> Tensor:
        """A leaf in the memory of a tensor or an array, in its dtype."""
        made = Tensor.__new__(Tensor)
        made._hold(array_of(data) if is_node(data) else np.asarray(data), None, requires_grad)
        return made

    def detach(self) -> Tensor:
        """A leaf with this value and no history."""
        return Tensor.make_const(self)

    @property
    def data(self) -> Any:
        """`detach`. Set it, of a leaf, from a tensor of the same shape."""
        return self.detach()

    @data.setter
    def data(self, value: Any) -> None:
        self.cached_data = value

    @property
    def cached_data(self) -> Any:
        """The values in the tensor's own memory: what is written there, graphs read that are computed afterwards. Set
        it, of a leaf, from anything of the same shape. Raises GraphError for a graph with placeholders."""
        return np.asarray(array_of(self)).view(NDArray)

    @cached_data.setter
    def cached_data(self, value: Any) -> None:
        write(self, value)

    def realize_cached_data(self) -> Any:
        """`cached_data`."""
        return self.cached_data

    def is_leaf(self) -> bool:  # type: ignore[override]  # PyTorch's is a property
        """Whether the tensor is no result of an operator."""
        return not self.inputs

    @property
    def device(self) -> Any:
        """The CPU."""
        return cpu()

    def backward(self, out_grad: Any = None) -> None:  # type: ignore[override]
        """`compute_gradient_of_variables`."""
        compute_gradient_of_variables(self, out_grad)

    def __repr__(self) -> str:
        return f"needle.Tensor({self!s})"

    def __str__(self) -> str:
        return self.name if self.is_open else str(self.numpy())

    def __eq__(self, other: object) -> bool:  # type: ignore[override]
        return self is other

    def __ne__(self, other: object) -> bool:  # type: ignore[override]
        return self is not other

    def __sub__(self, other: Any) -> Any:
        return self + (-other)

    def __rsub__(self, other: Any) -> Any:
        return -self + other

    def numpy(self) -> np.ndarray:
        """A copy of the value, which may be written. Raises GraphError for a graph with placeholders."""
        return array_of(self).numpy()

    # By needle's arguments; also the functions of `ops`, which take nodes of any kind.

    def sum(self: Any, axes: Any = None) -> Any:  # type: ignore[override]
        """The sum over axes, all for None."""
        return reducesum_op(self, axes)

    def transpose(self: Any, axes: Any = None) -> Any:  # type: ignore[override]
        """The two axes exchanged, the last two for None. Raises GraphError for axes that are not two integers."""
        pair = (-1, -2) if axes is None else axes
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise GraphError(f"transpose: axes must be two, which change places, not {axes!r}")
        return swapaxes_op(self, *pair)

    def reshape(self: Any, shape: Any) -> Any:  # type: ignore[override]
        """The values under another shape."""
        return reshape_op(self, shape)

    def broadcast_to(self: Any, shape: Any) -> Any:  # type: ignore[override]
        """The values broadcast to a shape."""
        return broadcast_shape_op(self, shape)


Tensor.results = Tensor  # what operators make of needle's tensors are needle's
Value = Tensor


class MakeTensorTuple:
    """The operator of a tuple of tensors: `MakeTensorTuple()(a, b)`."""

    def __call__(self, *args: Node) -> TensorTuple:
        """The tensors as a tuple. Raises GraphError for what is no tensor."""
        for value in args:
            if not is_node(value):
                raise GraphError(f"make_tuple: takes tensors, not {type(value).__name__}")
        return TensorTuple(args)

    def compute(self, *args: Any) -> tuple[Any, ...]:
        """The arrays as a tuple."""
        return args

    def gradient(self, out_grad: Iterable[Node], node: Any) -> tuple[Node, ...]:
        """The gradient of each tensor, from a tuple of them."""
        return tuple(out_grad)

    gradient_as_tuple = gradient


class TensorTuple(tuple[Any, ...]):
    """Tensors, by their numbers: what `MakeTensorTuple` and operators with several results give. Gradients go to the
    tensors. Two of one length are added item by item."""

    __slots__ = ()
    op: MakeTensorTuple = MakeTensorTuple()

    @classmethod
    def make_const(cls, data: Iterable[Any], *, requires_grad: bool = False) -> TensorTuple:
        """Leaves in the memory of tensors or arrays, see `Tensor.make_const`."""
        return cls(Tensor.make_const(item, requires_grad) for item in data)

    def tuple(self) -> tuple[Any, ...]:
        """The tensors in Python's tuple."""
        return tuple(self)

    def detach(self) -> TensorTuple:
        """Leaves with these values and no history."""
        return TensorTuple.make_const(self)

    @property
    def inputs(self) -> list[Any]:
        """The tensors in a list."""
        return list(self)

    @property
    def cached_data(self) -> Any:
        """The tensors' `cached_data`, in Python's tuple."""
        return tuple(item.cached_data for item in self)

    def realize_cached_data(self) -> Any:
        """`cached_data`."""
        return self.cached_data

    @property
    def requires_grad(self) -> bool:
        """Whether one of the tensors does."""
        return any(item.requires_grad for item in self)

    def __add__(self, other: Any) -> TensorTuple:
        """The sums of the items. Raises GraphError for what is no TensorTuple, or one of another length."""
        if not isinstance(other, TensorTuple) or len(other) != len(self):
            told = f"of {len(other)}" if isinstance(other, tuple) else type(other).__name__
            raise GraphError(f"a TensorTuple of {len(self)} is added to one of the same length, not {told}")
        return TensorTuple(a + b for a, b in zip(self, other, strict=True))

    def __repr__(self) -> str:
        return f"needle.TensorTuple{super().__repr__()}"


def compute_gradient_of_variables(output_tensor: Any, out_grad: Any = None) -> None:
    """Set the `grad` of every leaf that requires one to that of sum(output_tensor * out_grad), ones for None; what was
    there is forgotten. The values of the output and of the parameters' gradients are computed now. Raises GraphError
    where no leaf requires a gradient, ShapeError for an `out_grad` of another shape."""
    leaves = leaves_below(output_tensor)
    if out_grad is not None and not is_node(out_grad):
        out_grad = Tensor(out_grad, requires_grad=False)
    found = gradients_of([output_tensor], [weight_of("backward", output_tensor, out_grad)], leaves)
    for leaf, grad in zip(leaves, found, strict=True):
        leaf.grad = Tensor.of(grad.node)
    if not output_tensor.is_open:
        grads = [grad.node for leaf, grad in zip(leaves, found, strict=True) if type(leaf) is not Tensor]
        evaluate([output_tensor.node, *grads])


def __getattr__(name: str) -> Any:
    if name == "TENSOR_COUNTER":  # the tensors that there are, counted when it is asked for
        return sum(issubclass(type(found), Tensor) for found in gc.get_objects())
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
