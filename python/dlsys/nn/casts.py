"""Modules whose numbers are of another dtype, or on another device."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..autodiff import Parameter
from ..checks import dtype_named
from ..errors import DTypeError
from ..graph import FLOATS, is_node
from ..ops.state import array_on
from ..tensors import Tensor, dtype_of, leaf
from ..tensors.creation import context_named


def move(module: Any, value: Any) -> None:
    """`module.to(value)` for one argument, a dtype or a device. Raises DTypeError, DeviceError."""
    wanted = float_dtype(dtype_of(value) if is_node(value) else value)
    if wanted is not None:
        _cast(module, wanted)
    else:
        ctx = context_named(value)
        for parameter in {**dict(module.named_parameters()), **dict(module.named_buffers())}.values():
            array_on(parameter.node, ctx)


def _cast(module: Any, dtype: str) -> None:
    """Put Parameters and buffers of another dtype in place of those of floats; shared ones stay shared."""
    made: dict[Tensor, Tensor] = {}
    for part in module.modules():
        for table in (part._parameters, part._buffers):
            for name, old in table.items():
                if old.dtype in FLOATS and old.dtype != dtype:
                    if old not in made:
                        values, owned = np.array(old, dtype), isinstance(old, Parameter)
                        new = Parameter(values, old.name, old.requires_grad) if owned else leaf(values, name=old.name)
                        made[old] = new
                    table[name] = made[old]


def float_dtype(value: Any) -> str | None:
    """The name of a dtype of floats; None for what is no dtype. Raises DTypeError for other dtypes."""
    name = dtype_named(value) or str(value).removeprefix("torch.")
    if name in FLOATS:
        return name
    if name in ("float16", "bfloat16", "half") or name.startswith(("int", "uint", "bool")):
        raise DTypeError(f"to: Parameters are {' or '.join(FLOATS)}, not {name}")
    return None
