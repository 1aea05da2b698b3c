"""Tensors: values on demand, backward, transforms of functions, exchange by DLPack, random state."""

from __future__ import annotations

import gc
import operator
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import dlsys as dl
import numpy as np
import pytest
from dlsys import autodiff as ad
from dlsys import nn, optim, tensors
from dlsys.errors import DeviceError, DTypeError, GraphError
from helpers import error_of
from optional import torch


def random(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


def test_a_tensor_holds_data_and_operators_build_graph() -> None:
    a = dl.tensor([[1, 2], [3, 4.5]])
    assert (a.shape, a.dtype, a.ndim, len(a)) == ((2, 2), "float32", 2, 2)
    b = a @ a + 1.0
    assert b.held is None and (b.shape, b.dtype) == ((2, 2), "float32")
    np.testing.assert_allclose(b.numpy(), a.numpy() @ a.numpy() + 1)
    assert b.held is not None
    assert float(b.sum()) == float(b.numpy().sum()) and f"{b.sum():.2f}" == f"{b.numpy().sum():.2f}"
    assert isinstance(b, dl.Tensor) and repr(dl.tensor([1.0, 2.5])) == "tensor([1. , 2.5])"
    assert repr(dl.tensor(2.0, requires_grad=True) * 2.0) == "tensor(4., requires_grad=True)"
    assert repr(ad.Variable("v") + 1.0).startswith("add_")
    assert "'tpu' names no dtype and no device" in error_of(dl.DTypeError, a.to, "tpu")
    wrong = error_of(dl.ShapeError, lambda: a @ dl.tensor([[1.0, 2.0]]))
    assert wrong.startswith("matmul: inner dimensions differ") and "test_tensors.py:" in wrong
    assert [row.tolist() for row in dl.tensor([[1.0], [2.0]])] == [[1.0], [2.0]]


def test_dtypes_are_those_of_the_data() -> None:
    given = [([1, 2], "int64"), ([1.0], "float32"), ([True], "bool"), (np.zeros(2), "float64"), (3, "int64")]
    given += [(np.float64(2), "float64"), (np.zeros(2, "float32"), "float32"), (2.5, "float32")]
    for value, dtype in given:
        assert dl.tensor(value).dtype == dtype, value
    assert dl.tensor([1, 2], "float64").dtype == "float64"


def test_a_value_does_not_follow_a_buffer_that_is_written_later() -> None:
    for library in (np.zeros(2, "float32"), torch.zeros(2)):
        ways = {
            "from_dlpack": dl.from_dlpack,
            "tensor": dl.tensor,
            "as_tensor": dl.as_tensor,
            "operand": lambda a: dl.ones(2) + a,
            "function": dl.relu,
            "module": dl.nn.Identity(),
            "index": lambda a: dl.arange(10)[a.astype("int64") if isinstance(a, np.ndarray) else a.long()],
            "condition": lambda a: dl.where(a > 100, dl.ones(2), a),
            "parameter": dl.nn.Parameter,
        }
        if library.__class__ is np.ndarray:
            ways["from_numpy"] = dl.from_numpy
        for name, make in ways.items():
            made, wanted = [], []
            for number in (0.0, 4.0, 8.0):
                library[:] = number
                made.append(make(library) * 2)
                wanted.append([2 * (number + (name == "operand"))] * 2)
            library[:] = 9.0
            assert [node.tolist() for node in made] == wanted, name


WRITES = (
    lambda leaf: leaf.add_(1),
    lambda leaf: leaf.copyfrom([8, 2, 3, 4]),
    lambda leaf: leaf.__setitem__(0, 8),
    lambda leaf: setattr(leaf, "data", [8, 2, 3, 4]),
    lambda leaf: ad.Executor([ad.assign(leaf, leaf * 1.0)]).run({}),
    lambda leaf: ad.Executor([ad.assign(leaf, leaf * 1.0)], "numpy").run({}),
    lambda leaf: tensors.evaluate([ad.assign(leaf, leaf * 1.0)]),
)


def test_memory_is_shared_where_it_is_asked_for() -> None:
    for source, share in ((np.arange(4, dtype="float32"), dl.from_numpy), (torch.arange(4.0), dl.from_dlpack)):
        shared = share(source, copy=False)
        waiting, early = shared * 2, shared * 2
        assert early.tolist() == [0, 2, 4, 6]
        source[0] = 7  # dlsys does not see it
        assert shared.tolist() == [7, 1, 2, 3] and waiting.tolist() == [14, 2, 4, 6] and early.tolist()[0] == 0
        waiting = shared * 2
        for write in WRITES:
            write(shared)  # into the array, as dlsys sees
            assert list(source) == shared.tolist() == [8, 2, 3, 4]
            assert "overwritten since" in error_of(GraphError, waiting.numpy)
            waiting = shared * 2
    frozen = np.zeros(2)
    frozen.flags.writeable = False
    for wrong in (frozen, np.zeros((2, 3)).T, np.zeros(2, ">f4"), np.zeros(17, "uint8")[1:].view("float64")):
        assert "cannot be shared" in error_of(DTypeError, dl.from_numpy, wrong, copy=False)
        np.testing.assert_array_equal(dl.from_numpy(wrong).numpy(), wrong)
    assert "cannot be shared" in error_of(DTypeError, dl.from_dlpack, torch.zeros(2, 3).T, copy=False)
    error_of(DTypeError, dl.from_dlpack, [1.0])
    error_of(DTypeError, dl.from_numpy, torch.zeros(2))


def test_arrays_go_without_a_copy() -> None:
    result = dl.tensor(random(2, 3)) * 2.0
    as_torch, as_numpy = torch.from_dlpack(result), np.from_dlpack(result)
    assert as_torch.data_ptr() == as_numpy.ctypes.data
    np.testing.assert_array_equal(np.asarray(result), as_numpy)
    leaf = dl.from_dlpack(torch.arange(6.0).reshape(2, 3))
    (found,) = ad.Executor([leaf + 1.0]).run({})  # a leaf of any graph
    np.testing.assert_array_equal(found.numpy(), leaf.numpy() + 1)


def test_writes_to_arrays_of_tensors_are_errors() -> None:
    leaf = dl.tensor([1.0, 2.0])
    for x in (leaf, leaf * 1.0):
        for array in (x.numpy(), np.asarray(x), np.asarray(x, "float64"), x.value):
            assert array.tolist() == [1, 2]
            assert "read-only" in error_of(ValueError, array.__setitem__, 0, 5.0)
        own = np.array(x)
        own[0] = 5
        assert x.tolist() == [1, 2]
        if np.lib.NumpyVersion(np.__version__) >= "2.0.0":
            view = np.array(x, copy=False)
            assert view.ctypes.data == np.from_dlpack(x).ctypes.data and not view.flags.writeable
            assert "needs a copy" in error_of(ValueError, np.array, x, "float64", copy=False)
    state = dl.nn.Linear(2, 2).state_dict()
    state["bias"] += 1  # copies that may be written


def test_what_is_detached_from_a_leaf_is_the_leaf_without_history() -> None:
    for name in ("detach", "data"):
        for write in (lambda d: d.add_(1), lambda d: d.__setitem__(..., 2), lambda d: d.copyfrom([2.0, 2.0])):
            p = dl.nn.Parameter(np.ones(2))
            d = p.detach() if name == "detach" else p.data
            assert d.is_leaf and not d.requires_grad and p.requires_grad
            write(d)
            assert p.tolist() == d.tolist() == [2, 2]
            p.data += 1
            assert p.tolist() == d.tolist() == [3, 3]
    y = p * 2
    d = y.detach()
    d += 1  # of what is computed a leaf of its own
    ad.Executor([ad.assign(d, d * 2)]).run({})
    assert y.tolist() == [6, 6] and d.tolist() == [14, 14]


def test_a_run_reads_the_old_value_by_all_names_of_a_leaf() -> None:
    for ctx in ("cpu", "numpy"):
        for names in (lambda p: (p, p.detach()), lambda p: (p.data, p), lambda p: (p.detach(), p.data)):
            p = dl.nn.Parameter(np.ones((3, 3)))
            written, read = names(p)
            run = ad.Executor([ad.assign(written, written * 2 + 1), ad.transpose_op(read) @ read, read * 1], ctx)
            for value in (1.0, 3.0):
                found = [np.asarray(x) for x in run.run({})]
                assert (found[1] == 3 * value**2).all() and (found[2] == value).all()
                assert (p.numpy() == 2 * value + 1).all()
            twice = ad.group([ad.assign(written, written + 1), ad.assign(read, read + 1)])
            assert "assigned twice" in error_of(GraphError, ad.Executor([twice], ctx).run, {})
            assert "assigned twice" in error_of(GraphError, tensors.evaluate, [twice])


def test_updates_that_come_with_a_value_are_made_once() -> None:
    count = ad.Parameter(np.zeros(1), "count")
    y = ad.with_updates_op(dl.tensor([2.0], "float64") * 3.0, [ad.assign(count, count + 1.0)])
    z = y * y
    for _ in range(2):
        assert z.numpy() == 36.0 and (z + 1.0).numpy() == 37.0 and y.numpy() == 6.0
    assert count.value == 1.0
    ad.assign(count, count * 10.0).numpy()
    assert count.value == 10.0


def test_random_state_decides_all_numbers() -> None:
    def draw() -> list[np.ndarray]:
        dl.manual_seed(7)
        return [dl.rand(3, 2).numpy(), dl.randn(4).numpy(), dl.random.default_generator.numpy().uniform(size=2)]

    first, second = draw(), draw()
    for a, b in zip(first, second, strict=True):
        np.testing.assert_array_equal(a, b)
    dl.manual_seed(7)
    drawn = [dl.rand(2).numpy() for _ in range(3)]
    assert dl.random.default_generator.state.value.tolist() == [7, 0, 0, 0]
    assert len({value.tobytes() for value in drawn}) == 3
    dl.manual_seed(8)
    assert not np.array_equal(dl.rand(3, 2).numpy(), first[0])
    state = dl.random.default_generator.state_dict()
    following = dl.rand(5).numpy()
    dl.random.default_generator.load_state_dict(state)
    np.testing.assert_array_equal(dl.rand(5).numpy(), following)
    for seed in (-1, 2**64, 1.5):
        error_of(GraphError, dl.manual_seed, seed)


def test_a_compiled_graph_draws_anew_in_every_run_and_a_kept_one_does_not() -> None:
    generator = dl.random.Generator(3)
    key = generator.key()
    drawn = generator.drawing(ad.random_uniform_op(key, (4,)))
    executor = ad.Executor([drawn])
    first, second = (executor.run({}, convert_to_numpy_ret_vals=True)[0] for _ in range(2))
    assert not np.array_equal(first, second) and generator.state.value[3] == 2
    kept = generator.drawing(ad.random_uniform_op(generator.key(), (4,)) * 2.0)
    doubled = (kept * 2.0).numpy()
    np.testing.assert_array_equal(kept.numpy() * 2, doubled)
    assert generator.state.value[3] == 2  # values on demand are the same whenever they are asked for


@pytest.mark.slow
@pytest.mark.usefixtures("young")
def test_deep_graphs_and_threads() -> None:
    x = dl.tensor([1.0], requires_grad=True)
    node: ad.Node = x
    for _ in range(3000):
        node = node + 1.0
    assert node.shape == (1,)
    node.backward()
    assert float(node) == 3001.0 and float(x.grad) == 1.0
    found: list[float] = []

    def work(seed: int) -> None:
        for i in range(20):
            found.append(float((dl.tensor([float(seed + i)]) * 2.0).sum()) - 2 * (seed + i))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 80 and not any(found)
    del node
    gc.collect()
    assert tensors.known_shape(x) == (1,) and tensors.known_shape(ad.Variable("v")) is None


def test_values_are_those_of_the_time_when_a_node_was_made() -> None:
    w = dl.tensor([1.0, 2.0], requires_grad=True)
    h = w * w
    y = h * w
    out = w * 3.0
    h.numpy()
    w.value = np.array([10.0, 10.0])
    assert y.numpy().tolist() == [1.0, 8.0] and out.numpy().tolist() == [3.0, 6.0]
    assert (h * w).numpy().tolist() == [10.0, 40.0]  # made now, of the h that was
    late, kept = w * 2.0, (w * 2.0).sum()
    kept.numpy()
    for value in (3.0, 4.0):
        w.value = [value, value]
    assert late.tolist() == [20.0, 20.0] and float(kept) == 40.0  # computed when w changed for the second time
    lost = w * 2.0
    dl.autodiff.Executor([dl.autodiff.assign_op(w, w + 1.0)]).run({})  # which writes w's own memory
    told = error_of(GraphError, lost.numpy)
    assert "overwritten since" in told and "test_tensors.py:" in told
    assert repr(lost) == f"<tensor that fails: GraphError: {told}>"
    kept.backward()  # through the w that was
    assert w.grad.tolist() == [2.0, 2.0]


def test_gradients_go_through_an_assignment_to_its_value_alone() -> None:
    parameter, value = dl.autodiff.Parameter(np.zeros(2, "f4")), dl.tensor([1.0, 2.0], requires_grad=True)
    given = dl.autodiff.assign(parameter, value)
    (found,) = dl.autograd.grad((given * value).sum(), value)  # the parameter's old content has nothing to do with it
    assert found.tolist() == [2.0, 4.0]


@pytest.mark.slow
def test_methods_are_pytorchs() -> None:
    values = random(4, 6)
    x, t = dl.tensor(values), torch.tensor(values)
    index = np.array([[2, 0], [1, 1], [0, 3], [5, 5]])
    i, j = torch.tensor(index), dl.tensor(index)
    mine = [
        *(x.std(), x.std(dim=1), x.argmin(dim=1), x.t(), x.swapaxes(0, 1), x.flip(1)),
        *(*x.split(4, dim=1), *x.chunk(3, dim=1), x.gather(1, j)),
        *(x.masked_fill(x > 0.0, 7.0), x.clone(), x.float(), (x * 3.0).long(), (x > 0.0).int(), x.exp().log()),
        *(x.add(2.0), x.sub(x), x.mul(x), x.div(2.0), x.mm(x.t()), abs(x), x.floor(), x.clamp(-0.5, 0.5)),
        *(x.eq(x), x.ne(x), x.lt(0.0), x.le(0.0), x.gt(0.0), x.ge(0.0), x.maximum(x * 2.0), x.minimum(x * 2.0)),
        *(x.mean(dim=0, keepdim=True), x.var(), x.permute(1, 0), x.transpose(0, 1), x.unsqueeze(0)),
        *(x.T, x.max(), x.min(), x.min(x * 2.0), x[None].bmm(x.t()[None])),
    ]
    theirs = [
        *(t.std(), t.std(dim=1), t.argmin(dim=1), t.t(), t.swapaxes(0, 1), t.flip(1)),
        *(*t.split(4, dim=1), *t.chunk(3, dim=1), t.gather(1, i)),
        *(t.masked_fill(t > 0.0, 7.0), t.clone(), t.float(), (t * 3.0).long(), (t > 0.0).int(), t.exp().log()),
        *(t.add(2.0), t.sub(t), t.mul(t), t.div(2.0), t.mm(t.t()), abs(t), t.floor(), t.clamp(-0.5, 0.5)),
        *(t.eq(t), t.ne(t), t.lt(0.0), t.le(0.0), t.gt(0.0), t.ge(0.0), t.maximum(t * 2.0), t.minimum(t * 2.0)),
        *(t.mean(dim=0, keepdim=True), t.var(), t.permute(1, 0), t.transpose(0, 1), t.unsqueeze(0)),
        *(t.T, t.max(), t.min(), t.min(t * 2.0), t[None].bmm(t.t()[None])),
    ]
    tensors.evaluate(mine)  # in one run
    for number, (a, b) in enumerate(zip(mine, theirs, strict=True)):
        found, expected = a.numpy(), b.numpy()
        assert (found.shape, found.dtype) == (expected.shape, expected.dtype), number
        np.testing.assert_allclose(found, expected, rtol=1e-6, err_msg=str(number))


def test_completion_shows_every_public_name() -> None:
    assert {"exp", "zeros", "nn", "autograd", "int64", "pi", "ShapeError", "fit"} <= set(dir(dl))
    assert {"exp", "sum", "reshape", "gather", "add_", "numel", "float", "T", "backward"} <= set(dir(dl.Tensor))
    for name in dir(dl):
        getattr(dl, name)


def test_arange_of_integers_counts_in_integers() -> None:
    for given in ((3.1,), (-0.9, 2.1, 2.0), (2.9, 10.1, 2.5), (10, 2, -2.5), (0.1, 5)):
        want = torch.arange(*given, dtype=torch.int64)
        np.testing.assert_array_equal(dl.arange(*given, dtype="int64").numpy(), want.numpy())
    assert "a step of 0" in error_of(GraphError, dl.arange, 0, 2, 0.5, dtype="int64")
    assert "finite" in error_of(GraphError, dl.arange, 0, float("inf"), dtype="int64")
    assert "finite" in error_of(GraphError, dl.arange, 0, 10**400)


def test_a_tensor_that_no_memory_holds_is_a_named_error() -> None:
    for make in (
        lambda: dl.arange(2**40),
        lambda: dl.arange(0.0, 2.0**40),
        lambda: dl.linspace(0, 1, 2**40),
        lambda: dl.eye(2**20),
        lambda: dl.zeros(2**40),
        lambda: dl.full((2**20, 2**20), 1.0),
    ):
        assert "allocate" in error_of(DeviceError, make)


def at_once(change: Callable[[int], object]) -> None:
    """Makes the change 20 times in each of 8 threads, which take turns as often as Python lets them."""

    def work(number: int) -> None:
        for _ in range(20):
            change(number)

    before = sys.getswitchinterval()
    sys.setswitchinterval(5e-5)
    try:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(work, range(8)))
    finally:
        sys.setswitchinterval(before)


@pytest.mark.slow
def test_no_change_of_a_leaf_that_threads_share_is_lost() -> None:
    w = dl.ones(3, requires_grad=True)
    for times, change in enumerate((
        lambda number: (w * 1.0).sum().backward(),
        lambda number: w.sum().backward(create_graph=True),
        lambda number: w.backward(np.ones(3)),
        lambda number: dl.autograd.backward([w.sum() * 1.0]),
    )):  # fmt: skip
        at_once(change)
        assert w.grad.tolist() == [160.0 * (times + 1)] * 3, times
    total, each = dl.zeros(3), dl.zeros(8)

    def add_to_one(number: int) -> None:
        each[number] = each[number].item() + 1

    for change in (lambda number: total.add_(1.0), lambda number: operator.iadd(total, 1.0)):
        at_once(change)
    at_once(add_to_one)
    assert total.tolist() == [320.0] * 3 and each.tolist() == [20.0] * 8


@pytest.mark.slow
def test_no_step_and_no_state_that_threads_share_is_lost() -> None:
    for count in (1, 8):  # threads with the same optimizer, or each with its own
        p = nn.Parameter(dl.zeros(3))
        p.grad = dl.tensor([-1.0] * 3)
        optimizers = [optim.SGD([p], lr=1.0) for _ in range(count)]
        at_once(lambda number, optimizers=optimizers: optimizers[number % len(optimizers)].step())
        assert p.tolist() == [160.0] * 3
    norm, dropout, images = nn.BatchNorm1d(3), nn.Dropout(0.5), dl.ones(4, 3)
    at_once(lambda number: norm(images).numpy())
    assert norm.num_batches_tracked.item() == 160
    masks: list[bytes] = []
    at_once(lambda number: masks.append(dropout(dl.ones(64)).numpy().tobytes()))
    assert len(set(masks)) == 160
