"""Functions that give tensors other shapes, join them and take them apart, see `table`."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import ops
from ..checks import integer, word
from ..errors import GraphError, ShapeError
from ..ops import promoted, shape_of, split_op
from .arguments import dim_of, dims_of, node_of
from .creation import leaf
from .evaluate import array_of
from .table import TABLE, function
from .typing import ArrayLike, Axis, Size

if TYPE_CHECKING:
    from .base import Tensor


def given(numbers: Sequence[Size], *named: Sequence[int] | None) -> tuple[Any, ...]:
    """Arguments given one by one, as one tuple, or by a name, of which those left out are None."""
    found = next(((value,) for value in named if value is not None), numbers)
    return tuple(found[0]) if len(found) == 1 and isinstance(found[0], (tuple, list)) else tuple(found)


# Joins -----------------------------------------------------------------------------------------------------------


def _together(name: str, tensors: Sequence[ArrayLike]) -> list[Any]:
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


def hstack(tensors: Sequence[ArrayLike]) -> Tensor:
    """The tensors side by side: vectors behind each other, others along axis 1."""
    nodes = [atleast_1d(node) for node in _together("hstack", tensors)]
    return cat(nodes, 0 if len(shape_of(nodes[0])) == 1 else 1)


def vstack(tensors: Sequence[ArrayLike]) -> Tensor:
    """The tensors one above another: along axis 0, vectors as rows."""
    return cat([atleast_2d(node) for node in _together("vstack", tensors)])


@function(method=False)
def atleast_1d(x: Tensor) -> Tensor:
    """x; a number as a vector."""
    return x if x.shape else ops.reshape_op(x, (1,))


@function(method=False)
def atleast_2d(x: Tensor) -> Tensor:
    """x; a number or a vector as one row."""
    return x if len(x.shape) > 1 else ops.reshape_op(x, (1, -1))


def meshgrid(*tensors: ArrayLike, indexing: str = "ij") -> tuple[Tensor, ...]:
    """Each vector along an axis of its own, repeated along those of the others; with `indexing` "xy" the first two axes
    are exchanged. Vectors may be given as one list. Raises GraphError for another indexing, ShapeError for matrices."""
    listed = tensors[0] if len(tensors) == 1 and isinstance(tensors[0], (tuple, list)) else tensors
    nodes = [atleast_1d(node_of(one)) for one in listed]
    axes = list(range(len(nodes)))
    if word("meshgrid", "indexing", indexing, ("ij", "xy")) == "xy":
        axes[:2] = axes[1::-1]
    shape = [len(nodes[axis]) for axis in axes]
    wide = [node.reshape(*(-1 if axis == own else 1 for axis in axes)) for own, node in enumerate(nodes)]
    return tuple(node.broadcast_to(shape) for node in wide)


# Parts -----------------------------------------------------------------------------------------------------------


@function(at_once=True)
def split(x: Tensor, split_size_or_sections: Size, dim: int = 0) -> list[Tensor]:
    """Parts of so many elements along `dim`, the last one smaller; or of the sizes in a list. The shape must be known.
    Raises ShapeError for sizes that do not add up, GraphError for a size that is not positive."""
    axis = dim_of("split", x, dim)
    extent, given = shape_of(x)[axis], split_size_or_sections
    if isinstance(given, (tuple, list)):
        sizes = [integer("split", "a size", size, 0) for size in given]
        if sum(sizes) != extent:
            raise ShapeError(f"split: sizes {sizes} do not add up to {extent}, axis {dim} of {shape_of(x)}")
        return split_op(x, list(itertools.accumulate(sizes))[:-1], axis)
    size = integer("split", "a part's size", given, 1)
    return split_op(x, list(range(size, extent, size)), axis)


@function(at_once=True)
def chunk(x: Tensor, chunks: int, dim: int = 0) -> list[Tensor]:
    """At most `chunks` parts of one size along `dim`, the last one smaller; the shape must be known. Raises GraphError
    for a number below 1."""
    chunks, axis = integer("chunk", "the number of parts", chunks, 1), dim_of("chunk", x, dim)
    return split(x, max(-(-shape_of(x)[axis] // chunks), 1), axis)


@function(at_once=True)
def unbind(x: Tensor, dim: int = 0) -> list[Tensor]:
    """The slices along `dim`, which they lack; the shape must be known."""
    axis = dim_of("unbind", x, dim)
    return [ops.slice_op(x, (*(slice(None),) * axis, i)) for i in range(shape_of(x)[axis])]


@function
def narrow(x: Tensor, dim: int, start: int, length: int) -> Tensor:
    """The `length` slices along `dim` from number `start` on, from the end where it is negative. Raises ShapeError
    where there are not so many."""
    axis, length = dim_of("narrow", x, dim), integer("narrow", "length", length, 0)
    extent = x.shape[axis]
    first = integer("narrow", "start", start, -extent)
    first += extent if first < 0 else 0
    if first + length > extent:
        raise ShapeError(f"narrow: {length} from {start} on, of axis {axis} of {x.shape}")
    return x[(*(slice(None),) * axis, slice(first, first + length))]


@function
def diff(x: Tensor, n: int = 1, dim: int = -1) -> Tensor:
    """The differences of neighbours along an axis, n times."""
    axis = dim_of("diff", x, dim)
    for _ in range(integer("diff", "n", n, 0)):
        count = max(x.shape[axis] - 1, 0)
        x = narrow(x, axis, x.shape[axis] - count, count) - narrow(x, axis, 0, count)
    return x


# Axes ------------------------------------------------------------------------------------------------------------


@function(at_once=True)
def reshape(x: Tensor, *sizes: Size, shape: Sequence[int] | None = None) -> Tensor:
    """x's elements in row-major order in another shape, of which one extent may be -1."""
    return ops.reshape_op(x, given(sizes, shape))


TABLE["view"] = reshape


@function(at_once=True)
def flatten(x: Tensor, start_dim: int = 0, end_dim: int = -1) -> Tensor:
    """The axes from one to another as one."""
    return ops.flatten_op(x, start_dim, end_dim)


@function(at_once=True)
def ravel(x: Tensor) -> Tensor:
    """The elements in row-major order as a vector."""
    return ops.reshape_op(x, (-1,))


@function
def unflatten(x: Tensor, dim: int, sizes: Sequence[int]) -> Tensor:
    """An axis as several of these extents, of which one may be -1."""
    axis = dim_of("unflatten", x, dim)
    return ops.reshape_op(x, (*x.shape[:axis], *sizes, *x.shape[axis + 1 :]))


@function(at_once=True)
def permute(x: Tensor, *order: Size, dims: Sequence[int] | None = None) -> Tensor:
    """The axes in another order."""
    return ops.transpose_op(x, given(order, dims))


@function(at_once=True)
def transpose(x: Tensor, *dims: Size, dim0: int | None = None, dim1: int | None = None) -> Tensor:
    """Two axes change places, as in PyTorch; of more all in that order, as in NumPy, of none reversed."""
    pair = given((*dims, *(axis for axis in (dim0, dim1) if axis is not None)))
    return ops.swapaxes_op(x, *pair) if len(pair) == 2 else ops.transpose_op(x, pair or None)


@function(at_once=True)
def swapaxes(x: Tensor, a: int, b: int) -> Tensor:
    """Two axes change places."""
    return ops.swapaxes_op(x, a, b)


@function
def movedim(x: Tensor, source: Size, destination: Size) -> Tensor:
    """The axes `source` at the places `destination`, the others in their order."""
    moved, places = dims_of(x, source), dims_of(x, destination)
    order = [axis for axis in range(len(x.shape)) if axis not in moved]
    for place, axis in sorted(zip(places, moved, strict=True)):
        order.insert(place, axis)
    return ops.transpose_op(x, tuple(order))


@function
def t(x: Tensor) -> Tensor:
    """A matrix transposed; a vector as it is. Raises ShapeError for more axes."""
    if len(x.shape) > 2:
        raise ShapeError(f"t: takes a matrix, not of shape {x.shape} [{x.name}]: permute() takes axes")
    return ops.transpose_op(x)


@function
def squeeze(x: Tensor, dim: Axis = None) -> Tensor:
    """Without axes of extent 1: all of them for None, else those named that have it."""
    if dim is None or not x.shape:
        return ops.squeeze_op(x, dim)
    return ops.squeeze_op(x, tuple(axis for axis in dims_of(x, dim) if x.shape[axis] == 1))


@function(at_once=True)
def unsqueeze(x: Tensor, dim: Axis = None) -> Tensor:
    """With a new axis of extent 1 at `dim`."""
    return ops.expand_dims_op(x, dim)


# Repetitions -----------------------------------------------------------------------------------------------------


@function(at_once=True)
def broadcast_to(
    x: Tensor, *sizes: Size, size: Sequence[int] | None = None, shape: Sequence[int] | None = None
) -> Tensor:
    """x repeated to a shape, by NumPy's rules; `size` is PyTorch's word for it, `shape` NumPy's."""
    return ops.broadcast_shape_op(x, given(sizes, size, shape))


@function
def expand(x: Tensor, *sizes: Size) -> Tensor:
    """x repeated along axes of extent 1 and new leading ones; -1 keeps an extent."""
    wide = tuple(integer("expand", "an extent", extent, -1) for extent in given(sizes))
    lead, own = len(wide) - len(x.shape), x.shape
    return ops.broadcast_shape_op(x, tuple(own[i - lead] if n == -1 and i >= lead else n for i, n in enumerate(wide)))


@function(at_once=True)
def expand_as(x: Tensor, other: ArrayLike) -> Tensor:
    """`expand` to the other's shape."""
    return ops.broadcastto_op(x, node_of(other))


@function(at_once=True)
def view_as(x: Tensor, other: ArrayLike) -> Tensor:
    """`reshape` to the other's shape."""
    return ops.reshape_like_op(x, node_of(other))


@function
def repeat(x: Tensor, *sizes: Size) -> Tensor:
    """x repeated along each axis, as by PyTorch's `repeat`. Raises ShapeError for fewer numbers than axes."""
    times, shape = given(sizes), x.shape
    if len(times) < len(shape):
        raise ShapeError(f"repeat: {len(times)} numbers for {len(shape)} axes")
    shape = (1,) * (len(times) - len(shape)) + shape
    apart = tuple(itertools.chain.from_iterable((1, extent) for extent in shape))
    wide = tuple(itertools.chain.from_iterable(zip(times, shape, strict=True)))
    spread = ops.broadcast_shape_op(ops.reshape_op(x, apart), wide)
    return ops.reshape_op(spread, tuple(n * extent for n, extent in zip(times, shape, strict=True)))


@function
def tile(x: Tensor, *dims: Size) -> Tensor:
    """x repeated along each axis, as by NumPy's `tile`: fewer numbers are for the last axes."""
    times = given(dims)
    return repeat(x, (1,) * (len(x.shape) - len(times)) + times)


@function(at_once=True)
def repeat_interleave(x: Tensor, repeats: ArrayLike, dim: int | None = None) -> Tensor:
    """Each slice along `dim` so many times, of the elements in row-major order for None; `repeats` is an integer, or
    one for each slice, which are computed. The shape must be known."""
    node = x if dim is not None else ravel(x)
    axis = dim_of("repeat_interleave", node, 0 if dim is None else dim)
    times, extent = array_of(node_of(repeats)).numpy(), shape_of(node)[axis]
    if times.dtype.kind not in "iu" or times.shape not in ((), (1,), (extent,)) or (times < 0).any():
        raise GraphError(f"repeat_interleave: takes integers >= 0, one or {extent}, not {repeats!r}")
    return ops.take_op(node, leaf(np.repeat(np.arange(extent), times)), axis)


# Orders and diagonals --------------------------------------------------------------------------------------------


@function(at_once=True)
def flip(x: Tensor, *along: Size, dims: Sequence[int] | None = None) -> Tensor:
    """x in the reverse order along the axes."""
    return ops.flip_op(x, given(along, dims))


@function
def roll(x: Tensor, shifts: Size, dims: Axis = None) -> Tensor:
    """The elements so many places further along each axis, those from its end at its start; of all in row-major order
    for None. Raises ShapeError for other numbers of shifts than of axes."""
    if dims is None:
        return ops.reshape_op(roll(ravel(x), shifts, 0), x.shape)
    axes, moves = dims_of(x, dims), shifts if isinstance(shifts, (tuple, list)) else (shifts,)
    if len(moves) != len(axes):
        raise ShapeError(f"roll: {len(moves)} shifts for {len(axes)} axes")
    for axis, move in zip(axes, moves, strict=True):
        extent, before = x.shape[axis], (slice(None),) * axis
        at = -integer("roll", "a shift", move) % max(extent, 1)
        x = cat([x[(*before, slice(at, None))], x[(*before, slice(at))]], axis) if at else x
    return x


def _triangle(op: str, x: Tensor, diagonal: int, lower: bool) -> Tensor:
    """x on and below the diagonal, or on and above it; 0 elsewhere."""
    shape = x.shape
    if len(shape) < 2:
        raise ShapeError(f"{op}: takes matrices, not of shape {shape} [{x.name}]")
    diagonal = min(max(integer(op, "the diagonal", diagonal), -shape[-2]), shape[-1])
    rows, columns = leaf(np.arange(shape[-2])[:, None] + diagonal), leaf(np.arange(shape[-1]))
    return ops.where_op(columns <= rows if lower else columns >= rows, x, ops.zeroslike_op(x))


@function
def tril(x: Tensor, diagonal: int = 0) -> Tensor:
    """Matrices without what lies above the diagonal number `diagonal`. Raises ShapeError for others."""
    return _triangle("tril", x, diagonal, True)


@function
def triu(x: Tensor, diagonal: int = 0) -> Tensor:
    """Matrices without what lies below the diagonal number `diagonal`. Raises ShapeError for others."""
    return _triangle("triu", x, diagonal, False)


@function
def diagonal(x: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """The diagonal number `offset` of two axes, those above the main one counted up, along a last axis in their place.
    Raises ShapeError."""
    last = movedim(x, (dim1, dim2), (-2, -1))
    rows, columns = last.shape[-2:]
    places = np.diagonal(np.arange(rows * columns).reshape(rows, columns), integer("diagonal", "offset", offset))
    return ops.take_op(ops.flatten_op(last, -2), leaf(places.copy()), -1)


@function
def trace(x: Tensor) -> Tensor:
    """The sum of a matrix's main diagonal."""
    return diagonal(x).sum()


@function
def diag(x: Tensor, diagonal: int = 0) -> Tensor:
    """A matrix with a vector on its diagonal of this number, those above the main one counted up; or the diagonal of a
    matrix. Raises ShapeError for more axes."""
    k = integer("diag", "the diagonal", diagonal)
    if len(x.shape) == 1:
        n = x.shape[0] + abs(k)
        places = leaf(np.diag(np.arange(1, x.shape[0] + 1), k).reshape(-1))
        return cat([x.new_zeros(1), x])[places].reshape(n, n)
    if len(x.shape) != 2:
        raise ShapeError(f"diag: takes a vector or a matrix, not of shape {x.shape} [{x.name}]")
    return TABLE["diagonal"](x, k)
