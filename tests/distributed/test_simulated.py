"""The compiler's part of several processes, by a simulated link: buckets, order, memory, time, errors."""

from __future__ import annotations

import math
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import dlsys as dl
import numpy as np
import pytest
from dlsys import autodiff as ad
from dlsys import distributed, optim
from dlsys.compiler.buckets import CALL, cuts
from dlsys.compiler.messages import START
from dlsys.distributed import Alone, Link, Simulated, using
from dlsys.errors import CommunicationError, GraphError, ShapeError
from dlsys.watching import Board, watch
from dlsys.watching.watch import lost
from helpers import error_of, on_threads, python

SHAPES = (64, 96), (96,), (96, 80), (80,), (80, 10)


def network(width: int = 1, momentum: float = 0.0) -> tuple[ad.Executor, dict[ad.Node, np.ndarray], list[ad.Parameter]]:
    """A training step of three layers, what it is fed, and its parameters."""
    rng = np.random.default_rng(3)
    shapes = [tuple(width * extent for extent in shape) for shape in SHAPES]
    drawn = [ad.Parameter(0.1 * rng.standard_normal(shape), f"p{i}") for i, shape in enumerate(shapes)]
    w1, b1, w2, b2, w3 = drawn
    x, y = ad.Variable("x"), ad.Variable("y")
    h = ad.relu_op(ad.relu_op(x @ w1 + b1) @ w2 + b2)
    loss = ad.mse_loss_op(h @ w3, y)
    executor = ad.Executor([loss, optim.SGD(drawn, lr=0.1, momentum=momentum).minimize(loss)])
    rows = 32 * width
    feed = {x: rng.standard_normal((rows, 64 * width)), y: rng.standard_normal((rows, 10 * width))}
    return executor, feed, drawn


def trained(steps: int = 4) -> list[np.ndarray]:
    executor, feed, drawn = network(momentum=0.9)
    losses = [np.array(executor.run(feed)[0]) for _ in range(steps)]
    return [*losses, *(np.asarray(parameter) for parameter in drawn)]


@pytest.mark.parametrize("bucket_bytes", [None, 1, 40_000, 10**9])
def test_ranks_with_equal_gradients_train_as_one(bucket_bytes: int | None) -> None:
    alone = trained()
    with using(Simulated(2, 1e-6, 1e12), bucket_bytes):
        together = trained()
    for a, b in zip(alone, together, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-15)


def test_each_bucket_starts_before_the_last_gradient_and_is_awaited_before_its_update() -> None:
    with using(Simulated(2, 1e-6, 1e12), 6_000):
        executor, feed, _ = network()
        executor.run(feed)
        groups = executor.latest_plan().program.groups
    names = [group.name for group in groups]
    starts = [i for i, name in enumerate(names) if name.startswith("start")]
    waits = [i for i, name in enumerate(names) if name.startswith("wait")]
    assert [names[i] for i in starts] == [f"start_bucket_{k}" for k in range(3)]
    kernels = [i for i, group in enumerate(groups) if group.kind == "contraction"]
    assert max(starts[:-1]) < kernels[-1] < starts[-1] < waits[0]  # the last gradient is a product
    updated = {parameter for parameter, _ in executor.latest_plan().program.graph.updates}
    for k, wait in enumerate(waits):
        end = waits[k + 1] if k + 1 < len(waits) else len(groups)
        assert end > wait + 1 and all(updated & {*group.inputs} for group in groups[wait + 1 : end])  # its updates
    calls = [call.symbol for call in executor.latest_plan().calls]
    between = calls[calls.index("start_bucket_0") : calls.index("wait_bucket_0")]
    assert between.count("test") >= len([i for i in kernels if i > starts[0]])


def test_gradients_are_computed_in_their_bucket_without_a_copy() -> None:
    with using(Simulated(2, 1e-6, 1e12), 10**9):
        executor, feed, _ = network()
        executor.run(feed)
        plan = executor.latest_plan()
        assert not any("copy" in group.name or "concat" in group.name for group in plan.program.groups)
        (start,) = (node for node in plan.program.graph.nodes if node.op is START)
        buffer = plan.memory.buffer_of[start]
        total = sum(8 * int(np.prod(shape)) for shape in SHAPES)
        assert buffer.nbytes == total
        assert "concatenate" in executor.groups() and "messages" in executor.plan()
        assert "a bucket of" in executor.graph(optimized=True, reasons=True)
        assert "wait_bucket_0" in str(executor.profile(feed, runs=1))


def test_a_gradient_that_others_read_is_copied() -> None:
    x, w = ad.Variable("x"), ad.Parameter(np.ones((3, 2)), "w")
    local = ad.gradients(ad.reducesum_op((x @ w) * (x @ w)), [w])[0]
    with using(Simulated(4, 0.0, 1e12)):
        shared = ad.all_reduce_op(local)
        nodes = [local, shared, local * 2.0, ad.all_reduce_op(w), ad.all_reduce_op(x[0]), ad.all_reduce_op(shared)]
        values = [np.array(v) for v in ad.Executor(nodes).run({x: np.arange(6.0).reshape(2, 3)})]
    np.testing.assert_array_equal(values[1], 4 * values[0])
    np.testing.assert_array_equal(values[2], 2 * values[0])
    np.testing.assert_array_equal(values[3], np.full((3, 2), 4.0))
    np.testing.assert_array_equal(values[4], 4 * np.arange(3.0))
    np.testing.assert_array_equal(values[5], 16 * values[0])  # a message behind a message
    np.testing.assert_array_equal(np.asarray(w), np.ones((3, 2)))


@pytest.mark.parametrize("passes", [(), ("views",), ("fuse",), None])
def test_passes_change_no_exchange(passes: tuple[str, ...] | None) -> None:
    x = ad.Variable("x")
    with using(Simulated(3, 0.0, 1e12)):
        a, b = ad.all_reduce_op(ad.exp_op(x)), ad.all_reduce_op(ad.relu_op(x) + 1.0)
        nodes = [a * b, ad.all_gather_op(x + 1.0), ad.reduce_scatter_op(x * 2.0)]
        value = np.linspace(-1, 1, 6).reshape(3, 2)
        found = [np.array(v) for v in ad.Executor(nodes, passes=passes).run({x: value})]
    np.testing.assert_allclose(found[0], 9 * np.exp(value) * (np.maximum(value, 0) + 1), rtol=1e-14)
    np.testing.assert_array_equal(found[1], np.tile(value + 1, (3, 1)))
    np.testing.assert_array_equal(found[2], 6 * value[:1])


def seconds_of(functions: Sequence[Callable[[], object]], times: int = 40) -> list[float]:
    """The least of each, measured in turn: other programs run beside the tests."""
    found = [math.inf] * len(functions)
    for _ in range(times):
        for i, function in enumerate(functions):
            began = time.perf_counter()
            function()
            found[i] = min(found[i], time.perf_counter() - began)
    return found


def deep(layers: int = 8, width: int = 384) -> tuple[ad.Executor, dict[ad.Node, np.ndarray]]:
    """A training step of many equal layers."""
    rng = np.random.default_rng(4)
    x, h = (ad.Variable("x"),) * 2
    drawn = [ad.Parameter(0.05 * rng.standard_normal((width, width)), f"w{i}") for i in range(layers)]
    for weight in drawn:
        h = ad.relu_op(h @ weight)
    loss = ad.mean_op(h * h)
    return ad.Executor([loss, optim.SGD(drawn, lr=0.01).minimize(loss)]), {x: rng.standard_normal((256, width))}


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.2, 0.4])  # of the time of computation: what the backward pass can hide
def test_computation_hides_the_messages(share: float) -> None:
    nbytes, latency = 8 * 8 * 384 * 384, 1e-4
    with on_threads(1):
        with using(Simulated(2, 0.0, 1e15), nbytes // 8):
            fast, feed = deep()
            fast.run(feed)
        (compute,) = seconds_of([lambda: fast.run(feed)], 15)
        bandwidth = nbytes / (share * compute - 8 * latency)
        with using(Simulated(2, latency, bandwidth), nbytes // 8) as group:
            slow, feed_of = deep()
            slow.run(feed_of)
            log = group.communicator.log  # type: ignore[attr-defined]
            log.clear()
            slow.run(feed_of)
        messages = [latency + size / bandwidth for _, size in log]
        assert len(messages) == 8
        for _ in range(8):  # until one measurement was not disturbed
            compute, best = seconds_of([lambda: fast.run(feed), lambda: slow.run(feed_of)], 20)
            bar = 1.05 * max(compute, sum(messages)) + messages[-1]
            if best < bar:
                break
    assert best < bar < compute + sum(messages), (share, best, bar, compute, messages)
    print(f"{share}: computation {compute:.4f} s, messages {sum(messages):.4f} s, step {best:.4f} s, bar {bar:.4f} s")


def test_cuts_are_those_that_end_first() -> None:
    rng = np.random.default_rng(5)

    def end(sizes: list[int], left: list[float], link: Link, ends: tuple[int, ...]) -> float:
        time_, first = 0.0, 0
        for last in ends:
            ready = max(left) - left[last - 1]
            time_ = max(time_, ready) + CALL + link.seconds(sum(sizes[first:last]))
            first = last
        return time_

    for _ in range(50):
        count = int(rng.integers(1, 8))
        sizes = [int(size) for size in rng.integers(1, 10**6, count)]
        left = sorted(rng.uniform(0, 1e-2, count).tolist(), reverse=True)
        link = Link(float(10 ** rng.uniform(-6, -3)), float(10 ** rng.uniform(8, 10)))
        found = cuts(sizes, left, link)
        ways = []
        for mask in range(1 << (count - 1)):
            inner = [i + 1 for i in range(count - 1) if mask >> i & 1]
            ways.append(end(sizes, left, link, (*inner, count)))
        assert end(sizes, left, link, found) <= min(ways) * (1 + 1e-12) + CALL
    assert cuts([10, 10, 10, 10, 5], [0.0] * 5, Link(1e-6, 1e9), 20) == (2, 4, 5)


def test_relax_has_the_exchanges_too() -> None:
    x = ad.Variable("x")
    with using(Simulated(2, 0.0, 1e12)):
        nodes = [ad.all_reduce_op(ad.relu_op(x), "max"), ad.all_gather_op(x)]
        told = dl.relax.to_relax(nodes, {x: (4, 3)}).script()
        assert re.search(r'R.ccl.allreduce\(relu_\d+, op_type="max", in_group=False\)', told), told
        assert "R.ccl.allgather(x, num_workers=2, in_group=False)" in told, told
        assert 'R.Tensor((8, 3), dtype="float32")' in told
        scattered = ad.reduce_scatter_op(x)
        assert "has no operator in Relax" in error_of(GraphError, dl.relax.to_relax, scattered, {x: (4, 3)})


def test_a_group_of_one_does_nothing() -> None:
    value = np.arange(3.0)
    assert distributed.size() == 1 and distributed.rank() == distributed.local_rank() == 0
    for function in (distributed.all_reduce, distributed.broadcast, distributed.all_gather, distributed.reduce_scatter):
        assert function(value) is value
    assert distributed.share(5) == slice(0, 5) and distributed.device() in (dl.cpu(), dl.cuda(0))
    distributed.barrier()
    x = ad.Variable("x")
    executor = ad.Executor([ad.all_reduce_op(x + 1.0)])
    executor.run({x: value})
    assert "bucket" not in executor.groups()


def test_shares_are_disjoint_and_even() -> None:
    for size in (1, 2, 3, 7):
        for count in range(10):
            shares = []
            for rank in range(size):
                one = Alone()
                one.rank, one.size = rank, size
                with using(one):
                    shares.append(distributed.share(slice(100, 100 + count)))
            rows = [i for own in shares for i in range(own.start, own.stop)]
            assert rows == list(range(100, 100 + count))
            lengths = [own.stop - own.start for own in shares]
            assert max(lengths) - min(lengths) <= 1


def test_what_differs_between_ranks_is_an_error() -> None:
    x = ad.Variable("x")
    with using(Simulated(2, 0.0, 1e12)):
        uneven = ad.Executor([ad.reduce_scatter_op(x)])
        assert "a multiple of the 2 ranks" in error_of(ShapeError, uneven.run, {x: [1.0]})
        assert "no gradient" in error_of(GraphError, ad.gradients, ad.all_reduce_op(x, "max"), [x])
        weight = dl.tensor([1.0, 2.0], requires_grad=True)
        (weight * weight).sum().backward()
        assert "fit(clip_norm=)" in error_of(GraphError, optim.clip_grad_norm_, [weight], 1.0)
        optim.SGD([weight], lr=0.5).step()
        np.testing.assert_array_equal(weight.numpy(), [0.0, 0.0])
        assert "one of sum, max, min" in error_of(CommunicationError, distributed.all_reduce, 1.0, "mean")
        step = ad.Executor([ad.all_reduce_op(x * 2.0)])
        step.infer_shape({x: (2,)})
        assert "which a library cannot" in error_of(GraphError, step.export, "step.so")
    assert "'sum', 'max' or 'min'" in error_of(GraphError, ad.all_reduce_op, x, "mean")
    assert "positive number of bytes" in error_of(CommunicationError, distributed.init, bucket_bytes=0)


def test_the_watcher_knows_who_is_missing() -> None:
    rows = bytearray(1024)
    boards = [Board(), Board()]

    def told(limit: float) -> str:
        for i, board in enumerate(boards):
            rows[512 * i : 512 * (i + 1)] = bytes(board._row)
        return lost(memoryview(rows), (4, 5), 6, limit)[1]

    boards[0].begins()
    boards[0].waits()
    time.sleep(0.02)
    assert told(10.0) == "" and "rank 5 of 6 hangs" in told(0.01)
    with boards[1].busy("compiling kernels"):
        time.sleep(0.02)
        assert told(0.01) == ""  # it is waited for 30 times as long
    assert told(0.01) == ""  # from then on anew
    boards[1].leaves()
    assert "rank 5 of 6 has left" in told(10.0)


@pytest.mark.parametrize("to_file", [True, False])
def test_the_watcher_tells_what_a_launcher_no_longer_forwards(to_file: bool, tmp_path: Path) -> None:
    """A launcher that ends at once, and a process that tells something afterwards, to a closed pipe."""
    child = (
        "import os, sys, time; sys.path.insert(0, sys.argv[1]); import watch\n"
        "outlet = watch.Outlet(os.getpid()); print('ready', flush=True)\n"
        "time.sleep(0.2); outlet.tell('rank 1 of 2 died', [], True)\n"
    )
    launcher = (
        "import os, subprocess, sys; unread, told = os.pipe(); told = os.fdopen(told, 'w')\n"
        "found = subprocess.Popen([sys.argv[1], '-c', sys.argv[2], sys.argv[3]], stdout=subprocess.PIPE, stderr=told)\n"
        "found.stdout.readline(); os.close(unread); os.write(2, b'first\\n'); os._exit(9)\n"
    )
    (tmp_path / "mpiexec").symlink_to(sys.executable)  # the name of a process is its file's
    program = [tmp_path / "mpiexec", "-I", "-S", "-c", launcher, sys.executable, child, Path(watch.__file__).parent]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(program, stderr=log if to_file else subprocess.PIPE)
        found = (process.communicate(timeout=60)[1] or b"").decode()
    end = time.monotonic() + 20
    while to_file and found.count("\n") < 2 and time.monotonic() < end:
        time.sleep(0.05)
        found = (tmp_path / "log").read_text()
    assert process.returncode == 9 and found == "first\ndlsys: rank 1 of 2 died\n"


def test_elastic_training_alone_is_usual_training(tmp_path: Path) -> None:
    model = dl.nn.Linear(3, 2).double()
    arguments = model, dl.nn.MSELoss(), optim.SGD(model.parameters(), lr=0.1), [(np.ones((4, 3)), np.ones((4, 2)))]
    assert "elastic=True needs a directory" in error_of(GraphError, dl.fit, *arguments, epochs=1, elastic=True)
    history = dl.fit(*arguments, epochs=2, elastic=True, directory=tmp_path, progress=False)
    assert len(history.losses) == 2 and (tmp_path / "last.safetensors").exists()


def test_without_mpi4py_one_sentence_says_what_to_install() -> None:
    program = (
        "import sys; sys.modules['mpi4py'] = None\n"
        "from dlsys import distributed, errors\n"
        "try: distributed.init()\n"
        "except errors.CommunicationError as error: print(error)\n"
    )
    assert "needs mpi4py and an MPI: pip install 'dlsys[mpi]'" in python("-c", program, PMI_SIZE="2").stdout
