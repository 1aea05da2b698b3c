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
from tvm import s_tir, te, tirx
from tvm.target import Target, codegen

Shape = tuple[int, ...]


def shape_of(tensor: te.Tensor) -> Shape:
    """Provided: the shape of a tensor, as ints."""
    return tuple(int(size) for size in tensor.shape)


# The formulas ----------------------------------------------------------------------------------------------


def add(a: te.Tensor, b: te.Tensor) -> te.Tensor:
    """a + b; the shapes broadcast as NumPy's do: (4, 1) and (3,) give (4, 3)."""
    # TODO 6
    return _broadcast(lambda x, y: x + y, a, b, "add")


def mul(a: te.Tensor, b: te.Tensor) -> te.Tensor:
    """a * b, which broadcasts likewise."""
    # TODO 6
    return _broadcast(lambda x, y: x * y, a, b, "mul")


def _broadcast(f: Callable[..., Any], a: te.Tensor, b: te.Tensor, name: str) -> te.Tensor:
    shape = np.broadcast_shapes(shape_of(a), shape_of(b))

    def read(x: te.Tensor, index: tuple[Any, ...]) -> Any:
        index = index[len(shape) - len(x.shape) :]
        return x(*(0 if size == 1 else i for size, i in zip(shape_of(x), index, strict=True)))

    return te.compute(shape, lambda *index: f(read(a, index), read(b, index)), name=name)


def matmul(a: te.Tensor, b: te.Tensor, trans_a: bool = False, trans_b: bool = False) -> te.Tensor:
    """The product of two matrices, each transposed first if its flag says so. Its name is "matmul", by which
    `schedule_matmul` gets its loops."""
    # TODO 7
    m, inner = shape_of(a)[:: -1 if trans_a else 1]
    n = shape_of(b)[0 if trans_b else 1]
    k = te.reduce_axis((0, inner), "k")

    def term(i: Any, j: Any) -> Any:
        return (a[k, i] if trans_a else a[i, k]) * (b[j, k] if trans_b else b[k, j])

    return te.compute((m, n), lambda i, j: te.sum(term(i, j), axis=k), name="matmul")


def relu(x: te.Tensor) -> te.Tensor:
    """max(x, 0) of each element, for any number of axes."""
    # TODO 8
    return te.compute(x.shape, lambda *i: te.max(x(*i), tirx.const(0, "float32")), name="relu")


def relu_gradient(x: te.Tensor, grad: te.Tensor) -> te.Tensor:
    """grad where x > 0, else 0."""
    # TODO 9
    zero = tirx.const(0, "float32")
    return te.compute(x.shape, lambda *i: tirx.Select(x(*i) > zero, grad(*i), zero), name="relu_gradient")


def softmax(x: te.Tensor) -> te.Tensor:
    """exp(x) / sum of exp(x), row by row; right for rows such as (1000, 1001, 999), whose exp is infinite."""
    # TODO 10
    rows, columns = shape_of(x)
    j, k = te.reduce_axis((0, columns), "j"), te.reduce_axis((0, columns), "k")
    top = te.compute((rows,), lambda i: te.max(x[i, j], axis=j), name="top")
    total = te.compute((rows,), lambda i: te.sum(te.exp(x[i, k] - top[i]), axis=k), name="total")
    return te.compute((rows, columns), lambda i, j: te.exp(x[i, j] - top[i]) / total[i], name="softmax")


def cross_entropy(logits: te.Tensor, labels: te.Tensor) -> te.Tensor:
    """-sum of labels * log(softmax(logits)) over all elements, of shape (1,); finite for the rows above."""
    # TODO 11
    rows, columns = shape_of(logits)
    j, k = te.reduce_axis((0, columns), "j"), te.reduce_axis((0, columns), "k")
    top = te.compute((rows,), lambda i: te.max(logits[i, j], axis=j), name="top")
    total = te.compute((rows,), lambda i: te.sum(te.exp(logits[i, k] - top[i]), axis=k), name="total")
    r, c = te.reduce_axis((0, rows), "r"), te.reduce_axis((0, columns), "c")
    term = labels[r, c] * (te.log(total[r]) + top[r] - logits[r, c])
    return te.compute((1,), lambda _: te.sum(term, axis=[r, c]), name="cross_entropy")


def sum_to(grad: te.Tensor, like: te.Tensor) -> te.Tensor:
    """grad summed to the shape of `like`, whose values are not read: over the axes in front that `like` lacks, and over
    those where it has 1. (4, 3) summed to (3,) and to (1, 3) is the sum of the rows; to (4, 3) a copy."""
    # TODO 12
    shape, whole = shape_of(like), shape_of(grad)
    front = len(whole) - len(shape)
    summed = [axis for axis in range(len(whole)) if axis < front or shape[axis - front] != whole[axis]]
    over = {axis: te.reduce_axis((0, whole[axis]), f"r{axis}") for axis in summed}

    def element(*index: Any) -> Any:
        value = grad(*(over[axis] if axis in over else index[axis - front] for axis in range(len(whole))))
        return te.sum(value, axis=list(over.values())) if over else value

    return te.compute(shape, element, name="sum_to")


FORMULAS = {f.__name__: f for f in (add, mul, matmul, relu, relu_gradient, softmax, cross_entropy, sum_to)}


# The schedule ----------------------------------------------------------------------------------------------


def schedule_matmul(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """The loops of a product, changed so that it is at least ten times as fast on one thread.

    `s_tir.Schedule(function)` has the primitives (`get_loops("matmul")`, `split`, `reorder`, `vectorize`, ...);
    `schedule.mod["main"]` is the changed function. It must stay right for all four transposes and for sizes that no
    tile divides.
    """
    # TODO 13
    schedule = s_tir.Schedule(function)
    i, j, k = schedule.get_loops("matmul")
    i, rows = schedule.split(i, [None, 8])
    j, columns = schedule.split(j, [None, 32])
    schedule.reorder(i, j, k, rows, columns)
    schedule.vectorize(columns)
    schedule.decompose_reduction("matmul", k)
    return schedule.mod["main"]


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
