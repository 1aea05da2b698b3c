"""`relax.tune`: schedules searched by TVM's MetaSchedule, with its builder, runner and database.

A folder's schedules can contain code, which TVM links into kernels: a folder is used only where it belongs to the user,
see `storage.require_own`.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm.target import Target

from ..checks import integer
from ..errors import DataError
from ..schedule import resolve_target
from ..storage import require_own
from .machine import MAIN
from .translate import fused

ROUND = 16  # schedules of one kernel that are tried before another kernel's turn


def tune(
    nodes_or_module: Any, database: Any, trials: int = 64, *, feed_shapes: Mapping[Any, Any] | None = None
) -> dict[str, float]:
    """The seconds of the best schedule, measured by MetaSchedule on this CPU, of each kernel that has sums.

    Args:
        nodes_or_module: as in `relax.compile`, whose fused kernels are tuned.
        database: the folder where schedules are stored. A search starts from those that it has.
        trials: how many schedules to try for all kernels together.
        feed_shapes: as in `relax.compile`.

    `relax.compile(..., database=...)` uses the schedules. MetaSchedule starts processes that import the program's main
    file: guard it by `if __name__ == "__main__"`. Raises DataError for a folder that cannot be used, and what
    `relax.compile` raises.
    """
    integer("relax.tune", "trials", trials, 1)
    target, stored = resolve_target("llvm"), opened(database)
    _, module = fused("relax.tune", nodes_or_module, target, feed_shapes)
    from tvm.s_tir import meta_schedule as ms

    tasks = [task for task in ms.relax_integration.extract_tasks(module, target) if "T.init()" in task.mod.script()]
    if tasks:
        contexts, weights = ms.relax_integration.extracted_tasks_to_tune_contexts(tasks, str(database))
        ms.tune_tasks(
            tasks=contexts,
            task_weights=weights,
            work_dir=str(database),
            max_trials_global=trials,
            num_trials_per_iter=min(ROUND, trials),
            builder=ms.builder.LocalBuilder(f_build=_built),
            database=stored,
            cost_model="xgb" if importlib.util.find_spec("xgboost") else "random",
        )
    best = {task.task_name: stored.query_tuning_record(task.dispatched[0], target, MAIN) for task in tasks}
    return {name: min(map(float, record.run_secs)) for name, record in best.items() if record is not None}


def tuned(database: Any, kernel: tirx.PrimFunc, target: Target) -> tirx.PrimFunc | None:
    """The kernel's loops by the best schedule of a database; None if it has none."""
    schedule = database.query_schedule(tvm.IRModule({MAIN: kernel.with_attr("global_symbol", MAIN)}), target, MAIN)
    return None if schedule is None else schedule.mod[MAIN].without_attr("global_symbol")


def opened(folder: Any) -> Any:
    """MetaSchedule's database of a folder, which is created if it does not exist. Raises DataError for a folder that
    others may write to, and for files that are not MetaSchedule's."""
    from tvm.s_tir import meta_schedule

    path = Path(os.path.realpath(os.path.expanduser(folder)))
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        for place in (path, *path.iterdir()):
            require_own(place)
        return meta_schedule.database.JSONDatabase(work_dir=str(path))
    except (OSError, RuntimeError, TypeError, ValueError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[-1]
        raise DataError(f"{path} is not used as a database of MetaSchedule: {reason}") from None


def _built(module: tvm.IRModule, target: Target, params: Any) -> Any:
    """A candidate's machine code, in a process of MetaSchedule's builder. Its default first imports hundreds of tensor
    intrinsics, for longer than a candidate may take."""
    return tvm.tirx.build(s_tir.transform.RemoveWeightLayoutRewriteBlock(skip_tensor_rewrite=True)(module), target)
