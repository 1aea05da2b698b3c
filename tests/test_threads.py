"""Kernels that run in parallel, however small: what large arrays get, at the price of small ones."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from unittest import mock

import test_schedule as base
from cases import Case
from dlsys.compute import loops
from dlsys.schedule.cpu import contraction, elementwise, fallback, long_rows, matvec, reduction, rows, tiles
from dlsys.system import available_cores
from helpers import CASES

FEWEST = [
    *((module, "PARALLEL_WORK") for module in (elementwise, fallback, long_rows, loops, reduction)),
    (rows, "PARALLEL_SHORT"),
    (tiles, "PARALLEL_FLOP"),
    (matvec, "PARALLEL_BYTES"),
    (contraction, "PARALLEL_PACK"),
]
CASES_EACH = 2  # the first of an operator that have something to share


def _is_shared(case: Case) -> bool:
    return all(math.prod(shape) > 1 for shape in case.shapes)


def test_every_operator_in_parallel_equals_its_numpy_rule():
    """TVM 0.27 has simplified the indices of loops that were fused to run in parallel to wrong ones."""
    some = {name: [case for case in cases if _is_shared(case)][:CASES_EACH] for name, cases in CASES.items()}
    with ExitStack() as stack, ThreadPoolExecutor(available_cores()) as pool:
        for module, name in FEWEST:
            stack.enter_context(mock.patch.object(module, name, 2))
        stack.enter_context(mock.patch.object(base, "CASES", some))
        list(pool.map(base._check_operator, some))
