"""Machines that a test of a rule is about: it says what it is given, so that it fails anywhere or nowhere."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from dlsys import autodiff as ad
from dlsys.graph import Node, Shape
from dlsys.kernels.build import prim_func
from dlsys.schedule import apply, resolve_target
from dlsys.schedule.target import device_target
from tvm.target import Target

KIB, MIB = 1 << 10, 1 << 20


def simulated(
    mcpu: str = "skylake-avx512", threads: int = 1, l1: int = 32 * KIB, l2: int = MIB, l3: int = 32 * MIB
) -> Target:
    """A CPU by LLVM's name, its threads, and the bytes of its caches."""
    told = json.loads(str(resolve_target({"kind": "llvm", "mcpu": mcpu, "num-cores": threads})))
    return device_target(told, {1: l1, 2: l2, 3: l3})


SIMULATED = {
    f"{name}, {threads} threads, L3 of {l3 // MIB} MiB": simulated(mcpu, threads, l2=l2, l3=l3)
    for name, mcpu in (("AVX2", "haswell"), ("AVX-512", "skylake-avx512"))
    for threads in (2, 64)
    for l2, l3 in ((256 * KIB, 4 * MIB), (2 * MIB, 320 * MIB))
}


def loops_of(nodes: Sequence[Node], shapes: Mapping[Node, Shape], target: Target) -> str:
    """The scheduled loops of all kernels of a graph on a machine, as text."""
    executor = ad.Executor(list(nodes))
    executor.infer_shape(dict(shapes))
    specs = executor.latest_plan().specs.values()
    return "\n".join(apply(prim_func(spec), target)[0].script() for spec in specs)
