"""The layers against torch.nn, with PyTorch's state loaded: outputs, gradients, state after steps, errors."""

from __future__ import annotations

from typing import Any

import dlsys as dl
import numpy as np
import pytest
from beside_torch import DTYPES, assert_module, close, drawn, rng
from dlsys import autodiff as ad
from dlsys import nn
from dlsys.errors import GraphError, ShapeError
from dlsys.nn import functional as F
from helpers import error_of
from optional import torch

EDGES = np.array([[-3, -1, 0, 1, 3, 6, 7, -0.5, 2.5, -4]])  # where pieces meet
NUMBERS = np.array([[1, 4, 0], [4, 2, 1]])
LAYERS: list[tuple[str, Any, tuple[Any, ...], dict[str, Any]]] = [  # name, shape or input, arguments
    ("Conv2d", (2, 3, 7, 6), (3, 4, 3), {}),
    ("Conv2d", (2, 4, 8, 7), (4, 6, (3, 2), 2, 1), {"groups": 2, "bias": False}),
    ("Conv2d", (1, 2, 6, 6), (2, 3, (3, 5)), {"padding": (1, 4), "dilation": (1, 2)}),
    ("BatchNorm1d", (5, 3), (3,), {}),
    ("BatchNorm1d", (4, 3, 5), (3, 1e-3), {"affine": False}),
    ("BatchNorm2d", (3, 4, 2, 5), (4, 1e-5, 0.3), {}),
    ("BatchNorm2d", (3, 2, 2, 2), (2,), {"momentum": None}),
    ("BatchNorm2d", (3, 2, 2, 2), (2,), {"track_running_stats": False}),
    ("LayerNorm", (4, 7), (7,), {}),
    ("LayerNorm", (2, 3, 4), ((3, 4), 1e-3), {"bias": False}),
    ("LayerNorm", (2, 3, 4), (4,), {"elementwise_affine": False}),
    ("ReLU", (3, 4), (), {}),
    ("ReLU6", EDGES, (), {}),
    ("GELU", (3, 4), (), {}),
    ("GELU", (3, 4), ("tanh",), {}),
    ("Tanh", (3, 4), (), {}),
    ("Sigmoid", (3, 4), (), {}),
    ("Softmax", (3, 4, 2), (1,), {}),
    ("LogSoftmax", (3, 4, 2), (-1,), {}),
    ("MaxPool2d", (2, 3, 7, 6), (3, 2, 1), {}),
    ("MaxPool2d", (2, 3, 7, 6), ((2, 3),), {}),
    ("AvgPool2d", (2, 3, 7, 6), (3, 2, 1), {}),
    ("AvgPool2d", (2, 3, 7, 6), (3, 1, 1), {"count_include_pad": False}),
    ("AdaptiveAvgPool2d", (2, 3, 7, 6), (1,), {}),
    ("AdaptiveAvgPool2d", (2, 3, 7, 6), ((7, 3),), {}),
    ("Embedding", NUMBERS, (5, 3), {}),
    ("Embedding", NUMBERS, (5, 3, 1), {}),
    ("Embedding", NUMBERS, (5, 3, -1), {}),
    ("ZeroPad2d", (1, 2, 3, 4), ((1, 0, 2, 3),), {}),
    ("ConstantPad2d", (1, 2, 3, 4), (1, 0.5), {}),
    ("Identity", (2, 3), (7, "any"), {"thing": 1}),
    ("Conv1d", (2, 3, 9), (3, 4, 3), {}),
    ("Conv1d", (2, 4, 11), (4, 6, 2, 2, 1, 3, 2, False), {}),
    ("Conv1d", (2, 3, 8), (3, 4, 4), {"padding": "same"}),
    ("Conv2d", (3, 5, 6), (3, 4, 3), {}),
    ("Conv2d", (2, 2, 6, 7), (2, 3, 3), {"padding": "same", "dilation": (1, 2)}),
    ("Conv2d", (2, 2, 6, 7), (2, 3, (2, 4)), {"padding": "same"}),
    ("Conv2d", (2, 2, 6, 7), (2, 3, 3), {"padding": "valid"}),
    ("Conv2d", (2, 2, 6, 7), (2, 3, 3), {"padding": (2, 1), "padding_mode": "reflect"}),
    ("Conv2d", (2, 2, 6, 7), (2, 3, 3), {"padding": "same", "padding_mode": "replicate"}),
    ("ConvTranspose2d", (2, 3, 4, 5), (3, 4, 3), {}),
    ("ConvTranspose2d", (2, 4, 3, 4), (4, 6, (2, 3), 2, 1, 1, 2), {}),
    ("ConvTranspose2d", (1, 2, 3, 3), (2, 3, 3, (3, 2), (1, 0), (2, 0), 1, False, (1, 2)), {}),
    ("ConvTranspose2d", (3, 4, 5), (3, 4, 2), {}),
    ("GroupNorm", (3, 6, 5), (3, 6), {}),
    ("GroupNorm", (2, 6, 3, 5), (2, 6, 1e-2, False), {}),
    ("RMSNorm", (3, 7), (7,), {}),
    ("RMSNorm", (2, 3, 5), ((3, 5), 1e-2), {}),
    ("RMSNorm", (3, 5), ([5], 1e-3, False), {}),
    ("Upsample", (2, 3, 5, 4), (), {"scale_factor": (1.7, 0.6)}),
    ("Upsample", (2, 3, 5, 4), (), {"scale_factor": 1.7, "recompute_scale_factor": True}),
    ("Upsample", (2, 3, 5, 4), (), {"size": 6}),
    ("Upsample", (2, 3, 5, 4), (), {"scale_factor": 1.3, "mode": "bilinear", "align_corners": False}),
    ("Upsample", (2, 3, 5, 4), (), {"size": (1, 9), "mode": "bilinear", "align_corners": True}),
    ("Upsample", (2, 3, 5, 4), (), {"scale_factor": (0.6, 2.4), "mode": "bilinear", "align_corners": True}),
    ("Upsample", (2, 3, 5), (), {"scale_factor": 2.5}),
    ("PixelShuffle", (2, 8, 3, 5), (2,), {}),
    ("PixelShuffle", (9, 2, 3), (3,), {}),
    ("Unflatten", (2, 12, 3), (1, (3, 4)), {}),
    ("Unflatten", (2, 12), (-1, (2, -1, 3)), {}),
    ("Unfold", (2, 3, 6, 7), (2,), {}),
    ("Unfold", (2, 1, 6, 7), ((2, 3), (1, 2), 1, 2), {}),
]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Using padding='same':UserWarning")  # of PyTorch, for even kernels
@DTYPES
@pytest.mark.parametrize(("name", "given", "args", "words"), LAYERS, ids=[name for name, *_ in LAYERS])
def test_layers_compute_what_torch_nn_computes(name: str, given: Any, args: Any, words: Any, dtype: str) -> None:
    for training in (True, False):
        x = drawn(*given) if isinstance(given, tuple) else given
        assert_module(name, x, args=args, dtype=dtype, training=training, **words)


@pytest.mark.slow
def test_compiled_layers_compute_the_same() -> None:
    for name, given, args, words in LAYERS[1::3]:
        x = drawn(*given) if isinstance(given, tuple) else given
        assert_module(name, x, args=args, dtype="float32", ctx=dl.cpu(0), **words)


def networks() -> tuple[nn.Module, torch.nn.Module]:
    """A network for images (4, 2, 6, 6) and PyTorch's."""
    t = torch.nn
    theirs = t.Sequential(
        t.Conv2d(2, 4, 3), t.BatchNorm2d(4), t.ReLU(), t.MaxPool2d(2), t.Flatten(), t.Linear(16, 3)
    )
    ours = nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16, 3)
    mine = nn.Sequential(nn.Conv2d(2, 4, 3), *ours)
    mine.load_state_dict(theirs.state_dict())
    return mine, theirs


@pytest.mark.slow
def test_three_training_steps_compiled_and_eager_leave_pytorchs_parameters_and_running_statistics() -> None:
    mine, theirs = networks()
    eager, _ = networks()
    eager.load_state_dict(theirs.state_dict())
    batches = [(drawn(4, 2, 6, 6), rng.integers(0, 3, 4)) for _ in range(3)]
    x, y = ad.Variable("x", (4, 2, 6, 6), "float32"), ad.Variable("y", (4,), "int64")
    loss = nn.CrossEntropyLoss()(mine(x), y)
    step = ad.Executor([loss, dl.optim.SGD(mine.parameters(), 0.05).minimize(loss)])
    for images, labels in batches:
        value = step.run({x: images, y: labels}, convert_to_numpy_ret_vals=True)[0]
        theirs.zero_grad()
        wanted = torch.nn.functional.cross_entropy(theirs(torch.tensor(images)), torch.tensor(labels))
        wanted.backward()
        for weights in theirs.parameters():
            weights.data -= 0.05 * weights.grad
        close(value, wanted, "float32", "loss")
        eager.zero_grad()
        nn.CrossEntropyLoss()(eager(images), labels).backward()
        for parameter in eager.parameters():
            parameter.value = parameter.value - 0.05 * parameter.grad.numpy()
    for name, value in theirs.state_dict().items():
        for model in (mine, eager):
            found = model.state_dict()[name]
            np.testing.assert_allclose(found, value.numpy(), rtol=1e-3, atol=1e-4, err_msg=name)
    assert int(mine[1].num_batches_tracked) == int(eager[1].num_batches_tracked) == 3
    before = mine.state_dict()
    images = batches[0][0]
    close(mine.eval()(images).numpy(), theirs.eval()(torch.tensor(images)), "float32", "evaluation")
    for name, value in mine.state_dict().items():
        np.testing.assert_array_equal(value, before[name])


def test_batch_norm_of_a_variable_without_a_shape() -> None:
    mine, theirs = nn.BatchNorm2d(3), torch.nn.BatchNorm2d(3)
    x, value = ad.Variable("x"), drawn(4, 3, 2, 2)
    (found,) = ad.Executor([mine(x)], "numpy").run({x: value})
    close(found, theirs(torch.tensor(value)), "float32", mine)
    close(mine.running_var.value, theirs.running_var, "float32", mine)
    flat = ad.Variable("flat")
    error_of(ShapeError, ad.Executor([nn.BatchNorm1d(3)(flat)], "numpy").run, {flat: drawn(4, 3, 2)})


def test_dropout_draws_anew_each_run_and_its_backward_takes_the_forwards_mask() -> None:
    dl.manual_seed(3)
    layer = nn.Dropout(0.3)
    x = dl.tensor(np.ones((100, 101), "float32"), requires_grad=True)
    y = layer(x)
    y.backward()
    first = y.numpy()
    np.testing.assert_array_equal(first, x.grad.numpy())
    np.testing.assert_array_equal(np.unique(first), np.asarray([0, 1 / 0.7], "float32"))
    assert abs((first == 0).mean() - 0.3) < 5 * (0.3 * 0.7 / first.size) ** 0.5
    assert (layer(x).numpy() != first).any()
    dl.manual_seed(3)
    np.testing.assert_array_equal(layer(x).numpy(), first)

    v = ad.Variable("v", (40, 25), "float32")
    out = nn.Sequential(layer, nn.Dropout(0.3))(v)
    step = ad.Executor([layer(v), out, *ad.gradients(out, [v])])
    ones = np.ones((40, 25), "float32")
    runs = [step.run({v: ones}, convert_to_numpy_ret_vals=True) for _ in range(3)]
    for alone, twice, grad in runs:
        np.testing.assert_array_equal(twice, grad)
        kept, both = (alone != 0).mean(), (twice != 0).mean()
        assert abs(kept - 0.7) < 0.08 and abs(both - 0.49) < 0.08  # two layers have two masks
    for i in (0, 1):
        assert all((runs[0][i] != other[i]).any() for other in runs[1:])

    assert layer.eval()(x) is x and nn.Dropout(0.0)(x) is x
    assert (nn.Dropout(1.0)(x).numpy() == 0).all()
    key = dl.tensor(np.array([1, 0, 0, 0], "uint32"))
    np.testing.assert_array_equal(F.dropout(x, 0.5, key=key).numpy(), F.dropout(x, 0.5, key=key).numpy())
    dl.manual_seed(0)


def test_a_padding_index_has_no_gradient_and_at_first_the_vector_zero() -> None:
    layer = nn.Embedding(4, 3, padding_idx=-4)
    assert layer.padding_idx == 0 and not layer.weight.value[0].any() and layer.weight.value[1:].all()
    y = layer(np.array([[0, 2], [2, 1]]))
    y.backward()
    assert not y.numpy()[0, 0].any()
    assert layer.weight.grad.numpy()[:, 0].tolist() == [0, 1, 2, 0]


@pytest.mark.slow
def test_attention() -> None:
    theirs = torch.nn.functional.scaled_dot_product_attention
    arrays = [drawn(2, 3, n, d) for n, d in ((5, 4), (7, 4), (7, 6))]
    variables = [ad.Variable(name, x.shape, "float32") for name, x in zip("qkv", arrays, strict=True)]
    seen, bias = rng.uniform(size=(2, 1, 5, 7)) < 0.6, drawn(5, 7)
    seen[0, 0, 2] = False  # a query that sees nothing
    for mine, kwargs, ctx in (
        ({}, {}, "numpy"),
        ({"is_causal": True}, {"is_causal": True}, "numpy"),
        ({"attn_mask": dl.tensor(bias)}, {"attn_mask": torch.tensor(bias)}, "numpy"),
        ({"attn_mask": dl.tensor(seen)}, {"attn_mask": torch.tensor(seen)}, dl.cpu(0)),
    ):
        tensors = [torch.tensor(x, requires_grad=True) for x in arrays]
        expected = theirs(*tensors, **kwargs)
        (expected * expected).sum().backward()
        y = F.scaled_dot_product_attention(*variables, **mine)
        executor = ad.Executor([y, *ad.gradients(y * y, variables)], ctx)
        found = executor.run(dict(zip(variables, arrays, strict=True)), convert_to_numpy_ret_vals=True)
        for value, wanted in zip(found, [expected, *[tensor.grad for tensor in tensors]], strict=True):
            close(value, wanted, "float32", mine)
    unknown = [ad.Variable(name) for name in "qkv"]
    executor = ad.Executor([F.scaled_dot_product_attention(*unknown)], "numpy")
    (value,) = executor.run(dict(zip(unknown, arrays, strict=True)))
    close(value, theirs(*map(torch.tensor, arrays)), "float32", "unknown shapes")
    assert "must be known" in error_of(GraphError, F.scaled_dot_product_attention, *unknown, is_causal=True)
    v, zeros = dl.tensor(np.ones((1, 50, 1), "float32")), dl.tensor(np.zeros((1, 50, 4), "float32"))
    dropped = F.scaled_dot_product_attention(zeros, zeros, v, dropout_p=0.5).numpy()
    assert 0 < abs(dropped - 1).max() < 1 and abs(dropped.mean() - 1) < 0.1


def test_what_only_moves_values() -> None:
    x = drawn(2, 3, 4)
    for pads in ((1, 2), (1, 0, 0, 2), (0, 1, 2, 0, 1, 1)):
        wanted = torch.nn.functional.pad(torch.tensor(x), pads, value=0.5)
        close(F.pad(dl.tensor(x), pads, value=0.5).numpy(), wanted, "float32", pads)
