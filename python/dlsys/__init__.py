"""dlsys: computation graphs, differentiated, planned, and compiled to kernels that TVM generates.

import dlsys as dl
from dlsys import autodiff as ad, tvm_op
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from functools import cache
from operator import attrgetter
from typing import Any

from .hooks import install
from .system import limit_threads

__version__ = "0.1.0"

# TVM cannot be imported by a user without a home, as in a container; this one can hold nothing.
if not os.path.isabs(os.path.expanduser("~")):
    os.environ["HOME"] = os.devnull
limit_threads()
# TVM would bind the calling thread, and so all that it starts, to one core: NumPy's and PyTorch's threads, and ours.
os.environ.setdefault("TVM_BIND_THREADS", "0")


def _of(module: str, name: str) -> Callable[[], Any]:
    """Imports a module, and returns a function of it, or of an object in it."""
    return lambda: attrgetter(name)(importlib.import_module(module, __name__))


install("operate", _of(".ops.operators", "operate"))
install("settled", _of(".tensors.inplace", "settled"))
install("type_of", _of(".ops.replay", "declared_type"))
install("compute_arrays", _of(".tensors.ufuncs", "computed"))
install("adjoints", _of(".gradients", "adjoints"))
install("gradient_as_tuple", _of(".gradients", "gradient_as_tuple"))
install("random_numbers", _of(".random", "default_generator.numpy"))


@cache
def _public() -> dict[str, Any]:
    """Of each public name what `__init__.pyi`, the one list of them, says: a value, or (module, name there)."""
    import ast

    stub = ast.parse(__spec__.loader.get_data(f"{os.path.dirname(__file__)}/__init__.pyi"))
    found: dict[str, Any] = {}
    for line in stub.body:
        if isinstance(line, ast.ImportFrom):
            home = "." * line.level + (line.module or "")
            found.update({name.name: (home, name.name) for name in line.names})
        elif isinstance(line, ast.Assign):
            target, value = line.targets[0], line.value
            pairs = zip(target.elts, value.elts, strict=True) if isinstance(target, ast.Tuple) else [(target, value)]
            for name, of in pairs:
                method = isinstance(of, ast.Attribute)
                found[name.id] = (".tensors", f"Tensor.{of.attr}") if method else ast.literal_eval(of)
    return found


def __dir__() -> list[str]:
    """Every public name, loaded or not."""
    return sorted({*globals(), *_public()})


def __getattr__(name: str) -> Any:
    """Names of other modules at first use: importing TVM takes a second that `dlsys.data` need not pay."""
    if name == "__all__":
        homes = {name: home for name, home in _public().items() if isinstance(home, tuple)}
        return [*(name for name, (module, _) in homes.items() if module in (".devices", ".errors")), "empty", "zeros"]
    if name not in _public():
        raise AttributeError(f"module 'dlsys' has no attribute {name!r}", name=name, obj=sys.modules[__name__])
    found = _public()[name]
    if isinstance(found, tuple):
        module, attribute = found
        if module == ".":
            return importlib.import_module(f".{name}", __name__)
        found = importlib.import_module(module, __name__)
        for part in attribute.split("."):
            found = getattr(found, part)
    globals()[name] = found  # this function is not asked again
    return found
