"""Hooks of modules as PyTorch calls them, and what else is done to whole modules: copies, pickles, dtypes."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import dlsys as dl
import numpy as np
import torch
from dlsys import nn
from dlsys.errors import DlsysError, DTypeError, GraphError
from helpers import error_of


def called(library: Any, layers: Any, x: Any) -> list[Any]:
    """What hooks of all kinds see and change, in order."""
    seen: list[Any] = []

    def note(name: str, result: Any = None) -> Any:
        def hook(module: Any, *rest: Any) -> Any:
            shapes = [tuple(v.shape) if hasattr(v, "shape") else type(v).__name__ for v in rest]
            seen.append((name, type(module).__name__, shapes))
            return result(*rest) if result else None

        return hook

    class Scaled(layers.Module):  # type: ignore[misc]
        def forward(self, x: Any, scale: float = 1.0) -> Any:
            return x * scale

    scaled = Scaled()
    handles = [
        scaled.register_forward_pre_hook(note("pre")),
        scaled.register_forward_pre_hook(note("first", lambda args: (args[0] + 1.0,)), prepend=True),
        scaled.register_forward_pre_hook(note("one", lambda args: args[0] * 2.0)),
        scaled.register_forward_pre_hook(
            note("kwargs", lambda args, kwargs: (args, {"scale": kwargs["scale"] + 1})), with_kwargs=True
        ),
        scaled.register_forward_hook(note("after")),
        scaled.register_forward_hook(note("halved", lambda args, y: y / 2), prepend=True),
        scaled.register_forward_hook(note("both", lambda args, kwargs, y: y + kwargs["scale"]), with_kwargs=True),
    ]
    values = [scaled(x, scale=3.0)]
    handles[0].remove()
    handles[5].remove()
    handles[5].remove()
    values.append(scaled(x, scale=3.0))
    with scaled.register_forward_hook(note("passing", lambda args, y: -y)):
        values.append(layers.Sequential(scaled)[0](x, scale=0.0))
    values.append(scaled(x, scale=0.0))
    return [seen, *values]


def test_hooks_run_in_the_order_of_pytorch_and_change_what_they_change_there() -> None:
    x = np.arange(6.0).reshape(2, 3)
    (seen, *mine), (expected, *theirs) = called(dl, nn, dl.tensor(x)), called(torch, torch.nn, torch.tensor(x))
    assert seen == expected
    for a, b in zip(mine, theirs, strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy())


def test_a_hook_catches_activations_of_a_layer_inside() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    kept: dict[str, Any] = {}

    def keep(module: Any, args: Any, output: Any) -> None:
        kept["hidden"] = output.detach()

    model[1].register_forward_hook(keep)
    again = copy.deepcopy(model)  # with its hooks
    x = dl.tensor(np.ones((2, 3), "float32"))
    for network in (model, again):
        kept.clear()
        y = network(x)
        hidden = np.maximum(network[0](x).numpy(), 0)
        np.testing.assert_allclose(kept["hidden"].numpy(), hidden, rtol=1e-6)
        np.testing.assert_allclose(y.numpy(), network[2](kept["hidden"]).numpy(), rtol=1e-6)
    model(x).sum().backward()
    assert model[0].weight.grad is not None and again[0].weight.grad is None


def test_hooks_that_are_none_are_named() -> None:
    layer = nn.Linear(2, 2)
    assert "a hook must be a function, not int" in error_of(GraphError, layer.register_forward_hook, 3)
    assert "register_forward_pre_hook" in error_of(GraphError, layer.register_forward_pre_hook, None)
    layer.register_forward_pre_hook(lambda module, args, kwargs: args, with_kwargs=True)
    assert "a pair (args, kwargs)" in error_of(GraphError, layer, np.ones((1, 2), "float32"))


def test_copies_and_pickles_are_modules_of_their_own() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    x = np.random.default_rng(0).standard_normal((5, 3)).astype("float32")
    before = model.state_dict()
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert all((other.state_dict()[name] == value).all() for name, value in before.items())
        optimizer = dl.optim.SGD(other.parameters(), 0.5)
        other(x).sum().backward()
        optimizer.step()
        assert not (other[2].bias.numpy() == model[2].bias.numpy()).any()
        assert all((model.state_dict()[name] == value).all() for name, value in before.items())
    shared = nn.Sequential(model[0], model[0])
    again = copy.deepcopy(shared)
    assert again[0].weight is again[1].weight and again[0].weight is not model[0].weight


def test_parameters_are_a_list_and_an_iterator() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    assert next(model.parameters()) is model[0].weight and len(model.parameters()) == 4
    walk = iter(model.parameters())
    assert next(walk) is model[0].weight and len(list(walk)) == 3
    left = model.parameters()
    assert next(left) is model[0].weight and next(left) is model[0].bias and len(list(left)) == 2
    assert next(model.buffers()) is model[1].running_mean and next(nn.ReLU().parameters(), None) is None


def test_dtypes_and_devices_by_all_the_names() -> None:
    layer, wide = nn.Linear(2, 3), dl.tensor(np.ones(1))
    assert layer.to(wide).weight.dtype == "float64" and layer.type(dl.float32).bias.dtype == "float32"
    assert layer.to("cpu", dl.float64, non_blocking=True).weight.dtype == "float64" and layer.float() is layer
    for function in (layer.half, layer.bfloat16, lambda: layer.to("float16"), lambda: layer.to(torch.float16)):
        assert "Parameters are float32 or float64, not " in error_of(DTypeError, function)
    assert "takes a dtype and a device, not nonblocking" in error_of(GraphError, layer.to, "cpu", nonblocking=True)
    try:
        layer.cuda()
    except DlsysError as error:  # the machine may have one
        assert "cuda" in str(error)
    else:
        raise AssertionError("a module on a GPU")


def test_initial_values_are_set_anew() -> None:
    layers = [
        nn.Linear(3, 4), nn.Bilinear(2, 3, 4), nn.Conv2d(1, 2, 3), nn.ConvTranspose1d(1, 2, 3), nn.Embedding(5, 3, 1),
        nn.BatchNorm1d(3), nn.LayerNorm(3), nn.RMSNorm(3), nn.GroupNorm(1, 3), nn.LSTM(2, 3), nn.GRUCell(2, 3),
        nn.InstanceNorm1d(3, affine=True, track_running_stats=True),
    ]  # fmt: skip
    for layer in layers:
        dl.manual_seed(0)
        layer.reset_parameters()
        before = layer.state_dict()
        for parameter in (*layer.parameters(), *layer.buffers()):
            parameter.value = np.full(parameter.shape, 7)
        dl.manual_seed(0)
        assert nn.Sequential(layer).apply(lambda m: m.reset_parameters() if hasattr(m, "reset_parameters") else None)
        after = layer.state_dict()
        assert all((after[name] == value).all() and (value != 7).all() for name, value in before.items()), layer
    assert not layers[4].weight.numpy()[1].any() and layers[4].weight.numpy()[0].all()


def test_initial_values_reach_a_weight_through_its_data() -> None:
    layer = nn.Linear(300, 200)
    for weight in (layer.weight.data, layer.weight, dl.tensor(np.zeros((200, 300)), requires_grad=True)):
        found = nn.init.normal_(weight, 2.0, 0.02)
        assert found is weight and abs(found.numpy().std() - 0.02) < 1e-3 and abs(found.numpy().mean() - 2) < 1e-3
        if weight.name.startswith("weight"):
            assert abs(layer.weight.numpy().std() - 0.02) < 1e-3
        nn.init.constant_(weight, 0.5)
        assert (weight.numpy() == 0.5).all() and weight.grad is None
    nn.init.zeros_(layer.bias.data)
    assert not layer.bias.numpy().any() and layer.bias.requires_grad


def test_sequences_of_modules_are_added() -> None:
    one, two = nn.Sequential(nn.Linear(2, 3), nn.ReLU()), nn.Sequential(nn.Linear(3, 1))
    both = one + two
    assert list(both) == [*one, *two] and list(both.state_dict()) == ["0.weight", "0.bias", "2.weight", "2.bias"]
    try:
        one + 3
    except TypeError:
        return
    raise AssertionError("a number was added")
