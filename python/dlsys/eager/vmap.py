"""A function of one example as one of a batch: `dl.vmap`, `dl.func.vmap`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from .. import autodiff as ad
from ..autodiff import Node
from ..errors import GraphError, ShapeError
from ..ops import shape_of
from .functions import dims_of, node_of
from .running import evaluate, is_data, leaves_that_require_grad


def vmap(
    func: Callable[..., Any],
    in_dims: Any = 0,
    out_dims: Any = 0,
    randomness: str = "error",
    *,
    chunk_size: int | None = None,
) -> Callable[..., Any]:
    """The function of batches that calls `func` with each example in turn and stacks what it returns: a tensor, or a
    tuple, list or dictionary of tensors.

    It is a loop: each example's graph is compiled once, as all are alike, and run by itself where no gradient is asked
    of the results; where one is, the graph has all examples in it.

    Args:
        in_dims: along which axis each argument is taken apart, None for what all examples share; one integer for all
            arguments, or a tuple with one for each.
        out_dims: along which axis results are stacked; one integer, or a tuple.
        randomness, chunk_size: PyTorch's, change nothing.

    Keyword arguments are shared. Raises GraphError where nothing is taken apart and for what is no tensor, ShapeError
    for extents that differ.
    """

    @functools.wraps(func)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        dims = list(in_dims) if isinstance(in_dims, (tuple, list)) else [in_dims] * len(args)
        if len(dims) != len(args):
            raise GraphError(f"vmap: in_dims {in_dims} for {len(args)} arguments")
        parts = [None if dim is None else _unstacked(value, dim) for value, dim in zip(args, dims, strict=True)]
        counts = sorted({len(part) for part in parts if part is not None})
        if not counts:
            raise GraphError("vmap: no argument is taken apart: in_dims are all None")
        if len(counts) > 1 or not counts[0]:
            raise ShapeError(f"vmap: batches of {' and '.join(map(str, counts))} examples")
        results = []
        for i in range(counts[0]):
            own = [value if part is None else part[i] for value, part in zip(args, parts, strict=True)]
            results.append(func(*own, **kwargs))
            _compute(results[-1])
        return _stacked(results, out_dims)

    return wrapped


def _unstacked(value: Any, dim: int) -> list[Node]:
    node = node_of(value)
    (axis,) = dims_of(node, dim)
    return [ad.slice_op(node, (*(slice(None),) * axis, i)) for i in range(shape_of(node)[axis])]


def _compute(result: Any) -> None:
    """Compute results that no gradient is asked of."""
    if isinstance(result, (tuple, list)):
        for part in result:
            _compute(part)
    elif isinstance(result, dict):
        for part in result.values():
            _compute(part)
    elif isinstance(result, Node) and is_data(result) and not leaves_that_require_grad(result):
        evaluate([result])


def _stacked(results: list[Any], dims: Any) -> Any:
    first = results[0]
    if isinstance(first, (tuple, list)):
        own = list(dims) if isinstance(dims, (tuple, list)) else [dims] * len(first)
        if len(own) != len(first):
            raise GraphError(f"vmap: out_dims {dims} for {len(first)} results")
        made = [_stacked(list(part), dim) for part, dim in zip(zip(*results, strict=True), own, strict=True)]
        return type(first)(*made) if hasattr(first, "_fields") else type(first)(made)
    if isinstance(first, dict):
        return {key: _stacked([result[key] for result in results], dims) for key in first}
    if not isinstance(first, Node):
        raise GraphError(f"vmap: the function must return tensors, not {type(first).__name__}")
    return ad.stack_op(results, dims)
