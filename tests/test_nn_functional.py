"""Functions of nn.functional that move, resize, activate or compare, and their modules, against PyTorch's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dlsys as dl
import numpy as np
import torch
from against_torch import random
from dlsys import autodiff as ad
from dlsys import nn
from dlsys.errors import DTypeError, GraphError, ShapeError
from dlsys.nn import functional as F
from helpers import error_of

Function = Callable[..., Any]


def of(name: str, *args: Any, **kwargs: Any) -> Function:
    """A function of nn.functional with settings behind its tensors."""
    return lambda library, *x: getattr(library.nn.functional, name)(*x, *args, **kwargs)


def module(name: str, *args: Any, **kwargs: Any) -> Function:
    """A module without parameters, with settings."""
    return lambda library, *x: getattr(library.nn, name)(*args, **kwargs)(*x)


def agree(functions: list[Function], *arrays: np.ndarray, gradients: bool = False, ctx: Any = "numpy") -> None:
    """Each function of (library, tensors) gives with dlsys what it gives with PyTorch; gradients too. By the operators'
    NumPy rules unless `ctx` says otherwise: kernels are compared with those in test_schedule.py."""
    for number, function in enumerate(functions):
        variables = [ad.Variable(f"x{i}", array.shape, str(array.dtype)) for i, array in enumerate(arrays)]
        tensors = [torch.tensor(array, requires_grad=gradients) for array in arrays]
        found, expected = function(dl, *variables), function(torch, *tensors)
        nodes, wanted = [found], [expected]
        if gradients:
            nodes += ad.gradients(found * found, variables)
            (expected * expected).sum().backward()
            wanted += [tensor.grad for tensor in tensors]
        values = ad.Executor(nodes, ctx).run(dict(zip(variables, arrays, strict=True)), convert_to_numpy_ret_vals=True)
        for value, tensor in zip(values, wanted, strict=True):
            reference = tensor.detach().numpy()
            assert (value.shape, value.dtype) == (reference.shape, reference.dtype), (number, value.shape)
            np.testing.assert_allclose(value, reference, rtol=1e-5, atol=1e-6, err_msg=str(number))


def test_compiled_kernels_give_the_same() -> None:
    agree(
        [
            of("pad", (1, 2, 3, 0), mode="reflect"),
            of("interpolate", size=(7, 3), mode="bilinear"),
            of("unfold", 2, stride=2),
            of("pixel_shuffle", 2),
            of("glu", 1),
        ],
        random(1, 4, 4, 5),
        gradients=True,
        ctx=dl.cpu(0),
    )


def test_padding_in_all_modes() -> None:
    images = random(2, 3, 4, 5)
    agree(
        [
            *(of("pad", pads, mode=mode) for mode in ("reflect", "replicate", "circular") for pads in ((2, 1), (0, 3))),
            *(of("pad", (1, 2, 3, 0), mode=mode) for mode in ("reflect", "replicate", "circular")),
            of("pad", (-1, 2, 1, -2)),
            of("pad", (-1, -1), value=3.0),
            of("pad", (-1, 2, 0, -1), mode="circular"),
        ],
        random(2, 3, 4, 5)[0],
        gradients=True,
    )
    agree(
        [
            *(module(f"{kind}Pad2d", (1, 2, 3, 0)) for kind in ("Reflection", "Replication", "Circular", "Zero")),
            module("ConstantPad2d", (1, -1, 0, 2), 0.5),
            module("ReflectionPad2d", 1),
        ],
        images,
        gradients=True,
    )
    agree(
        [
            *(module(f"{kind}Pad1d", (1, 2)) for kind in ("Reflection", "Replication", "Circular", "Zero")),
            module("ConstantPad1d", 2, 0.5),
        ],
        images[0],
    )
    x = dl.tensor(images)
    assert "mode must be one of" in error_of(GraphError, F.pad, x, (1, 1), "mirror")
    assert "by 4 at most, not 5" in error_of(ShapeError, F.pad, x, (5, 0), "reflect")
    assert "by 5 at most, not 6" in error_of(ShapeError, F.pad, x, (6, 0), "circular")
    assert "to lose" in error_of(ShapeError, F.pad, x, (-3, -3))
    assert "must be known" in error_of(GraphError, F.pad, ad.Variable("x"), (1, 1), "reflect")


def test_sizes_by_all_modes() -> None:
    images, rows = random(2, 3, 4, 5), random(2, 3, 5)
    modes: list[tuple[str, dict[str, Any]]] = [
        ("nearest", {"size": (7, 3)}),
        ("nearest", {"scale_factor": (2, 3)}),
        ("nearest", {"scale_factor": (1.5, 0.7)}),
        ("nearest-exact", {"size": (7, 3)}),
        ("area", {"size": (2, 3)}),
        ("bilinear", {"size": (7, 3)}),
        ("bilinear", {"size": (1, 7), "align_corners": True}),
        ("bilinear", {"scale_factor": (1.5, 0.7)}),
        ("bilinear", {"scale_factor": 1.7, "recompute_scale_factor": True}),
        ("bicubic", {"size": (7, 3)}),
        ("bicubic", {"scale_factor": 2, "align_corners": True}),
    ]
    agree([of("interpolate", mode=mode, **settings) for mode, settings in modes], images, gradients=True)
    agree(
        [
            of("interpolate", size=9, mode="linear", align_corners=True),
            of("interpolate", scale_factor=0.6, mode="linear"),
            of("interpolate", scale_factor=3),
            of("interpolate", size=3, mode="area"),
            module("Upsample", scale_factor=2, mode="linear"),
        ],
        rows,
    )
    agree(
        [
            module("Upsample", scale_factor=2),
            module("Upsample", (3, 9), None, "bilinear", True),
            module("UpsamplingBilinear2d", scale_factor=2),
            module("UpsamplingNearest2d", (8, 10)),
        ],
        images,
    )
    x = dl.tensor(images)
    for words, kwargs in (
        ("unknown mode 'cubic'", {"size": 2, "mode": "cubic"}),
        ("either size or scale_factor", {}),
        ("either size or scale_factor", {"size": 2, "scale_factor": 2}),
        ("align_corners is of", {"size": 2, "align_corners": True}),
        ("a number > 0, or 2 of them", {"scale_factor": (1, 2, 3)}),
        ("a number > 0, or 2 of them", {"scale_factor": -1.0}),
        ("antialias", {"size": 2, "mode": "bilinear", "antialias": True}),
    ):
        assert words in error_of(GraphError, F.interpolate, x, **kwargs), words
    assert "does not fit (2, 3, 4, 5)" in error_of(ShapeError, F.interpolate, x, 2, mode="linear")
    assert "is nothing" in error_of(ShapeError, F.interpolate, x, scale_factor=0.1)
    assert "either size or scale_factor" in error_of(GraphError, nn.Upsample)


def test_channels_and_pixels_windows_and_columns() -> None:
    agree(
        [
            of("pixel_shuffle", 2),
            of("pixel_unshuffle", 2),
            of("channel_shuffle", 4),
            module("PixelShuffle", 2),
            module("PixelUnshuffle", 2),
            module("ChannelShuffle", 2),
            of("unfold", 2),
            of("unfold", (3, 2), stride=2, padding=1),
            of("unfold", 2, dilation=2),
            module("Unfold", 2, stride=2),
            lambda library, x: library.nn.functional.pixel_shuffle(x[0], 2),
            lambda library, x: library.nn.functional.unfold(x[0], 2),
        ],
        random(2, 8, 4, 6),
        gradients=True,
    )
    agree(
        [
            of("fold", (3, 4), 2),
            module("Fold", (3, 4), 2),
            lambda library, x: library.nn.functional.fold(x[0], (3, 4), 2),
        ],
        random(2, 8, 6),
        gradients=True,
    )
    agree(
        [of("fold", (5, 7), (3, 2), stride=2, padding=1)],
        random(2, 12, 12),
        gradients=True,
    )
    agree([of("fold", (5, 6), 2, dilation=2)], random(1, 4, 12), gradients=True)
    x = dl.tensor(random(2, 3, 4, 6))
    assert "no multiple of 2 x 2" in error_of(ShapeError, F.pixel_shuffle, x, 2)
    assert "do not divide by 4" in error_of(ShapeError, F.pixel_unshuffle, x, 4)
    assert "do not fit images" in error_of(ShapeError, F.unfold, x, 5)
    assert "are no 4 columns" in error_of(ShapeError, F.fold, x[0], (3, 3), 2)


def test_activations_at_the_places_where_pieces_meet() -> None:
    edges = np.array([[-3.0, -1.0, -0.5, -0.0], [0.25, 0.5, 1.0, 30.0]], "float32")
    agree(
        [
            *(of(name) for name in ("celu", "hardshrink", "softshrink", "tanhshrink")),
            of("glu"),
            of("glu", 0),
            of("celu", 0.5),
            of("hardshrink", 0.25),
            of("softshrink", 1.0),
            of("threshold", 0.5, -7.0),
            of("softmin", 1),
            of("softplus", 2.0, 20.0),
            of("rrelu", 0.1, 0.3),
            of("softmax", dim=0),
            of("gelu", approximate="tanh"),
            *(of(name, inplace=False) for name in ("relu", "elu", "selu", "silu", "mish", "relu6", "hardswish")),
            of("leaky_relu", 0.2, inplace=False),
            module("GLU", 1),
            module("CELU", 0.5),
            module("Hardshrink"),
            module("Softshrink", 0.25),
            module("Tanhshrink"),
            module("Threshold", 0.25, 2.0),
            module("Softmin", 0),
            lambda library, x: library.nn.RReLU(0.1, 0.3).eval()(x),
        ],
        edges,
        gradients=True,
    )
    agree([module("Softmax2d"), lambda library, x: library.nn.Softmax2d()(x[0])], random(2, 3, 2, 2), gradients=True)
    norms = [module("LocalResponseNorm", 3, 0.1, 0.5, 2.0), of("local_response_norm", 2)]
    agree(norms, random(2, 5, 3), gradients=True)
    found = F.softmax(dl.tensor(edges), 1, dtype="float64")
    assert found.dtype == "float64" and F.log_softmax(dl.tensor(edges), dtype=dl.float64).dtype == "float64"
    nothing = np.array([np.nan, np.inf, -np.inf], "float32")
    agree([of(name) for name in ("celu", "hardshrink", "softshrink")], nothing)
    assert "no two halves" in error_of(ShapeError, F.glu, dl.tensor(np.zeros((2, 3), "float32")))
    assert "lambd must be" in error_of(GraphError, nn.Softshrink, -1)
    assert "alpha must not be 0" in error_of(GraphError, nn.CELU, 0.0)


def test_drawn_activations_draw_anew_and_keep_mean_and_variance() -> None:
    dl.manual_seed(0)
    x = dl.tensor(np.random.default_rng(0).standard_normal((100, 200)).astype("float32"))
    y = nn.AlphaDropout(0.3)(x).numpy()
    assert abs(y.mean()) < 0.05 and abs(y.std() - 1) < 0.05
    _, counts = np.unique(y, return_counts=True)
    assert abs(counts.max() / y.size - 0.3) < 0.02 and nn.AlphaDropout(0.3).eval()(x) is x
    slopes = nn.RReLU(0.2, 0.4)(x).numpy()[x.numpy() < 0] / x.numpy()[x.numpy() < 0]
    assert 0.2 <= slopes.min() < 0.21 and 0.39 < slopes.max() <= 0.4 + 1e-6
    variable = ad.Variable("x", (4, 50), "float32")
    executor = ad.Executor([nn.AlphaDropout()(variable), F.rrelu(variable, training=True)], "numpy")
    feed = {variable: -np.ones((4, 50), "float32")}
    first = executor.run(feed, convert_to_numpy_ret_vals=True)
    second = executor.run(feed, convert_to_numpy_ret_vals=True)
    assert all((a != b).any() for a, b in zip(first, second, strict=True))
    channels = F.dropout1d(dl.tensor(np.ones((40, 5, 3), "float32"))).numpy()
    assert (channels == channels[:, :, :1]).all() and {0.0, 2.0} == set(channels.ravel().tolist())


def test_attention_takes_the_arguments_of_pytorch() -> None:
    q, k, v = random(2, 4, 3, 5), random(2, 4, 6, 5, seed=1), random(2, 4, 6, 2, seed=2)
    attend = of("scaled_dot_product_attention", scale=0.3)
    agree([attend, of("scaled_dot_product_attention", dropout_p=0.0, is_causal=True)], q, k, v, gradients=True)

    def masked(library: Any, *x: Any) -> Any:
        seen = library.tensor(np.tri(3, 6, 2, dtype=bool))
        return library.nn.functional.scaled_dot_product_attention(*x, attn_mask=seen)

    agree([masked], q, k, v, gradients=True)
    few = [np.ascontiguousarray(x[:, :2]) for x in (k, v)]
    agree([of("scaled_dot_product_attention", enable_gqa=True)], q, *few, gradients=True)
    three = [dl.tensor(np.ascontiguousarray(x[:, :3])) for x in (k, v)]
    words = "4 heads are no multiple"
    assert words in error_of(ShapeError, F.scaled_dot_product_attention, dl.tensor(q), *three, enable_gqa=True)


def test_losses_of_counts_variances_and_margins() -> None:
    scores, counts = random(4, 3), np.array([[0, 1, 2], [3, 0, 5], [1, 1, 0], [2, 9, 4]], "float64")
    losses: list[Function] = [
        of("poisson_nll_loss"),
        of("poisson_nll_loss", False, reduction="sum"),
        of("poisson_nll_loss", full=True, reduction="none"),
        module("PoissonNLLLoss", full=True),
    ]
    agree(losses[:1] + losses[2:], scores, counts)
    agree(losses, np.abs(scores) + 0.1, counts)
    signs = np.sign(random(4, 3, seed=3))
    agree(
        [
            of("soft_margin_loss"),
            of("hinge_embedding_loss", 0.5),
            module("SoftMarginLoss", reduction="none"),
            module("HingeEmbeddingLoss", reduction="sum"),
        ],
        scores,
        signs,
    )
    agree(
        [of("gaussian_nll_loss"), of("gaussian_nll_loss", full=True, reduction="none"), module("GaussianNLLLoss")],
        scores,
        counts,
        np.abs(random(4, 3, seed=4)) + 0.1,
        gradients=True,
    )
    agree([of("gaussian_nll_loss")], scores, counts, np.abs(random(4, seed=4)) + 0.1)
    agree([of("gaussian_nll_loss", 0.7)], scores, counts)

    other, third = random(4, 3, seed=5), random(4, 3, seed=6)
    agree(
        [
            of("pairwise_distance"),
            of("pairwise_distance", 1.0, keepdim=True),
            of("pairwise_distance", 3.0),
            of("pairwise_distance", float("inf")),
            module("PairwiseDistance", 1.5),
            of("cosine_similarity", dim=0),
            module("CosineSimilarity"),
        ],
        scores,
        other,
        gradients=True,
    )
    agree(
        [
            of("triplet_margin_loss"),
            of("triplet_margin_loss", margin=3.0, p=1.0, swap=True, reduction="none"),
            module("TripletMarginLoss", 2.0, reduction="sum"),
            module("TripletMarginWithDistanceLoss", distance_function=lambda x, y: ((x - y) ** 2).sum(1), swap=True),
        ],
        scores,
        other,
        third,
        gradients=True,
    )
    row = np.sign(random(4, seed=7))
    agree([of("margin_ranking_loss", 0.2), module("MarginRankingLoss")], scores[:, 0], other[:, 0], row)
    agree([of("cosine_embedding_loss", 0.2), module("CosineEmbeddingLoss", 0.1)], scores, other, row)


def test_losses_of_classes_of_a_batch_and_of_one_example() -> None:
    scores, classes = random(4, 3), np.array([2, 0, 1, 1])
    weight = np.array([0.5, 2.0, 1.0])

    def pairs(function: Function, **kwargs: Any) -> Function:
        return lambda library, x: function(library, x, library.tensor(classes), **kwargs)

    def weighted(name: str, **kwargs: Any) -> Function:
        return lambda library, x: getattr(library.nn.functional, name)(
            x, library.tensor(classes), weight=library.tensor(weight), **kwargs
        )

    agree(
        [
            pairs(of("multi_margin_loss")),
            pairs(of("multi_margin_loss", p=2, margin=0.5, reduction="none")),
            pairs(module("MultiMarginLoss", reduction="sum")),
            weighted("multi_margin_loss"),
            weighted("cross_entropy", label_smoothing=0.1),
            lambda library, x: library.nn.functional.cross_entropy(input=x, target=library.tensor(classes)),
            lambda library, x: library.nn.CrossEntropyLoss()(input=x, target=library.tensor(classes)),
        ],
        scores,
        gradients=True,
    )

    def one(name: str, **kwargs: Any) -> Function:
        return lambda library, x: getattr(library.nn, name)(**kwargs)(x[0], library.tensor(classes)[0])

    agree(
        [
            one("CrossEntropyLoss"),
            one("CrossEntropyLoss", reduction="none", label_smoothing=0.1),
            one("NLLLoss"),
            one("NLLLoss", reduction="none"),
            lambda library, x: library.nn.functional.cross_entropy(x[0], library.tensor([0.2, 0.3, 0.5]).to(x.dtype)),
        ],
        scores,
        gradients=True,
    )
    y = dl.tensor(np.array([0, 1]))
    x = dl.tensor(np.array([0.5, 0.25], "float32"))
    for function in (F.binary_cross_entropy, F.binary_cross_entropy_with_logits, nn.BCELoss(), nn.BCEWithLogitsLoss()):
        told = error_of(DTypeError, function, x, y)
        assert "target is int64, it must be float32 as the input: target.float()" in told
        assert function(input=x, target=y.float()).numpy().shape == ()


def test_embeddings_from_rows_and_with_padding_at_the_end() -> None:
    rows = random(5, 3)
    layer = nn.Embedding.from_pretrained(rows)
    theirs = torch.nn.Embedding.from_pretrained(torch.tensor(rows))
    numbers = np.array([[0, 4], [2, 2]])
    np.testing.assert_array_equal(layer(numbers).numpy(), theirs(torch.tensor(numbers)).numpy())
    assert not layer.weight.requires_grad and nn.Embedding.from_pretrained(rows, freeze=False).weight.requires_grad
    weight = dl.tensor(rows, requires_grad=True)
    F.embedding(dl.tensor(numbers), weight, padding_idx=-1).sum().backward()
    assert weight.grad.numpy().tolist() == [[1, 1, 1], [0, 0, 0], [2, 2, 2], [0, 0, 0], [0, 0, 0]]
    assert "needs (entries, width)" in error_of(ShapeError, nn.Embedding.from_pretrained, rows[0])


def test_bilinear_forms() -> None:
    mine, theirs = nn.Bilinear(3, 4, 5), torch.nn.Bilinear(3, 4, 5)
    mine.load_state_dict(theirs.state_dict())
    x, y = (random(*shape).astype("float32") for shape in ((2, 6, 3), (2, 6, 4)))
    for a, b in ((x, y), (x[0], y[0]), (x[0, 0], y[0, 0])):
        expected = theirs(torch.tensor(a), torch.tensor(b)).detach().numpy()
        np.testing.assert_allclose(mine(a, b).numpy(), expected, rtol=1e-5, atol=1e-6)
    assert "do not fit a weight" in error_of(ShapeError, mine, x, x)
