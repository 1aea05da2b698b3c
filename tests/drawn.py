"""Graphs drawn from all operators' cases."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
from cases import Case, is_float
from dlsys import ops
from dlsys.compiler import TypedGraph
from dlsys.errors import DlsysError
from dlsys.graph import Node, Shape, below
from dlsys.ops.indexing import require_in_range
from helpers import CASES, LOOPS, OF_PASSES, evaluate, numpy_value, typed_graph, values_read

MOST = 40.0  # beyond, and below LEAST, exponentials of float32 come near the ends of its range
LEAST = 1e-6


def fit(node: Node, shape: Shape, to_shape: Shape) -> Node:
    """The node's value moved, repeated or summed into another shape."""
    if shape == to_shape:
        return node
    if np.prod(shape) == np.prod(to_shape):
        return ops.reshape_op(node, to_shape)
    try:
        if ops.broadcast_rule(shape, to_shape) == to_shape:
            return ops.broadcastto_op(node, ops.full_op(to_shape, np.nan))
        if ops.broadcast_rule(shape, to_shape) == shape:
            return ops.sum_to_like_op(node, ops.full_op(to_shape, np.nan))
    except DlsysError:
        pass
    return ops.broadcast_shape_op(ops.reducesum_op(node), to_shape)


DRAWN = sorted(set(CASES) - {"placeholder", "assign", *OF_PASSES})  # the executor takes assignments out before
OFTEN = ["add", "sub", "mul", "div", "neg", "relu", "where", "transpose", "matmul"]
WITH_NUMBERS = [case for name in ("add", "mul", "div") for case in CASES[name] if len(case.shapes) == 1]


class Drawn:
    """A graph drawn from all operators' cases, evaluated while it grows."""

    def __init__(self, rng: random.Random, steps: int, dtype: str, special: bool) -> None:
        self.rng, self.dtype = rng, dtype
        self.values: dict[Node, np.ndarray] = {}
        numbers = np.random.default_rng(rng.randrange(2**32))
        for i, shape in enumerate([(3, 4), (4,), (3, 1), (), (2, 3, 4), (4, 4)]):
            value = np.asarray(numbers.choice([-1.0, 1.0], shape) * numbers.uniform(0.5, 2, shape), dtype)
            if special and value.size and rng.random() < 0.5:
                value.flat[rng.randrange(value.size)] = rng.choice([np.nan, np.inf, -np.inf])
            self.values[ops.variable(f"v{i}", value.shape, str(value.dtype))] = value
        self.feed = dict(self.values)
        for _ in range(steps):
            self.grow(rng.choice(WITH_NUMBERS if rng.random() < 0.1 else CASES[rng.choice(DRAWN + OFTEN * 3)]))

    def grow(self, case: Case) -> None:
        """Applies the case's operator to drawn nodes, as they are or else fitted to the case's shapes."""
        nodes = [node for node, value in self.values.items() if is_float(value)]
        inputs = [self.rng.choice(nodes[-self.rng.randrange(1, 9) :]) for _ in case.shapes]
        drawn = case.draw(self.dtype, seed=self.rng.randrange(2**32))
        for position, *_ in case.fixed:
            value = drawn[position]
            inputs[position] = given = ops.variable(f"i{len(self.feed)}", value.shape, str(value.dtype))
            self.values[given] = self.feed[given] = drawn[position]
        if not self.add(case, inputs):
            fitted = [fit(n, self.values[n].shape, s) for n, s in zip(inputs, case.shapes, strict=True)]
            self.add(case, fitted)

    def add(self, case: Case, inputs: Sequence[Node]) -> bool:
        """Takes the case's node, and what is new below it, if its types fit, which operators of inputs whose shapes
        are known tell at once, and if its values are moderate."""
        new: dict[Node, np.ndarray] = {}
        try:
            node = case.build(*inputs)
            for inner in below([node], self.values.__contains__):
                if inner.op.kind == "scan" or inner.op.immediate:
                    continue
                if inner.op.name in LOOPS:
                    new[inner] = evaluate([inner], self.feed)[0]
                    continue
                values = values_read(inner, {**self.values, **new})
                inner.op.infer_shape(inner, [value.shape for value in values])
                inner.op.infer_dtype(inner, [str(value.dtype) for value in values])
                if inner.op.index_range is not None:
                    of = inner.op.index_range(inner, [value.shape for value in values])
                    require_in_range(inner, of, values[of.position])
                with np.errstate(all="ignore"):
                    new[inner] = numpy_value(inner, values)
        except DlsysError:
            return False
        for inner, value in new.items():
            sizes = np.abs(value[np.isfinite(value) & (value != 0)])
            moderate = sizes.size == 0 or (sizes.max() <= MOST and sizes.min() >= LEAST)
            if value.size > 500 or not (moderate or inner.op.name == "full"):
                return False
        self.values.update({n: v for n, v in new.items() if str(v.dtype) == self.dtype})
        return True

    def typed(self) -> TypedGraph:
        nodes = [node for node, value in self.values.items() if is_float(value)]
        outputs = [self.rng.choice(nodes[-6:] + nodes) for _ in range(4)]
        fed = {node: (value.shape, str(value.dtype)) for node, value in self.feed.items()}
        return typed_graph([*outputs, None], [(ops.variable("p", nodes[-1].shape, nodes[-1].dtype), nodes[-1])], fed)
