"""How modules are made: each of dlsys takes PyTorch's and needle's `device=` and `dtype=` besides its own arguments."""

from __future__ import annotations

import inspect
from typing import Any

from ..tensors.leaves import require_cpu


class Made(type):
    """The type of modules' classes. `dtype` is that of the parameters; `device` may be the CPU only: an Executor runs
    graphs elsewhere. Classes of others get these arguments like any other."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if not cls.__module__.startswith("dlsys."):
            return super().__call__(*args, **kwargs)
        make = cls.__init__  # type: ignore[misc]  # of `cls`, whose signature would be this function's
        own = inspect.signature(make).parameters if {"device", "dtype"} & kwargs.keys() else {}
        given = {name: kwargs.pop(name) for name in ("device", "dtype") if name in kwargs and name not in own}
        module = super().__call__(*args, **kwargs)
        require_cpu(given.get("device"))
        return module if given.get("dtype") is None else module.to(given["dtype"])
