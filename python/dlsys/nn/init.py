"""Initial values, by the formulas and names of torch.nn.init; each sets a Parameter in place and returns it.

Numbers come from `dlsys.random.default_generator` (see `dl.manual_seed`), so they are not PyTorch's.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .. import random
from ..autodiff import Parameter
from ..errors import GraphError

_GAINS = {"linear": 1.0, "conv2d": 1.0, "sigmoid": 1.0, "tanh": 5.0 / 3.0, "relu": math.sqrt(2.0), "selu": 0.75}


def calculate_gain(nonlinearity: str, param: float | None = None) -> float:
    """The factor by which a nonlinearity's input should be scaled up; `param` is leaky_relu's slope, 0.01 for None.

    Raises GraphError for a name that is not known."""
    if nonlinearity == "leaky_relu":
        slope = 0.01 if param is None else float(param)
        return math.sqrt(2.0 / (1 + slope * slope))
    if nonlinearity not in _GAINS:
        raise GraphError(f"init: unknown nonlinearity {nonlinearity!r}; known: {', '.join([*_GAINS, 'leaky_relu'])}")
    return _GAINS[nonlinearity]


def fans(parameter: Parameter) -> tuple[int, int]:
    """(fan_in, fan_out) of a weight (out, in, *window), as of Linear and Conv2d. Raises GraphError below two axes."""
    shape = parameter.shape
    if len(shape) < 2:
        raise GraphError(f"init: fans need a weight of two axes or more, not {parameter.name} of shape {shape}")
    window = math.prod(shape[2:])
    return shape[1] * window, shape[0] * window


def _fan(parameter: Parameter, mode: str) -> int:
    if mode not in ("fan_in", "fan_out"):
        raise GraphError(f'init: mode must be "fan_in" or "fan_out", not {mode!r}')
    return fans(parameter)[mode == "fan_out"]


def constant_(parameter: Parameter, value: float) -> Parameter:
    """`value` everywhere."""
    parameter.value = np.full(parameter.shape, value)
    return parameter


def zeros_(parameter: Parameter) -> Parameter:
    """0 everywhere."""
    return constant_(parameter, 0.0)


def ones_(parameter: Parameter) -> Parameter:
    """1 everywhere."""
    return constant_(parameter, 1.0)


def uniform_(parameter: Parameter, a: float = 0.0, b: float = 1.0) -> Parameter:
    """Uniform in [a, b)."""
    parameter.value = random.default_generator.numpy().uniform(a, b, parameter.shape)
    return parameter


def normal_(parameter: Parameter, mean: float = 0.0, std: float = 1.0) -> Parameter:
    """Normal with a mean and a standard deviation."""
    parameter.value = random.default_generator.numpy().normal(mean, std, parameter.shape)
    return parameter


def trunc_normal_(
    parameter: Parameter, mean: float = 0.0, std: float = 1.0, a: float = -2.0, b: float = 2.0
) -> Parameter:
    """Normal, drawn again where outside [a, b]. Raises GraphError where that would hardly end."""
    if not (a < b and mean - 4 * std < b and mean + 4 * std > a):
        raise GraphError(f"init: a normal of mean {mean} and std {std} has too little in [{a}, {b}]")
    generator = random.default_generator.numpy()
    value = generator.normal(mean, std, parameter.shape)
    while (outside := (value < a) | (value > b)).any():
        value[outside] = generator.normal(mean, std, int(outside.sum()))
    parameter.value = value
    return parameter


def xavier_uniform_(parameter: Parameter, gain: float = 1.0) -> Parameter:
    """Uniform in +-gain sqrt(6 / (fan_in + fan_out)): Glorot and Bengio (2010)."""
    bound = gain * math.sqrt(6.0 / sum(fans(parameter)))
    return uniform_(parameter, -bound, bound)


def xavier_normal_(parameter: Parameter, gain: float = 1.0) -> Parameter:
    """Normal of std gain sqrt(2 / (fan_in + fan_out)): Glorot and Bengio (2010)."""
    return normal_(parameter, 0.0, gain * math.sqrt(2.0 / sum(fans(parameter))))


def kaiming_uniform_(
    parameter: Parameter, a: float = 0.0, mode: str = "fan_in", nonlinearity: str = "leaky_relu"
) -> Parameter:
    """Uniform in +-gain sqrt(3 / fan): He et al. (2015); `a` is leaky_relu's slope."""
    bound = calculate_gain(nonlinearity, a) * math.sqrt(3.0 / _fan(parameter, mode))
    return uniform_(parameter, -bound, bound)


def kaiming_normal_(
    parameter: Parameter, a: float = 0.0, mode: str = "fan_in", nonlinearity: str = "leaky_relu"
) -> Parameter:
    """Normal of std gain / sqrt(fan): He et al. (2015); `a` is leaky_relu's slope."""
    return normal_(parameter, 0.0, calculate_gain(nonlinearity, a) / math.sqrt(_fan(parameter, mode)))


def orthogonal_(parameter: Parameter, gain: float = 1.0) -> Parameter:
    """Rows, or columns where they are fewer, that are orthogonal and of length gain: Saxe et al. (2013).

    Raises GraphError below two axes."""
    if len(parameter.shape) < 2:
        raise GraphError(f"init: orthogonal_ needs two axes or more, not shape {parameter.shape}")
    rows, columns = parameter.shape[0], math.prod(parameter.shape[1:])
    drawn = random.default_generator.numpy().normal(size=(max(rows, columns), min(rows, columns)))
    q, r = np.linalg.qr(drawn)
    q *= np.sign(np.diag(r))  # makes the distribution uniform
    parameter.value = gain * (q if rows >= columns else q.T).reshape(parameter.shape)
    return parameter


def made(shape: tuple[int, ...], dtype: Any, name: str) -> Parameter:
    """A Parameter of zeros, for an initialiser to fill."""
    return Parameter(np.zeros(shape, dtype), name)
