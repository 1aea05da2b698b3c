"""Compiled traces on disk: a process runs what an earlier one has compiled, with its bits, and plans nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import dlsys as dl
import numpy as np
import pytest
from dlsys import kernels, nn
from dlsys.kernels import rows
from dlsys.nn import functional as F
from dlsys.tensors import kept, trace

LENGTHS = (3, 9, 2, 7, 12, 5, 9, 11)


class Model(nn.Module):
    """Attention over a text and a layer behind it, of its last place."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(8), nn.Linear(8, 24), nn.Linear(8, 5)

    def forward(self, x: dl.Tensor) -> dl.Tensor:
        q, k, v = self.qkv(self.norm(x)).split(8, dim=2)
        scores = q @ k.transpose(-2, -1) * 0.25
        y = x + F.softmax(scores, dim=-1) @ v
        return F.softmax(self.out(F.gelu(y)[:, -1, :]), dim=-1)


@pytest.fixture
def anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """What makes the process one that has met nothing, with the same folder of kernels."""
    monkeypatch.setenv("DLSYS_COMPILE_CACHE", str(tmp_path))

    def begin() -> None:
        trace.traces.clear()
        monkeypatch.setattr(kernels.cache, "_kernels", {})
        monkeypatch.setattr(kernels.cache, "_functions", {})
        for name in ("_seen", "_made"):
            monkeypatch.setattr(rows, name, {})

    begin()
    return begin


def outputs(model: nn.Module, lengths: tuple[int, ...]) -> list[np.ndarray]:
    found = []
    for n in lengths:
        x = np.random.default_rng(n).normal(size=(1, n, 8)).astype("float32")
        with dl.no_grad():
            found.append(model(dl.tensor(x)).numpy().copy())
    return found


def recorded() -> int:
    return sum(isinstance(one, trace.Recorded) for one in trace.traces)


def test_a_later_process_runs_the_plans_of_an_earlier_one(anew: Callable[[], None]) -> None:
    dl.manual_seed(0)
    model = Model()
    first = outputs(model, LENGTHS)
    assert not recorded()
    anew()
    compiled = kernels.compiled()
    for a, b in zip(first, outputs(model, LENGTHS), strict=True):
        np.testing.assert_array_equal(a, b)
    assert kernels.compiled() == compiled and recorded() == len(set(LENGTHS))

    anew()  # one length alone: not by kernels for many
    (got,) = outputs(model, (11,))
    assert not recorded()
    np.testing.assert_allclose(got, first[-1], rtol=1e-5, atol=1e-6)
    for path in list(Path(str(kernels.disk.cache_directory())).glob("*.so")):
        if path.read_bytes()[:1] != b"{":  # a kernel is missing
            path.unlink()
    anew()
    for a, b in zip(first, outputs(model, LENGTHS[:2]), strict=False):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_gradients_are_kept_and_other_numbers_are_other_traces(anew: Callable[[], None]) -> None:
    dl.manual_seed(1)
    model = nn.Sequential(nn.Linear(6, 7), nn.Tanh(), nn.Linear(7, 3), nn.Softmax(dim=-1))
    x = dl.tensor(np.random.default_rng(3).normal(size=(4, 6)).astype("float32"))

    def gradients(factor: float) -> list[np.ndarray]:
        model.zero_grad()
        (((model(x) - 0.5) * factor).exp() * (model(x) + 1.5)).sum().backward()
        return [p.grad.numpy().copy() for p in model.parameters()]

    first = {factor: gradients(factor) for factor in (2.0, 3.0)}
    for factor in (3.0, 2.0):
        anew()
        for a, b in zip(first[factor], gradients(factor), strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-6, atol=1e-7)
    anew()
    for a, b in zip(first[2.0], gradients(2.0), strict=True):
        np.testing.assert_array_equal(a, b)
    assert recorded() == 1


def test_a_damaged_record_is_planned_anew(anew: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    model = Model()
    first = outputs(model, (4,))
    for owner, name, instead in ((kept.disk, "content", b"[]"), (kept, "functions_on_disk", None)):
        anew()
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, lambda _, instead=instead: instead)
            np.testing.assert_array_equal(outputs(model, (4,))[0], first[0])
        assert not recorded()


def test_what_only_this_process_knows_is_not_kept(anew: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    keys = list[str | None]()
    key_of = kept.key_of
    monkeypatch.setattr(kept, "key_of", lambda *given: keys.append(key_of(*given)) or keys[-1])

    class Twice(dl.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: dl.Tensor) -> dl.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: object, grad: dl.Tensor) -> dl.Tensor:
            return grad * 2

    x = dl.tensor(np.ones((2, 3), "float32"), requires_grad=True)
    for function in (lambda y: y * 2, Twice.apply):
        y = x
        for _ in range(10):
            y = function(y).sin()
        y.sum().backward()
    assert keys[0] is not None and keys[1] is None
