"""Mistakes of users, by the hundred: each is an exception of `dlsys.errors`, and none a crash or a silent result. Those
whose words another test asks for are not here.
"""

from __future__ import annotations

import functools
import re
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import dlsys as dl
import numpy as np
import pytest
from dlsys import autodiff as ad
from dlsys import data as D
from dlsys import nn, optim, tvm_op
from dlsys.errors import DlsysError

ONES = np.ones(2, "float32")


def too_large() -> dict[str, tuple[Any, ...]]:
    """Every factory that takes shapes, with such as no memory holds and no loop counts; zero-sized ones too."""
    cube, side = (2**31, 2**31, 2**31), 2**31
    found: dict[str, tuple[Any, ...]] = {
        "matrix_mul": (tvm_op.make_matrix_mul, (side, side), False, (side, side), False),
        "matrix_mul of columns": (tvm_op.make_matrix_mul, (side, 1), False, (1, side), False),
        "conv2d": (tvm_op.make_conv2d, (side, 1, side, side), (1, 1, 1, 1)),
        "broadcast_to": (tvm_op.make_broadcast_to, (1,), cube),
        "sums in 32 bits": (tvm_op.make_reduce_sum_axis_zero, (2**16, 2**16)),
        "rows in 32 bits": (tvm_op.make_matrix_softmax, (2**16, 2**16)),
    }
    for name in ("elemwise_add", "elemwise_mul", "relu", "relu_gradient", "matrix_softmax",
                 "matrix_softmax_cross_entropy", "reduce_sum_axis_zero"):  # fmt: skip
        make = getattr(tvm_op, f"make_{name}")
        found |= {name: (make, cube), f"{name} of none": (make, (0, 2**64))}
    for name in ("elemwise_add_by_const", "elemwise_mul_by_const", "sgd_update"):
        found[name] = (getattr(tvm_op, f"make_{name}"), cube, 2.0)
    return found


def executed() -> ad.Executor:
    x = ad.Variable("x")
    executor = ad.Executor([x * 2.0])
    executor.run({x: ONES})
    return executor


def circle() -> Any:
    a = ad.Variable("a")
    y = a * 2.0
    z = y + 1.0
    y.inputs.append(z)
    return ad.Executor([z]).run({a: ONES})


def mistakes(folder: Path) -> dict[str, Callable[[], Any]]:
    """What to call, by a name; none may return."""
    X, P, big = ad.Variable("X"), ad.Parameter(np.ones((2, 2), "float32"), "P"), ad.Variable("big")
    lin = nn.Linear(2, 2)
    opt = optim.SGD(lin.parameters(), 0.1)
    three = D.TensorDataset(np.ones((3, 1)))

    def text_at_step_1() -> None:
        optim.LambdaLR(opt, lambda epoch: 1.0 if epoch < 1 else "text").step()

    return {
        "cat": lambda: dl.cat([]),
        "set_grad_enabled": lambda: dl.set_grad_enabled({}),
        "no node": lambda: nn.functional.relu6(np.ones(2)),
        "gradients that are none": lambda: optim.clip_grad_norm(5, 1.0),
        "parts without end": lambda: ad.split_op(ad.Variable("x", (3,)), 2**70),
        "a shape beyond memory": lambda: nn.Linear(2**40, 2**40),
        "stack": lambda: dl.stack([]),
        "group_none": lambda: ad.group(None),
        "mnist": lambda: D.mnist(5),
        "cifar": lambda: D.CIFAR10(5),
        "sched": lambda: optim.LambdaLR(opt, lambda e: "text"),
        "sched2": text_at_step_1,
        "cyclic": circle,
        "huge": lambda: ad.Executor([big * 2]).infer_shape({big: (2**40, 2**40)}),
        "huge3": lambda: dl.zeros(2**40, 2**40),
        "huge4": lambda: ad.Executor([big * 2]).memory_plan({big: (2**40, 2**40)}),
        "huge5": lambda: ad.Executor([big * 2]).compile_funcs({big: (2**62, 4)}),
        **{name: partial(make, *shapes, "llvm", "llvm", name) for name, (make, *shapes) in too_large().items()},
        "loops of 32 bits": lambda: ad.Executor([ad.transpose_op(big) * 2]).compile_funcs({big: (2**16, 2**16)}),
        "digits": lambda: dl.save({"a": [10**5000]}, folder / "x"),
        "digits of a name": lambda: dl.save({"a": {-(10**5000): 1}}, folder / "x"),
        "step": lambda: opt.step(5),
        "td3": lambda: three["a"],
        "td5": lambda: three[[[1, 2], [3]]],
        "compose": lambda: D.Compose(5),
        "zerobyte": lambda: dl.save({"a\x00b": np.ones(2)}, folder / "x"),
        "zerobyte2": lambda: dl.save({"a": np.ones(2)}, str(folder) + "/x\x00y"),
        "zb3": lambda: dl.load(str(folder) + "/x\x00y"),
        "draw": lambda: executed().draw(folder / "no" / "g.svg"),
        "drawm": lambda: executed().draw_memory(folder / "no" / "g.svg"),
        "draw5": lambda: executed().draw(5),
        "adam": lambda: optim.Adam(lin.parameters(), betas=5),
        "ctx": lambda: ad.Executor([X * 2], ctx=dl.cpu(99)),
        "passes": lambda: ad.Executor([X * 2], passes=5),
        "onehot": lambda: dl.nn.functional.one_hot(5, 3),
        "emb": lambda: nn.Embedding(4, 3)(dl.tensor([1.0])),
        "mini": lambda: opt.minimize(P.sum()),
        "var": lambda: ad.Variable(5),
        "var2": lambda: ad.Variable("x", shape="a"),
        "assign2": lambda: ad.assign(P, 5),
        "lsd": lambda: lin.load_state_dict(5),
        "tens2": lambda: dl.tensor([[1, 2], [3]]),
        "tens3": lambda: dl.tensor([1], dtype="foo"),
        "zer": lambda: dl.zeros(-1),
        "zer2": lambda: dl.zeros("a"),
        "view": lambda: dl.ones(3).view(2, 2).numpy(),
        "bw": lambda: dl.ones(3).backward(),
        "clip": lambda: nn.utils.clip_grad_norm_(5, 1.0),
        "clip2": lambda: nn.utils.clip_grad_norm_(lin.parameters(), "a"),
        "acc": lambda: dl.accuracy(5, 5),
        **arguments(),
    }


def arguments() -> dict[str, Callable[[], Any]]:
    """Arguments of another kind, which Python's or NumPy's own errors told of."""
    F, x, pixels = nn.functional, dl.ones(2, 3), ad.Variable("pixels", (2, 3))
    numbers, text, weight = np.zeros((2, 3)), np.array("text"), nn.Parameter(np.ones((2, 3)))
    wrong: dict[str, tuple[Any, ...]] = {
        "relu6": (F.relu6, [1.0]),
        "layer_norm": (F.layer_norm, x, 1.5),
        "layer_norm of another shape": (F.layer_norm, x, (7,)),
        "layer_norm of no axes": (F.layer_norm, x, ()),
        "one_hot": (F.one_hot, x, numbers),
        "one_hot of floats": (F.one_hot, x),
        "randint": (dl.randint, 0, "text", (3,)),
        "randint beyond int64": (dl.randint, 0, 2**70, (3,)),
        "Array": (dl.Array, 3, dl.cpu(0)),
        "GPTBlock": (nn.GPTBlock, None, 2),
        "GPTBlock of text": (nn.GPTBlock, "text", 2),
        "var": (dl.var, x, 0, "text"),
        "std": (dl.std, x, 0, {}),
        "std with a correction": (lambda: dl.std(x, correction="text"),),
        "chunk": (dl.chunk, x, "text"),
        "chunk along two": (dl.chunk, x, 2, (0, 1)),
        "split": (dl.split, x, 1.5),
        "split of sizes": (dl.split, x, ["a", 1]),
        "unbind": (dl.unbind, x, "text"),
        "pad": (F.pad, x, 1),
        "masked_fill": (dl.masked_fill, x, x > 0, [1, 2]),
        "masked_fill of integers": (dl.masked_fill, dl.arange(3), dl.arange(3) > 0, "text"),
        "sum_op": (ad.sum_op, pixels, 0, numbers),
        "mean_op": (ad.mean_op, pixels, 0, "text"),
        "argmax_op": (ad.argmax_op, pixels, 0, numbers),
        "matmul_op": (ad.matmul_op, pixels, pixels, numbers),
        "mse_loss": (F.mse_loss, x, [1, 2]),
        "mse_loss of arrays": (F.mse_loss, x, x, numbers),
        "mse_loss_op": (ad.mse_loss_op, pixels, None),
        "add": (dl.add, "text", x),
        "matmul with a number": (lambda: dl.matmul(x, 3).shape,),
        "add_": (x.add_, {}),
        "size": (x.size, 7),
        "expand": (x.expand, numbers),
        "allclose": (dl.allclose, x, x, "text"),
        "allclose of other shapes": (dl.allclose, x, dl.ones(4)),
        "flip along 2^70": (dl.flip, x, 2**70),
        "triu": (dl.triu, x, "text"),
        "multinomial": (dl.multinomial, "text", 2),
        "multinomial of many": (dl.multinomial, [1.0, 2.0], 1.5),
        "arange": (dl.arange, 2**70),
        "full": (dl.full, (2,), [[1, 2], [3]]),
        "a dtype that is a tensor": (lambda: dl.ones(2, dtype=x),),
        "gelu": (F.gelu, x, numbers),
        "MaxPool2d": (lambda: nn.MaxPool2d(2, ceil_mode=numbers),),
        "batch_norm": (F.batch_norm, x, dl.ones(3), text),
        "attention": (F.scaled_dot_product_attention, x, x, x, [1]),
        "init": (nn.init.uniform_, weight, "a", "b"),
        "gain": (nn.init.xavier_normal_, weight, numbers),
        "find_topo_sort": (ad.find_topo_sort, 3),
        "find_topo_sort of numbers": (ad.find_topo_sort, (2, 3)),
        "sum_node_list": (ad.sum_node_list, 3),
        "broadcast_rule": (ad.broadcast_rule, 3, (2,)),
        "softmax_func": (ad.softmax_func, [1.0, 2.0]),
        "advance_op": (ad.advance_op, weight, 3),
        "with_updates_op": (ad.with_updates_op, pixels, 3),
        "Optimizer": (optim.Optimizer, [weight], 0.1, 3),
        "nesterov": (lambda: optim.SGD([weight], 0.1, 0.9, nesterov=numbers),),
        "precision": (dl.set_float32_matmul_precision, numbers),
        "get_submodule": (nn.Linear(2, 2).get_submodule, 3),
        "apply": (nn.Linear(2, 2).apply, 3),
        "parameters": (lambda: list(nn.Linear(2, 2).parameters(numbers)),),
        "requires_grad": (lambda: dl.tensor([1.0], requires_grad=numbers),),
        "with_updates_op of a number": (ad.with_updates_op, 0, []),
        "from_dlpack": (dl.from_dlpack, x, numbers),
        "to": (lambda: x.to("cpu", copy=numbers),),
        "array": (dl.array, numbers, None, x),
        "split along no axis": (lambda: [part.numpy() for part in ad.split_op(x, (1, 2), 3)],),
        "split along no axis from the end": (lambda: [part.numpy() for part in ad.split_op(x, (1, 2), -3)],),
        "split along 2^70": (ad.split_op, x, 2, 2**70),
        "register_buffer": (lambda: nn.Linear(2, 2).register_buffer("mean", x, persistent=numbers),),
        "load_state_dict": (nn.Linear(2, 2).load_state_dict, {}, numbers),
        "multinomial of 2^70": (dl.multinomial, [1.0, 2.0], 2**70, True),
    }
    return {f"argument of {name}": functools.partial(*call) for name, call in wrong.items()}


@pytest.mark.slow
def test_every_mistake_is_told_in_the_users_words() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name, call in mistakes(Path(folder)).items():
            try:
                call()
            except DlsysError as error:
                assert str(error) and not re.search(r"\b0x[0-9a-f]{6}", str(error)), name  # no addresses
            else:
                raise AssertionError(f"{name}: no error")
