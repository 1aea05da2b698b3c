"""From a Relax module to machine code: Relax's fusion, our schedule rules, Relax's memory plan and virtual machine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tvm
from tvm import relax
from tvm.relax.backend.cpu_generic.pipeline import dataflow_lower_passes, finalize_passes  # of every backend
from tvm.target import Target

from ..devices import Array, array, context
from ..errors import DataError, GraphError, TargetError
from ..graph import Node
from ..schedule import DEFAULT, apply, resolve_target
from ..schedule.machine_code import PIPELINE, compiling
from ..schedule.target import refusal
from .machine import MAIN, Machine
from .translate import fused, kernels_of
from .tuning import opened, tuned


class Compiled(Machine):
    """A compiled module, called as a `Machine`.

    Attributes:
        stages: the module "translated", "fused" and "scheduled"; `stages["fused"].show()` prints one.
        parameters: copies of the parameters' values, by name. A call with the feeds alone uses them, and assignments
            are written to them.
        rules: the number of kernels that each schedule rule has scheduled; "metaschedule" stands for TVM's search.
    """

    def __init__(self, stages: dict[str, tvm.IRModule], target: Target, rules: Counter[str]) -> None:
        self.stages = stages
        self.rules = rules
        self._refusal = refusal(target)
        module, main = stages["scheduled"], stages["scheduled"][MAIN]
        values = list(main.attrs["params"]) if main.attrs and "params" in main.attrs else []
        functions = {**dict(module.functions_items()), module.get_global_var(MAIN): main.without_attr("params")}
        passes = tvm.transform.Sequential([*dataflow_lower_passes(target), *finalize_passes(target)])
        with compiling(target):
            self._executable = relax.build(tvm.IRModule(functions), target, None, passes, PIPELINE)
        super().__init__(self._executable.jit(), context("cuda" if target.kind.name == "cuda" else "cpu"))
        arrays = [array(Array(value, context("cpu")), self.ctx) for value in values]
        self.parameters: dict[str, Any] = dict(zip(self.names[len(self.names) - len(arrays) :], arrays, strict=True))

    def __call__(self, *inputs: Any) -> list[Array]:
        """As `Machine`'s; the arguments are all inputs, or the feeds alone, which `parameters` then follow. Raises
        TargetError if this CPU lacks instructions of the target."""
        if self._refusal:
            raise TargetError(f"relax.compile: {self._refusal}")
        if len(inputs) == len(self.names) - len(self.parameters):
            inputs = (*inputs, *self.parameters.values())
        return super().__call__(*inputs)

    def export(self, path: Any) -> None:
        """Write the module as a shared library for `relax.load`, with the C compiler; without parameters that are
        inputs. Raises DataError if it cannot be written."""
        try:
            self._executable.export_library(str(Path(path)))
        except RuntimeError as error:  # the C compiler's message begins in the second line
            message = str(error).splitlines()[1:2] or [str(error)]
            raise DataError(f"{path} cannot be written: {message[0]}") from None

    def __str__(self) -> str:
        """How many kernels each rule has scheduled: `kernels: 1 contraction`."""
        return f"kernels: {', '.join(f'{count} {rule}' for rule, count in sorted(self.rules.items()))}"


def compile(
    nodes_or_module: Node | Sequence[Node] | tvm.IRModule | Any,
    target: Any = "llvm",
    fuse: bool = True,
    schedule: str = "rules",
    database: Any = None,
    *,
    feed_shapes: Mapping[Any, Any] | None = None,
    params: str = "inputs",
) -> Compiled:
    """The nodes, an `nn.Module` in evaluation, or a Relax module with a function `main`, compiled by Relax.

    Args:
        target: as in `kernels.get`.
        fuse: whether Relax's passes fuse operators.
        schedule: "rules" for our schedule rules, applied after Relax's fusion; "default" for TVM's plain loops.
        database: a folder of `relax.tune`, whose schedules come first.
        feed_shapes: for nodes, see `to_relax`; for an `nn.Module` a shape or an array for each argument of `forward`,
            by name, as for `freeze`.
        params: see `to_relax`. Those of an `nn.Module` have its names, as identifiers: `_0_weight`.

    Raises TargetError for an unknown target, GraphError for other wrong arguments, DataError for a folder of a search
    that cannot be used, and what `to_relax` raises.
    """
    if schedule not in ("rules", DEFAULT.name):
        raise GraphError(f"relax.compile: schedule is one of rules, {DEFAULT.name}, not {schedule!r}")
    resolved, stored = resolve_target(target), None if database is None else opened(database)
    module, joined = fused("relax.compile", nodes_or_module, resolved, feed_shapes, params, fuse)
    functions, rules = dict(joined.functions_items()), Counter[str]()
    for name, kernel in kernels_of(joined).items():
        if stored is not None and (best := tuned(stored, kernel, resolved)) is not None:
            functions[name], rule = best, "metaschedule"
        elif schedule == DEFAULT.name:
            functions[name], rule = kernel, schedule
        else:
            functions[name], chosen = apply(kernel, resolved)
            rule = chosen.name
        rules[rule] += 1
    return Compiled({"translated": module, "fused": joined, "scheduled": tvm.IRModule(functions)}, resolved, rules)
