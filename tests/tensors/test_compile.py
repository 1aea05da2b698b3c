"""`dl.compile`: a function of tensors as one program does what it does eagerly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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
    counted(x)
    assert "does something else at its second call" in error_of(CompileError, counted, x)
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
