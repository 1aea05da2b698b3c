"""Layers of matrix products, embeddings, activations, dropout and losses, and what only moves values."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from .. import autodiff as ad
from ..checks import extents, flag, integer, number, real, word
from ..errors import GraphError, ShapeError
from ..graph import Node, Shape
from . import functional as F
from . import init
from .checks import known_shape, shape_of
from .module import Module


class Linear(Module):
    """y = x W^T + b: (..., in_features) -> (..., out_features). Parameters: weight (out_features, in_features), bias
    (out_features,), uniform in +-1 / sqrt(in_features) as in PyTorch."""

    def __init__(self, in_features: int, out_features: int, bias: bool = True) -> None:
        """Raises GraphError for what are no positive integers."""
        self.in_features: int = integer("Linear", "in_features", in_features, 1)
        self.out_features: int = integer("Linear", "out_features", out_features, 1)
        self.weight: ad.Parameter = init.made((out_features, in_features), "weight")
        self.bias: ad.Parameter | None = init.made((out_features,), "bias") if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set the initial values anew."""
        init.kaiming_uniform_(self.weight, math.sqrt(5))
        if self.bias is not None:
            bound = 1 / math.sqrt(self.in_features)
            init.uniform_(self.bias, -bound, bound)

    def forward(self, x: Node) -> Node:
        shape = known_shape(x)
        self.require(shape is None or shape[-1:] == (self.in_features,), x)
        return F.linear(x, self.weight, self.bias)


class Identity(Module):
    """y = x. Takes any arguments and passes them over."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def forward(self, x: Node) -> Node:
        return x


class Flatten(Module):
    """The axes from `start_dim` to `end_dim` as one; by default all but the batch."""

    def __init__(self, start_dim: int = 1, end_dim: int = -1) -> None:
        self.start_dim = start_dim
        self.end_dim = end_dim

    def forward(self, x: Node) -> Node:
        return ad.flatten_op(x, self.start_dim, self.end_dim)


class Unflatten(Module):
    """The axis `dim` as several, of the extents `unflattened_size`, of which one may be -1; x's shape is known."""

    def __init__(self, dim: int, unflattened_size: Sequence[int]) -> None:
        """Raises GraphError."""
        self.dim: int = integer("Unflatten", "dim", dim)
        self.unflattened_size: tuple[int, ...] = extents(unflattened_size, "Unflatten", GraphError, signed=True)

    def forward(self, x: Node) -> Node:
        shape = shape_of("Unflatten", x)
        self.require(-len(shape) <= self.dim < len(shape), x)
        at, given = self.dim % len(shape), self.unflattened_size
        self.require(-1 in given or math.prod(given) == shape[at], x)
        return ad.reshape_op(x, (*shape[:at], *given, *shape[at + 1 :]))


class Embedding(Module):
    """The rows of `weight` with the numbers `indices`, integers: (...) -> (..., embedding_dim). DTypeError for floats;
    IndexRangeError for a number that is no row's, if its value is known. Parameters: weight (num_embeddings,
    embedding_dim), drawn from the standard normal distribution. The row `padding_idx` is 0 at first and has no
    gradient."""

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
    ) -> None:
        """Negative numbers of padding_idx count from the end. Raises GraphError where it is no row's."""
        self.num_embeddings: int = integer("Embedding", "num_embeddings", num_embeddings, 1)
        self.embedding_dim: int = integer("Embedding", "embedding_dim", embedding_dim, 1)
        self.padding_idx: int | None = None
        self.weight: ad.Parameter = init.made((num_embeddings, embedding_dim), "weight")
        if padding_idx is not None:
            row = integer("Embedding", "padding_idx", padding_idx)
            if not -num_embeddings <= row < num_embeddings:
                raise GraphError(f"Embedding: padding_idx {row} is no row of {num_embeddings}")
            self.padding_idx = row % self.num_embeddings
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set the initial values anew."""
        init.normal_(self.weight)
        if self.padding_idx is not None:
            value: np.ndarray = np.array(self.weight)
            value[self.padding_idx] = 0
            self.weight.value = value

    def forward(self, indices: Node) -> Node:
        return F.embedding(indices, self.weight, self.padding_idx)


class Dropout(Module):
    """In training, x with elements set to 0 with probability p, the others divided by 1 - p; else x.

    Each call has a stream of `dlsys.random.default_generator`, and each run of a graph draws anew; forward and
    backward of one run have one mask.
    """

    def __init__(self, p: float = 0.5, inplace: bool = False) -> None:
        """Raises GraphError for a p outside [0, 1]."""
        self.p: float = number("Dropout", "p", p, most=1)

    def forward(self, x: Node) -> Node:
        return F.dropout(x, self.p, self.training)


class _Function(Module):
    """A function of one tensor, index by index. `inplace` changes nothing: the memory plan decides what is written
    where."""

    function: ClassVar[Callable[[Any], Node]]

    def __init__(self, inplace: bool = False) -> None:
        pass

    def forward(self, x: Node) -> Node:
        return type(self).function(x)


class ReLU(_Function):
    """max(x, 0)."""

    function: ClassVar[Callable[[Any], Node]] = F.relu


class ReLU6(_Function):
    """x within [0, 6]."""

    function: ClassVar[Callable[[Any], Node]] = F.relu6


class Tanh(_Function):
    """tanh(x)."""

    function: ClassVar[Callable[[Any], Node]] = F.tanh


class Sigmoid(_Function):
    """1 / (1 + exp(-x))."""

    function: ClassVar[Callable[[Any], Node]] = F.sigmoid


class SiLU(_Function):
    """x sigmoid(x)."""

    function: ClassVar[Callable[[Any], Node]] = F.silu


class Hardswish(_Function):
    """x relu6(x + 3) / 6."""

    function: ClassVar[Callable[[Any], Node]] = F.hardswish


class Hardsigmoid(_Function):
    """relu6(x + 3) / 6."""

    function: ClassVar[Callable[[Any], Node]] = F.hardsigmoid


class Mish(_Function):
    """x tanh(softplus(x))."""

    function: ClassVar[Callable[[Any], Node]] = F.mish


class PReLU(Module):
    """x where x > 0, else weight x. Parameters: weight (num_parameters,): one slope for all, or one for each channel of
    (N, C, *space)."""

    def __init__(self, num_parameters: int = 1, init: float = 0.25) -> None:
        """Raises GraphError for other numbers."""
        self.num_parameters: int = integer("PReLU", "num_parameters", num_parameters, 1)
        self.init: float = real("PReLU", "init", init)
        slopes = np.full(self.num_parameters, self.init, np.float32)
        self.weight: ad.Parameter = ad.Parameter(slopes, "weight")

    def forward(self, x: Node) -> Node:
        return F.prelu(x, self.weight)


class LeakyReLU(Module):
    """x where x > 0, else negative_slope x."""

    def __init__(self, negative_slope: float = 0.01, inplace: bool = False) -> None:
        """Raises GraphError for a slope that is no number."""
        self.negative_slope: float = real("LeakyReLU", "negative_slope", negative_slope)

    def forward(self, x: Node) -> Node:
        return F.leaky_relu(x, self.negative_slope)


class ELU(Module):
    """x where x > 0, else alpha (exp(x) - 1)."""

    def __init__(self, alpha: float = 1.0, inplace: bool = False) -> None:
        """Raises GraphError for an alpha that is no number."""
        self.alpha: float = real("ELU", "alpha", alpha)

    def forward(self, x: Node) -> Node:
        return F.elu(x, self.alpha)


class Softplus(Module):
    """log(1 + exp(beta x)) / beta, and x where beta x > threshold."""

    def __init__(self, beta: float = 1.0, threshold: float = 20.0) -> None:
        """Raises GraphError for what are no numbers."""
        self.beta: float = real("Softplus", "beta", beta)
        self.threshold: float = real("Softplus", "threshold", threshold)

    def forward(self, x: Node) -> Node:
        return F.softplus(x, self.beta, self.threshold)


class Softmax(Module):
    """exp(x) / sum(exp(x)) along `dim`."""

    function: ClassVar[Callable[[Any, int], Node]] = F.softmax

    def __init__(self, dim: int = -1) -> None:
        self.dim = dim

    def forward(self, x: Node) -> Node:
        return type(self).function(x, self.dim)


class LogSoftmax(Softmax):
    """The logarithm of softmax along `dim`."""

    function: ClassVar[Callable[[Any, int], Node]] = F.log_softmax


class GELU(Module):
    """x times the normal distribution's function; approximate="tanh" takes a formula with tanh for it."""

    def __init__(self, approximate: str = "none") -> None:
        """Raises GraphError for another formula."""
        self.approximate: str = word("GELU", "approximate", approximate, ("none", "tanh"))

    def forward(self, x: Node) -> Node:
        return F.gelu(x, self.approximate)


class _Loss(Module):
    """Base of the losses: a function, its settings, which are attributes, and the check of two shapes."""

    words: ClassVar[tuple[str, ...]] = ("mean", "sum", "none")
    _function: ClassVar[Callable[..., Node]]
    _settings: ClassVar[tuple[str, ...]] = ("reduction",)

    def __init__(self, reduction: str = "mean") -> None:
        """Raises GraphError for another reduction."""
        self.reduction: str = word(type(self).__name__, "reduction", reduction, self.words)

    def forward(self, input: Node, target: Node) -> Node:
        shape, other = known_shape(input), known_shape(target)
        self.require_beside(shape is None or other is None or self._fits(shape, other), input, target)
        return type(self)._function(input, target, **{name: getattr(self, name) for name in self._settings})

    def _fits(self, shape: Shape, target: Shape) -> bool:
        """Whether an input takes a target of this shape."""
        return target == shape

    def require_beside(self, fits: bool, x: Node, y: Node) -> None:
        """Raise a ShapeError that names both shapes where they do not fit."""
        try:
            self.require(fits, x)
        except ShapeError as error:
            raise ShapeError(f"{error}, beside {known_shape(y)} [{y.name}]") from None


class NLLLoss(_Loss):
    """-x at each target's class, of logarithms (N, C), (N, C, d1, ...), (C,); targets are class numbers (N, d1, ...).
    Numbers equal to `ignore_index` count nothing, the mean is over the others, each times its class's `weight` (C,)."""

    weight: Any
    _function = F.nll_loss
    _settings: ClassVar[tuple[str, ...]] = ("reduction", "weight", "ignore_index")

    def __init__(self, weight: Any = None, *, ignore_index: int = -100, reduction: str = "mean") -> None:
        """Raises GraphError."""
        super().__init__(reduction)
        self.register_buffer("weight", weight)
        if type(ignore_index) is not int:
            raise GraphError(f"{type(self).__name__}: ignore_index must be an integer, not {ignore_index!r}")
        self.ignore_index = ignore_index

    def _fits(self, shape: Shape, target: Shape) -> bool:
        each = (*shape[:1], *shape[2:]) if len(shape) > 1 else ()
        return len(shape) > 0 and target in (each, shape)


class CrossEntropyLoss(NLLLoss):
    """The cross-entropy of logits (N, C), (N, C, d1, ...), (C,) with targets: class numbers (N, d1, ...) of an integer
    dtype, or probabilities of the logits' shape. Numbers equal to `ignore_index` count nothing, the mean is over the
    others, each times its class's `weight` (C,)."""

    _function = F.cross_entropy
    _settings = (*NLLLoss._settings, "label_smoothing")

    def __init__(
        self,
        weight: Any = None,
        *,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> None:
        """Raises GraphError."""
        super().__init__(weight, ignore_index=ignore_index, reduction=reduction)
        self.label_smoothing: float = number("CrossEntropyLoss", "label_smoothing", label_smoothing, most=1)


class MSELoss(_Loss):
    """(x - y)^2."""

    _function = F.mse_loss


class L1Loss(_Loss):
    """|x - y|."""

    _function = F.l1_loss


class SmoothL1Loss(_Loss):
    """(x - y)^2 / (2 beta) where |x - y| < beta, else |x - y| - beta / 2."""

    _function = F.smooth_l1_loss
    _settings = ("reduction", "beta")

    def __init__(self, reduction: str = "mean", beta: float = 1.0) -> None:
        """Raises GraphError for a negative beta."""
        super().__init__(reduction)
        self.beta: float = number("SmoothL1Loss", "beta", beta)


class KLDivLoss(_Loss):
    """y (log y - x) of logarithms x and probabilities y, or their logarithms where `log_target`; "batchmean" is the sum
    over the number of examples."""

    words: ClassVar[tuple[*tuple[str, ...], str]] = (*_Loss.words, "batchmean")
    _function = F.kl_div
    _settings = ("reduction", "log_target")

    def __init__(self, reduction: str = "mean", *, log_target: bool = False) -> None:
        """Raises GraphError."""
        super().__init__(reduction)
        self.log_target: bool = flag("KLDivLoss", "log_target", log_target)


class BCELoss(_Loss):
    """-y log x - (1 - y) log(1 - x) of probabilities x, with logarithms of -100 at least, times `weight`."""

    weight: Any
    _function = F.binary_cross_entropy
    _settings = ("reduction", "weight")

    def __init__(self, weight: Any = None, *, reduction: str = "mean") -> None:
        """Raises GraphError."""
        super().__init__(reduction)
        self.register_buffer("weight", weight)


class BCEWithLogitsLoss(_Loss):
    """-y log s - (1 - y) log(1 - s) with s = sigmoid(x), times `weight`; the first term times `pos_weight` too."""

    weight: Any
    pos_weight: Any
    _function = F.binary_cross_entropy_with_logits
    _settings = ("reduction", "weight", "pos_weight")

    def __init__(self, weight: Any = None, *, reduction: str = "mean", pos_weight: Any = None) -> None:
        """Raises GraphError."""
        super().__init__(reduction)
        self.register_buffer("weight", weight)
        self.register_buffer("pos_weight", pos_weight)
