"""What objects and warnings say of themselves."""

from __future__ import annotations

import inspect

import dlsys as dl
import numpy as np
import pytest
from dlsys import autodiff as ad
from dlsys import optim
from helpers import error_of


def test_a_wrong_shape_is_told_where_it_is_written() -> None:
    told = error_of(dl.ShapeError, lambda: dl.tensor(np.ones(6, "float32")).reshape(4, 2))
    assert told.startswith("reshape: (6,) of 6 elements does not fit (4, 2)") and "test_messages.py:" in told
    told = error_of(dl.DTypeError, lambda: dl.tensor([1], dtype="uint8").clamp(-1, 2))
    assert told.count("test_messages.py:") == 1


def test_executors_and_schedules_tell() -> None:
    X, W = ad.Variable("X"), ad.Parameter(np.ones((3, 2), "float32"), "W")
    y = X @ W
    run = ad.Executor([y])
    assert repr(run) == f"<Executor of {y.name} on cpu, 3 nodes, 0 plans>"
    run.infer_shape({X: (4, 3)})
    assert repr(run).endswith("1 plan>")
    many = ad.Executor([y + i for i in range(6)])
    assert "and 2 more" in repr(many)
    schedule = optim.lr_scheduler.StepLR(optim.SGD([W], lr=0.5), 2)
    schedule.step()
    assert repr(schedule) == "<StepLR at step 1, rates [0.5]>"
    plateau = optim.lr_scheduler.ReduceLROnPlateau(optim.SGD([W], lr=0.5))
    plateau.step(2.0)
    assert repr(plateau) == "<ReduceLROnPlateau at step 1, rates [0.5]>"


def test_methods_in_place_have_docstrings_and_signatures() -> None:
    names = "__iadd__ __isub__ __imul__ __itruediv__ __ipow__ __iand__ __ior__ __ixor__ __setitem__"
    for name in (names + " add_ sub_ mul_ div_ clamp_ masked_fill_ copy_ fill_ zero_").split():
        method = getattr(dl.Tensor, name)
        assert method.__doc__ and method.__name__ in (name, "setitem")
        assert {"self", "node"} & {*inspect.signature(method).parameters}, name


def test_autocast_on_a_cpu_warns_that_nothing_happens() -> None:
    w = dl.tensor(np.ones((3, 2), "float32"), requires_grad=True)
    step = optim.SGD([w], lr=0.1)
    with pytest.warns(RuntimeWarning, match='autocast: device_type="cpu" has no effect'), dl.autocast("cpu"):
        (dl.tensor(np.ones((4, 3), "float32")) @ w).sum().backward()
    told = "SGD.step: autocast has no effect: the parameters are on a CPU"
    with pytest.warns(RuntimeWarning, match=told), dl.autocast():
        step.step()
    with dl.autocast("cpu", enabled=False):
        step.step()
