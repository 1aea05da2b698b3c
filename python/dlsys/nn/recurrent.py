"""Recurrent networks: a layer is a loop over the steps of time.

The input's part of the gates of all steps is one product a gate, before the loop; a step adds the state's part, a
product for each gate, and one pointwise kernel makes the new state of them. So no step takes its gates apart, forwards
or backwards.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from .. import autodiff as ad
from ..checks import flag, integer, number, word
from ..errors import GraphError, ShapeError
from ..graph import Node, is_node
from ..ops.replay import compositions
from ..tensors import Tensor, known_shape, shape_of, tensor
from . import functional, init
from .checks import checked_layers
from .module import Module

State = tuple[Any, ...]
"""The values that a step passes to the next: (h,), for an LSTM (h, c), each (batch, hidden_size); None before the first
step stands for zeros, which need no product."""

_NONLINEARITIES = {"tanh": ad.tanh_op, "relu": ad.relu_op}


class _Gates:
    """The weights of one layer, and one step with them. `order`: the place of each gate among the weights' rows.

    Each gate is its own product, so no kernel has to slice a (batch, 4 hidden) result. For one sequence at a time a
    step reads the matrix most of the time: one product for all gates is faster there, and slicing a row is free."""

    name: ClassVar[str] = "RNN"
    count: ClassVar[int] = 1
    states: ClassVar[int] = 1

    def __init__(self, weights: Sequence[Any], nonlinearity: str, order: Sequence[int] = (0, 1, 2, 3)) -> None:
        self.weight_ih, self.weight_hh, bias_ih, bias_hh = weights
        self.nonlinearity, self.order, self.joint = _NONLINEARITIES[nonlinearity], order[: self.count], False
        self.biases = self._biases(bias_ih, bias_hh)

    def _parts(self, whole: Node | None, axis: int = 0) -> list[Any]:
        """The parts of a weight or bias, one for each gate, in the order of `order`; None for each without it."""
        if whole is None:
            return [None] * self.count
        found = [whole] if self.count == 1 else ad.split_op(whole, self.count, axis)
        return [found[place] for place in self.order]

    def _biases(self, bias_ih: Node | None, bias_hh: Node | None) -> list[Any]:
        """Of each gate what is added to the input's part."""
        return self._parts(None if bias_ih is None or bias_hh is None else bias_ih + bias_hh)

    def of_input(self, x: Node) -> list[Node]:
        """The input's part of each gate: (..., input_size) to (..., hidden_size)."""
        return self._with_biases([ad.matmul_op(x, weight, trans_B=True) for weight in self._parts(self.weight_ih)])

    def _with_biases(self, parts: Sequence[Node]) -> list[Node]:
        return [p if b is None else p + b for p, b in zip(parts, self.biases, strict=True)]

    def _of_state(self, h: Node | None) -> list[Any]:
        """The state's part of each gate, None before the first step."""
        if self.joint and h is not None:
            return self._parts(ad.matmul_op(h, self.weight_hh, trans_B=True), 1)
        return [None if h is None else ad.matmul_op(h, w, trans_B=True) for w in self._parts(self.weight_hh)]

    def _sums(self, parts: Sequence[Node], h: Node | None) -> list[Node]:
        return [x if s is None else s + x for x, s in zip(parts, self._of_state(h), strict=True)]

    def step(self, parts: Sequence[Node], state: State) -> State:
        """The next state, of the input's parts and the state."""
        return (self.nonlinearity(self._sums(parts, state[0])[0]),)

    def over_steps(self, x: Node, state: State, reverse: bool = False) -> tuple[State, Node]:
        """The state after all steps, and h after each; x is (length, batch, input_size)."""
        self.joint = shape_of(x)[1] == 1
        parts = (ad.matmul_op(x, self.weight_ih, trans_B=True),) if self.joint else tuple(self.of_input(x))

        def step(state: State, parts: Sequence[Node]) -> tuple[State, Node]:
            new = self.step(self._with_biases(self._parts(parts[0], 1)) if self.joint else parts, state)
            return new, new[0]

        return ad.scan_op(step, state, parts, reverse=reverse)


class _LSTMGates(_Gates):
    """i, f, o = sigmoid, g = tanh of x W_ih^T + b_ih + h W_hh^T + b_hh; c' = f c + i g, h' = o tanh(c')."""

    name, count, states = "LSTM", 4, 2

    def step(self, parts: Sequence[Node], state: State) -> State:
        h, c = state
        i, f, g, o = self._sums(parts, h)
        new = ad.sigmoid_op(i) * ad.tanh_op(g)
        c = new if c is None else ad.sigmoid_op(f) * c + new
        return ad.sigmoid_op(o) * ad.tanh_op(c), c


class _GRUGates(_Gates):
    """r, z = sigmoid of x W_ih^T + b_ih + h W_hh^T + b_hh, n = tanh(x W_in^T + b_in + r (h W_hn^T + b_hn));
    h' = (1 - z) n + z h."""

    name, count = "GRU", 3

    def _biases(self, bias_ih: Node | None, bias_hh: Node | None) -> list[Any]:
        own, others = self._parts(bias_ih), self._parts(bias_hh)
        self.bias_hn = others[2]
        return own if bias_ih is None else [own[0] + others[0], own[1] + others[1], own[2]]

    def step(self, parts: Sequence[Node], state: State) -> State:
        (h,) = state
        of_state = self._of_state(h)
        r, z = (ad.sigmoid_op(x if s is None else s + x) for x, s in zip(parts[:2], of_state[:2], strict=True))
        if h is None:
            n = ad.tanh_op(parts[2] if self.bias_hn is None else parts[2] + r * self.bias_hn)
            return (n - z * n,)
        hn = of_state[2]
        n = ad.tanh_op(parts[2] + r * (hn if self.bias_hn is None else hn + self.bias_hn))
        return (n + z * (h - n),)


GATES: dict[str, type[_Gates]] = {gates.name: gates for gates in (_Gates, _LSTMGates, _GRUGates)}


def _states(kind: str, nonlinearity: str, weights: Sequence[Any], *_: Any) -> int:
    """How many values a step of these gates passes to the next."""
    return GATES[kind].states


@compositions(_states)
def _stepped(kind: str, nonlinearity: str, weights: Sequence[Any], x: Any, states: Sequence[Any]) -> State:
    """The states after one step."""
    gates = GATES[kind](weights, nonlinearity)
    return gates.step(gates.of_input(x), tuple(states))


@compositions(lambda *arguments: 1 + _states(*arguments))
def _stepped_through(
    kind: str, nonlinearity: str, weights: Sequence[Any], x: Any, states: Sequence[Any], reverse: bool
) -> tuple[Any, ...]:
    """h after each step, and the states after all."""
    last, output = GATES[kind](weights, nonlinearity).over_steps(x, tuple(states), reverse)
    return (output, *last)


def _given(owner: str, hx: Any, states: int) -> list[Any]:
    """The initial states as a list. Raises GraphError."""
    found = list(hx) if isinstance(hx, (tuple, list)) else [hx]
    found = [tensor(state) if isinstance(state, np.ndarray) else state for state in found]
    if len(found) != states or not all(is_node(state) for state in found):
        needed = "a node" if states == 1 else "a pair of nodes (h, c)"
        raise GraphError(f"{owner}: the initial state must be {needed}")
    return found


class _Gated(Module):
    """Base of cells and layers: sizes, and the weights of each layer."""

    _gates: ClassVar[type[_Gates]] = _Gates
    _ways = 1
    nonlinearity = "tanh"

    def _make(self, input_size: int, hidden_size: int, bias: bool, ends: Sequence[str] = ("",)) -> None:
        """Set the sizes, and weight_ih, weight_hh, bias_ih, bias_hh, uniform in +-1 / sqrt(hidden_size), with each of
        the `ends` behind their names. Raises GraphError."""
        owner = type(self).__name__
        self.input_size: int = integer(owner, "input_size", input_size, 1)
        self.hidden_size: int = integer(owner, "hidden_size", hidden_size, 1)
        self.bias = bias
        bound, wide = 1 / math.sqrt(self.hidden_size), self._gates.count * self.hidden_size
        for place, end in enumerate(ends):
            inputs = self.input_size if place < self._ways else self._ways * self.hidden_size
            shapes = ((wide, inputs), (wide, self.hidden_size), (wide,), (wide,))
            for name, shape in zip(self._names(end), shapes, strict=True):
                made = bias or len(shape) > 1
                weight = init.uniform_(init.made(shape, name), -bound, bound) if made else None
                setattr(self, name, weight)

    def _names(self, end: str) -> list[str]:
        return [f"{name}{end}" for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]

    def _weights(self, end: str = "") -> list[Any]:
        """The weights with this end of their names."""
        return [getattr(self, name) for name in self._names(end)]


class _Cell(_Gated):
    """One step: (batch, input_size) or (input_size,) and the state to the next state."""

    def __init__(self, input_size: int, hidden_size: int, bias: bool = True) -> None:
        """Raises GraphError for a setting that is out of range."""
        self._make(input_size, hidden_size, bias)

    def _next(self, x: Node, hx: Any) -> State:
        """The states after one step from `hx`, zeros for None."""
        shape = known_shape(x)
        self.require(shape is None or (len(shape) in (1, 2) and shape[-1] == self.input_size), x)
        count = self._gates.states
        states = [None] * count if hx is None else _given(type(self).__name__, hx, count)
        return _stepped(self._gates.name, self.nonlinearity, self._weights(), x, states)


class RNNCell(_Cell):
    """h' = tanh(x W_ih^T + b_ih + h W_hh^T + b_hh), or relu. Parameters: weight_ih (hidden_size, input_size), weight_hh
    (hidden_size, hidden_size), bias_ih and bias_hh (hidden_size,). Returns h'; the state is zeros where none is given.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        nonlinearity: str = "tanh",
    ) -> None:
        self.nonlinearity: str = _known(nonlinearity)
        super().__init__(input_size, hidden_size, bias)

    def forward(self, x: Node, hx: Node | None = None) -> Node:
        return self._next(x, hx)[0]


class LSTMCell(_Cell):
    """One step of `LSTM`, Hochreiter and Schmidhuber (1997): returns (h', c') of x and (h, c). Parameters as of
    `RNNCell`, with rows for the gates i, f, g, o one below another."""

    _gates = _LSTMGates

    def forward(self, x: Node, hx: tuple[Node, Node] | None = None) -> State:
        return self._next(x, hx)


class GRUCell(_Cell):
    """One step of `GRU`, Cho et al. (2014): returns h' of x and h. Parameters as of `RNNCell`, with rows for the gates
    r, z, n one below another."""

    _gates = _GRUGates

    def forward(self, x: Node, hx: Node | None = None) -> Node:
        return self._next(x, hx)[0]


def _known(nonlinearity: str) -> str:
    return word("RNN", "nonlinearity", nonlinearity, list(_NONLINEARITIES))


_WAYS = ("", "_reverse")
"""Ends of the names of weights: from the first step on, and from the last."""


class _Recurrent(_Gated):
    """Layers of one cell, each over all steps of the layer below: from the first on, and, where it is bidirectional,
    with weights of their own from the last on too, whose outputs stand behind the others."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
    ) -> None:
        self.num_layers: int = checked_layers(type(self).__name__, num_layers)
        self.batch_first = batch_first
        self.dropout: float = number(type(self).__name__, "dropout", dropout, most=1)
        self.bidirectional: bool = flag(type(self).__name__, "bidirectional", bidirectional)
        self._ways = 2 if self.bidirectional else 1
        ends = [f"_l{layer}{way}" for layer in range(self.num_layers) for way in _WAYS[: self._ways]]
        self._make(input_size, hidden_size, bias, ends)

    def forward(self, x: Any, hx: Any = None) -> tuple[Tensor, Any]:
        shape = known_shape(x)
        if shape is None:
            raise ShapeError(
                f"{type(self).__name__}: the sequence length must be known when the graph is made: declare the shapes "
                f'of variables, Variable("x", shape) ({x.name}, made at {x.location})'
            )
        self.require(len(shape) == 3 and shape[-1] == self.input_size, x)
        if self.batch_first:
            x, shape = ad.swapaxes_op(x, 0, 1), (shape[1], shape[0], shape[2])
        if shape[0] < 1:
            raise ShapeError(f"{type(self).__name__}: a sequence needs one step or more, {x.name} is {shape}")
        start, last, output = self._start(hx, shape[1]), list[State](), x
        for layer in range(self.num_layers):
            if layer:
                output = functional.dropout(output, self.dropout, self.training)
            x, outputs = output, []
            for way, end in enumerate(_WAYS[: self._ways]):
                weights, states = self._weights(f"_l{layer}{end}"), start[len(last)]
                found = _stepped_through(self._gates.name, self.nonlinearity, weights, x, states, bool(way))
                outputs.append(found[0])
                last.append(found[1:])
            output = outputs[0] if len(outputs) == 1 else ad.concatenate_op(outputs, -1)
        finals = [ad.stack_op(list(states)) for states in zip(*last, strict=True)]
        output = ad.swapaxes_op(output, 0, 1) if self.batch_first else output
        return output, finals[0] if len(finals) == 1 else tuple(finals)

    def _start(self, hx: Any, batch: int) -> list[State]:
        """The initial state of each layer, and way."""
        if hx is None:
            zeros = ad.full_op((batch, self.hidden_size), 0.0, self.get_parameter("weight_hh_l0").dtype)
            return [(zeros,) * self._gates.states] * (self.num_layers * self._ways)
        owner, count = type(self).__name__, self.num_layers * self._ways
        given, needed = _given(owner, hx, self._gates.states), (count, batch, self.hidden_size)
        for state in given:
            found = known_shape(state)
            if found not in (None, needed):
                raise ShapeError(f"{owner}: the initial state {state.name} has shape {found}, not {needed}")
        return [tuple(state[k] for state in given) for k in range(count)]


class RNN(_Recurrent):
    """h_t = tanh(x_t W_ih^T + b_ih + h_(t-1) W_hh^T + b_hh), or relu, over the steps of sequences.

    x: (length, batch, input_size), with `batch_first` (batch, length, input_size); hx: the initial state (num_layers,
    batch, hidden_size), zeros for None. Returns (output, h_n): the last layer's states of all steps, (length, batch,
    hidden_size), and the final state of each layer. `dropout` is applied to the output of each layer but the last.
    With `bidirectional` each layer runs from the last step on too: outputs have extent 2 hidden_size, states are
    (2 num_layers, batch, hidden_size), of each layer both ways.

    Parameters, of each layer N: weight_ih_lN, weight_hh_lN, bias_ih_lN, bias_hh_lN; layouts as of `RNNCell`; names of
    the way back end in _reverse. Raises ShapeError where the shape of x is not known.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        nonlinearity: str = "tanh",
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
    ) -> None:
        """Raises GraphError for a setting that is out of range."""
        self.nonlinearity: str = _known(nonlinearity)
        super().__init__(input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional)


class LSTM(_Recurrent):
    """`LSTMCell` over the steps of sequences, Hochreiter and Schmidhuber (1997). As `RNN`, with a pair (h, c) for each
    state: returns (output, (h_n, c_n))."""

    _gates = _LSTMGates


class GRU(_Recurrent):
    """`GRUCell` over the steps of sequences, Cho et al. (2014). As `RNN`."""

    _gates = _GRUGates
