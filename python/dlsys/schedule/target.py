"""Targets of compilation: TVM's targets, the facts of machines that schedules read from them, and their rules."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import tvm
from tvm import tirx
from tvm.target import Target, codegen

from ..devices import flushes_denormal, get_float32_matmul_precision, get_num_threads
from ..devices.machine import GPUS, HOPPER, WARP, cpu_machine
from ..devices.machine import Gpu as Gpu  # for the rules too
from ..devices.machine import Machine as Machine
from ..errors import TargetError
from ..system import cache_sizes
from . import denormals

KINDS = ("llvm", "cuda")
_HALVES = ("znver4",)  # CPUs that take a vector of 512 bits in two halves
_GENERATED = ("sse", "ssse", "avx", "fma", "f16c", "bmi", "lzcnt", "popcnt", "movbe", "gfni", "neon", "sve", "dotprod")
"""How the names of features begin whose instructions LLVM writes by itself; for others, as pku, a program asks."""
_CACHE = "cache-"  # how the keys of a target begin that tell the caches of a machine far away
TENSOR_CORES = {"high": "tf32", "medium": "bfloat16"}  # the keys of targets, by the precision of their products


def host_target(threads: int | None = None, flush: bool | None = None) -> Target:
    """This CPU, with its features, and the threads and the flushing of denormal results that are set or given."""
    return _host_target(threads or get_num_threads(), flushes_denormal() if flush is None else flush)


@cache
def _host_target(threads: int, flush: bool) -> Target:
    return _keeping(Target({"kind": "llvm", **_host_cpu(), "num-cores": threads}), flush)


def device_target(told: Mapping[str, Any], caches: Mapping[int, int]) -> Target:
    """The CPU of another machine, from its own `host_target` as JSON and the bytes of its caches by level."""
    return Target({**told, "keys": [*told["keys"], *(f"{_CACHE}{level}={size}" for level, size in caches.items())]})


def _keeping(target: Target, flush: bool) -> Target:
    """The CPU target with the key that keeps denormal numbers, unless kernels flush them."""
    if flush or denormals.KEPT in target.keys:
        return target
    return Target({**dict(target.export()), "keys": [*target.keys, denormals.KEPT]})


@cache
def _found_features() -> dict[str, bool]:
    """Whether this CPU has a feature, by LLVM's name, as CPUID and XCR0 say."""
    found = tvm.get_global_func("tvm.codegen.llvm.GetHostCPUFeatures", allow_missing=True)
    return {str(name): bool(there) for name, there in found().items()} if found else {}


def _masked(implied: Iterable[Any]) -> list[str]:
    """Those of the features that this CPU lacks. Names that CPUID does not know are tunings, and are not lacked."""
    found = _found_features()
    return sorted(name for name in map(str, implied) if not found.get(name, True))


@cache
def _host_cpu() -> dict[str, Any]:
    """This CPU for LLVM: its name, with what that implies and the CPU lacks, as hypervisors mask it, switched off."""
    named = {"mcpu": codegen.llvm_get_system_cpu()}
    masked = _masked(codegen.llvm_get_cpu_features(Target({"kind": "llvm", **named})))
    return {**named, "mattr": [f"-{name}" for name in masked]} if masked else named


def refusal(target: Target) -> str:
    """Why code for a resolved target can be read here and not run, for lack of instructions; empty where it runs."""
    if str(target.kind) != "llvm":
        return ""
    here = str(codegen.llvm_get_system_triple()).split("-")[0]
    if (kind := str(target.attrs.get("mtriple") or here).split("-")[0]) != here:
        return f"compiled for {kind}, and this machine is {here}"
    lacking = [name for name in _masked(features(str(target))) if name.startswith(_GENERATED)]
    return f"compiled for {described(target)}, and this CPU lacks {', '.join(lacking)}" if lacking else ""


def described(target: Target) -> str:
    """The CPU of a resolved target: `znver3 without pku, rdpru`, or `generic`."""
    masked = [str(name)[1:] for name in target.attrs.get("mattr") or () if str(name).startswith("-")]
    name = str(target.attrs.get("mcpu") or "generic")
    return f"{name} without {', '.join(masked)}" if masked else name


@cache
def _cuda_target(precision: str) -> Target:
    """The first CUDA device, or Hopper where there is none: compiling needs no device. Products of that precision."""
    device = tvm.cuda(0)
    arch = f"sm_{device.compute_version.replace('.', '')}" if device.exist else HOPPER
    own = [TENSOR_CORES[precision]] if precision in TENSOR_CORES else []
    return Target({"kind": "cuda", "arch": arch, "keys": ["cuda", "gpu", *own]})


def resolve_target(value: Any = "llvm") -> Target:
    """The target that `value` means: a Target; "llvm" (this CPU) or "cuda"; a tag of TVM's, as "nvidia/nvidia-h100"; a
    dict, as {"kind": "llvm", "mcpu": "znver3"}, without an "mcpu" this CPU. Raises TargetError."""
    if isinstance(value, str) and value in KINDS:
        return host_target() if value == "llvm" else _cuda_target(get_float32_matmul_precision())
    known = f"known: {', '.join(KINDS)}, a dict such as {{'kind': 'llvm', 'mcpu': 'znver3'}}, a tvm Target"
    if isinstance(value, str) and " -" in value:
        raise TargetError(f"target {value!r} has options, which are given as a dict; {known}")
    if not isinstance(value, (str, Mapping, Target)):
        raise TargetError(f"target {value!r} is a {type(value).__name__}; {known}")
    try:
        target = value if isinstance(value, Target) else Target(value if isinstance(value, str) else dict(value))
    except (ValueError, TypeError, RuntimeError) as error:  # TVM's own errors are of these kinds
        reason = str(error).split(". Target creation")[0].strip().splitlines()[0]
        raise TargetError(f"unknown target {value!r} ({reason}); {known}") from None
    kind = str(target.kind)
    if kind not in KINDS:
        raise TargetError(f"target kind {kind!r} has no schedules; {known}")
    return _keeping(_complete(target), flushes_denormal()) if kind == "llvm" else target


def _complete(target: Target) -> Target:
    """A CPU target without a CPU named is the host, unless it names another machine. Raises TargetError."""
    mcpu, triple = target.attrs.get("mcpu"), target.attrs.get("mtriple")
    default = _host_triple()
    if mcpu is None and target.attrs.get("mattr") is None and triple in (None, default):
        return Target({**dict(target.export()), **_host_cpu(), "num-cores": _threads(target)})
    if mcpu is not None and not codegen.llvm_is_valid_cpu(str(mcpu), str(triple or default)):
        # LLVM would print a line and compile for a generic CPU
        raise TargetError(
            f"LLVM knows no CPU {str(mcpu)!r} for {triple or default}; this one is "
            f"{codegen.llvm_get_system_cpu()!r}"
        )
    return target


def _threads(target: Target) -> int:
    return max(int(target.attrs.get("num-cores", 0) or 0), 0) or get_num_threads()


@cache
def features(target: str) -> frozenset[str]:
    """Those of a target's CPU, given as its text, by LLVM's names."""
    return frozenset(str(feature) for feature in codegen.llvm_get_cpu_features(Target(target)))


def machine_of(target: Target, precision: str = "") -> Machine:
    """The machine that a resolved target describes; a GPU's tensor cores round to `precision`, if that is given."""
    if str(target.kind) == "cuda":
        rounded = precision or next((key for key in TENSOR_CORES.values() if key in target.keys), "")
        gpu = GPUS.get(str(target.attrs.get("arch")), GPUS[HOPPER])
        version = int("".join(filter(str.isdigit, str(target.attrs.get("arch") or HOPPER))))
        known = tuple(name for name in GPUS if int(name.removeprefix("sm_")) <= version)
        return Machine("cuda", 32 * WARP, 255, 1, tensor_cores=rounded, gpu=gpu, features=known)
    mcpu, triple = str(target.attrs.get("mcpu")), str(target.attrs.get("mtriple") or _host_triple())
    own = triple == _host_triple() and mcpu == _host_cpu()["mcpu"]  # else nothing tells its caches
    told = [key.removeprefix(_CACHE).split("=") for key in target.keys if key.startswith(_CACHE)]
    caches = {int(level): int(size) for level, size in told} or (cache_sizes() if own else {})
    return cpu_machine(features(str(target)), _threads(target), mcpu in _HALVES, caches)


@cache
def _host_triple() -> str:
    return str(Target("llvm").attrs.get("mtriple"))


class ScheduleWarning(UserWarning):
    """A rule took a function and failed: its kernel is right, and slower than it should be."""


@dataclass(frozen=True)
class Rule:
    """A way to turn the plain loops of functions with sums, without, or (None) of both into loops for a kind of target,
    "" for every one. `schedule` returns the function with its loops for a machine, or None where it declines."""

    name: str
    target: str
    schedule: Callable[[tirx.PrimFunc, Machine], tirx.PrimFunc | None]
    sums: bool | None = None
