"""`benchmarks/roofline.py`: its model counts what loops do, and predicts a training step."""

from __future__ import annotations

import re

import pytest
import roofline
from dlsys import TargetError
from dlsys import autodiff as ad
from dlsys.kernels.build import prim_func
from dlsys.schedule import apply, machine_of
from helpers import error_of
from machines import simulated


def test_the_model_counts_what_the_loops_do() -> None:
    """Of a product in tiles all multiply-adds, of a sum of columns all additions, in the parts that threads share."""
    a, b, x = ad.Variable("a", (256, 512)), ad.Variable("b", (512, 256)), ad.Variable("x", (4096, 1024))
    target = simulated("skylake-avx512", 16)
    machine = machine_of(target)
    executor = ad.Executor([ad.matmul_op(a, b), ad.reducesum_op(x, 0)])
    executor.infer_shape({a: (256, 512), b: (512, 256), x: (4096, 1024)})
    product, columns = (
        roofline.regions(apply(prim_func(spec), target)[0]) for spec in executor.latest_plan().specs.values()
    )
    packed, multiplied = product
    assert multiplied.parts >= 32 and packed.arithmetic == 512 * 256
    assert 256 * 256 * 512 <= multiplied.arithmetic <= 1.02 * 256 * 256 * 512  # and what is cleared and stored
    assert sum(multiplied.arrays.values()) == 4 * (256 * 512 + 512 * 256 + 256 * 256)
    assert sum(region.arithmetic for region in columns) >= 4096 * 1024
    one, some, many = (roofline.Cores(machine, count) for count in (1, 16, 64))
    assert 8 < one.seconds(multiplied) / some.seconds(multiplied) < 16
    alone = roofline.Region(arithmetic=10**6)
    limits = many.limits(alone)
    assert many.seconds(alone) == one.seconds(alone) == max(limits.values()) == limits["few parts"]
    much = roofline.Region(parts=64, arrays={"array": 2**32})
    limits = many.limits(much)
    assert one.seconds(much) == 2**32 / one.memory and max(limits.values()) == limits["memory"]


@pytest.mark.slow
def test_roofline_predicts_a_step_on_many_cores(capsys: pytest.CaptureFixture[str]) -> None:
    seconds = []
    for cores in (1, 8, 64):
        roofline.main(roofline.arguments(["--cores", str(cores), "--batch", "1000"]))
        *_, last = capsys.readouterr().out.strip().splitlines()
        found = re.fullmatch(r"a step of mlp, batch 1000: ([\d.]+) us at least on (\d+) cores .*: a prediction", last)
        assert found is not None and found[2] == str(cores), last
        seconds.append(float(found[1]))
    assert seconds[0] > 4 * seconds[1] > 4 * seconds[2], seconds


def test_machines_that_are_unknown_are_named() -> None:
    for arch, cores, told in (("sm_50", None, "no data of 'sm_50'; known: sm_90"), ("sm_90", 8, "--cores is for")):
        assert told in error_of(TargetError, roofline.report, "mlp", 1, "cuda", arch, cores)
