"""What is checked on the emulated device, in a process of its own: `python -m cuda_on_cpu.checks [NAME ...]`, in the
folder of the tests. Prints a line of JSON: each check's name, and its error or nothing. `test_cuda.py` runs it.
"""

from __future__ import annotations

import functools
import io
import json
import random
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

import cuda_on_cpu

if __name__ == "__main__":
    cuda_on_cpu.install()  # before anything imports TVM

import dlsys as dl
import mnist_dlsys
import small_networks as networks
import test_gpu_op
from dlsys import autodiff as ad
from dlsys import kernels, nn, ops, optim, tvm_op
from dlsys.devices import streams
from dlsys.graph import find_topo_sort
from dlsys.kernels import build
from dlsys.schedule.cuda import contraction
from dlsys.schedule.cuda import tensor_cores as tensors
from drawn import Drawn
from helpers import error_of, every_case

sys.path.append(str(Path(__file__).parent.parent.parent / "apps"))
import resnet9

CHECKS: dict[str, Callable[[], None]] = {}
GPU = dl.cuda(0)
_number = iter(range(1000))
RANDOM = np.random.default_rng(7).standard_normal((64, 8)).astype("float32")
WAYS: tuple[dict[str, Any], ...] = (
    {"order": "up"},
    {"order": "down", "early": True},
    {"order": "shuffled"},
)


def check(function: Callable[[], None]) -> Callable[[], None]:
    """Marks a check."""
    CHECKS[function.__name__] = function
    return function


def close(found: Any, wanted: Any, tolerance: float = 1e-5, what: str = "") -> None:
    for one, other in zip(found, wanted, strict=True):
        assert one.shape == other.shape and one.dtype == other.dtype, (what, one.shape, other.shape)
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance, err_msg=what)


def agree(nodes: list[Any], feed: dict[Any, np.ndarray], tolerance: float = 1e-5) -> ad.Executor:
    """The device's values are those of the NumPy rules, whatever the order of threads. Returns what computed them."""
    wanted = [np.asarray(value) for value in ad.Executor(nodes, ctx=dl.numpy()).run(feed)]
    executor = ad.Executor(nodes, ctx=GPU)
    for way in WAYS:
        with cuda_on_cpu.settings(**way):
            close(executor.run(feed, True), wanted, tolerance, str(way))
    return executor


def declare_sizes(functions: Any) -> None:
    """Tells the device how large the arrays of compiled functions are: each is less than what was allocated; of arrays
    with one name the largest, as TVM numbers them in an order of its own."""

    def size(buffer: Any) -> int:
        elements = int(np.prod([int(extent) for extent in buffer.shape], dtype=np.int64))
        return elements * np.dtype(str(buffer.dtype)).itemsize

    for name, function in functions.items():
        for buffer in sorted(function.params, key=size):
            for number in ("", *(f"_{i}" for i in range(1, 9))):
                cuda_on_cpu.declare(f"{name}_kernel{number}", f"{buffer.name}_ptr", size(buffer))


@contextmanager
def exact_bounds() -> Iterator[None]:
    """Within it kernels that are compiled may touch no more than the arrays that they are given."""
    compiled = build.compiled

    def declared(functions: Any, target: Any, *rest: Any) -> Any:
        if target.kind.name == "cuda":
            declare_sizes(functions)
        return compiled(functions, target, *rest)

    with mock.patch.object(build, "compiled", declared):
        yield


@check
def every_operator() -> None:
    """Every case of every operator has the values of its NumPy rule, whatever the order of threads."""
    every, values = every_case()
    rules: set[str] = set()
    for start in range(0, len(every), 300):  # to place a thousand results beside each other takes long
        nodes = every[start : start + 300]
        feed = {node: values[node] for node in find_topo_sort(nodes) if node in values}
        wanted = ad.Executor(nodes, ctx=dl.numpy()).run(feed, True)
        executor = ad.Executor(nodes, ctx=GPU, passes=())
        for way in WAYS:
            with cuda_on_cpu.settings(**way):
                for node, one, other in zip(nodes, executor.run(feed, True), wanted, strict=True):
                    close([one], [other], what=f"{node} {way}")
        rules |= {kernel.rule.name for kernel in executor.node_to_compiled_func.values()}
    assert rules >= {"contraction", "rows", "reduction", "loops", "pointwise"}, rules


@check
def sorts_on_the_host() -> None:
    """NumPy sorts between a GPU's kernels: the arrays are copied to the host and back, in each run."""
    x = ad.Variable("x")
    (values, places), (first, _) = ad.sort_op(ad.exp_op(x)), ad.topk_op(x, 3, 0)
    executor = agree([values * 2.0, places, ad.sum_op(first, 1)], {x: RANDOM})
    close(executor.run({x: -RANDOM}, True)[:1], [2 * np.sort(np.exp(-RANDOM), -1)])


@check
def constants_of_float64() -> None:
    """Those that TVM's CUDA C cuts off after 15 decimals, and the sines of huge arguments that are made of them."""
    x, y = ad.Variable("x"), ad.Variable("y")
    nodes = [x * 1.23e-20, x + 1 / 3, ad.sin_op(y), ad.cos_op(y)]
    huge = np.array([1.0, 1e4, 1e20, -3e38, 16367173 * 2.0**72, np.inf], "float32")
    feed = {x: np.array([1.0, -2e20, 3e-5]), y: huge}
    wanted = ad.Executor(nodes).run(feed, True)
    for one, other in zip(ad.Executor(nodes, ctx=GPU).run(feed, True), wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=4e-16 if one.dtype == "float64" else 2e-7)


@check
def drawn_graphs() -> None:
    """Graphs of all operators, with all passes: fused kernels, values in each other's memory."""
    for seed in range(12):
        rng = random.Random(seed)
        drawn = Drawn(rng, 25, "float32", special=False)
        nodes = [node for node in drawn.values if node not in drawn.feed][-8:]
        if not nodes:
            continue
        wanted = ad.Executor(nodes, ctx=dl.numpy()).run(drawn.feed, True)
        executor = ad.Executor(nodes, ctx=GPU)
        with cuda_on_cpu.settings(**WAYS[seed % 3]):
            for node, one, other in zip(nodes, executor.run(drawn.feed, True), wanted, strict=True):
                np.testing.assert_allclose(one, other, rtol=2e-4, atol=2e-4, err_msg=f"{seed}: {node}")


@check
def products() -> None:
    """All transposes, batches, odd sizes, every tile, sums in parts, with and without an epilogue."""
    rng = np.random.default_rng(0)
    nodes, feed = [], {}
    for m, k, n in ((8, 8, 8), (33, 45, 65), (64, 64, 64), (130, 20, 70), (9, 2000, 10), (1, 40, 50), (1500, 20, 1500)):
        for turned_a, turned_b in ((False, False), (False, True), (True, False), (True, True)):
            if m > 1000 and turned_a is not turned_b:
                continue
            a, b, bias = ad.Variable("a"), ad.Variable("b"), ad.Variable("bias")
            feed[a] = rng.standard_normal((k, m) if turned_a else (m, k)).astype("float32")
            feed[b] = rng.standard_normal((n, k) if turned_b else (k, n)).astype("float32")
            feed[bias] = rng.standard_normal(n).astype("float32")
            product = ad.matmul_op(a, b, turned_a, turned_b)
            nodes += [*([product] if m <= 1000 else []), ad.relu_op(product * 2.0 + bias)]
    x, y = ad.Variable("x"), ad.Variable("y")
    feed[x], feed[y] = (rng.standard_normal(shape).astype("float32") for shape in ((3, 2, 17, 24), (2, 24, 9)))
    agree([*nodes, x @ y], feed, 1e-4)


@check
def tensor_cores() -> None:
    """Products and convolutions of numbers rounded to TF32 and bfloat16, with gradients; float32 again afterwards."""
    rng = np.random.default_rng(0)
    nodes, feed = [], {}
    for m, k, n in ((64, 64, 64), (100, 45, 130), (40, 17, 33), (70, 600, 65), (40, 1300, 33)):
        for turned_a, turned_b in ((False, False), (True, True))[: 1 if k == 600 else 2]:
            a, b = ad.Variable("a"), ad.Variable("b")
            feed[a] = rng.standard_normal((k, m) if turned_a else (m, k)).astype("float32")
            feed[b] = rng.standard_normal((n, k) if turned_b else (k, n)).astype("float32")
            nodes.append(ad.relu_op(ad.matmul_op(a, b, turned_a, turned_b) + 1.0))
    x, f = ad.Variable("x", (3, 8, 12, 12)), ad.Variable("f", (40, 8, 3, 3))
    feed[x], feed[f] = (rng.standard_normal(v.attrs["shape"]).astype("float32") for v in (x, f))
    image = ops.conv2d_op(x, f, padding=1)
    nodes += [image, *ad.gradients(ops.sum_op(image * image), [x, f])]
    exact = ad.Executor(nodes, ctx=GPU).run(feed, True)
    try:
        for precision, name, most in (("high", "tf32", 2e-3), ("medium", "bf16", 2e-2)):
            dl.set_float32_matmul_precision(precision)
            executor = ad.Executor(nodes, ctx=GPU)
            for way in WAYS if name == "tf32" else WAYS[2:]:  # the same loops with another instruction
                with cuda_on_cpu.settings(**way):
                    for node, one, other in zip(nodes, executor.run(feed, True), exact, strict=True):
                        off = float(np.abs(one - other).max() / np.abs(other).max())
                        assert most / 2000 < off < most, (precision, node, off)  # rounded, and no more than that
            assert f"dlsys_mma_{name}" in executor.source("cuda")
    finally:
        dl.set_float32_matmul_precision("highest")
    close(ad.Executor(nodes, ctx=GPU).run(feed, True), exact, 0)
    assert "precision" in error_of(dl.DTypeError, lambda: dl.set_float32_matmul_precision("low"))


@check
def autocast() -> None:
    """Products of a context, and their gradients, are rounded on the GPU, others and the CPU's are not."""
    warnings.filterwarnings("ignore", "autocast", RuntimeWarning)  # of "cpu"
    rng = np.random.default_rng(0)
    x, w, v, f = (ad.Variable(name, shape) for name, shape in (
        ("x", (40, 64)), ("w", (64, 48)), ("v", (48, 64)), ("f", (40, 4, 4, 4))
    ))  # fmt: skip
    feed = {of: rng.standard_normal(of.attrs["shape"]).astype("float32") for of in (x, w, v, f)}

    def built(dtype: str | None) -> list[list[Any]]:
        """Nodes that are to be rounded, and some that are not."""
        with dl.autocast(dtype=dtype or "bfloat16", enabled=dtype is not None):
            hidden = x @ w + 1.0
            image = ops.conv2d_op(ops.reshape_op(x, (40, 4, 4, 4)), f, padding=1)
            with dl.autocast(enabled=False):
                exact = x @ w + 1.0
            with dl.autocast("cpu"):
                again = hidden @ v
        loss = ops.sum_op(again * again)
        with dl.autocast(dtype="float16"):  # gradients are as exact as what they are gradients of
            outside = ad.gradients(ops.sum_op(exact * exact), [x, w])
        return [[hidden, again, image, *ad.gradients(loss, [x, w, v])], [exact, *outside, x @ ops.transpose_op(x)]]

    wanted = [ad.Executor(nodes).run(feed, True) for nodes in built(None)]
    for dtype, name, most in (("bfloat16", "bf16", 2e-2), ("float16", "f16", 2e-3)):
        rounded, same = built(dtype)
        close(ad.Executor(rounded).run(feed, True), wanted[0], 0)
        executor = ad.Executor(rounded, ctx=GPU)
        for way in WAYS if name == "bf16" else WAYS[2:]:
            with cuda_on_cpu.settings(**way), dl.autocast(dtype="bfloat16"):  # of who compiles: no matter
                for node, one, other in zip(rounded, executor.run(feed, True), wanted[0], strict=True):
                    off = float(np.abs(one - other).max() / np.abs(other).max())
                    assert most / 200 < off < most, (dtype, node, off)
        assert f"dlsys_mma_{name}" in executor.source("cuda")
        with dl.autocast(dtype=dtype):
            executor = ad.Executor(same, ctx=GPU)
            close(executor.run(feed, True), wanted[1], 2e-5)
        assert "dlsys_mma" not in executor.source("cuda")


@check
def every_tile() -> None:
    """A product larger than the tile in rows and columns, with edges, by each tile that a rule may choose."""
    rng = np.random.default_rng(0)
    a, b = ad.Variable("a"), ad.Variable("b")
    feed = {a: rng.standard_normal((140, 37)).astype("float32"), b: rng.standard_normal((37, 132)).astype("float32")}
    wanted = feed[a] @ feed[b]
    ways = [("highest", contraction, tile, 1e-5) for tile in contraction.TILES]
    ways += [("high", tensors, tile, 2e-3) for tile in tensors.TILES]
    ways += [("medium", tensors, tile, 2e-2) for tile in tensors.TILES]
    try:
        for precision, room, tile, tolerance in ways:
            dl.set_float32_matmul_precision(precision)
            factor = 2.0 + next(_number)  # a kernel of its own
            with mock.patch.object(room, "TILES", (tile,)), cuda_on_cpu.settings("shuffled"):
                (found,) = ad.Executor([(a @ b) * factor], ctx=GPU).run(feed, True)
            off = float(np.abs(found / factor - wanted).max() / np.abs(wanted).max())
            assert off < tolerance, (precision, tile, off)
    finally:
        dl.set_float32_matmul_precision("highest")


@check
def sums() -> None:
    """Rows and columns, short and long, that vectors divide and that they do not."""
    rng = np.random.default_rng(0)
    nodes, feed = [], {}
    for shape, axis in (
        ((100_003,), 0), ((40_000, 3), 0), ((3, 40_000), 1), ((5_000, 40), 0), ((70, 1024), 1), ((9, 1030), 1),
        ((4, 3000, 5), 1), ((2, 3, 2500), 2),
    ):  # fmt: skip
        x = ad.Variable("x")
        feed[x] = rng.standard_normal(shape).astype("float32")
        nodes += [ops.sum_op(x, axis), ops.max_op(x, axis), ops.sum_op(x)]
    agree(nodes, feed, 2e-4)


@check
def transposes() -> None:
    """Through shared memory, with and without edges, with what is computed of them and in batches."""
    rng = np.random.default_rng(0)
    nodes, feed = [], {}
    for shape, axes in (((64, 96), (1, 0)), ((33, 50), (1, 0)), ((3, 40, 70), (0, 2, 1)), ((40, 5, 48), (2, 1, 0))):
        x, y = ad.Variable("x"), ad.Variable("y")
        feed[x] = rng.standard_normal(shape).astype("float32")
        feed[y] = rng.standard_normal([shape[i] for i in axes]).astype("float32")
        turned = ops.transpose_op(x, axes)
        nodes += [turned, ad.relu_op(turned * y) + 1.0]
    assert agree(nodes, feed).source("cuda").count("__shared__") == len(nodes) // 2  # a tile in each of the transposes


@check
def rows() -> None:
    """Softmax and layer norm with gradients, rows of a warp and of a block, and too long for either."""
    rng = np.random.default_rng(0)
    nodes, feed = [], {}
    for shape in ((3, 4), (300, 20), (40, 512), (40, 516), (5, 1001), (2, 3, 2048), (2, 20_000)):
        x, g = ad.Variable("x", shape), ad.Variable("g", shape)
        feed[x], feed[g] = (rng.standard_normal(shape).astype("float32") for _ in range(2))
        softmax = ad.softmax_op(x)
        nodes += [softmax, *ad.gradients(ops.sum_op(softmax * g), [x])]
        norm = nn.functional.layer_norm(x, shape[-1:])
        nodes += [norm, *ad.gradients(ops.sum_op(norm * g), [x])]
    agree(nodes, feed, 1e-4)


def trained(network: Any, ctx: Any, steps: int = 3) -> tuple[list[Any], Any, Any]:
    """Losses of some steps and the parameters after them; the executor and what it is fed."""
    executor, feed, parameters = networks.step(network, ctx)
    losses = [executor.run(feed, True)[0] for _ in range(steps)]
    return [*losses, *(parameter.numpy() for parameter in parameters)], executor, feed


@check
def training_steps() -> None:
    """Losses and updated parameters of three networks, with dropout: random numbers are the same to the bit."""
    for network in networks.ALL:
        wanted, *_ = trained(network, dl.numpy())
        for way in WAYS:
            with cuda_on_cpu.settings(**way):
                found, executor, _ = trained(network, GPU)
                close(found, wanted, 2e-5, f"{network} {way}")
                assert executor.allocations == 1


@check
def resnet9_of_the_app() -> None:
    """Two steps of the network of `apps/resnet9.py`."""

    def network() -> tuple[nn.Module, tuple[int, ...]]:
        return resnet9.ResNet9(), (8, 3, 32, 32)

    with cuda_on_cpu.settings("shuffled"):
        close(trained(network, GPU, 2)[0], trained(network, dl.numpy(), 2)[0], 1e-4)


@check
def updates() -> None:
    """Of all parameters; what reads a parameter that another one updates stays before it."""
    for kind, options in ((optim.SGD, {"momentum": 0.9}), (optim.AdamW, {"eps": 0.1})):
        found = {}
        for ctx in (dl.cpu(), GPU):
            dl.manual_seed(0)
            net, shape = networks.mlp()
            net.append(nn.Linear(10, 40_000))  # of its weight a thread updates a vector
            x = ad.Variable("x", shape)
            result = net(x)
            loss = ops.sum_op(result * result) * 1e-3
            executor = ad.Executor([loss, kind(net.parameters(), lr=0.1, **options).minimize(loss)], ctx=ctx)
            feed = {x: RANDOM[:16, [0, 1, 2, 3] * 5]}
            for order in ("up", "shuffled"):
                with cuda_on_cpu.settings(order):
                    executor.run(feed)
            found[ctx] = [parameter.numpy() for parameter in net.parameters()]
        close(found[GPU], found[dl.cpu()], 1e-4)

    a, b, c = (ad.Parameter(np.full((3, n), 2.0, "float32"), name=name) for n, name in ((4, "a"), (4, "b"), (5, "c")))
    changes = [ad.assign_op(a, a * 2.0 - b), ad.assign_op(b, b + 3.0), ad.assign_op(c, c * 0.5)]
    executor = ad.Executor(changes, ctx=GPU)
    for _ in range(2):
        executor.run({})
    assert [set(p.numpy().reshape(-1).tolist()) for p in (a, b, c)] == [{-1.0}, {8.0}, {0.5}]

    x, count = ad.Variable("x", (1,)), ad.Parameter(np.zeros(1, "float32"))  # numbers, of which others are made
    first, second = ops.exp_op(x), x * 2.0
    nodes = [first + second, first * second, ops.exp_op(first), second - 1.0]
    feed = {x: np.array([0.5], "float32")}
    executor = ad.Executor([*nodes, ad.assign_op(count, count + x)], ctx=GPU, passes=("fuse",))
    for runs in (1, 2, 3):
        with cuda_on_cpu.settings("shuffled"):
            found = executor.run(feed, True)
        close(found[:-1], ad.Executor(nodes).run(feed, True))
        assert found[-1] == runs * 0.5


@check
def loops() -> None:
    """A recurrent layer's step and its gradients: steps of whole vectors as a loop, others written out."""
    for batch, hidden in ((4, 8), (3, 5)):
        layer, x = nn.LSTM(6, hidden), ad.Variable("x", (5, batch, 6))
        output, (h, c) = layer(x)
        loss = ops.sum_op(output * output) + ops.sum_op(h * c)
        nodes = [output, *ad.gradients(loss, [x, *layer.parameters()])]
        feed = {x: np.random.default_rng(0).standard_normal((5, batch, 6)).astype("float32")}
        assert ("loop, 5 steps" in agree(nodes, feed, 2e-5).groups()) == (batch == 4)


def batches_trained(ctx: Any, steps: int) -> list[Any]:
    """Losses of a network on a batch for each step, and its parameters."""
    executor, feed, parameters = networks.step(networks.mlp, ctx)
    rng, losses = np.random.default_rng(1), []
    for _ in range(steps):
        batch = {node: rng.permutation(value) for node, value in feed.items()}
        losses.append(dl.devices.copied(executor.run(batch)[0]))  # nobody waits
        for value in batch.values():
            value[:] = np.nan  # what was fed may change at once
    return [value.numpy() for value in (*losses, *parameters)]


@check
def a_step_is_one_call() -> None:
    """From the second time on that a step finds its arrays where they were, it is a CUDA graph; what is fed is copied
    while the last step runs."""
    wanted = batches_trained(dl.cpu(), 9)
    for way in WAYS:
        with cuda_on_cpu.settings(**way):
            close(batches_trained(GPU, 9), wanted, 1e-5, str(way))
    executor, feed, _ = networks.step(networks.mlp, GPU)
    calls = len(executor.groups(feed).splitlines()) - 1
    seen = []
    for _ in range(7):
        before = [cuda_on_cpu.count(what) for what in ("graphs", "launches", "waiting")]
        executor.run(feed)
        seen.append([cuda_on_cpu.count(w) - n for w, n in zip(("graphs", "launches", "waiting"), before, strict=True)])
    assert [graphs for graphs, _, _ in seen] == [0, 0, 1, 1, 1, 1, 1], seen  # a feed lies in two places in turn
    assert {launches for _, launches, _ in seen} == {seen[0][1]} and seen[0][1] >= calls, seen
    assert seen[1][2] > calls, seen  # nobody waited for the first step


@check
def arrays() -> None:
    """0-d arrays, no elements, other dtypes, parts of an arena as feeds, setting, copies."""
    for value in (np.float32(3), np.zeros((0, 3), "float32"), np.arange(5), np.array([True, False]), np.eye(3)):
        made = dl.array(value, GPU)
        assert (made.shape, made.dtype, made.context) == (np.shape(value), str(np.asarray(value).dtype), GPU)
        np.testing.assert_array_equal(made.numpy(), value)
        np.testing.assert_array_equal(dl.array(made, dl.cpu()).numpy(), value)
    made = dl.devices.zeros((2, 3), ctx=GPU)
    made[1] = 5
    assert made.numpy().tolist() == [[0, 0, 0], [5, 5, 5]] and made[1, 2] == 5
    x = ad.Variable("x")
    found = ad.Executor([x + 1.0, x * 3.0, x - 1.0], ctx=GPU).run({x: np.ones(70, "float32")})
    y = ad.Variable("y")
    for array, wanted in zip(found, (2.0, 3.0, 0.0), strict=True):  # parts of one arena, fed as they are
        (again,) = ad.Executor([y * 2.0], ctx=GPU).run({y: array}, True)
        assert set(again) == {2 * wanted}
    kernel = tvm_op.make_elemwise_add((70,), "cuda", "llvm", "add")
    out = dl.devices.empty((70,), ctx=GPU)
    kernel(found[0], found[1], out)
    assert set(out.numpy()) == {5.0}
    error = error_of(dl.DeviceError, lambda: kernel(np.ones(70, "float32"), found[1], out))
    assert "cpu" in error and "cuda" in error, error


@check
def memory_that_is_shared() -> None:
    """Kernels refuse an output in an input's memory; a result that is fed again is copied first, into one place."""
    x = ad.Variable("x")
    matmul = tvm_op.make_matrix_mul((8, 8), False, (8, 8), False, "cuda", "llvm", "matmul")
    a, b = (dl.array(np.eye(8, dtype="float32"), GPU) for _ in range(2))
    for given, out in ((a, a), (dl.from_dlpack(Foreign(a), copy=False), a)):
        told = error_of(dl.KernelArgumentError, functools.partial(matmul, given, b, out))
        assert "the output shares memory with input 0" in told, told
    value = np.arange(64, dtype="float32").reshape(8, 8)
    executor = ad.Executor([ops.transpose_op(x) + 1.0, ops.transpose_op(x) @ x], ctx=GPU)
    result, _ = executor.run({x: value})
    value, before = value.T + 1, 0
    for _ in range(5):
        result, product = executor.run({x: result})
        close([result.numpy(), product.numpy()], [value.T + 1, value.T @ value], 1e-4)
        value, used = value.T + 1, dl.devices.allocation_count()
        assert not before or used == before
        before = used


class Foreign:
    """An array of another library: it has DLPack's two methods, a shape, and strides that need not be contiguous."""

    def __init__(self, value: Any) -> None:
        self.value, self.shape, self.dtype = value, value.shape, value.dtype

    def __dlpack__(self, **options: Any) -> Any:
        return self.value.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.value.__dlpack_device__()


@check
def arrays_of_other_libraries() -> None:
    """PyTorch's and CuPy's come by DLPack, without a copy, and ours go to them so."""
    own = dl.array(np.arange(6, dtype="float32").reshape(2, 3), GPU)
    given, out = Foreign(own), dl.devices.zeros((2, 3), ctx=GPU)
    shared, copied = dl.from_dlpack(given, copy=False), dl.from_dlpack(given)
    assert copied.device == shared.device == GPU and shared.__dlpack_device__() == own.__dlpack_device__()
    x = ad.Variable("x")
    executor = ad.Executor([x * 2.0], ctx=GPU)
    before = cuda_on_cpu.count("used")
    assert executor.run({x: given}, True)[0].tolist() == [[0, 2, 4], [6, 8, 10]]
    tvm_op.make_relu((2, 3), "cuda", "llvm", "relu")(given, Foreign(out))
    assert cuda_on_cpu.count("used") - before <= 256  # of the executor's arena
    own[0] = -1  # is seen through both
    assert shared.numpy().tolist() == [[-1, -1, -1], [3, 4, 5]] == dl.array(given, "cpu").numpy().tolist()
    assert out.numpy().tolist() == copied.numpy().tolist() == [[0, 1, 2], [3, 4, 5]]
    shared.add_(1.0)  # is written there
    assert own.numpy().tolist() == [[0, 0, 0], [4, 5, 6]]
    shared.sub_(1.0)
    assert dl.from_dlpack(Foreign(shared * 2.0)).numpy().tolist() == [[-2, -2, -2], [6, 8, 10]]
    error = error_of(dl.DeviceError, lambda: ad.Executor([x * 2.0]).run({x: given}))
    assert "cuda(0)" in error and "cpu" in error, error


@check
def the_course_of_2017() -> None:
    """Its twelve operations, by their own tests."""
    assert dl.cuda.is_available() and test_gpu_op.context() == GPU
    for name, test in vars(test_gpu_op).items():
        if name.startswith("test_"):
            test()


def drawn_digits(count: int) -> dl.data.MNIST:
    rng = np.random.default_rng(0)
    parts = [(rng.random((n, 784), "float32"), rng.integers(0, 10, n)) for n in (count, 40, 40)]
    return dl.data.MNIST(*(array for part in parts for array in part), "drawn")


@check
def the_program() -> None:
    """`mnist_dlsys.py -c gpu` on a few batches prints what it prints on the CPU, but for times."""
    data, told = drawn_digits(150), []
    for context in ("cpu", "gpu"):
        text = io.StringIO()
        with mock.patch.object(mnist_dlsys, "mnist", lambda place: data), redirect_stdout(text):
            assert mnist_dlsys.main(["-l", "-e", "2", "-m", "all", "-c", context, "--batch-size", "50"]) == 0
        told.append([float(number) for number in re.findall(r"(?:loss|accuracy) = ([\d.]+)", text.getvalue())])
    assert len(told[0]) == 6
    np.testing.assert_allclose(told[1], told[0], rtol=1e-4)


@check
def no_allocation_after_the_first_epochs() -> None:
    counts = []
    _, executor, feed = trained(networks.mlp, GPU, 1)
    for epoch in range(30):
        executor.run(feed)
        if epoch + 1 in (10, 30):
            counts.append((executor.allocations, cuda_on_cpu.count("allocations"), cuda_on_cpu.count("used")))
    assert counts[0] == counts[1], counts


@check
def tensors_and_modules() -> None:
    """A loop in PyTorch's style, `fit` and eager values where the leaves lie."""
    x = dl.tensor([[1.0, 2.0], [3.0, 4.0]], device="cuda")
    assert (x.device, (x @ x).device, (x @ x).sum().item()) == (GPU, GPU, 54.0)
    assert ((x * 2.0).to("cpu").device, x.cuda() is x, x.cpu().device) == (dl.cpu(), True, dl.cpu())
    x[0] = 5
    assert x.numpy().tolist() == [[5, 5], [3, 4]] and x.device == GPU
    assert (x + dl.ones(2)).device == GPU  # what lies on the CPU is copied to where the others are
    weight = dl.tensor([1.0, 2.0], requires_grad=True, device=GPU)
    assert "history" in error_of(dl.DeviceError, lambda: (weight * 2.0).to("cpu"))

    def loop(device: str) -> tuple[list[float], Any]:
        dl.manual_seed(0)
        net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3)).to(device)
        optimizer = optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        rng = np.random.default_rng(0)
        images = dl.tensor(rng.standard_normal((16, 4)).astype("float32"), device=device)
        labels, losses = dl.tensor(rng.integers(0, 3, 16), device=device), []
        for _ in range(5):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(net(images), labels)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        assert {p.device for p in net.parameters()} == {dl.context(device)} == {net[0].weight.grad.device}
        return losses, net

    x = np.ones((1, 3, 4), "float32")  # a causal mask serves all models, and leaves each where it is
    for device in ("cuda", "cpu", "cuda"):
        block = nn.GPTBlock(4, 2).to(device)
        assert block(dl.tensor(x, device=device)).device == dl.context(device)
        variable = ad.Variable("x", x.shape, "float32")
        ad.Executor([block(variable)], device).run({variable: x})
        assert {p.device for p in block.parameters()} == {dl.context(device)}

    loop("cuda")  # the random state stays there, and draws nobody after it
    (wanted, on_cpu), (found, on_gpu) = loop("cpu"), loop("cuda")
    np.testing.assert_allclose(found, wanted, rtol=1e-5)
    pairs = zip(on_gpu.state_dict().values(), on_cpu.state_dict().values(), strict=True)
    close(*zip(*((np.asarray(a), np.asarray(b)) for a, b in pairs), strict=True), 2e-5)
    again = on_gpu.to("cpu")
    assert again is on_gpu and {p.device for p in again.parameters()} == {dl.cpu()}

    histories = []
    for device in ("cpu", "cuda"):
        dl.manual_seed(1)
        net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).to(device)
        batches = [(RANDOM[i : i + 16, :4], (RANDOM[i : i + 16, 4] > 0).astype("int64")) for i in (0, 16, 32)]
        optimizer = optim.SGD(net.parameters(), lr=0.1)
        rows = dl.fit(net, nn.functional.cross_entropy, optimizer, batches, epochs=2, progress=False).epochs
        histories.append([row["loss"] for row in rows])
        assert net[0].weight.device == dl.context(device)
    np.testing.assert_allclose(*histories, rtol=1e-5)


# Planted faults


def _faulty(build_node: Callable[..., Any], shapes: Any, change: Callable[[str], str]) -> str:
    """What the device says of a graph whose CUDA code was changed; empty where it says nothing and the result is
    right."""
    variables = [ad.Variable(f"x{i}") for i in range(len(shapes))]
    rng = np.random.default_rng(0)
    feed = {v: rng.standard_normal(s).astype("float32") for v, s in zip(variables, shapes, strict=True)}
    node = build_node(*variables) * (2.0 + next(_number))  # no other check has this kernel
    translated = cuda_on_cpu.translated
    changes = 0

    def altered(code: str) -> str:
        nonlocal changes
        found = change(code)
        changes += found != code
        return translated(found)

    (wanted,) = ad.Executor([node]).run(feed, True)
    with mock.patch.object(cuda_on_cpu, "translated", altered):
        try:
            (result,) = ad.Executor([node], ctx=GPU).run(feed, True)
        except Exception:  # noqa: BLE001 - the device's failure is what is looked at
            assert changes == 1 and cuda_on_cpu.failure()
            told = cuda_on_cpu.failure()
            cuda_on_cpu.recover()
            return told
    assert changes == 1, changes
    return "" if np.allclose(result, wanted, 1e-4, 1e-4) else "wrong"


def _without(what: str, number: int) -> Callable[[str], str]:
    """Takes the occurrence of that number out of code."""

    def change(code: str) -> str:
        parts = code.split(what)
        assert number < len(parts) - 1, code
        return what.join(parts[: number + 1]) + ";" + what.join(parts[number + 1 :])

    return change


@check
def a_barrier_that_is_missing_is_found() -> None:
    for number in range(2):  # between storing a tile and reading it, and the other way round
        told = _faulty(ad.matmul_op, [(64, 64), (64, 64)], _without("__syncthreads();", number))
        assert "a race" in told and "shared array" in told, told
    told = _faulty(ad.softmax_op, [(3, 1024)], _without("__syncthreads();", 0))
    assert "a race" in told, told
    assert _faulty(ad.matmul_op, [(64, 64), (64, 64)], lambda code: code + "\n//") == ""


@check
def a_wait_that_is_missing_is_found() -> None:
    """Late copies arrive after they are read, and what comes to a place that others read is a race."""
    told = _faulty(ad.matmul_op, [(64, 64), (64, 64)], lambda code: code.replace("dlsys_wait();", ";", 1))
    assert told == "wrong" or "a race" in told, told


@check
def an_index_too_far_is_found() -> None:
    def one_more(code: str) -> str:
        return re.sub(r"(in0_ptr\[.*?)\]", r"\1 + 1]", code, count=1)

    def one_less(code: str) -> str:
        return re.sub(r"(in0_ptr\[.*?)\]", r"\1 - 1]", code, count=1)

    for change in (one_more, one_less):
        with exact_bounds():
            told = _faulty(ad.relu_op, [(5, 51)], change)
        named = "in0_ptr" if change is one_more else "before all arrays"
        assert "out of bounds" in told and named in told, told
        told = _faulty(ad.relu_op, [(5, 51)], change)  # the end of what was allocated is known without, too
        assert "out of bounds" in told, told


@check
def what_cannot_be_recorded_runs_as_before() -> None:
    """Memory that is taken, or a driver without graphs: said once, and the step runs call by call."""
    made = lambda: dl.devices.empty((3,), ctx=GPU) and None  # noqa: E731
    error = error_of(dl.DeviceError, lambda: dl.devices.Graph(GPU.device, made))
    assert "memory" in error, error
    wanted, call = batches_trained(dl.cpu(), 5), streams._call

    def failing(function: str, *given: Any) -> None:
        if function == "cudaStreamBeginCapture":
            raise dl.DeviceError("operation not permitted")
        call(function, *given)

    before = cuda_on_cpu.count("graphs")
    with mock.patch.object(streams, "_call", failing), warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        close(batches_trained(GPU, 5), wanted)
    assert cuda_on_cpu.count("graphs") == before
    assert [(one.category, "not permitted" in str(one.message)) for one in told] == [(kernels.ReplayWarning, True)]


@check
def a_kernel_without_threads_is_our_error() -> None:
    from dlsys import schedule
    from dlsys.schedule import cuda

    unbound = schedule.Rule("unbound", "cuda", lambda func, machine: func)
    x = ad.Variable("x")
    node = ops.exp_op(x) + float(next(_number))
    with mock.patch.dict(schedule.RULES, {"cuda": (unbound, cuda.loops.FALLBACK)}):
        error = error_of(dl.TargetError, lambda: ad.Executor([node], ctx=GPU).run({x: np.ones(5, "float32")}))
    assert "threads" in error, error
    with kernels.default_schedules():
        assert "threads" in error_of(dl.TargetError, lambda: tvm_op.make_relu((3,), "cuda", "llvm", "relu"))


def main(names: list[str]) -> None:
    """Runs the checks and prints what came of them."""
    found = {}
    with exact_bounds():
        for name, function in CHECKS.items():
            if names and name not in names:
                continue
            try:
                function()
                found[name] = cuda_on_cpu.failure()
            except Exception:  # noqa: BLE001 - told to who asked
                found[name] = f"{cuda_on_cpu.failure()}\n{traceback.format_exc()}"
            cuda_on_cpu.recover()
    print(json.dumps(found))


if __name__ == "__main__":
    warnings.simplefilter("error")
    main(sys.argv[1:])
