"""TVM's MetaSchedule: its contexts, and the schedules in a folder of its database.

A folder's steps can contain code, which TVM links into kernels: it is only used where it belongs to the user, see
`storage.require_own`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tvm
from tvm import tirx
from tvm.target import Target

from ..errors import DataError
from ..storage import require_own
from ..system import available_cores, cache_folder

MAIN = "main"
NAME = "metaschedule"
FILES = ("database_workload.json", "database_tuning_record.json")
_LOGGER = logging.getLogger(__name__)  # for the search's messages, a screen for each round
_LOGGER.setLevel(logging.ERROR)


def default_folder() -> Path:
    """`metaschedule` in the user's cache. Raises DataError where there is no cache folder."""
    if (folder := cache_folder()) is None:
        raise DataError("there is no cache folder for schedules: name a folder")
    return folder / NAME


def opened(folder: Any) -> Any:
    """MetaSchedule's database of a folder, which is made where there is none. Raises DataError for one that others may
    write to, and for files that are none of MetaSchedule's."""
    from tvm.s_tir import meta_schedule

    path = Path(os.path.realpath(os.path.expanduser(folder)))
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        for place in (path, *(path / name for name in FILES if (path / name).exists())):
            require_own(place)
        return meta_schedule.database.JSONDatabase(work_dir=str(path))
    except PermissionError as error:
        raise DataError(f"{path} is not used, as a schedule's code is run: {error.strerror or error}") from None
    except (OSError, RuntimeError, TypeError, ValueError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[-1]
        raise DataError(f"{path} holds no database of MetaSchedule: {reason}") from None


def workload(function: tirx.PrimFunc) -> tvm.IRModule:
    """The module whose schedules are searched."""
    return tvm.IRModule({MAIN: function.with_attr("global_symbol", MAIN)})


def scheduler(
    folder: Any, target: Target, other: Callable[[tirx.PrimFunc], tuple[tirx.PrimFunc, str]]
) -> Callable[[tirx.PrimFunc], tuple[tirx.PrimFunc, str]]:
    """A function that returns a kernel's loops by the best schedule of a folder, and what has found them; by `other`
    where it has none. Raises what `opened` raises."""
    database = opened(default_folder() if folder is None else folder)

    def schedule(function: tirx.PrimFunc) -> tuple[tirx.PrimFunc, str]:
        found = database.query_schedule(workload(function), target, MAIN)
        if found is None:
            return other(function)
        name, made = function.attrs.get("global_symbol") if function.attrs else None, found.mod[MAIN]
        return made.with_attr("global_symbol", name) if name else made.without_attr("global_symbol"), NAME

    return schedule


def context(module: tvm.IRModule, target: Target) -> Any:
    """A task of MetaSchedule's with its usual rules for the CPU. TuneContext's own constructor would first import
    hundreds of tensor intrinsics, which takes half a minute and is not needed for float32."""
    from tvm.s_tir import meta_schedule as ms
    from tvm.s_tir.meta_schedule import TuneContext, _ffi_api
    from tvm.s_tir.meta_schedule.logging import get_logging_func

    space = ms.space_generator.PostOrderApply(
        sch_rules=ms.schedule_rule.ScheduleRule.create("llvm"),
        postprocs=ms.postproc.Postproc.create("llvm"),
        mutator_probs=ms.mutator.Mutator.create("llvm"),
    )
    made, seed, strategy = TuneContext.__new__(TuneContext), 1, ms.search_strategy.EvolutionarySearch()
    made.__init_handle_by_constructor__(
        _ffi_api.TuneContext,
        *(module, target, space, strategy, MAIN, available_cores(), seed, get_logging_func(_LOGGER)),
    )
    _ffi_api.TuneContextInitialize(made)
    return made


def built(module: tvm.IRModule, target: Target, params: Any) -> Any:
    """A candidate's machine code, made in a process of MetaSchedule's builder."""
    from tvm.s_tir.transform import RemoveWeightLayoutRewriteBlock

    return tvm.tirx.build(RemoveWeightLayoutRewriteBlock(skip_tensor_rewrite=True)(module), target=target)
