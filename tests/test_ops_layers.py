"""Products, convolutions, pooling and losses against PyTorch: values and all first gradients, compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dlsys as dl
import numpy as np
import torch
import torch.nn.functional as F
from dlsys import autodiff as ad
from dlsys import ops
from dlsys.compiler import NAMES, run_passes, typed_graph
from dlsys.errors import DTypeError, GraphError, ShapeError
from dlsys.graph import Node
from helpers import error_of
from hypothesis import given, settings
from hypothesis import strategies as st

RELATIVE = {"float32": 1e-4, "float64": 1e-9}


class Comparison:
    """Several functions of drawn arrays, run by one executor and by PyTorch."""

    def __init__(self, dtype: str, seed: int) -> None:
        self.dtype, self.rng = dtype, np.random.default_rng(seed)
        self.outputs: list[Node] = []
        self.feed: dict[Node, np.ndarray] = {}
        self.expected: list[torch.Tensor] = []
        self.labels: list[str] = []

    def add(
        self,
        label: str,
        arrays: list[Any],
        ours: Callable[..., Node],
        torchs: Callable[..., torch.Tensor],
        fixed: tuple[int, ...] = (),
        declared: bool = False,
    ) -> None:
        """Shapes of inputs that are drawn, arrays of others; `ours` and `torchs` take them all. Of `fixed` ones PyTorch
        has no gradient. `declared`: whether the graph knows the shapes."""
        values = [
            self.rng.standard_normal(a).astype(self.dtype) if isinstance(a, tuple) else a for a in arrays
        ]
        nodes = [ad.Variable(f"x{i}", v.shape if declared else None, v.dtype) for i, v in enumerate(values)]
        tensors = [torch.from_numpy(np.array(v)) for v in values]
        floats = [i for i, v in enumerate(values) if v.dtype.kind == "f" and i not in fixed]
        for i in floats:
            tensors[i].requires_grad_(True)
        output, expected = ours(*nodes), torchs(*tensors)
        weight = torch.from_numpy(np.asarray(self.rng.standard_normal(tuple(expected.shape)), self.dtype))
        weights = ad.Variable("w")
        grads = ad.gradients(ops.mul_op(output, weights), [nodes[i] for i in floats])
        self.feed.update(zip(nodes, values, strict=True))
        self.feed[weights] = weight.numpy()
        self.outputs += [output, *grads]
        by_torch = torch.autograd.grad(
            (expected * weight).sum(), [tensors[i] for i in floats], allow_unused=True
        )
        self.expected += [expected, *(g for g in by_torch if g is not None)]
        self.labels += [f"{label} {[v.shape for v in values]} {self.dtype} {i}" for i in ["value", *floats]]

    def check(self) -> None:
        found = ad.Executor(self.outputs).run(self.feed, convert_to_numpy_ret_vals=True)
        for label, ours, theirs in zip(self.labels, found, self.expected, strict=True):
            want = theirs.detach().numpy()
            assert (ours.shape, ours.dtype) == (want.shape, want.dtype), label
            scale = max(float(np.abs(want).max(initial=0)), 1e-3)
            assert np.abs(ours - want).max(initial=0) <= RELATIVE[self.dtype] * scale, label


drawn = settings(max_examples=2, deadline=None, derandomize=True)
dtypes = st.sampled_from(sorted(RELATIVE))


def _lead(rng: np.random.Generator) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Leading axes that broadcast."""
    full = tuple(int(n) for n in rng.integers(1, 4, rng.integers(0, 3)))
    sides = []
    for _ in range(2):
        kept = tuple(n if rng.random() < 0.7 else 1 for n in full)
        sides.append(kept[rng.integers(0, len(kept) + 1) :])
    return sides[0], sides[1]


@drawn
@given(st.integers(0, 2**32), dtypes)
def test_products(seed: int, dtype: str) -> None:
    both, rng = Comparison(dtype, seed), np.random.default_rng(seed)
    for trans_a, trans_b in np.ndindex(2, 2):
        (m, k, n), (lead_a, lead_b) = (int(e) for e in rng.integers(1, 20, 3)), _lead(rng)
        a, b = (k, m) if trans_a else (m, k), (n, k) if trans_b else (k, n)
        both.add(
            "matmul",
            [(*lead_a, *a), (*lead_b, *b)],
            lambda x, y, s=trans_a, t=trans_b: ops.matmul_op(x, y, s, t),
            lambda x, y, s=trans_a, t=trans_b: (x.mT if s else x) @ (y.mT if t else y),
        )
    for shapes in ([(5,), (5,)], [(5,), (2, 5, 3)], [(2, 3, 5), (5,)], [(3, 5), (5,)], [(4, 7, 5), (5, 6)]):
        both.add("vectors", list(shapes), lambda x, y: x @ y, lambda x, y: x @ y)
    both.check()


@drawn
@given(st.integers(0, 2**32), dtypes)
def test_convolutions(seed: int, dtype: str) -> None:
    both, rng = Comparison(dtype, seed), np.random.default_rng(seed)

    def pair(low: int, high: int) -> tuple[int, int]:
        return int(rng.integers(low, high)), int(rng.integers(low, high))

    for _ in range(3):
        groups = int(rng.integers(1, 4))
        inner, outer = (groups * int(n) for n in rng.integers(1, 4, 2))
        stride, dilation, kernel, padding = pair(1, 4), pair(1, 3), pair(1, 4), pair(0, 2)
        x, f = (int(rng.integers(1, 3)), inner, *pair(7, 11)), (outer, inner // groups, *kernel)
        geometry = (stride, padding, dilation, groups)
        both.add(
            f"conv2d {geometry}",
            [x, f],
            lambda x, f, a=geometry: ops.conv2d_op(x, f, *a),
            lambda x, f, a=geometry: F.conv2d(x, f, None, *a),
        )
    both.check()


@drawn
@given(st.integers(0, 2**32), dtypes)
def test_pooling(seed: int, dtype: str) -> None:
    both, rng = Comparison(dtype, seed), np.random.default_rng(seed)
    for _ in range(2):
        kernel = tuple(int(k) for k in rng.integers(1, 6, 2))
        stride = tuple(int(s) for s in rng.integers(1, 4, 2))
        padding = tuple(int(rng.integers(0, k // 2 + 1)) for k in kernel)
        x = (2, 3, *(int(n) for n in rng.integers(6, 12, 2)))
        padded = bool(rng.integers(2))
        ties = rng.integers(0, 3, x).astype(dtype)
        for images in (x, ties):
            both.add(
                f"max_pool2d {kernel} {stride} {padding}",
                [images],
                lambda x, a=(kernel, stride, padding): ops.max_pool2d_op(x, *a),
                lambda x, a=(kernel, stride, padding): F.max_pool2d(x, *a),
            )
        both.add(
            f"avg_pool2d {kernel} {stride} {padding} {padded}",
            [x],
            lambda x, a=(kernel, stride, padding, padded): ops.avg_pool2d_op(x, *a),
            lambda x, a=(kernel, stride, padding, False, padded): F.avg_pool2d(x, *a),
        )
        size = tuple(int(n) for n in rng.integers(1, 8, 2))
        even = (2, 3, 2 * size[0], 3 * size[1])
        both.add(
            f"adaptive_avg_pool2d {size}",
            [even],
            lambda x, s=size: ops.adaptive_avg_pool2d_op(x, s),
            lambda x, s=size: F.adaptive_avg_pool2d(x, s),
            declared=True,
        )
    both.check()


@drawn
@given(st.integers(0, 2**32), dtypes)
def test_losses(seed: int, dtype: str) -> None:
    both, rng = Comparison(dtype, seed), np.random.default_rng(seed)
    others = rng.choice(["mean", "sum", "none"])
    for reduction in ("mean", "sum", "none"):
        rest = tuple(int(n) for n in rng.integers(1, 4, rng.integers(0, 3)))
        classes, batch = int(rng.integers(2, 40)), int(rng.integers(2, 20))
        smoothing, logits = float(rng.choice([0.0, 0.2])), (batch, classes, *rest)
        numbers = rng.integers(0, classes, (batch, *rest)).astype(rng.choice(["int32", "int64"]))
        numbers[0] = 1
        numbers[1] = 0  # not ignored
        both.add(
            f"cross_entropy {reduction}",
            [logits, numbers],
            lambda x, t, r=reduction, s=smoothing: ops.cross_entropy_op(x, t, 1, s, r),
            lambda x, t, r=reduction, s=smoothing: F.cross_entropy(
                x, t.long(), ignore_index=1, label_smoothing=s, reduction=r
            ),
        )
        probabilities = rng.uniform(0, 1, logits).astype(dtype)
        both.add(
            f"cross_entropy of probabilities {reduction}",
            [logits, probabilities],
            lambda x, t, r=reduction, s=smoothing: ops.cross_entropy_op(x, t, -100, s, r),
            lambda x, t, r=reduction, s=smoothing: F.cross_entropy(x, t, label_smoothing=s, reduction=r),
        )
        if reduction != others:
            continue
        both.add(
            "mse_loss",
            [logits, logits],
            lambda x, y, r=reduction: ops.mse_loss_op(x, y, r),
            lambda x, y, r=reduction: F.mse_loss(x, y, reduction=r),
        )
    both.check()


def test_special_values_are_pytorchs() -> None:
    logits = np.array([[1e4, -1e4, 0], [-np.inf, 0, 1], [np.nan, 0, 1], [0, 1, 2]], "float32")
    numbers = np.array([1, 0, 2, 2], "int64")
    x, t, p = ad.Variable("x"), ad.Variable("t"), ad.Variable("p")
    images = np.full((1, 1, 4, 4), -np.inf, "float32")
    images[0, 0, 1, 2], images[0, 0, 3, 3] = np.nan, np.inf
    losses, mean = ops.cross_entropy_op(x, t, reduction="none"), ops.cross_entropy_op(x, t, 2)
    executor = ad.Executor([losses, mean, ops.max_pool2d_op(p, 3, 2, 1)])
    found = executor.run({x: logits, t: numbers, p: images}, convert_to_numpy_ret_vals=True)
    tx, tt = torch.from_numpy(logits), torch.from_numpy(numbers)
    expected = [
        F.cross_entropy(tx, tt, reduction="none"),
        F.cross_entropy(tx, tt, ignore_index=2),
        F.max_pool2d(torch.from_numpy(images), 3, 2, 1),
    ]
    for ours, want in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, want.detach().numpy(), rtol=1e-6, atol=1e-40)


def test_targets_that_are_no_class_make_the_loss_nan_and_ignored_ones_leave_none() -> None:
    x, t = ad.Variable("x"), ad.Variable("t")
    losses, mean = ops.cross_entropy_op(x, t, reduction="none"), ops.cross_entropy_op(x, t)
    executor = ad.Executor([losses, mean, *ad.gradients(losses, [x])])
    logits = np.zeros((4, 3), "float32")
    for targets in (np.array([0, 3, -1, -100]), np.array([2**40, -(2**40), 3, 1])):
        each, total, grad = executor.run({x: logits, t: targets}, convert_to_numpy_ret_vals=True)
        bad = (targets != -100) & ((targets < 0) | (targets >= 3))
        assert np.isnan(each[bad]).all() and np.isfinite(each[~bad]).all() and np.isnan(total)
        assert np.isnan(grad[bad]).all() and np.isfinite(grad[~bad]).all()
        assert not each[targets == -100].any() and not grad[targets == -100].any()
    ignored = np.full(4, -100)
    each, total, _ = executor.run({x: logits, t: ignored}, convert_to_numpy_ret_vals=True)
    assert not each.any() and np.isnan(total)


def test_the_gradient_of_a_shared_matrix_is_one_product_of_matrices() -> None:
    x, w = ad.Variable("x"), ad.Variable("w")
    for trans_b in (False, True):
        grads = ad.gradients(ops.matmul_op(x, w, False, trans_b), [x, w])
        shapes = {x: (4, 8, 6), w: (5, 6) if trans_b else (6, 5)}
        graph = typed_graph(grads, [], {node: (shape, "float32") for node, shape in shapes.items()})
        nodes = run_passes(graph, NAMES).nodes
        products = [node for node in nodes if node.op.name == "matmul"]
        others = {node.op.name for node in nodes} - {"matmul", "full", "reshape"}
        assert len(products) == 2 and not others, nodes
        feed = {node: np.ones(shape, "float32") for node, shape in shapes.items()}
        _, grad = ad.Executor(grads).run(feed, convert_to_numpy_ret_vals=True)
        np.testing.assert_array_equal(grad, np.full(shapes[w], 32, "float32"))


def test_shapes_that_do_not_fit_are_named() -> None:
    x, y = ops.Variable("x"), ops.Variable("y")
    wrong: list[tuple[Node, list[tuple[int, ...]], str]] = [
        (ops.matmul_op(x, y), [(2, 3, 4), (3, 4, 5)], "leading dimensions do not broadcast"),
        (ops.matmul_op(x, y), [(2, 3, 4), (3, 5)], "inner dimensions differ"),
        (ops.matmul_op(x, y), [(), (3, 5)], "not scalars"),
        (ops.matmul_op(x, y, trans_B=True), [(3, 5), (5,)], "a vector has no two axes"),
        (ops.conv2d_op(x, y, groups=2), [(1, 3, 4, 4), (2, 1, 3, 3)], "divisible by 2 groups"),
        (ops.conv2d_op(x, y, groups=2), [(1, 4, 4, 4), (2, 4, 3, 3)], "channels differ in 2 groups"),
        (ops.conv2d_op(x, y, dilation=2), [(1, 4, 4, 4), (2, 4, 3, 3)], "dilated by (2, 2) do not fit"),
        (ops.max_pool2d_op(x, 5, padding=1), [(1, 2, 2, 9)], "windows of (5, 5) do not fit"),
        (ops.avg_pool2d_op(x, 2), [(2, 4, 4)], "four dimensions"),
        (ops.cross_entropy_op(x, y, reduction="none"), [(4, 3), (3,)], "not class numbers (4,)"),
        (ops.cross_entropy_op(x, y, reduction="none"), [(4,), ()], "must be (N, C)"),
    ]
    for node, shapes, words in wrong:
        text = error_of(ShapeError, node.op.infer_shape, node, shapes)
        assert text.startswith(f"{node.op.name}: ") and words in text, text


def test_arguments_and_dtypes_that_no_operator_takes() -> None:
    x, y = ops.Variable("x"), ops.Variable("y")
    assert "groups" in error_of(GraphError, ops.conv2d_op, x, y, groups=0)
    assert "dilation" in error_of(GraphError, ops.conv2d_op, x, y, dilation=0)
    assert "half" in error_of(GraphError, ops.max_pool2d_op, x, 3, padding=2)
    assert "kernel" in error_of(GraphError, ops.avg_pool2d_op, x, 0)
    assert "output_size" in error_of(GraphError, ops.adaptive_avg_pool2d_op, x, 0)
    for shape, told in ((None, "of unknown shape"), ((1, 2, 7, 4), "(1, 2, 7, 4) have no (2, 2) equal windows")):
        images = ops.Variable("images", shape)
        assert told in error_of(ShapeError, ops.adaptive_avg_pool2d_op, images, 2)
    assert "operand" in error_of(GraphError, ops.matmul_gradient_op, x, y, x, "C")
    for call in (ops.cross_entropy_op, ops.mse_loss_op):
        assert "reduction" in error_of(GraphError, call, x, y, reduction="average")
    assert "ignore_index" in error_of(GraphError, ops.cross_entropy_op, x, y, 1.5)
    assert "label_smoothing" in error_of(GraphError, ops.cross_entropy_op, x, y, label_smoothing=2)
    node = ops.cross_entropy_op(x, y, reduction="none")
    logits, floats = np.zeros((4, 3), "float32"), np.zeros(4, "float32")
    assert "must be integers" in error_of(DTypeError, ad.Executor([node]).run, {x: logits, y: floats})
    one_hot = np.zeros((4, 3), "int64")
    assert "probabilities" in error_of(ShapeError, ad.Executor([node]).run, {x: logits, y: one_hot})


def test_strided_gradients_do_not_depend_on_threads():
    """TVM 0.27 simplified the taps of two phases, whose loops were fused to run in parallel, to a wrong index."""
    random, before = np.random.default_rng(4), dl.get_num_threads()
    x, f, g = (ad.Variable(name) for name in "xfg")
    try:
        for images, filters, stride, padding in (
            ((128, 64, 2, 2), (128, 64, 3, 3), 2, 1),
            ((128, 32, 6, 3), (64, 32, 5, 3), (3, 1), (2, 1)),
        ):
            node = ad.conv2d_input_gradient_op(f, g, x, stride, padding)
            out = ad.conv2d_op(x, f, stride, padding)
            shape = out.op.infer_shape(out, [images, filters])
            drawn = {n: random.standard_normal(s).astype("float32") for n, s in ((x, images), (f, filters), (g, shape))}
            (want,) = ad.Executor([node], "numpy").run(drawn)
            for threads in range(1, before + 1):
                dl.set_num_threads(threads)
                (got,) = ad.Executor([node]).run(drawn, convert_to_numpy_ret_vals=True)
                np.testing.assert_allclose(got, want, atol=1e-4, err_msg=f"{images}, {threads} threads")
    finally:
        dl.set_num_threads(before)
