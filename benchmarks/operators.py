"""What bench_ops.py times: operators as dlsys, PyTorch and NumPy have them, with their inputs and bars."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from dlsys import autodiff as ad
from dlsys import tvm_op

Shape = tuple[int, ...]
MILLION = 1_000_000
LARGE = (4096, 4096)  # 64 MiB, beyond the caches
ROWS = (4096, 1000)
IMAGES = (8, 64, 112, 112)


@dataclass(frozen=True)
class Work:
    """One operator on float32 inputs of some shapes.

    The three functions take the inputs and return the result; PyTorch's takes the module `torch` before them. With
    `gradients` the work is the result, and the gradients of these inputs of the result's product with a constant.
    """

    title: str
    shapes: tuple[Shape, ...]
    ours: Callable[..., Any]
    torch: Callable[..., Any]
    numpy: Callable[..., Any] | None = None
    gradients: tuple[int, ...] = ()
    bar: float = 1.0  # the most that it may take, in times of PyTorch's better, of NumPy for `numpy_bar`
    numpy_bar: bool = False
    positive: bool = False  # inputs in [0.1, 2), else of the standard normal distribution
    places: int = 0  # the last input is of int64 below this
    random: bool = False  # the results of two libraries differ
    kernel: Callable[[], Any] | None = None  # called with arrays in place of an executor

    def inputs(self) -> list[np.ndarray]:
        """The arrays, the same each time."""
        rng = np.random.default_rng(0)
        found: list[np.ndarray] = []
        for i, shape in enumerate(self.shapes):
            if self.places and i == len(self.shapes) - 1:
                found.append(rng.integers(0, self.places, shape))
            elif self.positive:
                found.append(rng.uniform(0.1, 2.0, shape).astype("float32"))
            else:
                found.append(rng.standard_normal(shape).astype("float32"))
        return found


def _products() -> list[Work]:
    """Small products through `Executor.run` and through their kernels alone, and a thousand of them."""
    found = []
    extents = [(16, 16, 16, 2.0), (32, 32, 32, 1.5), (64, 64, 64, 1.0), (96, 96, 96, 1.0), (33, 129, 65, 1.1)]
    for m, k, n, bar in extents:
        arguments = ((m, k), False, (k, n), False, "llvm", "llvm", "matmul")
        for way, kernel in (("run", None), ("kernel", functools.partial(tvm_op.make_matrix_mul, *arguments))):
            found.append(
                Work(
                    f"matmul {m}x{k} by {k}x{n}, {way}",
                    ((m, k), (k, n)),
                    ad.matmul_op,
                    lambda torch, a, b: a @ b,
                    np.matmul,
                    bar=bar,
                    numpy_bar=True,
                    kernel=kernel,
                )
            )
    many = ((1000, 64, 64), (1000, 64, 64))
    found.append(Work("1,000 products of 64x64", many, ad.matmul_op, lambda torch, a, b: a @ b, np.matmul))
    return found


def _sums() -> list[Work]:
    """Sums and places of maxima of 16 M elements."""

    def sum_of(title: str, shape: Shape, axis: int | None) -> Work:
        return Work(
            f"sum over {title}, 16M",
            (shape,),
            lambda x: ad.reducesum_op(x, axis),
            lambda torch, x: x.sum() if axis is None else x.sum(axis),
            lambda x: x.sum(axis),
        )

    return [
        sum_of("axis 0", LARGE, 0),
        sum_of("axis 1", LARGE, 1),
        sum_of("the middle axis", (64, 512, 512), 1),
        sum_of("all", LARGE, None),
        Work(
            "argmax along axis 1, 16M",
            (LARGE,),
            lambda x: ad.argmax_op(x, 1),
            lambda torch, x: x.argmax(1),
            lambda x: x.argmax(1),
        ),
        Work(
            "argmax along axis 0, 16M",
            (LARGE,),
            lambda x: ad.argmax_op(x, 0),
            lambda torch, x: x.argmax(0),
            lambda x: x.argmax(0),
        ),
    ]


def _pointwise() -> list[Work]:
    """Functions of single elements."""
    one, four = ((MILLION,),), ((4 * MILLION,),)
    return [
        Work("sin, 1M", one, ad.sin_op, lambda torch, x: torch.sin(x), np.sin),
        Work("cos, 1M", one, ad.cos_op, lambda torch, x: torch.cos(x), np.cos),
        Work("power, 1M", one * 2, ad.power_op, lambda torch, x, y: torch.pow(x, y), np.power, positive=True),
        Work("exp, 4M", four, ad.exp_op, lambda torch, x: torch.exp(x), np.exp),
        Work("tanh, 4M", four, ad.tanh_op, lambda torch, x: torch.tanh(x), np.tanh),
        Work("gelu, 4M", four, ad.gelu_op, lambda torch, x: torch.nn.functional.gelu(x)),
        Work("gelu, 4M", four, ad.gelu_op, lambda torch, x: torch.nn.functional.gelu(x), gradients=(0,)),
        Work(
            "randn, 4M",
            (),
            lambda: ad.random_normal_op(ad.Parameter(np.array([0, 1, 0, 0], "uint32"), "key"), (4 * MILLION,)),
            lambda torch: torch.randn(4 * MILLION),
            lambda: np.random.default_rng(0).standard_normal(4 * MILLION, "float32"),
            random=True,
        ),
    ]


def _rows() -> list[Work]:
    """Functions of rows, sorts, and what moves elements."""
    wide = (4096, 1024)

    def layer_norm(torch: Any, x: Any, weight: Any, bias: Any) -> Any:
        return torch.nn.functional.layer_norm(x, x.shape[-1:], weight, bias)

    def padded(torch: Any, x: Any) -> Any:
        return torch.nn.functional.pad(x, (1, 1, 1, 1))

    around = ((0, 0), (0, 0), (1, 1), (1, 1))
    along = ((*ROWS,), (4096, 200))
    return [
        Work("softmax, 4096x1000", (ROWS,), ad.softmax_op, lambda torch, x: x.softmax(-1)),
        Work("softmax, 4096x1000", (ROWS,), ad.softmax_op, lambda torch, x: x.softmax(-1), gradients=(0,)),
        Work("layer_norm, 4096x1024", (wide, (1024,), (1024,)), ad.layer_norm_op, layer_norm),
        Work("layer_norm, 4096x1024", (wide, (1024,), (1024,)), ad.layer_norm_op, layer_norm, gradients=(0, 1, 2)),
        Work(
            "gather along axis 1, 200 of 1000",
            along,
            lambda x, places: ad.take_along_axis_op(x, places, 1),
            lambda torch, x, places: x.gather(1, places),
            lambda x, places: np.take_along_axis(x, places, 1),
            places=1000,
        ),
        Work(
            "gather along axis 1, 200 of 1000",
            along,
            lambda x, places: ad.take_along_axis_op(x, places, 1),
            lambda torch, x, places: x.gather(1, places),
            gradients=(0,),
            places=1000,
        ),
        Work("pad images by 1", (IMAGES,), lambda x: ad.pad_op(x, around), padded, lambda x: np.pad(x, around)),
        Work("pad images by 1", (IMAGES,), lambda x: ad.pad_op(x, around), padded, gradients=(0,)),
    ]


def _sorts() -> list[Work]:
    """Sorts, and the first five."""
    found = []
    for name, shape in (("4096x1000", ROWS), ("1M", (MILLION,))):
        found += [
            Work(
                f"sort, {name}",
                (shape,),
                lambda x: ad.sort_op(x)[0],
                lambda torch, x: torch.sort(x, dim=-1, stable=True).values,
                lambda x: np.sort(x, -1),
                bar=1.2,
            ),
            Work(
                f"argsort, {name}",
                (shape,),
                ad.argsort_op,
                lambda torch, x: torch.sort(x, dim=-1, stable=True).indices,
                lambda x: np.argsort(x, -1, kind="stable"),
                bar=1.2,
            ),
            Work(
                f"topk, 5 of {name}",
                (shape,),
                lambda x: ad.topk_op(x, 5)[0],
                lambda torch, x: x.topk(5).values,
                bar=1.2,
            ),
            Work(
                f"sort, {name}",
                (shape,),
                lambda x: ad.sort_op(x)[0],
                lambda torch, x: torch.sort(x, dim=-1, stable=True).values,
                gradients=(0,),
                bar=1.2,
            ),
        ]
    return found


def _images() -> list[Work]:
    """Convolutions and pooling, as ResNet-18 and MobileNetV2 have them at batch 8."""

    def convolution(title: str, x: Shape, f: Shape, stride: int, padding: int, groups: int, **more: Any) -> Work:
        return Work(
            title,
            (x, f),
            lambda x, f: ad.conv2d_op(x, f, stride, padding, 1, groups),
            lambda torch, x, f: torch.nn.functional.conv2d(x, f, None, stride, padding, 1, groups),
            **more,
        )

    def pooled(torch: Any, x: Any) -> Any:
        return torch.nn.functional.max_pool2d(x, 3, 2, 1)

    found = [
        Work("max_pool2d 3x3, stride 2", (IMAGES,), lambda x: ad.max_pool2d_op(x, 3, 2, 1), pooled),
        Work("max_pool2d 3x3, stride 2", (IMAGES,), lambda x: ad.max_pool2d_op(x, 3, 2, 1), pooled, gradients=(0,)),
    ]
    for title, x, f, stride, padding, groups, bar in [
        ("conv 3x3, 64 to 64 of 56x56", (8, 64, 56, 56), (64, 64, 3, 3), 1, 1, 1, 1.0),
        ("conv 1x1, 256 to 512 of 14x14, stride 2", (8, 256, 14, 14), (512, 256, 1, 1), 2, 0, 1, 0.9),
        ("conv 1x1, 64 to 128 of 56x56, stride 2", (8, 64, 56, 56), (128, 64, 1, 1), 2, 0, 1, 0.9),
        ("depthwise 3x3, 96 of 112x112, stride 2", (8, 96, 112, 112), (96, 1, 3, 3), 2, 1, 96, 1.0),
        ("depthwise 3x3, 384 of 14x14", (8, 384, 14, 14), (384, 1, 3, 3), 1, 1, 384, 1.0),
    ]:
        for gradients in ((), (0, 1)):
            found.append(convolution(title, x, f, stride, padding, groups, gradients=gradients, bar=bar))
    return found


def every() -> list[Work]:
    """All work, in the table's order."""
    return [*_products(), *_sums(), *_pointwise(), *_rows(), *_sorts(), *_images()]
