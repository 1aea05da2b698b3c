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
        formulas: digests of the specs that have these loops; none for loops of a Relax module.
        space: of its choices.
        calls: how often a step calls it.
        nbytes: of its arrays.
        request: what a `Measurer` is to load.
    """

    name: str
    loops: str
    formulas: tuple[str, ...]
    space: Space
    calls: int
    nbytes: int
    request: dict[str, Any] = field(repr=False)


def tasks_of(what: Any, how: TargetName, feed_shapes: Mapping[Node, Any] | None) -> tuple[list[Task], int, int]:
    """The tasks of an Executor, nodes, a kernel or a Relax module; how many distinct kernels there are; and the bytes
    of all arrays of a step. Raises GraphError for something else."""
    found: dict[str, Task] = {}
    others, step = set[str](), 0
    for name, function, target, precision, formula, calls in _functions(what, how, feed_shapes):
        loops, nbytes = loops_hash(function), _nbytes(function)
        step += calls * nbytes
        if loops in found:
            found[loops].calls += calls
            found[loops].formulas = tuple(sorted({*found[loops].formulas, *([formula] if formula else [])}))
        elif loops not in others:
            space = space_of(function, target, precision)
            if space is None:
                others.add(loops)
                continue
            module = tvm.IRModule({MAIN: function.with_attr("global_symbol", MAIN)})
            request = {"load": tvm.ir.save_json(module), "target": _plain(target), "precision": precision}
            formulas = (formula,) if formula else ()
            found[loops] = Task(name, loops, formulas, space, calls, nbytes, request)
    return list(found.values()), len(found) + len(others), step


def space_of(function: tirx.PrimFunc, target: Target, precision: str = "") -> Space | None:
    """The space that the function's rule asks for a choice of; None where it has none."""
    found: list[Space] = []

    def look(space: Space) -> Knobs:
        found.append(space)
        return space.own

    schedule.apply(function, target, precision, look)
    return found[0] if found else None


Called = tuple[str, tirx.PrimFunc, Target, str, str, int]
"""Name, plain loops, target, precision and formula of a kernel, and how often a step calls it."""


def _functions(what: Any, how: TargetName, feed_shapes: Any) -> Iterable[Called]:
    """The kernels of what is tuned."""
    if isinstance(what, tvm.IRModule):
        calls = fused_kernels(what, how.target, feed_shapes)
        return [(name, any_alignment(function), how.target, "", "", 1) for name, function in calls]
    if isinstance(what, Kernel):
        specs: list[tuple[KernelSpec, int]] = [(what.spec, 1)]
    else:
        if isinstance(what, Node):
            what = [what]
        if isinstance(what, Sequence) and what and all(isinstance(node, Node) for node in what):
            what = Executor(what)
        if not isinstance(what, Executor):
            raise GraphError(f"tune: takes an Executor, nodes, a kernel or a Relax module, not {type(what).__name__}")
        specs = what.specs_and_calls(feed_shapes)
    alone = schedule.with_threads(how.target, 1)
    return [
        (spec.name, prim_func(spec), alone if spec.alone else how.target, spec.precision, spec.digest, calls)
        for spec, calls in specs
        if not spec.loops
    ]


def _nbytes(function: tirx.PrimFunc) -> int:
    return sum(math.prod(map(int, v.shape)) * np.dtype(str(v.dtype)).itemsize for v in function.params)


def _plain(target: Target) -> dict[str, Any]:
    """A target as JSON."""

    def plain(value: Any) -> Any:
        if isinstance(value, (str, bool, int, float)) or value is None:
            return value
        if isinstance(value, Mapping):
            return {str(key): plain(item) for key, item in value.items()}
        return [plain(item) for item in value] if isinstance(value, Sequence) else str(value)

    return {str(key): plain(value) for key, value in target.export().items()}
