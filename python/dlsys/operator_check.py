"""`dl.check_operator`: whether the parts of an operator agree with each other, for samples of its inputs.

An operator says one thing several times: a shape rule, a formula for the compiler, a reference in NumPy, a gradient,
and how it may be fused. Each part is compared with another one that was written independently of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .autodiff import Executor, find_topo_sort, gradients, mul_op
from .errors import DTypeError, OperatorError
from .graph import FLOATS, Handle, Node, error_at, handles, is_node, named
from .ops import variable

GUARD = 64  # elements before and behind an array, which no kernel may read
CLOSE = {
    "float16": 1e-2,
    "float32": 1e-4,
    "float64": 1e-9,
}  # of kernels beside NumPy, relative to the largest value
STEP = {"float32": 1e-2, "float64": 1e-5}  # of central differences
NEAR = {
    "float32": 2e-2,
    "float64": 1e-6,
}  # what these may be apart from a gradient, relative to the sum's size

Sample = Sequence[np.ndarray]
Feed = dict[Node, np.ndarray]


def check_operator(function: Callable[..., Any], *samples: Any, seed: int = 0) -> None:
    """Check a function of nodes, which may be one operator or made of several, with samples of its inputs.

        def square(x):
            return x * x

        dl.check_operator(square, np.array([1.0, -2.0]), np.zeros((2, 0)))

    For each sample these are compared:

    - the types that are inferred, and those of the formula and the gradients;
    - what the compiled formula computes, and what the NumPy reference computes, of each node by itself;
    - what is computed of arrays that lie between NaN and between large numbers: a formula that reads beyond its inputs
      differs;
    - gradients and gradients of gradients, and central differences, in float64 if the operator takes that;
    - what changes if one element changes, and what `kind` says: in an elementwise operator the elements at that index
      alone, in one of rows or a reduction its row alone.

    Args:
        function: takes as many nodes as a sample has arrays; returns a node or several.
        samples: each a tuple of arrays, or one array. A gradient is compared where the function has one: at a kink, as
            that of relu at 0, central differences are another thing.
        seed: of the directions in which differences are taken.

    Raises:
        OperatorError: two parts differ; the message names them, the operator, and where its node was made.
        DlsysError: of another kind, if the function does not take such arrays.
    """
    for sample in samples:
        arrays = [np.array(x, order="C") for x in (sample if isinstance(sample, (tuple, list)) else [sample])]
        _Check(function, arrays, np.random.default_rng(seed)).all()


class _Check:
    """The graph of one sample."""

    def __init__(
        self, function: Callable[..., Any], arrays: list[np.ndarray], rng: np.random.Generator
    ) -> None:
        self.function, self.arrays, self.rng = function, arrays, rng
        self.outputs, self.feed = self._built(arrays)
        self.nodes = [
            node
            for node in find_topo_sort(self.outputs)
            if not (node.op.variable or node.op.immediate or node.op.constant or node.op.kind == "scan")
        ]

    def _built(self, arrays: list[np.ndarray]) -> tuple[list[Node], Feed]:
        """The function's nodes for variables of the types of the arrays, and the feed."""
        variables = [variable(f"x{i}", x.shape, str(x.dtype)) for i, x in enumerate(arrays)]
        made = self.function(*handles(variables, Handle.results))  # which may call methods of tensors
        outputs = [made] if is_node(made) else list(made)
        return named(outputs), dict(zip(variables, arrays, strict=True))

    def all(self) -> None:
        """Every check, the one that explains the others first."""
        wanted = Executor(self.nodes, "numpy", passes=()).run(self.feed, convert_to_numpy_ret_vals=True)
        values = {node: value for node, value in zip(self.nodes, wanted, strict=True) if value is not None}
        self.kinds({**self.feed, **values})
        self.values(values)
        self.reads()
        self.derivatives()

    def values(self, wanted: Feed) -> None:
        """Compare what each node's kernel computes with the reference's value."""
        computed = Executor([*wanted], passes=()).run(self.feed, convert_to_numpy_ret_vals=True)
        for (node, value), found in zip(wanted.items(), computed, strict=True):
            if (found.shape, found.dtype) != (value.shape, value.dtype):
                told = f"the kernel gives {_type(found)}, the reference {_type(value)}"
                raise error_at(node, OperatorError, told)
            if not _close(found, value):
                raise error_at(
                    node, OperatorError, f"the kernel and the reference differ{_where(found, value)}"
                )

    def kinds(self, values: Feed) -> None:
        """Compare what changes, where one element of an input does, with what `kind` says."""
        for node in self.nodes:
            given = {x: values[x] for x in node.inputs if x in values}
            for x, array in given.items():
                if (
                    node.op.kind not in ("elementwise", "rows", "reduction")
                    or not array.size
                    or node not in values
                ):
                    continue
                if str(array.dtype) not in FLOATS or values[node].size < 2:
                    continue
                element = np.zeros(array.shape, bool)
                element.flat[self.rng.integers(array.size)] = True
                may = _reached(node, element, values[node].shape)
                if may is None:
                    continue
                moved = np.where(element, array * 1.25 + 0.125, array).astype(array.dtype)
                (found,) = Executor([node], "numpy", passes=()).run(
                    {**given, x: moved}, convert_to_numpy_ret_vals=True
                )
                changed = ~((found == values[node]) | ((found != found) & (values[node] != values[node])))
                if (changed & ~may).any():
                    told = f"its kind is {node.op.kind!r}, but one element of {x.name} changes others than its own"
                    raise error_at(node, OperatorError, told)

    def reads(self) -> None:
        """Compare what is computed of arrays that lie between different numbers."""
        executor = Executor(self.nodes)
        found = [
            executor.run({x: _between(a, low) for x, a in self.feed.items()}, convert_to_numpy_ret_vals=True)
            for low in (True, False)
        ]
        for node, first, second in zip(self.nodes, *found, strict=True):
            if first is not None and first.tobytes() != second.tobytes():
                raise error_at(node, OperatorError, "its formula reads beyond its inputs")

    def derivatives(self) -> None:
        """Compare gradients, and their gradients, with central differences."""
        try:
            wide = [x.astype("float64") if str(x.dtype) in FLOATS else x for x in self.arrays]
            outputs, feed = self._built(wide)
            Executor(outputs, "numpy").run(feed)
        except DTypeError:
            outputs, feed = self._built(self.arrays)
        variables = [x for x, array in feed.items() if str(array.dtype) in FLOATS]
        values = Executor(outputs, "numpy").run(feed, convert_to_numpy_ret_vals=True)
        for output, value in zip(outputs, values, strict=True):
            if not variables or value is None or str(value.dtype) not in FLOATS:
                continue
            weights = variable("weights", value.shape, str(value.dtype))
            inner: dict[Any, Any] = {**feed, weights: self.rng.standard_normal(value.shape).astype(value.dtype)}
            loss = mul_op(output, weights)
            self._differences(output, "gradient", loss, variables, inner)
            for x, first in zip(variables, gradients(loss, variables), strict=True):
                cotangent = variable("cotangent", feed[x].shape, str(feed[x].dtype))
                drawn = self.rng.standard_normal(feed[x].shape).astype(feed[x].dtype)
                label = f"gradient of {x.name}'s gradient"
                self._differences(
                    output, label, mul_op(first, cotangent), variables, {**inner, cotangent: drawn}
                )

    def _differences(self, node: Node, label: str, loss: Node, variables: list[Node], feed: Feed) -> None:
        """Compare the gradients of the sum of `loss` with its central differences along random directions."""
        grads = Executor(gradients(loss, variables), "numpy").run(feed, convert_to_numpy_ret_vals=True)
        executor = Executor([loss], "numpy")
        for x, grad in zip(variables, grads, strict=True):
            if grad.shape != feed[x].shape:
                told = f"the {label} for {x.name} has shape {grad.shape}, {x.name} has {feed[x].shape}"
                raise error_at(node, OperatorError, told)
            dtype = str(grad.dtype)
            direction = self.rng.standard_normal(grad.shape)
            ends = []
            for sign in (1.0, -1.0):
                moved = (feed[x] + sign * STEP[dtype] * direction).astype(dtype)
                (value,) = executor.run({**feed, x: moved}, convert_to_numpy_ret_vals=True)
                ends.append(float(value.sum(dtype="float64")))
            wanted = (ends[0] - ends[1]) / (2 * STEP[dtype])
            along = float((grad * direction).sum())
            size = 1.0 + float(np.abs(grad * direction).sum())
            if not abs(along - wanted) <= NEAR[dtype] * size:
                told = f"the {label} for {x.name} is {along:.6g} along a direction, the difference is {wanted:.6g}"
                raise error_at(node, OperatorError, told)


def _type(array: np.ndarray) -> str:
    return f"{array.dtype}{list(array.shape)}"


def _close(found: np.ndarray, wanted: np.ndarray) -> bool:
    """Whether a kernel's result is the reference's, to rounding; of integers and booleans, the same."""
    if str(wanted.dtype) not in FLOATS:
        return np.array_equal(found, wanted)
    finite = wanted[np.isfinite(wanted)]
    near = CLOSE[str(wanted.dtype)]
    return np.allclose(found, wanted, near, near * float(np.abs(finite).max(initial=0.0)), equal_nan=True)


def _where(found: np.ndarray, wanted: np.ndarray) -> str:
    """` at (0, 2): 1.5 and 1.0`, where they differ most."""
    with np.errstate(all="ignore"):
        apart = np.abs(np.subtract(found, wanted, dtype="float64"))
    at = np.unravel_index(int(np.argmax(np.where(np.isnan(apart), np.inf, apart))), apart.shape)
    return f" at {tuple(map(int, at))}: {found[at]} and {wanted[at]}"


def _reached(node: Node, element: np.ndarray, shape: tuple[int, ...]) -> np.ndarray | None:
    """The elements of a result of `shape` that may change with an element of an input, by the node's kind; None where
    it does not say."""
    if node.op.kind == "elementwise":
        return np.broadcast_to(element, shape) if element.ndim <= len(shape) else None
    axes = node.attrs.get("axes", -1)
    if axes is None:
        return None
    axes = axes if isinstance(axes, (tuple, list)) else (axes,)
    if any(not -element.ndim <= axis < element.ndim for axis in axes):
        return None
    row = element.any(axis=tuple(axes), keepdims=True)
    if shape == element.shape:
        return np.broadcast_to(row, shape)
    return row.reshape(shape) if row.size == math.prod(shape) else None


def _between(array: np.ndarray, low: bool) -> np.ndarray:
    """A copy of the array that lies between NaN, or else between large numbers; integers between the limits of their
    dtype."""
    if str(array.dtype) in FLOATS:
        guard: Any = np.nan if low else 1e30 if array.dtype.itemsize > 2 else 1e4
    elif array.dtype == bool:
        guard = low
    else:
        guard = np.iinfo(array.dtype).min if low else np.iinfo(array.dtype).max
    memory = np.full(array.size + 2 * GUARD, guard, array.dtype)
    memory[GUARD : GUARD + array.size] = array.ravel()
    return memory[GUARD : GUARD + array.size].reshape(array.shape)
