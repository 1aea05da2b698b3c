"""What a case of an operator is: a node of it, and inputs that are drawn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from dlsys import autodiff as ad
from dlsys.autodiff import Parameter
from dlsys.graph import FLOATS, Node, Shape


@dataclass(frozen=True)
class Case:
    """A node of one operator: `build(*variables)`, of inputs of `shapes`, drawn by `draw`.

    Magnitudes lie in `within`, clear of kinks and poles at 0; signs are drawn too unless `positive`. The inputs are
    variables, but those at `parameters`, which must be such; they are fed all the same. `fixed` gives, by position,
    inputs of a dtype of their own: (dtype, low, high), integers of [low, high) or booleans.
    """

    build: Callable[..., Node]
    shapes: tuple[Shape, ...]
    positive: bool = False
    parameters: tuple[int, ...] = ()
    fixed: tuple[tuple[int, str, int, int], ...] = ()
    within: tuple[float, float] = (0.5, 2.0)

    def variables(self, dtype: str = "float32") -> list[Node]:
        """Variables of the inputs' types, of `dtype` where they have none of their own."""
        own = {position: dtype for position, dtype, *_ in self.fixed}
        return [
            Parameter(np.zeros(shape, dtype), f"p{i}")
            if i in self.parameters
            else ad.Variable(f"x{i}", shape, own.get(i, dtype))
            for i, shape in enumerate(self.shapes)
        ]

    def dtypes(self, drawn: str) -> list[str]:
        """The inputs' dtypes, `drawn` for those that have none of their own."""
        own = {position: dtype for position, dtype, *_ in self.fixed}
        return [own.get(position, drawn) for position in range(len(self.shapes))]

    def draw(self, dtype: str = "float64", seed: int = 0) -> list[np.ndarray]:
        rng = np.random.default_rng(seed)
        limits = {position: rest for position, *rest in self.fixed}
        return [
            np.asarray(rng.integers(*limits[i][1:], size=shape), limits[i][0])
            if i in limits
            else np.asarray(self._values(rng, shape), dtype)
            for i, shape in enumerate(self.shapes)
        ]

    def _values(self, rng: np.random.Generator, shape: Shape) -> np.ndarray:
        sign = 1.0 if self.positive else rng.choice([-1.0, 1.0], size=shape)
        return sign * rng.uniform(*self.within, size=shape)


def is_float(array: np.ndarray) -> bool:
    """Whether an array is of a dtype that has gradients."""
    return str(array.dtype) in FLOATS


def cases_of(build: Callable[..., Node], *shapes: Any, positive: bool = False) -> list[Case]:
    """One case per entry of `shapes`: a tuple of input shapes."""
    return [Case(build, entry, positive) for entry in shapes]


ONE = [((),), ((1,),), ((7,),), ((5, 1),), ((3, 31),), ((2, 3, 4),), ((0,),), ((2, 0, 3),)]
SAME = [(entry[0], entry[0]) for entry in ONE]
BROADCAST = [
    *SAME,
    ((4, 3), (3,)),
    ((3,), (4, 3)),
    ((4, 1), (1, 3)),
    ((), (2, 3)),
    ((2, 3), (1,)),
    ((2, 1, 4), (3, 1)),
    ((1, 1), (0, 5)),
]
EXPANDED = [
    ((3,), (4, 3)),
    ((1, 5), (4, 5)),
    ((4, 1), (4, 3)),
    ((), (2, 3)),
    ((2, 1, 4), (5, 2, 3, 4)),
    ((1,), (1,)),
    ((2, 3), (2, 3)),
    ((1, 3), (0, 3)),
    ((3,), (0, 3)),
]
ROWS = [((1,),), ((7,),), ((5, 1),), ((3, 31),), ((2, 3, 4),), ((0, 4),), ((3, 0),)]


def unary(function: Callable[[Node], Node], positive: bool = False) -> list[Case]:
    return cases_of(function, *ONE, positive=positive)
