"""Means over ranks in graphs, by ranks that are simulated: buckets, order, errors; what a group of one does."""

from __future__ import annotations

from pathlib import Path

import dlsys as dl
import numpy as np
import pytest
from dlsys import autodiff as ad
from dlsys import deploy, distributed, optim
from dlsys.distributed import Alone, Simulated, using
from dlsys.errors import CommunicationError, GraphError
from helpers import error_of, python
from ranks import network


def trained() -> list[np.ndarray]:
    executor, feed, drawn = network()
    return [*(np.array(executor.run(feed)[0]) for _ in range(4)), *(np.asarray(parameter) for parameter in drawn)]


@pytest.mark.parametrize(("bucket_bytes", "count"), [(1, 5), (6_000, 3), (10**9, 1)])
def test_gradients_travel_in_buckets_and_equal_ranks_train_as_one(bucket_bytes: int, count: int) -> None:
    alone = trained()
    with using(simulated := Simulated(2), bucket_bytes):
        together = trained()
        simulated.log.clear()
        executor, feed, drawn = network()
        executor.run(feed)
    for a, b in zip(alone, together, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-15)
    sent = [nbytes for kind, nbytes in simulated.log if kind == "all_reduce"]
    assert len(sent) == count and sum(sent) == sum(np.asarray(parameter).nbytes for parameter in drawn)


def test_all_ranks_exchange_in_the_same_order_whatever_their_batches_are() -> None:
    logs = []
    for rows in (1, 2, 31, 32):
        with using(simulated := Simulated(2), 1):
            executor, feed, _ = network()
            executor.run({node: value[:rows] for node, value in feed.items()})
        logs.append([entry for entry in simulated.log if entry[0] == "all_reduce"])
    assert all(log == logs[0] for log in logs)


@pytest.mark.parametrize("passes", [(), ("views",), ("fuse",), None])
@pytest.mark.parametrize("ctx", [dl.cpu(), dl.numpy()])
def test_passes_change_no_mean(passes: tuple[str, ...] | None, ctx: dl.Context) -> None:
    x = ad.Variable("x")
    value = np.linspace(-1, 1, 6).reshape(3, 2)
    with using(simulated := Simulated(3)):
        a, b = distributed.mean_over_ranks(ad.exp_op(x)), distributed.mean_over_ranks(ad.relu_op(x) + 1.0)
        again = distributed.mean_over_ranks(a * b)  # of means: a message behind a message
        constant = distributed.mean_over_ranks(ad.zeroslike_op(x) + 2.0)
        nodes = [again, constant, *ad.gradients(again, [x])]
        found = [np.array(v) for v in ad.Executor(nodes, ctx, passes=passes).run({x: value})]
        assert len(simulated.log) >= 2
    wanted = np.exp(value) * (np.maximum(value, 0) + 1)
    np.testing.assert_allclose(found[0], wanted, rtol=1e-14)
    np.testing.assert_array_equal(found[1], np.full((3, 2), 2.0))
    np.testing.assert_allclose(found[2], wanted + np.exp(value) * (value > 0), rtol=1e-14)


def test_a_group_of_one_does_nothing() -> None:
    value = np.arange(3.0)
    assert distributed.size() == 1 and distributed.rank() == distributed.local_rank() == 0
    for function in (distributed.all_reduce, distributed.broadcast, distributed.all_gather):
        assert function(value) is value
    assert distributed.share(5) == slice(0, 5)
    distributed.barrier()
    executor = ad.Executor([distributed.mean_over_ranks((x := ad.Variable("x")) + 1.0)])
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
            assert [i for own in shares for i in range(own.start, own.stop)] == list(range(100, 100 + count))
            lengths = [own.stop - own.start for own in shares]
            assert max(lengths) - min(lengths) <= 1


def test_mistakes_have_names(tmp_path: Path) -> None:
    x = ad.Variable("x")
    with using(Simulated(2)):
        weight = dl.tensor([1.0, 2.0], requires_grad=True)
        (weight * weight).sum().backward()
        assert "distributed.averaged(" in error_of(GraphError, optim.clip_grad_norm_, [weight], 1.0)
        optimizer = optim.SGD([weight], lr=0.5)
        with distributed.averaged(optimizer):
            assert optim.clip_grad_norm_([weight], 100.0).item() == pytest.approx(20**0.5)
            optimizer.step()
        np.testing.assert_array_equal(weight.numpy(), [0.0, 0.0])
        for wrong in ("mean", None):
            assert "one of sum, max, min" in error_of(CommunicationError, distributed.all_reduce, 1.0, wrong)
        step = ad.Executor([distributed.mean_over_ranks(x * 2.0)])
        step.infer_shape({x: (2,)})
        assert "which a library cannot" in error_of(GraphError, deploy.export, step, tmp_path / "step.so")
    for wrong in (0, True, 1.5):
        message = error_of(CommunicationError, distributed.init, bucket_bytes=wrong)
        assert "bucket_bytes must be an integer >= 1" in message
    program = "import sys; sys.modules['mpi4py'] = None\nfrom dlsys import distributed; distributed.init()"
    told = python("-c", program, status=1, PMI_SIZE="2").stderr
    assert "CommunicationError" in told and "needs mpi4py and an MPI: pip install 'dlsys[mpi]'" in told


class Broken(Simulated):
    """Ranks of which one is lost."""

    def run(self, kind: str, send: np.ndarray, receive: np.ndarray, operation: str = "sum", root: int = 0) -> None:
        if kind == "all_reduce":
            raise CommunicationError("rank 1 of 2 is lost")
        super().run(kind, send, receive, operation, root)


def test_what_an_exchange_raises_reaches_the_program_and_no_parameter_changes() -> None:
    with using(Broken(2)):
        executor, feed, drawn = network()
        before = [np.asarray(parameter).copy() for parameter in drawn]
        for _ in range(2):
            assert error_of(CommunicationError, executor.run, feed) == "rank 1 of 2 is lost"
    for parameter, value in zip(drawn, before, strict=True):
        np.testing.assert_array_equal(np.asarray(parameter), value)
