"""Tensors in use: where gradients are off, kernels and feeds, and what is compiled how often."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable

import dlsys as dl
import numpy as np
import pytest
from dlsys import autodiff as ad
from dlsys import tvm_op
from dlsys.errors import DTypeError, GraphError, KernelArgumentError
from dlsys.kernels import default_schedules
from dlsys.tensors.executors import executors
from helpers import error_of
from optional import torch


def random(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


def test_no_grad() -> None:
    w = dl.tensor([1.0, 2.0], requires_grad=True)
    before = w * 3.0
    with dl.no_grad():
        inside = w * 2.0
        assert not inside.requires_grad and not dl.is_grad_enabled()
        with dl.enable_grad():
            again = w * 5.0
        leaf = dl.ones(2, requires_grad=True)
        before.backward(np.ones(2))  # its graph was made outside
    assert dl.is_grad_enabled() and before.requires_grad and again.requires_grad
    assert "requires_grad=True" in error_of(GraphError, inside.sum().backward)
    (leaf * w).sum().backward()
    assert leaf.grad.tolist() == [1.0, 2.0] and w.grad.tolist() == [4.0, 4.0]
    w.grad = None
    (before + inside * w + again).sum().backward()  # inside is a constant
    assert w.grad.tolist() == [3.0 + 2.0 + 5.0, 3.0 + 4.0 + 5.0]

    try:
        with dl.no_grad():
            raise KeyError
    except KeyError:
        assert dl.is_grad_enabled()


def test_kernels_and_feeds_take_tensors() -> None:
    shape = (4, 5)
    add = tvm_op.make_elemwise_add(shape, "llvm", "llvm", "add")
    a, b, out = dl.ones(shape), dl.randn(*shape, requires_grad=True), dl.zeros(shape)
    memory = np.from_dlpack(out)
    before = out * 1.0
    add(a, b, out)
    np.testing.assert_array_equal(out.numpy(), b.numpy() + 1)
    np.testing.assert_array_equal(memory, out.numpy())  # the leaf's own memory
    assert "overwritten since" in error_of(GraphError, before.numpy)
    add(a * 2.0, out, out)
    np.testing.assert_allclose(out.numpy(), b.numpy() + 3, rtol=1e-6)
    computed = out * 1.0
    add(a, b, computed)  # a leaf from now on
    np.testing.assert_array_equal(computed.numpy(), b.numpy() + 1)
    matmul = tvm_op.make_matrix_mul((5, 5), False, (5, 5), False, "llvm", "llvm", "mm")
    m = dl.eye(5)
    assert "shares memory with input 0" in error_of(KernelArgumentError, matmul, m, m, m)
    v = ad.Variable("v")
    for ctx in (dl.cpu(), dl.numpy()):
        executor = ad.Executor([v * 2.0], ctx)
        for given in (a, b, a + b):
            (found,) = executor.run({v: given}, convert_to_numpy_ret_vals=True)
            np.testing.assert_array_equal(found, 2 * given.numpy())
    array = dl.devices.empty(shape, ctx=dl.cpu())
    array[:] = 3.0
    array.copyto(out)
    assert (out.numpy() == 3).all() and (np.asarray(out) == 3).all()


def compiled(function: Callable[[float], object], *values: float) -> int:
    """How many forms are compiled for the values, one behind the other."""
    executors.clear()
    for value in values:
        function(value)
    return len(list(executors))


@pytest.mark.slow
def test_numbers_that_change_become_inputs() -> None:
    x, values = dl.tensor(random(5, 6)), random(5, 6)

    def check(node: dl.Tensor, want: np.ndarray) -> None:
        np.testing.assert_allclose(node.numpy(), want, rtol=1e-12)

    numbers = (0.3, 1.5, -2.0, 3.0)
    assert compiled(lambda c: check((x * c + 2.0) / c - c, (values * c + 2) / c - c), *numbers) == 2
    with np.errstate(divide="ignore"):
        for number in (0.0, -0.0, 0.0):
            np.testing.assert_array_equal((x / number).numpy(), values / number)
    assert "no int32" in error_of(DTypeError, lambda: (dl.tensor(3).int() * 2**40).numpy())
    places = range(5)
    assert compiled(lambda i: check(x[i], values[i]), *places) == 2
    t = torch.tensor(values, requires_grad=True)
    w = dl.tensor(values, requires_grad=True)

    def slope(i: int) -> None:
        w.grad = t.grad = None
        (w[i, i : i + 2] ** 2).sum().backward()
        (t[i, i : i + 2] ** 2).sum().backward()
        check(w.grad, t.grad.numpy())

    assert compiled(slope, *places) == 2


@pytest.mark.slow
def test_both_zeros_and_nan_are_numbers_of_their_own() -> None:
    builders: dict[str, Callable[[ad.Node, float], ad.Node]] = {
        "add": ad.add_byconst_op, "mul": ad.mul_byconst_op, "div": ad.div_byconst_op, "power": ad.power_byconst_op,
        "div of": lambda x, c: ad.const_div_op(c, x),
        "pad": lambda x, c: ad.pad_op(x, ((1, 0),), c),
        "full": lambda x, c: ad.full_op((3,), c, "float64") * x,
        "clip": lambda x, c: ad.clip_op(x, c),
    }  # fmt: skip
    x = dl.tensor(np.array([2.0, 3.0, 0.5]))  # of negative numbers times 0 the sign is not said
    for name, build in builders.items():
        numbers = (0.0, -0.0, 0.0, -0.0) if name != "add" else (0.0, 1.0)  # x + 0 is x, also of -0.0
        for number in numbers:
            variable = ad.Variable("x")
            (want,) = ad.Executor([build(variable, number)], "numpy").run({variable: x.numpy()})
            got = build(x, number).numpy()
            np.testing.assert_array_equal(got, want, err_msg=name)
            np.testing.assert_array_equal(np.signbit(got), np.signbit(want), err_msg=f"{name} {number}")
        if name != "clip":
            some = [float("nan") for _ in range(4)]  # each another object
            assert compiled(lambda c, f=build: f(x, c).numpy(), *some) == 1, name


def test_a_loop_that_asks_for_a_part_goes_on_from_where_it_was() -> None:
    w, v = dl.tensor(random(3, 3) / 2, requires_grad=True), dl.tensor(random(3))
    for mode in (dl.no_grad, dl.enable_grad):
        with mode():
            state, found = dl.tensor(random(2, 3)), []
            executors.clear()
            for _ in range(12):
                state = (state @ w).tanh()
                found.append((state * v).sum().item())  # the state itself is never asked for
        assert len(list(executors)) <= 4, len(list(executors))  # not one for each round
    want = random(2, 3)
    for value in found:
        want = np.tanh(want @ w.numpy())
        np.testing.assert_allclose(value, (want * v.numpy()).sum())
    (state * v).sum().backward()  # the history is there
    t, s = torch.tensor(w.numpy(), requires_grad=True), torch.tensor(random(2, 3))
    for _ in range(12):
        s = (s @ t).tanh()
    (s * torch.tensor(v.numpy())).sum().backward()
    np.testing.assert_allclose(w.grad.numpy(), t.grad.numpy())


@pytest.mark.slow
def test_long_sums() -> None:
    w = dl.tensor(random(3, 3), requires_grad=True)
    inputs = random(300, 2, 3)
    executors.clear()
    for swapped in (False, True):
        total = dl.tensor(0.0, "float64")
        for row in inputs:
            loss = (dl.tensor(row) @ w).sum()
            total = loss + total if swapped else total + loss
        np.testing.assert_allclose(float(total), (inputs @ w.numpy()).sum())
    chain = w
    for _ in range(1000):
        chain = chain * 1.0
    np.testing.assert_array_equal(chain.numpy(), w.numpy())


def test_values_that_were_shown_leave_a_loop_as_it_was() -> None:
    x = dl.tensor(random(3, 3), requires_grad=True)
    for scale in (1.0, 0.5):
        hidden = (x @ x * scale).tanh()
        loss = (hidden * hidden).sum()
        assert "tensor" in repr(hidden) and "tensor" in repr(loss) and loss.item() > 0
        x.grad = None
        loss.backward()
        shown = x.grad.numpy()
        x.grad = None
        (x @ x * scale).tanh().square().sum().backward()
        np.testing.assert_allclose(shown, x.grad.numpy(), 1e-12)


def test_settings_hold_for_what_was_computed_before() -> None:
    small = dl.tensor(np.float32([1e-30]))

    def product() -> float:
        return (small * 1e-10).item()

    assert product() == 0.0
    if dl.set_flush_denormal(False):
        try:
            assert product() > 0.0
        finally:
            dl.set_flush_denormal(True)
        assert product() == 0.0
    before = len(list(executors))
    with default_schedules():
        product()
    assert len(list(executors)) == before + 1
    product()
    assert len(list(executors)) == before + 1


def test_a_module_that_was_called_goes_with_its_last_name() -> None:
    shapes = [(40 + i, 30) for i in range(10)]

    def alive() -> int:
        gc.collect()
        return sum(isinstance(one, dl.nn.Parameter) and one.shape in shapes for one in gc.get_objects())

    modules = []
    for outputs, inputs in shapes:
        module = dl.nn.Linear(inputs, outputs)
        modules.append(weakref.ref(module))
        optimizer = dl.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
        loss = (module(random(2, inputs).astype("float32")) ** 2.0).sum()
        loss.backward()
        optimizer.step()
        assert loss.item() > 0
    assert f"in Linear(30, {outputs})" in loss.inputs[0].inputs[0].location  # nodes say where they were made
    del module, optimizer, loss
    assert not alive() and not any(module() for module in modules)
