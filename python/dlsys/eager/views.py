"""Views: tensors that are others' elements, in PyTorch the same memory. What is written to one is written to the
other."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import autodiff as ad
from ..autodiff import Node
from ..errors import GraphError
from ..ops import shape_of
from ..ops.slicing import region_of

_SHAPES = ("expand_dims", "flatten", "reshape", "reshape_like", "squeeze")
VIEWS = frozenset((*_SHAPES, "slice", "swapaxes", "transpose"))


def is_view(node: Node) -> bool:
    """Whether the node is another's elements."""
    return node.op.name in VIEWS


def base_of(node: Node) -> Node:
    """What a view is of, down to what is none."""
    while is_view(node):
        node = node.inputs[0]
    return node


def key_of(node: Node) -> tuple[Any, ...]:
    """The key by which a slice reads its input, for NumPy."""
    if not any(isinstance(item, tuple) and len(item) == 2 for item in node.attrs["key"]):
        return tuple(slice(*item) if isinstance(item, tuple) else item for item in node.attrs["key"])
    region = region_of(node, shape_of(node.inputs[0]))  # some of the parts of an axis: no new axes, none dropped
    reads = zip(region.starts, region.counts, region.steps, strict=True)
    return tuple(slice(start, start + count * step, step) for start, count, step in reads)


def restored(node: Node, changed: Node) -> Node:
    """`changed`, a value for a view that is no slice, in the shape of what the view is of."""
    if node.op.name == "swapaxes":
        return ad.swapaxes_op(changed, *node.attrs["axes"])
    if node.op.name == "transpose":
        axes = node.attrs["axes"]
        return ad.transpose_op(changed, None if axes is None else np.argsort(np.mod(axes, len(axes))).tolist())
    return ad.reshape_op(changed, shape_of(node.inputs[0]))


def require_no_copy(node: Node) -> None:
    """Raises GraphError for a view that in PyTorch is a copy, because what it is of does not lie in the view's order,
    as `y.T.reshape(-1)`."""
    chain = [node]
    while is_view(chain[-1]):
        chain.append(chain[-1].inputs[0])
    memory = np.empty(shape_of(chain.pop()), bool)
    for view in reversed(chain):
        before, name = memory, view.op.name
        if name == "slice":
            key = key_of(view)
            memory = memory[key if Ellipsis in key else (*key, Ellipsis)]  # an array also of one element
        elif name == "swapaxes":
            memory = np.swapaxes(memory, *view.attrs["axes"])
        elif name == "transpose":
            memory = np.transpose(memory, view.attrs["axes"])
        else:
            memory = memory.reshape(shape_of(view))
        if memory.size and not np.may_share_memory(memory, before):
            raise GraphError(
                f"{view.name} is in another order than what it is of, a copy in PyTorch: "
                f"write to {view.name}.clone() (made at {view.location})"
            )
