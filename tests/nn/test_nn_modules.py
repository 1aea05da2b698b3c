"""Modules: names and walks, state, lists and dictionaries, buffers, hooks, modes, printing, initial values."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import dlsys as dl
import numpy as np
import pytest
from beside_torch import agree, close, drawn, pair
from dlsys import autodiff as ad
from dlsys import nn
from dlsys.errors import GraphError, ShapeError
from helpers import error_of
from optional import torch


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        self.ff = nn.Linear(width, 4 * width)
        self.out = nn.Linear(4 * width, width, bias=False)
        self.register_buffer("seen", np.zeros(1))
        self.register_buffer("scratch", np.zeros(1), persistent=False)

    def forward(self, x: ad.Node) -> ad.Node:
        return self.out(ad.relu_op(self.ff(x)))


class Network(nn.Module):
    def __init__(self) -> None:
        self.layers = nn.ModuleList([Block(8), Block(8)])
        self.head = nn.Sequential(nn.Residual(nn.Linear(8, 8)), nn.Linear(8, 3))

    def forward(self, x: ad.Node) -> ad.Node:
        for layer in self.layers:
            x = x + layer(x)
        return self.head(x)


NAMES = [f"layers.{i}.{name}" for i in (0, 1) for name in ("ff.weight", "ff.bias", "out.weight")]
NAMES += [f"head.{name}" for name in ("0.fn.weight", "0.fn.bias", "1.weight", "1.bias")]


def test_names_walks_and_printing() -> None:
    network = Network()
    assert [name for name, _ in network.named_parameters()] == NAMES
    buffers = [f"layers.{i}.{name}" for i in (0, 1) for name in ("seen", "scratch")]
    assert [name for name, _ in network.named_buffers()] == buffers
    assert set(network.state_dict()) == {*NAMES, "layers.0.seen", "layers.1.seen"}
    assert set(network.state_dict(prefix="net.")) == {f"net.{name}" for name in network.state_dict()}
    assert next(network.named_parameters("net"))[0] == f"net.{NAMES[0]}" and not network.parameters(recurse=False)
    assert len(network.parameters()) == len(NAMES) and len(list(network.modules())) == 12
    network.layers[1].ff = network.layers[0].ff  # shared: walked once, saved under both names
    assert len(network.parameters()) == len(NAMES) - 2 and "layers.1.ff.bias" in network.state_dict()
    assert network.eval().head[0].training is False and network.train().head[0].training is True
    assert network.get_submodule("head.1") is network.head[1] and network.get_submodule("") is network
    assert "no module 'tail' (of 'layers.tail')" in error_of(GraphError, network.get_submodule, "layers.tail")
    assert network.get_parameter("head.1.bias") is network.head[1].bias
    text = repr(network)
    assert "(ff): Linear(8, 32)  # weight [32, 8], bias [32]; 288 parameters" in text and "Network()" in text
    assert repr(nn.LeakyReLU(0.3)) == "LeakyReLU(negative_slope=0.3)"
    assert repr(nn.CrossEntropyLoss(ignore_index=0)) == "CrossEntropyLoss(ignore_index=0)"


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
    assert model(drawn(3, 2).astype("float64")).shape == (3, 2)


def test_a_state_dict_of_pytorch_loads_as_it_is_and_goes_back() -> None:
    (mine, theirs) = (t.Sequential(t.Linear(6, 5), t.Flatten(), t.Linear(5, 2, bias=False)) for t in (nn, torch.nn))
    assert mine.load_state_dict(theirs.state_dict()) == ([], [])
    agree((mine, theirs), drawn(4, 6))
    theirs.load_state_dict({name: torch.tensor(value) for name, value in mine.state_dict().items()})
    for half in (torch.float16, torch.bfloat16):
        rounded = {name: value.to(half) for name, value in theirs.state_dict().items()}
        assert mine.load_state_dict(rounded) == ([], [])
        for name, value in mine.state_dict().items():
            np.testing.assert_array_equal(value, rounded[name].float())


def test_averages_are_made_of_state_dicts_and_training_does_not_change_them() -> None:
    a, b = nn.Linear(3, 2), nn.Linear(3, 2)
    first, second = a.state_dict(), b.state_dict()
    average = {name: (value + second[name]) / 2 for name, value in first.items()}
    first["bias"][0] = 7.0
    first["bias"].mul_(2.0)
    assert a.bias[0].item() != 14.0 == first["bias"][0].item()
    before = first["weight"].numpy().copy()
    optimizer = dl.optim.SGD(a.parameters(), lr=0.5)
    step = dl.compile(lambda x: (a(x).sum().backward(), optimizer.step())[0])
    for _ in range(3):
        step(dl.tensor(drawn(4, 3)))
    np.testing.assert_array_equal(first["weight"], before)
    assert (a.weight != first["weight"]).any() and not first["weight"].requires_grad
    a.load_state_dict(average)
    np.testing.assert_array_equal(a.weight, (before + second["weight"].numpy()) / 2)


def test_a_wrong_state_dict_says_all_that_is_wrong_and_changes_nothing() -> None:
    network = Network()
    before = network.state_dict()
    state = {name: value + 1 for name, value in before.items()}
    del state["layers.0.ff.bias"], state["head.1.bias"]
    state["more"] = np.zeros(1)
    told = error_of(RuntimeError, network.load_state_dict, state)
    assert "missing keys: layers.0.ff.bias, head.1.bias; unexpected keys: more" in told
    wrong = {**before, "layers.1.ff.bias": np.zeros(3), "head.1.bias": np.zeros((1, 3))}
    told = error_of(ShapeError, network.load_state_dict, wrong)
    assert "layers.1.ff.bias has shape (32,), the value (3,)" in told and "head.1.bias" in told
    for name, value in network.state_dict().items():
        np.testing.assert_array_equal(value, before[name])
    assert network.load_state_dict(state, strict=False) == (["layers.0.ff.bias", "head.1.bias"], ["more"])
    np.testing.assert_array_equal(network.head[1].weight.value, before["head.1.weight"] + 1)


def test_attributes_are_what_they_were_set_to() -> None:
    layer = nn.Linear(2, 2)
    layer.bias = None
    assert layer.bias is None and [name for name, _ in layer.named_parameters()] == ["weight"]
    layer.extra = ad.Parameter(np.zeros(3, "float32"))
    assert layer.extra.name == "extra" and "extra" in dir(layer)
    del layer.extra
    assert "has no attribute 'extra'" in error_of(AttributeError, getattr, layer, "extra")
    layer.register_parameter("scale", ad.Parameter(np.ones(2, "float32")))
    layer.register_parameter("shift", None)
    layer.register_buffer("seen", np.zeros(1), persistent=False)
    assert layer.shift is None and {"weight", "scale"} == layer.state_dict().keys()


def test_dtypes_of_modules() -> None:
    model, x = nn.Sequential(nn.Linear(3, 4), nn.Sequential({"inner": nn.BatchNorm1d(4)})), drawn(5, 3)
    assert model.double() is model
    assert {value.dtype for value in (*model.parameters(), *model.buffers())} == {"float64", "int64"}
    assert not any(isinstance(value, nn.Parameter) for value in model.buffers())
    assert model(x.astype("float64")).dtype == "float64" and model.to(np.float32)(x).dtype == "float32"
    assert model.to(torch.float64).cpu().to("cpu").get_submodule("0").weight.dtype == "float64"
    assert model.float().get_submodule("0").weight.dtype == "float32"
    layer = nn.Linear(2, 2)
    shared = nn.ModuleList([layer, layer])
    shared.add_module("again", nn.Linear(2, 2))
    shared.again.weight = layer.weight
    assert len(shared.double().parameters()) == 3 and shared.again.weight is layer.weight
    with pytest.warns(RuntimeWarning, match="to: non_blocking=True has no effect: ") as warned:
        model.to("cpu", non_blocking=True), dl.ones(2).to("cpu", non_blocking=True)
    assert [one.filename for one in warned] == [__file__] * 2


def test_frozen_parameters_get_no_gradient() -> None:
    layer = nn.Linear(2, 2)
    layer.bias.requires_grad = False
    layer(np.ones((1, 2), "float32")).sum().backward()
    assert layer.bias.grad is None and layer.weight.grad.numpy().tolist() == [[1, 1], [1, 1]]
    layer.zero_grad(set_to_none=False)
    assert not layer.weight.grad.numpy().any()
    layer.zero_grad()
    assert layer.weight.grad is None


def collections_of(library: Any, ones: Callable[..., Any]) -> Any:
    """A module with modules in a list and by name, and Parameters by number."""
    made = library.Module()
    made.heads = library.ModuleDict({"wide": library.Linear(3, 4), "narrow": library.Linear(3, 1)})
    made.scales = library.ParameterList([library.Parameter(ones(2)), library.Parameter(ones(1, 3))])
    made.stack = library.Sequential(library.Linear(2, 2))
    made.stack.append(library.Linear(2, 2))
    made.stack.append(library.Linear(2, 3))
    return made


def test_lists_and_dictionaries_of_modules_and_parameters() -> None:
    mine, theirs = collections_of(nn, dl.ones), collections_of(torch.nn, torch.ones)
    states = [[(k, v.shape) for k, v in module.state_dict().items()] for module in (mine, theirs)]
    assert states[0] == states[1]
    assert mine.stack[1:].state_dict().keys() == theirs.stack[1:].state_dict().keys()
    heads, scales, stack = mine.heads, mine.scales, mine.stack
    assert list(heads) == list(heads.keys()) == ["wide", "narrow"] and "wide" in heads and len(heads) == 2
    assert dict(heads.items())["wide"] is heads["wide"] is next(iter(heads.values()))
    heads["more"] = nn.Identity()
    heads.update([("most", nn.Identity())])
    assert isinstance(heads.pop("more"), nn.Identity)
    del heads["most"]
    assert list(heads) == ["wide", "narrow"]
    scales.append(dl.zeros(2)).extend([np.ones(1)])
    assert [value.shape for value in scales] == [(2,), (1, 3), (2,), (1,)] and scales[-1].requires_grad
    assert len(scales[1:3]) == 2 and scales[1:3][0] is scales[1]
    scales[0] = nn.Parameter(np.zeros(5))
    assert mine.get_parameter("scales.0").shape == (5,)
    first, second, last = stack
    assert stack[-1] is last and last.out_features == 3 and list(stack[:2]) == [first, second]
    stack[0] = nn.Identity()
    assert len(stack) == 3 and stack(drawn(1, 2)).shape == (1, 3)
    members = nn.ModuleList([first]).append(last)
    assert list(members) == [first, last] and len(members[1:]) == 1
    assert nn.Sequential({"a": nn.Identity(), "b": last}).b is last


def test_a_buffers_name_takes_a_tensor_a_parameter_or_none() -> None:
    """An array in its place would leave `state_dict`, as would a number; PyTorch raises a TypeError."""
    model, names = nn.BatchNorm1d(3), list(nn.BatchNorm1d(3).state_dict())
    for value in (np.zeros(3, "float32"), [0.0] * 3, 1.0, "text"):
        told = error_of(GraphError, setattr, model, "running_mean", value)
        assert "BatchNorm1d.running_mean is a buffer: assign a tensor or None" in told
        assert list(model.state_dict()) == names and model.running_mean.shape == (3,)
    model.running_mean = dl.tensor([1.0, 2.0, 3.0])
    assert model.state_dict()["running_mean"].tolist() == [1, 2, 3] and list(model.state_dict()) == names
    model.running_mean = None
    assert "running_mean" not in model.state_dict()
    scaled = nn.Module()
    scaled.register_buffer("scale", np.ones(2, "float32"), persistent=False)
    scaled.scale = scaled.scale * 2  # a computed tensor is a buffer's value
    assert [name for name, _ in scaled.named_buffers()] == ["scale"] and not list(scaled.parameters())
    scaled.scale = nn.Parameter(np.ones(2, "float32"))
    assert [name for name, _ in scaled.named_parameters()] == ["scale"] == list(scaled.state_dict())
    assert not list(scaled.named_buffers())
    (scaled.scale * 3).sum().backward()
    dl.optim.SGD(scaled.parameters(), lr=1.0).step()
    assert scaled.scale.tolist() == [-2, -2]


@pytest.mark.slow
def test_a_norm_called_several_times_in_one_run_moves_its_statistics_as_often() -> None:
    for momentum in (0.1, None):
        for way in ("together", "apart", "nested", "cpu", "numpy")[:: 1 if momentum else 2]:
            mine, theirs = pair("BatchNorm1d", 3, momentum=momentum)
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
                ad.Executor([ys[2] + ys[1], ys[0]], way).run(dict(zip(variables, xs, strict=True)))
            for x in xs if way != "nested" else ():
                theirs(torch.tensor(x))
            for name, value in theirs.named_buffers():
                close(dict(mine.named_buffers())[name].value, value, (momentum, way, name))


def test_forward_hooks_see_and_replace_outputs() -> None:
    model, seen = nn.Sequential(nn.Linear(2, 3), nn.ReLU()), []
    handle = model[0].register_forward_hook(lambda module, args, output: seen.append((module, args, output)))
    x = dl.ones(1, 2)
    plain = model(x).numpy()
    ((module, args, output),) = seen
    assert module is model[0] and args == (x,) and output.shape == (1, 3)
    doubled = model.register_forward_hook(lambda module, args, output: output * 2)
    np.testing.assert_allclose(model(x).numpy(), plain * 2)
    for one in (doubled, handle, handle):
        one.remove()
    np.testing.assert_allclose(model(x).numpy(), plain)
    assert len(seen) == 2


def test_initial_values_follow_the_formulas_and_the_seed() -> None:
    def values(name: str, *args: Any, shape: tuple[int, ...] = (200, 100), **words: Any) -> np.ndarray:
        dl.manual_seed(5)
        parameter = ad.Parameter(np.zeros(shape))
        assert getattr(nn.init, name)(parameter, *args, **words) is parameter
        return parameter.value

    uniform = values("xavier_uniform_")
    np.testing.assert_array_equal(uniform, values("xavier_uniform_"))
    images = values("kaiming_uniform_", a=math.sqrt(5), shape=(8, 4, 3, 3))
    for found, bound in ((uniform, 6 / 300), (images, 1 / 36)):
        assert 0.9 * math.sqrt(bound) < np.abs(found).max() <= math.sqrt(bound)
    for name, words, variance in (
        ("xavier_normal_", {"gain": 2.0}, 4 * 2 / 300),
        ("kaiming_normal_", {"nonlinearity": "relu"}, 2 / 100),
        ("kaiming_normal_", {"mode": "fan_out", "nonlinearity": "relu"}, 2 / 200),
    ):
        assert abs(values(name, **words).std() / math.sqrt(variance) - 1) < 0.02, name
    assert np.abs(values("trunc_normal_", 0.0, 1.0, -0.5, 0.5)).max() <= 0.5
    for shape in ((3, 7), (7, 3), (4, 2, 2)):
        w = values("orthogonal_", gain=2.0, shape=shape).reshape(shape[0], -1)
        small = w @ w.T if len(w) <= w.shape[1] else w.T @ w
        np.testing.assert_allclose(small, 4 * np.eye(len(small)), atol=1e-12)
    assert values("constant_", val=3.0, shape=(2,)).tolist() == [3.0, 3.0]
    for gain in ("relu", "tanh", "leaky_relu", "linear"):
        assert nn.init.calculate_gain(gain) == torch.nn.init.calculate_gain(gain)
    padded = nn.Embedding(4, 3, padding_idx=-4)
    assert padded.padding_idx == 0 and not padded.weight.value[0].any() and padded.weight.value[1:].all()
    dl.manual_seed(0)


def test_clipping_in_place_is_pytorchs() -> None:
    values = [100 * drawn(3, 4), drawn(5)]
    for max_norm in (2.0, 1e3):
        mine, theirs = ([make(value) for value in values] for make in (ad.Parameter, torch.tensor))
        for a, b, value in zip(mine, theirs, values, strict=True):
            a.grad, b.grad = dl.tensor(value), torch.tensor(value)
        found = nn.utils.clip_grad_norm_(iter(mine), max_norm).item()
        np.testing.assert_allclose(found, float(torch.nn.utils.clip_grad_norm_(theirs, max_norm)), rtol=1e-5)
        before = [parameter.grad.numpy() for parameter in mine]
        assert nn.utils.clip_grad_norm_(mine, math.inf) <= max_norm * (1 + 1e-5)  # only measures
        assert all((parameter.grad.numpy() == value).all() for parameter, value in zip(mine, before, strict=True))
        for a, b in zip(mine, theirs, strict=True):
            close(a.grad.numpy(), b.grad, limit=1e-4)
