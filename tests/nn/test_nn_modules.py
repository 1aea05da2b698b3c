"""More modules against torch.nn, collections of modules and Parameters, what a Module can do, wrong arguments."""

from __future__ import annotations

import math
from typing import Any

import dlsys as dl
import numpy as np
import pytest
from beside_torch import close, drawn
from dlsys import autodiff as ad
from dlsys import nn
from dlsys.errors import GraphError
from helpers import error_of
from optional import optional, torch

rng = np.random.default_rng(2)
t = optional("torch.nn")


@pytest.mark.slow
def test_a_norm_called_several_times_in_one_run_moves_its_statistics_as_often() -> None:
    for momentum in (0.1, None):
        for way in ("together", "apart", "nested", "compiled", "numpy")[:: 1 if momentum else 2]:
            mine, theirs = nn.BatchNorm1d(3, momentum=momentum), t.BatchNorm1d(3, momentum=momentum)
            xs = [drawn(6, 3) + i for i in range(3)]
            if way == "nested":
                mine(mine(mine(xs[0])) * 2.0 + 1.0).numpy()
                theirs(theirs(theirs(torch.tensor(xs[0]))) * 2 + 1)
            elif way in ("together", "apart"):
                ys = [mine(x) for x in xs]
                if way == "together":
                    (ys[2] * 2.0 + ys[0] + ys[1]).sum().backward()
                for y in ys:
                    y.numpy()
            else:
                variables = [ad.Variable(f"x{i}", x.shape, "float32") for i, x in enumerate(xs)]
                ys = [mine(x) for x in variables]
                executor = ad.Executor([ys[2] + ys[1], ys[0]], "cpu" if way == "compiled" else way)
                executor.run(dict(zip(variables, xs, strict=True)))
            for x in xs if way != "nested" else ():
                theirs(torch.tensor(x))
            for name, value in theirs.named_buffers():
                close(dict(mine.named_buffers())[name].value, value, "float32", (momentum, way, name))


def test_lists_and_dicts_of_modules() -> None:
    a, b, c = (nn.Linear(2, 2) for _ in range(3))
    x = drawn(1, 2)
    mine, theirs = nn.Sequential(a, b), t.Sequential(t.Linear(2, 2), t.Linear(2, 2))
    for each, extra in ((mine, c), (theirs, t.Linear(2, 2))):
        each.append(extra)
        each.append(type(extra)(2, 3))
    assert mine.state_dict().keys() == theirs.state_dict().keys()
    assert mine[1:3].state_dict().keys() == theirs[1:3].state_dict().keys()
    mine.load_state_dict(theirs.state_dict())
    close(mine(x).numpy(), theirs(torch.tensor(x)), "float32", "sequence")
    assert mine[2] is c and mine[-1].out_features == 3 and list(mine[:2]) == [a, b]
    mine[0] = nn.Identity()
    assert len(mine) == 4 and mine(x) is not None
    members = nn.ModuleList([a]).append(c)
    assert list(members) == [a, c] and len(members[1:]) == 1


def test_what_a_module_can_do() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Sequential({"inner": nn.BatchNorm1d(4)}))
    assert model.get_submodule("1.inner") is model[1].inner and model.get_submodule("") is model
    assert "no module 'outer' (of '1.outer')" in error_of(GraphError, model.get_submodule, "1.outer")
    assert next(model.named_parameters("net"))[0] == "net.0.weight" and not model.parameters(recurse=False)
    layer = nn.Linear(2, 2)
    layer.register_parameter("scale", ad.Parameter(np.ones(2, "float32")))
    layer.register_parameter("shift", None)
    layer.register_buffer("seen", np.zeros(1), persistent=False)
    assert layer.shift is None and {"weight", "bias", "scale"} == layer.state_dict().keys()
    assert model.double() is model
    assert {value.dtype for value in (*model.parameters(), *model.buffers())} == {"float64", "int64"}
    x = rng.standard_normal((5, 3))
    y = model(x)
    assert y.dtype == "float64" and model.to(np.float32)(x.astype("float32")).dtype == "float32"
    assert model.to(torch.float64).cpu().to("cpu").get_submodule("0").weight.dtype == "float64"
    assert model.float().get_submodule("0").weight.dtype == "float32"
    shared = nn.ModuleList([layer, layer])
    shared.add_module("again", nn.Linear(2, 2))
    shared.again.weight = layer.weight
    assert len(shared.double().parameters()) == 5 - 1 and shared.again.weight is layer.weight

    (model(dl.tensor(x, "float32")) * 2.0).sum().backward()
    model.zero_grad(set_to_none=False)
    assert not model[0].weight.grad.numpy().any()


class Child(nn.Module):
    def __init__(self, parent: nn.Module, shared: nn.Module) -> None:
        self.parent, self.shared = parent, shared
        self.weight = ad.Parameter(np.ones(2, "float32"))
        self.itself = self

    def forward(self, x: ad.Node) -> ad.Node:
        return self.shared(x * self.weight)


class Family(nn.Module):
    def __init__(self) -> None:
        shared = nn.Linear(2, 2)
        self.first, self.second = Child(self, shared), Child(self, shared)

    def forward(self, x: ad.Node) -> ad.Node:
        return self.second(self.first(x))


def test_a_module_may_refer_to_its_parent() -> None:
    """And to itself: every walk of the modules ends; one that modules share has all its names in a state."""
    model = Family()
    names = [f"{child}.{name}" for child in ("first", "second") for name in ("weight", "shared.weight", "shared.bias")]
    state = model.state_dict()
    assert list(state) == names and model.load_state_dict(state).missing_keys == []
    assert list(model.first.state_dict())[:3] == ["weight", "parent.second.weight", "parent.second.shared.weight"]
    lines = repr(model).splitlines()
    assert sum(line.endswith("# above") for line in lines) == 4 and len(lines) == 9
    assert "    (parent): Family()  # above" in lines and "    (itself): Child()  # above" in lines
    assert len(model.parameters()) == 4 and len(list(model.modules())) == 4
    assert not model.eval().first.training and model.double().second.weight.dtype == "float64"
    assert model(rng.standard_normal((3, 2))).shape == (3, 2)


def test_a_buffers_name_takes_a_tensor_or_none() -> None:
    """An array in its place would leave `state_dict`, as would a number; PyTorch raises a TypeError."""
    model = nn.BatchNorm1d(3)
    names = list(model.state_dict())
    for value in (np.zeros(3, "float32"), [0.0] * 3, 1.0, "text"):
        told = error_of(GraphError, setattr, model, "running_mean", value)
        assert "BatchNorm1d.running_mean is a buffer: assign a tensor or None" in told
        assert list(model.state_dict()) == names and model.running_mean.shape == (3,)
    model.running_mean = dl.tensor([1.0, 2.0, 3.0])
    assert model.state_dict()["running_mean"].tolist() == [1, 2, 3] and list(model.state_dict()) == names
    model.running_mean = None
    assert "running_mean" not in model.state_dict()


def test_a_parameter_in_a_buffers_place_is_a_parameter() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("scale", np.ones(2, "float32"), persistent=False)

    model, other = Scaled(), Scaled()
    model.scale = other.scale  # another buffer is a tensor
    model.scale = model.scale * 2
    assert [name for name, _ in model.named_buffers()] == ["scale"] and not list(model.parameters())
    model.scale = nn.Parameter(np.ones(2, "float32"))
    assert [name for name, _ in model.named_parameters()] == ["scale"] == list(model.state_dict())
    assert not list(model.named_buffers())
    optimizer = dl.optim.SGD(model.parameters(), lr=1.0)
    (model.scale * 3).sum().backward()
    optimizer.step()
    assert model.scale.tolist() == [-2, -2]
    norm = nn.BatchNorm1d(2).double()
    assert not any(isinstance(value, nn.Parameter) for value in norm.buffers()) and norm.running_var.dtype == "float64"


def test_clipping_in_place_is_pytorchs() -> None:
    values = [100 * rng.standard_normal(shape).astype("float32") for shape in ((3, 4), (5,))]
    for max_norm in (2.0, 1e3):
        mine = [ad.Parameter(value) for value in values]
        theirs = [torch.tensor(value, requires_grad=True) for value in values]
        for a, b, value in zip(mine, theirs, values, strict=True):
            a.grad, b.grad = dl.tensor(value), torch.tensor(value)
        found = nn.utils.clip_grad_norm_(iter(mine), max_norm)
        np.testing.assert_allclose(found, float(t.utils.clip_grad_norm_(theirs, max_norm)), rtol=1e-5)
        assert isinstance(found, float) and found.item() == float(found)
        before = [parameter.grad.numpy() for parameter in mine]
        assert nn.utils.clip_grad_norm_(mine, math.inf) <= max_norm * (1 + 1e-5)  # only measures
        assert all((parameter.grad.numpy() == value).all() for parameter, value in zip(mine, before, strict=True))
        for a, b in zip(mine, theirs, strict=True):
            np.testing.assert_allclose(a.grad.numpy(), b.grad.numpy(), rtol=1e-4)


def test_arguments_of_pytorch_without_effect_warn() -> None:
    x, model = dl.ones(2), nn.Linear(2, 2)
    cases: list[tuple[str, Any, Any, dict[str, Any]]] = [
        ("to: non_blocking=True", x.to, ("cpu",), {"non_blocking": True}),
        ("to: non_blocking=True", model.to, ("cpu",), {"non_blocking": True}),
    ]
    for words, kind, args, kwargs in cases:
        with pytest.warns(RuntimeWarning, match=f"{words} has no effect: ") as warned:
            kind(*args, **kwargs)
        assert len(warned) == 1 and warned[0].filename == __file__
        kind(*args, **dict.fromkeys(kwargs, False))
