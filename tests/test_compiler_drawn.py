"""Drawn graphs, over all operators, with parameters and assignments: compiled, they compute what the NumPy rules do,
whichever passes are used, fused or not, in place or not."""

from __future__ import annotations

import random

import numpy as np
from cases import is_float
from dlsys import autodiff as ad
from dlsys.compiler import NAMES, typed_graph
from dlsys.graph import Node, Op
from hypothesis import given, settings
from hypothesis import strategies as st
from test_passes_drawn import NOISE, Drawn, same, values_of


class Program:
    """A drawn graph whose feeds are partly parameters, some of which are assigned."""

    def __init__(self, seed: int, steps: int, dtype: str) -> None:
        rng = random.Random(seed)
        self.drawn = drawn = Drawn(rng, steps, dtype, special=False)
        nodes = [node for node, value in drawn.values.items() if is_float(value)]
        self.outputs = [rng.choice(nodes[-6:] + nodes) for _ in range(3)]
        self.parameters = rng.sample([node for node in drawn.feed if is_float(drawn.feed[node])], 3)
        self.updates: dict[Node, Node] = {}
        for parameter in self.parameters:
            fits = [n for n in nodes if drawn.values[n].shape == drawn.values[parameter].shape]
            self.updates[parameter] = rng.choice(fits[-4:] + fits)

    def expected(self, noise: float = 0.0, seed: int = 0) -> list[np.ndarray]:
        """The outputs, then the parameters afterwards, by the NumPy rules."""
        fed = {node: (value.shape, str(value.dtype)) for node, value in self.drawn.feed.items()}
        graph = typed_graph(self.outputs, list(self.updates.items()), fed)
        values = values_of(graph, self.drawn.feed, noise, seed)
        return [values[node] for node in [*self.outputs, *self.updates.values()]]

    def run(self, names: tuple[str, ...], ctx: str) -> list[np.ndarray]:
        """The same, by an executor; the graph is made anew with Parameters in place of some variables."""
        now: dict[Node, Node] = {}
        for node in self.drawn.values:
            for inner in ad.find_topo_sort([node]):
                if inner in set(self.parameters):
                    now.setdefault(inner, ad.Parameter(self.drawn.feed[inner], inner.name))
                elif inner not in now:
                    inputs = [now[value] for value in inner.inputs]
                    now[inner] = Node(inner.op, inputs, inner.attrs, inner.name)
        assigns = ad.group([ad.assign(now[p], now[value]) for p, value in self.updates.items()])
        executor = ad.Executor([now[node] for node in self.outputs] + [assigns], ctx, passes=names)
        variables = {now[n]: v for n, v in self.drawn.feed.items() if n not in set(self.parameters)}
        feed = {node: value for node, value in variables.items() if node in set(executor.topo_order)}
        results = executor.run(feed, convert_to_numpy_ret_vals=True)
        assert results.pop() is None
        return [*results, *(now[parameter].value for parameter in self.updates)]


def agree(program: Program, found: list[np.ndarray]) -> None:
    """Up to what rounding may do; where rounding decides between numbers, infinity and NaN, nothing is said."""
    noise = NOISE[program.drawn.dtype]
    expected, noisy = program.expected(), [program.expected(noise, seed) for seed in range(6)]
    for i, (a, b) in enumerate(zip(expected, found, strict=True)):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        others = [values[i] for values in noisy]
        with np.errstate(all="ignore"):
            spread = np.max([np.abs(other - a) for other in others], axis=0)
            near = np.abs(a - b) <= 8 * spread + 16 * noise * np.abs(a)
        sure = np.all([same(a, other) | (np.isfinite(a) & np.isfinite(other)) for other in others], axis=0)
        assert (near | same(a, b) | ~sure).all(), (i, a, b)


@settings(max_examples=8, deadline=None, derandomize=True)
@given(st.integers(0, 2**32), st.integers(1, 15), st.sampled_from(Op.dtypes), st.sets(st.sampled_from(NAMES)))
def test_every_subset_of_passes_computes_the_same(seed: int, steps: int, dtype: str, names: set[str]) -> None:
    program = Program(seed, steps, dtype)
    agree(program, program.run(tuple(names), "numpy"))
    agree(program, program.run(tuple(names), "cpu"))


@settings(max_examples=12, deadline=None, derandomize=True)
@given(st.integers(0, 2**32), st.integers(1, 25), st.sampled_from(Op.dtypes))
def test_all_passes_compute_the_same(seed: int, steps: int, dtype: str) -> None:
    program = Program(seed, steps, dtype)
    agree(program, program.run(NAMES, "cpu"))
