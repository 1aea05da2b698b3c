"""Exchange with the other processes of the group: sums of all, arrays of all, shares of sums.

Each rank has a node of its own with values of its own; every formula is a sum over the ranks, and so is its gradient.
Tensor parallel layers, whose result all ranks have and count once, have two operators of their own. In a group of one
type inference puts the input in a node's place.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from .. import distributed
from ..checks import word
from ..errors import GraphError
from ..graph import DTYPES, Node, Op, Shape, error_at, register, shape_error
from .shape import reshape_op
from .slicing import pad_op, slice_op


class Collective(Op):
    """An operator that reads the values of all ranks; `exchange` is its name in `distributed`."""

    dtypes: ClassVar[tuple[str, ...]] = tuple(dtype for dtype in DTYPES if dtype != "bool")
    never = "processes exchange its values: see `compiler.messages`; in a loop's steps they cannot"
    exchange: ClassVar[str]
    adjoint: ClassVar[str]

    def known(self, node: Node, shapes: Sequence[Shape], dtypes: Sequence[str]) -> Node | None:
        return node.inputs[0] if distributed.size() == 1 else None

    def numpy(self, node: Node, inputs: list[np.ndarray]) -> np.ndarray:
        return getattr(distributed, self.exchange)(*inputs, *self.options(node))

    def options(self, node: Node) -> tuple[str, ...]:
        return ()


@register
class AllReduce(Collective):
    """y = the sum over the ranks r of x_r, or the largest or smallest, element by element: (S) -> (S). Of a sum the
    gradient is the sum over the ranks of theirs."""

    name = exchange = "all_reduce"
    flops = 0

    def options(self, node: Node) -> tuple[str, ...]:
        return (node.attrs["operation"],)

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        if node.attrs["operation"] != "sum":
            raise error_at(node, GraphError, f"the {node.attrs['operation']} over ranks has no gradient")
        return [all_reduce_op(output_grad)]


def share_size(shape: Shape) -> int:
    """How many elements each rank's share of a value of this shape has; those of the last ranks end with zeros."""
    return max(-(-math.prod(shape) // distributed.size()), 1)


def _of_shares(node: Node, share: Shape, whole: Shape) -> Shape:
    """The whole's shape. Raises ShapeError where a share has another than that of the whole."""
    if share != (share_size(whole),):
        raise shape_error(node, f"a share of {whole} has shape ({share_size(whole)},), not {share}")
    return whole


@register
class AllGather(Collective):
    """The x_r of all ranks one behind another: (n, ...) -> (ranks * n, ...). With `shape` x_r are shares of a value of
    that shape: (share_size(shape),) -> shape. Its gradient is `reduce_scatter`."""

    name = exchange = "all_gather"
    flops = 0

    def infer_shape(self, node: Node, input_shapes: list[Shape]) -> Shape:
        (shape,), whole = input_shapes, node.attrs.get("shape")
        if whole is not None:
            return _of_shares(node, shape, whole)
        if not shape:
            raise shape_error(node, "needs a first axis, the shape is ()")
        return distributed.size() * shape[0], *shape[1:]

    def known(self, node: Node, shapes: Sequence[Shape], dtypes: Sequence[str]) -> Node | None:
        alone, whole = super().known(node, shapes, dtypes), node.attrs.get("shape")
        if alone is None or whole is None:
            return alone
        return reshape_op(alone if math.prod(whole) else slice_op(alone, slice(0, 0)), whole)

    def numpy(self, node: Node, inputs: list[np.ndarray]) -> np.ndarray:
        found, shape = super().numpy(node, inputs), node.attrs.get("shape")
        return found if shape is None else found[: math.prod(shape)].reshape(shape)

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        return [reduce_scatter_op(output_grad, flat="shape" in node.attrs)]


@register
class ReduceScatter(Collective):
    """This rank's share of the sum over the ranks of x_r, along the first axis: (ranks * n, ...) -> (n, ...). With
    `flat` of its elements in one row: (S) -> (share_size(S),). Its gradient is `all_gather`."""

    name = exchange = "reduce_scatter"
    flops = 0

    def infer_shape(self, node: Node, input_shapes: list[Shape]) -> Shape:
        (shape,), ranks = input_shapes, distributed.size()
        if node.attrs.get("flat"):
            return (share_size(shape),)
        if not shape or shape[0] % ranks:
            raise shape_error(node, f"the first axis must be a multiple of the {ranks} ranks, the shape is {shape}")
        return shape[0] // ranks, *shape[1:]

    def known(self, node: Node, shapes: Sequence[Shape], dtypes: Sequence[str]) -> Node | None:
        alone = super().known(node, shapes, dtypes)
        if alone is None or not node.attrs.get("flat"):
            return alone
        flat = reshape_op(alone, (-1,))
        return flat if math.prod(shapes[0]) else pad_op(flat, ((0, 1),))  # the share of nothing is a zero

    def numpy(self, node: Node, inputs: list[np.ndarray]) -> np.ndarray:
        (x,) = inputs
        if node.attrs.get("flat"):
            x = np.pad(x.reshape(-1), (0, distributed.size() * share_size(x.shape) - x.size))
        return super().numpy(node, [x])

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        flat = node.attrs.get("flat")
        return [AllGatherLike.make([output_grad, node.inputs[0]]) if flat else all_gather_op(output_grad)]


@register
class AllGatherLike(Op):
    """The value, of b's shape, of which the ranks have the shares a; b's values are not read."""

    name = "all_gather_like"
    dtypes: ClassVar[tuple[str, ...]] = Collective.dtypes
    shape_only: ClassVar[Sequence[int]] = (1,)

    def infer_shape(self, node: Node, input_shapes: list[Shape]) -> Shape:
        return _of_shares(node, *input_shapes)

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        return [reduce_scatter_op(output_grad, flat=True), None]

    def known(self, node: Node, shapes: Sequence[Shape], dtypes: Sequence[str]) -> Node:
        return all_gather_op(node.inputs[0], shapes[1])


@register
class CopyToTensorParallel(Op):
    """y = x, the same on all ranks, each of which computes a part of what follows: (S) -> (S). The gradient is the sum
    over the ranks of theirs. The operator f of Shoeybi et al., "Megatron-LM" (2019), section 3."""

    name = "copy_to_tensor_parallel"
    flops = 0

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        return [reduce_from_tensor_parallel_op(output_grad)]

    def known(self, node: Node, shapes: Sequence[Shape], dtypes: Sequence[str]) -> Node:
        return node.inputs[0]


@register
class ReduceFromTensorParallel(AllReduce):
    """y = the sum over the ranks r of x_r, the parts of one value: (S) -> (S). The gradient, the same on all ranks, is
    that of each part. The operator g of Shoeybi et al. (2019), the mirror of f."""

    name = "reduce_from_tensor_parallel"

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        return [copy_to_tensor_parallel_op(output_grad)]


def all_reduce_op(x: Node, operation: str = "sum", order: int | None = None) -> Node:
    """The "sum", "max" or "min" of x over all ranks, which all get, with the same bits.

    All ranks must evaluate the same nodes. Those that do not depend on each other travel together, see
    `distributed.init`; `order`: the place of this one among them, by which it is ready; None for before all others.
    Raises GraphError for another operation."""
    word("all_reduce", "the operation", operation, distributed.OPERATIONS, GraphError)
    return AllReduce.make([x], {"operation": operation, "order": -1 if order is None else order})


def all_gather_op(x: Node, shape: Shape | None = None, order: int | None = None) -> Node:
    """The values of all ranks one behind another along the first axis; or, of their shares of a value of that `shape`,
    it. Those with a shape travel together; `order` as of `all_reduce_op`."""
    return AllGather.make([x], {} if shape is None else {"shape": shape, "order": -1 if order is None else order})


def reduce_scatter_op(x: Node, flat: bool = False, order: int | None = None) -> Node:
    """This rank's share of the sum over all ranks, along the first axis, whose extent is a multiple of their number; or
    with `flat` of all elements in one row, of which the last ranks' shares end with zeros. Those travel together;
    `order` as of `all_reduce_op`."""
    return ReduceScatter.make([x], {"flat": True, "order": -1 if order is None else order} if flat else {})


def own_share(x: Node, shape: Shape) -> Node:
    """This rank's share of a value of that shape, which it has as a whole: as `reduce_scatter_op` with `flat` cuts."""
    size, count = share_size(shape), math.prod(shape)
    start = min(distributed.rank() * size, count)
    found, lacks = slice_op(reshape_op(x, (-1,)), slice(start, start + size)), max(start + size - count, 0)
    return pad_op(found, ((0, lacks),)) if lacks else found


def copy_to_tensor_parallel_op(x: Node) -> Node:
    """x, whose gradient is the sum over all ranks: where each computes a part of what follows."""
    return CopyToTensorParallel.make([x])


def reduce_from_tensor_parallel_op(x: Node) -> Node:
    """The sum of x over all ranks, of which each has computed a part; x's gradient is that of the sum."""
    return ReduceFromTensorParallel.make([x], {"operation": "sum", "order": -1})
