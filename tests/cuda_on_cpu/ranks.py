"""What several processes exchange by NCCL, on a stand-in for it and an emulated device each: `mpiexec -n 2 python -m
cuda_on_cpu.ranks`, in the folder of the tests. Prints "ok" for each rank; `test_ranks.py` runs it.
"""

from __future__ import annotations

import os
import sys
import warnings
from typing import Any
from unittest import mock

import numpy as np

import cuda_on_cpu

if __name__ == "__main__":
    cuda_on_cpu.install()  # before anything imports TVM

import dlsys as dl
from dlsys import autodiff as ad
from dlsys import distributed, optim
from dlsys.devices import nccl, streams
from dlsys.errors import CommunicationError, DeviceError
from helpers import error_of

distributed.init(bucket_bytes=256, print_all=True)
GPU, CPU = dl.cuda(0), dl.cpu()
RANK, SIZE = distributed.rank(), distributed.size()
SHAPE = (8, 8)
FEEDS = [np.random.default_rng((7, RANK, i)).standard_normal((4, 8)).astype("float32") for i in range(6)]


class Training:
    """A step of two layers, in two buckets."""

    def __init__(self, ctx: Any) -> None:
        rng = np.random.default_rng(0)
        self.ctx = ctx
        self.weights = [ad.Parameter(rng.standard_normal(SHAPE).astype("float32"), f"w{i}") for i in range(2)]
        self.x = h = ad.Variable("x")
        for weight in self.weights:
            h = ad.relu_op(h @ weight)
        loss = ad.mean_op(h * h)
        self.executor = ad.Executor([loss, optim.SGD(self.weights, lr=0.1).minimize(loss)], ctx)

    def run(self, steps: int, feed: Any = None) -> list[np.ndarray]:
        """The losses and the weights after some steps."""
        losses = []
        for value in FEEDS[:steps]:
            losses.append(self.executor.run({self.x: value if feed is None else feed(value)}, True)[0])
        return [*losses, *(np.asarray(weight.numpy()) for weight in self.weights)]


def close(found: list[np.ndarray], wanted: list[np.ndarray]) -> bool:
    """Whether values are equal to rounding, on this rank."""
    return all(np.allclose(a, b, rtol=1e-5, atol=1e-6) for a, b in zip(found, wanted, strict=True))


def main() -> None:
    wanted = Training(CPU).run(6)
    training = Training(GPU)
    assert "pip install nvidia-nccl" in error_of(DeviceError, lambda: training.run(1))
    cuda_on_cpu.load_nccl()
    assert f"ranks 0 and {SIZE - 1} are on one GPU" in error_of(CommunicationError, lambda: training.run(1))
    os.environ["EMULATED_BUS"] = f"0000:0{RANK}:00.0"
    wrong = error_of(CommunicationError, lambda: nccl.Nccl(GPU, SIZE, SIZE, bytes(128)))
    assert wrong == f"ncclCommInitRank: invalid argument: rank {SIZE} of {SIZE}", wrong

    for early in (False, True):  # copies and messages, as late or as early as streams allow
        with cuda_on_cpu.settings(early=early), mock.patch.object(nccl, "_call", wraps=nccl._call) as asked:
            training, before = Training(GPU), cuda_on_cpu.count("graphs")
            found = training.run(6)
        assert close(found, wanted), (early, found, wanted)
        assert cuda_on_cpu.count("graphs") == before + 4  # recorded at the third step: feeds lie in two places in turn
        names = [one.args[0] for one in asked.call_args_list]
        assert names.count("ncclAllReduce") == 2 * (2 + 2), names  # two buckets, twice asked for and twice recorded
        for weight in found[-2:]:  # the same bits on all ranks
            assert np.ptp(distributed.all_gather(weight[None]), axis=0).max() == 0
        optim.SGD(training.weights, lr=0.1).synchronize()
        assert {weight.device for weight in training.weights} == {GPU}
        groups = training.executor.groups()
        assert groups.count("start_bucket") == groups.count("wait_bucket") == 2, groups

    def fed(value: np.ndarray) -> Any:  # where no rank but 0 has been fed before: no rank replays
        kept.append(dl.array(value, GPU))
        if RANK:
            return kept[-1]
        return kept[0].copyfrom(value)

    kept: list[Any] = []
    before = cuda_on_cpu.count("graphs")
    assert close(Training(GPU).run(6, fed), wanted) and cuda_on_cpu.count("graphs") == before

    call = streams._call
    for name, on_messages, early in (("ready", True, True), ("done", False, False)):  # planted faults
        left_out = 0

        def without(function: str, *given: Any, on_messages: bool = on_messages) -> None:
            nonlocal left_out
            if function == "cudaStreamWaitEvent" and (given[0] is streams._stream(0, "messages")) is on_messages:
                left_out += 1
            else:
                call(function, *given)

        with cuda_on_cpu.settings(early=early), mock.patch.object(streams, "_call", without):
            wrong_values = Training(GPU).run(1, lambda value: dl.array(value, GPU))
        assert left_out >= 2 and not close(wrong_values, [wanted[0], *Training(CPU).run(1)[1:]]), name

    def fork() -> None:  # without a join: CUDA records no such graph
        event, recorded = streams._made("cudaEventCreateWithFlags", streams._UNTIMED), streams._stream(0, "graphs")
        streams._call("cudaEventRecord", event, recorded)
        streams._call("cudaStreamWaitEvent", streams._stream(0, "messages"), event, 0)

    assert "cudaStreamEndCapture" in error_of(DeviceError, lambda: dl.devices.Graph(GPU.device, fork))

    a = ad.Variable("a")
    gathered, largest = ad.all_gather_op(a * 1.0), ad.all_reduce_op(a + 1.0, "max")
    nodes = [gathered, largest, ad.reduce_scatter_op(gathered * 2.0)]
    value = np.arange(6, dtype="float32").reshape(3, 2) + 10 * RANK
    for found, expected in zip(ad.Executor(nodes, GPU).run({a: value}, True), ad.Executor(nodes).run({a: value}, True),
                               strict=True):  # fmt: skip
        np.testing.assert_array_equal(found, expected)
    for given in (dl.array(value, GPU), dl.tensor(value, device="cuda")):
        summed = distributed.all_reduce(given)
        assert summed.context == GPU and np.array_equal(summed.numpy(), distributed.all_reduce(value))
    assert not cuda_on_cpu.failure()
    distributed.barrier()
    print("ok", flush=True)


if __name__ == "__main__":
    warnings.simplefilter("error")
    sys.exit(main())
