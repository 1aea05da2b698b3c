"""The steps of a schedule that are taken from a file: those that our search writes, and no others.

TVM replays whatever it is given, and some of its instructions carry code: an annotation links LLVM's text into a kernel
(`pragma_import_llvm`), a layout is an object of TVM's to be read. So each step must be one of TAKEN, in which nothing
but the names of blocks is free text.
"""

from __future__ import annotations

import json
import re
from typing import Any

import tvm_ffi
from tvm import tirx

MOST_LANES = 64  # of a vector, to which the search limits itself
TAKEN = r"""
GetSBlock [] [NAME,NAME] [B]
GetLoops [B] [] [L*]
GetChildBlocks [B] [] [B*]
GetProducers [B] [] [B*]
GetConsumers [B] [] [B*]
SamplePerfectTile [L] [N,N] [V*]
SampleCategorical [] [[UNROLLED*],[SHARE*]] [V]
SampleComputeLocation [B] [] [L]
Split [L,FACTOR*] [BOOL,BOOL] [L*]
Fuse [L*] [BOOL] [L]
Reorder [L*] [] []
Parallel [L] [] []
Vectorize [L] [] []
ComputeAt [B,L] [BOOL,-1] []
ReverseComputeAt [B,L] [BOOL,-1] []
ComputeInline [B] [] []
CacheWrite [B,[]] [N,"global"] [B]
RFactor [L] [N] [B]
DecomposeReduction [B,L] [] [B]
EnterPostproc [] [] []
Annotate [B,"\"SSRSRS\""] ["meta_schedule.tiling_structure"] []
Annotate [B,BOOL] ["meta_schedule.random_compute_producer"] []
Annotate [B,N] ["meta_schedule.parallel"] []
Annotate [B,N] ["meta_schedule.vectorize"] []
Annotate [B,V] ["meta_schedule.unroll_explicit"] []
Annotate [L,UNROLLED] ["pragma_auto_unroll_max_step"] []
Annotate [L,BOOL] ["pragma_unroll_explicit"] []
Unannotate [B] ["meta_schedule.random_compute_producer"] []
Unannotate [B] ["meta_schedule.parallel"] []
Unannotate [B] ["meta_schedule.vectorize"] []
Unannotate [B] ["meta_schedule.unroll_explicit"] []
"""
"""Instruction, inputs, attributes and outputs as JSON, with words of _WORDS; a word with * for any number of them."""

_WORDS = {
    "B": r'"b\d{1,7}"',  # a block that an earlier step has named; likewise a loop, a number that was drawn
    "L": r'"l\d{1,7}"',
    "V": r'"v\d{1,7}"',
    "N": r"\d{1,6}",
    "BOOL": r"(?:true|false|0|1)",
    "NAME": r'"\w{1,1000}"',
    "UNROLLED": r"(?:0|16|64|512)",
    "SHARE": r"[01]\.\d{1,20}",
    "FACTOR": r'(?:"v\d{1,7}"|"None"|null|\d{1,2})',
}
def _pattern(part: str) -> str:
    """A step of TAKEN as a regular expression."""

    def of(found: re.Match[str]) -> str:
        word = _WORDS.get(found[0].rstrip("*"))
        if word is None:
            return re.escape(found[0])
        return f"(?:{word}(?:,{word})*)?" if found[0].endswith("*") else word

    return re.sub(r'"(?:\\.|[^"])*"|[A-Z]+\*?|.', of, part)


_STEP = re.compile(
    "|".join(rf'\["{name}",{_pattern(",".join(rest))}\]' for name, *rest in map(str.split, TAKEN.strip().splitlines()))
)


def foreign(steps: Any) -> str:
    """The first of a schedule's steps and decisions that our search does not write, as text; empty where there is none.
    Raises TypeError or ValueError for what is no list of steps and decisions."""
    made, decisions = steps
    if not isinstance(made, list) or not isinstance(decisions, list):
        raise TypeError("steps and decisions are lists")
    for step in made:
        text = json.dumps(step, separators=(",", ":"))
        if not _STEP.fullmatch(text):
            return text
    return next((json.dumps(decision) for decision in decisions if not _is_decision(decision, made)), "")


def _is_decision(decision: Any, made: list[Any]) -> bool:
    """Whether it is [number of a step, what it drew], which TVM does not check: it reads memory there, and divides by
    extents."""
    if not isinstance(decision, list) or len(decision) != 2:
        return False
    number, drawn = decision
    if type(number) is not int or not 0 <= number < len(made):
        return False
    kind, _, attributes, _ = made[number]
    if kind == "SamplePerfectTile":
        fits = isinstance(drawn, list) and len(drawn) == attributes[0]
        return fits and all(type(extent) is int and 0 < extent < 2**31 for extent in drawn)
    if kind == "SampleCategorical":
        return type(drawn) is int and 0 <= drawn < len(attributes[0])
    return kind == "SampleComputeLocation" and type(drawn) is int and -2 <= drawn < 2**20


def has_long_vectors(function: tirx.PrimFunc) -> bool:
    """Whether a loop of a scheduled function is a longer vector than the search makes: LLVM could take forever."""
    found: list[tirx.For] = []
    tvm_ffi.structural_walk(function.body, (tirx.For, found.append))
    vectors = [loop.extent for loop in found if loop.kind == tirx.ForKind.VECTORIZED]
    return any(not isinstance(extent, tirx.IntImm) or int(extent) > MOST_LANES for extent in vectors)
