"""Cross-entropy of logits with class numbers or probabilities.

logits are (N, C) or (N, C, d1, ...); targets class numbers (N, d1, ...) of an integer dtype, or probabilities of the
logits' shape and dtype. Which they are is known from their rank when shapes are.
"""

from __future__ import annotations

import math
import operator

import numpy as np

from .. import compute
from ..compute import Tensor
from ..errors import DTypeError, GraphError
from ..graph import FLOATS, INTEGERS, Node, Op, Shape, error_at, register, shape_error
from .activation import log_softmax_op, softmax_op
from .arithmetic import div_op, mul_byconst_op, mul_op, sub_op
from .inputs import oneslike_op
from .loss import require_reduction
from .reduction import broadcast_axes_op, reducesum_op
from .rules import real_constant


def _along_classes(value: Node, like: Node) -> Node:
    """A value of each target repeated over the classes of like."""
    return broadcast_axes_op(value, like, 1)


def _sum_classes(value: Node, keepdims: bool = False) -> Node:
    return reducesum_op(value, 1, keepdims)


def _shifted_exponential(logits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    shifted = logits - logits.max(axis=1, keepdims=True, initial=-np.inf)
    return shifted, np.exp(shifted)


class _CrossEntropy(Op):
    """An operator of logits and targets, which `_positions` says where to find."""

    _positions = (0, 1)

    def _attributes(self, node: Node) -> tuple[int, float]:
        return node.attrs["ignore_index"], node.attrs["label_smoothing"]

    def _of_targets(self, node: Node, input_shapes: list[Shape]) -> Shape:
        """The shape with one element for each target. Raises ShapeError."""
        logits, targets = (input_shapes[i] for i in self._positions)
        if len(logits) < 2:
            raise shape_error(node, f"logits must be (N, C) or (N, C, d1, ...), not {logits}")
        each = (logits[0], *logits[2:])
        if targets not in (each, logits):
            raise shape_error(
                node, f"targets {targets} are neither class numbers {each} nor probabilities {logits}"
            )
        return each

    def infer_dtype(self, node: Node, input_dtypes: list[str]) -> str:
        """The logits', which other inputs share, but for targets that are integers. Raises DTypeError."""
        target = self._positions[1]
        if str(input_dtypes[target]) not in INTEGERS:
            return super().infer_dtype(node, input_dtypes)
        dtypes = [d for i, d in enumerate(input_dtypes) if i != target]
        for position, dtype in enumerate(dtypes):
            if dtype not in FLOATS or dtype != dtypes[0]:
                raise error_at(
                    node, DTypeError, f"input {position} is {dtype}, beside targets of {dtypes[0]} logits"
                )
        return str(dtypes[0])

    def _weights(self, node: Node, logits: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The weight of each class, and the targets that are ignored; NaN for numbers that are no class."""
        self._require_kind(node, logits.ndim, targets.ndim, str(targets.dtype))
        (ignore_index, smoothing), classes, kind = self._attributes(node), logits.shape[1], logits.dtype.type
        if targets.ndim == logits.ndim:
            chosen, ignored = targets, np.zeros((len(logits), *logits.shape[2:]), bool)
        else:
            numbers, ignored = np.expand_dims(targets, 1), targets == ignore_index
            index = np.arange(classes).reshape(-1, *(1,) * (logits.ndim - 2))
            chosen = np.where((numbers >= 0) & (numbers < classes), numbers == index, kind(np.nan))
        if smoothing:
            chosen = chosen * kind(1 - smoothing) + kind(smoothing / max(classes, 1))
        return np.asarray(chosen, logits.dtype), ignored

    def _require_kind(self, node: Node, rank: int, target_rank: int, dtype: str) -> None:
        if (target_rank < rank) != (dtype in INTEGERS):
            what = "class numbers, which must be integers" if target_rank < rank else "probabilities"
            raise error_at(node, DTypeError, f"targets of {target_rank} axes are {what}, not {dtype}")

    def _require_tensors(self, node: Node, inputs: list[Tensor]) -> None:
        logits, targets = (inputs[i] for i in self._positions)
        self._require_kind(node, len(logits.shape), len(targets.shape), str(targets.dtype))


@register
class CrossEntropy(_CrossEntropy):
    """Of each target -sum_j w_j log_softmax(logits)_j, w = (1 - smoothing) y + smoothing / C of its probabilities y,
    which are one-hot for a class number; 0 for a number that is ignored, NaN for one that is no class.

    dlogits = cross_entropy_gradient; dy = -(1 - smoothing) log_softmax(logits) g.
    """

    name = "cross_entropy"
    row_wise = True

    def infer_shape(self, node: Node, input_shapes: list[Shape]) -> Shape:
        return self._of_targets(node, input_shapes)

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        logits, targets = node.inputs
        by_logits = CrossEntropyGradient.make([logits, targets, output_grad], node.attrs)
        spread = _along_classes(output_grad, logits)
        by_targets = mul_op(
            mul_byconst_op(log_softmax_op(logits, 1), node.attrs["label_smoothing"] - 1.0), spread
        )
        return [by_logits, by_targets]

    def te(self, node: Node, inputs: list[Tensor], shape: Shape, dtype: str) -> Tensor:
        self._require_tensors(node, inputs)
        logits, targets = inputs
        return compute.cross_entropy(logits, targets, *self._attributes(node))

    def numpy(self, node: Node, inputs: list[np.ndarray]) -> np.ndarray:
        logits, targets = inputs
        weights, ignored = self._weights(node, logits, targets)
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            shifted, exponential = _shifted_exponential(logits)
            log_softmax = shifted - np.log(exponential.sum(axis=1, keepdims=True))
            terms = weights * log_softmax
            if targets.ndim < logits.ndim and not node.attrs["label_smoothing"]:
                terms[weights == 0] = 0
            losses = -terms.sum(axis=1)
        if not logits.shape[1] and targets.ndim < logits.ndim:
            losses[...] = np.nan
        return np.asarray(np.where(ignored, losses.dtype.type(0), losses))


@register
class CrossEntropyGradient(_CrossEntropy):
    """(softmax(logits) sum(w) - w) g for the w of `CrossEntropy`, of the logits' shape.

    With s = softmax(logits) and v the gradient of the result: dlogits = s (v - sum(s v)) sum(w) g,
    dg = sum(v (s sum(w) - w)), dy = (1 - smoothing) (sum(s v) - v) g.
    """

    name = "cross_entropy_gradient"
    row_wise = True

    def infer_shape(self, node: Node, input_shapes: list[Shape]) -> Shape:
        each = self._of_targets(node, input_shapes)
        if input_shapes[2] != each:
            raise shape_error(node, f"targets {each} have no gradient of shape {input_shapes[2]}")
        return input_shapes[0]

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        (logits, targets, g), v = node.inputs, output_grad
        share = softmax_op(logits, 1)
        mean = _sum_classes(mul_op(share, v), keepdims=True)
        amount = mul_op(CrossEntropyTotal.make([targets, logits], node.attrs), g)
        by_logits = mul_op(mul_op(share, sub_op(v, mean)), _along_classes(amount, logits))
        by_targets = mul_op(sub_op(mean, v), _along_classes(g, logits))
        once = CrossEntropyGradient.make([logits, targets, oneslike_op(g)], node.attrs)
        return [
            by_logits,
            mul_byconst_op(by_targets, 1.0 - node.attrs["label_smoothing"]),
            _sum_classes(mul_op(v, once)),
        ]

    def te(self, node: Node, inputs: list[Tensor], shape: Shape, dtype: str) -> Tensor:
        self._require_tensors(node, inputs)
        logits, targets, grad = inputs
        return compute.cross_entropy_gradient(logits, targets, grad, *self._attributes(node))

    def numpy(self, node: Node, inputs: list[np.ndarray]) -> np.ndarray:
        logits, targets, g = inputs
        weights, ignored = self._weights(node, logits, targets)
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            _, exponential = _shifted_exponential(logits)
            share = exponential / exponential.sum(axis=1, keepdims=True)
            amount = 1 if targets.ndim < logits.ndim else weights.sum(axis=1, keepdims=True)
            grad = (share * amount - weights) * np.expand_dims(g, 1)
        return np.asarray(np.where(np.expand_dims(ignored, 1), grad.dtype.type(0), grad))


@register
class CrossEntropyTotal(_CrossEntropy):
    """Of each target sum(w) for the w of `CrossEntropy`: of a class number 1, 0 if it is ignored; dy = 1 - smoothing.

    Of logits only the shape is read.
    """

    name = "cross_entropy_total"
    shape_only = (1,)
    _positions = (1, 0)

    def infer_shape(self, node: Node, input_shapes: list[Shape]) -> Shape:
        return self._of_targets(node, input_shapes)

    def infer_dtype(self, node: Node, input_dtypes: list[str]) -> str:
        return str(input_dtypes[1])

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        spread = _along_classes(output_grad, node.inputs[1])
        return [mul_byconst_op(spread, 1.0 - node.attrs["label_smoothing"]), None]

    def te(self, node: Node, inputs: list[Tensor], shape: Shape, dtype: str) -> Tensor:
        self._require_tensors(node, inputs)
        targets, logits = inputs
        return compute.cross_entropy_total(targets, logits, *self._attributes(node))

    def numpy(self, node: Node, inputs: list[np.ndarray]) -> np.ndarray:
        targets, logits = inputs
        if targets.ndim < logits.ndim:
            return np.asarray(targets != node.attrs["ignore_index"], logits.dtype)
        weights, _ = self._weights(node, logits, targets)
        return np.asarray(weights.sum(axis=1))


@register
class CrossEntropyCount(_CrossEntropy):
    """Shape (): how many targets there are, ignored class numbers left out. Logits are read for their shape."""

    name = "cross_entropy_count"
    shape_only = (1,)
    _positions = (1, 0)

    def infer_shape(self, node: Node, input_shapes: list[Shape]) -> Shape:
        self._of_targets(node, input_shapes)
        return ()

    def infer_dtype(self, node: Node, input_dtypes: list[str]) -> str:
        return str(input_dtypes[1])

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        return [None, None]

    def te(self, node: Node, inputs: list[Tensor], shape: Shape, dtype: str) -> Tensor:
        self._require_tensors(node, inputs)
        targets, logits = inputs
        return compute.cross_entropy_count(targets, logits, node.attrs["ignore_index"])

    def numpy(self, node: Node, inputs: list[np.ndarray]) -> np.ndarray:
        targets, logits = inputs
        if targets.ndim < logits.ndim:
            return np.asarray(np.count_nonzero(targets != node.attrs["ignore_index"]), logits.dtype)
        return np.asarray(math.prod((len(logits), *logits.shape[2:])), logits.dtype)


def cross_entropy_op(
    logits: Node,
    targets: Node,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
) -> Node:
    """The cross-entropy of logits (N, C) or (N, C, d1, ...) with targets: class numbers (N, d1, ...) of an integer
    dtype, or probabilities of the logits' shape and dtype.

    Targets equal to `ignore_index` count nothing; any other number that is no class makes the loss NaN. `reduction`
    "none" leaves (N, d1, ...), "sum" adds up, "mean" divides that by the targets that are not ignored, giving shape ();
    NaN if there are none. Raises GraphError for other arguments.
    """
    try:
        ignored = operator.index(ignore_index)
    except TypeError:
        raise GraphError(f"cross_entropy: ignore_index must be an integer, not {ignore_index!r}") from None
    smoothing = real_constant("cross_entropy", label_smoothing)
    if not 0 <= smoothing <= 1:
        raise GraphError(f"cross_entropy: label_smoothing must lie in [0, 1], not {label_smoothing!r}")
    require_reduction("cross_entropy", reduction)
    attrs = {"ignore_index": ignored, "label_smoothing": smoothing}
    losses = CrossEntropy.make([logits, targets], attrs)
    if reduction == "none":
        return losses
    total = reducesum_op(losses)
    return total if reduction == "sum" else div_op(total, CrossEntropyCount.make([targets, logits], attrs))
