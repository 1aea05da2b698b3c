"""What tensors, operators and devices have in needle, the framework of the CMU course 10-414, besides the operators,
which are in `dlsys.ops.needle`."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np

from ..autodiff import Node, Op
from .backend import NDArray, all_devices, cpu_numpy, default_device
from .differentiate import backward
from .inplace import require_writable, write
from .running import array_of, leaves_that_require_grad

TensorTuple = tuple
"""What an operator with several outputs gives: Python's tuple."""


class Needle:
    """Properties and methods of needle's tensors."""

    @property
    def cached_data(self: Any) -> NDArray:
        """The values in the tensor's own memory: what is written there, graphs read that are computed afterwards. Set
        it, of a leaf, from anything of the same shape. Raises GraphError for a graph with variables."""
        return np.asarray(array_of(self)).view(NDArray)

    @cached_data.setter
    def cached_data(self: Any, value: Any) -> None:
        require_writable(self)
        write(self, value)

    def realize_cached_data(self: Any) -> NDArray:
        """`cached_data`."""
        return self.cached_data


def gradient_as_tuple(self: Op, out_grad: Node, node: Node) -> tuple[Any, ...]:
    """The gradient of sum(node * out_grad) with respect to each input of `node`, an application of this operator; None
    where it is zero."""
    return tuple(self.gradient(node, out_grad))


def compute_gradient_of_variables(output_tensor: Node, out_grad: Any = None) -> None:
    """Set the `grad` of every leaf that requires one to that of sum(output_tensor * out_grad), ones for None; what was
    there is forgotten. The gradients can be differentiated again. Raises GraphError, ShapeError as `backward` does."""
    for leaf in leaves_that_require_grad(output_tensor):
        leaf.grad = None
    backward(output_tensor, out_grad, create_graph=True)


def live_tensors() -> int:
    """How many tensors there are: needle's `autograd.TENSOR_COUNTER`."""
    return sum(issubclass(type(found), Node) for found in gc.get_objects())


def install() -> None:
    """Put needle's names on tensors and operators."""
    for name in ("cached_data", "realize_cached_data"):
        setattr(Node, name, vars(Needle)[name])
    Op.gradient_as_tuple = gradient_as_tuple  # type: ignore[attr-defined]


__all__ = [
    "NDArray",
    "TensorTuple",
    "all_devices",
    "compute_gradient_of_variables",
    "cpu_numpy",
    "default_device",
    "install",
    "live_tensors",
]
