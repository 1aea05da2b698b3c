"""Weights as a length and a direction: Salimans and Kingma (2016)."""

from __future__ import annotations

from typing import Any

import numpy as np

from ... import autodiff as ad
from ...autodiff import Node, Parameter
from ...errors import GraphError
from ..module import Module


class _WeightNorm:
    """The hook that makes a module's weight of its length and its direction before `forward`."""

    def __init__(self, name: str, dim: int | None) -> None:
        self.name, self.dim = name, dim

    def __call__(self, module: Module, args: Any) -> None:
        setattr(module, self.name, self.weight(module))

    def weight(self, module: Module) -> Node:
        """g v / |v|."""
        v = getattr(module, f"{self.name}_v")
        axes = self._axes(len(v.shape))
        length = ad.sqrt_op(ad.reducesum_op(v * v, axes, keepdims=self.dim is not None))
        return v * (getattr(module, f"{self.name}_g") / length)

    def _axes(self, rank: int) -> tuple[int, ...]:
        return tuple(axis for axis in range(rank) if self.dim is None or axis != self.dim % rank)

    def apply(self, module: Module) -> None:
        """Put the two Parameters in the place of the one."""
        weight = module._parameters.get(self.name)
        if weight is None:
            raise GraphError(f"weight_norm: {type(module).__name__} has no parameter {self.name!r}")
        rank = len(weight.shape)
        if self.dim is not None and not -rank <= self.dim < rank:
            raise GraphError(f"weight_norm: {self.name} of shape {weight.shape} has no axis {self.dim}")
        value = weight.value
        length = np.sqrt(np.square(value).sum(self._axes(rank), keepdims=self.dim is not None))
        delattr(module, self.name)
        setattr(module, f"{self.name}_g", Parameter(np.asarray(length, value.dtype)))
        setattr(module, f"{self.name}_v", Parameter(value))
        self(module, ())


def weight_norm(module: Any, name: str = "weight", dim: int | None = 0) -> Any:
    """Make the module's weight of two Parameters, its length `weight_g` and its direction `weight_v`, in each call;
    returns the module. dim: along which the lengths are each of their own; None: there is one. Make optimizers
    afterwards.

    Raises GraphError for a module without that Parameter.
    """
    if not isinstance(module, Module):
        raise GraphError(f"weight_norm: needs a module, not {type(module).__name__}")
    hook = _WeightNorm(name, dim)
    hook.apply(module)
    module.register_forward_pre_hook(hook)
    return module


def remove_weight_norm(module: Any, name: str = "weight") -> Any:
    """Make a Parameter of the weight that `weight_norm` took apart; returns the module. Raises GraphError."""
    for number, (hook, _) in list(getattr(module, "_forward_pre_hooks", {}).items()):
        if isinstance(hook, _WeightNorm) and hook.name == name:
            del module._forward_pre_hooks[number]
            value: Any = hook.weight(module)
            for part in (f"{name}_g", f"{name}_v", name):
                delattr(module, part)
            setattr(module, name, Parameter(np.array(value.numpy())))
            return module
    raise GraphError(f"remove_weight_norm: {type(module).__name__} has no weight_norm of {name!r}")
