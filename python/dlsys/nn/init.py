"""Initial values, by the formulas and names of torch.nn.init: each sets a Parameter in place and returns it.

Numbers come from `dlsys.random.default_generator` (see `dl.manual_seed`), so they are not PyTorch's.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .. import random
from ..autodiff import Parameter
from ..checks import number, real, too_large, word
from ..errors import GraphError, ShapeError
from ..tensors import is_leaf

_GAINS = {**dict.fromkeys(("linear", "conv2d", "sigmoid"), 1.0), "tanh": 5.0 / 3.0, "relu": math.sqrt(2.0)}


def calculate_gain(nonlinearity: str, param: float | None = None) -> float:
    """The factor by which a nonlinearity's input should be scaled up; `param` is leaky_relu's slope, 0.01 for None.

    Raises GraphError for a name that is not known."""
    if word("init", "the nonlinearity", nonlinearity, [*_GAINS, "leaky_relu"]) == "leaky_relu":
        slope = 0.01 if param is None else real("init", "the slope", param)
        return math.sqrt(2.0 / (1 + slope * slope))
    return _GAINS[nonlinearity]


def _shape(function: str, parameter: Any) -> tuple[int, ...]:
    if not is_leaf(parameter):
        raise GraphError(f"init: {function} sets a Parameter, not a {type(parameter).__name__}")
    return parameter.shape


def fans(parameter: Parameter, rule: str = "fans") -> tuple[int, int]:
    """(fan_in, fan_out) of a weight (out, in, *window), as of Linear and Conv2d. Raises GraphError below two axes."""
    shape = _shape(rule, parameter)
    if len(shape) < 2:
        raise GraphError(f"init: fans need a weight of two axes or more, not {parameter.name} of shape {shape}")
    window = math.prod(shape[2:])
    return shape[1] * window, shape[0] * window


def _fan(parameter: Parameter, mode: str) -> int:
    return fans(parameter)[word("init", "mode", mode, ("fan_in", "fan_out")) == "fan_out"]


def constant_(parameter: Parameter, val: float) -> Parameter:
    """`val` everywhere. Raises GraphError for what is no finite number."""
    value = real("init: constant_", "the value", val)
    parameter.value = np.full(_shape("constant_", parameter), value)
    return parameter


def zeros_(parameter: Parameter) -> Parameter:
    """0 everywhere."""
    _shape("zeros_", parameter)
    return constant_(parameter, 0.0)


def ones_(parameter: Parameter) -> Parameter:
    """1 everywhere."""
    _shape("ones_", parameter)
    return constant_(parameter, 1.0)


def uniform_(parameter: Parameter, a: float = 0.0, b: float = 1.0) -> Parameter:
    """Uniform in [a, b). Raises GraphError for bounds in the wrong order."""
    a, b = real("init: uniform_", "a", a), real("init: uniform_", "b", b)
    if a > b or math.isinf(b - a):
        raise GraphError(f"init: uniform_ needs a <= b, not {a!r} and {b!r}")
    parameter.value = random.default_generator.numpy().uniform(a, b, _shape("uniform_", parameter))
    return parameter


def normal_(parameter: Parameter, mean: float = 0.0, std: float = 1.0) -> Parameter:
    """Normal with a mean and a standard deviation. Raises GraphError for a negative one."""
    mean, std = real("init: normal_", "mean", mean), number("init: normal_", "std", std)
    parameter.value = random.default_generator.numpy().normal(mean, std, _shape("normal_", parameter))
    return parameter


def trunc_normal_(
    parameter: Parameter, mean: float = 0.0, std: float = 1.0, a: float = -2.0, b: float = 2.0
) -> Parameter:
    """Normal, drawn again where outside [a, b]. Raises GraphError where that would hardly end."""
    given = (("mean", mean), ("std", std), ("a", a), ("b", b))
    mean, std, a, b = (real("init: trunc_normal_", name, value) for name, value in given)
    if not (a < b and mean - 4 * std < b and mean + 4 * std > a):
        raise GraphError(f"init: a normal of mean {mean} and std {std} has too little in [{a}, {b}]")
    generator = random.default_generator.numpy()
    value = np.asarray(generator.normal(mean, std, _shape("trunc_normal_", parameter)))
    while (outside := (value < a) | (value > b)).any():
        value[outside] = generator.normal(mean, std, int(outside.sum()))
    parameter.value = value
    return parameter


def _xavier_std(fans_together: int, gain: float) -> float:
    return number("init", "gain", gain) * math.sqrt(2.0 / fans_together)


def xavier_uniform_(parameter: Parameter, gain: float = 1.0) -> Parameter:
    """Uniform in +-gain sqrt(6 / (fan_in + fan_out)): Glorot and Bengio (2010)."""
    bound = _xavier_std(sum(fans(parameter, "xavier_uniform_")), gain) * math.sqrt(3.0)
    return uniform_(parameter, -bound, bound)


def xavier_normal_(parameter: Parameter, gain: float = 1.0) -> Parameter:
    """Normal of std gain sqrt(2 / (fan_in + fan_out)): Glorot and Bengio (2010)."""
    return normal_(parameter, 0.0, _xavier_std(sum(fans(parameter, "xavier_normal_")), gain))


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
    """A matrix (rows, all others) whose rows, or columns where they are fewer, are orthogonal, of norm `gain`: Saxe et
    al. (2014). Raises GraphError below two axes."""
    fans(parameter, "orthogonal_")
    rows, columns = len(parameter), parameter.numel() // len(parameter)
    drawn = random.default_generator.numpy().normal(size=(max(rows, columns), min(rows, columns)))
    q, r = np.linalg.qr(drawn)
    q = q * np.sign(np.diag(r))  # uniform over all orthogonal matrices
    parameter.value = (q.T if rows < columns else q).reshape(parameter.shape) * real("init", "gain", gain)
    return parameter


def made(shape: tuple[int, ...], name: str) -> Parameter:
    """A Parameter of zeros, float32, for an initialiser to fill. Raises ShapeError for one too large for any memory."""
    if told := too_large(shape):
        raise ShapeError(f"{name}: {told}")
    return Parameter(np.zeros(shape, np.float32), name)
