"""What tensors, operators and devices have in needle, the framework of the CMU course 10-414, besides the operators,
which are in `dlsys.ops.needle`."""

from __future__ import annotations

import gc
from typing import Any

from ..graph import Node
from .backend import NDArray, all_devices, cpu_numpy, default_device
from .differentiate import backward
from .values import leaves_that_require_grad

TensorTuple = tuple
"""What an operator with several outputs gives: Python's tuple."""


def compute_gradient_of_variables(output_tensor: Node, out_grad: Any = None) -> None:
    """Set the `grad` of every leaf that requires one to that of sum(output_tensor * out_grad), ones for None; what was
    there is forgotten. The gradients can be differentiated again. Raises GraphError, ShapeError as `backward` does."""
    for leaf in leaves_that_require_grad(output_tensor):
        leaf.grad = None
    backward(output_tensor, out_grad, create_graph=True)


def live_tensors() -> int:
    """How many tensors there are: needle's `autograd.TENSOR_COUNTER`."""
    return sum(issubclass(type(found), Node) for found in gc.get_objects())


__all__ = [
    "NDArray",
    "TensorTuple",
    "all_devices",
    "compute_gradient_of_variables",
    "cpu_numpy",
    "default_device",
    "live_tensors",
]
