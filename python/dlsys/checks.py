"""Checks of arguments: numbers, words, flags. `owner` and `name` say in the error which argument of which function it
is. Also numbers and dtypes converted.
"""

from __future__ import annotations

import math
import numbers
import operator
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .errors import DlsysError, GraphError, ShapeError
from .system import warn

MOST_ELEMENTS = 2**60  # of 8 bytes each: beyond, an address does not fit into 64 bits


def too_large(shape: Sequence[int]) -> str:
    """The end of an error that says that an array of this shape is too large; empty if it is not. As in NumPy, an
    extent of 0 does not make the others acceptable."""
    if math.prod(max(extent, 1) for extent in shape) < MOST_ELEMENTS:
        return ""
    return f"an array of shape {tuple(shape)} has more bytes than any memory"


def integer(
    owner: str, name: str, value: Any, least: int | None = None, error: type[DlsysError] = GraphError
) -> int:
    """The value as an int, of at least `least`. Raises `error` for a smaller one and for what is no integer."""
    try:
        found = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        found = None
    if found is None or (least is not None and found < least):
        bound = "" if least is None else f" >= {least}"
        raise error(f"{owner}: {name} must be an integer{bound}, not {value!r}")
    return found


def integers(
    owner: str, name: str, value: Any, least: int, count: int = 2, error: type[DlsysError] = GraphError
) -> tuple[int, ...]:
    """A tuple of `count` ints, each at least `least`, from one int, which is repeated, or from `count` of them. Raises
    `error`."""
    given = value if isinstance(value, (tuple, list)) else (value,) * count
    try:
        found = tuple(integer(owner, name, n, least) for n in given)
    except GraphError:
        found = ()
    if len(found) != count:
        several = "a pair" if count == 2 else str(count)
        raise error(f"{owner}: {name} must be an integer >= {least} or {several} of them, not {value!r}")
    return found


def as_integers(value: Any) -> tuple[int, ...]:
    """An integer, or a tuple or list of them, as a tuple. Raises TypeError."""
    return tuple(map(operator.index, value if isinstance(value, (tuple, list)) else (value,)))


def extents(
    value: Any, owner: str = "", error: type[DlsysError] = ShapeError, signed: bool = False
) -> tuple[int, ...]:
    """An integer, or a tuple or list of them, as a shape, without negative extents unless `signed`. Raises `error`."""
    of = f"{owner}: " if owner else ""
    try:
        found = as_integers(value)
    except TypeError:
        raise error(f"{of}a shape must be a tuple of integers, not {value!r}") from None
    if not signed and min(found, default=0) < 0:
        raise error(f"{of}a shape has no negative extent: {found}")
    return found


def pair(owner: str, name: str, value: Any, least: int, error: type[DlsysError] = GraphError) -> tuple[int, int]:
    """A pair (rows, columns) of ints, each at least `least`, from an int or a pair. Raises `error`."""
    rows, columns = integers(owner, name, value, least, 2, error)
    return rows, columns


def number(owner: str, name: str, value: Any, most: float = math.inf, below: float = math.inf) -> float:
    """The value as a float: finite, from 0 to `most`, less than `below`. Raises GraphError."""
    found = _as_float(value)
    if not (0 <= found <= most and found < below):
        limits = f"in [0, {most:g}]" if most < math.inf else f"in [0, {below:g})" if below < math.inf else ">= 0"
        raise GraphError(f"{owner}: {name} must be a number {limits}, not {value!r}")
    return found


def in_dtype(value: float, dtype: Any) -> np.ndarray:
    """A constant in a dtype, as an array of shape (). Floats are rounded, beyond their range to infinity; for integers
    the fraction is dropped, and the value wraps around, as in NumPy's arithmetic of arrays."""
    known = np.dtype(dtype)
    if known.kind in "iu":
        limits = np.iinfo(known)
        low, high = int(limits.min), int(limits.max)
        value = (int(value) - low) % (high - low + 1) + low
    with np.errstate(over="ignore"):
        return np.asarray(value, known)


def _as_float(value: Any) -> float:
    """A real number, or an array of one, as a float: infinite beyond its range, NaN for anything else."""
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value[()]
    try:
        return math.nan if isinstance(value, bool) or not isinstance(value, numbers.Real) else float(value)
    except OverflowError:
        return math.inf


def real(owner: str, name: str, value: Any) -> float:
    """The value as a finite float. Raises GraphError."""
    found = _as_float(value)
    if not math.isfinite(found):
        raise GraphError(f"{owner}: {name} must be a finite number, not {value!r}")
    return found


def flag(owner: str, name: str, value: Any) -> bool:
    """The value as a bool; integers and None are accepted too. Raises GraphError."""
    if value is None or isinstance(value, (bool, np.bool_, int)):
        return bool(value)
    raise GraphError(f"{owner}: {name} must be True or False, not {value!r}")


def has_no_effect(owner: str, argument: str, reason: str) -> None:
    """Warns that an argument of PyTorch's, which a program has passed, changes nothing here."""
    warn(f"{owner}: {argument} has no effect: {reason}", RuntimeWarning)


def require_neutral(owner: str, arguments: Mapping[str, Any], neutral: Mapping[str, Any]) -> None:
    """Accepts PyTorch's keyword arguments that change no result here: those in `neutral`, with the one value that it
    has for them, or with any if that is None. Raises TypeError, as Python does, for others, GraphError for other
    values."""
    for name, value in arguments.items():
        if name not in neutral:
            raise TypeError(f"{owner}() got an unexpected keyword argument {name!r}")
        accepted = neutral[name]
        if accepted is not None and not (isinstance(value, (bool, int, float)) and value == accepted):
            raise GraphError(f"{owner}: {name} must be {accepted}, not {value!r}: other values are not supported")


def word(owner: str, name: str, value: Any, words: Sequence[str], error: type[DlsysError] = GraphError) -> str:
    """The value, which must be one of the words. Raises `error`."""
    if isinstance(value, str) and value in words:
        return value
    known = ", ".join(map(repr, words[:-1])) + f" or {words[-1]!r}"
    raise error(f"{owner}: {name} must be {known}, not {value!r}")


def dtype_named(value: Any) -> str | None:
    """NumPy's name of a dtype, given as text, as NumPy's or PyTorch's dtype or as a Python type; None for anything
    else.
    """
    try:
        return str(np.dtype(str(value).removeprefix("torch.") if "torch" in type(value).__module__ else value))
    except (TypeError, ValueError, SyntaxError):  # NumPy reads text as Python
        return None
