"""ZeRO-1: each rank of a group of processes has a share of the optimizer's state."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

from ..errors import GraphError
from .groups import described
from .optimizer import Optimizer

Made = TypeVar("Made", bound=Optimizer)


def ZeroRedundancyOptimizer(params: Iterable[Any], optimizer_class: type[Made], **defaults: Any) -> Made:
    """An optimizer of that class, of which each of n ranks has 1/n of the state: torch.distributed.optim's, and ZeRO-1
    of S. Rajbhandari et al.: ZeRO: Memory Optimizations Toward Training Trillion Parameter Models, 2020.

    A rank gets its share of each summed gradient (reduce-scatter), updates that share of the parameter, and all gather
    the new ones: as many bytes as an all-reduce. Results are those of the optimizer, and in a group of one it is that.
    A checkpoint has the whole state, so it may be continued by another number of ranks: all ranks call `state_dict`
    and `load_state_dict`.

    `defaults`: the arguments of `optimizer_class`. Raises GraphError as that does, and for another class.
    """
    if not (isinstance(optimizer_class, type) and issubclass(optimizer_class, Optimizer)):
        raise GraphError(f"ZeroRedundancyOptimizer: needs a class of dlsys.optim, not {described(optimizer_class)}")
    optimizer = optimizer_class.__new__(optimizer_class)
    optimizer.sharded = True  # before any state is made
    optimizer_class.__init__(optimizer, params, **defaults)
    return optimizer
