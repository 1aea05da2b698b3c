"""What compiling tells."""

from __future__ import annotations

import io
import logging
import re

import dlsys as dl
import numpy as np
import pytest
from dlsys import autodiff as ad
from dlsys import nn
from dlsys.kernels import progress


def executor(rows: tuple[int, int] = (6, 3)) -> tuple[ad.Executor, ad.Node]:
    X = ad.Variable("X")
    return ad.Executor([ad.relu_op(X @ ad.Parameter(np.ones(rows, "float32"), "W"))]), X


def test_a_line_tells_what_was_compiled(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DLSYS_COMPILE_CACHE", "0")
    run, X = executor((11, 13))
    caplog.set_level(logging.INFO, "dlsys")
    run.run({X: np.ones((17, 11), "float32")})
    run.run({X: np.ones((17, 11), "float32")})
    (record,) = caplog.records
    assert record.levelname == "INFO"
    assert re.fullmatch(r"relu_\d+ for X \(17, 11\): 1 kernel, [12] compiled, \d+\.\d\d s", record.message)


def test_the_fifth_shape_brings_a_hint_once(caplog: pytest.LogCaptureFixture) -> None:
    run, X = executor()
    for rows in range(1, 8):
        run.infer_shape({X: (rows, 6)})
    (record,) = [one for one in caplog.records if one.levelno == logging.WARNING]
    assert "<Executor of relu_" in record.message and "5 sets of shapes" in record.message
    assert "docs/shapes.md" in record.message


def test_a_graph_of_tensors_brings_the_hint_too(caplog: pytest.LogCaptureFixture) -> None:
    model = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 2))
    for rows in range(1, 8):
        model(dl.tensor(np.ones((rows, 5), "float32"))).softmax(-1).numpy()
    (record,) = [one for one in caplog.records if one.levelno == logging.WARNING]
    assert "the graph of softmax_" in record.message and "test_progress.py" in record.message


def test_what_varies_in_something_else_brings_no_hint(caplog: pytest.LogCaptureFixture) -> None:
    x = dl.tensor(np.ones((9, 4), "float32"))
    for i in range(8):
        ((x[i] + 1) * 2 - x[0]).exp().numpy()
    assert not [one for one in caplog.records if one.levelno == logging.WARNING]


def test_a_bar_is_shown_on_terminals_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    shown = {}
    for name, stream, patience in (("now", Terminal(), 0.0), ("later", Terminal(), 60.0), ("file", io.StringIO(), 0.0)):
        monkeypatch.setattr(progress, "PATIENCE", patience)
        monkeypatch.setattr(progress.sys, "stderr", stream)
        with progress.bar(2) as bar:
            bar.update(1)
        shown[name] = stream.getvalue()
    assert "compiling kernels" in shown["now"] and not shown["later"] and not shown["file"]
