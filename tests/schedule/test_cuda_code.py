"""What CUDA's compiler makes of the kernels: registers, shared memory, instructions. Needs no GPU."""

from __future__ import annotations

import ctypes
import math
import os
import re
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any
from unittest import mock

import dlsys as dl
import numpy as np
import pytest
import small_networks as networks
import tvm
import tvm_ffi
from dlsys import autodiff as ad
from dlsys import ops
from dlsys.devices import streams
from dlsys.kernels import build
from dlsys.schedule import apply, resolve_target
from dlsys.schedule.cuda import nvrtc
from dlsys.schedule.machine_code import compiling
from dlsys.system import available_cores, cuda_folders
from helpers import error_of, python
from optional import skip
from tvm import te, tirx

pytestmark = pytest.mark.cuda
ARCHES = ("sm_80", "sm_90")
REGISTERS, SHARED = 65536, {"sm_80": 164 * 1024, "sm_90": 228 * 1024}  # of a multiprocessor


def tool(name: str) -> str:
    """The path of one of CUDA's programs; the test is skipped where it is not installed."""
    path = os.pathsep.join([*(str(folder / "bin") for folder in cuda_folders()), os.environ.get("PATH", "")])
    if (found := shutil.which(name, path=path)) is None:
        skip(name)
    return found


def output(name: str, *arguments: str) -> str:
    """What one of CUDA's programs prints; it finds the others beside it."""
    path = os.pathsep.join([str(Path(tool("nvdisasm")).parent), os.environ.get("PATH", "")])
    command = [tool(name), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, "PATH": path})
    return done.stdout


class Built:
    """A compiled kernel: its name, threads of a block, registers, bytes of shared and of local memory, and how often it
    has each instruction."""

    def __init__(self, name: str, threads: int, usage: str, instructions: Counter[str]) -> None:
        self.name, self.threads, self.instructions = name, threads, instructions
        self.registers, self.stack, self.shared, self.local = (
            int(re.search(rf"{what}:(\d+)", usage)[1])  # type: ignore[index]
            for what in ("REG", "STACK", "SHARED", "LOCAL")
        )

    def count(self, start: str) -> int:
        """How many instructions begin so."""
        return sum(n for name, n in self.instructions.items() if name.startswith(start))


def machine_code(code: str, arch: str) -> bytes:
    """The machine code that two compilations of one text agree on. The compiler is not deterministic: on a busy machine
    one in 60 gave other code, which read a number from shared memory a second time."""
    seen = set()
    for _ in range(6):
        made = nvrtc.compiled(code, arch)
        if made in seen:
            return made
        seen.add(made)
    raise AssertionError("six compilations of one text, six results")


def built(code: str, arch: str, compiled: Callable[[str, str], bytes] = machine_code) -> list[Built]:
    """The kernels of CUDA C++, compiled."""
    heads = re.findall(r"__global__ void (?:__launch_bounds__\((\d+)\) )?(\w+)\(", code)
    threads = {name: int(count or 1) for count, name in heads}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "kernels.cubin")
        file.write_bytes(compiled(code, arch))
        usage, listing = output("cuobjdump", "-res-usage", str(file)), output("nvdisasm", "-c", str(file))
    resources = dict(re.findall(r"Function (\w+):\s*\n\s*(REG.*)", usage))
    found = []
    for part in re.split(r"^\.text\.", listing, flags=re.MULTILINE)[1:]:
        name = part.split(":")[0]
        # but for those under @!PT, which never run: the compiler separates others by them
        instructions = re.findall(r"/\*[0-9a-f]{4,}\*/\s+(?:@(?!!PT)!?U?P\w+\s+)?([A-Z][\w.]*)", part)
        found.append(Built(name, threads[name], resources[name], Counter(instructions)))
    assert {kernel.name for kernel in found} == set(threads)
    return found


@cache
def kernels_of_steps(arch: str) -> tuple[Built, ...]:
    """The kernels of a training step of three networks; nothing that depends on a single load is asked of them."""
    with ThreadPoolExecutor(available_cores()) as pool:
        found = pool.map(lambda code: built(code, arch, nvrtc.compiled), codes())
        return tuple(kernel for kernels in found for kernel in kernels)


@cache
def codes() -> tuple[str, ...]:
    """CUDA C++ of all kernels of the steps: what begins alike is one text, which compiles in a third of the time."""
    kernels: dict[str, dict[str, str]] = {}  # by what stands before them, and by their names: steps share some
    for network in networks.ALL:
        executor, feed, _ = networks.step(network, dl.cuda(0))
        text = executor.source("cuda", feed_shapes=feed)
        for part in re.split(r"^// kernel \d+.*$", text, flags=re.MULTILINE):
            start, head, rest = part.partition('extern "C" __global__')
            if head:
                name = re.search(r"(\w+)\(", rest.split("__launch_bounds__", 1)[-1].partition(")")[2])
                assert name is not None
                kernels.setdefault(start.strip(), {})[name[1]] = head + rest
    return tuple("\n".join([start, *bodies.values()]) for start, bodies in kernels.items())


def each() -> Iterator[tuple[str, Built]]:
    for arch in ARCHES:
        for kernel in kernels_of_steps(arch):
            yield arch, kernel


@pytest.mark.slow
def test_no_kernel_spills_and_two_blocks_fit() -> None:
    count = 0
    for arch, kernel in each():
        assert kernel.stack == 0 and kernel.local == 0, (arch, kernel.name, kernel.stack, kernel.local)
        assert kernel.count("STL") == kernel.count("LDL") == 0, kernel.name
        assert 2 * kernel.registers * kernel.threads <= REGISTERS, (arch, kernel.name, kernel.registers)
        assert 2 * kernel.shared <= SHARED[arch], (arch, kernel.name, kernel.shared)
        count += 1
    assert count > 100


def one(node: Any, shapes: dict[Any, Any], arch: str = "sm_90") -> list[Built]:
    """The kernels of a node."""
    code = ad.Executor([node], ctx=dl.cuda(0)).source("cuda", feed_shapes=shapes)
    return built(code, arch)


@pytest.mark.slow
def test_products_compute_more_than_they_load() -> None:
    """Of shared memory a vector for each 16 multiply-adds; of memory vectors too, whatever is transposed."""
    a, b = ad.Variable("a"), ad.Variable("b")
    for turned_a in (False, True):
        for turned_b in (False, True):
            product = ad.relu_op(ad.matmul_op(a, b, turned_a, turned_b))
            (kernel,) = one(product, {a: (2048, 2048), b: (2048, 2048)})
            assert kernel.count("FFMA") >= 12 * kernel.count("LDS"), kernel.instructions
            assert kernel.count("LDS") == kernel.count("LDS.128"), kernel.instructions
            copied = kernel.count("LDGSTS")  # what lies in shared memory as in memory goes there by itself
            assert (copied > 0) == (turned_a or not turned_b), kernel.instructions
            assert kernel.count("LDG.") == kernel.count("LDG.E.128"), kernel.instructions
            assert copied == kernel.count("LDGSTS.E.BYPASS.128"), kernel.instructions
            assert kernel.count("STG") == kernel.count("STG.E.128") > 0, kernel.instructions


@pytest.mark.slow
def test_wide_transposes_fit_shared_memory() -> None:
    """A sum of transposes gets tiles for as many of its inputs as fit; the others are read across."""
    for dtype, most in (("float64", 5), ("float32", 11)):
        inputs = [te.placeholder((64, 64), dtype, f"x{i}") for i in range(12)]
        total = te.compute((64, 64), lambda i, j: sum((x[j, i] for x in inputs[1:]), inputs[0][j, i]), "total")  # noqa: B023
        target = resolve_target("cuda")
        func, rule = apply(te.create_prim_func([*inputs, total]), target)
        assert rule.name == "pointwise"
        buffers: list[Any] = []
        found = lambda item, buffers=buffers: buffers.append(item.buffer)  # noqa: E731
        tvm_ffi.structural_walk(func.body, (tirx.AllocBuffer, found))
        count = sum(math.prod(map(int, x.shape)) for x in buffers if x.scope() == "shared")
        assert count == most * 32 * 33 and count * np.dtype(dtype).itemsize <= 48 * 1024
        code = tvm.compile(tvm.IRModule({"total": func.with_attr("global_symbol", "total")}), target)
        assert nvrtc.compiled(code.mod.imports[0].inspect_source("cuda"), "sm_90")[1:4] == b"ELF"


@pytest.mark.slow
def test_tensor_cores_multiply_more_than_they_load() -> None:
    a, b = ad.Variable("a"), ad.Variable("b")
    try:
        for precision, arch in product(("high", "medium", "bfloat16", "float16"), ("sm_80", "sm_90")):
            cast = precision.startswith(("b", "f"))
            dl.set_float32_matmul_precision("highest" if cast else precision)
            with dl.autocast(dtype=precision) if cast else nullcontext():
                node = a @ b
            (kernel,) = one(node, {a: (2048, 2048), b: (2048, 2048)}, arch)
            assert kernel.count("HMMA") >= 16 and kernel.count("FFMA") == 0, kernel.instructions
            assert kernel.count("LDS") <= 1.5 * kernel.count("HMMA"), kernel.instructions
            assert kernel.count("LDG") == kernel.count("LDG.E.128"), kernel.instructions
            assert kernel.stack == kernel.local == 0 and 2 * kernel.registers * kernel.threads <= REGISTERS
    finally:
        dl.set_float32_matmul_precision("highest")


def test_autocast_holds_for_the_products_written_in_it() -> None:
    x, w = ad.Variable("x"), ad.Variable("w")
    with dl.autocast():
        rounded = ops.transpose_op(x @ w) @ (x * 2.0)
    with dl.autocast(enabled=False):
        exact = ops.transpose_op(w @ x)
    made = [rounded, exact, *ad.gradients(rounded, [w]), *ad.gradients(exact, [w])]
    assert "matmul(x, w, precision='bfloat16')" in ad.format_graph(made)
    executor = ad.Executor(made)
    with dl.autocast(dtype=dl.float16):  # of who compiles, which says nothing of the graph's nodes
        listed = executor.graph(True, dict.fromkeys((x, w), (40, 40))).splitlines()
    found = [re.findall(r"precision='(\w+)'", line) for line in listed if " = matmul" in line]
    assert sorted(found) == [[], [], *[["bfloat16"]] * 4] and "float16" not in "".join(listed).replace("bfloat16", "")

    @dl.autocast("cuda", "float16")
    def made_inside(a: Any, b: Any) -> Any:
        return a @ b

    assert made_inside(x, w).attrs["precision"] == "float16" and "precision" not in (x @ w).attrs
    assert "bfloat16 or float16" in error_of(dl.DTypeError, lambda: dl.autocast(dtype="float64").__enter__())
    assert "'tpu'" in error_of(dl.GraphError, lambda: dl.autocast("tpu").__enter__())


def test_the_runtime_has_what_is_called() -> None:
    """The emulated device has these functions because we gave them to it."""
    found = [path for folder in cuda_folders() for path in sorted(folder.glob("lib*/libcudart.so.13"))]
    if not found:
        skip("CUDA's runtime")
    called = set(re.findall(r"\bcuda[A-Z]\w+", Path(streams.__file__).read_text(encoding="utf-8")))
    runtime = ctypes.CDLL(str(found[0]))
    assert len(called) > 15 and all(hasattr(runtime, name) for name in called), called
    header = next(folder / "include" / "driver_types.h" for folder in cuda_folders() if (folder / "include").is_dir())
    text = header.read_text(encoding="utf-8")
    for name, value in (
        ("cudaStreamNonBlocking", streams._APART),
        ("cudaEventDisableTiming", streams._UNTIMED),
        ("cudaStreamCaptureModeThreadLocal", streams._THIS_THREAD),
        ("cudaMemcpyHostToDevice", streams._TO_DEVICE),
    ):
        told = re.search(rf"\b{name}\s*=?\s*(0x\w+|\d+)", text)
        assert told and int(told[1], 0) == value, name


@pytest.mark.slow
def test_code_can_be_read_without_a_gpu() -> None:
    x = ad.Variable("x")
    executor = ad.Executor([ad.softmax_op(x)], ctx=dl.cuda(0))
    assert "rows" in executor.groups({x: (3, 40)}) and "__shfl_xor_sync" in executor.source("cuda")
    assert ".entry" in executor.source("ptx") and "no result" not in executor.plan()
    if not dl.cuda.is_available():
        assert "cuda(0) is not available" in error_of(dl.DeviceError, executor.run, {x: [[1.0] * 40] * 3})
        kernel = dl.tvm_op.make_relu((3,), "cuda", "llvm", "relu")
        assert "not available" in error_of(dl.DeviceError, kernel, *(dl.array([1.0, 2.0, 3.0]) for _ in range(2)))


def test_no_fast_mathematics() -> None:
    """Divisions are rounded and small numbers kept, as on the CPU."""
    x, y = ad.Variable("x"), ad.Variable("y")
    text = ad.Executor([x / y], ctx=dl.cuda(0)).source("ptx", feed_shapes=dict.fromkeys((x, y), (5,)))
    assert "div.rn.f32" in text and ".ftz" not in text and ".approx" not in text


@pytest.mark.slow
def test_nvrtc_has_its_builtins_before_it_looks_for_them() -> None:
    """NVRTC 13.0 finds them only where they are loaded already; later ones look in their own folder too."""
    if nvrtc._library() is None or not Path("/proc/self/maps").exists():
        skip("NVRTC, and Linux to tell what is loaded")
    program = """if True:
        from dlsys.schedule.cuda import nvrtc
        version = ".".join(map(str, nvrtc._version_of(nvrtc._library())))
        print(f"libnvrtc-builtins.so.{version}" in open("/proc/self/maps").read())
    """
    assert python("-c", program).stdout == "True\n"


def test_machine_code_is_kept_on_disk() -> None:
    x = ad.Variable("x")
    code = ad.Executor([ops.exp_op(x) * 3.25], ctx=dl.cuda(0)).source("cuda", feed_shapes={x: (77,)})
    counting = mock.patch.object(nvrtc, "compiled", wraps=nvrtc.compiled)
    own = tempfile.TemporaryDirectory()
    with own as folder, mock.patch.dict(os.environ, {"DLSYS_COMPILE_CACHE": folder}), counting as compiled:
        with compiling(resolve_target("cuda")):
            first, second = build._machine_code(code), build._machine_code(code)
        assert first == second and first[1:4] == b"ELF" and compiled.call_count == 1
        with compiling(resolve_target({"kind": "cuda", "arch": "sm_80"})):
            assert build._machine_code(code) != first and compiled.call_count == 2


def test_what_a_program_compiles_by_tvm_itself_goes_to_tvms_compiler() -> None:
    theirs = mock.Mock(return_value=b"theirs")
    ours = mock.patch.object(nvrtc, "compiled", return_value=b"ours")
    off = mock.patch.dict(os.environ, {"DLSYS_COMPILE_CACHE": "0"})
    compiler = tvm.get_global_func("tvm_callback_cuda_compile")  # as TVM looks for it
    target = resolve_target({"kind": "cuda", "arch": "sm_80"})
    with off, ours, mock.patch.object(build, "_compiled_by_tvm", theirs):
        with target:
            assert compiler("code") == b"theirs"
        with compiling(target):
            assert compiler("code") == b"ours"
            with ThreadPoolExecutor(1) as pool:
                assert pool.submit(compiler, "code").result() == b"theirs"
        assert compiler("code") == b"theirs" and theirs.call_args.args == ("code",)
