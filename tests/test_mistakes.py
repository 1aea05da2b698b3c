"""Mistakes of users: one table, with a row for each kind of mistake in each package. Each is an exception of
`dlsys.errors` that says what is wrong in the user's words, and none is a crash or a silent result.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import dlsys as dl
import dlsys.needle as ndl
import numpy as np
import pytest
from dlsys import autodiff as ad
from dlsys import data, nn, optim, tvm_op
from dlsys.errors import (
    DataError,
    DeviceError,
    DlsysError,
    DTypeError,
    FeedError,
    GraphError,
    IndexRangeError,
    KernelArgumentError,
    ShapeError,
    TargetError,
)
from helpers import error_of

F = nn.functional
Row = tuple[type[Exception], str, Callable[[], Any]]
"""An exception's class, words of its message, and what raises it."""
ONES = np.ones((2, 3), "float32")
LABELS = np.zeros(2, "int64")


def shapes_of(make: Callable[..., Any], *shapes: tuple[int, ...]) -> Any:
    """Infers the shapes of what `make` makes of one variable for each shape."""
    variables = [ad.Variable(name) for name in "xyz"[: len(shapes)]]
    return ad.Executor(listed(make(*variables))).infer_shape(dict(zip(variables, shapes, strict=True)))


def run_of(make: Callable[..., Any], *arrays: Any) -> Any:
    """Runs what `make` makes of one variable for each array."""
    variables = [ad.Variable(name) for name in "xyz"[: len(arrays)]]
    return ad.Executor(listed(make(*variables)), "numpy").run(dict(zip(variables, arrays, strict=True)))


def listed(nodes: Any) -> list[Any]:
    return list(nodes) if isinstance(nodes, (tuple, list)) else [nodes]


def kernels() -> Iterable[Row]:
    """Of `tvm_op`."""
    add = tvm_op.make_elemwise_add((2, 3), "llvm", "llvm", "elem_add")
    read_only, cube = ONES.copy(), (2**31, 2**31, 2**31)
    read_only.flags.writeable = False
    yield KernelArgumentError, "elem_add: takes 3 arrays", lambda: add(ONES, ONES)
    yield ShapeError, "input 1", lambda: add(ONES, ONES[:1], ONES)
    yield KernelArgumentError, "list", lambda: add(ONES, [[1.0]], ONES)
    yield KernelArgumentError, "read-only", lambda: add(ONES, ONES, read_only)
    yield KernelArgumentError, "contiguous", lambda: add(ONES, ONES, np.ones((2, 6), "float32")[:, ::2])
    yield ShapeError, "(4, 5)", lambda: tvm_op.make_matrix_mul((2, 3), False, (4, 5), False, "llvm", "llvm", "mm")
    yield ShapeError, "negative", lambda: tvm_op.make_relu((2, -3), "llvm", "llvm", "r")
    yield ShapeError, "depth", lambda: tvm_op.make_conv2d((1, 2, 5, 5), (1, 3, 3, 3), "llvm", "llvm", "c")
    yield DTypeError, "int32", lambda: tvm_op.make_relu((2,), "llvm", "llvm", "r", "int32")
    yield TargetError, "lvm", lambda: tvm_op.make_relu((2,), "lvm", "llvm", "r")
    for make in (tvm_op.make_elemwise_add, tvm_op.make_matrix_softmax, tvm_op.make_reduce_sum_axis_zero):
        yield DlsysError, "has more bytes than any memory", lambda make=make: make(cube, "llvm", "llvm", "huge")
    rows = (2**16, 2**16), "llvm", "llvm", "rows"
    yield DlsysError, "its loops count in 32 bits", lambda: tvm_op.make_matrix_softmax(*rows)


def graphs() -> Iterable[Row]:
    """Of variables, operators, gradients and the executor."""
    x, y, p = ad.Variable("x"), ad.Variable("y"), ad.Parameter(np.ones(2, "float32"), "weights")
    typed = ad.Variable("typed", (2, 3), "float32")  # what reads types without them says it at the run
    a, cyclic = ad.Variable("a"), ad.Variable("a") * 2.0
    cyclic.node.inputs.append((cyclic + 1.0).node)
    yield GraphError, "dtype", lambda: ad.Variable("v", None, "float33")
    yield GraphError, "negative", lambda: ad.Variable("v", (-1, 2))
    yield GraphError, "input 1 must be a node, not str", lambda: ad.add_op(x, "3")
    yield GraphError, "axes", lambda: ad.reducesum_op(typed, 1.5)
    yield GraphError, "reduction", lambda: ad.mse_loss_op(typed, typed, reduction="average")
    yield GraphError, "half", lambda: ad.max_pool2d_op(x, 3, padding=2)
    yield GraphError, "list of one node or more", lambda: ad.concatenate_op([])
    yield GraphError, "a step of 0", lambda: typed[::0]
    yield GraphError, "must be a function", lambda: ad.scan_op(None, x, y)
    state, rows = ad.Variable("h", (3,)), ad.Variable("v", (4, 3))
    yield GraphError, "must return a pair", lambda: ad.scan_op(lambda h, x: h, state, rows)
    yield TypeError, "not supported between instances", lambda: x < "1"  # as of Python's numbers
    yield ShapeError, "(2, 3) and (4,)", lambda: shapes_of(ad.add_op, (2, 3), (4,))
    yield ShapeError, "inner dimensions differ", lambda: shapes_of(ad.matmul_op, (2, 3, 4), (3, 5))
    yield ShapeError, "does not fit", lambda: shapes_of(lambda x: ad.reshape_op(x, (4, 2)), (2, 3))
    yield ShapeError, "four dimensions", lambda: shapes_of(lambda x: ad.avg_pool2d_op(x, 2), (2, 4, 4))
    yield IndexRangeError, "index 5 is out of range for axis 0", lambda: shapes_of(lambda x: x[5], (5, 2))
    joined = "do not join along axis 0"
    yield ShapeError, joined, lambda: shapes_of(lambda x, y: ad.concatenate_op([x, y]), (5, 2), (5, 3))
    yield DTypeError, "dtypes differ", lambda: run_of(ad.matmul_op, np.ones((2, 2), "float32"), np.ones((2, 2)))
    yield DTypeError, "0.5 is no int32", lambda: run_of(lambda x: ad.add_byconst_op(x, 0.5), np.ones(3, "int32"))
    yield DTypeError, "not one of int8, int32, int64", lambda: run_of(ad.take_op, ONES, np.ones(3, "float32"))
    yield GraphError, "sort: takes tensors and nodes, not int", lambda: ad.sort_op(5)
    yield GraphError, "takes tensors and nodes, not float", lambda: run_of(lambda x: ad.reshape_like_op(x, 1.0), ONES)
    yield GraphError, "output must be a node, not float", lambda: ad.gradients(1.0, [x])
    yield GraphError, "the graph has a circle", lambda: ad.Executor([cyclic]).run({a: ONES})
    yield GraphError, "passes: 5 is not one of", lambda: ad.Executor([x * 2.0], passes=5)
    twice = ad.group([ad.assign(p, p + 1.0), ad.assign(p, p * 2.0)])
    yield GraphError, "weights is assigned twice", lambda: run_of(lambda: twice)
    long = np.zeros(3, "float32")
    yield ShapeError, "weights has shape (2,), the value (3,)", lambda: run_of(lambda x: ad.assign(p, x), long)
    yield DTypeError, "weights is float32", lambda: run_of(lambda x: ad.assign(p, x), np.zeros(2))
    yield FeedError, "was not fed", lambda: ad.Executor([x * 2.0]).run({})
    yield FeedError, "run first", ad.Executor([x * 2.0]).memory_report
    yield ShapeError, "tuple of extents", lambda: ad.Executor([x * 2.0]).infer_shape({x: 3})
    yield GraphError, "list of nodes", lambda: ad.Executor(x)
    yield GraphError, "must hold nodes", lambda: ad.Executor([x, 1])
    yield DeviceError, "unknown context", lambda: ad.Executor([x], "abacus")
    yield DeviceError, "cpu(99) is not available", lambda: ad.Executor([x * 2.0], ctx=dl.cpu(99))
    yield DlsysError, "has more bytes than any memory", lambda: ad.Executor([x * 2.0]).compile_funcs({x: (2**62, 4)})
    wide = ad.Executor([ad.transpose_op(x) * 2.0])
    yield DlsysError, "its loops count in 32 bits", lambda: wide.compile_funcs({x: (2**16, 2**16)})


class Negated(dl.autograd.Function):
    """Returns an array, not a tensor."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return -x.numpy()


def tensors() -> Iterable[Row]:
    """Of values on demand, and the functions of `dlsys`."""
    x, v = dl.ones(2, 3), dl.tensor([1.0], requires_grad=True)
    yield DTypeError, "a rectangular array of numbers", lambda: dl.tensor([[1, 2], [3]])
    yield DlsysError, "has more bytes than any memory", lambda: dl.zeros(2**40, 2**40)
    yield GraphError, "finite", lambda: dl.linspace(0, float("inf"), 3)
    yield GraphError, "requires_grad=True", lambda: (dl.tensor([1.0]) * 2.0).backward()
    yield ShapeError, "(2,)", lambda: (v * 2.0).backward(np.ones(2))
    yield GraphError, "within no_grad()", lambda: v.add_(1.0)
    yield GraphError, "has a history of gradients", lambda: (v * 2.0).copyfrom([1.0])
    yield ShapeError, "shape (2,)", lambda: x.copyfrom(np.zeros(2))
    yield GraphError, "no output depends", lambda: dl.autograd.grad(v.sum(), [dl.ones(1, requires_grad=True)])
    yield GraphError, "Negated.forward must return and save tensors, not ndarray", lambda: Negated.apply(x)
    yield DTypeError, "int16", lambda: dl.tensor(np.zeros(2, "int16"))
    yield GraphError, "variable", lambda: (ad.Variable("x") + v).numpy()
    yield GraphError, "one element", lambda: x.item()
    yield ShapeError, "takes a matrix", lambda: dl.ones(2, 3, 4).t()
    yield ShapeError, "2 indices for a tensor of shape (1,)", lambda: v[[0], :]
    yield IndexRangeError, "index 3 is out of range for axis 0", lambda: x[3]
    yield IndexRangeError, "index 7 is out of range for axis 0", lambda: x[[0, 7]]
    yield ShapeError, "a mask of shape (4,)", lambda: x[np.ones(4, bool)]
    yield ShapeError, "do not fit each other", lambda: x[[0, 1], [0, 1, 2]]
    yield GraphError, "2 axes", lambda: dl.einsum("ijk->i", x)
    yield ShapeError, "'i' has extents 2 and 4", lambda: dl.einsum("ij,ik->jk", x, dl.ones(4, 2))
    yield DTypeError, "booleans", lambda: x.masked_select(dl.tensor([1, 0, 1]))
    yield ShapeError, "axis 2 is out of range for 2 dimensions", lambda: x.cumsum(2)
    yield DlsysError, "takes a list of one tensor or more", lambda: dl.cat([])
    yield DlsysError, "str is no tensor", lambda: dl.add("text", x)


def networks() -> Iterable[Row]:
    """Of `nn`."""
    x = dl.ones(2, 6)
    stack = nn.Sequential(nn.Linear(6, 4), nn.Linear(8, 2))
    lstm, attention = nn.LSTM(3, 2), nn.MultiheadAttention(8, 2)
    yield ShapeError, "1: Linear(8, 2) got (2, 4)", lambda: stack(x)
    yield ShapeError, "in 1: Linear(8, 2)", lambda: shapes_of(stack, (2, 6))
    images = dl.ones(2, 4, 8, 8)
    yield ShapeError, "Conv2d(3, 8, 3, stride=2) got (2, 4, 8, 8)", lambda: nn.Conv2d(3, 8, 3, 2)(images)
    yield ShapeError, "MaxPool2d(3, stride=2) got", lambda: nn.MaxPool2d(3, 2)(dl.ones(1, 1, 2, 8))
    yield ShapeError, "BatchNorm1d(3) got (1, 3)", lambda: nn.BatchNorm1d(3)(dl.ones(1, 3))  # no variance of one value
    yield ShapeError, "LSTM(3, 2) got (4, 2, 5)", lambda: lstm(dl.ones(4, 2, 5))
    yield ShapeError, "sequence length must be known", lambda: lstm(ad.Variable("x"))
    states = dl.ones(1, 3, 2), dl.ones(1, 2, 2)
    yield ShapeError, "has shape (1, 3, 2), not (1, 2, 2)", lambda: lstm(dl.ones(4, 2, 3), states)
    yield ShapeError, "got (4, 2, 6)", lambda: attention(*[dl.ones(4, 2, 6)] * 3)
    yield ShapeError, "beside (4,)", lambda: nn.MSELoss()(np.zeros((4, 1)), np.zeros(4))
    yield ShapeError, "too many to reflect", lambda: F.pad(x, (7, 0), "reflect")
    yield IndexRangeError, "index 6 is out of range", lambda: F.cross_entropy(x, dl.tensor([0, 6]))
    yield IndexRangeError, "index 3 is out of range", lambda: nn.Embedding(3, 2)(dl.tensor([1, 3]))
    yield GraphError, "Linear: in_features must be an integer >= 1, not 'a'", lambda: nn.Linear("a", 2)
    yield GraphError, "Dropout: p must be a number in [0, 1], not 1.5", lambda: nn.Dropout(1.5)
    yield GraphError, "MaxPool2d: dilation=2 is not supported", lambda: nn.MaxPool2d(2, 2, 0, 2)
    yield GraphError, "ModuleList: needs a list of modules, not int", lambda: nn.ModuleList(3)
    yield GraphError, "takes tensors and arrays, not int", lambda: stack(3)
    yield GraphError, "more than half", lambda: nn.MaxPool2d(2, padding=2)
    yield GraphError, "reduction", lambda: nn.MSELoss("average")
    yield GraphError, "4 channels do not divide into 3 groups", lambda: nn.GroupNorm(3, 4)
    yield GraphError, "mode must be", lambda: F.pad(x, (1, 1), "circular")
    yield GraphError, "does not divide into 3 heads", lambda: nn.MultiheadAttention(8, 3)
    yield DTypeError, "takes floats", lambda: F.interpolate(dl.ones(1, 1, 2, 2, dtype=dl.uint8), 3, mode="bilinear")
    yield ShapeError, "one number for each channel", lambda: F.prelu(dl.ones(2, 1, 4), dl.ones(3))
    yield GraphError, "takes tensors and nodes, not ndarray", lambda: F.silu(np.ones(2))
    yield DlsysError, "has more bytes than any memory", lambda: nn.Linear(2**40, 2**40)
    yield DlsysError, "must be of integers, not float32", lambda: nn.Embedding(4, 3)(dl.tensor([1.0]))
    yield DlsysError, "needs a dictionary, not int", lambda: nn.Linear(2, 2).load_state_dict(5)
    parameters = nn.Linear(2, 2).parameters()
    yield DlsysError, "max_norm must be a number >= 0, not 'a'", lambda: nn.utils.clip_grad_norm_(parameters, "a")


def optimizers() -> Iterable[Row]:
    """Of `optim`."""
    w, b = ad.Parameter(np.zeros((2, 3)), "W"), ad.Parameter(np.zeros(3), "b")
    opt = optim.SGD([w, b], lr=0.1)
    yield GraphError, "SGD: the list of parameters is empty", lambda: optim.SGD([], lr=0.1)
    yield GraphError, "SGD: parameter W is given twice", lambda: optim.SGD([w, w], lr=0.1)
    yield GraphError, "must be a list of Parameters or groups", lambda: optim.SGD(w, lr=0.1)
    yield GraphError, "unknown settings: alpha", lambda: optim.SGD([{"params": [w], "alpha": 2}], lr=0.1)
    yield GraphError, "SGD: lr must be a number >= 0, not 'fast'", lambda: optim.SGD([w], lr="fast")
    yield GraphError, "nesterov requires a momentum", lambda: optim.SGD([w], lr=1, nesterov=True)
    yield GraphError, "betas must be a number in [0, 1), not 1.0", lambda: optim.Adam([w], betas=(0.9, 1.0))
    yield GraphError, "the loss must be a node, not float", lambda: opt.minimize(3.0)
    yield GraphError, "is given twice", lambda: opt.add_param_group({"params": [w]})
    yield GraphError, "lr must be a number >= 0", lambda: opt.param_groups[0].update(lr=-1)
    yield GraphError, "maximize must be False, not True", lambda: optim.Adam([w], maximize=True)
    yield GraphError, "StepLR: needs an optimizer, not Parameter", lambda: optim.StepLR(w, 3)
    yield GraphError, "step_size must be an integer >= 1, not 0", lambda: optim.StepLR(opt, 0)
    yield GraphError, "1 schedules and the milestones [3]", lambda: optim.SequentialLR(opt, [optim.StepLR(opt, 2)], [3])
    yield GraphError, 'a dictionary of "last_epoch"', lambda: optim.StepLR(opt, 2).load_state_dict({})
    yield DlsysError, "not a int", lambda: opt.step(5)


def training(folder: Path) -> Iterable[Row]:
    """Of `data`, `fit` and files."""
    three, model = data.TensorDataset(np.ones((3, 1))), nn.Linear(3, 2)
    opt, loss, batch = optim.SGD(model.parameters(), lr=0.1), nn.CrossEntropyLoss(), (ONES, LABELS)
    damaged = folder / "damaged.safetensors"
    damaged.write_bytes(b"damaged")

    def fit(*batches: Any, **options: Any) -> Any:
        return dl.fit(model, options.pop("loss", loss), opt, list(batches), progress=False, **options)

    yield DlsysError, "batch_size must be an integer >= 1, not 2.0", lambda: data.DataLoader(three, 2.0)
    yield DlsysError, "transform must be a function, not 3", lambda: data.DataLoader(three, transform=3)
    yield DlsysError, "dataset needs __len__ and __getitem__: int", lambda: data.DataLoader(5)
    yield DlsysError, "sampler excludes shuffle", lambda: data.DataLoader(three, sampler=[0], shuffle=True)
    yield DlsysError, "TensorDataset of 3 samples", lambda: three["a"]
    yield DlsysError, "needs a list of transforms, not 5", lambda: data.Compose(5)
    yield GraphError, "no batch in epoch 1", lambda: fit(epochs=1)
    yield GraphError, "integer >= 0", lambda: fit(batch, epochs=-1)
    yield GraphError, "needs a model, a Module, not Tensor", lambda: dl.fit(dl.ones(2), loss, opt, [batch], epochs=1)
    yield GraphError, "the validation data have no batch", lambda: fit(batch, epochs=1, validation=[])
    loader, other = data.DataLoader(three, 2), data.DataLoader(three)
    yield DlsysError, "'batch_size': 1", lambda: loader.load_state_dict(other.state_dict())
    rest = {"epochs": 1, "loss": lambda out, y: out - y}
    yield ShapeError, "the loss must be one number", lambda: fit((ONES, ONES[:, :2]), **rest)
    yield DTypeError, "the path must be text", lambda: dl.save({"a": ONES}, 3)
    yield DTypeError, "save Linear's state_dict()", lambda: dl.save({"nets": [model]}, folder / "a")
    yield DlsysError, "more digits than Python reads", lambda: dl.save({"a": [10**5000]}, folder / "a")
    yield DlsysError, "has a zero byte", lambda: dl.load(f"{folder}/x\x00y")
    yield DataError, "damaged.safetensors", lambda: dl.load(damaged)


def exchange(folder: Path) -> Iterable[Row]:
    """Of ONNX, exported libraries, Relax, needle's names and pictures."""
    x, model, a = ad.Variable("x"), nn.Linear(2, 3), ndl.Tensor(ONES)
    run = ad.Executor([x * 2.0])
    yield DataError, "nothing.onnx cannot be read: No such file", lambda: dl.from_onnx("nothing.onnx")
    yield DataError, "takes a path or an onnx.ModelProto, not int", lambda: dl.from_onnx(3)
    yield FeedError, "was not fed", lambda: dl.to_onnx(ad.relu_op(x), None, {})
    yield FeedError, "Linear.forward: ", lambda: dl.to_onnx(model, None, {})
    yield DataError, "cannot be written", lambda: dl.to_onnx(ad.relu_op(x), "/no/such/place.onnx", {x: (2,)})
    yield FeedError, "feed_shapes is a dictionary, not NoneType", lambda: dl.freeze(model)
    yield FeedError, "no shapes are known yet", lambda: dl.export(run, folder / "step.so")
    yield DlsysError, "cannot be written", lambda: dl.export(run, "/no/such/folder/step.so", {x: (2,)})
    yield FeedError, "is a dictionary from nodes, not list", lambda: dl.relax.to_relax(x * 2.0, [x])
    yield GraphError, "schedule is one of", lambda: dl.relax.compile(x * 2.0, feed_shapes={x: (2,)}, schedule="best")
    yield GraphError, "item 2 of a tuple of 2", lambda: ndl.tuple_get_item((a, a), 2)
    yield DlsysError, "cannot be written: No such file", lambda: executed().draw(folder / "no" / "g.svg")
    yield GraphError, ".svg or .png", lambda: executed().draw(folder / "g.jpeg")
    yield FeedError, "feed_shapes", ad.Executor([x * 2.0]).groups
    yield DeviceError, "numpy context", ad.Executor([x * 2.0], "numpy").plan


def executed() -> ad.Executor:
    x = ad.Variable("x")
    executor = ad.Executor([x * 2.0])
    executor.run({x: ONES})
    return executor


TABLE: dict[str, Callable[..., Iterable[Row]]] = {
    "tvm_op": kernels,
    "autodiff": graphs,
    "tensors": tensors,
    "nn": networks,
    "optim": optimizers,
    "training": training,
    "exchange": exchange,
}


@pytest.mark.slow
@pytest.mark.parametrize("package", TABLE)
def test_every_mistake_is_told_in_the_users_words(package: str, tmp_path: Path) -> None:
    rows = TABLE[package]
    for number, (kind, words, call) in enumerate(rows(tmp_path) if rows in (training, exchange) else rows()):
        told = error_of(kind, call)
        assert told and words in told, (number, words, told)
        assert not re.search(r"\b0x[0-9a-f]{6}", told), told  # no addresses
