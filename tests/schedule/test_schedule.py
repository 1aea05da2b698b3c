"""Schedules: every operator's scheduled kernel against its NumPy rule, and what the loops look like."""

from __future__ import annotations

import itertools
import math
import re
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any
from unittest import mock

import dlsys as dl
import numpy as np
import pytest
import tvm
from cases import Case
from dlsys import autodiff as ad
from dlsys import compute, kernels, schedule
from dlsys.errors import TargetError
from dlsys.graph import OPS, Node, handle_of
from dlsys.schedule import common, machine_code
from dlsys.schedule import target as targets
from helpers import CASES, LIKE, LOOPS, error_of, expression, inputs_of
from machines import SIMULATED, loops_of
from tvm import s_tir, te, tirx

TOLERANCE = {"float32": {"rtol": 2e-5, "atol": 2e-6}, "float64": {"rtol": 1e-11, "atol": 1e-13}}


BOTH = 2  # so many cases of an operator are compiled for both dtypes, the others for one in turn


def _function(name: str, shapes: Sequence[Any], dtypes: str | Sequence[str], build: Callable[..., Any]) -> Any:
    dtypes = [dtypes] * len(shapes) if isinstance(dtypes, str) else dtypes
    given = enumerate(zip(shapes, dtypes, strict=True))
    inputs = [te.placeholder(shape, dtype, name=f"x{i}") for i, (shape, dtype) in given]
    return te.create_prim_func([*inputs, build(*inputs)]).with_attr("global_symbol", name)


def _compile(functions: dict[str, Any]) -> Any:
    target = schedule.host_target()
    scheduled = {name: schedule.apply(function, target)[0] for name, function in functions.items()}
    return tvm.compile(tvm.IRModule(scheduled), target=target)


def _call(kernel: Any, inputs: Sequence[np.ndarray], shape: tuple[int, ...], dtype: str) -> np.ndarray:
    result = tvm.runtime.empty(shape, dtype)
    kernel(*(tvm.runtime.tensor(x) for x in inputs), result)
    return result.numpy()


def _check_operator(name: str, cases: Sequence[Case], how: str = "") -> None:
    """Kernels of the cases, which are kept on disk, by the formula and `how` they are scheduled."""
    specs, given = [], []
    for number, case in enumerate(cases):
        for dtype in list(TOLERANCE)[number % 2 : number % 2 + 1] if number >= BOTH else TOLERANCE:
            variables = case.variables()
            node = case.build(*variables)
            if not {x for x in node.inputs if not x.op.immediate} <= set(variables) or node in set(variables):
                continue  # a placeholder has no kernel, a composition several
            drawn = dict(zip(variables, case.draw(dtype), strict=True))
            inputs = [drawn[variable] for variable in node.inputs if variable in drawn]
            shape = node.op.infer_shape(node, inputs_of(node, [x.shape for x in inputs]))
            want = node.op.numpy(node, inputs_of(node, inputs))
            specs.append(kernels.KernelSpec(
                name, (how, expression(node), node.attrs.get("dtype"), want.shape, str(want.dtype)),
                tuple((x.shape, str(x.dtype)) for x in inputs),
                lambda *x, n=node, s=shape, d=want: n.op.te(n, inputs_of(n, list(x)), s, str(d.dtype)),
                outputs=((want.shape, str(want.dtype)),),
            ))  # fmt: skip
            given.append((inputs, want))
    for kernel, (inputs, want) in zip(kernels.get(specs), given, strict=True):
        kernel(*inputs, got := np.empty(want.shape, want.dtype))
        message = f"{kernel.name}: {[x.shape for x in inputs]} {want.dtype}"
        tolerance = TOLERANCE.get(str(want.dtype), {"rtol": 0})  # integers and booleans to the bit
        np.testing.assert_allclose(got, want, err_msg=message, **tolerance)


OPERATORS = [name for name in CASES if name not in (*LOOPS, *LIKE) and not OPS[name].by_numpy]


@pytest.mark.slow
@pytest.mark.parametrize("name", OPERATORS)
def test_every_operator_equals_its_numpy_rule(name: str) -> None:
    _check_operator(name, CASES[name])


FEWEST = [f"{name}.PARALLEL_WORK" for name in ("pointwise", "rows", "loops", "reduction", "packing")]
FEWEST += ["nest.PARALLEL_FLOP"]
CASES_EACH = 2  # the first of an operator that have something to share


@pytest.mark.slow
@pytest.mark.parametrize("name", OPERATORS)
def test_every_operator_in_parallel_equals_its_numpy_rule(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """TVM 0.27 has simplified the indices of loops that were fused to run in parallel to wrong ones."""
    for fewest in FEWEST:
        monkeypatch.setattr(f"dlsys.schedule.cpu.{fewest}", 2)
    shared = [case for case in CASES[name] if all(math.prod(shape) > 1 for shape in case.shapes)]
    _check_operator(name, shared[:CASES_EACH], "in parallel")


# name: input shapes, formula, NumPy's; sizes large enough to be split, with and without a remainder
LARGE: dict[str, tuple[list[tuple[int, ...]], Callable[..., Any], Callable[..., Any]]] = {
    "relu": ([(997, 251)], compute.relu, lambda x: np.where(x <= 0, 0, x)),
    "add_row": ([(301, 257), (257,)], compute.add, lambda x, y: x + y),
    "add_column": ([(300, 256), (300, 1)], compute.add, lambda x, y: x + y),
    "transpose": ([(301, 263)], lambda x: compute.transpose(x, (1, 0)), lambda x: x.T),
    "transpose_staged": ([(512, 1024)], lambda x: compute.transpose(x, (1, 0)), lambda x: x.T),
    "transpose_add": (
        [(3, 64, 48), (3, 48, 64)],
        lambda x, y: compute.add(compute.transpose(x, (0, 2, 1)), y),
        lambda x, y: x.transpose(0, 2, 1) + y,
    ),
    "column_sum": ([(1000, 256)], lambda x: compute.reduce_sum(x, (0,)), lambda x: x.sum(0)),
    "column_sum_odd": ([(997, 251)], lambda x: compute.reduce_sum(x, (0,)), lambda x: x.sum(0)),
    "row_sum": ([(300, 256)], lambda x: compute.reduce_sum(x, (1,)), lambda x: x.sum(1)),
    "row_sum_odd": ([(31, 997)], lambda x: compute.reduce_sum(x, (1,)), lambda x: x.sum(1)),
    "sum": ([(400, 256)], lambda x: compute.reduce_sum(x, (0, 1)), lambda x: x.sum()),
    "sum_odd": ([(397, 251)], lambda x: compute.reduce_sum(x, (0, 1)), lambda x: x.sum()),
    "channel_sum": ([(4, 3, 28, 28)], lambda x: compute.reduce_sum(x, (0, 2, 3)), lambda x: x.sum((0, 2, 3))),
    "channel_sum_4x4": ([(90, 5, 4, 4)], lambda x: compute.reduce_sum(x, (0, 2, 3)), lambda x: x.sum((0, 2, 3))),
    "channel_sum_3x5": ([(99, 7, 3, 5)], lambda x: compute.reduce_sum(x, (0, 2, 3)), lambda x: x.sum((0, 2, 3))),
}


@pytest.mark.slow
def test_large_and_odd_sizes_equal_numpy():
    random = np.random.default_rng(0)
    module = _compile({name: _function(name, shapes, "float32", f) for name, (shapes, f, _) in LARGE.items()})
    for name, (shapes, _, reference) in LARGE.items():
        inputs = [random.uniform(-1, 1, shape).astype("float32") for shape in shapes]
        want = np.asarray(reference(*(x.astype("float64") for x in inputs)))
        got = _call(module[name], inputs, want.shape, "float32")
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-4, err_msg=name)


@pytest.mark.slow
def test_the_next_row_is_fetched_before_the_results_are_stored() -> None:
    """Of an array that L2 does not hold, and in one pass alone: the lines of a step, and those of the row's rest."""
    for rows, (name, target) in itertools.product((600, 300, 50), SIMULATED.items()):
        machine = schedule.machine_of(target)
        step = machine.vector_bits // 8 * common.VECTORS
        x, w = ad.Variable("x", (rows, 1000)), ad.Variable("w", (1000,))
        script = loops_of([ad.layer_norm_op(x, w, w)], {x: (rows, 1000), w: (1000,)}, target)
        fetches = [line for line in script.splitlines() if "llvm.prefetch" in line]
        assert all("in0[" in line and "+ 1" in line for line in fetches)
        assert (0 < len(fetches) <= max(2 * step // 64, 3)) is (4000 * rows >= machine.l2), (name, script)
        assert script.rfind("llvm.prefetch") < re.search(r"add\[i.*\] = ", script).start()


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("size, width, padding", [(3, 28, 1), (2, 56, 1), (5, 15, 2), (3, 1, 1), (4, 3, 2)])
def test_pools_of_any_border_equal_the_numpy_rules(size: int, width: int, padding: int, stride: int) -> None:
    x = ad.Variable("x")
    values = np.random.default_rng(width).standard_normal((2, 3, width, width)).astype("float32")
    pools = [pool(x, size, stride, padding) for pool in (ad.max_pool2d_op, ad.avg_pool2d_op)]
    nodes = [*pools, *ad.gradients(pools[0] * pools[1], [x])]
    executor = ad.Executor(nodes)
    found = executor.run({x: values}, convert_to_numpy_ret_vals=True)
    want = ad.Executor(nodes, ctx="numpy").run({x: values}, convert_to_numpy_ret_vals=True)
    for one, other in zip(found, want, strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=1e-6)


def _llvm(shapes: Sequence[Any], formula: Callable[..., Any]) -> str:
    return _compile({"k": _function("k", shapes, "float32", formula)}).mod.inspect_source("ll")


def test_inner_loops_are_packed():
    matrix, lanes = (64, 257), schedule.machine_of(schedule.host_target()).lanes("float32")
    cases: dict[str, tuple[list[Any], Callable[..., Any], str]] = {
        "relu": ([matrix], compute.relu, "fcmp"),
        "relu_gradient": ([matrix, matrix], compute.relu_gradient, "fcmp"),
        "mul": ([matrix], lambda x: compute.mul_by_const(x, 2.5), "fmul"),
        "add": ([matrix, (257,)], compute.add, "fadd"),
        "sgd_update": ([matrix, matrix], lambda x, g: compute.sgd_update(x, g, 0.1), "fsub"),
        "column_sum": ([matrix], lambda x: compute.reduce_sum(x, (0,)), "fadd"),
        "row_sum": ([(64, 256)], lambda x: compute.reduce_sum(x, (1,)), "fadd"),
    }
    for name, (shapes, formula, instruction) in cases.items():
        lines = _llvm(shapes, formula).splitlines()
        widths = [int(part.split(" x float>")[0]) for line in lines if instruction in line
                  for part in line.split("<")[1:] if " x float>" in part]  # fmt: skip
        assert widths and max(widths) >= lanes, (name, widths)


@pytest.mark.slow
def test_sums_do_not_depend_on_the_number_of_threads():
    x = np.random.default_rng(0).standard_normal((1000, 256)).astype("float32")
    for axes in ((0,), (0, 1), (1,)):
        found = []
        for cores in (1, 2, 7, 64):
            target = tvm.target.Target({**dict(schedule.host_target().export()), "num-cores": cores})
            function = _function("k", [x.shape], "float32", lambda x, axes=axes: compute.reduce_sum(x, axes))
            module = tvm.compile(tvm.IRModule({"k": schedule.apply(function, target)[0]}), target=target)
            found.append(_call(module["k"], [x], x.sum(axes).shape, "float32"))
        for one in found[1:]:
            np.testing.assert_array_equal(one, found[0], err_msg=str(axes))


def _silu(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x))


def _convolve(x: np.ndarray, f: np.ndarray, stride: tuple[int, int], padding: tuple[int, int]) -> np.ndarray:
    padded = np.pad(x, ((0, 0), (0, 0), *((p, p) for p in padding)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, f.shape[2:], axis=(2, 3))
    return np.einsum("ncyzij,ocij->noyz", windows[:, :, :: stride[0], :: stride[1]], f, optimize=True)


def _conv_same(x: Any, f: Any) -> Any:
    return compute.conv2d(x, f, (1, 1), (1, 1))


def _gated(z: Any) -> Any:
    return compute.mul(z, compute.sigmoid(z))


def _update(x: Any, grad: Any, w: Any) -> Any:
    decayed = compute.add(compute.matmul(x, grad, True), compute.mul_by_const(w, 0.5))
    return compute.sub(w, compute.mul_by_const(decayed, 0.25))


# name: input shapes, formula, NumPy's
FUSED: dict[str, tuple[list[tuple[int, ...]], Callable[..., Any], Callable[..., Any]]] = {
    "bias_relu": (
        [(50, 70), (70, 37), (37,)],
        lambda x, w, b: compute.relu(compute.add(compute.matmul(x, w), b)),
        lambda x, w, b: np.maximum(x @ w + b, 0),
    ),
    "scalar_silu": (
        [(48, 64), (64, 64), ()],
        lambda x, w, s: _gated(compute.mul(compute.matmul(x, w), s)),
        lambda x, w, s: _silu(x @ w * s),
    ),
    "gate": (
        [(50, 30), (70, 30), (50, 70)],
        lambda g, w, x: compute.relu_gradient(x, compute.matmul(g, w, False, True)),
        lambda g, w, x: np.where(x > 0, g @ w.T, 0),
    ),
    "update": (
        [(100, 70), (100, 37), (70, 37)],
        _update,
        lambda x, g, w: w - 0.25 * (x.T @ g + 0.5 * w),
    ),
    "conv_bias_residual": (
        [(2, 8, 14, 14), (32, 8, 3, 3), (32, 1, 1), (2, 32, 14, 14)],
        lambda x, f, b, y: compute.relu(compute.add(compute.add(_conv_same(x, f), b), y)),
        lambda x, f, b, y: np.maximum(_convolve(x, f, (1, 1), (1, 1)) + b + y, 0),
    ),
    "conv_silu": (
        [(2, 3, 13, 17), (10, 3, 3, 3)],
        lambda x, f: _gated(_conv_same(x, f)),
        lambda x, f: _silu(_convolve(x, f, (1, 1), (1, 1))),
    ),
}


@pytest.mark.slow
def test_strided_reads_equal_numpy():
    random, target = np.random.default_rng(3), schedule.host_target()
    inputs, functions = {}, {}
    for stride, size, rows in itertools.product((2, 3, 4), (1, 7, 16, 27, 55, 100), (1, 5)):
        x = random.standard_normal((rows, (size - 1) * stride + 2)).astype("float32")
        function = _function("k", [x.shape], "float32", partial(_every, size=size, stride=stride))
        name = f"k_{stride}_{size}_{rows}"
        functions[name], rule = schedule.apply(function.with_attr("global_symbol", name), target)
        assert rule.name == "elementwise"
        inputs[name] = x, stride, size
    module = machine_code.compiled(functions, target)
    for name, (x, stride, size) in inputs.items():
        want = x[:, ::stride][:, :size] * x[:, 1::stride][:, :size]
        np.testing.assert_array_equal(_call(module[name], [x], want.shape, "float32"), want, err_msg=name)


def _every(x: te.Tensor, size: int, stride: int) -> te.Tensor:
    return te.compute((x.shape[0], size), lambda i, j: x(i, j * stride) * x(i, j * stride + 1), name="every")


@pytest.mark.slow
def test_epilogues_join_the_contraction():
    random, target = np.random.default_rng(2), schedule.host_target()
    functions = {}
    for name, (shapes, fused, _) in FUSED.items():
        functions[name] = _function(name, shapes, "float32", fused).with_attr("tirx.noalias", False)
        assert schedule.apply(functions[name], target)[1].name == "contraction", name
    module = _compile(functions)
    for name, (shapes, _, reference) in FUSED.items():
        inputs = [random.uniform(-1, 1, shape).astype("float32") for shape in shapes]
        want = reference(*(x.astype("float64") for x in inputs))
        got = _call(module[name], inputs, want.shape, "float32")
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5, err_msg=name)
        if shapes[-1] == want.shape:  # the output may lie on what only the epilogue reads
            arrays = [tvm.runtime.tensor(x) for x in inputs]
            module[name](*arrays, arrays[-1])
            np.testing.assert_array_equal(arrays[-1].numpy(), got, err_msg=name)


@pytest.mark.slow
def test_producers_join_the_packing():
    random = np.random.default_rng(3)
    matmul: Callable[..., Any] = lambda x, w: compute.matmul(compute.relu(x), compute.mul_by_const(w, 2.0))  # noqa: E731
    conv: Callable[..., Any] = lambda x, f: compute.conv2d(compute.relu(x), f, (1, 1), padding)  # noqa: E731
    for m in (4, 48, 50):  # where B, A and neither would be read as they lie
        function = _function("k", [(m, 70), (70, 64)], "float32", matmul)
        assert schedule.apply(function, schedule.host_target())[1].name == "contraction"
        x, w = (random.uniform(-1, 1, s).astype("float32") for s in ((m, 70), (70, 64)))
        got = _call(_compile({"k": function})["k"], [x, w], (m, 64), "float32")
        np.testing.assert_allclose(got, np.maximum(x, 0) @ (2 * w), rtol=2e-5, atol=2e-5)
    for padding in ((0, 0), (1, 1)):
        x, f = (random.uniform(-1, 1, s).astype("float32") for s in ((2, 8, 14, 14), (32, 8, 3, 3)))
        function = _function("k", [x.shape, f.shape], "float32", conv)
        assert schedule.apply(function, schedule.host_target())[1].name == "contraction"
        want = _convolve(np.maximum(x, 0), f, (1, 1), padding)
        got = _call(_compile({"k": function})["k"], [x, f], want.shape, "float32")
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)


def test_targets():
    assert schedule.resolve_target("llvm").attrs["mcpu"] == schedule.host_target().attrs["mcpu"]
    assert (
        schedule.resolve_target(tvm.target.Target("llvm")).attrs["mcpu"]
        == schedule.host_target().attrs["mcpu"]
    )
    assert str(schedule.resolve_target({"kind": "cuda", "arch": "sm_80"}).kind) == "cuda"
    assert "a dict" in error_of(TargetError, schedule.resolve_target, "llvm -mcpu=znver3")
    assert "known: llvm, cuda" in error_of(TargetError, schedule.resolve_target, "bogus")
    assert "known: llvm, cuda" in error_of(TargetError, schedule.resolve_target, 3)
    assert "nope" in error_of(TargetError, schedule.resolve_target, {"kind": "llvm", "mcpu": "nope"})
    wide = schedule.machine_of(schedule.resolve_target({"kind": "llvm", "mcpu": "skylake-avx512"}))
    assert (wide.vector_bits, wide.registers, wide.lanes("float64")) == (512, 32, 8)
    narrow = schedule.machine_of(schedule.resolve_target({"kind": "llvm", "mcpu": "x86-64"}))
    assert (narrow.vector_bits, narrow.registers) == (128, 16)


def test_features_that_a_cpus_name_implies_and_cpuid_denies_are_switched_off() -> None:
    """A hypervisor may mask them; LLVM, told the name alone, uses them and the process dies."""
    found = targets._found_features()
    assert found and set(host := schedule.host_target().attrs.get("mattr", ())) <= {f"-{name}" for name in found}
    assert not any(found[str(name)[1:]] for name in host)
    if not found.get("avx2"):
        print("no AVX2: nothing to mask")
        return
    wide = schedule.machine_of(schedule.host_target()).vector_bits
    for name in (targets._host_cpu, targets._host_target, targets._found_features):
        name.cache_clear()
    off = {name: there and not name.startswith(("avx", "fma", "vaes", "vpclmul")) for name, there in found.items()}
    try:
        with mock.patch.object(targets, "_found_features", lambda: off):
            target = schedule.host_target()
            assert schedule.machine_of(target).vector_bits == 128 < wide
            assert {"-avx2", "-fma"} <= set(map(str, target.attrs["mattr"])) and "avx2" in targets.described(target)
            function = _function("k", [(64, 64)] * 2, "float32", lambda x, y: compute.matmul(x, y, False, False))
            code = machine_code.compiled({"k": schedule.apply(function, target)[0]}, target).inspect_source("asm")
            assert "%xmm" in code and "%ymm" not in code and "vfmadd" not in code
            assert "lacks avx" in targets.refusal(schedule.resolve_target({"kind": "llvm", "mcpu": "haswell"}))
    finally:
        targets._host_cpu.cache_clear(), targets._host_target.cache_clear()
    assert schedule.machine_of(schedule.host_target()).vector_bits == wide


def test_code_for_another_cpu_can_be_read_and_is_not_run() -> None:
    own = (((32,), "float32"),)
    spec = kernels.KernelSpec("double", "double_elsewhere", own, lambda x: compute.add(x, x), outputs=own)
    foreign = next(
        name
        for name in ("sapphirerapids", "diamondrapids", "knl", "apple-m1")
        if targets.refusal(schedule.resolve_target({"kind": "llvm", "mcpu": name}))
    )
    (kernel,) = kernels.get([spec], {"kind": "llvm", "mcpu": foreign})
    x = np.ones(32, "float32")
    assert f"double: compiled for {foreign}, and this CPU lacks " in error_of(TargetError, kernel, x, x * 0)
    assert kernel.source("asm") and "T.vectorized" in kernel.script()
    x, y = ad.Variable("x"), ad.Variable("y")
    elsewhere = dl.relax.compile(x * y, {"kind": "llvm", "mcpu": foreign}, feed_shapes={x: (32,), y: (32,)})
    ones = np.ones(32, "float32")
    assert f"compiled for {foreign}" in error_of(TargetError, elsewhere, ones, ones)
    assert targets.refusal(schedule.host_target()) == ""


def test_a_rule_that_takes_a_function_and_fails_is_told() -> None:
    """It is an error in all tests (see helpers.py); for a user a later rule has the kernel."""

    def fail(func: tirx.PrimFunc, machine: schedule.Machine) -> None:
        s_tir.Schedule(func).get_sblock("no such block")

    broken = schedule.Rule("broken", "llvm", fail)
    function = _function("twice", [(3, 4)], "float32", lambda x: compute.add(x, x))
    with mock.patch.dict(schedule.RULES, llvm=(broken, *schedule.RULES["llvm"])):
        text = error_of(schedule.ScheduleWarning, schedule.apply, function, schedule.host_target())
        assert "the rule broken failed, a slower one has the kernel" in text
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            scheduled, rule = schedule.apply(function, schedule.host_target())
    assert len(told) == 1 and rule.name == "elementwise" and "T.vectorized" in scheduled.script()
    assert schedule.apply(function, schedule.resolve_target("cuda"))[1].name == "pointwise"  # not its target


def test_results_without_elements_beside_one_with_some() -> None:
    def both(x: te.Tensor) -> list[te.Tensor]:
        return [te.compute((n, 3), lambda i, j: x[j] * 2.0, f"of_{n}") for n in (2, 0)]

    x = te.placeholder((3,), "float32", name="x")
    function = te.create_prim_func([x, *both(x)])
    assert schedule.apply(function, schedule.host_target())[1].name == "elementwise"


@pytest.mark.slow
def test_squares_are_transposed_in_registers() -> None:
    """Of float32 and int32, on vectors of 16, 8 and 4 numbers: none is put into a register by itself."""
    random = np.random.default_rng(0)
    x, w, p = ad.Variable("x", (64, 96)), ad.Variable("w", (48, 64)), ad.Variable("p", (3, 16, 64))
    cases: list[tuple[Callable[[], Node], Callable[[Any, Any, Any], np.ndarray]]] = [
        (lambda: ad.transpose_op(x, (1, 0)), lambda a, b, c: a.T),
        (lambda: ad.transpose_op(p, (0, 2, 1)), lambda a, b, c: c.transpose(0, 2, 1)),
        (lambda: ad.matmul_op(w, x), lambda a, b, c: b @ a),
        (lambda: ad.matmul_op(ad.transpose_op(x, (1, 0)), w, trans_B=True), lambda a, b, c: a.T @ b.T),
    ]
    for dtype, count in (("int32", 1), ("float32", 4), ("float64", 4)):
        arrays = [random.integers(-9, 9, v.attrs["shape"]).astype(dtype) for v in (x, w, p)]
        for build, reference in cases[:count]:
            executor = ad.Executor([build()])
            feed = dict(zip((x, w, p), arrays, strict=True))
            executor.infer_shape(feed)
            (spec,) = executor.latest_plan().specs.values()
            wanted = np.ascontiguousarray(reference(*arrays))
            plan = executor.latest_plan()
            fed = {leaf: handle_of(node) for node, leaf in plan.leaves.items()}
            used = [feed[fed[node]] for node in plan.groups[0].inputs]
            for cpu in ("skylake-avx512", "haswell", "x86-64"):
                kernel = kernels.get([spec], {"kind": "llvm", "mcpu": cpu, "num-cores": 1})[0]
                if dtype != "float64" and "matmul" not in spec.name:
                    assert not re.search(r"\bv?(insertps|pinsrd)\b", kernel.source("asm")), (cpu, spec.name)
                if kernel.named_target.refusal:
                    continue  # it can be read, but not run here
                kernel(*used, found := wanted * 0)
                np.testing.assert_array_equal(found, wanted)
