"""What compiling tells, and the machine's measured peaks."""

from __future__ import annotations

import io
import logging
import re
from collections.abc import Callable
from typing import Any

import dlsys as dl
import numpy as np
import pytest
import tvm
from dlsys import autodiff as ad
from dlsys import nn
from dlsys.kernels import peak, progress
from dlsys.schedule.target import host_target


def shapes_of_an_executor() -> None:
    x = ad.Variable("X")
    run = ad.Executor([ad.relu_op(x @ ad.Parameter(np.ones((6, 3), "float32"), "W"))])
    for rows in range(1, 8):
        run.infer_shape({x: (rows, 6)})


def shapes_of_tensors() -> None:
    model = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 2))
    for rows in range(1, 8):
        model(dl.tensor(np.ones((rows, 5), "float32"))).softmax(-1).numpy()


def numbers_of_tensors() -> None:
    x = dl.tensor(np.ones((9, 4), "float32"))
    for i in range(8):
        ((x[i] + 1) * 2 - x[0]).exp().numpy()


def test_a_line_tells_what_was_compiled(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DLSYS_COMPILE_CACHE", "0")
    x = ad.Variable("X")
    run = ad.Executor([ad.relu_op(x @ ad.Parameter(np.ones((11, 13), "float32"), "W"))])
    caplog.set_level(logging.INFO, "dlsys")
    for _ in range(2):
        run.run({x: np.ones((17, 11), "float32")})
    (record,) = caplog.records
    assert record.levelname == "INFO"
    assert re.fullmatch(r"relu_\d+ for X \(17, 11\): 1 kernel, [12] compiled, \d+\.\d\d s", record.message)


@pytest.mark.parametrize(
    ("work", "told"),
    [
        (shapes_of_an_executor, ["<Executor of relu_", "5 sets of shapes", "docs/shapes.md"]),
        (shapes_of_tensors, ["the graph of softmax_", "test_progress.py"]),
        (numbers_of_tensors, []),
    ],
)
def test_the_fifth_shape_brings_a_hint_once(
    work: Callable[[], None], told: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    work()
    said = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert len(said) == bool(told) and all(words in said[0] for words in told)


def test_a_bar_is_shown_on_terminals_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    shown: list[Any] = []
    for stream, patience in ((Terminal(), 0.0), (Terminal(), 60.0), (io.StringIO(), 0.0)):
        monkeypatch.setattr(progress, "PATIENCE", patience)
        monkeypatch.setattr(progress.sys, "stderr", stream)
        with progress.bar(2) as bar:
            bar.update(1)
        shown.append(stream.getvalue())
    assert "compiling kernels" in shown[0] and shown[1:] == ["", ""]


def test_peak_kernels_compute_what_they_count() -> None:
    threads, lanes = 2, 8
    x = dl.array(np.stack([np.full(lanes, 0.5), np.ones(lanes)]).astype("float32"))
    out = dl.zeros((threads, 3 * lanes))
    tvm.compile(peak.fma_kernel(3, lanes, threads), target=host_target())["fma"](x.tensor, out.tensor)
    assert np.array_equal(out.numpy(), np.full((threads, 3 * lanes), 2, "float32"))
    b, c, a = (dl.array(np.random.rand(43).astype("float32")) for _ in range(3))
    peak.triad_kernel(43)(b, c, a)
    assert np.allclose(a.numpy(), 0.5 * b.numpy() + c.numpy(), rtol=1e-6)


@pytest.mark.slow
def test_peaks_are_measured_once() -> None:
    for measure in (peak.fma_peak, peak.memory_bandwidth):
        assert 0 < measure(1) == measure(1) < float("inf")
