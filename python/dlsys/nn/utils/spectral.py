"""Weights divided by their largest singular value: Miyato et al. (2018)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ... import autodiff as ad
from ... import random
from ...autodiff import Node, Parameter
from ...eager import no_grad
from ...errors import GraphError
from ..checks import checked_eps, checked_extent
from ..conv import ConvTranspose1d, ConvTranspose2d
from ..module import Module


class _SpectralNorm:
    """The hook that divides a module's weight before `forward`, and the buffers u and v that it keeps: estimates of
    the singular vectors, which each call in training brings closer."""

    def __init__(self, name: str, iterations: int, dim: int, eps: float) -> None:
        self.name, self.iterations, self.dim, self.eps = name, iterations, dim, eps

    def __call__(self, module: Module, args: Any) -> None:
        setattr(module, self.name, self.weight(module, self.iterations if module.training else 0))

    def weight(self, module: Module, iterations: int) -> Node:
        """weight / (u W v), after so many iterations."""
        weight = getattr(module, f"{self.name}_orig")
        u, v = (getattr(module, f"{self.name}_{which}") for which in "uv")
        if not iterations:
            return weight / self._sigma(self._matrix(weight), u, v)
        with no_grad():
            matrix = self._matrix(weight)
            # The value is computed from u as it is now, so that it stays what it is when u has moved on.
            now_u, now_v = self._iterated(u, v, matrix, iterations)
            moved: list[Node] = []

            def next_u(before: Node) -> Node:
                moved[:] = self._iterated(before, v, matrix, iterations)
                return moved[0]

            updates = [ad.advance_op(u, next_u), ad.advance_op(v, lambda before: moved[1])]
        return ad.with_updates_op(weight / self._sigma(self._matrix(weight), now_u, now_v), updates)

    def _iterated(self, u: Node, v: Node, matrix: Node, iterations: int) -> tuple[Node, Node]:
        for _ in range(iterations):
            v = self._normalized(ad.matmul_op(u, matrix))
            u = self._normalized(ad.matmul_op(v, matrix, trans_B=True))
        return u, v

    def _sigma(self, matrix: Node, u: Node, v: Node) -> Node:
        return ad.reducesum_op(u * ad.matmul_op(v, matrix, trans_B=True))

    def _normalized(self, x: Node) -> Node:
        length = ad.sqrt_op(ad.reducesum_op(x * x))
        return x / ad.maximum_op(length, self.eps)

    def _matrix(self, weight: Node) -> Node:
        """The weight as (extent of dim, the rest)."""
        shape = weight.shape  # type: ignore[attr-defined]
        order = (self.dim, *(axis for axis in range(len(shape)) if axis != self.dim))
        moved = weight if self.dim == 0 else ad.transpose_op(weight, order)
        return ad.reshape_op(moved, (shape[self.dim], -1))

    def apply(self, module: Module) -> None:
        """Put the Parameter and the buffers in the place of the weight."""
        weight = module._parameters.get(self.name)
        if weight is None:
            raise GraphError(f"spectral_norm: {type(module).__name__} has no parameter {self.name!r}")
        rank = len(weight.shape)
        if rank < 2 or not -rank <= self.dim < rank:
            own = f"{self.name} of shape {weight.shape}"
            raise GraphError(f"spectral_norm: {own}: two axes are needed, and axis {self.dim}")
        self.dim %= rank
        rows = weight.shape[self.dim]
        generator = random.default_generator.numpy()
        delattr(module, self.name)
        setattr(module, f"{self.name}_orig", weight)
        for which, extent in (("u", rows), ("v", math.prod(weight.shape) // rows)):
            drawn = generator.normal(size=extent)
            drawn /= max(float(np.linalg.norm(drawn)), self.eps)
            module.register_buffer(f"{self.name}_{which}", drawn.astype(weight.dtype))
        setattr(module, self.name, self.weight(module, 0))


def spectral_norm(
    module: Any, name: str = "weight", n_power_iterations: int = 1, eps: float = 1e-12, dim: int | None = None
) -> Any:
    """Divide the module's weight by its largest singular value, in each call; returns the module.

    The value is estimated by `n_power_iterations` of the power method in each call in training; whoever evaluates what
    the module gives moves the estimates, and several calls that are evaluated together divide by one. The Parameter is
    `weight_orig` then, the buffers `weight_u` and `weight_v`. dim: which axis has the rows of the matrix; None: the
    outputs' of the module. Make optimizers afterwards. Raises GraphError for a module without that Parameter, and for
    one of less than two axes.
    """
    if not isinstance(module, Module):
        raise GraphError(f"spectral_norm: needs a module, not {type(module).__name__}")
    count = checked_extent("spectral_norm", "n_power_iterations", n_power_iterations)
    if dim is None:
        dim = 1 if isinstance(module, (ConvTranspose1d, ConvTranspose2d)) else 0
    hook = _SpectralNorm(name, count, dim, checked_eps("spectral_norm", eps))
    hook.apply(module)
    module.register_forward_pre_hook(hook)
    return module


def remove_spectral_norm(module: Any, name: str = "weight") -> Any:
    """Make a Parameter of the weight that `spectral_norm` divides, as it is; returns the module. Raises GraphError."""
    for number, (hook, _) in list(getattr(module, "_forward_pre_hooks", {}).items()):
        if isinstance(hook, _SpectralNorm) and hook.name == name:
            del module._forward_pre_hooks[number]
            value: Any = hook.weight(module, 0)
            parameter: Parameter = getattr(module, f"{name}_orig")
            parameter.value = value.numpy()
            for part in (f"{name}_orig", f"{name}_u", f"{name}_v", name):
                delattr(module, part)
            setattr(module, name, parameter)
            return module
    raise GraphError(f"remove_spectral_norm: {type(module).__name__} has no spectral_norm of {name!r}")
