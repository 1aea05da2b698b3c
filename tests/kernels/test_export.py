"""A run as a function of a shared library: from Python without dlsys, and from C."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import dlsys as dl
import numpy as np
import pytest
import tvm_ffi
from dlsys import autodiff as ad
from dlsys import nn, optim
from dlsys.errors import TargetError
from dlsys.graph import Node
from dlsys.schedule.target import described, host_target
from helpers import error_of

HERE = Path(__file__).resolve().parent
FOLDER = tempfile.TemporaryDirectory()
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


def exported(executor: ad.Executor, feeds: dict[Node, Any], name: str) -> tuple[str, Path]:
    path = Path(FOLDER.name) / name
    path.parent.mkdir(exist_ok=True)
    return executor.export(path, feeds), path


def arena_of(told: str) -> int:
    """The bytes to work in, of what `export` returned."""
    return int(re.search(r"arena: uint8\[(\d+)\]", told)[1])  # type: ignore[index]


@pytest.mark.slow
def test_a_c_program_trains() -> None:
    """With an arena on no stack, kernels that take memory of their own, and threads: it links no library of TVM's."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        print("no C compiler: not tried")
        return
    for rows in (32, 256, 50_000):
        executor, feeds, w = regression(rows)
        told, path = exported(executor, feeds, f"{rows}/step.so")
        assert rows != 50_000 or arena_of(told) > 1_000_000
        program = path.with_name("train")
        command = [
            compiler, "-Wall", "-Wextra", "-Werror", f"-DROWS={rows}", "-o", program, HERE / "export_step.c", path,
            f"-I{path.parent}", f"-Wl,-rpath,{path.parent}",
        ]  # fmt: skip
        subprocess.run(command, check=True)
        done = subprocess.run([program], capture_output=True, text=True, check=True)
        for _ in range(100):
            (loss, _) = executor.run(feeds, True)
        found = [float(number) for number in done.stdout.split()]
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


def ran_alone(path: Path, arrays: list[np.ndarray], **environment: str) -> tuple[list[np.ndarray], str]:
    """The arrays after three steps of a library in a process that imports tvm_ffi and nothing else of TVM's, and what
    it says of an array too much."""
    data = path.with_suffix(".npz")
    np.savez(data, *arrays)
    command = [sys.executable, "-c", ALONE, path, data]
    environment = {**os.environ, "TVM_NUM_THREADS": "2", **environment}
    run = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert run.stdout == "set()\n", run.stderr
    with np.load(data) as found:
        return [found[name] for name in found], run.stderr


@pytest.mark.slow
def test_a_process_without_dlsys_trains() -> None:
    executor, feeds, _ = regression()
    told, path = exported(executor, feeds, "python.so")
    x, y, w, b = *feeds.values(), np.zeros((4, 3), "float32"), np.zeros(3, "float32")
    arrays = [x, y, w, b, np.array(0.5, "float32"), np.zeros(arena_of(told), "uint8"), np.zeros(1, "float32")]
    found, said = ran_alone(path, arrays)
    losses = [executor.run(feeds, True)[0][0] for _ in range(3)]
    np.testing.assert_allclose(found[-1], losses[-1:], rtol=1e-5)
    assert "Mismatched X.ndim on argument #0" in said


@pytest.mark.slow
def test_steps_of_networks_are_the_executors() -> None:
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
    told, path = exported(step, feeds, "network.so")
    plan = step.latest_plan()
    order = [*feeds, *(n for n in plan.given if n not in feeds)]
    given = [np.array(feeds[n]) if n in feeds else np.asarray(n.cell.array()).copy() for n in order]
    results = [np.zeros(s, "float32") for s in ((), (5, 3), (5, 3, 8, 8))]
    called, cpu = told.splitlines()
    assert called.startswith("step(x: float32[5, 3, 8, 8], t: int64[5], ")
    assert called.endswith("], result_0: float32[], result_1: float32[5, 3], result_2: float32[5, 3, 8, 8])")
    assert cpu == f"for {described(host_target())}"
    arrays = [dl.array(value) for value in (*given, np.zeros(arena_of(told), "uint8"), *results)]
    function = tvm_ffi.load_module(str(path))["step"]
    for _ in range(3):
        function(*(value.tensor for value in arrays))
        wanted = step.run(feeds, True)
    for found, other in zip(arrays[-3:], [wanted[0], *wanted[2:]], strict=True):
        np.testing.assert_array_equal(found, other)
    for found, node in zip(arrays, order, strict=False):
        if node not in feeds:
            np.testing.assert_array_equal(found, node.cell.array())


def test_arrays_without_elements() -> None:
    x, w = ad.Variable("x"), ad.Parameter(np.ones((3, 2), "float32"), "w")
    told, path = exported(ad.Executor([ad.relu_op(x), x @ w, w * 2.0]), {x: (0, 3)}, "empty.so")
    called = "x: float32[0, 3], w: float32[3, 2], arena: uint8[24], result_0: float32[0, 3], result_1: float32[0, 2]"
    assert told.splitlines()[0] == f"step({called}, result_2: float32[3, 2])"
    arrays = [dl.array(np.ones(shape, "float32")) for shape in ((0, 3), (3, 2), (0, 3), (0, 2), (3, 2))]
    arrays.insert(2, dl.array(np.zeros(24, "uint8")))
    tvm_ffi.load_module(str(path))["step"](*(array.tensor for array in arrays))
    assert (arrays[-1].numpy() == 2).all()
    told, path = exported(ad.Executor([ad.relu_op(x)]), {x: (0, 3)}, "nothing.so")
    assert told.splitlines()[0] == "step(x: float32[0, 3], result_0: float32[0, 3])"
    tvm_ffi.load_module(str(path))["step"](arrays[0].tensor, arrays[0].tensor)


def test_a_library_for_another_cpu_has_that_cpus_instructions() -> None:
    x = ad.Variable("x")
    executor, values = ad.Executor([ad.relu_op(x) * 2.0]), RANDOM.normal(size=(8, 64)).astype("float32")
    if platform.machine() != "x86_64":
        print("no x86: not tried")
        return
    for cpu, wide in (("x86-64", False), ("skylake-avx512", True)):
        path = Path(FOLDER.name) / f"{cpu}.so"
        told = executor.export(path, {x: values}, mcpu=cpu)
        assert told.splitlines()[1] == f"for {cpu}"
        if objdump := shutil.which("objdump"):
            code = subprocess.run([objdump, "-d", str(path)], capture_output=True, text=True, check=True).stdout
            assert ("%zmm" in code) == wide and ("%ymm" in code) <= wide, cpu
    result, arena = dl.array(values), dl.array(np.zeros(arena_of(told), "uint8"))
    step = tvm_ffi.load_module(str(Path(FOLDER.name) / "x86-64.so"))["step"]
    step(dl.array(values).tensor, arena.tensor, result.tensor)
    np.testing.assert_array_equal(result.numpy(), np.maximum(values, 0) * 2)
    assert "nope" in error_of(TargetError, executor.export, "step.so", {x: values}, mcpu="nope")


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
def test_a_c_program_predicts_with_values_of_the_library(frozen: bool) -> None:
    module, x = network(), np.arange(1, 9, dtype="float32").reshape(2, 4)
    path = Path(FOLDER.name) / f"predict{frozen}" / "step.so"
    path.parent.mkdir()
    model, shapes = (dl.freeze(module, {"x": x}), None) if frozen else (module, {"x": x})
    told = dl.export(model, path, shapes, constants=True)
    assert re.fullmatch(r"step\(x: float32\[2, 4\], arena: uint8\[\d+\], result_0: float32\[2, 3\]\)\nfor .*", told)
    assert not path.with_suffix(".safetensors").exists()
    if (compiler := shutil.which("cc") or shutil.which("gcc")) is None:
        print("no C compiler: not tried")
        return
    source, program = path.with_name("predict.c"), path.with_name("predict")
    source.write_text(PREDICT)
    command = [compiler, "-Wall", "-Wextra", "-Werror", "-o", program, source, path, f"-Wl,-rpath,{path.parent}"]
    subprocess.run(command, check=True)
    done = subprocess.run([program], capture_output=True, text=True, check=True)
    found = np.array(done.stdout.split(), "float32").reshape(2, 3)
    np.testing.assert_allclose(found, module(dl.tensor(x)).numpy(), rtol=1e-4, atol=1e-5)


def test_a_module_is_exported_by_its_names() -> None:
    module, x = network(), RANDOM.standard_normal((2, 4)).astype("float32")
    path = Path(FOLDER.name) / "names.so"
    called = dl.export(module, path, {"int": x}).splitlines()[0]
    assert called.startswith("step(int: float32[2, 4], ") and called.endswith(", result_0: float32[2, 3])")
    names = re.findall(r"([\w.]+): float32", called)[1:-1]
    assert set(names) == module.state_dict().keys() - {"1.num_batches_tracked"} and "3.weight" in names
    values = dl.load(path.with_suffix(".safetensors"))
    assert list(values) and all(np.array_equal(values[name], module.state_dict()[name]) for name in names)
    text = path.with_suffix(".h").read_text()
    assert "const float* int_, /* int: float32[2][4] */" in text
    assert "const float* _3_weight, /* 3.weight: float32[3][8] */" in text
    result, arena = np.zeros((2, 3), "float32"), np.zeros(arena_of(called), "uint8")
    given = [x, *(values[name] for name in names), arena, result]
    tvm_ffi.load_module(str(path))["step"](*map(tvm_ffi.from_dlpack, given))
    np.testing.assert_allclose(result, module(dl.tensor(x)).numpy(), rtol=1e-5, atol=1e-6)


def test_a_feed_may_be_named_as_the_memory_is() -> None:
    x = ad.Variable("arena")
    told, path = exported(ad.Executor([ad.softmax_op(x @ x) @ x]), {x: (4, 4)}, "named.so")
    assert told.startswith("step(arena: float32[4, 4], arena_1: uint8[128], ")
    text = path.with_suffix(".h").read_text()
    assert "const float* arena, /* arena: float32[4][4] */" in text
    assert "#define STEP_ARENA 128 /* bytes */" in text and "void* arena_1, /* memory to work in" in text


def test_a_result_may_be_a_value_of_the_library() -> None:
    x, w = ad.Variable("x"), ad.Parameter(np.arange(6, dtype="float32").reshape(2, 3), "w")
    path = Path(FOLDER.name) / "value.so"
    told = ad.Executor([x + w, w[1], w]).export(path, {x: (2, 3)}, constants=True)
    arrays = [np.ones(shape, "float32") for shape in ((2, 3), (2, 3), (3,), (2, 3))]
    if "arena" in told:
        arrays.insert(1, np.zeros(arena_of(told), "uint8"))
    tvm_ffi.load_module(str(path))["step"](*map(tvm_ffi.from_dlpack, arrays))
    value = w.cell.array().numpy()
    for found, wanted in zip(arrays[-3:], (value + 1, value[1], value), strict=True):
        np.testing.assert_array_equal(found, wanted)
