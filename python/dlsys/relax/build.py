"""From a Relax module to machine code: Relax's fusion, our schedule rules, and both memory plans."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm import relax, tirx
from tvm.relax import transform
from tvm.target import Target

from ..devices import Array, array, context
from ..errors import GraphError, TargetError
from ..graph import Node
from ..hooks import hooks
from ..kernels.build import any_alignment
from ..planner import Value, plan_memory
from ..schedule import DEFAULT, apply, resolve_target
from ..schedule.machine_code import PIPELINE, compiling
from ..schedule.target import refusal
from ..system import without_lines
from .machine import MAIN, Machine
from .metaschedule import scheduler
from .translate import to_relax

SCHEDULES = ("rules", "default", "metaschedule")
LAYOUTS = {"NHWC": ["NHWC", "OHWI"]}
"""The layouts of images and of filters, by name."""
_VIEW = "relax.reshape"  # stays an operator, which Relax's virtual machine executes without a copy


class Compiled(Machine):
    """A compiled module, called as a `Machine`; `print` it for its kernels and memory.

    Attributes:
        stages: the module "translated", "fused" and "scheduled"; `stages["fused"].show()` prints one.
        parameters: copies of the parameters' values, by name. A call with the feeds alone uses them, and assignments
            are written to them.
        rules: the number of kernels that each schedule rule has scheduled; "metaschedule" stands for TVM's search.
        planned, relax_planned: bytes of memory for values between kernels and for results, by our planner and by
            Relax's.
    """

    def __init__(self, stages: dict[str, tvm.IRModule], target: Target, rules: Counter[str]) -> None:
        self.stages = stages
        self.rules = rules
        self._refusal = refusal(target)
        module, values = _without_values(stages["scheduled"])
        planned = _passes(_PLANNING)(module)
        self.planned: int = _our_plan(module["main"])
        self.relax_planned: int = _relax_plan(planned["main"])
        with compiling(target):
            self._executable = relax.build(planned, target, relax_pipeline=_passes(_LOWERING), tir_pipeline=PIPELINE)
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
        """Write the module as a shared library, `.so`, for `relax.load`, with the C compiler. It does not contain
        parameters that are inputs. Raises OSError if it cannot be written."""
        if Path(path).suffix != ".so":
            raise OSError(f"{path} cannot be written: the name of a compiled module ends in .so")
        try:
            with without_lines("Scope Saving"):
                self._executable.export_library(str(Path(path)))
        except RuntimeError as error:  # the C compiler's message begins in the second line
            told = str(error).splitlines()[1:2] or [str(error)]
            raise OSError(f"{path} cannot be written: {told[0]}") from None

    def __str__(self) -> str:
        """How many kernels each rule made, and the bytes planned, by us and by Relax."""
        kernels = ", ".join(f"{count} {rule}" for rule, count in sorted(self.rules.items()))
        count = sum(self.rules.values())
        memory = f"{self.planned:,} bytes planned, by Relax {self.relax_planned:,}"
        return f"{count} kernel{'s' * (count != 1)} ({kernels}); memory {memory}"


def compile(
    nodes_or_module: Node | Sequence[Node] | tvm.IRModule | Any,
    target: Any = "llvm",
    fuse: bool = True,
    schedule: str = "rules",
    database: Any = None,
    *,
    feed_shapes: Mapping[Any, Any] | None = None,
    params: str = "inputs",
    layout: str | None = None,
) -> Compiled:
    """The nodes, an `nn.Module` in evaluation, or a Relax module with a function `main`, compiled by Relax.

    Args:
        target: as in `kernels.get`.
        fuse: whether Relax's passes fuse operators.
        schedule: "rules" for our schedule rules, applied after Relax's fusion; "default" for TVM's plain loops;
            "metaschedule" for the schedules of `relax.tune`, and our rules for kernels that it has none for.
        database: the folder of `relax.tune`; None for the usual one.
        feed_shapes: for nodes, see `to_relax`; for an `nn.Module` a shape or an array for each argument of `forward`,
            by name, as for `freeze`.
        params: see `to_relax`. Those of an `nn.Module` have its names, as identifiers: `_0_weight`.
        layout: a key of `LAYOUTS`, to which Relax's pass ConvertLayout converts Relax's own convolutions, which modules
            of Relax's importers have; None leaves them. (For our networks `freeze` decides the layout.)

    Raises TargetError for an unknown target, GraphError for other wrong arguments, DataError for a folder of a search
    that cannot be used, and what `to_relax` raises.
    """
    if schedule not in SCHEDULES:
        raise GraphError(f"relax.compile: schedule is one of {', '.join(SCHEDULES)}, not {schedule!r}")
    if layout is not None and layout not in LAYOUTS:
        raise GraphError(f"relax.compile: layout is one of {', '.join(LAYOUTS)}, not {layout!r}")
    found = resolve_target(target)
    module, fused = fused_module(nodes_or_module, found, fuse, feed_shapes, params, layout)
    rules: Counter[str] = Counter()
    scheduled = _shaped(fused, _scheduler(schedule, database, target), rules)
    return Compiled({"translated": module, "fused": fused, "scheduled": scheduled}, found, rules)


def fused_module(
    nodes_or_module: Any,
    target: Target,
    fuse: bool,
    feed_shapes: Mapping[Any, Any] | None,
    params: str = "inputs",
    layout: str | None = None,
) -> tuple[tvm.IRModule, tvm.IRModule]:
    """The module (of nodes the translation), and the same with its operators fused. Raises GraphError for a module
    without `main` or with unknown extents."""
    if isinstance(nodes_or_module, tvm.IRModule):
        module = nodes_or_module
    elif isinstance(nodes_or_module, (Node, Sequence)) or not callable(nodes_or_module):
        module = to_relax(nodes_or_module, feed_shapes or {}, params)
    else:
        inputs, outputs, names = hooks.traced("relax.compile", nodes_or_module, feed_shapes)
        shapes = {node: node.attrs["shape"] for node in inputs}
        module = to_relax(outputs, shapes, params, names=names)
    names = [name.name_hint for name in module.get_global_vars()]
    if MAIN not in names:
        raise GraphError(f"relax.compile: the module has no function {MAIN}, but {', '.join(names) or 'none'}")
    laid_out = () if layout is None else (transform.ConvertLayout({"relax.nn.conv2d": LAYOUTS[layout]}),)
    with target:
        fused = _passes((*laid_out, *(_FUSING if fuse else _FUSING[:1])))(module)
    for name, function in kernels_of(fused).items():
        extents = [extent for value in function.params if tirx.is_buffer_var(value) for extent in value.shape]
        if not all(isinstance(extent, tirx.IntImm) for extent in extents):
            raise GraphError(f"relax.compile: {name.name_hint} takes arrays of unknown extents: {extents}")
    return module, fused


def fused_kernels(
    nodes_or_module: Any, target: Target, feed_shapes: Mapping[Node, Any] | None
) -> list[tuple[str, tirx.PrimFunc]]:
    """The kernel's name and loops for each call, in order."""
    _, fused = fused_module(nodes_or_module, target, True, feed_shapes)
    functions, called = kernels_of(fused), []

    def visit(value: Any) -> None:
        if _operator(value) in ("relax.call_tir", "relax.call_tir_inplace"):
            called.append(value.args[0])

    relax.analysis.post_order_visit(fused["main"], visit)
    return [(name.name_hint, functions[name]) for name in called]


_FUSING = (
    transform.LegalizeOps(skip_ops=[_VIEW]),
    transform.AnnotateTIROpPattern(),
    transform.FoldConstant(),
    transform.FuseOps(),
    transform.FuseTIR(),
    transform.DeadCodeElimination(),
)
_PLANNING = (
    transform.ToNonDataflow(),
    transform.RemovePurityChecking(),
    transform.CallTIRRewrite(),
    transform.StaticPlanBlockMemory(),
)
_LOWERING = (
    transform.LowerAllocTensor(),
    transform.KillAfterLastUse(),
    transform.LowerRuntimeBuiltin(),
    transform.ComputePrimValue(),
    transform.VMShapeLower(),
    transform.AttachGlobalSymbol(),
)


def _passes(passes: Sequence[tvm.transform.Pass]) -> tvm.transform.Pass:
    return tvm.transform.Sequential(list(passes))


def _without_values(module: tvm.IRModule) -> tuple[tvm.IRModule, list[Any]]:
    """The module without its parameters' values, which compilation does not need, and these values."""
    main = module["main"]
    values = list(main.attrs["params"]) if main.attrs and "params" in main.attrs else []
    return _with(module, {"main": main.without_attr("params")}), values


def _with(module: tvm.IRModule, functions: Mapping[Any, Any]) -> tvm.IRModule:
    """A copy of the module with some functions replaced."""
    other = tvm.IRModule(dict(module.functions_items()))
    for name, function in functions.items():
        other[name] = function
    return other


def kernels_of(module: tvm.IRModule) -> dict[Any, tirx.PrimFunc]:
    return {name: made for name, made in module.functions_items() if isinstance(made, tirx.PrimFunc)}


Scheduler = Callable[[tirx.PrimFunc], tuple[tirx.PrimFunc, str]]
"""Returns a function's scheduled loops, and the name of what has scheduled them."""


def _scheduler(schedule: str, database: Any, target: Any) -> Scheduler:
    """See `compile`."""
    found = resolve_target(target)

    def by_rules(function: tirx.PrimFunc) -> tuple[tirx.PrimFunc, str]:
        made, rule = apply(function, found)
        return made, rule.name

    if schedule == "default":
        return lambda function: (function, DEFAULT.name)
    if schedule == "metaschedule":
        return scheduler(database, found, by_rules)
    return by_rules


def _shaped(module: tvm.IRModule, scheduler: Scheduler, rules: Counter[str]) -> tvm.IRModule:
    """The module with every kernel scheduled, for arrays of any alignment. `rules` counts the kernels of each rule."""
    found = {}
    for name, function in kernels_of(module).items():
        found[name], rule = scheduler(any_alignment(function))
        rules[rule] += 1
    return _with(module, found)


def _nbytes(extents: Any, dtype: Any) -> int:
    return math.prod(int(extent) for extent in extents) * np.dtype(str(dtype)).itemsize


def _size(kind: Any) -> int:
    """The bytes of a value of this Relax type."""
    fields = kind.fields if isinstance(kind, relax.TupleType) else [kind]
    return sum(_nbytes(field.shape.values, field.dtype) for field in fields)


def _operator(value: Any) -> str:
    """The name of the operator that is called; empty for other values."""
    return getattr(getattr(value, "op", None), "name", "")


def _relax_plan(main: relax.Function) -> int:
    """The bytes that a planned function allocates: storages, which tensors share, and single tensors."""
    sizes = []

    def visit(value: Any) -> None:
        if _operator(value) == "relax.memory.alloc_storage":
            sizes.append(sum(int(size) for size in value.args[0].values))
        elif _operator(value) == "relax.builtin.alloc_tensor":
            sizes.append(_nbytes(value.args[0].values, value.args[1].value))

    relax.analysis.post_order_visit(main, visit)
    return sum(sizes)


def _our_plan(main: relax.Function) -> int:
    """The arena's bytes by our planner, for the same calls in the same order."""
    bindings = [binding for block in main.body.blocks for binding in block.bindings]
    owner: dict[Any, Any] = {}  # the variable in whose memory this one is; None for an input's
    made: dict[Any, int] = {}
    last: dict[Any, int] = {}
    for step, (var, value) in enumerate((binding.var, binding.value) for binding in bindings):
        read = [owner[used] for used in relax.analysis.free_vars(value) if owner.get(used) is not None]
        last.update(dict.fromkeys(read, len(bindings) if isinstance(value, relax.Tuple) else step))
        if _operator(value) == "relax.call_tir":
            owner[var], made[var], last[var] = var, step, step
        else:  # a view, another name, results together, or a parameter that was written
            owner[var] = read[0] if read and _operator(value) != "relax.call_tir_inplace" else None
    if (result := owner.get(main.body.body)) is not None:
        last[result] = len(bindings)
    values = [Value(var, _size(var.ty), step, last[var]) for var, step in made.items()]
    return plan_memory(values).bytes_planned
