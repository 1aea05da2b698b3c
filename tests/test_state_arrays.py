"""What `state_dict` gives: NumPy arrays, with the methods that programs of PyTorch call."""

from __future__ import annotations

import copy
import io
import pickle
import tempfile
from pathlib import Path
from typing import Any

import dlsys as dl
import numpy as np
import torch
from dlsys import nn
from dlsys.errors import DeviceError, GraphError
from helpers import error_of


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))


def test_they_are_arrays_as_before() -> None:
    model = network()
    state = model.state_dict()
    for name, value in state.items():
        assert isinstance(value, np.ndarray) and isinstance(value.size, int)
        plain = np.array(value)
        np.testing.assert_array_equal(torch.tensor(value).numpy(), plain)
        if value.ndim:
            assert torch.from_numpy(value).data_ptr() == value.ctypes.data
        np.testing.assert_allclose(0.9 * value + 0.1 * state[name], plain, rtol=1e-6)
        assert repr(value) == repr(plain) and type(pickle.loads(pickle.dumps(value))) is np.ndarray
        np.testing.assert_array_equal(pickle.loads(pickle.dumps(value)), plain)
    held = io.BytesIO()
    np.savez(held, **state)
    held.seek(0)
    with tempfile.TemporaryDirectory() as folder:
        dl.save(state, Path(folder) / "state.safetensors")
        for loaded in (dict(np.load(held)), dl.load(Path(folder) / "state.safetensors"), copy.deepcopy(state)):
            assert loaded.keys() == state.keys() and model.load_state_dict(loaded) == ([], [])
            for name, value in state.items():
                np.testing.assert_array_equal(loaded[name], value)


def test_moving_averages_are_pytorchs() -> None:
    theirs, mine = torch.nn.Linear(3, 2), nn.Linear(3, 2)
    mine.load_state_dict(theirs.state_dict())

    def averages(model: Any, move: Any) -> list[Any]:
        first = {k: v.clone() for k, v in model.state_dict().items()}
        second = {k: v.detach().cpu().float().clone() for k, v in model.state_dict().items()}
        move(model)
        for k, v in model.state_dict().items():
            first[k].mul_(0.9).add_(v, alpha=0.1)
            second[k].lerp_(v.to(second[k].dtype), 0.25)
        found = [v.numpy() for part in (first, second) for v in part.values()]
        return [*found, *[(v.size(), v.numel(), v.dim(), v.is_floating_point()) for v in first.values()]]

    def move_mine(model: Any) -> None:
        for p in model.parameters():
            p.value = p.value + 1

    def move_theirs(model: Any) -> None:
        for p in model.parameters():
            p.data += 1

    for a, b in zip(averages(mine, move_mine), averages(theirs, move_theirs), strict=True):
        if isinstance(a, tuple):
            assert a == b
        else:
            np.testing.assert_allclose(a, b, rtol=1e-6)


def test_what_is_written_by_methods_reaches_the_module() -> None:
    model = network()
    state = model.state_dict()
    state["0.weight"].copy_(np.arange(6).reshape(2, 3))
    state["0.weight"][1].zero_()
    assert model[0].weight.tolist() == [[0, 1, 2], [0, 0, 0]]
    state["0.weight"].sub_(1).div_(2)
    assert model[0].weight.tolist() == state["0.weight"].tolist() == [[-0.5, 0, 0.5], [-0.5] * 3]
    own = state["0.weight"].clone()
    own.fill_(7)
    state["0.weight"][...] = 8  # the copy alone, as it says
    assert model[0].weight.tolist()[0] == [-0.5, 0, 0.5]
    model[0].weight.value = own
    assert "ask for state_dict() again" in error_of(GraphError, state["0.weight"].mul_, 2)
    assert "CPU" in error_of(DeviceError, own.to, "cuda:0")
    assert own.to("cpu", dtype="float64").dtype == np.float64 and own.double().long().dtype == np.int64
    assert state["1.num_batches_tracked"].size() == () and own.size(1) == 3 and not own.requires_grad
