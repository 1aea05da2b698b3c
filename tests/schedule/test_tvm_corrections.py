"""What `schedule.machine_code` corrects of TVM 0.27: ours is right, and TVM without the correction still is not. Where
the second fails, a later TVM needs it no more, and it can go."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi
from dlsys import tvm_op
from dlsys.schedule import denormals, machine_code
from dlsys.schedule.cuda import nvrtc
from dlsys.schedule.machine_code import NO_SLP
from dlsys.schedule.target import host_target
from helpers import python
from tvm import tirx
from tvm.target import Target

AVX2 = {"kind": "llvm", "mcpu": "x86-64-v3"}
LANES = 8


def function(arrays: Sequence[Any], body: tirx.Stmt) -> tirx.PrimFunc:
    return tirx.PrimFunc(list(arrays), body).with_attr({"global_symbol": "main", "tirx.noalias": True})


def ours(made: tirx.PrimFunc) -> Any:
    return machine_code.compiled({"main": made}, Target(AVX2))


def plain(made: tirx.PrimFunc, *options: str) -> Any:
    """By TVM alone, with options of LLVM's."""
    target = Target({**AVX2, "cl-opt": list(options)}) if options else Target(AVX2)
    return tvm.compile(tvm.IRModule({"main": made}), target=target, tir_pipeline="s_tir").mod


def array(name: str, size: int = LANES, dtype: str = "float32", scope: str = "global") -> Any:
    return tirx.decl_buffer((size,), dtype, name, data_alignment=4, scope=scope)


def loop(size: int, body: Callable[[Any], tirx.Stmt], kind: int = tirx.ForKind.SERIAL) -> tirx.Stmt:
    index = tirx.Var("i", "int32")
    return tirx.For(index, 0, size, kind, body(index))


def pointwise(value: Callable[..., Any], out: str = "float32") -> tirx.PrimFunc:
    """`out` of a vector of elements, and where it takes them, their places."""
    x, y = array("x"), array("y", dtype=out)
    body = loop(LANES, lambda i: tirx.BufferStore(y, value(tirx.BufferLoad(x, [i])), [i]), tirx.ForKind.VECTORIZED)
    return function([x, y], body)


def run(module: Any, *inputs: np.ndarray) -> np.ndarray:
    out = np.zeros_like(inputs[0])
    module["main"](*(tvm_ffi.from_dlpack(x) for x in (*inputs, out)))
    return out


def code(module: Any, pattern: str, form: str = "ll") -> int:
    """How often a pattern stands in the code."""
    return len(re.findall(pattern, module.inspect_source(form)))


def test_the_simplifier_takes_numbers_for_exact() -> None:
    a, b, out = array("a"), array("b"), array("out")

    def store(i: Any) -> tirx.Stmt:
        x, y = tirx.BufferLoad(a, [i]), tirx.BufferLoad(b, [i])
        return tirx.BufferStore(out, (x + y) - x, [i])

    made = function([a, b, out], loop(LANES, store))
    x, y = np.full(LANES, 1e8, "float32"), np.ones(LANES, "float32")
    assert (run(ours(made), x, y) == 0).all()
    assert (run(plain(made), x, y) == 1).all()  # y, as if x were not rounded
    nan = np.full(LANES, np.nan, "float32")
    made = pointwise(lambda v: v - v)
    assert np.isnan(run(ours(made), nan)).all()
    assert (run(plain(made), nan) == 0).all()


def test_the_simplifier_negates_comparisons_without_a_thought_of_nan() -> None:
    """So `compute` negates a boolean by a choice."""
    one, zero = (tirx.const(number, "float32") for number in (1.0, 0.0))
    nan = np.full(LANES, np.nan, "float32")
    negated = pointwise(lambda v: tirx.Select(tirx.Not(v < one), one, zero))
    chosen = pointwise(lambda v: tirx.Select(tirx.Select(v < one, tirx.const(False), tirx.const(True)), one, zero))
    assert (run(plain(negated), nan) == 0).all()  # v >= 1
    assert (run(plain(chosen), nan) == 1).all()


ONE_BY_ONE = """
import tvm
from tvm import tirx
from tvm.target import Target
x, y = (tirx.decl_buffer((8,), "float32", name, data_alignment=4) for name in "xy")
i = tirx.Var("i", "int32")
element = tirx.BufferLoad(x, [i])
value = tirx.nearbyint(tirx.Select(tirx.isnan(element), tirx.ldexp(element, tirx.const(2, "int32")), element))
body = tirx.For(i, 0, 8, tirx.ForKind.VECTORIZED, tirx.BufferStore(y, value, [i]))
made = tvm.IRModule({"main": tirx.PrimFunc([x, y], body).with_attr("global_symbol", "main")})
target = Target({"kind": "llvm", "mcpu": "x86-64-v3"})
print(tvm.compile(made, target=target, tir_pipeline="s_tir").mod.inspect_source())
"""


@pytest.mark.slow
def test_isnan_and_nearbyint_are_functions_of_vectors() -> None:
    made = ours(pointwise(lambda v: tirx.nearbyint(tirx.Select(tirx.isnan(v), v * 0.5, v))))
    assert code(made, "<8 x float> @llvm.nearbyint") and not code(made, r"float @llvm.nearbyint|fcmp uno float")
    # in a process without dlsys, which changes this for all of the process
    found = python("-c", ONE_BY_ONE).stdout
    assert "@llvm.nearbyint.f32" in found and "<8 x float> @llvm.nearbyint" not in found
    assert "call float @ldexpf" in found


def test_powers_of_two_are_an_instruction_of_avx512_or_two_products() -> None:
    """With the same bits, down to numbers that are not normal."""
    x, n, y = array("x", 512), array("n", 512, "int32"), array("y", 512)
    made = function([x, n, y], loop(512, lambda i: tirx.BufferStore(y, tirx.ldexp(x[i], n[i]), [i])))
    numbers = np.random.default_rng(0).uniform(0.7, 1.4, 512).astype("float32")
    exponents = np.linspace(-152, 127, 512).astype("int32")
    for target in (Target({**AVX2, "keys": ["cpu", denormals.KEPT]}), host_target(flush=False)):
        module = machine_code.compiled({"main": made}, target)
        assert not code(module, "call.*@ldexp")
        np.testing.assert_array_equal(run(module, numbers, exponents), np.ldexp(numbers, exponents))
    vector = loop(LANES, lambda i: tirx.BufferStore(y, tirx.ldexp(x[i], n[i]), [i]), tirx.ForKind.VECTORIZED)
    wide = {"kind": "llvm", "mcpu": "skylake-avx512"}
    found = machine_code.compiled({"main": function([x, n, y], vector)}, Target(wide))
    assert code(found, "vscalefps", "asm") and not code(found, "call.*ldexpf", "asm")


@pytest.mark.parametrize(("dtype", "least", "most"), [("float32", -152, 127), ("float64", -1077, 1023)])
def test_a_number_of_twos_is_no_integer_on_the_way(dtype: str, least: int, most: int) -> None:
    """With the same bits as by integers: of some vectors, down to numbers that are not normal."""
    x, n, y = (array(name, 64, dtype) for name in "xny")
    store = lambda i: tirx.BufferStore(y, tirx.ldexp(x[i], n[i].astype("int32")), [i])  # noqa: E731
    made = {"main": function([x, n, y], loop(64, store, tirx.ForKind.VECTORIZED))}
    found = machine_code.compiled(made, Target({"kind": "llvm", "mcpu": "skylake-avx512"}))
    assert code(found, r"\tvscalefp[sd]", "asm") == np.dtype(dtype).itemsize and not code(found, r"\tvcvt", "asm")
    numbers = np.random.default_rng(0).uniform(0.7, 1.4, 64).astype(dtype)
    twos = np.linspace(least, most, 64).round().astype(dtype)
    exact = np.ldexp(numbers, twos.astype("int32"))
    np.testing.assert_array_equal(run(machine_code.compiled(made, host_target(flush=False)), numbers, twos), exact)


def test_local_arrays_lie_on_the_stack() -> None:
    x, held = array("x", 64), array("held", 64, scope="local")
    read = loop(64, lambda i: tirx.BufferStore(held, tirx.BufferLoad(x, [i]), [i]))
    write = loop(64, lambda i: tirx.BufferStore(x, tirx.BufferLoad(held, [63 - i]), [i]))
    made = function([x], tirx.SeqStmt([tirx.AllocBuffer(held), read, write]))
    assert not code(ours(made), "BackendAllocWorkspace")
    assert code(plain(made), "BackendAllocWorkspace")


@pytest.mark.parametrize("scope", ["local", "global"])
def test_the_stack_begins_at_a_cache_line(scope: str) -> None:
    """TVM aligns its arrays there to 16 bytes; LLVM the vectors that it keeps, if an array needs it."""
    x, at, held = array("x", 64), array("at", 1, "int32"), array("held", 64, scope=scope)
    vectors = lambda n, body: loop(64 // n, lambda i: loop(n, lambda j: body(i * n + j), tirx.ForKind.VECTORIZED))  # noqa: E731
    read = vectors(8, lambda i: tirx.BufferStore(held, x[i], [i]))
    write = vectors(16, lambda i: tirx.BufferStore(x, held[(at[0] + i) % 64], [i]))
    made = function([x, at], tirx.SeqStmt([tirx.AllocBuffer(held), read, write]))
    own, theirs = ours(made), plain(made)
    assert code(own, "held.* = alloca .*align 64") == code(own, "mxcsr = alloca .*align 64") == 1
    assert code(own, r"\tandq\t\$-64, %rsp", "asm") and not code(theirs, "alloca .*align 64")
    given = np.arange(64, dtype="float32")
    own["main"](tvm_ffi.from_dlpack(given), tvm_ffi.from_dlpack(np.array([8], "int32")))
    assert (given == np.roll(np.arange(64), -8)).all()


def test_llvm_puts_no_scalars_together() -> None:
    x, y = array("x"), array("y")
    stores = [tirx.BufferStore(y, tirx.BufferLoad(x, [i]) * tirx.BufferLoad(x, [i]), [i]) for i in range(LANES)]
    made = function([x, y], tirx.SeqStmt(stores))
    assert (code(ours(made), "fmul <"), code(ours(made), "fmul float")) == (0, LANES)
    own = plain(made, NO_SLP.replace("false", "true"))  # LLVM's default, said: other kernels' options outlive them
    assert code(own, "fmul <") and not code(own, "fmul float")


def test_numbers_that_count_up_are_a_sum_of_vectors() -> None:
    y, first = array("y", 64 * LANES, "int32"), array("first", 1, "int32")

    def row(k: Any) -> tirx.Stmt:
        def store(i: Any) -> tirx.Stmt:
            number = k * LANES + i
            return tirx.BufferStore(y, number * number * tirx.BufferLoad(first, [0]), [number])

        return loop(LANES, store, tirx.ForKind.VECTORIZED)

    made = function([first, y], loop(64, row))
    assert code(ours(made), "insertelement") < LANES <= code(plain(made, NO_SLP), "insertelement")
    out = np.zeros(64 * LANES, "int32")
    ours(made)["main"](*map(tvm_ffi.from_dlpack, (np.array([3], "int32"), out)))
    assert (out == 3 * np.arange(64 * LANES) ** 2).all()


def test_a_likely_choice_is_a_branch() -> None:
    def chosen(mark: Callable[[Any], Any]) -> tirx.PrimFunc:
        return pointwise(lambda v: tirx.Select(mark(v < 1.0), v + v, tirx.sqrt(v) / v))

    marked, unmarked = chosen(tirx.likely), chosen(lambda condition: condition)
    branch = r"\bbr i1"
    assert code(plain(marked), branch) == code(plain(unmarked), branch) == code(ours(unmarked), branch)
    assert code(ours(marked), branch) == code(ours(unmarked), branch) + 1
    x = np.array([0.5, -2.0, 4.0, 16.0, 1.0, np.nan, 0.0, 9.0], "float32")
    for given in (x, np.abs(x) / 100):
        np.testing.assert_array_equal(run(ours(marked), given), run(ours(unmarked), given))


def test_float64_is_given_to_cuda_by_its_bits() -> None:
    if not nvrtc.version():
        print("no compiler for CUDA: not tried")
        return
    tiny = tvm_op.make_elemwise_add_by_const((4,), 1e-20, "cuda", "llvm", "tiny", dtype="float64")
    assert f"{np.float64(1e-20).view(np.int64)}" in tiny.source("cuda")
    target = Target({"kind": "cuda", "arch": "sm_90"})
    with machine_code.compiling(target):  # by the same compiler of CUDA C++
        module = tvm.compile(tvm.IRModule({"main": tiny._lower().function}), target=target, tir_pipeline="s_tir").mod
    assert "+ 0.000000000000000)" in module.imports[0].inspect_source("cuda")


PLACES: list[Callable[..., Any]] = [
    lambda i, div, mod: div(mod(i, 4) + 1, 2),
    lambda i, div, mod: div(mod(i, 28) + 1, 2) + div(i, 28) * 14,
    lambda i, div, mod: div(mod(i, 6) + 2, 3),
    lambda i, div, mod: div(mod(i, 12) + 9, 12) * 3 + mod(i, 3),
]


@pytest.mark.parametrize("place", PLACES)
def test_places_are_no_maps_of_iterators(place: Callable[..., Any]) -> None:
    """Where what is divided is a quotient or remainder and a number more."""
    numbers, x, y = np.arange(64, dtype="float32"), array("x", 64), array("y", 64)
    load = lambda i: tirx.BufferLoad(x, [place(i, tirx.floordiv, tirx.floormod)])  # noqa: E731
    made = function([x, y], loop(64, lambda i: tirx.BufferStore(y, load(i), [i])))
    want = numbers[[place(i, operator.floordiv, operator.mod) for i in range(64)]]
    np.testing.assert_array_equal(run(ours(made), numbers), want)
    assert not np.array_equal(run(plain(made), numbers), want)


def test_a_function_alone_is_compiled_once() -> None:
    made = pointwise(lambda v: v * 2.0).with_attr("global_symbol", "alone")
    modules = machine_code.compiled({"alone": made}, Target(AVX2)), plain(made)
    assert [code(module, r"define .*@__tvm_ffi_alone\(") for module in modules] == [1, 1]
    assert [code(module, r"define .*@__tvm_ffi_main\(") for module in modules] == [0, 1]
