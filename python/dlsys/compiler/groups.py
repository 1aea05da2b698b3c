"""Groups: nodes that one kernel computes, and what that is to compute."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Container, Hashable
from dataclasses import dataclass, replace
from typing import Any

from .. import compute
from ..errors import DlsysError, GraphError
from ..graph import OPS, Node, Op, Shape, error_at, require_type
from ..kernels import KernelSpec
from ..ops.types import number_of
from ..system import lazy
from ..tvm_import import with_compiler
from .base import TypedGraph, value_inputs
from .listing import extents


@dataclass(frozen=True, eq=False)
class Group:
    """Nodes that one kernel computes.

    Attributes:
        nodes: inputs first.
        inputs: what it reads from memory, each once.
        outputs: what it stores.
        kind: of what it computes, in the words of `Op.kind`; views and joins that take a kernel are "single".
    """

    nodes: tuple[Node, ...]
    inputs: tuple[Node, ...]
    outputs: tuple[Node, ...]
    kind: str

    def __str__(self) -> str:
        """`matmul_add, contraction: X[5, 4], W[4, 3] -> add_6[5, 3]`."""
        read, written = ([f"{node.name}{extents(node)}" for node in nodes] for nodes in (self.inputs, self.outputs))
        return f"{self.name}, {self.kind}: {', '.join(read)} -> {', '.join(written)}"

    @property
    def loop(self) -> Any:
        """The `Loop` of a group that is one."""
        return self.nodes[0].attrs["loop"]

    @property
    def name(self) -> str:
        """The operators' names in order, `matmul_add_relu`, shortened where there are many."""
        if self.kind == "loop":
            return "scan"
        names = [node.op.name for node in self.nodes if not node.op.constant] or ["full"]
        return "_".join(names) if len(names) <= 6 else "_".join([*names[:4], f"{len(names) - 5}more", names[-1]])

    def overwritable(self, output: Node) -> list[Node]:
        """The inputs whose memory `output` may take: those of its shape and dtype that elementwise nodes alone read,
        each at the index that is written. None in a group of rows, which reads its inputs more than once.
        Values of different dtypes never share memory: the compiler relies on it."""
        if self.kind == "rows":
            return []
        return [value for value in self._read_at_the_end if value.value_type is output.value_type]

    @lazy
    def _read_at_the_end(self) -> list[Node]:
        """The inputs that neither a contraction or sum reads nor what one depends on."""
        before = {node for node in self.nodes if not is_elementwise(node)}
        for node in reversed(self.nodes):
            if node in before:
                before.update(node.inputs)
        return [value for value in self.inputs if value not in before]


def single_groups(graph: TypedGraph, views: Container[Node] = ()) -> list[Group]:
    """Every computed node but `views` in a group of its own, and the results of each loop."""
    found = [Group(members, tuple(value_inputs(members[0])), members, "loop") for members in loops_of(graph)]
    for node in graph.nodes:
        if node not in views and node.op.kind != "loop":
            found.append(Group((node,), tuple(value_inputs(node)), (node,), kind_alone(node)))
    return found


def loops_of(graph: TypedGraph) -> list[tuple[Node, ...]]:
    """The results of each loop, in order."""
    found: dict[object, list[Node]] = {}
    for node in graph.nodes:
        if node.op.kind == "loop":
            found.setdefault(node.attrs["loop"], []).append(node)
    return [tuple(members) for members in found.values()]


def kind_alone(node: Node) -> str:
    """The kind of the group of a node that has joined no other."""
    return node.op.kind if is_elementwise(node) else "single"


def is_elementwise(node: Node) -> bool:
    return node.op.kind == "elementwise" and not node.op.constant


def rows_of(node: Node) -> Shape:
    """The shape of what a row-wise node reads."""
    return node.inputs[0].shape


def is_row_wise(node: Node) -> bool:
    """Whether the node reduces or normalises along the last axis of its input."""
    if node.op.kind not in ("rows", "reduction"):
        return False
    if "axes" not in node.attrs:
        return True
    rank = len(rows_of(node))
    return rank > 1 and node.attrs["axes"] == (rank - 1,)


def is_down_columns(node: Node) -> bool:
    """Whether the node sums all rows of its input."""
    if node.op is not OPS["reducesum"]:
        return False
    rank = len(rows_of(node))
    return rank > 1 and node.attrs["axes"] == tuple(range(rank - 1))


def kernel_spec(group: Group, in_place: bool, flat: bool = True) -> KernelSpec:
    """The specification of the group's kernel, for `kernels.get`; equal for groups that compute the same.

    The kernel takes `group.inputs`, then `group.outputs`; `in_place`: see `KernelSpec`. If `flat`, an elementwise
    kernel takes arrays of one axis, whatever their shapes: more groups share it, and its loop computes no indices.
    """
    of_one_axis = _flat_shapes(group) if flat else None
    shapes = of_one_axis or {value: value.shape for value in (*group.inputs, *group.nodes)}
    number = {value: i for i, value in enumerate((*group.inputs, *group.nodes))}
    nodes, outputs = group.nodes, [number[node] for node in group.outputs]
    # What each node reads: the number of an input or node; a number itself, as text.
    reads: list[tuple[Any, ...]] = [
        tuple([
            repr(value.attrs["value"]) if value.op.immediate else number[value] for value in node.inputs
        ])
        for node in nodes
    ]  # fmt: skip
    key = tuple(
        (node.op.name, _attributes(node), read, shapes[node], node.dtype)
        for node, read in zip(nodes, reads, strict=True)
    )

    # What the formula is made of: without the graph, for kernels outlive it, and its leaves hold arrays.
    steps = [
        (
            _without_inputs(node), shapes[node], node.dtype,
            [number_of(x) if x.op.immediate else r for r, x in zip(read, node.inputs, strict=True)],
        )
        for node, read in zip(nodes, reads, strict=True)
    ]  # fmt: skip

    def te(*parameters: compute.Tensor) -> Any:
        values = list(parameters)
        for node, shape, dtype, read in steps:
            if node.op.constant:
                values.append(compute.full(shape, node.attrs["value"], dtype))
                continue
            inputs = [
                values[r] if isinstance(r, int) else compute.immediate(r) for r in read
            ]  # fmt: skip
            values.append(_expression(node, inputs, shape, dtype))
        return tuple(values[i] for i in outputs)

    spec = KernelSpec(
        name=group.name,
        key=(key, tuple(outputs)),
        inputs=tuple((shapes[value], value.dtype) for value in group.inputs),
        te=te,
        in_place=in_place,
        outputs=tuple((shapes[node], node.dtype) for node in group.outputs),
        flat=of_one_axis is not None,
        elementwise=group.kind == "elementwise" and len(outputs) == 1,
        precision=next((p for node in group.nodes if (p := node.attrs.get("precision"))), ""),
    )
    if nodes[0].op.by_numpy:
        own = steps[0][0]
        return replace(spec, host=lambda *inputs: own.op.numpy(own, list(inputs)))
    foreign = tuple(node.op for node in nodes if not node.op.builtin)
    if foreign:
        return replace(spec, key=(spec.key, _digest(spec, foreign)))
    return spec


def _without_inputs(node: Node) -> Node:
    """The node without its inputs, so that a kernel that is kept keeps no graph."""
    alone = Node.__new__(Node)
    alone.op, alone.inputs, alone.attrs, alone.reads = node.op, [], node.attrs, None
    alone.id, alone.name, alone.function, alone.held = node.id, node.name, None, None
    alone.value_type, alone.shape, alone.dtype = node.value_type, node.shape, node.dtype
    alone.placed_as(node)
    return alone


MOST_DIGESTS = 1024
_digests: dict[Hashable, str] = {}  # without the specifications, which hold on to graphs


def _digest(spec: KernelSpec, operators: tuple[Op, ...]) -> str:
    """The hash of a formula in which operators of the user's take part: under their names the kernels on disk may be
    those of others, which had these names before the program was changed."""
    formula = operators, spec.key, spec.inputs
    found = _digests.get(formula)
    if found is None:
        if len(_digests) >= MOST_DIGESTS:
            _digests.clear()
        text = str(with_compiler("kernels.build").prim_func(spec))
        found = _digests[formula] = hashlib.sha256(text.encode()).hexdigest()
    return found


_OF_TE = "A formula is of TE, as those of dlsys.compute; what is written in NumPy is the `reference`"


def _expression(node: Node, inputs: list[compute.Tensor], shape: Shape, dtype: str) -> compute.Tensor:
    """The node's tensor expression. Raises GraphError where there is none, ShapeError and DTypeError where it is of
    another type than that which was inferred: a kernel would write beyond its memory."""
    try:
        found = node.op.te(node, inputs, shape, dtype)
    except DlsysError:
        raise
    except Exception as error:
        told = f"its formula fails with {type(error).__name__}: {error}. {_OF_TE}"
        raise error_at(node, GraphError, told) from error
    if (given := compute.type_of(found)) is None:
        told = f"its formula gives {type(found).__name__}. {_OF_TE}"
        raise error_at(node, GraphError, told)
    require_type(node, "formula", given, shape, dtype)
    return found


def _flat_shapes(group: Group) -> dict[Node, Shape] | None:
    """The shapes of a group's values with one axis each, if all have as many elements or one alone; else None."""
    shape = group.outputs[0].shape
    if group.kind != "elementwise" or len(shape) < 2:
        return None
    found: dict[Node, Shape] = {}
    for value in (*group.inputs, *group.nodes):
        size = math.prod(shape) if value.shape == shape else 1
        if size != math.prod(value.shape) and not value.op.constant:
            return None
        found[value] = (size,)
    return found


def _attributes(node: Node) -> tuple[tuple[str, str], ...]:
    given = {"value": node.attrs["value"]} if node.op.constant else node.attrs
    return tuple(sorted((key, repr(value)) for key, value in given.items()))
