"""Layers of images and sequences against PyTorch's: padding modes, single examples, running statistics of instances."""

from __future__ import annotations

from typing import Any

import dlsys as dl
import numpy as np
import torch
from dlsys import autodiff as ad
from dlsys import nn
from dlsys.errors import GraphError, ShapeError
from dlsys.nn import functional as F
from helpers import error_of

rng = np.random.default_rng(5)


def drawn(*shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype("float32")


def compare(name: str, args: tuple[Any, ...], kwargs: dict[str, Any], x: np.ndarray, ctx: Any = "numpy") -> None:
    """Output and all gradients of a layer with PyTorch's initial values."""
    mine, theirs = getattr(nn, name)(*args, **kwargs), getattr(torch.nn, name)(*args, **kwargs)
    mine.load_state_dict(theirs.state_dict())
    variable, tensor = ad.Variable("x", x.shape, "float32"), torch.tensor(x, requires_grad=True)
    y, expected = mine(variable), theirs(tensor)
    (expected * expected).sum().backward()
    wanted = [expected, tensor.grad, *(parameter.grad for parameter in theirs.parameters())]
    executor = ad.Executor([y, *ad.gradients(y * y, [variable, *mine.parameters()])], ctx)
    found = executor.run({variable: x}, convert_to_numpy_ret_vals=True)
    for value, reference in zip(found, wanted, strict=True):
        reference = reference.detach().numpy()
        assert value.shape == reference.shape, (name, args, value.shape, reference.shape)
        np.testing.assert_allclose(value, reference, rtol=2e-4, atol=1e-4, err_msg=f"{name} {args} {kwargs}")
    for key, value in theirs.state_dict().items():
        assert mine.state_dict()[key].shape == tuple(value.shape)


def test_convolutions_continue_images_in_every_mode() -> None:
    for mode in ("zeros", "reflect", "replicate", "circular"):
        compare("Conv2d", (3, 4, 3), {"padding": (1, 2), "padding_mode": mode}, drawn(2, 3, 5, 6))
        width = 3 if mode == "zeros" else 4
        compare("Conv1d", (3, 4, width), {"padding": "same", "padding_mode": mode}, drawn(2, 3, 7))
    compare("Conv2d", (2, 2, (2, 3)), {"padding": "same", "padding_mode": "circular"}, drawn(1, 2, 4, 5), dl.cpu(0))
    compare("Conv2d", (2, 2, 3), {"padding": "valid", "padding_mode": "reflect"}, drawn(1, 2, 4, 5))
    assert repr(nn.Conv2d(1, 1, 3, padding=1, padding_mode="reflect")).startswith(
        "Conv2d(1 → 1, kernel_size=3, padding=1, padding_mode='reflect')"
    )


def test_one_example_is_taken_without_a_batch() -> None:
    for name, args, kwargs, shape in (
        ("Conv2d", (3, 4, 3), {"padding": 1}, (3, 5, 6)),
        ("Conv2d", (3, 4, 2), {"padding": "same", "dilation": 2}, (3, 5, 6)),
        ("Conv2d", (3, 4, 3), {"padding": 1, "padding_mode": "reflect"}, (3, 5, 6)),
        ("Conv1d", (3, 4, 3, 2), {}, (3, 8)),
        ("ConvTranspose2d", (3, 4, 2, 2), {}, (3, 3, 2)),
        ("ConvTranspose1d", (3, 4, 2, 2), {}, (3, 5)),
        ("ConvTranspose1d", (4, 6, 3, 2, 1, 1, 2), {"bias": False}, (2, 4, 5)),
        ("MaxPool2d", (2,), {"ceil_mode": True}, (3, 5, 4)),
        ("AvgPool2d", (3, 2, 1), {}, (3, 5, 4)),
        ("MaxPool1d", (2,), {}, (3, 5)),
        ("AvgPool1d", (2,), {}, (3, 5)),
        ("AdaptiveAvgPool2d", ((2, None),), {}, (3, 5, 4)),
        ("AdaptiveMaxPool2d", ((None, 1),), {}, (2, 3, 5, 4)),
        ("AdaptiveAvgPool1d", (2,), {}, (3, 5)),
        ("AdaptiveMaxPool1d", (2,), {}, (3, 5)),
        ("InstanceNorm2d", (3,), {"affine": True}, (3, 4, 5)),
        ("InstanceNorm1d", (3,), {}, (3, 5)),
    ):  # fmt: skip
        compare(name, args, kwargs, drawn(*shape))


def test_words_of_padding_in_functions() -> None:
    x, weight = drawn(2, 3, 5, 6), drawn(4, 3, 3, 3)
    for padding in ("same", "valid"):
        expected = torch.nn.functional.conv2d(torch.tensor(x), torch.tensor(weight), padding=padding).numpy()
        found = F.conv2d(dl.tensor(x), dl.tensor(weight), padding=padding).numpy()
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    row, narrow = x[:, :, 0], weight[:, :, 0]
    expected = torch.nn.functional.conv1d(torch.tensor(row), torch.tensor(narrow), padding="same", dilation=2).numpy()
    found = F.conv1d(dl.tensor(row), dl.tensor(narrow), padding="same", dilation=2).numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    tensors = dl.tensor(x), dl.tensor(weight)
    assert "a stride of 1" in error_of(GraphError, F.conv2d, *tensors, None, 2, "same")
    assert '"same", "valid" or integers' in error_of(GraphError, F.conv2d, *tensors, None, 1, "full")
    assert "must be known" in error_of(GraphError, F.conv2d, tensors[0], ad.Variable("w"), None, 1, "same")
    assert "by 2 at most, not 3" in error_of(
        ShapeError, nn.Conv2d(1, 1, 3, padding=3, padding_mode="reflect"), drawn(1, 1, 3, 3)
    )


def test_instances_move_running_statistics_as_in_pytorch() -> None:
    for name, shape in (("InstanceNorm2d", (4, 3, 5, 2)), ("InstanceNorm1d", (4, 3, 6)), ("InstanceNorm1d", (3, 6))):
        settings: dict[str, Any] = {"affine": True, "track_running_stats": True, "momentum": 0.3}
        mine, theirs = getattr(nn, name)(3, **settings), getattr(torch.nn, name)(3, **settings)
        for _ in range(3):
            x = drawn(*shape) * 2 + 1
            np.testing.assert_allclose(mine(x).numpy(), theirs(torch.tensor(x)).detach().numpy(), rtol=1e-4, atol=1e-5)
        for key, value in theirs.state_dict().items():
            np.testing.assert_allclose(mine.state_dict()[key], value.numpy(), rtol=1e-4, atol=1e-5, err_msg=key)
        mine.eval()
        theirs.eval()
        np.testing.assert_allclose(mine(x).numpy(), theirs(torch.tensor(x)).detach().numpy(), rtol=1e-4, atol=1e-5)
    assert repr(mine).startswith("InstanceNorm1d(3, momentum=0.3, affine=True, track_running_stats=True)")
