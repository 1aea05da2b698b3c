"""Functions of nn.functional that move, resize, activate or compare, and their modules, against PyTorch's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dlsys as dl
import numpy as np
import torch
from against_torch import random
from dlsys import autodiff as ad
from dlsys.nn import functional as F

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


def test_attention_takes_the_arguments_of_pytorch() -> None:
    q, k, v = random(2, 4, 3, 5), random(2, 4, 6, 5, seed=1), random(2, 4, 6, 2, seed=2)
    attend = of("scaled_dot_product_attention", scale=0.3)
    agree([attend, of("scaled_dot_product_attention", dropout_p=0.0, is_causal=True)], q, k, v, gradients=True)

    def masked(library: Any, *x: Any) -> Any:
        seen = library.tensor(np.tri(3, 6, 2, dtype=bool))
        return library.nn.functional.scaled_dot_product_attention(*x, attn_mask=seen)

    agree([masked], q, k, v, gradients=True)

def test_losses_of_classes_of_a_batch_and_of_one_example() -> None:
    scores, classes = random(4, 3), np.array([2, 0, 1, 1])
    agree(
        [
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
            lambda library, x: library.nn.functional.cross_entropy(x[0], library.tensor([0.2, 0.3, 0.5]).to(x.dtype)),
        ],
        scores,
        gradients=True,
    )


def test_embeddings_with_padding_at_the_end() -> None:
    weight, numbers = dl.tensor(random(5, 3), requires_grad=True), np.array([[0, 4], [2, 2]])
    F.embedding(dl.tensor(numbers), weight, padding_idx=-1).sum().backward()
    assert weight.grad.numpy().tolist() == [[1, 1, 1], [0, 0, 0], [2, 2, 2], [0, 0, 0], [0, 0, 0]]
