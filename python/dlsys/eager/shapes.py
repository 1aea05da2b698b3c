"""Tensors in other shapes, put together and taken apart, by PyTorch's names and with its arguments; see `functions`."""

from __future__ import annotations

import itertools
import operator
from typing import Any

from .. import autodiff as ad
from ..autodiff import Node
from ..errors import GraphError, ShapeError
from ..ops import known_shape, promoted, shape_of
from .functions import dims_of, node_of
from .running import array_of


def given(numbers: tuple[Any, ...]) -> tuple[Any, ...]:
    """Arguments given one by one, or as one tuple."""
    return tuple(numbers[0]) if len(numbers) == 1 and isinstance(numbers[0], (tuple, list)) else numbers


def reshape(x: Any, *shape: Any) -> Node:
    """x's elements in row-major order in another shape, of which one extent may be -1."""
    return ad.reshape_op(node_of(x), given(shape))


view = reshape


def flatten(x: Any, start_dim: int = 0, end_dim: int = -1) -> Node:
    """The axes from one to another as one."""
    return ad.flatten_op(node_of(x), start_dim, end_dim)


def ravel(x: Any) -> Node:
    """All axes as one."""
    return ad.flatten_op(node_of(x))


def permute(x: Any, *dims: Any) -> Node:
    """The axes in another order."""
    return ad.transpose_op(node_of(x), given(dims))


def transpose(x: Any, *dims: Any) -> Node:
    """Two axes change places, as in PyTorch; of more all in that order, as in NumPy, of none reversed."""
    axes = given(dims)
    return ad.swapaxes_op(node_of(x), *axes) if len(axes) == 2 else ad.transpose_op(node_of(x), axes or None)


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


def squeeze(x: Any, dim: Any = None, *, axis: Any = None) -> Node:
    """Without axes of extent 1: all of them for None, else those named that have it."""
    node, dim = node_of(x), axis if dim is None else dim
    if dim is None or known_shape(node) is None:
        return ad.squeeze_op(node, dim)
    ones = tuple(a for a in dims_of(node, dim) if shape_of(node)[a] == 1)  # PyTorch leaves the others
    return ad.squeeze_op(node, ones) if ones else node


def unsqueeze(x: Any, dim: Any = None, *, axis: Any = None) -> Node:
    """With a new axis of extent 1 at `dim`."""
    return ad.expand_dims_op(node_of(x), axis if dim is None else dim)


def broadcast_to(x: Any, *shape: Any) -> Node:
    """x repeated to a shape, by NumPy's rules."""
    return ad.broadcast_shape_op(node_of(x), given(shape))


def cat(tensors: Any, dim: int = 0, *, axis: int | None = None) -> Node:
    """The tensors one behind another along `dim`, in one dtype."""
    return ad.concatenate_op(promoted(*map(node_of, tensors)), dim if axis is None else axis)


concatenate = concat = cat


def stack(tensors: Any, dim: int = 0, *, axis: int | None = None) -> Node:
    """The tensors along a new axis number `dim`, in one dtype."""
    return ad.stack_op(promoted(*map(node_of, tensors)), dim if axis is None else axis)


def split(x: Any, split_size_or_sections: Any, dim: int = 0) -> list[Node]:
    """Parts of so many elements along `dim`, the last one smaller; or of the sizes in a list. The shape must be known.

    Raises ShapeError for sizes that do not add up, GraphError for a size that is not positive."""
    node = node_of(x)
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


def flip(x: Any, *dims: Any) -> Node:
    """x turned round along the axes."""
    return ad.flip_op(node_of(x), given(dims))


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
