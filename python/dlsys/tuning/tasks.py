"""Tasks: the distinct kernels of a step whose rule has a space of choices."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tvm
from tvm import tirx
from tvm.target import Target

from .. import schedule
from ..errors import GraphError
from ..executor import Executor
from ..graph import Node
from ..kernels import Kernel, KernelSpec
from ..kernels.build import any_alignment, loops_hash, prim_func
from ..kernels.spec import TargetName
from ..relax.build import fused_kernels
from ..schedule.knobs import Knobs, Space

MAIN = "main"


@dataclass
class Task:
    """One kernel to tune.

    Attributes:
        name: the kernel's.
        loops: the structural hash of its plain loops.
        space: of its choices.
        request: what a `Measurer` is to load: the loops and the target as TVM's JSON, and the precision.
        formulas: digests of the specs that have these loops; none for loops of a Relax module.
        calls: how often a step calls it.
    """

    name: str
    loops: str
    space: Space
    request: dict[str, Any] = field(repr=False)
    formulas: tuple[str, ...] = ()
    calls: int = 0


def tasks_of(what: Any, how: TargetName, feed_shapes: Mapping[Node, Any] | None) -> tuple[list[Task], int, int]:
    """The tasks of an Executor, nodes, a kernel or a Relax module; how many distinct kernels there are; and the bytes
    of all arrays of a step. Raises GraphError for something else."""
    found: dict[str, Task | None] = {}
    step = 0
    for name, function, target, precision, formula, calls in _functions(what, how, feed_shapes):
        loops = loops_hash(function)
        step += calls * nbytes(function)
        if loops not in found:
            space = space_of(function, target, precision)
            module = tvm.IRModule({MAIN: function.with_attr("global_symbol", MAIN)})
            texts = {"load": tvm.ir.save_json(module), "target": tvm.ir.save_json(target), "precision": precision}
            found[loops] = Task(name, loops, space, texts) if space else None
        if task := found[loops]:
            task.calls += calls
            task.formulas = tuple(sorted({*task.formulas, formula} - {""}))
    return [task for task in found.values() if task], len(found), step


def space_of(function: tirx.PrimFunc, target: Target, precision: str = "") -> Space | None:
    """The space that the function's rule asks for a choice of; None where it has none."""
    found: list[Space] = []

    def look(space: Space) -> Knobs:
        found.append(space)
        return space.own

    schedule.apply(function, target, precision, look)
    return found[0] if found and math.prod(map(len, found[0].domains.values())) > 1 else None


def nbytes(function: tirx.PrimFunc) -> int:
    """Bytes of a function's arrays."""
    return sum(math.prod(map(int, v.shape)) * np.dtype(str(v.dtype)).itemsize for v in function.params)


Called = tuple[str, tirx.PrimFunc, Target, str, str, int]
"""Name, plain loops, target, precision and formula of a kernel, and how often a step calls it."""


def _functions(what: Any, how: TargetName, feed_shapes: Any) -> Iterable[Called]:
    """The kernels of what is tuned."""
    if isinstance(what, tvm.IRModule):
        calls = fused_kernels(what, how.target, feed_shapes)
        return [(name, any_alignment(function), how.target, "", "", 1) for name, function in calls]
    specs: list[tuple[KernelSpec, int]] = [(what.spec, 1)] if isinstance(what, Kernel) else []
    if not specs:
        nodes = [what] if isinstance(what, Node) else what
        if isinstance(nodes, Sequence) and nodes and all(isinstance(node, Node) for node in nodes):
            what = Executor(nodes)
        if not isinstance(what, Executor):
            raise GraphError(f"tune: takes an Executor, nodes, a kernel or a Relax module, not {type(what).__name__}")
        specs = what.specs_and_calls(feed_shapes)
    alone = schedule.with_threads(how.target, 1)
    return [
        (spec.name, prim_func(spec), alone if spec.alone else how.target, spec.precision, spec.digest, calls)
        for spec, calls in specs
        if not spec.loops
    ]
