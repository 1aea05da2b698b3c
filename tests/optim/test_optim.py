"""Optimizers beside PyTorch's, compiled and at once: groups, state, what sits out, what changes between steps."""

from __future__ import annotations

import copy
import math
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import dlsys as dl
import numpy as np
import pytest
from beside_torch import close
from dlsys import autodiff as ad
from dlsys import nn, optim
from dlsys.optim.methods import one_minus_power
from helpers import error_of, evaluate
from optional import torch
from test_serialization import same

STEPS = 40
LIMIT = {"float32": 1e-5, "float64": 1e-11}
OPTIONS: list[tuple[str, dict[str, Any]]] = [
    ("SGD", {"lr": 0.5}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    ("Adam", {}),
    ("Adam", {"lr": 0.05, "betas": (0.8, 0.99), "eps": 1e-6, "weight_decay": 0.1}),
    ("Adam", {"lr": 0.01, "betas": (0.0, 0.5)}),
    ("Adam", {"lr": 0.1, "betas": (0.5, 0.5), "amsgrad": True}),
    ("AdamW", {"lr": 0.05}),
    ("AdamW", {"lr": 0.01, "weight_decay": 0.0}),
    ("AdamW", {"lr": 0.05, "betas": (0.9, 0.3), "amsgrad": True}),
    ("Adagrad", {"lr": 0.1}),
    ("Adagrad", {"lr": 0.3, "lr_decay": 0.05, "weight_decay": 0.01, "initial_accumulator_value": 0.2, "eps": 1e-6}),
    ("RMSprop", {}),
    ("RMSprop", {"lr": 0.003, "alpha": 0.9, "momentum": 0.9, "weight_decay": 0.01}),
    ("RMSprop", {"eps": 1e-4}),
]


class Model:
    """Logistic regression of two parameters, their optimizer, and a compiled step."""

    def __init__(self, name: str, options: dict[str, Any], dtype: str = "float32", ctx: str = "numpy") -> None:
        rng = np.random.default_rng(1)
        self.start = [rng.standard_normal(shape).astype(dtype) for shape in ((5, 3), (3,))]
        self.batches = [  # two, so that gradients keep changing their signs
            (rng.standard_normal((9, 5)).astype(dtype), np.eye(3, dtype=dtype)[rng.integers(0, 3, 9)]) for _ in range(2)
        ]
        self.x, self.y = ad.Variable("X"), ad.Variable("y_")
        self.parameters = [ad.Parameter(value, name) for value, name in zip(self.start, ("W", "b"), strict=True)]
        w, b = self.parameters
        self.loss = ad.softmaxcrossentropy_op(self.x @ w + b, self.y)
        self.opt = getattr(optim, name)(self.parameters, **options)
        self.executor = ad.Executor([self.loss, self.opt.minimize(self.loss)], ctx=ctx)

    def train(self, steps: int, first: int = 0) -> list[list[np.ndarray]]:
        """The parameters after each step."""
        history = []
        for step in range(first, first + steps):
            x, y = self.batches[step % 2]
            loss, nothing = self.executor.run({self.x: x, self.y: y})
            assert nothing is None and np.asarray(loss).shape == (1,)
            history.append([parameter.value for parameter in self.parameters])
        return history

    def by_torch(self, name: str, options: dict[str, Any]) -> list[list[np.ndarray]]:
        """The parameters after each step of PyTorch's optimizer."""
        weights, bias = tensors = [torch.tensor(value, requires_grad=True) for value in self.start]
        optimizer, history = getattr(torch.optim, name)(tensors, **options), []
        for step in range(STEPS):
            x, y = map(torch.tensor, self.batches[step % 2])
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(x @ weights + bias, y).backward()
            optimizer.step()
            history.append([tensor.detach().numpy().copy() for tensor in tensors])
        return history


@pytest.mark.slow
@pytest.mark.parametrize(("name", "options"), OPTIONS)
def test_optimizers_follow_torch_and_compile_once(name: str, options: dict[str, Any]) -> None:
    for dtype, ctx in (("float32", "numpy"), ("float64", "numpy"), ("float32", "cpu")):
        if ctx == "cpu" and OPTIONS.index((name, options)) % 3 != 1:
            continue
        model = Model(name, options, dtype, ctx)
        found, expected = model.train(STEPS), model.by_torch(name, options)
        for step, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
            for a, b in zip(ours, theirs, strict=True):
                close(a, b, (name, options, step), LIMIT[dtype])
        assert np.abs(found[0][0] - found[-1][0]).max() > 0.02, name  # a way on which rules differ
        assert model.executor.compilations == (ctx == "cpu")


def test_parameters_of_two_dtypes_share_one_learning_rate() -> None:
    single, double = ad.Parameter(np.ones(3, "float32")), ad.Parameter(np.ones((2, 2)))
    opt = optim.Adam([single, double], lr=0.25)
    executor = ad.Executor([opt.minimize((single * 3).sum() - (double.float() * 2).sum())], ctx="numpy")
    executor.run({})
    opt.lr = 0.5
    executor.run({})  # the gradients are constant, so Adam moves by lr
    np.testing.assert_allclose(single.value, np.full(3, 0.25), rtol=1e-6)
    np.testing.assert_allclose(double.value, np.full((2, 2), 1.75), rtol=1e-7)
    assert (single.value.dtype, double.value.dtype) == (np.float32, np.float64)


def test_bias_correction_keeps_its_digits() -> None:
    steps = np.array([1, 2, 3, 10, 100, 1000, 12345, 1e6, 2**24])
    step = ad.Variable("step")
    for beta in (0.0, 0.5, 0.9, 0.999, 0.999999):
        exact = np.array([1 - beta**t if beta < 0.99 else -math.expm1(t * math.log(beta)) for t in steps])
        node = one_minus_power(beta, step)
        for dtype, rtol in (("float32", 1e-6), ("float64", 1e-14)):
            feed = {step: steps.astype(dtype)}
            np.testing.assert_allclose(evaluate([node], feed)[0], exact, rtol=rtol)
            if beta == 0.999:
                np.testing.assert_allclose(ad.Executor([node]).run(feed, True)[0], exact, rtol=rtol)


def twins(*shapes: tuple[int, ...]) -> tuple[list[Any], list[Any]]:
    """Parameters of dlsys and of PyTorch, float64, of equal values."""
    values = [np.random.default_rng(3).standard_normal(shape) for shape in shapes]
    return [nn.Parameter(v) for v in values], [torch.nn.Parameter(torch.tensor(v)) for v in values]


def stepped(optimizer: Any, parameters: list[Any], scale: float) -> None:
    """A step, at once, down the squares of the parameters, times `scale`, `scale` + 1, ..."""
    optimizer.zero_grad()
    sum((p * p * (scale + i)).sum() for i, p in enumerate(parameters)).backward()
    optimizer.step()


def all_close(mine: list[Any], theirs: list[Any]) -> None:
    for a, b in zip(mine, theirs, strict=True):
        close(a, b)


@pytest.mark.slow
def test_a_parameter_that_sits_out_leaves_the_groups_count() -> None:
    mine, theirs = twins((4,), (2, 2))
    a, b = optim.Adam(mine, lr=0.1), torch.optim.Adam(theirs, lr=0.1)
    for step in range(6):
        chosen = [i for i in range(2) if i != {1: 0, 3: 1}.get(step)]
        for kept in b.state.values():
            kept["step"].fill_(step)  # PyTorch counts for each parameter
        stepped(a, [mine[i] for i in chosen], step + 1.0), stepped(b, [theirs[i] for i in chosen], step + 1.0)
        all_close(mine, theirs)
    state = a.state_dict()["state"]
    assert [float(state[i]["step"]) for i in range(2)] == [6, 6]
    assert a.state[mine[0]]["step"] is a.state[mine[1]]["step"]
    twin = optim.Adam(mine, lr=0.1)
    twin.load_state_dict(b.state_dict() | {"state": {i: {**b.state_dict()["state"][i], "step": 3 * i} for i in (0, 1)}})
    assert float(twin.state[mine[0]]["step"].value) == 3


class Half(nn.Module):
    """Uses b in the first step alone."""

    def __init__(self) -> None:
        self.a, self.b = nn.Parameter(np.ones(3, "float32")), nn.Parameter(np.ones(3, "float32"))

    def forward(self, x: Any, first: bool) -> Any:
        return (x * self.a + self.b if first else x * self.a).square().sum()


@pytest.mark.parametrize("uses_b_first", [False, True])
def test_eager_and_compiled_steps_leave_what_the_loss_does_not_use(uses_b_first: bool) -> None:
    x = np.float32([1.0, 2.0, 3.0])
    for name, options in (("SGD", {"lr": 0.1, "weight_decay": 0.5, "momentum": 0.9}), ("Adam", {"lr": 0.1})):
        eager, compiled = Half(), Half()
        optimizers = [getattr(optim, name)(module.parameters(), **options) for module in (eager, compiled)]
        for step in range(3):
            first = uses_b_first and step == 0
            optimizers[0].zero_grad()
            eager(dl.tensor(x), first).backward()
            assert (eager.b.grad is not None) == first and eager.a.grad is not None
            optimizers[0].step()
            given = ad.Variable("x", x.shape)
            ad.Executor([optimizers[1].minimize(compiled(given, first))]).run({given: x})
        np.testing.assert_allclose(eager.a.value, compiled.a.value, 1e-6)
        np.testing.assert_allclose(eager.b.value, compiled.b.value, 1e-6)
        assert (eager.b.value == 1.0).all() != uses_b_first


def test_a_gradient_may_be_a_node_and_an_optimizer_be_copied() -> None:
    mine, theirs = twins((3,))
    a, b = optim.AdamW(mine, lr=0.1), torch.optim.AdamW(theirs, lr=0.1)
    for _ in range(2):
        for optimizer, (w,) in ((a, mine), (b, theirs)):
            optimizer.zero_grad()
            (w * w).sum().backward()
            w.grad = w.grad * 3 + 1
            optimizer.step()
    all_close(mine, theirs)
    twin = copy.deepcopy(a)
    (other,) = twin.parameters
    other.grad = dl.tensor(np.ones(3))
    twin.step()
    all_close(mine, theirs)
    assert other is not mine[0] and not np.allclose(other.numpy(), mine[0].numpy())


def test_a_group_joins_and_settings_change() -> None:
    mine, theirs = twins((3, 2), (4,))
    opt, reference = optim.SGD(mine[:1], lr=0.3), torch.optim.SGD(theirs[:1], lr=0.3)
    for step in range(6):
        for optimizer, values in ((opt, mine), (reference, theirs)):
            stepped(optimizer, values, step / 8)
            groups = optimizer.param_groups
            if step == 1:
                optimizer.add_param_group({"params": values[1:], "lr": 0.1, "weight_decay": 0.2})
            elif step == 3:
                groups[0]["lr"] *= 0.5
                groups[1]["momentum"] = 0.9
                groups[1]["weight_decay"] = 0.0
        all_close(mine, theirs)
    first, second = opt.param_groups
    assert second["lr"] == 0.1 and first["initial_lr"] == 0.15 and second["params"] == [mine[1]]
    assert first.keys() == {"params", "lr", "initial_lr", *opt.defaults}
    assert len(opt.param_groups) == 2 and len(opt.state) == 2


def test_settings_that_change_no_result_are_taken() -> None:
    mine, theirs = twins((3,))
    words = {"foreach": False, "maximize": False, "differentiable": False}
    a, b = optim.RMSprop(mine, lr=0.1, fused=True, **words), torch.optim.RMSprop(theirs, lr=0.1, **words)
    for _ in range(2):
        stepped(a, mine, 1.0), stepped(b, theirs, 1.0)
    all_close(mine, theirs)
    assert not words.keys() & a.param_groups[0].keys()
    a.add_param_group({"params": [nn.Parameter(np.ones(2))], "foreach": True, "initial_lr": 0.5})
    assert a.param_groups[1]["initial_lr"] == 0.5 and a.param_groups[1]["lr"] == 0.1
    assert "unexpected keyword argument 'fuse'" in error_of(TypeError, lambda: optim.RMSprop(mine, fuse=True))
    assert "maximize must be False" in error_of(dl.GraphError, lambda: optim.RMSprop(mine, maximize=True))


class Lion(optim.Optimizer):
    """p -= lr sign(beta1 m + (1 - beta1) g), with decoupled decay; m = beta2 m + (1 - beta2) g (Chen et al. 2023)."""

    def __init__(self, params: Any, lr: float = 1e-4, betas: Any = (0.9, 0.99), weight_decay: float = 0.0) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    def initial(self, group: Any) -> dict[str, float]:
        return {"exp_avg": 0.0}

    def update(self, p: Any, g: Any, state: Any, lr: Any, step: Any, group: Any) -> Any:
        (beta1, beta2), mean = group["betas"], state["exp_avg"]
        p = p * (lr * -group["weight_decay"] + 1.0)
        return p - ad.sign_op(mean * beta1 + g * (1 - beta1)) * lr, {"exp_avg": mean * beta2 + g * (1 - beta2)}


def test_an_optimizer_is_a_formula() -> None:
    eager, compiled = (nn.Parameter(np.float32([1.0, -2.0])) for _ in range(2))
    optimizers = [Lion([parameter], lr=0.1, weight_decay=0.5) for parameter in (eager, compiled)]
    executor = ad.Executor([optimizers[1].minimize((compiled * compiled).sum())])
    p, m = np.float32([1.0, -2.0]), np.zeros(2, "float32")
    for _ in range(3):
        stepped(optimizers[0], [eager], 1.0)
        executor.run({})
        g = 2 * p
        p, m = p * np.float32(0.95) - np.float32(0.1) * np.sign(0.9 * m + 0.1 * g), 0.99 * m + 0.01 * g
    close(eager.numpy(), p.astype("float32"))
    assert (eager.numpy() == compiled.numpy()).all()
    again = Lion([nn.Parameter(np.ones(2, "float32"))])
    again.load_state_dict(optimizers[0].state_dict())
    close(np.asarray(again.state[again.parameters[0]]["exp_avg"]), m.astype("float32"))


def test_closure_and_gradients_of_zeros() -> None:
    parameter = ad.Parameter(np.ones(2, "float32"))
    opt = optim.SGD([parameter], lr=0.5)

    def closure() -> ad.Node:
        opt.zero_grad()
        loss = (parameter * parameter).sum()
        loss.backward()
        return loss

    assert float(opt.step(closure)) == 2 and parameter.value.tolist() == [0, 0]
    opt.zero_grad(set_to_none=False)
    assert parameter.grad.numpy().tolist() == [0, 0]


def test_threads_may_share_an_optimizer() -> None:
    parameter = nn.Parameter(np.zeros(2, "float32"))
    optimizer = optim.SGD([parameter], lr=1.0)

    def train() -> None:
        for _ in range(200):
            parameter.grad = dl.tensor([1.0, 1.0])
            optimizer.step()
            optimizer.zero_grad()

    optimizer.step()
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            for future in [pool.submit(train) for _ in range(4)]:
                future.result()
    finally:
        sys.setswitchinterval(before)
    steps = -parameter.value
    assert steps[0] == steps[1] and 0 < steps[0] <= 800


def test_one_node_in_two_executors_and_batch_sizes_shares_the_state() -> None:
    model = Model("Adam", {"lr": 0.01}, "float64")
    x, y = model.batches[0]
    model.train(1)
    ad.Executor([model.executor.eval_node_list[1]], ctx="numpy").run({model.x: x[:4], model.y: y[:4]})
    model.train(1)
    assert [kept["step"] for kept in model.opt.state_dict()["state"].values()] == [3, 3]


def test_training_goes_on_from_a_state_dict() -> None:
    for name, options in OPTIONS[::4]:
        model, again = Model(name, options), Model(name, options)
        model.train(5)
        model.opt.lr = 0.25
        model.opt.param_groups[0].change({"lr": 0.125})  # as a schedule does
        again.opt.load_state_dict(model.opt.state_dict())
        for parameter, other in zip(again.parameters, model.parameters, strict=True):
            parameter.value = other.value
        assert (again.opt.lr, again.opt.param_groups[0]["initial_lr"]) == (0.125, 0.25)
        assert same(again.train(5, first=5), model.train(5, first=5)), name


def test_state_dict_holds_copies_and_options_and_load_is_strict() -> None:
    model = Model("Adam", {})
    model.train(2)
    state = model.opt.state_dict()
    assert list(state["state"]) == [0, 1]
    assert all(sorted(kept) == ["exp_avg", "exp_avg_sq", "step"] for kept in state["state"].values())
    (group,) = state["param_groups"]
    assert group["params"] == [0, 1] and group["betas"] == (0.9, 0.999) and group["lr"] == group["initial_lr"]
    assert state["state"][1]["step"] == 2 and state["state"][0]["exp_avg"].shape == (5, 3)
    before = copy.deepcopy(state)
    model.train(1)
    assert same(state, before)
    load, present = model.opt.load_state_dict, model.opt.state_dict()
    kept = state["state"]
    for kind, words, wrong in (
        (dl.GraphError, 'needs a dictionary of "state" and "param_groups"', [1]),
        (dl.GraphError, "groups have [2] parameters, the state's [2, 2]", {**state, "param_groups": [group, group]}),
        (dl.GraphError, "lr must be a number >= 0", {**state, "param_groups": [{**group, "lr": -1}]}),
        (dl.GraphError, "in none of its groups: 7", {**state, "state": {**kept, 7: {}}}),
        (dl.GraphError, "state.1 must have step, exp_avg, exp_avg_sq, not exp_avg_sq, step, other",
         {**state, "state": {0: kept[0], 1: {**{k: kept[1][k] for k in ("exp_avg_sq", "step")}, "other": 0}}}),
        (dl.ShapeError, "state.1.exp_avg has shape (3,), the value (4,)",
         {**state, "state": {**kept, 1: {**kept[1], "exp_avg": np.zeros(4)}}}),
        (dl.DTypeError, "state.1.exp_avg is <U1, not an array of numbers",
         {**state, "state": {**kept, 1: {**kept[1], "exp_avg": ["a"] * 3}}}),
    ):  # fmt: skip
        assert words in error_of(kind, load, wrong), words
    assert same(model.opt.state_dict(), present)
    opt = optim.SGD([{"params": [ad.Parameter(np.zeros(2))], "momentum": 0.5}, {"params": [ad.Parameter(np.ones(3))]}])
    state = opt.state_dict()
    assert [group["momentum"] for group in state["param_groups"]] == [0.5, 0.0]
    state["param_groups"][1] |= {"momentum": 0.7, "nesterov": True}
    opt.load_state_dict(state)
    assert [group["momentum"] for group in opt.param_groups] == [0.5, 0.7] and opt.param_groups[1]["nesterov"]


@pytest.mark.slow
def test_states_of_pytorch_load_and_training_goes_on_as_there() -> None:
    for name, options in (
        ("SGD", {"lr": 0.05}),
        ("SGD", {"lr": 0.05, "momentum": 0.9}),
        ("Adam", {"lr": 0.02, "weight_decay": 0.1}),
        ("AdamW", {"lr": 0.02}),
        ("RMSprop", {"momentum": 0.5}),
    ):
        mine, theirs = twins((3, 5), (3,))
        opt, reference = getattr(optim, name)(mine), getattr(torch.optim, name)(theirs, **options)
        opt.load_state_dict(reference.state_dict())  # before its first step: nothing is kept yet
        for _ in range(2):
            stepped(reference, theirs, 1.0)
        for parameter, value in zip(mine, theirs, strict=True):
            parameter.value = value.detach().numpy()
        opt.load_state_dict(reference.state_dict())
        for _ in range(2):
            stepped(reference, theirs, 1.0), stepped(opt, mine, 1.0)
        all_close(mine, theirs)
