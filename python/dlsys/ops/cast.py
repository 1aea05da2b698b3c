"""Changes of dtype."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import compute
from ..compute import Tensor
from ..graph import DTYPES, FLOATS, Node, Op, Shape, register
from .rules import dtype_attribute


class _Cast(Op):
    """x in another dtype, as NumPy's `astype`."""

    dtypes = DTYPES
    elementwise = True

    def te(self, node: Node, inputs: list[Tensor], shape: Shape, dtype: str) -> Tensor:
        return compute.cast(inputs[0], dtype)

    def numpy(self, node: Node, inputs: list[np.ndarray]) -> np.ndarray:
        with np.errstate(over="ignore", invalid="ignore"):
            return np.array(inputs[0], self.infer_dtype(node, [str(x.dtype) for x in inputs]), order="C")


@register
class Cast(_Cast):
    """x as `attrs["dtype"]`; the gradient is cast back."""

    name = "cast"
    flops = 0

    def infer_dtype(self, node: Node, input_dtypes: list[str]) -> str:
        super().infer_dtype(node, input_dtypes)
        return node.attrs["dtype"]

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        return [cast_like_op(output_grad, node.inputs[0]) if node.attrs["dtype"] in FLOATS else None]


@register
class CastAs(_Cast):
    """x in the dtype of `like`, whose values are not read."""

    name = "cast_as"
    shape_only = (1,)

    def infer_dtype(self, node: Node, input_dtypes: list[str]) -> str:
        super().infer_dtype(node, input_dtypes)
        return str(input_dtypes[1])

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        return [cast_like_op(output_grad, node.inputs[0]), None]


def cast_op(x: Node, dtype: Any) -> Node:
    """x as dtype, one of `dlsys.graph.DTYPES`, as NumPy's `astype`: fractions are cut off, a number is True unless 0.

    Raises GraphError for any other dtype.
    """
    return Cast.make([x], {"dtype": dtype_attribute("cast", dtype)})


def cast_like_op(x: Node, like: Node) -> Node:
    """x in the dtype of `like`, whose values are not read."""
    return CastAs.make([x, like])
