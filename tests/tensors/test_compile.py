"""`dl.compile`: a function of tensors as one program does what it does eagerly."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import dlsys as dl
import numpy as np
import pytest
from dlsys import nn, optim
from dlsys.errors import GraphError, ShapeError
from dlsys.tensors.compile import CompileError
from helpers import error_of

F = nn.functional
RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((16, 8)).astype("float32"), RNG.integers(0, 3, 16)


def network() -> nn.Module:
    dl.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))


def clipped(model: nn.Module, optimizer: Any) -> Callable[..., Any]:
    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        return loss

    return step


def accumulated(model: nn.Module, optimizer: Any) -> Callable[..., Any]:
    """Gradients add up over the calls."""

    def step(x: Any, y: Any) -> Any:
        loss = F.cross_entropy(model(x), y) / 2
        loss.backward()
        return loss

    return step


def two_losses(model: nn.Module, optimizer: Any) -> Callable[..., Any]:
    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        logits = model(x)
        first, second = F.cross_entropy(logits, y), (logits * logits).mean()
        (first + 0.1 * second).backward()
        optimizer.step()
        return {"losses": [first, second], "logits": logits}

    return step


@pytest.mark.parametrize("make", [clipped, accumulated, two_losses])
@pytest.mark.parametrize("method", ["SGD", "Adam"])
def test_a_compiled_step_is_the_eager_one(make: Any, method: str) -> None:
    found = []
    for compiled in (False, True):
        model = network()
        options = {"momentum": 0.9} if method == "SGD" else {}
        optimizer = getattr(optim, method)(model.parameters(), lr=0.05, **options)
        step = make(model, optimizer)
        step = dl.compile(step) if compiled else step
        results = []
        for number in range(4):
            given = step(dl.tensor(X + number), dl.tensor(Y))
            results.append(given["losses"][1].item() if isinstance(given, dict) else given.item())
            if make is accumulated and number % 2:
                optimizer.step()
                optimizer.zero_grad()
        state = [value for part in optimizer.state_dict()["state"].values() for value in part.values()]
        arrays = [np.asarray(x) for x in (*model.state_dict().values(), *state)]
        found.append((results, arrays))
        if compiled:
            assert step.recorded <= 2 and "Executor of" in repr(step.executor)
    np.testing.assert_allclose(found[0][0], found[1][0], rtol=1e-5)
    for eager, own in zip(found[0][1], found[1][1], strict=True):
        np.testing.assert_allclose(own, eager, rtol=2e-5, atol=1e-6)


def test_what_is_an_input_and_what_is_recorded_again() -> None:
    weight, count = dl.tensor([1.0, 2.0]), dl.zeros(1)

    @dl.compile
    def scaled(x: Any, rate: float, times: int = 1, how: str = "sum") -> Any:
        count.add_(1.0)
        y = x * weight * rate
        for _ in range(times):
            y = y + 1
        return getattr(y, how)()

    x = dl.tensor([3.0, 4.0])
    assert [scaled(x, rate).item() for rate in (1.0, 2.0, 3.0)] == [13.0, 24.0, 35.0] and scaled.recorded == 1
    weight.value = [0.0, 1.0]  # read as it is at each call
    assert scaled(x, 1.0).item() == 6.0 and scaled.recorded == 1
    assert scaled(x, 1.0, times=2).item() == 8.0 and scaled(x, 1.0, 1, "mean").item() == 3.0 and scaled.recorded == 3
    assert scaled(np.float32([3, 4]), 1.0).item() == 6.0
    assert count.item() == 7.0
    assert scaled(dl.tensor([[3.0, 4.0], [0.0, 0.0]]), 1.0).item() == 8.0


def test_modes_and_random_numbers() -> None:
    dropout, x = nn.Dropout(0.5), dl.ones(64)
    drop = dl.compile(lambda x: dropout(x))
    masks = {drop(x).numpy().tobytes() for _ in range(5)}
    assert len(masks) == 5 and drop.recorded == 1
    dropout.eval()
    assert drop(x).tolist() == [1.0] * 64 and drop.recorded == 2
    dropout.train()
    assert drop(x).numpy().tobytes() not in masks and drop.recorded == 2


def test_a_schedule_steps_with_the_program() -> None:
    rates = []
    for compiled in (False, True):
        w = nn.Parameter(dl.ones(3))
        optimizer = optim.SGD([w], lr=1.0)
        schedule = optim.lr_scheduler.StepLR(optimizer, 2, 0.1)

        def step(optimizer: Any = optimizer, w: Any = w, schedule: Any = schedule) -> Any:
            optimizer.zero_grad()
            loss = w.sum()
            loss.backward()
            optimizer.step()
            schedule.step()
            return loss

        run = dl.compile(step) if compiled else step
        rates.append([(run().item(), w.tolist()) for _ in range(5)])
    assert rates[0] == rates[1]


def test_what_cannot_be_recorded_is_an_error() -> None:
    w, calls = nn.Parameter(dl.ones(3)), []

    def asks(x: Any) -> Any:
        if (x * w).sum().item() > 1:
            return x
        return w

    def counts(x: Any) -> Any:
        calls.append(1)
        return x * float(len(calls))

    def grows(x: Any) -> Any:
        state.assign(dl.cat([state, x]))
        return x

    state, x = dl.zeros(3), dl.ones(3)
    told = error_of(CompileError, dl.compile(asks), x)
    assert "is asked for in a compiled function" in told and "test_compile.py:" in told
    assert w.tolist() == [1.0] * 3  # as before
    counted = dl.compile(counts)
    assert counted(x).tolist() == [1.0] * 3 and counted(x).tolist() == [2.0] * 3
    assert "does something else at each call" in error_of(CompileError, counted, x)
    assert "(6,)" in error_of(ShapeError, dl.compile(grows), x)
    assert state.tolist() == [0.0] * 3


def test_a_cache_of_keys_and_values() -> None:
    dl.manual_seed(0)
    q, k, v = (dl.randn(2, 3, 6, 4) for _ in range(3))
    whole = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    cache = nn.KVCache(8)

    def attend(q: Any, k: Any, v: Any) -> Any:
        keys, values, seen = cache.append(k, v)
        return F.scaled_dot_product_attention(q, keys, values, attn_mask=seen)

    for run in (attend, dl.compile(attend)):
        cache.reset()
        parts = [run(*(x[:, :, a:b] for x in (q, k, v))) for a, b in ((0, 3), (3, 4), (4, 5), (5, 6))]
        np.testing.assert_allclose(dl.cat(parts, 2).numpy(), whole.numpy(), rtol=1e-5, atol=1e-6)
        assert cache.length == 6
    cache.reset()  # a prompt of 3 that is padded to 4
    run(*(x[:, :, :4] for x in (q, k, v)))
    cache.truncate(3)
    assert "3 tokens are kept, and not 4" in error_of(GraphError, cache.truncate, 4)
    rest = [run(*(x[:, :, i : i + 1] for x in (q, k, v))) for i in (3, 4, 5)]
    np.testing.assert_allclose(dl.cat(rest, 2).numpy(), whole[:, :, 3:].numpy(), rtol=1e-5, atol=1e-6)
    one = [x[:, :, :1] for x in (q, k, v)]
    run(*one), run(*one)
    told = error_of(GraphError, run, *one)
    assert "8 tokens are kept, and 1 more are beyond the capacity of 8" in told
    assert run.recorded == 3


def test_a_gpt_generates_with_a_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    import nano_gpt

    for name, value in {"WIDTH": 32, "LAYERS": 2, "CONTEXT": 16}.items():
        monkeypatch.setattr(nano_gpt, name, value)
    dl.manual_seed(0)
    model = nano_gpt.GPT()
    prompt = dl.tensor([[3, 1, 4, 1, 5]])
    tokens = model.eval().generate(prompt, 6)
    assert tokens.shape == (1, 11) and tokens[:, :5].tolist() == prompt.tolist()
    with dl.no_grad():
        found = model.probabilities(tokens[:, -1:], dl.tensor(0), 0.8)
        whole = F.softmax(model.train()(tokens)[:, -1] / 0.8, dim=-1)
    np.testing.assert_allclose(found.numpy(), whole.numpy(), rtol=1e-5, atol=1e-7)
    assert "beyond the capacity of 16" in error_of(GraphError, model.eval().generate, prompt, 13)


def test_state_that_is_made_in_the_function_lives_on() -> None:
    class Mean(nn.Module):
        def forward(self, x: Any) -> Any:
            if "mean" not in self._buffers:
                self.register_buffer("mean", dl.zeros(3))
            self.mean = self.mean * 0.5 + x
            return self.mean * 2

    model, eager, x = Mean(), Mean(), dl.ones(3)
    step = dl.compile(lambda x: model(x))
    assert [step(x).tolist() for _ in range(4)] == [eager(x).tolist() for _ in range(4)]
    assert model.mean.tolist() == eager.mean.tolist() == [1.875] * 3

    class Kept:
        state: Any = None

    def keeps(x: Any) -> Any:
        Kept.state = x if Kept.state is None else Kept.state + x
        return Kept.state * 2

    kept = dl.compile(keeps)
    kept(x)
    assert "has a value in a compiled function only" in error_of(GraphError, lambda: Kept.state.numpy())
    assert "has a value in a compiled function only" in error_of(GraphError, kept, x)

    def begins(x: Any) -> Any:  # another way at the first call
        if not started:
            started.append(dl.ones(3))
            return x * 100
        return x * started[0]

    started: list[Any] = []
    begun = dl.compile(begins)
    assert [begun(x).tolist()[0] for _ in range(4)] == [100.0, 1.0, 1.0, 1.0] and begun.recorded == 2


def test_what_a_tensor_of_outside_was_decides_the_program() -> None:
    scale, weight = dl.tensor(2.0), dl.tensor([1.0, 2.0], requires_grad=True)
    optimizer = optim.SGD([weight], lr=1.0, momentum=0.5)

    @dl.compile
    def scaled(x: Any) -> Any:
        return x * scale.item() if scale.item() > 1 else x - 100

    assert [scaled(dl.ones(1)).item() for _ in range(2)] == [2.0, 2.0] and scaled.recorded == 1
    scale.fill_(3.0)
    assert scaled(dl.ones(1)).item() == 3.0
    scale.fill_(0.0)
    assert scaled(dl.ones(1)).item() == -99.0

    @dl.compile
    def step() -> None:
        optimizer.zero_grad()
        weight.sum().backward()
        optimizer.step()

    step(), step()
    assert weight.tolist() == [-1.5, -0.5]
    optimizer.param_groups[0]["momentum"] = 0.0
    step()
    assert weight.tolist() == [-2.5, -1.5]
    drawn = dl.compile(lambda x: x * dl.tensor(np.random.default_rng().random(2, "float32")))
    drawn(dl.ones(2)), drawn(dl.ones(2))
    assert "does something else at each call" in error_of(CompileError, drawn, dl.ones(2))


def test_arguments_of_any_kind_and_arguments_that_are_written() -> None:
    class Pair(NamedTuple):
        first: Any
        second: Any

    @dl.compile
    def swapped(pair: Any) -> Any:
        return Pair(pair.second * 2, {"first": pair.first, "rest": (None, "text", 3)})

    for value in (1.0, 2.0, 3.0):
        found = swapped(Pair(dl.full((2,), value), dl.full((2,), -value)))
        assert isinstance(found, Pair) and found.first.tolist() == [-2 * value] * 2
        assert found.second["first"].tolist() == [value] * 2 and found.second["rest"] == (None, "text", 3)
    assert swapped.recorded == 1

    weight = dl.ones(2)

    @dl.compile
    def writes(x: Any, y: Any) -> Any:
        x.add_(1.0)
        x[0] = 5.0
        return x + y + weight

    x = dl.zeros(2)
    assert writes(x, x).tolist() == [11.0, 3.0] and x.tolist() == [5.0, 1.0]
    assert writes(x, dl.zeros(2)).tolist() == [6.0, 3.0] and x.tolist() == [5.0, 2.0]
    assert "pass a tensor" in error_of(CompileError, writes, np.zeros(2, "float32"), x)
    assert "knows it from outside too" in error_of(CompileError, writes, weight, x)
    product = dl.compile(lambda x, rate: x * rate)
    assert product(dl.ones(1, dtype="float64"), 0.1).item() == 0.1
    assert [product(dl.ones(1), rate).item() for rate in (0.5, np.float32(2), np.float64(4))] == [0.5, 2.0, 4.0]
    assert product.recorded == 2
    assert dl.compile(lambda x: x.to(x.device))(x).tolist() == x.tolist()
    assert "not Generator" in error_of(CompileError, dl.compile(lambda: dl.random.default_generator))


def test_results_constants_and_histories_of_a_compiled_function() -> None:
    weight = dl.tensor([1.0, 2.0], requires_grad=True)

    counter = dl.zeros(2)

    @dl.compile
    def counts(x: Any) -> Any:
        x *= 2.0
        counter.add_(x)
        return counter, x

    for total in (2.0, 4.0):
        assert [y.tolist() for y in counts(dl.ones(2))] == [[total] * 2, [2.0] * 2]

    @dl.compile
    def total() -> Any:
        y = dl.zeros(2)
        y += weight  # the zeros stay zeros
        return y

    assert total().tolist() == [1.0, 2.0] and total().tolist() == [1.0, 2.0]
    doubled = weight * 2
    shifted = dl.compile(lambda: doubled + 1)
    assert shifted().tolist() == [3.0, 5.0]
    doubled.sum().backward()  # it keeps its history
    assert weight.grad is not None and weight.grad.tolist() == [2.0, 2.0]
    doubled += 1
    assert shifted().tolist() == [4.0, 6.0]
    assert "has a history of gradients" in error_of(CompileError, dl.compile(lambda: doubled.mul_(2.0)))
    source, target = nn.Linear(2, 1), nn.Linear(2, 1)
    load = dl.compile(lambda x: (target.load_state_dict(source.state_dict()), target(x))[1])
    x = dl.ones(1, 2)
    for _ in range(2):
        assert load(x).item() == source(x).item() == target(x).item()
        with dl.no_grad():
            source.weight.add_(1.0)


def test_gradients_that_are_changed_in_place() -> None:
    def accumulates(weight: Any, optimizer: Any, x: Any) -> Any:
        (weight * x).sum().backward()
        weight.grad.mul_(0.5)
        weight.grad[0] = 3.0
        optimizer.step()
        return weight.grad * 1

    def clips(weight: Any, optimizer: Any, x: Any) -> Any:
        optimizer.zero_grad()
        (weight * x).sum().backward()
        weight.grad.data.clamp_(-1.0, 1.0)
        optimizer.step()
        return weight.grad * 1

    for function in (accumulates, clips):
        found = []
        for compiled in (False, True):
            weight = nn.Parameter(dl.ones(2))
            optimizer = optim.SGD([weight], lr=0.1)
            step: Any = functools.partial(function, weight, optimizer)
            step = dl.compile(step) if compiled else step
            found.append([(step(dl.ones(2) * i).tolist(), weight.tolist()) for i in range(4)])
        assert found[0] == found[1]


def test_a_loss_with_constants_of_its_own_is_recorded_once() -> None:
    loss = dl.compile(lambda x, y: nn.CrossEntropyLoss()(x, y))
    found = {loss(RNG.standard_normal((5, 10)).astype("float32"), RNG.integers(0, 10, 5)).item() for _ in range(4)}
    assert len(found) == 4 and loss.recorded == 1


def test_random_numbers_are_drawn_at_each_call() -> None:
    draw = dl.compile(lambda x: (dl.randn(4), dl.rand(4) + x))
    found = {tuple(value.numpy().tobytes() for value in draw(dl.zeros(4))) for _ in range(5)}
    assert len(found) == 5 and draw.recorded == 1


def test_threads_share_a_compiled_function() -> None:
    total, wrong = dl.zeros(100), []

    @dl.compile
    def step(x: Any) -> Any:
        total.add_(x)
        return x * 2

    def work(value: float) -> None:
        for _ in range(40):
            if (step(dl.full((100,), value)).numpy() != 2 * value).any():
                wrong.append(value)

    threads = [threading.Thread(target=work, args=(value,)) for value in (1.0, 2.0)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and total.tolist() == [120.0] * 100


def test_an_error_leaves_all_as_it_was() -> None:
    weight, fails = nn.Parameter(dl.ones(2)), [True]
    optimizer = optim.Adam([weight], lr=0.5)

    @dl.compile
    def step() -> Any:
        weight.sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        if fails:
            raise LookupError
        return weight.sum()

    with pytest.raises(LookupError):
        step()
    assert weight.tolist() == [1.0, 1.0] and weight.grad is None
    fails.clear()
    assert step().item() == pytest.approx(1.0) and step().item() == pytest.approx(0.0, abs=1e-6)
