"""Part 2: eight kernels as formulas of TE, and one schedule. To write: TODO 6 to TODO 13.

    relu = build("relu", ((3, 4),))
    relu(x, out)   # arrays of float32 that begin at a multiple of 64 bytes: `executor.empty`

A formula is a function of TE's tensors that says what each element of the result is; no loops, no order. TVM makes
loops of it (`default_loops`), a schedule changes them, and `compile_loops` makes machine code.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import tvm
from tvm import s_tir, te, tirx  # noqa: F401
from tvm.target import Target, codegen

Shape = tuple[int, ...]


def shape_of(tensor: te.Tensor) -> Shape:
    """Provided: the shape of a tensor, as ints."""
    return tuple(int(size) for size in tensor.shape)


# The formulas ----------------------------------------------------------------------------------------------


def add(a: te.Tensor, b: te.Tensor) -> te.Tensor:
    """a + b; the shapes broadcast as NumPy's do: (4, 1) and (3,) give (4, 3)."""
    raise NotImplementedError("TODO 6")


def mul(a: te.Tensor, b: te.Tensor) -> te.Tensor:
    """a * b, which broadcasts likewise."""
    raise NotImplementedError("TODO 6")


def matmul(a: te.Tensor, b: te.Tensor, trans_a: bool = False, trans_b: bool = False) -> te.Tensor:
    """The product of two matrices, each transposed first if its flag says so. Its name is "matmul", by which
    `schedule_matmul` gets its loops."""
    raise NotImplementedError("TODO 7")


def relu(x: te.Tensor) -> te.Tensor:
    """max(x, 0) of each element, for any number of axes."""
    raise NotImplementedError("TODO 8")


def relu_gradient(x: te.Tensor, grad: te.Tensor) -> te.Tensor:
    """grad where x > 0, else 0."""
    raise NotImplementedError("TODO 9")


def softmax(x: te.Tensor) -> te.Tensor:
    """exp(x) / sum of exp(x), row by row; right for rows such as (1000, 1001, 999), whose exp is infinite."""
    raise NotImplementedError("TODO 10")


def cross_entropy(logits: te.Tensor, labels: te.Tensor) -> te.Tensor:
    """-sum of labels * log(softmax(logits)) over all elements, of shape (1,); finite for the rows above."""
    raise NotImplementedError("TODO 11")


def sum_to(grad: te.Tensor, like: te.Tensor) -> te.Tensor:
    """grad summed to the shape of `like`, whose values are not read: over the axes in front that `like` lacks, and over
    those where it has 1. (4, 3) summed to (3,) and to (1, 3) is the sum of the rows; to (4, 3) a copy."""
    raise NotImplementedError("TODO 12")


FORMULAS = {f.__name__: f for f in (add, mul, matmul, relu, relu_gradient, softmax, cross_entropy, sum_to)}


# The schedule ----------------------------------------------------------------------------------------------


def schedule_matmul(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """The loops of a product, changed so that it is at least ten times as fast on one thread.

    `s_tir.Schedule(function)` has the primitives (`get_loops("matmul")`, `split`, `reorder`, `vectorize`, ...);
    `schedule.mod["main"]` is the changed function. It must stay right for all four transposes and for sizes that no
    tile divides.
    """
    raise NotImplementedError("TODO 13")


# Provided: from a formula to machine code ------------------------------------------------------------------


def _host() -> Target:
    """This CPU with all its features: for "llvm" alone TVM makes code that is several times slower."""
    features = tvm.get_global_func("tvm.codegen.llvm.GetHostCPUFeatures")()
    flags = [f"{'+' if there else '-'}{name}" for name, there in features.items()]
    return Target({"kind": "llvm", "mcpu": codegen.llvm_get_system_cpu(), "mattr": flags, "num-cores": 1})


def default_loops(op: str, shapes: tuple[Shape, ...], **attrs: Any) -> tirx.PrimFunc:
    """The loops that TVM makes of a formula; print them by `.show()`."""
    inputs = [te.placeholder(shape, "float32", name=f"in{i}") for i, shape in enumerate(shapes)]
    function = te.create_prim_func([*inputs, FORMULAS[op](*inputs, **attrs)])
    return function.with_attr("global_symbol", "main")


def compile_loops(function: tirx.PrimFunc) -> Callable[..., None]:
    """Machine code: a function of the inputs' arrays, then the output's."""
    compiled = tvm.compile(tvm.IRModule({"main": function}), target=_host())["main"]

    def kernel(*arrays: np.ndarray) -> None:
        for array in arrays:
            if array.ctypes.data % 64:  # machine code would crash
                raise ValueError(f"an array of shape {array.shape} does not begin at a multiple of 64 bytes")
        compiled(*arrays)

    return kernel


@cache
def build(op: str, shapes: tuple[Shape, ...], **attrs: Any) -> Callable[..., None]:
    """The compiled kernel of an operator for inputs of these shapes; the same arguments give the same kernel."""
    function = default_loops(op, shapes, **attrs)
    return compile_loops(schedule_matmul(function) if op == "matmul" else function)
