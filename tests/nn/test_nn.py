"""Modules: names, state, modes, errors, printing, initial values; losses against torch.nn."""

from __future__ import annotations

import math

import dlsys as dl
import numpy as np
from beside_torch import close
from dlsys import autodiff as ad
from dlsys import nn
from dlsys.errors import IndexRangeError, ShapeError
from dlsys.nn import functional as F
from helpers import error_of
from optional import optional, torch


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


def test_names_and_walks() -> None:
    network = Network()
    assert [name for name, _ in network.named_parameters()] == NAMES
    buffers = [f"layers.{i}.{name}" for i in (0, 1) for name in ("seen", "scratch")]
    assert [name for name, _ in network.named_buffers()] == buffers
    assert set(network.state_dict()) == {*NAMES, "layers.0.seen", "layers.1.seen"}
    assert len(network.parameters()) == len(NAMES) and len(list(network.modules())) == 12
    network.layers[1].ff = network.layers[0].ff  # shared: walked once, saved under both names
    assert len(network.parameters()) == len(NAMES) - 2 and "layers.1.ff.bias" in network.state_dict()
    assert network.eval().head[0].training is False and network.train().head[0].training is True
    text = repr(network)
    assert "(ff): Linear(8, 32)  # weight [32, 8], bias [32]; 288 parameters" in text and "Network()" in text


def test_a_state_dict_of_pytorch_loads_as_it_is() -> None:
    mine = nn.Sequential(nn.Linear(6, 5), nn.Flatten(), nn.Linear(5, 2, bias=False))
    theirs = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Flatten(), torch.nn.Linear(5, 2, bias=False))
    assert mine.load_state_dict(theirs.state_dict()) == ([], [])
    x = np.random.default_rng(0).standard_normal((4, 6)).astype("float32")
    np.testing.assert_allclose(mine(x).numpy(), theirs(torch.tensor(x)).detach().numpy(), atol=1e-6)
    back = {name: torch.tensor(value) for name, value in mine.state_dict().items()}
    theirs.load_state_dict(back)


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
    assert nn.Sequential({"a": nn.Identity(), "b": layer}).b is layer
    assert len(nn.Sequential(layer, layer, nn.Identity())[1:]) == 2


def test_frozen_parameters_get_no_gradient() -> None:
    layer = nn.Linear(2, 2)
    layer.bias.requires_grad = False
    layer(np.ones((1, 2), "float32")).sum().backward()
    assert layer.bias.grad is None and layer.weight.grad.numpy().tolist() == [[1, 1], [1, 1]]
    layer.zero_grad()
    assert layer.weight.grad is None


def test_initial_values_follow_the_formulas_and_the_seed() -> None:
    def values(function: object, *args: object, shape: tuple[int, ...] = (200, 100), **kwargs: object) -> np.ndarray:
        dl.manual_seed(5)
        parameter = ad.Parameter(np.zeros(shape))
        assert function(parameter, *args, **kwargs) is parameter  # type: ignore[operator]
        return parameter.value

    bound = math.sqrt(6 / 300)
    uniform = values(nn.init.xavier_uniform_)
    assert 0.98 * bound < np.abs(uniform).max() <= bound
    np.testing.assert_array_equal(uniform, values(nn.init.xavier_uniform_))
    assert abs(values(nn.init.xavier_normal_, gain=2.0).std() / (2 * math.sqrt(2 / 300)) - 1) < 0.02
    assert abs(values(nn.init.kaiming_normal_, nonlinearity="relu").std() / math.sqrt(2 / 100) - 1) < 0.02
    found = np.abs(values(nn.init.kaiming_uniform_, a=math.sqrt(5), shape=(8, 4, 3, 3))).max()
    assert 0.9 * math.sqrt(1 / 36) < found <= math.sqrt(1 / 36)
    fan_out = values(nn.init.kaiming_normal_, mode="fan_out", nonlinearity="relu")
    assert abs(fan_out.std() / math.sqrt(2 / 200) - 1) < 0.02
    cut = values(nn.init.trunc_normal_, 0.0, 1.0, -0.5, 0.5)
    assert np.abs(cut).max() <= 0.5
    for gain in ("relu", "tanh", "leaky_relu", "linear"):
        assert nn.init.calculate_gain(gain) == torch.nn.init.calculate_gain(gain)
    dl.manual_seed(0)


rng = np.random.default_rng(1)
t = optional("torch.nn")


def test_one_hot_and_cross_entropy_of_declared_variables() -> None:
    numbers = np.array([[0, 3], [1, 1]])
    np.testing.assert_array_equal(F.one_hot(dl.tensor(numbers)).numpy(), t.functional.one_hot(torch.tensor(numbers)))

    logits, targets = ad.Variable("logits", (2, 3), "float64"), ad.Variable("targets", (2,), "int64")
    loss = nn.CrossEntropyLoss()(logits, targets)
    values, numbers = rng.standard_normal((2, 3)), np.array([2, 7])
    told = error_of(IndexRangeError, ad.Executor([loss], "numpy").run, {logits: values, targets: numbers})
    assert "index 7 is out of range for 3 classes [targets]" in told
    told = error_of(IndexRangeError, F.cross_entropy, dl.tensor(values), dl.tensor(numbers))
    assert "index 7 is out of range for 3 classes" in told
    computed = nn.CrossEntropyLoss()(logits, ad.maximum_op(targets, targets))
    assert np.isnan(ad.Executor([computed], "numpy").run({logits: values, targets: numbers})[0])
    told = error_of(ShapeError, nn.CrossEntropyLoss(), logits, ad.Variable("y", (3,)))
    assert told.startswith("CrossEntropyLoss() got (2, 3)") and "beside (3,)" in told
    unknown = [ad.Variable("x"), ad.Variable("y")]  # probabilities are known by their dtype or shape
    step = ad.Executor([ad.cross_entropy_op(*unknown)], "numpy")
    told = error_of(ShapeError, step.run, {unknown[0]: values, unknown[1]: np.full((2, 3), 1 / 3)})
    assert "are not class numbers (2,); variables of probabilities declare their dtype" in told
    assert repr(nn.CrossEntropyLoss(ignore_index=0, label_smoothing=0.1)) == (
        "CrossEntropyLoss(ignore_index=0, label_smoothing=0.1)"
    )


def test_squares_of_differences_are_of_one_shape() -> None:
    x, y = np.ones((8, 1), "float32"), np.ones(8, "float32")
    for loss in (F.mse_loss, nn.MSELoss()):
        told = error_of(ShapeError, loss, dl.tensor(x), dl.tensor(y))
        assert "(8, 1)" in told and "(8,)" in told
        a, b = ad.Variable("a"), ad.Variable("b")
        for ctx in ("cpu", "numpy"):
            executor = ad.Executor([loss(a, b)], ctx)
            assert "shapes differ: (8, 1) and (8,)" in error_of(ShapeError, executor.run, {a: x, b: y})
            assert np.asarray(executor.run({a: x, b: 3 * x})[0]) == 4
    assert F.mse_loss(dl.tensor(y), 3 * y).item() == F.mse_loss(dl.tensor(y), 3).item() == 4


def test_no_classes_make_no_error() -> None:
    logits, numbers = ad.Variable("x", (2, 0), "float32"), ad.Variable("y", (2,), "int64")
    for smoothing in (0.0, 0.1):
        computed = ad.maximum_op(numbers, numbers)  # what is fed is out of range
        loss = ad.cross_entropy_op(logits, computed, label_smoothing=smoothing, reduction="none")
        for ctx in ("numpy", "cpu"):
            found = ad.Executor([loss, *ad.gradients(loss, [logits])], ctx).run(
                {logits: np.zeros((2, 0), "float32"), numbers: np.zeros(2, "int64")}, convert_to_numpy_ret_vals=True
            )
            assert np.isnan(found[0]).all() and found[1].shape == (2, 0)


def test_class_numbers_of_8_bits_and_more_classes_than_those_count() -> None:
    x, y = rng.standard_normal((6, 300)), np.array([0, 3, 44, 255, 43, 7], "uint8")
    for smoothing in (0.0, 0.1):
        a, b = dl.tensor(x, requires_grad=True), torch.tensor(x, requires_grad=True)
        mine = F.cross_entropy(a, dl.tensor(y), label_smoothing=smoothing)
        theirs = t.functional.cross_entropy(b, torch.tensor(y.astype("int64")), label_smoothing=smoothing)
        mine.backward(), theirs.backward()
        close(mine.numpy(), theirs, "float64", smoothing)
        close(a.grad.numpy(), b.grad, "float64", smoothing)
