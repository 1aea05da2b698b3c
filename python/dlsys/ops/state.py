"""State that outlives a run: the cells of parameters, and the assignments that change them at the end of one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from .. import compute
from ..compute import Tensor
from ..device import Array, cpu, to_array
from ..errors import DTypeError, GraphError
from ..graph import DTYPES, OPS, Node, Op, Shape, error_at, register, shape_error
from . import pending
from .cell import Cell
from .types import dtype_of, shape_of


def leaf(value: Any, name: str | None = None) -> Node:
    """A node that holds data, in the value's own memory where that can be, on the CPU. Raises DTypeError for an array
    of a dtype that is none of `dlsys.graph.DTYPES`."""
    shared = to_array(value, cpu())
    if shared.dtype not in DTYPES:
        raise DTypeError(f"tensor: dtype {shared.dtype} is not one of {', '.join(DTYPES)}")
    made = OPS["parameter"].make([], {"shape": shared.shape, "dtype": shared.dtype}, name)
    made.cell = Cell(shared)
    return made


def value_at_hand(node: Node) -> Array | None:
    """The node's value where it is there already: of a leaf, and of what was computed and kept."""
    if node.cell is None:
        return node.kept
    return node.cell.content if type(node.cell.content) is Array else None


@register
class ParameterOp(Op):
    """A leaf's value, which lies in its cell."""

    name = "parameter"

    def infer_shape(self, node: Node, input_shapes: list[Shape]) -> Shape:
        return node.attrs["shape"]

    def infer_dtype(self, node: Node, input_dtypes: list[str]) -> str:
        return node.attrs["dtype"]

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        return []

    def te(self, node: Node, inputs: list[Tensor], shape: Shape, dtype: str) -> Tensor:
        raise error_at(node, GraphError, "a parameter's value is given, not computed")

    def numpy(self, node: Node, inputs: list[np.ndarray]) -> np.ndarray:
        raise error_at(node, GraphError, "a parameter's value is given, not computed")


@register
class Assign(Op):
    """The value, which the parameter takes at the end of the run: (parameter, value) -> value."""

    name = "assign"
    dtypes = DTYPES
    shape_only = (0,)

    def infer_shape(self, node: Node, input_shapes: list[Shape]) -> Shape:
        if input_shapes[0] != input_shapes[1]:
            parameter = node.inputs[0].name
            raise shape_error(node, f"{parameter} has shape {input_shapes[0]}, the value {input_shapes[1]}")
        return input_shapes[1]

    def infer_dtype(self, node: Node, input_dtypes: list[str]) -> str:
        if input_dtypes[0] != input_dtypes[1]:
            parameter = node.inputs[0].name
            raise error_at(node, DTypeError, f"{parameter} is {input_dtypes[0]}, the value {input_dtypes[1]}")
        return input_dtypes[1]

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        return [None, output_grad]

    def te(self, node: Node, inputs: list[Tensor], shape: Shape, dtype: str) -> Tensor:
        return compute.copy(inputs[1])

    def numpy(self, node: Node, inputs: list[np.ndarray]) -> np.ndarray:
        return inputs[1]


@register
class Group(Op):
    """Nodes evaluated together; it has no value itself, `run` returns None for it."""

    name = "group"

    def infer_shape(self, node: Node, input_shapes: list[Shape]) -> Shape:
        return (0,)

    def infer_dtype(self, node: Node, input_dtypes: list[str]) -> str:
        return "float32"

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        raise error_at(node, GraphError, "a group has no value, so no gradient")

    def te(self, node: Node, inputs: list[Tensor], shape: Shape, dtype: str) -> Tensor:
        raise error_at(node, GraphError, "a group has no value: evaluate it, do not compute with it")

    def numpy(self, node: Node, inputs: list[np.ndarray]) -> np.ndarray:
        raise error_at(node, GraphError, "a group has no value: evaluate it, do not compute with it")


@register
class WithUpdates(Op):
    """(x, assignments...) -> x; whoever evaluates it evaluates the assignments too.

    For what changes state as it computes, as running means and counters of random numbers.
    """

    name = "with_updates"

    def infer_dtype(self, node: Node, input_dtypes: list[str]) -> str:
        return input_dtypes[0]

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        return [output_grad, *[None] * (len(node.inputs) - 1)]

    def te(self, node: Node, inputs: list[Tensor], shape: Shape, dtype: str) -> Tensor:
        return compute.copy(inputs[0])

    def numpy(self, node: Node, inputs: list[np.ndarray]) -> np.ndarray:
        return inputs[0]


def assign_op(parameter: Node, node: Node, each_run: bool = False) -> Node:
    """A node that has `node`'s value, and gives it to the parameter at the end of a run that evaluates it.

    All reads in that run, also those of other assignments, see the old value. Raises GraphError for a first argument
    that is no Parameter; at the run, ShapeError and DTypeError where the value does not fit, and GraphError where
    two assignments to one parameter meet. `each_run`: whether it is for what runs again and again, an Executor, and not
    for values on demand.
    """
    if not isinstance(parameter, Node) or parameter.cell is None:
        raise GraphError(f"assign: the first argument must be a Parameter, not {parameter!r}")
    return Assign.make([parameter, node], {"each_run": True} if each_run else {})


@register
class Latest(Op):
    """A parameter's value as the assignments left it that were made before this node and belong to the same run; its
    own where there are none. Evaluators put that value in its place."""

    name = "latest"
    dtypes = DTYPES

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        return [None]

    def te(self, node: Node, inputs: list[Tensor], shape: Shape, dtype: str) -> Tensor:
        return compute.copy(inputs[0])

    def numpy(self, node: Node, inputs: list[np.ndarray]) -> np.ndarray:
        return inputs[0]


def advance_op(parameter: Node, after: Callable[[Node], Node]) -> Node:
    """An assignment of `after(value)`, where several of one run follow each other in the order in which they were made:
    each finds the value that the one before it left. For running means and counters. Of tensors that hold data the
    state changes now: its cell holds the node of the new value.

    Raises GraphError for a first argument that is no Parameter.
    """
    if not isinstance(parameter, Node) or parameter.cell is None:
        raise GraphError(f"advance: the first argument must be a Parameter, not {parameter!r}")
    made = Assign.make([parameter, after(Latest.make([parameter]))], {"follows": True})
    if made.is_data:
        _change([made])
    return made


def with_updates_op(node: Node, assigns: Sequence[Node]) -> Node:
    """A node that has `node`'s value, and in whose evaluation the assignments are made, once a run however often it is
    read. Raises GraphError for what is no assignment.

    Of tensors that hold data the state changes now: its cells hold the nodes of their new values."""
    for assign in assigns:
        if not isinstance(assign, Node) or assign.op.name != "assign":
            raise GraphError(f"with_updates: {assign!r} is no assignment")
    made = WithUpdates.make([node, *assigns])
    if made.is_data:
        _change([assign for assign in assigns if "follows" not in assign.attrs])
    return made


def _change(assigns: Sequence[Node]) -> None:
    """Let cells hold the nodes of the values that they are assigned, but for those of `each_run`."""
    for assign in assigns:
        parameter, value = assign.inputs
        if not assign.attrs.get("each_run"):
            _require_types(assign)
            pending.add(parameter.cell, value)


def unchanged(nodes: Sequence[Node]) -> None:
    """Take back the changes of state that nobody has asked for: an Executor runs these nodes, and changes the
    state in each run."""
    for node in sorted((n for n in nodes if n.op.name == "assign"), key=lambda n: -n.id):  # the last one first
        cell, value = node.inputs[0].cell, node.inputs[1]
        if cell.content is value:
            cell.content, cell.waiting = node.read[0], cell.waiting - 1


def _require_types(assign: Node) -> None:
    """Raises ShapeError, DTypeError where a value does not fit into the cell that it is assigned to."""
    shape_of(assign)
    dtype_of(assign)


def group_op(nodes: Sequence[Node]) -> Node:
    """A node whose evaluation evaluates all of `nodes`, for their assignments; `run` returns None for it. Raises
    GraphError for what is no list of nodes."""
    if isinstance(nodes, Node) or not isinstance(nodes, Iterable):
        raise GraphError(f"group: takes a list of nodes, not {type(nodes).__name__}")
    return Group.make(list(nodes))
