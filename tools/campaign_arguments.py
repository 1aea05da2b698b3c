"""Arguments that make no sense, for every public function, class and method: an error of dlsys, or of Python's call."""

from __future__ import annotations

import contextlib
import inspect
import io
import os
import random
import tempfile
from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import Any

import dlsys as dl
import numpy as np
from dlsys import autodiff as ad
from dlsys import nn, optim
from dlsys.errors import DlsysError

NUMBERS = (None, 0, -1, 3, 2**70, 1.5, float("nan"), True, complex(1), np.float32(1.5), np.int64(2), float("inf"))
OBJECTS = ("text", "mean", b"bytes", (), [], {}, (2, 3), [1, "a"], [-1], [[1, 2], [3]], {"a": 1}, object(), print, int)
ARRAYS = (np.zeros((2, 3)), np.zeros((0,), "f4"), np.array("text"), np.zeros(2, complex), np.arange(3), np.array(3))
LEFT_OUT = ("Node", "Op", "Executor", "save", "fit", "set_num_threads", "set_grad_enabled", "placed_as", "require")
"""What changes the process, writes files, or is a module's own."""
CALLERS = ("apply", "scan_op", "step")
"""What calls a function that it is given, whose errors are the function's."""
FIRST = 0.6  # of the calls that have a tensor first, as their functions expect


def tensors() -> list[Any]:
    """Tensors and variables of several shapes and dtypes, each time others."""
    declared = ad.Variable("y", (2, 3)), ad.Variable("z", (2, 3), "int64")
    return [ad.Variable("x"), *declared, dl.ones(2, 3), dl.ones(2, 3) > 0, nn.Parameter(np.ones((2, 3), "f4"))]


@cache
def public() -> list[tuple[str, Callable[..., Any]]]:
    """All functions, classes and methods that a user meets, by name; methods as functions of their owner."""
    homes = {"nn": nn, "optim": optim, "functional": nn.functional, "init": nn.init, "utils": nn.utils, "ad": ad}
    found = {f"dl.{name}": getattr(dl, name) for name in dir(dl)}
    for home, module in homes.items():
        own = home in ("functional", "init")  # which hold what they use, too
        inside = module.__name__ if own else ""
        names = {n: v for n, v in vars(module).items() if str(getattr(v, "__module__", "")).startswith(inside)}
        found |= {f"{home}.{name}": value for name, value in names.items()}
    for owner in (dl.Tensor, nn.Linear, optim.Adam):
        found |= {f"{owner.__name__}.{name}": getattr(owner, name) for name in dir(owner)}

    def is_public(name: str, value: Any) -> bool:
        *_, last = name.split(".")
        own = str(getattr(value, "__module__", "")).startswith("dlsys")
        error = inspect.isclass(value) and issubclass(value, Exception)
        return callable(value) and own and not error and not last.startswith("_") and last not in (*LEFT_OUT, "made")

    return sorted((name, value) for name, value in found.items() if is_public(name, value))


def _owner(name: str) -> Any:
    """The first argument of a method; None of a function."""
    home = name.split(".")[0]
    if home in ("Linear", "Adam"):
        linear = nn.Linear(3, 2)
        return linear if home == "Linear" else optim.Adam(linear.parameters())
    return dl.ones(2, 3) if home == "Tensor" else None


def _call(draw: random.Random, name: str, function: Callable[..., Any]) -> tuple[list[Any], dict[str, Any]] | None:
    """Drawn arguments, as many as the function takes; None where Python itself refuses them."""
    pool = [*NUMBERS, *OBJECTS, *ARRAYS, slice(None), lambda *args: args, nn.Linear(2, 2), [dl.ones(2)], *tensors()]
    made, own = (function.__init__, [function]) if inspect.isclass(function) else (function, [])
    try:
        taken = list(inspect.signature(made).parameters.values())[len(own) :]
    except (TypeError, ValueError):
        return None
    placed = [p for p in taken if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    least, most = sum(p.default is p.empty for p in placed), len(placed)
    if any(p.kind is p.VAR_POSITIONAL for p in taken):
        most += 3
    args = [draw.choice(pool) for _ in range(draw.randint(least, min(most, least + 4)))]
    if args and draw.random() < FIRST:
        args[0] = draw.choice(tensors())
    if args and (owner := _owner(name)) is not None:
        args[0] = owner
    words = [p.name for i, p in enumerate(placed) if i >= len(args) and p.kind is p.POSITIONAL_OR_KEYWORD]
    words += [p.name for p in taken if p.kind is p.KEYWORD_ONLY]
    kwargs = {draw.choice(words): draw.choice(pool)} if words and draw.random() < 0.4 else {}
    try:
        inspect.signature(made).bind(*own, *args, **kwargs)
    except TypeError:
        return None
    return args, kwargs


def junk(seed: int, count: Counter, tell: Callable[[str], None]) -> None:
    """One call of a public function with arguments that make no sense."""
    draw = random.Random(seed)
    name, function = draw.choice(public())
    if (given := _call(draw, name, function)) is None:
        return
    args, kwargs = given
    before = os.getcwd()
    found: BaseException | None = None
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        os.chdir(folder)  # for what takes text as a path
        try:
            repr(function(*args, **kwargs))
        except (Exception, SystemExit) as error:  # noqa: BLE001 - counted
            found = error
        finally:
            os.chdir(before)
    if found is None or isinstance(found, DlsysError):
        count["right" if found is None else "clear error"] += 1
        return
    if name.split(".")[-1] in CALLERS and any(map(callable, [*args, *kwargs.values()][_owner(name) is not None :])):
        count["clear error"] += 1
        return
    count["other error"] += 1
    told = ", ".join([*map(_short, args), *(f"{key}={_short(value)}" for key, value in kwargs.items())])
    tell(f"{name}({told}): {type(found).__name__}: {str(found)[:100]}")


def _short(value: Any) -> str:
    return " ".join(repr(value).split())[:30]
