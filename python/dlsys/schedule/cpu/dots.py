"""Products of small integers, by instructions that add up several terms at once (see `intrinsics`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from tvm import ir, tirx

from ..codegen import array
from ..common import renamed
from ..intrinsics import DECLARED, RESULT, Intrinsic, declared, llvm
from ..stages import Expr, Stage, iterator
from ..target import Machine


def _vpdpbusd(lanes: int, total: Expr, a: Expr, b: Expr) -> Expr | None:
    """AVX-512 VNNI's instruction: each sum of int32 plus four products of uint8 and int8; None for other widths."""
    if lanes not in (4, 8, 16):
        return None
    bytes_of = f"int8x{4 * lanes}"
    a, b = tirx.reinterpret(bytes_of, a), tirx.reinterpret(bytes_of, b)
    return llvm(f"llvm.x86.avx512.vpdpbusd.{32 * lanes}", f"{RESULT}x{lanes}", total, a, b)


def _vpmaddwd(lanes: int, total: Expr, a: Expr, b: Expr) -> Expr | None:
    """Each sum of int32 plus two products of int16, by SSE2, AVX2 or AVX-512; None for other widths."""
    names = {4: "llvm.x86.sse2.pmadd.wd", 8: "llvm.x86.avx2.pmadd.wd", 16: "llvm.x86.avx512.pmaddw.d.512"}
    if (name := names.get(lanes)) is None:
        return None
    a, b = (tirx.reinterpret(f"int16x{2 * lanes}", x) for x in (a, b))
    return total + llvm(name, f"{RESULT}x{lanes}", a, b)


for _feature in ("avx512vnni", "avxvnni"):
    declared(Intrinsic(f"vpdpbusd.{_feature}", _feature, "uint8", "int8", ("uint8", "int8"), _vpdpbusd))
for _feature in ("avx512bw", "avx2"):
    declared(Intrinsic(f"vpmaddwd.{_feature}", _feature, "int16", "int16", ("uint8", "int8"), _vpmaddwd))


def grouped(stages: Sequence[Stage], machine: Machine) -> list[Stage]:
    """Stages with a product of small integers as one of groups along k, if the machine has an instruction for it: two
    stages more, which make the groups. Any others as they are."""
    found = list[Stage]()
    for stage in stages:
        product = _product(stage, machine) if stage.reduced else None
        if product is not None:
            intrinsic, (a, b), axis = product
            kinds = (a, intrinsic.a), (b, intrinsic.b)
            packs = [_groups(load, axis, dtype, intrinsic.terms) for load, dtype in kinds]
            reads = zip((a, b), (pack.buffer for pack in packs), strict=True)
            stage = _summed(stage, intrinsic, list(reads), axis)
            found += packs
        found.append(stage)
    return found


def _product(stage: Stage, machine: Machine) -> tuple[Intrinsic, tuple[Expr, Expr], tirx.IterVar] | None:
    """The intrinsic for a sum of products of converted loads, the loads, and the axis to be taken in groups."""
    term = stage.value.b if stage.is_plain and isinstance(stage.value, tirx.Add) else None
    if not isinstance(term, tirx.Mul) or str(term.ty) != RESULT:
        return None
    factors = [one.value if isinstance(one, tirx.Cast) else one for one in (term.a, term.b)]
    if not all(isinstance(one, ir.TensorLoad) for one in factors):
        return None
    dtypes = tuple(str(one.ty) for one in factors)
    for intrinsic in DECLARED.values():
        if intrinsic.feature in machine.features and dtypes in (intrinsic.takes, intrinsic.takes[::-1]):
            a, b = factors if dtypes == intrinsic.takes else factors[::-1]
            alone = [v for v in stage.reduced if all(_at(load, v) is not None for load in (a, b))]
            axis = max(alone, key=lambda v: int(v.dom.extent), default=None)
            return None if axis is None or int(axis.dom.extent) < 2 else (intrinsic, (a, b), axis)
    return None


def _at(load: Expr, axis: tirx.IterVar) -> int | None:
    """The axis of an array along which an iterator is the index, and is in no other one."""
    found = [i for i, index in enumerate(load.indices) if axis.var in tirx.analysis.undefined_vars(index)]
    return found[0] if len(found) == 1 and load.indices[found[0]].same_as(axis.var) else None


def _groups(load: Expr, axis: tirx.IterVar, dtype: str, terms: int) -> Stage:
    """The stage that makes an operand's groups along an axis; zeros beyond the last element."""
    at, shape = _at(load, axis), [int(extent) for extent in load.source.shape]
    assert at is not None
    size, bits = shape[at], 8 * np.dtype(dtype).itemsize
    groups = [*shape[:at], -(-size // terms), *shape[at + 1 :]]
    iters = tuple(iterator(f"i{i}", axis, extent, tirx.IterVar.DataPar) for i, extent in enumerate(groups))
    names = tuple(v.var for v in iters)
    made: Expr = None
    for i in range(terms):
        place = names[at] * terms + i
        read = tirx.BufferLoad(load.source, [*names[:at], place, *names[at + 1 :]])
        value = tirx.reinterpret(f"uint{bits}", read.astype(dtype)).astype("uint32")
        if (groups[at] - 1) * terms + i >= size:
            value = tirx.if_then_else(place < size, value, tirx.const(0, "uint32"))
        value = tirx.shift_left(value, tirx.const(bits * i, "uint32")) if i else value
        made = value if made is None else tirx.bitwise_or(made, value)
    return Stage("groups", iters, array(groups, RESULT, "groups"), names, tirx.reinterpret(RESULT, made), None)


def _summed(stage: Stage, intrinsic: Intrinsic, packs: Sequence[tuple[Expr, Any]], axis: tirx.IterVar) -> Stage:
    """The sum over groups: of each operand the load of an element and the array of its groups."""
    own = iterator("k", axis, -(-int(axis.dom.extent) // intrinsic.terms), axis.iter_type)
    names = {axis.var: own.var}
    reads = [tirx.BufferLoad(pack, [renamed(index, names) for index in load.indices]) for load, pack in packs]
    iters = tuple(own if v.var.same_as(axis.var) else v for v in stage.iters)
    return replace(stage, iters=iters, value=stage.value.a + intrinsic.term(*reads))
