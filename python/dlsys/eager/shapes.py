"""Tensors in other shapes, put together and taken apart, by PyTorch's names and with its arguments; see `functions`."""

from __future__ import annotations

import itertools
import math
import operator
from typing import Any

from .. import autodiff as ad
from ..autodiff import Node
from ..errors import GraphError, ShapeError
from ..ops import known_dtype, known_shape, promoted, shape_of
from .functions import dims_of, node_of
from .running import array_of


def given(numbers: tuple[Any, ...], *named: Any) -> tuple[Any, ...]:
    """Arguments given one by one, as one tuple, or by a name, of which those left out are None."""
    numbers = next(((value,) for value in named if value is not None), numbers)
    return tuple(numbers[0]) if len(numbers) == 1 and isinstance(numbers[0], (tuple, list)) else numbers


def reshape(x: Any, *sizes: Any, shape: Any = None) -> Node:
    """x's elements in row-major order in another shape, of which one extent may be -1."""
    return ad.reshape_op(node_of(x), given(sizes, shape))


view = reshape


def flatten(x: Any, start_dim: int = 0, end_dim: int = -1) -> Node:
    """The axes from one to another as one."""
    return ad.flatten_op(node_of(x), start_dim, end_dim)


def ravel(x: Any) -> Node:
    """All axes as one."""
    return ad.flatten_op(node_of(x))


def permute(x: Any, *order: Any, dims: Any = None) -> Node:
    """The axes in another order."""
    return ad.transpose_op(node_of(x), given(order, dims))


def transpose(x: Any, *dims: Any, dim0: Any = None, dim1: Any = None, axes: Any = None) -> Node:
    """Two axes change places, as in PyTorch; of more all in that order, as in NumPy, of none reversed. `axes` is what
    needle and NumPy call them."""
    pair = given((*dims, *(axis for axis in (dim0, dim1) if axis is not None)), axes)
    return ad.swapaxes_op(node_of(x), *pair) if len(pair) == 2 else ad.transpose_op(node_of(x), pair or None)


def swapaxes(x: Any, a: int, b: int) -> Node:
    """Two axes change places."""
    return ad.swapaxes_op(node_of(x), a, b)


def t(x: Any) -> Node:
    """A matrix transposed."""
    return ad.transpose_op(node_of(x))


def movedim(x: Any, source: Any, destination: Any) -> Node:
    """The axes `source` moved to `destination`; the shape must be known."""
    node = node_of(x)
    old, new = dims_of(node, source), dims_of(node, destination)
    rest = iter(axis for axis in range(len(shape_of(node))) if axis not in old)
    places = dict(zip(new, old, strict=True))
    return ad.transpose_op(
        node, tuple(places[i] if i in places else next(rest) for i in range(len(shape_of(node))))
    )


moveaxis, swapdims = movedim, swapaxes


def squeeze(x: Any, dim: Any = None, *, axis: Any = None) -> Node:
    """Without axes of extent 1: all of them for None, else those named that have it."""
    node, dim = node_of(x), axis if dim is None else dim
    if dim is None or not known_shape(node):
        return ad.squeeze_op(node, dim)
    ones = tuple(a for a in dims_of(node, dim) if shape_of(node)[a] == 1)  # PyTorch leaves the others
    return ad.squeeze_op(node, ones) if ones else node


def unsqueeze(x: Any, dim: Any = None, *, axis: Any = None) -> Node:
    """With a new axis of extent 1 at `dim`."""
    return ad.expand_dims_op(node_of(x), axis if dim is None else dim)


def broadcast_to(x: Any, *sizes: Any, size: Any = None, shape: Any = None) -> Node:
    """x repeated to a shape, by NumPy's rules; `size` is PyTorch's word for it, `shape` NumPy's and needle's."""
    return ad.broadcast_shape_op(node_of(x), given(sizes, size, shape))


def cat(tensors: Any, dim: int = 0, *, axis: int | None = None) -> Node:
    """The tensors one behind another along `dim`, in one dtype."""
    return ad.concatenate_op(promoted(*map(node_of, tensors)), dim if axis is None else axis)


concatenate = concat = cat


def stack(tensors: Any, dim: int = 0, *, axis: int | None = None) -> Node:
    """The tensors along a new axis number `dim`, in one dtype."""
    return ad.stack_op(promoted(*map(node_of, tensors)), dim if axis is None else axis)


def split(x: Any, split_size_or_sections: Any = None, dim: int = 0, *, axis: int | None = None) -> Any:
    """Parts of so many elements along `dim`, the last one smaller; or of the sizes in a list. The shape must be known.
    With `axis` alone it is needle's `unbind`.

    Raises ShapeError for sizes that do not add up, GraphError for a size that is not positive."""
    if split_size_or_sections is None:
        if axis is None:
            raise GraphError("split: needs the size of a part, or a list of sizes")
        return tuple(unbind(x, axis))
    node, dim = node_of(x), dim if axis is None else axis
    (axis,) = dims_of(node, dim)
    extent, sizes = shape_of(node)[axis], split_size_or_sections
    if isinstance(sizes, (tuple, list)):
        if sum(sizes) != extent:
            raise ShapeError(
                f"split: sizes {list(sizes)} do not add up to {extent}, axis {dim} of {shape_of(node)}"
            )
        return ad.split_op(node, list(itertools.accumulate(sizes))[:-1], axis)
    if not operator.index(sizes) > 0:
        raise GraphError(f"split: a part has one element or more, not {sizes}")
    return ad.split_op(node, list(range(sizes, extent, sizes)), axis)


def chunk(x: Any, chunks: int, dim: int = 0) -> list[Node]:
    """At most `chunks` parts of one size along `dim`, the last one smaller; the shape must be known."""
    if not operator.index(chunks) > 0:
        raise GraphError(f"chunk: into one part or more, not {chunks}")
    node = node_of(x)
    (axis,) = dims_of(node, dim)
    return split(node, max(-(-shape_of(node)[axis] // chunks), 1), axis)


def unbind(x: Any, dim: int = 0) -> list[Node]:
    """The slices along `dim`, which they lack; the shape must be known."""
    node = node_of(x)
    (axis,) = dims_of(node, dim)
    return [ad.slice_op(node, (*(slice(None),) * axis, i)) for i in range(shape_of(node)[axis])]


def flip(x: Any, *along: Any, dims: Any = None, axes: Any = None) -> Node:
    """x turned round along the axes; `axes` is needle's word for `dims`."""
    return ad.flip_op(node_of(x), given(along, dims, axes))


def roll(x: Any, shifts: Any, dims: Any = None) -> Node:
    """The elements moved on along the axes, what falls off the end comes in again in front; of all in row-major order
    for None. The shape must be known. Raises ShapeError where shifts and axes differ in number."""
    node = node_of(x)
    if dims is None:
        return ad.reshape_op(roll(ad.flatten_op(node), shifts, 0), shape_of(node))
    moves = shifts if isinstance(shifts, (tuple, list)) else (shifts,)
    axes = dims_of(node, dims)
    if len(moves) != len(axes):
        raise ShapeError(f"roll: {len(moves)} shifts for {len(axes)} axes")
    for axis, move in zip(axes, moves, strict=True):
        extent = shape_of(node)[axis]
        if extent and move % extent:
            node = ad.concatenate_op(ad.split_op(node, [extent - move % extent], axis)[::-1], axis)
    return node


def repeat(x: Any, *sizes: Any) -> Node:
    """x so many times behind itself along each axis, as PyTorch's `repeat` (NumPy's `tile`). The shape must be known.

    Raises ShapeError for fewer numbers than axes."""
    node = node_of(x)
    times = given(sizes)
    shape = shape_of(node)
    if len(times) < len(shape):
        raise ShapeError(f"repeat: {len(times)} numbers for {len(shape)} axes")
    shape = (1,) * (len(times) - len(shape)) + shape
    apart = tuple(itertools.chain.from_iterable((1, extent) for extent in shape))
    wide = tuple(itertools.chain.from_iterable(zip(times, shape, strict=True)))
    spread = ad.broadcast_shape_op(ad.reshape_op(node, apart), wide)
    return ad.reshape_op(spread, tuple(n * extent for n, extent in zip(times, shape, strict=True)))


def expand(x: Any, *sizes: Any) -> Node:
    """x repeated along axes of extent 1 and new leading ones; -1 keeps an extent. The shape must be known for that."""
    node = node_of(x)
    wide = given(sizes)
    if -1 in wide:
        own = shape_of(node)
        lead = len(wide) - len(own)
        wide = tuple(own[i - lead] if n == -1 and i >= lead else n for i, n in enumerate(wide))
    return ad.broadcast_shape_op(node, wide)


def one_hot(indices: Any, num_classes: int = -1) -> Node:
    """int64: 1 at the indices along a new last axis, 0 elsewhere; as many classes as are there for -1.

    Raises GraphError for an index out of range whose value is at hand.
    """
    node = node_of(indices)
    if num_classes == -1:
        num_classes = int(array_of(node).numpy().max(initial=-1)) + 1
    return ad.one_hot_op(node, num_classes, "int64")


# Put together and taken apart in other ways ---------------------------------------------------------------------


def broadcast_tensors(*tensors: Any) -> list[Node]:
    """The tensors repeated to one shape. The shapes must be known; raises ShapeError where they do not fit."""
    nodes = [node_of(x) for x in given(tensors)]
    shape: tuple[int, ...] = ()
    for node in nodes:
        shape = ad.broadcast_rule(shape, shape_of(node))
    return [node if shape_of(node) == shape else ad.broadcast_shape_op(node, shape) for node in nodes]


def expand_as(x: Any, other: Any) -> Node:
    """x repeated to another's shape."""
    return ad.broadcast_shape_op(node_of(x), shape_of(node_of(other)))


def tile(x: Any, *sizes: Any) -> Node:
    """x so many times behind itself along each axis, the last ones for fewer numbers than axes."""
    node, times = node_of(x), given(sizes)
    return repeat(node, (1,) * (len(shape_of(node)) - len(times)) + tuple(times))


def meshgrid(*tensors: Any, indexing: str = "ij") -> list[Node]:
    """Of vectors the coordinates of the grid that they span: with "ij" the first along the first axis, with "xy" along
    the second. Raises GraphError for another indexing, ShapeError for what are no vectors."""
    nodes = [node_of(x) for x in given(tensors)]
    if indexing not in ("ij", "xy"):
        raise GraphError(f'meshgrid: indexing must be "ij" or "xy", not {indexing!r}')
    for node in nodes:
        if len(shape_of(node)) > 1:
            raise ShapeError(f"meshgrid: takes vectors, not shape {shape_of(node)} [{node.name}]")
    places = list(range(len(nodes)))
    if indexing == "xy":
        places[:2] = places[:2][::-1]
    wide = [
        ad.reshape_op(node, tuple(-1 if axis == place else 1 for axis in range(len(nodes))))
        for node, place in zip(nodes, places, strict=True)
    ]
    return broadcast_tensors(wide)


def _of_rank(node: Node, rank: int) -> Node:
    """The node with axes of extent 1, for three axes one at the end, in front else."""
    shape = shape_of(node)
    if len(shape) >= rank:
        return node
    own = shape if shape else (1,)
    own = own if len(own) >= min(rank, 2) else (1, *own)
    return ad.reshape_op(node, own if len(own) == rank else (*own, 1))


def atleast_1d(x: Any) -> Node:
    """x with one axis or more."""
    return _of_rank(node_of(x), 1)


def atleast_2d(x: Any) -> Node:
    """x with two axes or more."""
    return _of_rank(node_of(x), 2)


def atleast_3d(x: Any) -> Node:
    """x with three axes or more."""
    return _of_rank(node_of(x), 3)


def vstack(tensors: Any) -> Node:
    """The tensors one below another, vectors as rows."""
    return cat([atleast_2d(x) for x in tensors])


row_stack = vstack


def hstack(tensors: Any) -> Node:
    """The tensors side by side: along the second axis, vectors along their only one."""
    nodes = [atleast_1d(x) for x in tensors]
    return cat(nodes, 0 if len(shape_of(nodes[0])) == 1 else 1)


def dstack(tensors: Any) -> Node:
    """The tensors one behind another along the third axis."""
    return cat([atleast_3d(x) for x in tensors], 2)


def column_stack(tensors: Any) -> Node:
    """The tensors side by side, vectors as columns."""
    nodes = [node_of(x) for x in tensors]
    return cat([ad.reshape_op(x, (-1, 1)) if len(shape_of(x)) < 2 else x for x in nodes], 1)


def fliplr(x: Any) -> Node:
    """x turned round along its second axis."""
    return flip(x, 1)


def flipud(x: Any) -> Node:
    """x turned round along its first axis."""
    return flip(x, 0)


def rot90(x: Any, k: int = 1, dims: Any = (0, 1)) -> Node:
    """x turned by k quarters in the plane of two axes, from the first towards the second. Raises ShapeError for axes
    that are no two."""
    node = node_of(x)
    axes = dims_of(node, tuple(dims))
    if len(axes) != 2 or axes[0] == axes[1]:
        raise ShapeError(f"rot90: takes two axes, not {dims} of {shape_of(node)}")
    first, second = axes
    turns = k % 4
    if turns == 2:
        return flip(node, axes)
    if turns == 1:
        return swapaxes(flip(node, second), first, second)
    return flip(swapaxes(node, first, second), second) if turns else node


def diff(x: Any, n: int = 1, dim: int = -1) -> Node:
    """Each element less the one before along an axis, n times."""
    node = node_of(x)
    (axis,) = dims_of(node, dim)
    whole = (slice(None),) * axis
    for _ in range(n):
        later, earlier = (ad.slice_op(node, (*whole, part)) for part in (slice(1, None), slice(None, -1)))
        node = ad.not_equal_op(later, earlier) if known_dtype(node) == "bool" else later - earlier
    return node


def narrow(x: Any, dim: int, start: int, length: int) -> Node:
    """`length` elements from `start` on along an axis. Raises ShapeError where there are not as many."""
    node = node_of(x)
    (axis,) = dims_of(node, dim)
    extent = shape_of(node)[axis]
    first = start + extent if start < 0 else start
    if not 0 <= first <= first + length <= extent:
        raise ShapeError(f"narrow: there are no {length} elements from {start} on along axis {dim} of {shape_of(node)}")
    return ad.slice_op(node, (*(slice(None),) * axis, slice(first, first + length)))


def select(x: Any, dim: int, index: int) -> Node:
    """The slice number `index` along an axis, which it lacks."""
    node = node_of(x)
    (axis,) = dims_of(node, dim)
    return node[(slice(None),) * axis + (index,)]


def unflatten(x: Any, dim: int, sizes: Any) -> Node:
    """An axis as several of these extents, one of which may be -1."""
    node = node_of(x)
    (axis,) = dims_of(node, dim)
    shape = shape_of(node)
    wanted = tuple(sizes)
    if -1 in wanted:
        known = abs(math.prod(wanted))
        wanted = tuple(shape[axis] // known if n == -1 and known else n for n in wanted)
    return ad.reshape_op(node, (*shape[:axis], *wanted, *shape[axis + 1 :]))


def tensor_split(x: Any, indices_or_sections: Any, dim: int = 0) -> list[Node]:
    """So many parts along an axis, the first ones larger by one where it must be; or parts that begin at the indices of
    a list."""
    node = node_of(x)
    (axis,) = dims_of(node, dim)
    extent, wanted = shape_of(node)[axis], indices_or_sections
    if isinstance(wanted, (tuple, list)):
        bounds = [0, *(slice(None, i).indices(extent)[1] for i in wanted), extent]
    else:
        if not operator.index(wanted) > 0:
            raise GraphError(f"tensor_split: into one part or more, not {wanted}")
        small, large = divmod(extent, wanted)
        bounds = [0, *itertools.accumulate(small + (i < large) for i in range(wanted))]
    whole = (slice(None),) * axis
    return [ad.slice_op(node, (*whole, slice(a, b))) for a, b in itertools.pairwise(bounds)]
