"""Kernels for many cores: enough parts for all of them, whatever the shape, and right where there are two."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import dlsys
import numpy as np
import pytest
import tvm
import tvm_ffi
from dlsys import autodiff as ad
from dlsys import compute, optim
from dlsys.graph import Node
from dlsys.kernels.build import prim_func
from dlsys.schedule import apply, host_target
from dlsys.schedule.machine_code import compiled
from dlsys.schedule.target import device_target
from helpers import on_threads
from machines import simulated
from tvm import te, tirx

Build = Callable[..., "list[Node]"]


def _product(a: Node, b: Node, trans_a: bool = False, trans_b: bool = False) -> list[Node]:
    return [ad.relu_op(ad.matmul_op(a, b, trans_a, trans_b))]


def _convolution(*geometry: Any, **more: Any) -> Build:
    """The values and both gradients."""

    def build(x: Node, f: Node) -> list[Node]:
        y = ad.conv2d_op(x, f, *geometry, **more)
        return [ad.relu_op(y), *ad.gradients(y * y, [x, f])]

    return build


CASES: dict[str, tuple[Build, tuple[tuple[int, ...], ...]]] = {
    "few rows": (_product, ((32, 400), (400, 1024))),
    "few rows, by columns": (lambda a, b: _product(a, b, False, True), ((31, 512), (1000, 512))),
    "few columns": (_product, ((1024, 500), (500, 33))),
    "square": (lambda a, b: _product(a, b, True, False), ((256, 256), (256, 250))),
    "by rows of k": (lambda a, b: _product(a, b, True, False), ((700, 130), (700, 100))),
    "a long sum": (_product, ((64, 2048), (2048, 64))),
    "a long sum of no parts": (_product, ((60, 3001), (3001, 60))),
    "a long sum, odd": (lambda a, b: _product(a, b, False, True), ((50, 3000), (60, 3000))),
    "a vector": (lambda a, b: [ad.matmul_op(a, b)], ((1, 2304), (2304, 2304))),
    "a vector, and what follows": (_product, ((1, 2304), (2304, 2304))),
    "few batches": (_product, ((3, 196, 180), (3, 180, 64))),
    "one image": (_convolution(1, 1), ((1, 64, 28, 28), (96, 64, 3, 3))),
    "one small image": (_convolution(1, 1), ((1, 256, 7, 7), (256, 256, 3, 3))),
    "one tap": (_convolution(1, 0), ((2, 96, 14, 14), (300, 96, 1, 1))),
    "few filters": (_convolution(2, 1), ((4, 3, 112, 112), (24, 3, 3, 3))),
    "planes": (_convolution(1, 1, 1, 20), ((4, 20, 84, 84), (20, 1, 3, 3))),
}
def _of_two(operator: Callable[..., Node]) -> Build:
    return lambda a, b: [operator([a, b])]


OTHERS: dict[str, tuple[Build, tuple[tuple[int, ...], ...], str]] = {
    "max of all": (lambda x: [ad.max_op(x)], ((1003, 1001),), "float32"),
    "min of a prime": (lambda x: [ad.min_op(x)], ((1_000_003,),), "float64"),
    "argmax of all": (lambda x: [ad.argmax_op(x)], ((1_000_000,),), "float32"),
    "argmin of two rows": (lambda x: [ad.argmin_op(x, 1)], ((2, 500_009),), "float32"),
    "sum of integers": (lambda x: [ad.sum_op(x)], ((1_000_000,),), "int32"),
    "sum of few columns of integers": (lambda x: [ad.sum_op(x, 0)], ((100_000, 30),), "int64"),
    "max down few columns": (lambda x: [ad.max_op(x, 0)], ((100_000, 8),), "float32"),
    "max over the middle": (lambda x: [ad.max_op(x, 1)], ((2, 1024, 1003),), "float32"),
    "max over the middle, whole vectors": (lambda x: [ad.max_op(x, 1)], ((2, 1024, 1024),), "float32"),
    "sum over the middle": (lambda x: [ad.sum_op(x, 1)], ((2, 512, 1003),), "float32"),
    "sum of all": (lambda x: [ad.sum_op(x)], ((1_000_000,),), "float32"),
    "two transposes": (lambda x: [ad.transpose_op(x, (0, 2, 1))], ((2, 1024, 1024),), "float32"),
    "two ragged transposes": (lambda x: [ad.transpose_op(x, (0, 2, 1))], ((2, 1023, 1025),), "float32"),
    "backwards": (lambda x: [x[:, ::-1]], ((2, 500_000),), "float32"),
    "two rows and a number each": (lambda x, b: [x + b], ((2, 500_001), (2, 1)), "float32"),
    "stack": (_of_two(ad.stack_op), ((500_000,), (500_000,)), "float32"),
    "concatenation": (_of_two(ad.concatenate_op), ((1, 500_000), (1, 500_000)), "float32"),
    "take of two rows": (
        lambda x: [ad.take_op(x, ad.Parameter(np.arange(100_000) * 7 % 9_973), 1)],
        ((2, 10_000),),
        "float32",
    ),
}
"""What is no contraction: outputs, shapes and dtype of what they are made of."""
LEAST = 10_000_000  # operations of a contraction that all cores are to share


def _executor(name: str) -> tuple[ad.Executor, dict[Node, np.ndarray]]:
    build, shapes, dtype = OTHERS[name] if name in OTHERS else (*CASES[name], "float32")
    random = np.random.default_rng(0)
    nodes = [ad.Variable(f"x{i}", shape, dtype) for i, shape in enumerate(shapes)]
    scale = 1.0 if dtype.startswith("float") else 1000.0
    feed = {node: (scale * random.standard_normal(node.attrs["shape"])).astype(dtype) for node in nodes}
    return ad.Executor(build(*nodes)), feed


def _regions(function: Any) -> list[int]:
    """The parts of each loop that threads share."""
    found = list[int]()

    def loop(item: tirx.For, visitor: Any) -> None:
        if item.kind == tirx.ForKind.PARALLEL:
            found.append(int(item.extent))
        visitor.default_visit(item)

    tvm_ffi.structural_visit(function.body, [(tirx.For, loop)])
    return found


def _parts(function: Any) -> int:
    """The most parts of a loop that threads share."""
    return max([1, *_regions(function)])


@pytest.mark.slow
def test_contractions_have_twice_as_many_parts_as_cores() -> None:
    seen = 0
    for name in CASES:
        executor, feed = _executor(name)
        executor.infer_shape({node: value.shape for node, value in feed.items()})
        plan = executor.latest_plan()
        for key, spec in plan.specs.items():
            group, _ = plan.located(key)
            flop = sum(
                node.op.flop(node, [value.shape for value in node.inputs], node.shape)
                for node in group.nodes
                if node.op.kind == "contraction"
            )
            for cores in (16, 64) if flop >= LEAST else ():
                target = simulated("skylake-avx512", cores)
                function, rule = apply(prim_func(spec), target)
                assert rule.name in ("contraction", "reduction"), (name, spec.name, rule.name)
                least = 2 * cores if name != "a long sum of no parts" else cores  # 3,001 is a prime
                assert _parts(function) >= least, (name, spec.name, cores, _parts(function))
                seen += 1
    assert seen >= 2 * len(CASES)


@pytest.mark.slow
def test_schedules_for_many_cores_run_right_on_two() -> None:
    for name in (*CASES, *OTHERS):
        executor, feed = _executor(name)
        wanted = ad.Executor(executor.eval_node_list, ctx=dlsys.numpy()).run(feed, True)
        for cores in (16, 64):
            with mock.patch("dlsys.schedule.target.get_num_threads", lambda cores=cores: cores):
                found = ad.Executor(executor.eval_node_list).run(feed, True)
            for a, b in zip(found, wanted, strict=True):
                off = 5e-6 if name in CASES or (name.startswith("sum") and b.dtype.kind == "f") else 0.0
                np.testing.assert_allclose(a, b, rtol=0, atol=off * np.abs(b).max(), err_msg=f"{name}, {cores}")


SUMS: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], tuple[int, ...]], tuple[int, ...]]] = {
    "a long sum": (lambda a, b: compute.matmul(a, b, True), ((4096, 64), (4096, 64)), (1, 2, 7)),
    "filters of two images": (
        lambda x, g: compute.conv2d_filter_gradient(x, g, (16, 16, 3, 3), padding=(1, 1)),
        ((2, 16, 56, 56), (2, 16, 56, 56)),
        (1,),
    ),
    "a product": (compute.matmul, ((300, 784), (784, 256)), (1, 2, 7, 8, 64)),
    "a convolution": (lambda x, f: compute.conv2d(x, f, (1, 1), (1, 1)), ((2, 32, 28, 28), (64, 32, 3, 3)), (1,)),
}
"""Formulas, shapes, and the numbers of threads that give the same bits."""
CACHES = {1: 32 << 10, 2: 256 << 10, 3: 4 << 20}, {1: 64 << 10, 2: 2 << 20, 3: 320 << 20}


@pytest.mark.slow
@pytest.mark.parametrize("name", SUMS)
def test_bits_depend_on_the_number_of_threads_only_where_docs_performance_says_so(name: str) -> None:
    """Of convolutions, and from eight threads on of products whose sums are cut in parts: then by rounding alone. This
    CPU with other caches, which decide how images are read."""
    formula, shapes, same = SUMS[name]
    random = np.random.default_rng(0)
    values = [random.standard_normal(shape).astype("float32") for shape in shapes]
    inputs = [te.placeholder(shape, "float32", f"x{i}") for i, shape in enumerate(shapes)]
    function = te.create_prim_func([*inputs, formula(*inputs)])
    out_shape = tuple(map(int, function.params[-1].shape))
    found, host = {}, json.loads(str(host_target()))
    for (caches, sizes), threads in itertools.product(enumerate(CACHES), (1, 2, 7, 8, 64)):
        target = device_target({**host, "num-cores": threads}, sizes)
        module = compiled({"k": apply(function, target)[0].with_attr("global_symbol", "k")}, target)
        out = tvm.runtime.empty(out_shape, "float32")
        module["k"](*map(tvm.runtime.tensor, values), out)
        found[caches, threads] = out.numpy()
    for (caches, threads), value in found.items():
        assert threads not in same or np.array_equal(value, found[caches, 1]), (caches, threads)
        np.testing.assert_allclose(value, found[0, 1], rtol=0, atol=1e-6 * float(np.abs(value).max()))
    page = (Path(__file__).parents[2] / "docs" / "performance.md").read_text(encoding="utf-8")
    assert "The bits of a convolution, and from eight threads on those of a product" in " ".join(page.split())


@pytest.mark.slow
def test_updates_follow_sums_that_many_cores_share() -> None:
    """The update of filters whose gradient is made in parts is in the sum of the parts."""
    random = np.random.default_rng(0)
    x, start = random.standard_normal((4, 8, 60, 60)).astype("float32"), random.standard_normal((8, 1, 3, 3))
    found = []
    for cores in (2, 64):
        images, filters = ad.Variable("images", x.shape), ad.Parameter(start.astype("float32"), "filters")
        loss = ad.mean_op(ad.conv2d_op(images, filters, 1, 1, groups=8) ** 2)
        step = [loss, optim.SGD([filters], lr=0.1).minimize(loss)]
        with on_threads(2), mock.patch("dlsys.schedule.target.get_num_threads", lambda cores=cores: cores):
            ad.Executor(step).run({images: x})
        found.append(filters.numpy())
    np.testing.assert_allclose(*found, rtol=0, atol=1e-5)
