"""Layers and functions of `dlsys.nn` beside PyTorch's: one table of each, then steps, dropout and attention."""

from __future__ import annotations

from typing import Any

import dlsys as dl
import numpy as np
import pytest
from beside_torch import DTYPES, Given, agree, close, drawn, pair, rng
from dlsys import autodiff as ad
from dlsys import nn
from dlsys.errors import IndexRangeError, ShapeError
from dlsys.nn import functional as F
from helpers import error_of
from optional import torch

EDGES = np.array([[-3, -1, 0, 1, 3, 6, 7, -0.5, 2.5, -4]])  # where pieces meet
SPREAD = np.concatenate([drawn(3, 7) * 4, [[0.0, 3.0, -3.0, 25.0, -25.0, 90.0, -90.0]]])  # exponentials are infinite
NUMBERS = np.array([[1, 4, 0], [4, 2, 1]])
LAYERS: list[tuple[str, Given, tuple[Any, ...], dict[str, Any]]] = [  # name, input, arguments
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
    ("SiLU", SPREAD, (), {}),
    ("Hardswish", SPREAD, (), {}),
    ("LeakyReLU", SPREAD, (), {}),
    ("LeakyReLU", SPREAD, (0.3,), {}),
    ("ELU", SPREAD, (), {}),
    ("ELU", SPREAD, (0.7,), {}),
    ("Softplus", SPREAD, (), {}),
    ("Softplus", SPREAD, (2.0, 5.0), {}),
    ("Hardsigmoid", SPREAD, (), {}),
    ("Mish", SPREAD, (), {}),
    ("PReLU", SPREAD, (), {}),
    ("PReLU", SPREAD, (7, 0.5), {}),
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
    ("Conv2d", (2, 2, 6, 7), (2, 3, (2, 4)), {"padding": "same", "dilation": (1, 2)}),
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


def taken(given: Given) -> Given:
    """Arrays of the shapes in nested lists."""
    if isinstance(given, list):
        return [taken(one) for one in given]
    return drawn(*given) if isinstance(given, tuple) else given


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Using padding='same':UserWarning")  # of PyTorch, for even kernels
@DTYPES
@pytest.mark.parametrize(("name", "given", "args", "words"), LAYERS, ids=[name for name, *_ in LAYERS])
def test_layers_compute_what_torch_nn_computes(name: str, given: Any, args: Any, words: Any, dtype: str) -> None:
    mine, theirs = pair(name, *args, dtype=dtype, **words)
    limit = 1e-8 if (name, dtype) == ("Hardsigmoid", "float64") else None  # of PyTorch's 1/6
    for training in (True, False):
        agree((mine.train(training), theirs.train(training)), taken(given), dtype=dtype, limit=limit)


@pytest.mark.slow
def test_compiled_layers_compute_the_same() -> None:
    for name, given, args, words in LAYERS[1::3]:
        agree(pair(name, *args, **words), taken(given), ctx="cpu")


EVEN = rng.integers(0, 2, (4, 3)).astype("float64")
SOME = np.abs(drawn(4, 3)) + 0.1
SHARES = np.concatenate([[[0.0, 1.0, 0.0]], SOME[1:] / SOME[1:].sum(1, keepdims=True)])
LOGITS = np.concatenate([drawn(3, 3), [[0.0, 30.0, -30.0]]])
LOGS = LOGITS - np.log(np.exp(LOGITS).sum(1, keepdims=True))
CLASSES, MAPS = np.array([2, 0, -100, 1]), np.array([[[2, 0, 1], [0, 1, 1]], [[0, 0, 2], [1, -100, 2]]])
WEIGHT = np.array([0.5, 2.0, 0.0])
LOSSES: list[tuple[str, list[Given], dict[str, Any]]] = [
    ("l1_loss", [LOGITS, EVEN], {}),
    ("smooth_l1_loss", [LOGITS, EVEN], {}),
    ("smooth_l1_loss", [LOGITS, EVEN], {"beta": 0.5}),
    ("smooth_l1_loss", [LOGITS, EVEN], {"beta": 0.0}),
    ("mse_loss", [LOGITS, EVEN], {}),
    ("huber_loss", [LOGITS, EVEN], {"delta": 0.3}),
    ("binary_cross_entropy", [SHARES[1:], EVEN[1:]], {}),
    ("binary_cross_entropy", [SHARES[1:], SHARES[:-1]], {"weight": SOME[1:]}),
    ("kl_div", [drawn(4, 3), SOME], {}),
    ("kl_div", [drawn(4, 3), LOGITS], {"log_target": True}),
    ("binary_cross_entropy_with_logits", [LOGITS, EVEN], {}),
    ("binary_cross_entropy_with_logits", [LOGITS, SHARES], {"weight": SOME[:1], "pos_weight": SOME[0]}),
    ("triplet_margin_loss", [(5, 4), (5, 4), (5, 4)], {"margin": 3.0, "swap": True}),
    ("cross_entropy", [LOGITS, SHARES], {"weight": WEIGHT}),
    ("cross_entropy", [LOGITS, SHARES], {"weight": WEIGHT, "label_smoothing": 0.3}),
    *((name, given, {**more, **some})
      for name, more in (("nll_loss", {}), ("cross_entropy", {}), ("cross_entropy", {"label_smoothing": 0.2}))
      for some in ({}, {"weight": WEIGHT})
      for given in ([LOGS, CLASSES], [LOGS[0], np.array(1)], [(2, 3, 2, 3), MAPS])),
    ("nll_loss", [LOGS, CLASSES[[0, 1, 3, 3]].astype("int32")], {"ignore_index": 1}),
    ("cross_entropy", [(4, 300), np.array([0, 44, 255, 7], "uint8")], {"label_smoothing": 0.1}),  # 300 is no uint8
]  # fmt: skip
FUNCTIONS: list[tuple[str, list[Given], dict[str, Any]]] = [
    ("pad", [(2, 3, 4)], {"pad": (1, 2), "value": 0.5}),
    ("pad", [(2, 3, 4)], {"pad": (0, 1, 2, 0, 1, 1), "value": 0.5}),
    *(("pad", [shape], {"pad": widths, "mode": mode}) for mode in ("reflect", "replicate")
      for shape, widths in (((2, 3, 5, 4), (3, 1, 0, 2)), ((2, 3, 5), (2, 4)), ((3, 5, 4), (1, 0, 2, 3)))),
    *(("normalize", [np.concatenate([drawn(3, 5), np.zeros((1, 5))])], words)
      for words in ({}, {"dim": 0}, {"p": 1, "dim": -1}, {"eps": 3.0})),
    ("pairwise_distance", [(5, 4), (5, 4)], {}),
    ("pairwise_distance", [(5, 4), (5, 4)], {"p": 1.0, "keepdim": True}),
    ("cosine_similarity", [(5, 4), (5, 4)], {}),
    ("cosine_similarity", [(1, 2, 3), (2, 1, 3)], {"dim": -2}),  # along which one is repeated
    ("cosine_similarity", [(2, 3), (2, 1, 3)], {}),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore:reduction")
@DTYPES
@pytest.mark.parametrize(("name", "given", "words"), LOSSES + FUNCTIONS, ids=lambda x: x if isinstance(x, str) else "")
def test_functions_compute_what_pytorchs_compute(name: str, given: list[Given], words: Any, dtype: str) -> None:
    is_loss = any(words is row[2] for row in LOSSES)
    for reduction in ("mean", "sum", "none", *(["batchmean"] if name == "kl_div" else [])) if is_loss else (None,):
        more = {"reduction": reduction} if reduction else {}
        agree(f"nn.functional.{name}", *taken(given), dtype=dtype, fixed=("weight", "pos_weight"), **words, **more)


@pytest.mark.parametrize(
    ("name", "target", "words"),
    [
        ("L1Loss", EVEN, {"reduction": "sum"}),
        ("SmoothL1Loss", EVEN, {"beta": 0.3}),
        ("KLDivLoss", SOME, {"reduction": "none", "log_target": True}),
        ("NLLLoss", np.array([2, 1, 0, 1]), {"ignore_index": 0}),
        ("BCEWithLogitsLoss", EVEN, {"pos_weight": WEIGHT}),
        ("CrossEntropyLoss", np.array([2, 1, 0, 1]), {"weight": WEIGHT, "label_smoothing": 0.1}),
    ],
)
def test_losses_as_modules(name: str, target: np.ndarray, words: dict[str, Any]) -> None:
    theirs = {k: torch.tensor(v) if isinstance(v, np.ndarray) else v for k, v in words.items()}
    mine, theirs = getattr(nn, name)(**words), getattr(torch.nn, name)(**theirs)
    assert list(mine.state_dict()) == list(theirs.state_dict())
    agree((mine, theirs), LOGITS, target, dtype="float64")


def test_losses_at_their_limits() -> None:
    """A share of 0 costs nothing, logarithms are -100 at least, no classes make no error."""
    losses = F.kl_div(dl.tensor(np.log(SOME)), dl.tensor(SHARES), "none").numpy()
    assert np.isfinite(losses).all() and (losses[0, ::2] == 0).all()
    x, y = [0.0, 1.0, 0.0, 1.0, 0.5], [0.0, 1.0, 1.0, 0.0, 0.25]
    found = nn.BCELoss(reduction="none")(leaf := dl.tensor(x, requires_grad=True), dl.tensor(y))
    close(found.numpy(), torch.nn.BCELoss(reduction="none")(torch.tensor(x), torch.tensor(y)))
    found.sum().backward()
    assert np.isfinite(leaf.grad.numpy()).all() and leaf.grad[4].item() == pytest.approx(1.0)
    logits, numbers = ad.Variable("x", (2, 0), "float32"), ad.Variable("y", (2,), "int64")
    for smoothing in (0.0, 0.1):
        computed = ad.maximum_op(numbers, numbers)  # what is fed is out of range
        loss = ad.cross_entropy_op(logits, computed, label_smoothing=smoothing, reduction="none")
        for ctx in ("numpy", "cpu"):
            executor = ad.Executor([loss, *ad.gradients(loss, [logits])], ctx)
            fed = {logits: np.zeros((2, 0), "float32"), numbers: np.zeros(2, "int64")}
            values = executor.run(fed, convert_to_numpy_ret_vals=True)
            assert np.isnan(values[0]).all() and values[1].shape == (2, 0)


def test_class_numbers_and_shapes_of_losses_are_checked() -> None:
    logits, targets = ad.Variable("logits", (2, 3), "float64"), ad.Variable("targets", (2,), "int64")
    values, numbers = rng.standard_normal((2, 3)), np.array([2, 7])
    feed = {logits: values, targets: numbers}
    told = error_of(IndexRangeError, ad.Executor([nn.CrossEntropyLoss()(logits, targets)], "numpy").run, feed)
    assert "index 7 is out of range for 3 classes [targets]" in told
    told = error_of(IndexRangeError, F.cross_entropy, dl.tensor(values), dl.tensor(numbers))
    assert "index 7 is out of range for 3 classes" in told
    computed = nn.CrossEntropyLoss()(logits, ad.maximum_op(targets, targets))
    assert np.isnan(ad.Executor([computed], "numpy").run(feed)[0])
    told = error_of(ShapeError, nn.CrossEntropyLoss(), logits, ad.Variable("y", (3,)))
    assert told.startswith("CrossEntropyLoss() got (2, 3)") and "beside (3,)" in told
    unknown = [ad.Variable("x"), ad.Variable("y")]
    step = ad.Executor([ad.cross_entropy_op(*unknown)], "numpy")
    even = np.full((2, 3), 1 / 3)
    expected = F.cross_entropy(dl.tensor(values), dl.tensor(even)).item()
    assert abs(step.run({unknown[0]: values, unknown[1]: even})[0] - expected) < 1e-12
    told = error_of(ShapeError, step.run, {unknown[0]: values, unknown[1]: np.array([1])})
    assert "targets (1,) are not class numbers (2,)" in told
    x, y = np.ones((8, 1), "float32"), np.ones(8, "float32")
    for loss in (F.mse_loss, nn.MSELoss()):
        told = error_of(ShapeError, loss, dl.tensor(x), dl.tensor(y))
        assert "(8, 1)" in told and "(8,)" in told
        for ctx in ("cpu", "numpy"):
            executor = ad.Executor([loss(*unknown)], ctx)
            told = error_of(ShapeError, executor.run, dict(zip(unknown, (x, y), strict=True)))
            assert "shapes differ: x (8, 1) and y (8,)" in told
            assert np.asarray(executor.run(dict(zip(unknown, (x, 3 * x), strict=True)))[0]) == 4
    assert F.mse_loss(dl.tensor(y), 3 * y).item() == F.mse_loss(dl.tensor(y), 3).item() == 4


def test_prelu_of_a_scalar_is_a_scalar() -> None:
    for weight in (0.25, [0.25], [[0.25]]):
        x, slope = dl.tensor(-2.0, requires_grad=True), dl.tensor(weight, requires_grad=True)
        (y := F.prelu(x, slope)).backward()
        assert y.shape == () and (y.item(), x.grad.item(), slope.grad.item()) == (-0.5, 0.25, -2)


@pytest.mark.slow
def test_three_training_steps_compiled_and_eager_leave_pytorchs_parameters_and_running_statistics() -> None:
    def network(t: Any) -> Any:
        layers = t.Conv2d(2, 4, 3), t.BatchNorm2d(4), t.ReLU(), t.MaxPool2d(2), t.Flatten(), t.Linear(16, 3)
        return t.Sequential(*layers)

    theirs, mine, eager = network(torch.nn), network(nn), network(nn)
    for model in (mine, eager):
        model.load_state_dict(theirs.state_dict())
    x, y = ad.Variable("x", (4, 2, 6, 6), "float32"), ad.Variable("y", (4,), "int64")
    loss = nn.CrossEntropyLoss()(mine(x), y)
    step = ad.Executor([loss, dl.optim.SGD(mine.parameters(), 0.05).minimize(loss)])
    for _ in range(3):
        images, labels = drawn(4, 2, 6, 6), rng.integers(0, 3, 4)
        value = step.run({x: images, y: labels}, convert_to_numpy_ret_vals=True)[0]
        theirs.zero_grad()
        wanted = torch.nn.functional.cross_entropy(theirs(torch.tensor(images)), torch.tensor(labels))
        wanted.backward()
        for weights in theirs.parameters():
            weights.data -= 0.05 * weights.grad
        close(value, wanted, "loss")
        eager.zero_grad()
        nn.CrossEntropyLoss()(eager(images), labels).backward()
        for parameter in eager.parameters():
            parameter.value = parameter.value - 0.05 * parameter.grad.numpy()
    for name, value in theirs.state_dict().items():
        for model in (mine, eager):
            close(model.state_dict()[name], value, name, 1e-4)
    before = mine.state_dict()
    close(mine.eval()(images).numpy(), theirs.eval()(torch.tensor(images)), "evaluation")
    for name, value in mine.state_dict().items():
        np.testing.assert_array_equal(value, before[name])


def test_batch_norm_of_a_variable_without_a_shape() -> None:
    mine, theirs = pair("BatchNorm2d", 3)
    x, value = ad.Variable("x"), drawn(4, 3, 2, 2)
    close(ad.Executor([mine(x)], "numpy").run({x: value})[0], theirs(torch.tensor(value)))
    close(mine.running_var.value, theirs.running_var)
    mine, theirs = pair("BatchNorm1d", 3)
    for value in (drawn(4, 3), drawn(4, 3, 2)):
        close(ad.Executor([mine(x)], "numpy").run({x: value})[0], theirs(torch.tensor(value)))


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


@pytest.mark.slow
def test_scaled_dot_product_attention() -> None:
    name, shapes = "nn.functional.scaled_dot_product_attention", [(2, 3, 5, 4), (2, 3, 7, 4), (2, 3, 7, 6)]
    seen = rng.uniform(size=(2, 1, 5, 7)) < 0.6
    seen[0, 0, 2] = False  # a query that sees nothing
    for words in ({}, {"is_causal": True}, {"attn_mask": drawn(5, 7)}):
        agree(name, *taken(shapes), fixed=("attn_mask",), **words)
    agree(name, *taken(shapes), attn_mask=seen, ctx="cpu")
    arrays, unknown = taken(shapes), [ad.Variable(name) for name in "qkv"]
    for causal in (False, True):
        executor = ad.Executor([F.scaled_dot_product_attention(*unknown, is_causal=causal)], "numpy")
        (value,) = executor.run(dict(zip(unknown, arrays, strict=True)))
        of_torch = torch.nn.functional.scaled_dot_product_attention(*map(torch.tensor, arrays), is_causal=causal)
        close(value, of_torch, "unknown shapes")
    v, zeros = dl.ones(1, 50, 1), dl.zeros(1, 50, 4)
    dropped = F.scaled_dot_product_attention(zeros, zeros, v, dropout_p=0.5).numpy()
    assert 0 < abs(dropped - 1).max() < 1 and abs(dropped.mean() - 1) < 0.1
