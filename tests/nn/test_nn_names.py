"""Activations, losses and collections of `dlsys.nn` against torch.nn: values, gradients, states."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dlsys as dl
import numpy as np
import pytest
from beside_torch import DTYPES, agree, assert_module, drawn, rng
from dlsys import autodiff as ad
from dlsys import nn
from dlsys.nn import functional as F
from optional import torch

SPREAD = np.concatenate([drawn(3, 7) * 4, [[0.0, 3.0, -3.0, 25.0, -25.0, 90.0, -90.0]]])
"""With the places where formulas change, and numbers whose exponential is infinite."""


@DTYPES
@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("SiLU", ()), ("Hardswish", ()), ("LeakyReLU", ()), ("LeakyReLU", (0.3,)), ("ELU", ()), ("ELU", (0.7,)),
        ("Softplus", ()), ("Softplus", (2.0, 5.0)), ("Hardsigmoid", ()), ("Mish", ()), ("PReLU", ()),
        ("PReLU", (7, 0.5)),
    ],
)  # fmt: skip
def test_activations(name: str, args: tuple[float, ...], dtype: str) -> None:
    made = assert_module(name, SPREAD, args=args, dtype=dtype)
    assert repr(made).startswith(f"{name}({'negative_slope=0.3' if args == (0.3,) else ''}") or args


def test_prelu_of_a_scalar_is_a_scalar() -> None:
    for weight in (0.25, [0.25], [[0.25]]):
        x, slope = dl.tensor(-2.0, requires_grad=True), dl.tensor(weight, requires_grad=True)
        (y := F.prelu(x, slope)).backward()
        assert y.shape == () and (y.item(), x.grad.item(), slope.grad.item()) == (-0.5, 0.25, -2)


EVEN = rng.integers(0, 2, (4, 3)).astype("float64")
SOME = np.abs(drawn(4, 3)) + 0.1
SHARES = np.concatenate([[[0.0, 1.0, 0.0]], SOME[1:] / SOME[1:].sum(1, keepdims=True)])
LOGITS = np.concatenate([drawn(3, 3), [[0.0, 30.0, -30.0]]])
LOSSES: list[tuple[str, tuple[np.ndarray, ...], dict[str, Any]]] = [
    ("l1_loss", (LOGITS, EVEN), {}),
    ("smooth_l1_loss", (LOGITS, EVEN), {}),
    ("smooth_l1_loss", (LOGITS, EVEN), {"beta": 0.5}),
    ("smooth_l1_loss", (LOGITS, EVEN), {"beta": 0.0}),
    ("mse_loss", (LOGITS, EVEN), {}),
    ("huber_loss", (LOGITS, EVEN), {"delta": 0.3}),
    ("binary_cross_entropy", (SHARES[1:], EVEN[1:]), {}),
    ("binary_cross_entropy", (SHARES[1:], SHARES[:-1]), {"weight": SOME[1:]}),
    ("kl_div", (drawn(4, 3), SOME), {}),
    ("kl_div", (drawn(4, 3), LOGITS), {"log_target": True}),
    ("binary_cross_entropy_with_logits", (LOGITS, EVEN), {}),
    ("binary_cross_entropy_with_logits", (LOGITS, SHARES), {"weight": SOME[:1], "pos_weight": SOME[0]}),
]


@pytest.mark.filterwarnings("ignore:reduction")
@DTYPES
@pytest.mark.parametrize(("name", "given", "words"), LOSSES, ids=[name for name, *_ in LOSSES])
def test_losses_of_two_tensors(
    name: str, given: tuple[np.ndarray, ...], words: dict[str, Any], dtype: str
) -> None:
    for reduction in ("mean", "sum", "none", *(["batchmean"] if name == "kl_div" else [])):
        settings: dict[str, Any] = {**words, "reduction": reduction}
        agree(
            getattr(F, name), getattr(torch.nn.functional, name), *given, dtype=dtype,
            constants=("weight", "pos_weight"), **settings,
        )  # fmt: skip


def test_a_share_of_0_costs_nothing() -> None:
    losses = F.kl_div(dl.tensor(np.log(SOME)), dl.tensor(SHARES), "none").numpy()
    assert np.isfinite(losses).all() and (losses[0, ::2] == 0).all()


NUMBERS = np.array([2, 0, -100, 1, 2])
MAPS = np.array([[[2, 0, 1], [0, 1, 1]], [[0, 0, 2], [1, -100, 2]]])
OF_CLASSES: list[tuple[tuple[int, ...], np.ndarray, dict[str, Any]]] = [
    ((5, 3), NUMBERS, {}),
    ((5, 3), NUMBERS.astype("int32"), {}),
    ((2, 3, 2, 3), MAPS, {}),
    ((3,), np.array(1), {}),
    ((5, 3), np.array([2, 0, 1, 1, 2]), {"ignore_index": 1}),
]


@DTYPES
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("shape", "target", "words"), OF_CLASSES)
def test_losses_of_classes(
    shape: tuple[int, ...], target: np.ndarray, words: dict[str, Any], weighted: bool, dtype: str
) -> None:
    weight = {"weight": np.array([0.5, 2.0, 0.0])} if weighted else {}
    t = torch.nn.functional
    for mine, theirs, more in (
        (F.nll_loss, t.nll_loss, {}),
        (F.cross_entropy, t.cross_entropy, {}),
        (F.cross_entropy, t.cross_entropy, {"label_smoothing": 0.2}),
    ):
        for reduction in ("mean", "sum", "none"):
            settings: dict[str, Any] = {**words, **weight, **more, "reduction": reduction}
            x = drawn(*shape)
            logs = (
                x - np.log(np.exp(x).sum(min(1, len(shape) - 1), keepdims=True)) if mine is F.nll_loss else x
            )
            agree(mine, theirs, logs, target, dtype=dtype, constants=("weight",), **settings)


@DTYPES
def test_classes_of_probabilities_are_weighted(dtype: str) -> None:
    for more in ({}, {"label_smoothing": 0.3}):
        settings: dict[str, Any] = {**more, "weight": SOME[0]}
        mine, theirs = F.cross_entropy, torch.nn.functional.cross_entropy
        agree(mine, theirs, LOGITS, SHARES, dtype=dtype, constants=("weight",), **settings)


@DTYPES
def test_losses_as_modules(dtype: str) -> None:
    weight, x = SOME[0].astype(dtype), LOGITS
    for name, target, words in (
        ("L1Loss", EVEN, {"reduction": "sum"}),
        ("SmoothL1Loss", EVEN, {"beta": 0.3}),
        ("KLDivLoss", SOME, {"reduction": "batchmean"}),
        ("KLDivLoss", SOME, {"reduction": "none", "log_target": True}),
        ("BCEWithLogitsLoss", EVEN, {}),
        ("BCEWithLogitsLoss", EVEN, {"pos_weight": weight}),
        ("NLLLoss", np.array([2, 1, 0, 1]), {"ignore_index": 0}),
        ("NLLLoss", np.array([2, 1, 0, 1]), {"weight": weight}),
        ("CrossEntropyLoss", np.array([2, 1, 0, 1]), {"weight": weight, "label_smoothing": 0.1}),
    ):
        given: dict[str, Any] = dict(words)
        mine = getattr(nn, name)(**given)
        theirs = getattr(torch.nn, name)(
            **{k: torch.tensor(v) if v is weight else v for k, v in given.items()}
        )
        assert list(mine.state_dict()) == list(theirs.state_dict())
        agree(mine, theirs, x, target, dtype=dtype)


def heads_of(library: Any, ones: Callable[..., Any]) -> Any:
    """A module with modules by name and Parameters by number."""
    made = library.Module()
    made.heads = library.ModuleDict({"wide": library.Linear(3, 4), "narrow": library.Linear(3, 1)})
    made.scales = library.ParameterList([library.Parameter(ones(2)), library.Parameter(ones(1, 3))])
    return made


def test_dictionaries_of_modules_and_lists_of_parameters() -> None:
    mine, theirs = heads_of(nn, dl.ones), heads_of(torch.nn, torch.ones)
    state = mine.state_dict()
    assert [(k, v.shape) for k, v in state.items()] == [(k, v.shape) for k, v in theirs.state_dict().items()]
    heads, scales = mine.heads, mine.scales
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


def test_parameters_by_name_and_states_after_a_prefix() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1, bias=False))
    assert model.get_parameter("0.bias") is model[0].bias
    assert model[0].get_parameter("weight") is model[0].weight
    assert list(model.state_dict(prefix="net.")) == ["net.0.weight", "net.0.bias", "net.1.weight"]


def test_forward_hooks_see_and_replace_outputs() -> None:
    model, seen = nn.Sequential(nn.Linear(2, 3), nn.ReLU()), []
    handle = model[0].register_forward_hook(lambda module, args, output: seen.append((module, args, output)))
    x = dl.ones(1, 2)
    plain = model(x).numpy()
    ((module, args, output),) = seen
    assert module is model[0] and args == (x,) and output.shape == (1, 3)
    doubled = model.register_forward_hook(lambda module, args, output: output * 2)
    np.testing.assert_allclose(model(x).numpy(), plain * 2)
    doubled.remove()
    handle.remove()
    handle.remove()
    np.testing.assert_allclose(model(x).numpy(), plain)
    assert len(seen) == 2


@DTYPES
@pytest.mark.parametrize("mode", ["reflect", "replicate"])
def test_images_are_padded_by_their_own_elements(mode: str, dtype: str) -> None:
    for shape, widths in (((2, 3, 5, 4), (3, 1, 0, 2)), ((2, 3, 5), (2, 4)), ((3, 5, 4), (1, 0, 2, 3))):
        agree(F.pad, torch.nn.functional.pad, drawn(*shape), dtype=dtype, pad=widths, mode=mode)


@DTYPES
def test_rows_are_normalized(dtype: str) -> None:
    x = np.concatenate([drawn(3, 5), np.zeros((1, 5))])
    for words in ({}, {"dim": 0}, {"p": 1, "dim": -1}, {"eps": 3.0}):
        agree(F.normalize, torch.nn.functional.normalize, x, dtype=dtype, **words)


@DTYPES
def test_distances(dtype: str) -> None:
    a, b, c = drawn(5, 4), drawn(5, 4), drawn(5, 4)
    t, wide, high = torch.nn.functional, drawn(1, 2, 3), drawn(2, 1, 3)
    for mine, theirs, given, words in (
        (F.pairwise_distance, t.pairwise_distance, (a, b), {}),
        (F.pairwise_distance, t.pairwise_distance, (a, b), {"p": 1.0, "keepdim": True}),
        (F.cosine_similarity, t.cosine_similarity, (a, b), {}),
        (F.cosine_similarity, t.cosine_similarity, (a, b), {"dim": 0}),
        (F.cosine_similarity, t.cosine_similarity, (wide, high), {"dim": -2}),  # along which one is repeated
        (F.cosine_similarity, t.cosine_similarity, (wide[0], high), {}),
        (F.triplet_margin_loss, t.triplet_margin_loss, (a, b, c), {}),
        (F.triplet_margin_loss, t.triplet_margin_loss, (a, b, c), {"margin": 3.0, "swap": True, "reduction": "sum"}),
    ):
        agree(mine, theirs, *given, dtype=dtype, **words)


def test_binary_cross_entropy_at_zero_and_one() -> None:
    """Logarithms are -100 at least; gradients are finite."""
    x, y = [0.0, 1.0, 0.0, 1.0, 0.5], [0.0, 1.0, 1.0, 0.0, 0.25]
    mine, theirs = dl.tensor(x, requires_grad=True), torch.tensor(x)
    found = nn.BCELoss(reduction="none")(mine, dl.tensor(y))
    np.testing.assert_allclose(found.numpy(), torch.nn.BCELoss(reduction="none")(theirs, torch.tensor(y)).numpy())
    found.sum().backward()
    assert np.isfinite(mine.grad.numpy()).all() and mine.grad[4].item() == pytest.approx(1.0)


def test_orthogonal_matrices() -> None:
    for shape in ((3, 7), (7, 3), (4, 2, 2)):
        w = nn.init.orthogonal_(ad.Parameter(np.zeros(shape)), gain=2.0).numpy().reshape(shape[0], -1)
        small = w @ w.T if len(w) <= w.shape[1] else w.T @ w
        np.testing.assert_allclose(small, 4 * np.eye(len(small)), atol=1e-12)
    assert nn.init.constant_(ad.Parameter(np.zeros(2)), val=3.0).tolist() == [3.0, 3.0]
