"""A run as a function of a shared library: from Python without dlsys, and from C."""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
from pathlib import Path

import dlsys as dl
import numpy as np
import pytest
import tvm_ffi
from dlsys import autodiff as ad
from dlsys import nn, optim
from dlsys.errors import TargetError
from dlsys.graph import Node
from dlsys.schedule.target import described, host_target
from helpers import error_of, python

HERE = Path(__file__).resolve().parent
RANDOM = np.random.default_rng(0)


def regression(count: int = 32) -> tuple[ad.Executor, dict[Node, np.ndarray], Node]:
    """A step of logistic regression, the feeds of export_step.c, and the weights."""
    x, y = ad.Variable("X"), ad.Variable("y")
    w, b = ad.Parameter(np.zeros((4, 3), "float32"), "W"), ad.Parameter(np.zeros(3, "float32"), "b")
    loss = ad.softmaxcrossentropy_op(x @ w + b, y)
    rows = np.arange(count)
    images = ((rows[:, None] * 7 + np.arange(4) * 13) % 11 / np.float32(11)).astype("float32")
    labels = np.eye(3, dtype="float32")[rows * 7 % 11 // 4]
    return ad.Executor([loss, optim.SGD([w, b], lr=0.5).minimize(loss)]), {x: images, y: labels}, w


def arena_of(told: str) -> int:
    """The bytes to work in, of what `export` returned."""
    return int(re.search(r"arena: uint8\[(\d+)\]", told)[1])  # type: ignore[index]


def called(path: Path, *arrays: np.ndarray) -> None:
    """Calls the library's step."""
    step = tvm_ffi.load_module(str(path))["step"]
    step(*(tvm_ffi.from_dlpack(x) if x.size else dl.array(x).tensor for x in arrays))  # NumPy lends no empty ones


def program_of(source: Path, library: Path, *options: str) -> list[float]:
    """The numbers that a program in C prints that is linked with the library."""
    if (compiler := shutil.which("cc") or shutil.which("gcc")) is None:
        pytest.skip("there is no C compiler")
    program = library.with_name("program")
    command = [compiler, "-Wall", "-Wextra", "-Werror", *options, "-o", program, source, library]
    subprocess.run([*command, f"-I{library.parent}", f"-Wl,-rpath,{library.parent}"], check=True)
    return [float(number) for number in subprocess.check_output([program], text=True).split()]


@pytest.mark.slow
def test_a_c_program_trains(tmp_path: Path) -> None:
    """With an arena on no stack, kernels that take memory of their own, and threads: it links no library of TVM's."""
    for rows in (32, 50_000):
        executor, feeds, w = regression(rows)
        (path := tmp_path / str(rows) / "step.so").parent.mkdir()
        told = dl.export(executor, path, feeds)
        assert rows != 50_000 or arena_of(told) > 1_000_000
        found = program_of(HERE / "export_step.c", path, f"-DROWS={rows}")
        for _ in range(100):
            (loss, _) = executor.run(feeds, True)
        np.testing.assert_allclose(found, [loss[0], np.asarray(w.value)[0, 0]], rtol=1e-4)  # type: ignore[attr-defined]
        assert found[0] < 0.9


ALONE = """
import sys, numpy as np, tvm_ffi
step, given = tvm_ffi.load_module(sys.argv[1])["step"], np.load(sys.argv[2])
arrays = [tvm_ffi.from_dlpack(given[name].copy()) for name in given]
for _ in range(3): step(*arrays)
np.savez(sys.argv[2], *(np.from_dlpack(array) for array in arrays))
print({"tvm", "dlsys"} & set(sys.modules))
step(arrays[-1], *arrays[1:])
"""


@pytest.mark.slow
def test_a_process_without_dlsys_trains(tmp_path: Path) -> None:
    """It imports tvm_ffi and nothing else of TVM's; an array too much is told."""
    executor, feeds, _ = regression()
    told = dl.export(executor, path := tmp_path / "step.so", feeds)
    x, y, w, b = *feeds.values(), np.zeros((4, 3), "float32"), np.zeros(3, "float32")
    arrays = [x, y, w, b, np.array(0.5, "float32"), np.zeros(arena_of(told), "uint8"), np.zeros(1, "float32")]
    np.savez(data := tmp_path / "arrays.npz", *arrays)
    done = python("-c", ALONE, path, data, status=1)
    losses = [executor.run(feeds, True)[0][0] for _ in range(3)]
    with np.load(data) as found:
        np.testing.assert_allclose(found[found.files[-1]], losses[-1:], rtol=1e-5)
    assert done.stdout == "set()\n" and "Mismatched X.ndim on argument #0" in done.stderr


@pytest.mark.slow
def test_steps_of_networks_are_the_executors(tmp_path: Path) -> None:
    dl.manual_seed(0)
    network = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.3), nn.Flatten(),
        nn.Linear(36, 3),
    )  # fmt: skip
    x, t = ad.Variable("x"), ad.Variable("t", None, "int64")
    out = network(x)
    loss = ad.cross_entropy_op(out, t)
    step = ad.Executor([loss, optim.Adam(network.parameters(), lr=0.01).minimize(loss), out, x])
    feeds = {x: RANDOM.standard_normal((5, 3, 8, 8)).astype("float32"), t: np.arange(5) % 3}
    told = dl.export(step, path := tmp_path / "network.so", feeds)
    order = [*feeds, *(n for n in step.latest_plan().given if n.op.leaf)]
    given = [np.array(feeds[n]) if n in feeds else np.array(n.held) for n in order]
    results = [np.zeros(s, "float32") for s in ((), (5, 3), (5, 3, 8, 8))]
    signature, cpu = told.splitlines()
    assert signature.startswith("step(x: float32[5, 3, 8, 8], t: int64[5], ")
    assert signature.endswith("], result_0: float32[], result_1: float32[5, 3], result_2: float32[5, 3, 8, 8])")
    assert cpu == f"for {described(host_target())}"
    arena = np.zeros(arena_of(told), "uint8")
    for _ in range(3):
        called(path, *given, arena, *results)
        wanted = step.run(feeds, True)
    for found, other in zip(results, [wanted[0], *wanted[2:]], strict=True):
        np.testing.assert_array_equal(found, other)
    for found, node in zip(given, order, strict=True):
        if node not in feeds:
            np.testing.assert_array_equal(found, node.held)


def test_arrays_without_elements(tmp_path: Path) -> None:
    x, w = ad.Variable("x"), ad.Parameter(np.ones((3, 2), "float32"), "w")
    told = dl.export(ad.Executor([ad.relu_op(x), x @ w, w * 2.0]), path := tmp_path / "empty.so", {x: (0, 3)})
    values = "x: float32[0, 3], w: float32[3, 2], arena: uint8[24], result_0: float32[0, 3], result_1: float32[0, 2]"
    assert told.splitlines()[0] == f"step({values}, result_2: float32[3, 2])"
    x0, w0, y0, y1, y2 = (np.ones(shape, "float32") for shape in ((0, 3), (3, 2), (0, 3), (0, 2), (3, 2)))
    called(path, x0, w0, np.zeros(24, "uint8"), y0, y1, y2)
    assert (y2 == 2).all()
    told = dl.export(ad.Executor([ad.relu_op(x)]), path := tmp_path / "nothing.so", {x: (0, 3)})
    assert told.splitlines()[0] == "step(x: float32[0, 3], result_0: float32[0, 3])"
    called(path, x0, x0)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="of x86")
def test_a_library_for_another_cpu_has_that_cpus_instructions(tmp_path: Path) -> None:
    x = ad.Variable("x")
    executor, values = ad.Executor([ad.relu_op(x) * 2.0]), RANDOM.normal(size=(8, 64)).astype("float32")
    for cpu, wide in (("skylake-avx512", True), ("x86-64", False)):
        told = dl.export(executor, path := tmp_path / f"{cpu}.so", {x: values}, mcpu=cpu)
        assert told.splitlines()[1] == f"for {cpu}"
        if objdump := shutil.which("objdump"):
            code = subprocess.check_output([objdump, "-d", str(path)], text=True)
            assert ("%zmm" in code) == wide and ("%ymm" in code) <= wide, cpu
    called(path, values, np.zeros(arena_of(told), "uint8"), result := np.empty_like(values))
    np.testing.assert_array_equal(result, np.maximum(values, 0) * 2)
    assert "nope" in error_of(TargetError, dl.export, executor, "step.so", {x: values}, mcpu="nope")


def network() -> nn.Module:
    dl.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)).eval()


PREDICT = """
#include "step.h"
#include <stdio.h>
int main(void) {
  static float x[2][4] = {{1, 2, 3, 4}, {5, 6, 7, 8}}, y[2][3];
  static _Alignas(64) char arena[STEP_ARENA];
  if (step(x[0], arena, y[0]) != 0) return 1;
  for (int i = 0; i < 6; ++i) printf("%.6f\\n", y[i / 3][i % 3]);
  return 0;
}
"""


@pytest.mark.slow
@pytest.mark.parametrize("frozen", [False, True])
def test_a_c_program_predicts_with_values_of_the_library(frozen: bool, tmp_path: Path) -> None:
    module, x = network(), np.arange(1, 9, dtype="float32").reshape(2, 4)
    model, shapes = (dl.freeze(module, {"x": x}), None) if frozen else (module, {"x": x})
    told = dl.export(model, path := tmp_path / "step.so", shapes, constants=True)
    assert re.fullmatch(r"step\(x: float32\[2, 4\], arena: uint8\[\d+\], result_0: float32\[2, 3\]\)\nfor .*", told)
    assert not path.with_suffix(".safetensors").exists()
    (source := tmp_path / "predict.c").write_text(PREDICT)
    found = np.array(program_of(source, path), "float32").reshape(2, 3)
    np.testing.assert_allclose(found, module(dl.tensor(x)).numpy(), rtol=1e-4, atol=1e-5)


def test_a_module_is_exported_by_its_names(tmp_path: Path) -> None:
    module, x = network(), RANDOM.standard_normal((2, 4)).astype("float32")
    told = dl.export(module, path := tmp_path / "names.so", {"int": x}).splitlines()[0]
    assert told.startswith("step(int: float32[2, 4], ") and told.endswith(", result_0: float32[2, 3])")
    names = re.findall(r"([\w.]+): float32", told)[1:-1]
    assert set(names) == module.state_dict().keys() - {"1.num_batches_tracked"} and "3.weight" in names
    values = dl.load(path.with_suffix(".safetensors"))
    assert list(values) and all(np.array_equal(values[name], module.state_dict()[name]) for name in names)
    text = path.with_suffix(".h").read_text()
    assert "const float* int_, /* int: float32[2][4] */" in text
    assert "const float* _3_weight, /* 3.weight: float32[3][8] */" in text
    result, arena = np.zeros((2, 3), "float32"), np.zeros(arena_of(told), "uint8")
    called(path, x, *(values[name] for name in names), arena, result)
    np.testing.assert_allclose(result, module(dl.tensor(x)).numpy(), rtol=1e-5, atol=1e-6)


def test_a_feed_may_be_named_as_the_memory_is_and_a_result_be_a_value_of_the_library(tmp_path: Path) -> None:
    x = ad.Variable("arena")
    told = dl.export(ad.Executor([ad.softmax_op(x @ x) @ x]), path := tmp_path / "named.so", {x: (4, 4)})
    assert told.startswith("step(arena: float32[4, 4], arena_1: uint8[128], ")
    text = path.with_suffix(".h").read_text()
    assert "const float* arena, /* arena: float32[4][4] */" in text
    assert "#define STEP_ARENA 128 /* bytes */" in text and "void* arena_1, /* memory to work in" in text
    value = np.arange(6, dtype="float32").reshape(2, 3)
    x, w = ad.Variable("x"), ad.Parameter(value, "w")
    told = dl.export(ad.Executor([x + w, w[1], w]), path := tmp_path / "value.so", {x: (2, 3)}, constants=True)
    results = [np.empty(shape, "float32") for shape in ((2, 3), (3,), (2, 3))]
    memory = [np.zeros(arena_of(told), "uint8")] if "uint8" in told else []
    called(path, np.ones((2, 3), "float32"), *memory, *results)
    for found, wanted in zip(results, (value + 1, value[1], value), strict=True):
        np.testing.assert_array_equal(found, wanted)
