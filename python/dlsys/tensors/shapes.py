"""Tensors in other shapes, put together and taken apart, by PyTorch's names and with its arguments; see `functions`."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from .. import ops
from ..checks import integer
from ..errors import GraphError, ShapeError
from ..graph import Node
from ..ops import known_shape, promoted, shape_of
from .creation import leaf
from .functions import dim_of, dims_of, node_of


def given(numbers: tuple[Any, ...], *named: Any) -> tuple[Any, ...]:
    """Arguments given one by one, as one tuple, or by a name, of which those left out are None."""
    numbers = next(((value,) for value in named if value is not None), numbers)
    return tuple(numbers[0]) if len(numbers) == 1 and isinstance(numbers[0], (tuple, list)) else numbers


def reshape(x: Any, *sizes: Any, shape: Any = None) -> Node:
    """x's elements in row-major order in another shape, of which one extent may be -1."""
    return ops.reshape_op(node_of(x), given(sizes, shape))


view = reshape


def flatten(x: Any, start_dim: int = 0, end_dim: int = -1) -> Node:
    """The axes from one to another as one."""
    return ops.flatten_op(node_of(x), start_dim, end_dim)


def permute(x: Any, *order: Any, dims: Any = None) -> Node:
    """The axes in another order."""
    return ops.transpose_op(node_of(x), given(order, dims))


def transpose(x: Any, *dims: Any, dim0: Any = None, dim1: Any = None) -> Node:
    """Two axes change places, as in PyTorch; of more all in that order, as in NumPy, of none reversed."""
    pair = given((*dims, *(axis for axis in (dim0, dim1) if axis is not None)))
    return ops.swapaxes_op(node_of(x), *pair) if len(pair) == 2 else ops.transpose_op(node_of(x), pair or None)


def swapaxes(x: Any, a: int, b: int) -> Node:
    """Two axes change places."""
    return ops.swapaxes_op(node_of(x), a, b)


def t(x: Any) -> Node:
    """A matrix transposed."""
    return ops.transpose_op(node_of(x))


def squeeze(x: Any, dim: Any = None, *, axis: Any = None) -> Node:
    """Without axes of extent 1: all of them for None, else those named that have it."""
    node, dim = node_of(x), axis if dim is None else dim
    if dim is None or not known_shape(node):
        return ops.squeeze_op(node, dim)
    ones = tuple(a for a in dims_of(node, dim) if shape_of(node)[a] == 1)  # PyTorch leaves the others
    return ops.squeeze_op(node, ones) if ones else node


def unsqueeze(x: Any, dim: Any = None, *, axis: Any = None) -> Node:
    """With a new axis of extent 1 at `dim`."""
    return ops.expand_dims_op(node_of(x), axis if dim is None else dim)


def broadcast_to(x: Any, *sizes: Any, size: Any = None, shape: Any = None) -> Node:
    """x repeated to a shape, by NumPy's rules; `size` is PyTorch's word for it, `shape` NumPy's."""
    return ops.broadcast_shape_op(node_of(x), given(sizes, size, shape))


def _together(name: str, tensors: Any) -> list[Node]:
    """Several tensors in one dtype. Raises GraphError for none, and for what is no list."""
    if not isinstance(tensors, (list, tuple)) or not tensors:
        raise GraphError(f"{name}: takes a list of one tensor or more, not {tensors!r}")
    return promoted(*map(node_of, tensors))


def cat(tensors: Any, dim: int = 0, *, axis: int | None = None) -> Node:
    """The tensors one behind another along `dim`, in one dtype. Raises GraphError for none."""
    return ops.concatenate_op(_together("cat", tensors), dim if axis is None else axis)


def stack(tensors: Any, dim: int = 0, *, axis: int | None = None) -> Node:
    """The tensors along a new axis number `dim`, in one dtype. Raises GraphError for none."""
    return ops.stack_op(_together("stack", tensors), dim if axis is None else axis)


def split(x: Any, split_size_or_sections: Any, dim: int = 0, *, axis: int | None = None) -> Any:
    """Parts of so many elements along `dim`, the last one smaller; or of the sizes in a list. The shape must be known.

    Raises ShapeError for sizes that do not add up, GraphError for a size that is not positive."""
    node, dim = node_of(x), dim if axis is None else axis
    axis = dim_of("split", node, dim)
    extent, sizes = shape_of(node)[axis], split_size_or_sections
    if isinstance(sizes, (tuple, list)):
        sizes = [integer("split", "a size", size, 0) for size in sizes]
        if sum(sizes) != extent:
            raise ShapeError(
                f"split: sizes {list(sizes)} do not add up to {extent}, axis {dim} of {shape_of(node)}"
            )
        return ops.split_op(node, list(itertools.accumulate(sizes))[:-1], axis)
    sizes = integer("split", "a part's size", sizes, 1)
    return ops.split_op(node, list(range(sizes, extent, sizes)), axis)


def chunk(x: Any, chunks: int, dim: int = 0) -> list[Node]:
    """At most `chunks` parts of one size along `dim`, the last one smaller; the shape must be known. Raises GraphError
    for a number below 1."""
    chunks = integer("chunk", "the number of parts", chunks, 1)
    node = node_of(x)
    axis = dim_of("chunk", node, dim)
    return split(node, max(-(-shape_of(node)[axis] // chunks), 1), axis)


def unbind(x: Any, dim: int = 0) -> list[Node]:
    """The slices along `dim`, which they lack; the shape must be known."""
    node = node_of(x)
    axis = dim_of("unbind", node, dim)
    return [ops.slice_op(node, (*(slice(None),) * axis, i)) for i in range(shape_of(node)[axis])]


def flip(x: Any, *along: Any, dims: Any = None) -> Node:
    """x turned round along the axes."""
    return ops.flip_op(node_of(x), given(along, dims))


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
    spread = ops.broadcast_shape_op(ops.reshape_op(node, apart), wide)
    return ops.reshape_op(spread, tuple(n * extent for n, extent in zip(times, shape, strict=True)))


def expand(x: Any, *sizes: Any) -> Node:
    """x repeated along axes of extent 1 and new leading ones; -1 keeps an extent. The shape must be known for that."""
    node = node_of(x)
    wide = tuple(integer("expand", "an extent", extent, -1) for extent in given(sizes))
    if -1 in wide:
        own = shape_of(node)
        lead = len(wide) - len(own)
        wide = tuple(own[i - lead] if n == -1 and i >= lead else n for i, n in enumerate(wide))
    return ops.broadcast_shape_op(node, wide)


def _triangle(op: str, x: Any, diagonal: int, lower: bool) -> Node:
    node = node_of(x)
    shape = known_shape(node)
    if shape is None or len(shape) < 2:
        raise ShapeError(f"{op}: takes matrices, of a shape that is known, not {shape} [{node.name}]")
    diagonal = min(max(integer(op, "the diagonal", diagonal), -shape[-2]), shape[-1])
    kept = np.tri(shape[-2], shape[-1], k=diagonal if lower else diagonal - 1, dtype=bool)
    return ops.where_op(leaf(kept if lower else ~kept), node, ops.zeroslike_op(node))


def tril(x: Any, diagonal: int = 0) -> Node:
    """Matrices without what lies above the diagonal number `diagonal`. Raises ShapeError for what are no matrices."""
    return _triangle("tril", x, diagonal, True)


def triu(x: Any, diagonal: int = 0) -> Node:
    """Matrices without what lies below the diagonal number `diagonal`. Raises ShapeError for what are no matrices."""
    return _triangle("triu", x, diagonal, False)
