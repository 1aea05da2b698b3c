"""needle's modules: weights are (in, out), filters (K, K, in, out), initial values are drawn by `np.random`.

Parameters are found in a module's attributes, and in lists, tuples and dictionaries among them. What has parameters
takes `device` (the CPU) and `dtype` ("float32").
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .. import ops as of
from ..errors import DTypeError, GraphError, ShapeError
from ..graph import FLOATS, Node
from ..nn.functional import causal_mask
from ..tensors import is_leaf
from ..tensors.evaluate import changing
from ..tensors.inplace import advancing, with_updates_op
from . import init, ops
from .autograd import Tensor


class Parameter(Tensor):
    """A tensor that optimizers change."""

    __slots__ = ()


def _below(top: Module) -> list[Any]:
    """The module, and all Parameters and Modules in its attributes, in lists, tuples and dictionaries among them, and
    in modules below; each once."""
    found: list[Any] = []
    seen: set[int] = set()
    stack: list[Any] = [top]
    while stack:
        value = stack.pop()
        if not isinstance(value, (Parameter, Module, dict, list, tuple)) or id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, (Parameter, Module)):
            found.append(value)
        if not isinstance(value, Parameter):
            held = value.__dict__ if isinstance(value, Module) else value
            stack += reversed(list(held.values() if isinstance(held, dict) else held))
    return found


class Module:
    """A part of a network: a subclass defines `forward`. Attributes: `training`, see `train`."""

    training = True

    def parameters(self) -> list[Parameter]:
        """All Parameters, those of modules below too, each once."""
        return [part for part in _below(self) if isinstance(part, Parameter)]

    def _children(self) -> list[Module]:
        """All modules below, each once."""
        return [part for part in _below(self)[1:] if isinstance(part, Module)]

    def train(self) -> Module:
        """Set `training` here and below."""
        return self._set_training(True)

    def eval(self) -> Module:
        """Unset `training` here and below."""
        return self._set_training(False)

    def _set_training(self, training: bool) -> Module:
        for module in (self, *self._children()):
            module.training = training
        return self

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Computes the module's result; a subclass defines it."""
        raise NotImplementedError(f"{type(self).__name__} does not define forward")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.forward(*args, **kwargs)


def _numbers(owner: str, x: Any) -> Any:
    """Numbers of classes or rows, floats too, as integers. Raises DTypeError for data that are not whole."""
    if x.dtype in FLOATS and is_leaf(x) and (np.asarray(x) % 1 != 0).any():
        raise DTypeError(f"{owner}: {x.name} has numbers that are not whole")
    return of.cast_op(x, "int64")


def _activation(function: Callable[[Any], Any], name: str) -> type[Module]:
    return type(name, (Module,), {"forward": lambda self, x: function(x), "__doc__": function.__doc__})


Identity: type[Module] = _activation(lambda x: x, "Identity")
ReLU: type[Module] = _activation(ops.relu, "ReLU")
Tanh: type[Module] = _activation(ops.tanh, "Tanh")
Sigmoid: type[Module] = _activation(ops.sigmoid, "Sigmoid")
Flatten: type[Module] = _activation(lambda x: x.reshape((x.shape[0], math.prod(x.shape[1:]))), "Flatten")


class Linear(Module):
    """x weight + bias: weight (in_features, out_features), bias (1, out_features)."""

    def __init__(self, in_features: int, out_features: int, bias: bool = True, **where: Any) -> None:
        self.in_features = in_features
        self.out_features = out_features
        self.weight: Parameter = Parameter(init.kaiming_uniform(in_features, out_features, **where))
        made = Parameter(init.kaiming_uniform(out_features, 1, shape=(1, out_features), **where)) if bias else None
        self.bias: Parameter | None = made

    def forward(self, x: Any) -> Any:
        product = x @ self.weight
        return product if self.bias is None else product + self.bias


class Sequential(Module):
    """One module after another."""

    def __init__(self, *modules: Module) -> None:
        self.modules = modules

    def forward(self, x: Any) -> Any:
        for module in self.modules:
            x = module(x)
        return x


class Residual(Module):
    """fn(x) + x."""

    def __init__(self, fn: Module) -> None:
        self.fn = fn

    def forward(self, x: Any) -> Any:
        return self.fn(x) + x


class Dropout(Module):
    """In training each number is 0 with probability p, and divided by 1 - p else."""

    def __init__(self, p: float = 0.5) -> None:
        self.p = p

    def forward(self, x: Any) -> Any:
        if not self.training or not self.p:
            return x
        return x * init.randb(*x.shape, p=1 - self.p, dtype=x.dtype) / (1 - self.p)


class SoftmaxLoss(Module):
    """The mean cross-entropy of logits (N, C) with class numbers (N,)."""

    def forward(self, logits: Any, y: Any) -> Any:
        rows, classes = logits.shape
        chosen = of.one_hot_op(_numbers("SoftmaxLoss", y), classes, logits.dtype)
        return (ops.summation(ops.logsumexp(logits, (1,))) - ops.summation(logits * chosen)) / rows


class BatchNorm1d(Module):
    """x (N, dim) normalized over N, times weight plus bias; in `eval` by running_mean and running_var, which move by
    `momentum` in training, both biased (Ioffe, Szegedy 2015)."""

    def __init__(self, dim: int, eps: float = 1e-5, momentum: float = 0.1, **where: Any) -> None:
        self.dim = dim
        self.eps = eps
        self.momentum = momentum
        self.weight: Parameter = Parameter(init.ones(dim, **where))
        self.bias: Parameter = Parameter(init.zeros(dim, **where))
        self.running_mean: Tensor = init.zeros(dim, **where)
        self.running_var: Tensor = init.ones(dim, **where)

    def forward(self, x: Any) -> Any:
        if not self.training:
            scale = self.weight / (self.running_var + self.eps) ** 0.5
            return (x - self.running_mean) * scale + self.bias
        y, mean, var = of.batch_norm_op(x, self.weight, self.bias, (0,), self.eps)
        with changing:
            return with_updates_op(y, [self._moved(self.running_mean, mean), self._moved(self.running_var, var)])

    def _moved(self, running: Tensor, own: Any) -> Any:
        """The running statistic's change towards the batch's own."""
        own = of.reshape_op(own, (self.dim,))
        return advancing(running, lambda before: before + (own - before) * self.momentum)


class BatchNorm2d(BatchNorm1d):
    """`BatchNorm1d` of images (N, dim, H, W), over N, H and W."""

    def forward(self, x: Any) -> Any:
        n, channels, height, width = x.shape
        rows = of.reshape_op(of.transpose_op(x, (0, 2, 3, 1)), (n * height * width, channels))
        return of.transpose_op(of.reshape_op(super().forward(rows), (n, height, width, channels)), (0, 3, 1, 2))


class LayerNorm1d(Module):
    """x (..., dim) normalized along the last axis, times weight plus bias (Ba et al. 2016)."""

    def __init__(self, dim: int, eps: float = 1e-5, **where: Any) -> None:
        self.dim = dim
        self.eps = eps
        self.weight: Parameter = Parameter(init.ones(dim, **where))
        self.bias: Parameter = Parameter(init.zeros(dim, **where))

    def forward(self, x: Any) -> Any:
        return of.layer_norm_op(x, self.weight, self.bias, (-1,), self.eps)


class Conv(Module):
    """Cross-correlation of images (N, in_channels, H, W) with filters (K, K, in_channels, out_channels) and bias
    (out_channels,), padded by (K - 1) // 2: (N, out_channels, H', W')."""

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: Any, stride: Any = 1, bias: bool = True, **where: Any
    ) -> None:
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.kernel_size: int = kernel_size[0] if isinstance(kernel_size, tuple) else kernel_size
        k = self.kernel_size
        self.stride: int = stride[0] if isinstance(stride, tuple) else stride
        fans, shape = (in_channels * k * k, out_channels * k * k), (k, k, in_channels, out_channels)
        self.weight: Parameter = Parameter(init.kaiming_uniform(*fans, shape=shape, **where))
        bound = 1 / math.sqrt(in_channels * k * k)
        made = Parameter(init.rand(out_channels, low=-bound, high=bound, **where)) if bias else None
        self.bias: Parameter | None = made

    def forward(self, x: Any) -> Any:
        filters = of.transpose_op(self.weight, (3, 2, 0, 1))
        y = of.conv2d_op(x, filters, self.stride, (self.kernel_size - 1) // 2)
        return y if self.bias is None else y + ops.reshape(self.bias, (self.out_channels, 1, 1))


class RNNCell(Module):
    """h' = nonlinearity(x W_ih + bias_ih + h W_hh + bias_hh): x (N, input_size), h (N, hidden_size), zeros for None."""

    gates = states = 1

    def __init__(
        self, input_size: int, hidden_size: int, bias: bool = True, nonlinearity: str = "tanh", **where: Any
    ) -> None:
        """Raises GraphError for a nonlinearity that is neither "tanh" nor "relu"."""
        if nonlinearity not in ("tanh", "relu"):
            raise GraphError(f"{type(self).__name__}: nonlinearity must be tanh or relu, not {nonlinearity!r}")
        self.hidden_size = hidden_size
        self.nonlinearity: Callable[[Any], Node] = ops.tanh if nonlinearity == "tanh" else ops.relu
        bound, wide = math.sqrt(1 / hidden_size), self.gates * hidden_size

        def drawn(*shape: int) -> Parameter:
            return Parameter(init.rand(*shape, low=-bound, high=bound, **where))

        self.W_ih: Parameter = drawn(input_size, wide)
        self.W_hh: Parameter = drawn(hidden_size, wide)
        self.bias_ih: Any = drawn(wide) if bias else None
        self.bias_hh: Any = drawn(wide) if bias else None

    def _sums(self, x: Any, h: Any) -> Any:
        total = x @ self.W_ih if h is None else x @ self.W_ih + h @ self.W_hh
        return total if self.bias_ih is None else total + self.bias_ih + self.bias_hh

    def step(self, x: Any, state: tuple[Any, ...]) -> tuple[Any, ...]:
        """The next state, a tuple as the one before."""
        return (self.nonlinearity(self._sums(x, state[0])),)

    def scanned(self, state: tuple[Any, ...], x: Any) -> tuple[Any, Any]:
        """The step as `scan_op` takes it: the next state, and the output."""
        new = self.step(x, state)
        return new, new[0]

    def forward(self, X: Any, h: Any = None) -> Any:
        return self.step(X, (h,))[0]


class LSTMCell(RNNCell):
    """(h, c) of x (N, input_size) and (h, c), zeros for None; gates in the order i, f, g, o."""

    gates = 4
    states = 2

    def __init__(self, input_size: int, hidden_size: int, bias: bool = True, **where: Any) -> None:
        super().__init__(input_size, hidden_size, bias, **where)

    def step(self, x: Any, state: tuple[Any, ...]) -> tuple[Any, ...]:
        before, c = state
        i, f, g, o = of.split_op(self._sums(x, before), 4, 1)
        new = ops.sigmoid(i) * ops.tanh(g)
        c = new if c is None else ops.sigmoid(f) * c + new
        return ops.sigmoid(o) * ops.tanh(c), c

    def forward(self, X: Any, h: Any = None) -> Any:
        return self.step(X, (None, None) if h is None else h)


def _through(cells: Sequence[Any], X: Any, given: Sequence[Any] | None) -> tuple[Any, list[Any]]:
    """The last layer's outputs at every time of X (length, N, input_size), stacked, and all layers' last states, each
    part stacked; `given` has the parts of the first."""
    last: list[Any] = []
    for i, cell in enumerate(cells):
        zero = of.full_op((X.shape[1], cell.hidden_size), 0.0, cell.W_hh.dtype)
        first = (zero,) * cell.states if given is None else tuple(ops.split(part, 0)[i] for part in given)
        state, X = of.scan_op(cell.scanned, first, X)
        last.append(state)
    return X, [ops.stack(part, 0) for part in zip(*last, strict=True)]


class RNN(Module):
    """`num_layers` layers of `RNNCell`: X (length, N, input_size) and h0 (num_layers, N, hidden_size), zeros for None,
    give the outputs (length, N, hidden_size) and the last states."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        nonlinearity: str = "tanh",
        **where: Any,
    ) -> None:
        sizes = [input_size, *[hidden_size] * (num_layers - 1)]
        self.rnn_cells: list[RNNCell] = [RNNCell(size, hidden_size, bias, nonlinearity, **where) for size in sizes]

    def forward(self, X: Any, h0: Any = None) -> Any:
        output, (last,) = _through(self.rnn_cells, X, None if h0 is None else (h0,))
        return output, last


class LSTM(Module):
    """`num_layers` layers of `LSTMCell`, see `RNN`; a state is (h, c)."""

    def __init__(self, input_size: int, hidden_size: int, num_layers: int = 1, bias: bool = True, **where: Any) -> None:
        sizes = [input_size, *[hidden_size] * (num_layers - 1)]
        self.lstm_cells: list[LSTMCell] = [LSTMCell(size, hidden_size, bias, **where) for size in sizes]

    def forward(self, X: Any, h: Any = None) -> Any:
        output, last = _through(self.lstm_cells, X, h)
        return output, tuple(last)


class Embedding(Module):
    """The rows of weight (num_embeddings, embedding_dim) whose numbers are in x: (..., embedding_dim)."""

    def __init__(self, num_embeddings: int, embedding_dim: int, **where: Any) -> None:
        self.weight: Parameter = Parameter(init.randn(num_embeddings, embedding_dim, **where))

    def forward(self, x: Any) -> Any:
        return of.embedding_op(self.weight, _numbers("Embedding", x))


class MultiHeadAttention(Module):
    """softmax(q k^T / sqrt(d)) v of heads that are there: q (N, heads, L, d), k and v (N, heads, S, d) give the result
    (N, heads, L, d) and the weights (N, heads, L, S), to which dropout was applied. causal: query i sees the keys up to
    i + S - L."""

    def __init__(self, *, dropout: float = 0.0, causal: bool = False, **where: Any) -> None:
        self.causal = causal
        self.dropout: Dropout = Dropout(dropout)

    def forward(self, q: Any, k: Any, v: Any) -> Any:
        if k.shape != v.shape or (*q.shape[:2], q.shape[3]) != (*k.shape[:2], k.shape[3]):
            raise ShapeError(f"MultiHeadAttention: q, k and v do not fit: {[q.shape, k.shape, v.shape]}")
        queries, keys, width = q.shape[2], k.shape[2], q.shape[3]
        scores = of.matmul_op(q, k, trans_B=True) / math.sqrt(width)
        if self.causal:
            scores = scores + causal_mask(queries, keys, q.dtype, keys - queries + 1, finite=True)
        weights = self.dropout(of.softmax_op(scores))
        return of.matmul_op(weights, v), weights


class AttentionLayer(Module):
    """Normalized queries, keys and values, projected to `num_head` heads of width `dim_head`, their attention, and its
    projection: q (N, L, q_features), k (N, S, k_features), v (N, S, v_features) give (N, L, out_features). k and v are
    q where they are not given. No projection has a bias."""

    def __init__(
        self,
        q_features: int,
        num_head: int,
        dim_head: int,
        *,
        k_features: int | None = None,
        v_features: int | None = None,
        out_features: int | None = None,
        dropout: float = 0.0,
        causal: bool = True,
        **where: Any,
    ) -> None:
        self.num_head = num_head
        self.dim_head = dim_head
        inner = num_head * dim_head
        sizes = q_features, k_features or q_features, v_features or q_features
        self.prenorm_q: LayerNorm1d = LayerNorm1d(sizes[0], **where)
        self.prenorm_k: LayerNorm1d = LayerNorm1d(sizes[1], **where)
        self.prenorm_v: LayerNorm1d = LayerNorm1d(sizes[2], **where)
        self.q_projection: Linear = Linear(sizes[0], inner, bias=False, **where)
        self.k_projection: Linear = Linear(sizes[1], inner, bias=False, **where)
        self.v_projection: Linear = Linear(sizes[2], inner, bias=False, **where)
        self.attn: MultiHeadAttention = MultiHeadAttention(dropout=dropout, causal=causal, **where)
        self.out_projection: Linear = Linear(inner, out_features or q_features, bias=False, **where)

    def forward(self, q: Any, k: Any = None, v: Any = None) -> Any:
        k, v = q if k is None else k, q if v is None else v
        projected = (
            self.q_projection(self.prenorm_q(q)),
            self.k_projection(self.prenorm_k(k)),
            self.v_projection(self.prenorm_v(v)),
        )
        parts = [ops.reshape(x, (*x.shape[:2], self.num_head, self.dim_head)) for x in projected]
        result, self.probs = self.attn(*(of.transpose_op(part, (0, 2, 1, 3)) for part in parts))
        joined = of.transpose_op(result, (0, 2, 1, 3))
        return self.out_projection(ops.reshape(joined, (*q.shape[:2], self.num_head * self.dim_head)))


class TransformerLayer(Module):
    """x + attention(x), then x + feed-forward(x), each behind dropout: (N, L, q_features) to the same. The latter is
    LayerNorm, Linear to `hidden_size`, ReLU, dropout, Linear back."""

    def __init__(
        self,
        q_features: int,
        num_head: int,
        dim_head: int,
        hidden_size: int,
        *,
        dropout: float = 0.0,
        causal: bool = True,
        **where: Any,
    ) -> None:
        settings = {"dropout": dropout, "causal": causal, **where}
        self.attention: AttentionLayer = AttentionLayer(q_features, num_head, dim_head, **settings)
        wide, back = (q_features, hidden_size), (hidden_size, q_features)
        norm, first = LayerNorm1d(q_features, **where), Linear(*wide, **where)
        self.feed_forward: Sequential = Sequential(norm, first, ReLU(), Dropout(dropout), Linear(*back, **where))
        self.dropout: Dropout = Dropout(dropout)

    def forward(self, x: Any) -> Any:
        x = x + self.dropout(self.attention(x))
        return x + self.dropout(self.feed_forward(x))


class Transformer(Module):
    """`num_layers` TransformerLayers of x plus an Embedding of positions: x (L, N, embedding_size), with `batch_first`
    (N, L, embedding_size), gives the same shape, and zeros in the place of a state. L is at most `sequence_len`."""

    def __init__(
        self,
        embedding_size: int,
        hidden_size: int,
        num_layers: int,
        *,
        num_head: int = 8,
        dim_head: int = 32,
        dropout: float = 0.0,
        causal: bool = True,
        batch_first: bool = False,
        sequence_len: int = 2048,
        **where: Any,
    ) -> None:
        self.batch_first = batch_first
        self.sequence_len = sequence_len
        self.positions: Embedding = Embedding(sequence_len, embedding_size, **where)
        self.layers: list[TransformerLayer] = [
            TransformerLayer(embedding_size, num_head, dim_head, hidden_size, dropout=dropout, causal=causal, **where)
            for _ in range(num_layers)
        ]

    def forward(self, x: Any, h: Any = None) -> Any:
        """`h` is not read. Raises ShapeError for a sequence that is too long."""
        x = x if self.batch_first else ops.transpose(x, (0, 1))
        if x.shape[1] > self.sequence_len:
            raise ShapeError(f"Transformer: a sequence of {x.shape[1]}, of at most {self.sequence_len}: {x.shape}")
        x = x + self.positions(Tensor(np.arange(x.shape[1]), requires_grad=False))
        for layer in self.layers:
            x = layer(x)
        x = x if self.batch_first else ops.transpose(x, (0, 1))
        return x, of.zeroslike_op(x)
