"""CUDA without a GPU: kernels, training and planted faults on an emulated device (see cuda_on_cpu/README.md)."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import cuda_on_cpu
import pytest
from optional import skip

pytestmark = pytest.mark.cuda

TESTS = Path(__file__).resolve().parents[1]
CHECKS = {
    "operators": "every_operator sorts_on_the_host constants_of_float64",
    "products": "products every_tile tensor_cores autocast",
    "graphs": "sums rows transposes the_course_of_2017 drawn_graphs tensors_and_modules",
    "steps": "training_steps resnet9_of_the_app updates loops",
    "programs": "the_program no_allocation_after_the_first_epochs",
    "faults": """arrays arrays_of_other_libraries memory_that_is_shared a_step_is_one_call
        what_cannot_be_recorded_runs_as_before a_barrier_that_is_missing_is_found a_wait_that_is_missing_is_found
        an_index_too_far_is_found a_kernel_without_threads_is_our_error""",
}
"""The checks of each test, in a process of their own: to start one takes longer than most checks."""


def run(name: str) -> dict[str, str]:
    """What came of a group of checks: an error or nothing for each."""
    names = CHECKS[name].split()
    command = [sys.executable, "-m", "cuda_on_cpu.checks", *names]
    done = subprocess.run(command, cwd=TESTS, capture_output=True, text=True, timeout=3600, check=False)
    assert done.returncode == 0, f"the process ended with {done.returncode}: {done.stderr[-3000:]}"
    found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    assert sorted(found) == sorted(names)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", CHECKS)
def test_checks_on_the_emulated_device(name: str) -> None:
    if lacking := cuda_on_cpu.missing():
        skip(lacking)
    failures = {check: error for check, error in run(name).items() if error}
    assert not failures, failures


def test_that_all_checks_are_asked_for() -> None:
    defined = re.findall(r"^@check\ndef (\w+)", Path(TESTS, "cuda_on_cpu", "checks.py").read_text(), re.MULTILINE)
    assert sorted(defined) == sorted(" ".join(CHECKS.values()).split())
