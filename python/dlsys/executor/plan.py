"""A program made ready to run on a device: arena, kernels, and the flat list of bound calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

from .. import compute, tvm_op
from ..device import Array, Context, allocate, view_of
from ..graph import Node, Shape
from ..planner import MemoryPlan
from .program import Program, value_inputs


class Plan:
    """One signature's program on one device. Stages are done at first use and kept.

    Attributes:
        program: what is computed.
        allocations: how many device buffers the plan owns.
        arrays: every computed node's Array, in the arena; views share memory.
        kernels: every computed node's kernel; views and values without elements have none.
    """

    def __init__(self, program: Program, ctx: Context) -> None:
        self.program = program
        self.ctx = ctx
        self.allocations = 0
        self.is_compiled = False

    @cached_property
    def memory(self) -> MemoryPlan:
        """Who lives where in the arena, when."""
        return self.program.plan()

    @cached_property
    def arrays(self) -> dict[Node, Array]:
        """Allocates the arena."""
        program, memory = self.program, self.memory
        on_cpu = self.ctx.kind == "cpu"
        if on_cpu:
            arena = self._allocate(memory.bytes_planned)
            place = {id(buffer): (arena, buffer.offset) for buffer in memory.buffers}
        else:  # kernels refuse a byte offset there, so each buffer is an allocation of its own
            place = {id(buffer): (self._allocate(buffer.nbytes), 0) for buffer in memory.buffers}
        arrays = {}
        for node in program.steps:
            if node not in memory.buffer_of:
                continue  # a view of a feed
            storage, offset = place[id(memory.buffer_of[node])]
            view = view_of(storage, program.shapes[node], program.dtypes[node], offset)
            arrays[node] = Array(view, self.ctx)
        return arrays

    def _allocate(self, nbytes: int) -> Any:
        self.allocations += 1
        return allocate((max(nbytes, 1),), "uint8", self.ctx)

    @cached_property
    def kernels(self) -> dict[Node, Any]:
        """Compiles, as one module, what is not in the cache of the process."""
        program = self.program
        computed = [node for node in program.steps if node not in program.viewed and program.nbytes(node)]
        specs: dict[Any, Any] = {}
        spec_of = {}
        for node in computed:
            spec = _kernel_spec(node, program)
            spec_of[node] = specs.setdefault((spec.key, spec.inputs), spec)
        unique = list(specs.values())
        target = "llvm" if self.ctx.kind == "cpu" else self.ctx.kind
        built = dict(zip(map(id, unique), tvm_op.build(unique, target), strict=True)) if unique else {}
        self.is_compiled = True
        return {node: built[id(spec)] for node, spec in spec_of.items()}

    @cached_property
    def _bound(self) -> tuple[list[tuple[Callable[..., Any], list[Any]]], dict[Node, list[tuple[list, int]]]]:
        """The calls in order, and where in their arguments each feed, or view of one, must be put."""
        calls = []
        slots: dict[Node, list[tuple[list, int]]] = {}
        for node, kernel in self.kernels.items():
            arguments: list[Any] = []
            for position, value in enumerate([*value_inputs(node), node]):
                if value in self.arrays:
                    arguments.append(self.arrays[value].tensor)
                else:
                    arguments.append(None)
                    slots.setdefault(value, []).append((arguments, position))
            calls.append((kernel.function, arguments))
        return calls, slots

    @cached_property
    def results(self) -> list[Array]:
        """The evaluated nodes' arrays: the same objects in every run."""
        return [self.arrays[node] for node in self.program.results]

    def run(self, feeds: Mapping[Node, Array]) -> list[Array]:
        """Put the feeds into their places and make the calls. Allocates nothing after the first time."""
        calls, slots = self._bound
        for node, places in slots.items():
            if node in feeds:
                tensor = feeds[node].tensor
            else:
                source = feeds[self.program.source(node)].tensor
                tensor = view_of(source, self.program.shapes[node], self.program.dtypes[node])
            for arguments, position in places:
                arguments[position] = tensor
        for function, arguments in calls:
            function(*arguments)
        return self.results


def _kernel_spec(node: Node, program: Program) -> Any:
    """What `tvm_op.build` must know to make the node's kernel, shared by all nodes that compute the same."""
    shapes, dtypes = program.shapes, program.dtypes
    values = value_inputs(node)
    shape_only = node.op.shape_only
    # An input is a parameter's number, or the shape that alone is read.
    reads: list[int | Shape] = [
        shapes[value] if i in shape_only else values.index(value) for i, value in enumerate(node.inputs)
    ]
    attributes = tuple(sorted((key, repr(value)) for key, value in node.attrs.items()))
    shape, dtype = shapes[node], dtypes[node]

    def te(*parameters: compute.Tensor) -> compute.Tensor:
        inputs = [
            parameters[read] if isinstance(read, int) else compute.placeholder(read, dtype, "shape")
            for read in reads
        ]
        return node.op.te(node, inputs, shape, dtype)

    return tvm_op.KernelSpec(
        name=node.op.name,
        key=(node.op.name, attributes, tuple(reads), shape, dtype),
        inputs=tuple((shapes[value], dtypes[value]) for value in values),
        te=te,
    )
