"""A run as a function of a shared library: from Python without dlsys, and from C."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import dlsys as dl
import numpy as np
import tvm_ffi
from dlsys import autodiff as ad
from dlsys import nn, optim
from dlsys.errors import DlsysError, FeedError, TargetError
from dlsys.graph import Node
from dlsys.schedule.target import described, host_target
from helpers import error_of

HERE = Path(__file__).resolve().parent
FOLDER = tempfile.TemporaryDirectory()
RANDOM = np.random.default_rng(0)


def regression() -> tuple[ad.Executor, dict[Node, np.ndarray], Node]:
    """A step of logistic regression, the feeds of export_step.c, and the weights."""
    x, y = ad.Variable("X"), ad.Variable("y")
    w, b = ad.Parameter(np.zeros((4, 3), "float32"), "W"), ad.Parameter(np.zeros(3, "float32"), "b")
    loss = ad.softmaxcrossentropy_op(x @ w + b, y)
    rows = np.arange(32)
    images = ((rows[:, None] * 7 + np.arange(4) * 13) % 11 / np.float32(11)).astype("float32")
    labels = np.eye(3, dtype="float32")[rows * 7 % 11 // 4]
    return ad.Executor([loss, optim.SGD([w, b], lr=0.5).minimize(loss)]), {x: images, y: labels}, w


def exported(executor: ad.Executor, feeds: dict[Node, Any], name: str) -> tuple[str, Path]:
    path = Path(FOLDER.name) / name
    return executor.export(path, feeds), path


def test_a_c_program_trains() -> None:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        print("no C compiler: not tried")
        return
    executor, feeds, w = regression()
    told, path = exported(executor, feeds, "step.so")
    assert told.splitlines()[0] in (HERE / "export_step.c").read_text()
    import tvm

    library = Path(tvm.__file__).parent / "lib"
    ffi = Path(tvm_ffi.__file__).parent
    program = Path(FOLDER.name) / "train"
    command = [
        compiler,
        "-Wall",
        "-Werror",
        "-o",
        program,
        HERE / "export_step.c",
        path,
        f"-I{ffi / 'include'}",
    ]
    links = [
        f"-L{library}",
        "-ltvm_runtime",
        f"-L{ffi / 'lib'}",
        "-ltvm_ffi",
        f"-Wl,-rpath,{library}:{ffi / 'lib'}",
    ]
    subprocess.run([*command, *links, f"-Wl,-rpath,{path.parent}"], check=True)
    done = subprocess.run([program], capture_output=True, text=True, check=True)
    for _ in range(100):
        (loss, _) = executor.run(feeds, True)
    np.testing.assert_allclose(
        [float(n) for n in done.stdout.split()], [loss[0], np.asarray(w.value)[0, 0]], rtol=1e-4
    )  # type: ignore[attr-defined]
    assert float(done.stdout.split()[0]) < 0.9


def test_a_process_without_dlsys_trains() -> None:
    executor, feeds, _ = regression()
    _, path = exported(executor, feeds, "python.so")
    np.savez(path.with_suffix(".npz"), *feeds.values())
    program = (
        "import sys, numpy as np, dlsys.tvm_import, tvm_ffi\n"
        "step, given = tvm_ffi.load_module(sys.argv[1])['step'], np.load(sys.argv[2])\n"
        "x, y, w, b = *(given[name] for name in given), np.zeros((4, 3), 'float32'), np.zeros(3, 'float32')\n"
        "loss, rate = np.zeros(1, 'float32'), np.array(0.5, 'float32')\n"
        "for _ in range(3): step(*(tvm_ffi.from_dlpack(a) for a in (x, w, b, y, rate, loss)))\n"
        "print(loss[0], 'tvm' in sys.modules)\n"
        "step(*(tvm_ffi.from_dlpack(a) for a in (b, w, b, y, rate, loss)))\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", program, path, path.with_suffix(".npz")],
        capture_output=True, text=True, check=False, env={**os.environ},
    )  # fmt: skip
    losses = [executor.run(feeds, True)[0][0] for _ in range(3)]
    found, compiler = run.stdout.split()
    np.testing.assert_allclose(float(found), losses[-1], rtol=1e-5)
    assert compiler == "False" and "Mismatched X.ndim on argument #0" in run.stderr


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
    plan = step._latest()
    given = [np.array(feeds[n]) if n in feeds else np.asarray(n.cell.array()).copy() for n in plan.given]
    results = [np.zeros(s, "float32") for s in ((), (5, 3), (5, 3, 8, 8))]
    called, cpu = told.splitlines()
    assert called.endswith("result_0: float32[], result_1: float32[5, 3], result_2: float32[5, 3, 8, 8])")
    assert cpu == f"for {described(host_target())}"
    arrays = [dl.array(value) for value in (*given, *results)]
    function = tvm_ffi.load_module(str(path))["step"]
    for _ in range(3):
        function(*(value.tensor for value in arrays))
        wanted = step.run(feeds, True)
    for found, other in zip(arrays[len(given) :], [wanted[0], *wanted[2:]], strict=True):
        np.testing.assert_array_equal(found, other)
    for found, node in zip(arrays, plan.given, strict=False):
        if node not in feeds:
            np.testing.assert_array_equal(found, node.cell.array())


def test_arrays_without_elements() -> None:
    x, w = ad.Variable("x"), ad.Parameter(np.ones((3, 2), "float32"), "w")
    told, path = exported(ad.Executor([ad.relu_op(x), x @ w, w * 2.0]), {x: (0, 3)}, "empty.so")
    called = "x: float32[0, 3], w: float32[3, 2], result_0: float32[0, 3], result_1: float32[0, 2]"
    assert told.splitlines()[0] == f"step({called}, result_2: float32[3, 2])"
    arrays = [dl.array(np.ones(shape, "float32")) for shape in ((0, 3), (3, 2), (0, 3), (0, 2), (3, 2))]
    tvm_ffi.load_module(str(path))["step"](*(array.tensor for array in arrays))
    assert (arrays[-1].numpy() == 2).all()


def test_a_library_for_another_cpu_has_that_cpus_instructions() -> None:
    x = ad.Variable("x")
    executor, values = ad.Executor([ad.relu_op(x) * 2.0]), RANDOM.normal(size=(8, 64)).astype("float32")
    if platform.machine() != "x86_64":
        print("no x86: not tried")
        return
    for cpu, wide in (("x86-64", False), ("skylake-avx512", True)):
        path = Path(FOLDER.name) / f"{cpu}.so"
        assert executor.export(path, {x: values}, mcpu=cpu).splitlines()[1] == f"for {cpu}"
        if objdump := shutil.which("objdump"):
            code = subprocess.run([objdump, "-d", str(path)], capture_output=True, text=True, check=True).stdout
            assert ("%zmm" in code) == wide and ("%ymm" in code) <= wide, cpu
    result = dl.array(values)
    tvm_ffi.load_module(str(Path(FOLDER.name) / "x86-64.so"))["step"](dl.array(values).tensor, result.tensor)
    np.testing.assert_array_equal(result.numpy(), np.maximum(values, 0) * 2)
    assert "nope" in error_of(TargetError, executor.export, "step.so", {x: values}, mcpu="nope")


def test_mistakes_are_told() -> None:
    executor, feeds, _ = regression()
    assert "no shapes are known yet" in error_of(FeedError, executor.export, "step.so")
    assert "cannot be written" in error_of(DlsysError, executor.export, "/no/such/folder/step.so", feeds)
