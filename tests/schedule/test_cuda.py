"""CUDA without a GPU: kernels, training and planted faults on an emulated device (see cuda_on_cpu/README.md)."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import unittest
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from pathlib import Path

import cuda_on_cpu
from dlsys.system import available_cores

TESTS = Path(__file__).resolve().parents[1]
CHECKS = {
    "operators": "every_operator constants_of_float64",
    "products": "products every_tile tensor_cores autocast",
    "rows": "sums rows transposes arrays_between_launches the_programs_kernels the_course_of_2017",
    "graphs": "drawn_graphs",
    "steps": "training_steps resnet9_of_the_app updates loops",
    "programs": "the_program an_app no_allocation_after_the_first_epochs",
    "arrays": "arrays arrays_of_other_libraries memory_that_is_shared a_run_returns_before_it_is_done",
    "replay": "a_step_is_one_call what_cannot_be_recorded_runs_as_before a_missing_event_is_found",
    "modules": "tensors_and_modules",
    "faults": """a_barrier_that_is_missing_is_found a_wait_that_is_missing_is_found an_index_too_far_is_found
        a_missing_check_of_bounds_is_found a_store_by_two_threads_is_found a_misaligned_vector_is_found
        a_kernel_without_threads_is_our_error""",
}
"""The checks of each test, which run in a process of their own: as many of these at a time as there are cores."""


def run(name: str) -> dict[str, str]:
    """What came of a group of checks: an error or nothing for each."""
    names = CHECKS[name].split()
    command = [sys.executable, "-m", "cuda_on_cpu.checks", *names]
    done = subprocess.run(command, cwd=TESTS, capture_output=True, text=True, timeout=3600, check=False)
    assert done.returncode == 0, f"the process ended with {done.returncode}: {done.stderr[-3000:]}"
    found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    assert sorted(found) == sorted(names)
    return found


@cache
def begun() -> dict[str, Future[dict[str, str]]]:
    if lacking := cuda_on_cpu.missing():
        raise unittest.SkipTest(f"the emulated CUDA device needs {lacking}")
    pool = ThreadPoolExecutor(available_cores())
    found = {name: pool.submit(run, name) for name in CHECKS}
    pool.shutdown(wait=False)
    return found


def failures(name: str) -> dict[str, str]:
    """The errors of a group's checks."""
    return {check: error for check, error in begun()[name].result().items() if error}


def test_every_operator_has_the_values_of_its_numpy_rule() -> None:
    assert not (found := failures("operators")), found


def test_products() -> None:
    assert not (found := failures("products")), found


def test_sums_rows_and_the_courses_kernels() -> None:
    assert not (found := failures("rows")), found


def test_drawn_graphs_with_all_passes() -> None:
    assert not (found := failures("graphs")), found


def test_training_steps_equal_the_cpus() -> None:
    assert not (found := failures("steps")), found


def test_programs_train() -> None:
    assert not (found := failures("programs")), found


def test_arrays_and_asynchronous_runs() -> None:
    assert not (found := failures("arrays")), found


def test_a_step_is_replayed_and_feeds_are_copied_beside_it() -> None:
    assert not (found := failures("replay")), found


def test_tensors_and_modules_in_pytorchs_style() -> None:
    assert not (found := failures("modules")), found


def test_planted_faults_are_found() -> None:
    assert not (found := failures("faults")), found


def test_that_all_checks_are_asked_for() -> None:
    defined = re.findall(r"^@check\ndef (\w+)", Path(TESTS, "cuda_on_cpu", "checks.py").read_text(), re.MULTILINE)
    assert len(defined) > 30 and sorted(defined) == sorted(" ".join(CHECKS.values()).split())
