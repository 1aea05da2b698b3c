"""needle's tensors: they require a gradient unless told, and their gradients can be differentiated again."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np

from ..errors import GraphError, ShapeError
from ..gradients import gradients
from ..graph import FLOATS, OPS, Node, Op, find_topo_sort
from ..ops import shape_of
from ..tensors import Tensor as DlsysTensor
from ..tensors import evaluate
from ..tensors.base import fill
from ..tensors.inplace import require_writable, write
from ..tensors.values import array_of, leaves_that_require_grad
from . import ops
from .backend_ndarray import NDArray, cpu, require_cpu

TensorTuple = tuple
"""What an operator with several outputs gives: Python's tuple."""


class Tensor(DlsysTensor):
    """A leaf that holds a copy of an array; or, as `placeholder`, a variable of its shape and dtype, which is fed to an
    Executor. Arrays of floats keep their dtype, integers become float32. Two tensors are equal where they are one."""

    __slots__ = ()
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
        if values.dtype.kind in "iu" and dtype is None:
            values = values.astype("float32")
        if placeholder:
            fill(self, OPS["placeholder"], [], {"shape": values.shape, "dtype": str(values.dtype)}, name)
        else:
            self._hold(values, name, requires_grad and str(values.dtype) in FLOATS)

    @staticmethod
    def make_const(data: Any, requires_grad: bool = False) -> Tensor:
        """A leaf in the memory of a tensor or an array, in its dtype."""
        made = Tensor.__new__(Tensor)
        made._hold(array_of(data) if isinstance(data, Node) else np.asarray(data), None, requires_grad)
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
        require_writable(self)
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
        return str(self.numpy()) if self.is_data else self.name

    def __eq__(self, other: object) -> bool:
        return self is other

    def __ne__(self, other: object) -> bool:
        return self is not other

    def __sub__(self, other: Any) -> Any:
        return self + (-other)

    def __rsub__(self, other: Any) -> Any:
        return -self + other

    def numpy(self) -> np.ndarray:
        """A copy of the value, which may be written. Raises GraphError for a graph with placeholders."""
        return array_of(self).numpy()

    sum: Any = ops.summation
    transpose: Any = ops.transpose
    reshape: Any = ops.reshape
    broadcast_to: Any = ops.broadcast_to


Tensor.results = Tensor  # what operators make of needle's tensors are needle's
Value = Tensor


def compute_gradient_of_variables(output_tensor: Any, out_grad: Any = None) -> None:
    """Set the `grad` of every leaf that requires one to that of sum(output_tensor * out_grad), ones for None; what was
    there is forgotten. The values of the output and of the parameters' gradients are computed now. Raises GraphError
    where no leaf requires a gradient, ShapeError for an `out_grad` of another shape."""
    leaves = leaves_that_require_grad(output_tensor)
    if not leaves:
        raise GraphError(f"backward: {output_tensor.name} depends on no tensor with requires_grad=True")
    if out_grad is not None:
        weight = out_grad if isinstance(out_grad, Node) else Tensor(out_grad, requires_grad=False)
        if shape_of(weight) != shape_of(output_tensor):
            told = f"the gradient has shape {shape_of(weight)}, the output {shape_of(output_tensor)}"
            raise ShapeError(f"backward: {told}")
        output_tensor = output_tensor * weight
    found = gradients(output_tensor, leaves)
    for leaf, grad in zip(leaves, found, strict=True):
        leaf.grad = grad
    if output_tensor.is_data:
        evaluate([output_tensor, *(grad for leaf, grad in zip(leaves, found, strict=True) if type(leaf) is not Tensor)])


def __getattr__(name: str) -> Any:
    if name == "TENSOR_COUNTER":  # the tensors that there are, counted when it is asked for
        return sum(issubclass(type(found), Node) for found in gc.get_objects())
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
