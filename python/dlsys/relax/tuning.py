"""`relax.tune`: schedules searched by TVM's MetaSchedule, by its own builder, runner and database."""

from __future__ import annotations

import importlib.util
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tvm_ffi
from tvm import s_tir, tirx

from ..checks import integer
from ..errors import GraphError, TargetError
from ..executor import Executor
from ..graph import Node
from ..kernels.build import any_alignment, prim_func
from ..schedule import resolve_target
from ..schedule.target import refusal
from .build import fused_kernels
from .metaschedule import FILES, built, context, default_folder, opened, workload

ROUND = 16  # schedules of one kernel that are tried before another kernel's turn
LIMIT, MEASURED = 30, 10  # seconds that a schedule may take to compile, or to run; milliseconds that it is run for
_NEEDED = ("psutil", "cloudpickle")


class Tuning:
    """The result of a search, to `print`.

    Attributes:
        seconds: by the kernel's name, of a call with the best schedule after each one that was measured, those of
            earlier searches first.
        path: MetaSchedule's folder.
    """

    def __init__(self, seconds: dict[str, list[float]], path: Path) -> None:
        self.seconds = seconds
        self.path = path

    def __str__(self) -> str:
        """Of each kernel how many candidates were measured and the best time; where that is stored."""
        lines = []
        for name, own in self.seconds.items():
            lines.append(f"{name}: {len(own)} measured" + (f", best {1e6 * own[-1]:.1f} us" if own else ""))
        return "\n".join([*lines, f"stored in {self.path}"])


def tune(
    what: Any,
    trials: int = 64,
    database: Any = None,
    target: Any = "llvm",
    *,
    feed_shapes: Mapping[Node, Any] | None = None,
) -> Tuning:
    """Search by MetaSchedule for schedules of the kernels that have sums, and store them in a folder of its own.

    Args:
        what: an Executor, whose kernels for its latest signature are tuned, or nodes or a Relax module, as in
            `relax.compile`, whose fused functions are tuned.
        trials: how many schedules to try for all kernels together.
        database: the folder; None for `metaschedule` in the user's cache. A search goes on from what is there.
        target: as in `kernels.get`.
        feed_shapes: for nodes, see `to_relax`; for an Executor, see `infer_shape`.

    `relax.compile(..., schedule="metaschedule", database=...)` uses the schedules. MetaSchedule starts processes that
    import the program's main file: guard it by `if __name__ == "__main__"`. Raises GraphError for arguments that cannot
    be tuned, TargetError for a CPU that this machine cannot run, DataError for a folder that cannot be used.
    """
    integer("relax.tune", "trials", trials, 1)
    if absent := [name for name in _NEEDED if importlib.util.find_spec(name) is None]:
        raise GraphError(f"relax.tune needs {' and '.join(absent)}: pip install 'dlsys[relax]'")
    found, path = resolve_target(target), Path(database) if database is not None else default_folder()
    if found.kind.name != "llvm":
        raise GraphError(f"relax.tune: kernels are tuned for the CPU, not for {found.kind.name}")
    if told := refusal(found):
        raise TargetError(f"relax.tune: {told}")
    stored = opened(path)
    if isinstance(what, Executor):
        functions = [(spec.name, prim_func(spec)) for spec in what.specs(feed_shapes)]
    else:
        functions = [(name, any_alignment(made)) for name, made in fused_kernels(what, found, feed_shapes)]
    kernels, calls = dict[int, tuple[str, tirx.PrimFunc]](), dict[int, int]()
    for name, function in functions:
        if _has_sums(function) and not _in_place(function):
            key = tvm_ffi.structural_hash(tirx.PrimFunc(function.params, function.body))  # without names
            calls[key] = calls.get(key, 0) + 1
            kernels.setdefault(key, (name, function))
    if kernels:
        from tvm.s_tir import meta_schedule as ms

        measured = ms.runner.EvaluatorConfig(number=1, repeat=3, min_repeat_ms=MEASURED)
        ms.tune_tasks(
            tasks=[context(workload(function), found) for _, function in kernels.values()],
            task_weights=[float(calls[key]) for key in kernels],
            work_dir=str(path),
            max_trials_global=trials,
            num_trials_per_iter=min(ROUND, trials),
            builder=ms.builder.LocalBuilder(timeout_sec=LIMIT, f_build=built),
            runner=ms.runner.LocalRunner(timeout_sec=LIMIT, evaluator_config=measured),
            database=stored,
            cost_model="xgb" if importlib.util.find_spec("xgboost") else "random",
        )
    return Tuning({name: _history(stored, path, function) for name, function in kernels.values()}, path)


def _history(database: Any, path: Path, function: tirx.PrimFunc) -> list[float]:
    """The seconds of the best schedule after each one that was measured. The database has them by their time, its file
    in the order of measurement."""
    module, best, found = workload(function), math.inf, list[float]()
    records = [record for record in database.get_all_tuning_records() if record.run_secs]
    own = {_text(r.run_secs) for r in records if tvm_ffi.structural_equal(r.workload.mod, module)}
    for line in (path / FILES[1]).read_text(encoding="utf-8").splitlines() if own else ():
        _, (_, seconds, *_) = json.loads(line)
        if seconds and _text(seconds) in own:
            best = min(best, *map(float, seconds))
            found.append(best)
    return found


def _text(seconds: Any) -> str:
    return " ".join(f"{float(value):.6g}" for value in seconds)


def _has_sums(function: tirx.PrimFunc) -> bool:
    blocks: list[s_tir.SBlock] = []
    tvm_ffi.structural_walk(function.body, (s_tir.SBlock, blocks.append))
    return any(block.init is not None for block in blocks)


def _in_place(function: tirx.PrimFunc) -> bool:
    return bool(function.attrs) and "tirx.noalias" in function.attrs and not function.attrs["tirx.noalias"]
