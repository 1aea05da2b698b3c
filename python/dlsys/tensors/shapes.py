"""Methods that give tensors other shapes, join them and take them apart, by PyTorch's names and with its arguments."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import ops
from ..checks import integer, word
from ..errors import GraphError, ShapeError
from ..graph import Handle, Node
from ..ops import promoted, shape_of, split_op
from ..ops.replay import function
from .arguments import dim_of, dims_of, method, node_of
from .creation import leaf
from .evaluate import array_of
from .typing import ArrayLike, Axis, Size

if TYPE_CHECKING:
    from .base import Tensor


def given(numbers: Sequence[Size], *named: Sequence[int] | None) -> tuple[Any, ...]:
    """Arguments given one by one, as one tuple, or by a name, of which those left out are None."""
    found = next(((value,) for value in named if value is not None), numbers)
    return tuple(found[0]) if len(found) == 1 and isinstance(found[0], (tuple, list)) else tuple(found)


def _together(name: str, tensors: Sequence[ArrayLike]) -> list[Node]:
    """Several tensors in one dtype. Raises GraphError for none, and for what is no list."""
    if not isinstance(tensors, (list, tuple)) or not tensors:
        raise GraphError(f"{name}: takes a list of one tensor or more, not {tensors!r}")
    return promoted(*map(node_of, tensors))


def cat(tensors: Sequence[ArrayLike], dim: int = 0, *, axis: int | None = None) -> Tensor:
    """The tensors one behind another along `dim`, in one dtype. Raises GraphError for none."""
    return ops.concatenate_op(_together("cat", tensors), dim if axis is None else axis)


def stack(tensors: Sequence[ArrayLike], dim: int = 0, *, axis: int | None = None) -> Tensor:
    """The tensors along a new axis number `dim`, in one dtype. Raises GraphError for none."""
    return ops.stack_op(_together("stack", tensors), dim if axis is None else axis)


def meshgrid(*tensors: ArrayLike, indexing: str = "ij") -> tuple[Tensor, ...]:
    """Each vector along an axis of its own, repeated along those of the others; with `indexing` "xy" the first two axes
    are exchanged. Vectors may be given as one list. Raises GraphError for another indexing, ShapeError for matrices."""
    listed = tensors[0] if len(tensors) == 1 and isinstance(tensors[0], (tuple, list)) else tensors
    nodes = [node if shape_of(node) else node.reshape(1) for node in map(node_of, listed)]
    axes = list(range(len(nodes)))
    if word("meshgrid", "indexing", indexing, ("ij", "xy")) == "xy":
        axes[:2] = axes[1::-1]
    shape = [len(nodes[axis]) for axis in axes]
    wide = [node.reshape(*(-1 if axis == own else 1 for axis in axes)) for own, node in enumerate(nodes)]
    return tuple(node.broadcast_to(shape) for node in wide)


@function(on_tensors=True)
def _triangle(op: str, node: Node, diagonal: int, lower: bool) -> Node:
    """x on and below the diagonal, or on and above it; 0 elsewhere."""
    shape = node.shape
    if len(shape) < 2:
        raise ShapeError(f"{op}: takes matrices, not of shape {shape} [{node.name}]")
    diagonal = min(max(integer(op, "the diagonal", diagonal), -shape[-2]), shape[-1])
    rows, columns = leaf(np.arange(shape[-2])[:, None] + diagonal), leaf(np.arange(shape[-1]))
    return ops.where_op(columns <= rows if lower else columns >= rows, node, ops.zeroslike_op(node))


@function(on_tensors=True)
def _squeezed(node: Node, dim: Axis) -> Node:
    if dim is None or not node.shape:
        return ops.squeeze_op(node, dim)
    return ops.squeeze_op(node, tuple(a for a in dims_of(node, dim) if node.shape[a] == 1))  # PyTorch leaves others


class Shapes(Handle):
    """Methods that move elements."""

    __slots__ = ()

    def reshape(self: ArrayLike, *sizes: Size, shape: Sequence[int] | None = None) -> Tensor:
        """x's elements in row-major order in another shape, of which one extent may be -1."""
        return ops.reshape_op(node_of(self), given(sizes, shape))

    view = reshape

    def flatten(self: ArrayLike, start_dim: int = 0, end_dim: int = -1) -> Tensor:
        """The axes from one to another as one."""
        return ops.flatten_op(node_of(self), start_dim, end_dim)

    def permute(self: ArrayLike, *order: Size, dims: Sequence[int] | None = None) -> Tensor:
        """The axes in another order."""
        return ops.transpose_op(node_of(self), given(order, dims))

    def transpose(self: ArrayLike, *dims: Size, dim0: int | None = None, dim1: int | None = None) -> Tensor:
        """Two axes change places, as in PyTorch; of more all in that order, as in NumPy, of none reversed."""
        node, pair = node_of(self), given((*dims, *(axis for axis in (dim0, dim1) if axis is not None)))
        return ops.swapaxes_op(node, *pair) if len(pair) == 2 else ops.transpose_op(node, pair or None)

    def swapaxes(self: ArrayLike, a: int, b: int) -> Tensor:
        """Two axes change places."""
        return ops.swapaxes_op(node_of(self), a, b)

    @method
    def t(self: Tensor) -> Tensor:
        """A matrix transposed; a vector as it is. Raises ShapeError for more axes."""
        if len(shape_of(self)) > 2:
            raise ShapeError(f"t: takes a matrix, not of shape {shape_of(self)} [{self.name}]: permute() takes axes")
        return ops.transpose_op(self)

    def squeeze(self: ArrayLike, dim: Axis = None, *, axis: Axis = None) -> Tensor:
        """Without axes of extent 1: all of them for None, else those named that have it."""
        return _squeezed(node_of(self), axis if dim is None else dim)

    def unsqueeze(self: ArrayLike, dim: Axis = None, *, axis: Axis = None) -> Tensor:
        """With a new axis of extent 1 at `dim`."""
        return ops.expand_dims_op(node_of(self), axis if dim is None else dim)

    def broadcast_to(
        self: ArrayLike, *sizes: Size, size: Sequence[int] | None = None, shape: Sequence[int] | None = None
    ) -> Tensor:
        """x repeated to a shape, by NumPy's rules; `size` is PyTorch's word for it, `shape` NumPy's."""
        return ops.broadcast_shape_op(node_of(self), given(sizes, size, shape))

    def split(
        self: ArrayLike, split_size_or_sections: Size, dim: int = 0, *, axis: int | None = None
    ) -> list[Tensor]:
        """Parts of so many elements along `dim`, the last one smaller; or of the sizes in a list. The shape must be
        known. Raises ShapeError for sizes that do not add up, GraphError for a size that is not positive."""
        node, dim = node_of(self), dim if axis is None else axis
        axis = dim_of("split", node, dim)
        extent, given = shape_of(node)[axis], split_size_or_sections
        if isinstance(given, (tuple, list)):
            sizes = [integer("split", "a size", size, 0) for size in given]
            if sum(sizes) != extent:
                raise ShapeError(
                    f"split: sizes {sizes} do not add up to {extent}, axis {dim} of {shape_of(node)}"
                )
            return split_op(node, list(itertools.accumulate(sizes))[:-1], axis)
        size = integer("split", "a part's size", given, 1)
        return split_op(node, list(range(size, extent, size)), axis)

    def chunk(self: ArrayLike, chunks: int, dim: int = 0) -> list[Tensor]:
        """At most `chunks` parts of one size along `dim`, the last one smaller; the shape must be known. Raises
        GraphError for a number below 1."""
        chunks = integer("chunk", "the number of parts", chunks, 1)
        node = node_of(self)
        axis = dim_of("chunk", node, dim)
        return node.split(max(-(-shape_of(node)[axis] // chunks), 1), axis)

    def unbind(self: ArrayLike, dim: int = 0) -> list[Tensor]:
        """The slices along `dim`, which they lack; the shape must be known."""
        node = node_of(self)
        axis = dim_of("unbind", node, dim)
        return [ops.slice_op(node, (*(slice(None),) * axis, i)) for i in range(shape_of(node)[axis])]

    def flip(self: ArrayLike, *along: Size, dims: Sequence[int] | None = None) -> Tensor:
        """x in the reverse order along the axes."""
        return ops.flip_op(node_of(self), given(along, dims))

    @method
    def repeat(self: Tensor, *sizes: Size) -> Tensor:
        """x repeated along each axis, as by PyTorch's `repeat` (NumPy's `tile`). Raises
        ShapeError for fewer numbers than axes."""
        node = self
        times = given(sizes)
        shape = shape_of(node)
        if len(times) < len(shape):
            raise ShapeError(f"repeat: {len(times)} numbers for {len(shape)} axes")
        shape = (1,) * (len(times) - len(shape)) + shape
        apart = tuple(itertools.chain.from_iterable((1, extent) for extent in shape))
        wide = tuple(itertools.chain.from_iterable(zip(times, shape, strict=True)))
        spread = ops.broadcast_shape_op(ops.reshape_op(node, apart), wide)
        return ops.reshape_op(spread, tuple(n * extent for n, extent in zip(times, shape, strict=True)))

    def repeat_interleave(self: ArrayLike, repeats: ArrayLike, dim: int | None = None) -> Tensor:
        """Each slice along `dim` so many times, of the elements in row-major order for None; `repeats` is an integer,
        or one for each slice, which are computed. The shape must be known."""
        node = node_of(self) if dim is not None else ops.reshape_op(node_of(self), (-1,))
        axis = dim_of("repeat_interleave", node, 0 if dim is None else dim)
        times, extent = array_of(node_of(repeats)).numpy(), shape_of(node)[axis]
        if times.dtype.kind not in "iu" or times.shape not in ((), (1,), (extent,)) or (times < 0).any():
            raise GraphError(f"repeat_interleave: takes integers >= 0, one or {extent}, not {repeats!r}")
        return ops.take_op(node, leaf(np.repeat(np.arange(extent), times)), axis)

    @method
    def roll(self: Tensor, shifts: Size, dims: Axis = None) -> Tensor:
        """The elements so many places further along each axis, those from its end at its start; of all in row-major
        order for None. Raises ShapeError for other numbers of shifts than of axes."""
        node = self
        if dims is None:
            return ops.reshape_op(ops.reshape_op(node, (-1,)).roll(shifts, 0), shape_of(node))
        axes, moves = dims_of(node, dims), shifts if isinstance(shifts, (tuple, list)) else (shifts,)
        if len(moves) != len(axes):
            raise ShapeError(f"roll: {len(moves)} shifts for {len(axes)} axes")
        for axis, move in zip(axes, moves, strict=True):
            extent, before = shape_of(node)[axis], (slice(None),) * axis
            at = -integer("roll", "a shift", move) % max(extent, 1)
            node = cat([node[(*before, slice(at, None))], node[(*before, slice(at))]], axis) if at else node
        return node

    @method
    def narrow(self: Tensor, dim: int, start: int, length: int) -> Tensor:
        """The `length` slices along `dim` from number `start` on, from the end where it is negative. Raises ShapeError
        where there are not so many."""
        node = self
        axis, length = dim_of("narrow", node, dim), integer("narrow", "length", length, 0)
        extent = shape_of(node)[axis]
        first = integer("narrow", "start", start, -extent)
        first += extent if first < 0 else 0
        if first + length > extent:
            raise ShapeError(f"narrow: {length} from {start} on, of axis {axis} of {shape_of(node)}")
        return node[(*(slice(None),) * axis, slice(first, first + length))]

    @method
    def diag(self: Tensor, diagonal: int = 0) -> Tensor:
        """A matrix with a vector on its diagonal of this number, those above the main one counted up; or the diagonal
        of a matrix. Raises ShapeError for more axes."""
        node, k = self, integer("diag", "the diagonal", diagonal)
        shape = shape_of(node)
        if len(shape) == 1:
            n = shape[0] + abs(k)
            places = leaf(np.diag(np.arange(1, shape[0] + 1), k).reshape(-1))
            return cat([node.new_zeros(1), node])[places].reshape(n, n)
        if len(shape) != 2:
            raise ShapeError(f"diag: takes a vector or a matrix, not of shape {shape} [{node.name}]")
        return node.reshape(-1)[leaf(np.diagonal(np.arange(shape[0] * shape[1]).reshape(shape), k).copy())]

    def expand_as(self: ArrayLike, other: ArrayLike) -> Tensor:
        """`expand` to the other's shape."""
        return ops.broadcastto_op(node_of(self), node_of(other))

    def view_as(self: ArrayLike, other: ArrayLike) -> Tensor:
        """`reshape` to the other's shape."""
        return ops.reshape_like_op(node_of(self), node_of(other))

    @method
    def expand(self: Tensor, *sizes: Size) -> Tensor:
        """x repeated along axes of extent 1 and new leading ones; -1 keeps an extent."""
        node = self
        wide = tuple(integer("expand", "an extent", extent, -1) for extent in given(sizes))
        if -1 in wide:
            own = shape_of(node)
            lead = len(wide) - len(own)
            wide = tuple(own[i - lead] if n == -1 and i >= lead else n for i, n in enumerate(wide))
        return ops.broadcast_shape_op(node, wide)

    def tril(self: ArrayLike, diagonal: int = 0) -> Tensor:
        """Matrices without what lies above the diagonal number `diagonal`. Raises ShapeError for others."""
        return _triangle("tril", node_of(self), diagonal, True)

    def triu(self: ArrayLike, diagonal: int = 0) -> Tensor:
        """Matrices without what lies below the diagonal number `diagonal`. Raises ShapeError for others."""
        return _triangle("triu", node_of(self), diagonal, False)
