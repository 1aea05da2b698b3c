"""CUDA without a GPU: kernels, training and planted faults on an emulated device (see cuda_on_cpu/README.md)."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import unittest
from pathlib import Path

import cuda_on_cpu

HERE = Path(__file__).parent


def outcomes(*names: str) -> dict[str, str]:
    """What came of checks on the emulated device, which needs a process to itself."""
    if lacking := cuda_on_cpu.missing():
        raise unittest.SkipTest(f"the emulated CUDA device needs {lacking}")
    command = [sys.executable, "-m", "cuda_on_cpu.checks", *names]
    done = subprocess.run(command, cwd=HERE, capture_output=True, text=True, timeout=3600, check=False)
    assert done.returncode == 0, f"the process ended with {done.returncode}: {done.stderr[-3000:]}"
    found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return found


def passes(*names: str) -> None:
    found = outcomes(*names)
    for name in names:
        assert found[name] == "", f"{name}: {found[name]}"


def test_every_operator_has_the_values_of_the_cpu() -> None:
    passes("every_operator", "constants_of_float64")


def test_products_sums_and_rows() -> None:
    passes("products", "every_tile", "tensor_cores", "autocast", "sums", "rows", "transposes")
    passes("arrays_between_launches", "the_programs_kernels", "the_course_of_2017")


def test_drawn_graphs_with_all_passes() -> None:
    passes("drawn_graphs")


def test_training_steps_equal_the_cpus() -> None:
    passes("training_steps", "resnet9_of_the_app", "updates", "loops")
    passes("the_program", "an_app", "no_allocation_after_the_first_epochs")


def test_arrays_and_asynchronous_runs() -> None:
    passes("arrays", "arrays_of_other_libraries", "memory_that_is_shared", "a_run_returns_before_it_is_done")


def test_a_step_is_replayed_and_feeds_are_copied_beside_it() -> None:
    passes("a_step_is_one_call", "what_cannot_be_recorded_runs_as_before", "a_missing_event_is_found")


def test_tensors_and_modules_in_pytorchs_style() -> None:
    passes("tensors_and_modules")


def test_planted_faults_are_found() -> None:
    passes(
        "a_barrier_that_is_missing_is_found",
        "a_wait_that_is_missing_is_found",
        "an_index_too_far_is_found",
        "a_missing_check_of_bounds_is_found",
        "a_store_by_two_threads_is_found",
        "a_misaligned_vector_is_found",
        "a_kernel_without_threads_is_our_error",
    )


def test_that_all_checks_are_asked_for() -> None:
    defined = re.findall(r"^@check\ndef (\w+)", Path(HERE, "cuda_on_cpu", "checks.py").read_text(), re.MULTILINE)
    asked = re.findall(r'"(\w+)"', Path(__file__).read_text())
    assert len(defined) > 30 and set(defined) <= set(asked), set(defined) - set(asked)
