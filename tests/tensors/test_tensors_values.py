"""Values are those of the time when a tensor was made, as in PyTorch; gradients, `dl.autograd`, and their modes."""

from __future__ import annotations

import copy
import gc
import pickle
import threading
import warnings
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import dlsys as dl
import numpy as np
import pytest
from dlsys import autodiff as ad
from dlsys import nn
from dlsys.errors import GraphError, ShapeError
from dlsys.scopes import scopes
from helpers import error_of
from optional import torch


def test_every_value_is_the_same_however_often_it_is_computed() -> None:
    dl.manual_seed(5)
    dropout, x = nn.Dropout(0.5), dl.tensor(np.ones((20, 10), "float32"))
    state = x * 1.0
    dropped = nn.functional.dropout(state, 0.5)
    first = (dropped + 0.0).numpy()
    dl.manual_seed(6)  # a node reads the numbers that the generator stood at when it was made
    np.testing.assert_array_equal((dropped * 1.0).numpy(), first)
    np.testing.assert_array_equal(dropped.numpy(), first)
    assert not np.array_equal(dropout(x).numpy(), first)


def test_what_cannot_be_computed_says_so_when_it_is_asked_for() -> None:
    w = dl.tensor(np.ones(3, "float32"), requires_grad=True)
    waiting = w * dl.autodiff.Variable("x")
    for _ in range(3):
        with dl.no_grad():
            w -= 0.1
    assert "matmul" in error_of(ShapeError, lambda: w @ dl.tensor(np.ones(4, "float32")))
    assert "variable" in error_of(GraphError, waiting.numpy)


@pytest.mark.usefixtures("young")
def test_an_array_that_was_replaced_stays_as_long_as_a_node_reads_it() -> None:
    w = nn.Parameter(np.ones(1000, "float32"))
    waiting, losses, arrays = [], [], []
    for i in range(40):
        losses.append((w * w).sum())
        losses[-1].backward()
        waiting.append(w * 2.0)
        arrays.append(weakref.ref(w.node.held))
        w.data = np.full(1000, i, "float32")
        w.grad = None
    assert all(array() is not None for array in arrays)
    assert [value.numpy()[0] for value in waiting] == [2.0 * i for i in (1, *range(39))]
    assert [loss.item() for loss in losses[:3]] == [1000.0, 0.0, 1000.0]
    first = (w * 1.0).detach()
    w.data = w.data + 1
    assert first.numpy()[0] == 39 and w.numpy()[0] == 40
    del waiting, losses
    gc.collect()
    assert [array() for array in arrays] == [None] * 40


def test_copies_and_pickles_of_parameters() -> None:
    norm = nn.BatchNorm1d(3)
    norm(dl.tensor(np.arange(12, dtype="float32").reshape(4, 3)))
    for other in (copy.deepcopy(norm), pickle.loads(pickle.dumps(norm))):
        np.testing.assert_array_equal(other.running_mean.numpy(), norm.running_mean.numpy())
        assert other.weight.op is norm.weight.op and other.weight is not norm.weight
        other.weight.data = np.zeros(3, "float32")
        assert norm.weight.numpy().tolist() == [1, 1, 1] and int(norm.num_batches_tracked) == 1


VALUES = np.array([[1.0, -2.0, 3.0], [0.5, 4.0, -1.0]])


@pytest.mark.slow
def test_autograd_grad() -> None:
    x, t = dl.tensor(VALUES, requires_grad=True), torch.tensor(VALUES, requires_grad=True)
    (mine,) = dl.autograd.grad((x**3).sum(), x, create_graph=True)
    (theirs,) = torch.autograd.grad((t**3).sum(), t, create_graph=True)
    np.testing.assert_allclose(mine.numpy(), theirs.detach().numpy())
    (mine,), (theirs,) = dl.autograd.grad(mine.sum(), [x]), torch.autograd.grad(theirs.sum(), [t])
    np.testing.assert_allclose(mine.numpy(), theirs.numpy())
    assert mine.is_leaf and not mine.requires_grad and x.grad is None
    hidden, w = x * 2, dl.tensor(VALUES[:, 0], requires_grad=True)
    outputs, weights = [hidden @ x.T, hidden.sum(1) * w], [np.array([[1.0, 2.0], [3.0, 4.0]]), None]
    found = dl.autograd.grad(outputs, [x, hidden, w], weights)
    th, tw = t * 2, torch.tensor(VALUES[:, 0], requires_grad=True)
    wanted = torch.autograd.grad([th @ t.T, th.sum(1) * tw], [t, th, tw], [torch.tensor(weights[0]), torch.ones(2)])
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy())
    unused = dl.ones(2, requires_grad=True)
    loss = (x * x).sum()
    assert "no output depends" in error_of(GraphError, dl.autograd.grad, loss, [x, unused])
    assert dl.autograd.grad(loss, [x, unused], allow_unused=True)[1] is None
    with dl.no_grad():
        hidden = x * 2
    assert "no output depends" in error_of(GraphError, dl.autograd.grad, hidden.sum(), x)
    dl.autograd.backward([loss, hidden.sum() * loss], [None, None])
    np.testing.assert_allclose(x.grad.numpy(), 2 * VALUES * (1 + 2 * VALUES.sum()))
    v = ad.Variable("v", (2,), "float32")
    (slope,) = dl.autograd.grad(v * v, v)
    (value,) = ad.Executor([slope]).run({v: np.float32([1, 2])}, True)
    assert value.tolist() == [2, 4]


def test_backward_leaves_what_is_asked_for() -> None:
    def of(library: object) -> list[object]:
        x, w = (library.tensor(VALUES, requires_grad=True) for _ in range(2))
        (x**3 * w).sum().backward(inputs=[x])
        assert w.grad is None
        first = x.grad
        x.grad = None
        (x**3 * w).sum().backward(create_graph=True, inputs=(x, w))
        slope = x.grad
        x.grad, w.grad = None, None
        slope.sum().backward()
        return [first, slope, x.grad, w.grad]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch's, of memory
        wanted = of(torch)
    for mine, theirs in zip(of(dl), wanted, strict=True):
        np.testing.assert_allclose(mine.numpy(), theirs.detach().numpy())


def test_modes() -> None:
    x = dl.ones(2, requires_grad=True)

    @dl.no_grad()
    def plain() -> bool:
        return (x * 2).requires_grad

    @dl.inference_mode()
    def inferred() -> bool:
        return (x * 2).requires_grad

    @dl.set_grad_enabled(False)
    def switched() -> bool:
        return (x * 2).requires_grad

    assert not plain() and not inferred() and not switched() and plain.__name__ == "plain"
    assert dl.is_grad_enabled()
    with dl.set_grad_enabled(False):
        assert not dl.is_grad_enabled() and not (x * 2).requires_grad
        with dl.inference_mode(False):
            assert (x * 2).requires_grad
        with dl.enable_grad():
            assert (x * 2).requires_grad and switched() is False and dl.is_grad_enabled()
        assert not dl.is_grad_enabled()
    assert dl.is_grad_enabled()
    dl.set_grad_enabled(False)
    try:
        assert not dl.is_grad_enabled()
        dl.set_grad_enabled(True)
        assert (x * 2).requires_grad
    finally:
        dl.set_grad_enabled(True)


def of_two_threads(mode: Any, kind: bool) -> list[list[bool]]:
    """Whether gradients are on in a function that the mode decorates, and behind it, in two threads of which one begins
    and ends first: it begins with `kind`, the second without."""
    first_in, second_in, first_out = (threading.Event() for _ in range(3))

    @mode
    def call(within: threading.Event, leaves: threading.Event) -> bool:
        within.set()
        assert leaves.wait(600)
        return dl.is_grad_enabled()

    def first() -> list[bool]:
        dl.set_grad_enabled(kind)
        found = [call(first_in, second_in), dl.is_grad_enabled()]
        first_out.set()
        return found

    def second() -> list[bool]:
        dl.set_grad_enabled(not kind)
        assert first_in.wait(600)
        return [call(second_in, first_out), dl.is_grad_enabled()]

    with ThreadPoolExecutor(2) as pool:
        return [one.result() for one in [pool.submit(function) for function in (first, second)]]


def test_threads_that_share_a_mode_keep_their_own() -> None:
    shared = dl.set_grad_enabled(False)
    dl.set_grad_enabled(True)
    for mode, kind in ((dl.no_grad(), False), (dl.enable_grad(), True), (shared, False)):
        assert of_two_threads(mode, kind) == [[kind, kind], [kind, not kind]]
        with mode, mode, ThreadPoolExecutor(1) as pool:
            assert dl.is_grad_enabled() is kind and pool.submit(dl.is_grad_enabled).result()
        assert dl.is_grad_enabled() and not scopes.modes


def test_another_name_of_what_has_no_history_is_written_too() -> None:
    weight = dl.tensor([1.0, 2.0], requires_grad=True)
    (weight * weight * 4).sum().backward()
    assert weight.grad is not None
    weight.grad.data.clamp_(-10.0, 10.0)  # as a gradient is clipped by hand
    assert weight.grad.tolist() == [8.0, 10.0]
    computed = dl.tensor([1.0]) * 2
    other = computed.detach()
    computed += 1
    other *= 2
    assert computed.tolist() == other.tolist() == [6.0]


def test_a_history_of_gradients_is_not_lost_without_a_word() -> None:
    weight = dl.tensor([1.0, 2.0], requires_grad=True)
    doubled = weight * 2
    with pytest.raises(GraphError, match="history of gradients"):
        doubled.data = dl.zeros(2)
    weight.requires_grad_(False)  # then nothing is left there
    doubled.sum().backward()
    assert weight.grad is None


def test_gradients_with_respect_to_what_a_leaf_was() -> None:
    weight = dl.tensor([1.0, 2.0], requires_grad=True)
    before = weight * 3
    with dl.no_grad():
        weight.mul_(0.5)
    loss = (before * weight).sum()  # 3 * old * new
    assert dl.autograd.grad(loss, weight)[0].tolist() == [4.5, 9.0]
    assert dl.autograd.grad(loss, weight, create_graph=True)[0].tolist() == [4.5, 9.0]
    loss.backward(inputs=[weight])
    assert weight.grad is not None and weight.grad.tolist() == [4.5, 9.0]
    scale = dl.ones(2)
    product = (weight * scale).sum()
    dl.compile(lambda: scale.add_(1.0))()
    with pytest.raises(GraphError, match="overwritten since"):
        dl.autograd.grad(product, weight)


def test_numbers_that_are_set_keep_their_digits() -> None:
    weight = dl.tensor([1.0, 2.0, 3.0], dtype="float64", requires_grad=True)
    with dl.no_grad():
        weight[1] = 0.1
        weight[dl.tensor([True, False, False])] = 0.1
    assert weight.tolist() == [0.1, 0.1, 3.0]


def test_a_chain_of_detached_states_holds_no_history() -> None:
    def nodes() -> int:
        gc.collect()
        return sum(isinstance(one, ad.Node) for one in gc.get_objects())

    weight, state, counts = dl.ones(4, requires_grad=True), dl.zeros(4), []
    for number in range(61):
        state = (state * 0.5 + weight).tanh()
        state.sum().backward()
        assert weight.grad is not None
        weight.grad.numpy()
        weight.grad = None
        state = state.detach()
        if number % 20 == 0 and number:
            counts.append(nodes())
    assert max(counts) - min(counts) < 8


def test_data_gives_a_tensor_other_memory() -> None:
    weight = dl.tensor([1.0, 2.0], requires_grad=True)
    tripled, before = weight * 3, weight.data
    weight.data = weight * 2  # the new value has no history
    assert before.tolist() == [1.0, 2.0] and weight.tolist() == [2.0, 4.0]
    (tripled * weight).sum().backward()  # 3 * old * new: 3 * new to what it was, 3 * old to what it is
    assert weight.grad is not None and weight.grad.tolist() == [9.0, 18.0]
    weight.data = before
    now = weight.detach()
    now.mul_(2.0)
    assert weight.tolist() == now.tolist() == [2.0, 4.0] and before.tolist() == [1.0, 2.0]
    weight.data -= dl.ones(2)  # writes the memory that it has
    assert weight.tolist() == now.tolist() == [1.0, 3.0]


def test_a_view_of_the_same_shape_is_not_written() -> None:
    x = dl.ones(2, 3)
    for view in (x.reshape(2, 3), x.squeeze(), x.expand(2, 3), x.T, x[0]):
        with pytest.raises(GraphError, match="no view of"):
            view.add_(1.0)
    normed = nn.BatchNorm1d(3)(x)
    normed.add_(1.0)  # a value, though one that comes with updates
    assert normed.tolist() == [[1.0] * 3] * 2 and x.tolist() == [[1.0] * 3] * 2
