"""A kernel's specification: its formula, types and target. Only what says so needs TVM's compiler."""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

from .. import compute
from ..devices import flushes_denormal, get_num_threads
from ..graph import Shape
from ..scopes import scopes
from ..system import cache_sizes, cpu, lazy
from ..tvm_import import with_compiler

ArrayType = tuple[Shape, str]
"""The shape and dtype of an array."""
MOST_COUNTED = 2**31 - 2**16  # elements of an array that loops number in 32 bits, whatever a tile adds


@dataclass(frozen=True)
class KernelSpec:
    """A kernel to be built, from shape and dtype of each input.

    Attributes:
        key: with `inputs`, what tells its formula from others; `te` is not compared.
        te: the formula, from one `te.Tensor` per input to the output's, or to a tuple of outputs'.
        in_place: whether an output may lie on an input, which the compiler is then told.
        outputs: as the inputs.
        flat: whether the one axis of each array stands for all that its owner has.
        loops: makes TVM's PrimFunc of what has no formula, which is compiled as it is.
        host: a function of NumPy's arrays, the inputs, which returns the output: it is called in a kernel's place, and
            nothing is compiled.
        elementwise: whether an element of the result is computed from those at its place alone: it may lie on an input.
        precision: to what a GPU may round the inputs of its product, see `scopes.precision`; empty for float32.
    """

    name: str
    key: Hashable
    inputs: tuple[ArrayType, ...]
    te: Callable[..., compute.Tensor | tuple[compute.Tensor, ...]]
    in_place: bool = False
    outputs: tuple[ArrayType, ...] = field(kw_only=True)
    flat: bool = False
    elementwise: bool = False
    precision: str = ""
    loops: Callable[[], Any] | None = field(default=None, compare=False)
    host: Callable[..., Any] | None = field(default=None, compare=False)

    @property
    def formula(self) -> Hashable:
        """All that the kernel's code depends on: everything but its name."""
        return self.key, self.inputs, self.in_place

    @lazy
    def digest(self) -> str:
        """A hash of the formula, the same in all processes."""
        return hashlib.sha256(repr(self.formula).encode()).hexdigest()[:12]

    @lazy
    def symbol(self) -> str:
        """The kernel's name in machine code: like its own, and another for every formula."""
        name = re.sub(r"\W", "_", self.name, flags=re.ASCII)
        return f"k_{name}_{self.digest}"


@dataclass(frozen=True)
class TargetName:
    """How kernels are compiled: for a target of a kind, "llvm" or "cuda", by our schedules or TVM's, with functions
    that check their arguments or not, which a third of the time to compile a small kernel goes to.

    Attributes:
        text: tells it from others, in the names of kernels on disk too.
        made: makes TVM's `Target` of it, which needs the compiler.
        refusal: why its code can be read here and not run; empty where it runs.
        rules: the number of the rules and instructions in use, see `schedule.version`; 0 for those of dlsys.
    """

    kind: str
    text: str
    made: Callable[[], Any] = field(compare=False)
    refusal: str
    ours: bool
    checked: bool
    rules: int = 0

    @property
    def is_kept(self) -> bool:
        """Whether its kernels are kept on disk: machine code that this CPU runs, and no program's own rule has made."""
        return self.kind == "llvm" and not self.refusal and not self.rules

    @property
    def target(self) -> Any:
        """TVM's Target."""
        return self.made()


def target_name(target: Any, checked: bool = False) -> TargetName:
    """The target that `kernels.get` was given, by name, as it may be already; for "llvm", without TVM's compiler.
    Raises TargetError."""
    if isinstance(target, TargetName):
        return target
    ours = scopes.own_schedules
    if isinstance(target, str) and target == "llvm" and cpu():
        threads, flush = get_num_threads(), flushes_denormal()
        kind, refusal, text = "llvm", "", f"{cpu()}\ncaches {cache_sizes()}\n{threads} threads, flushes {flush}"
        made = lambda: with_compiler("schedule").host_target(threads, flush)  # noqa: E731
    else:
        targets = with_compiler("schedule.target")
        found = targets.resolve_target(target)
        kind, refusal, text = found.kind.name, targets.refusal(found), f"{found}\n{targets.machine_of(found)}"
        made = lambda: found  # noqa: E731
    rules = _rules(kind)
    told = f"{text}\nours {ours}, checked {checked}, rules {rules}"
    return TargetName(kind, told, made, refusal, ours, checked, rules)


def _rules(kind: str) -> int:
    """`schedule.version`, without TVM's compiler: a program that changes rules has imported it."""
    schedule = sys.modules.get(f"{__package__.rpartition('.')[0]}.schedule")
    return schedule.version(kind) if schedule is not None else 0
