"""Settings of a thread for the nodes and kernels that it makes: the module call they belong to, whether gradients pass
through them, the precision of products, and whether kernels use our schedules."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import numpy as np

from .errors import DTypeError, GraphError
from .system import warn

HALVES = ("bfloat16", "float16")


class _Scopes(threading.local):
    """The settings.

    Attributes:
        part: the module call that makes nodes now; None outside.
        no_grad: whether gradients are off.
        modes: what `no_grad` was before each block that the thread is in.
        precision: the dtype of HALVES to which products may round float32 inputs on a GPU; None for float32.
        own_schedules: whether kernels are built with our schedules.
        origin: the node that new nodes replace, whose source line they take; None usually.
        differentiated: the node of whose gradient new nodes are a part; None usually.
        applies: whether a function's type is being asked for, so that it makes all its nodes.
        recording: what `dlsys.compile` notes as it calls a function; None outside.
    """

    def __init__(self) -> None:
        self.part: Any = None
        self.no_grad = False
        self.modes: list[bool] = []
        self.precision: str | None = None
        self.own_schedules = True
        self.origin: Any = None
        self.differentiated: Any = None
        self.applies = False
        self.recording: Any = None

    def notes(self) -> bool:
        """Whether one node may stand for a call on tensors, see `dlsys.ops.replay`."""
        own = self.__dict__  # the thread's
        return not own["applies"] and own["origin"] is own["recording"] is own["differentiated"] is None

    @contextlib.contextmanager
    def inside(self, **settings: Any) -> Iterator[None]:
        """Inside, these settings have these values."""
        own = vars(self)
        before = {name: own[name] for name in settings}
        own.update(settings)
        try:
            yield
        finally:
            own.update(before)


scopes: _Scopes = _Scopes()
Setting: TypeAlias = "contextlib._GeneratorContextManager[None]"
"""A context, or a decorator."""


def scope(part: Any) -> Setting:
    """Nodes made inside belong to this module call, which is printed after their source line."""
    return scopes.inside(part=part)


def precision(dtype: str | None) -> Setting:
    """Products made inside may round their inputs to this dtype, see `_Scopes`."""
    return scopes.inside(precision=dtype)


@contextlib.contextmanager
def autocast(device_type: str = "cuda", dtype: str = "bfloat16", enabled: bool = True) -> Iterator[None]:
    """A context or decorator: matrix products and convolutions made inside, and their gradients, may round their
    float32 inputs to `dtype` on a GPU, whose tensor cores multiply them and add in float32.

    "bfloat16" has 7 bits of mantissa and float32's range; "float16" has 10 bits, numbers beyond 65,504 become infinite
    and numbers below 6e-8 zero. Arrays stay float32. All other operators compute in float32, and so do products with
    fewer than 32 rows or columns. On the CPU nothing changes: `device_type` "cpu" says so in a RuntimeWarning, and so
    does the step of an optimizer within, of parameters on a CPU. `enabled=False` selects float32 within such a context.

    Raises DTypeError for another dtype, GraphError for another device.
    """
    if device_type not in ("cuda", "cpu"):
        raise GraphError(f'autocast: the device is "cuda" or "cpu", not {device_type!r}')
    if dtype not in HALVES:
        raise DTypeError(f"autocast: inputs are rounded to {' or '.join(HALVES)}, not {dtype!r}")
    if device_type == "cpu" and enabled:
        told = 'autocast: device_type="cpu" has no effect: products on a CPU compute in float32'
        warn(told, RuntimeWarning)
    own = dtype if enabled else None
    with precision(scopes.precision if device_type == "cpu" else own):
        yield


def default_schedules() -> Setting:
    """Inside, kernels are built with TVM's default loops instead of our schedules, for comparisons."""
    return scopes.inside(own_schedules=False)


# Gradients on and off, in PyTorch's words ------------------------------------------------------------------


def is_grad_enabled() -> bool:
    """Whether gradients pass through the nodes that are made now."""
    return not scopes.no_grad


def _switch(owner: str, mode: Any) -> bool:
    """True or False as it was given. Raises GraphError for anything else."""
    if not isinstance(mode, (bool, np.bool_)):
        raise GraphError(f"{owner}: takes True or False, not {mode!r}")
    return bool(mode)


class _Mode(contextlib.ContextDecorator):
    """A context or decorator; what is made inside is recorded with gradients on or off, by the thread that entered it:
    several threads may call one decorated function, or enter one mode, at once."""

    _enabled: bool

    def __init__(self) -> None:
        super().__init__()

    def __enter__(self) -> None:
        scopes.modes.append(scopes.no_grad)
        scopes.no_grad = not self._enabled

    def __exit__(self, *error: object) -> None:
        scopes.no_grad = scopes.modes.pop()


class no_grad(_Mode):
    """Inside, results do not require a gradient: none goes through the operators that are called there."""

    _enabled = False


class enable_grad(_Mode):
    """Inside, gradients go through, also within `no_grad`."""

    _enabled = True


class inference_mode(_Mode):
    """Inside, results require no gradient, as within `no_grad`; with `mode=False`, as within `enable_grad`."""

    def __init__(self, mode: bool = True) -> None:
        """Raises GraphError for what is neither True nor False."""
        self._enabled = not _switch("inference_mode", mode)


class set_grad_enabled(_Mode):
    """Gradients on or off from the call on; in a `with` block until its end, as a decorator within the function."""

    def __init__(self, mode: bool) -> None:
        """Raises GraphError for what is neither True nor False."""
        self._enabled = _switch("set_grad_enabled", mode)
        self._at_call: tuple[int, bool] | None = (threading.get_ident(), scopes.no_grad)
        scopes.no_grad = not self._enabled

    def __call__(self, function: Callable[..., Any]) -> Any:
        self._restore()
        return super().__call__(function)

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        self._restore()

    def _restore(self) -> None:
        """Undo what the call did, once and in the thread that made it."""
        if self._at_call is not None and self._at_call[0] == threading.get_ident():
            scopes.no_grad, self._at_call = self._at_call[1], None
