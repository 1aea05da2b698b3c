"""The pickles of CIFAR-10's Python version, read without Python's unpickler.

Nothing that a file names is called, and nothing that it nests is hashed, printed or copied: a file of 200 bytes may
hold a pair of pairs of pairs, sixty deep. So no file runs code, hangs, or takes more memory than its length explains.
"""

from __future__ import annotations

import pickletools
from pathlib import Path
from typing import Any

import numpy as np

from ..data.files import read
from ..errors import DataError

MOST_STEPS = 1_000_000
"""Of a pickle; a batch of 10,000 images has some 40,000."""
PIXELS, CLASSES = 3 * 32 * 32, 10
_RECONSTRUCT = [(f"numpy.{core}.multiarray", "_reconstruct") for core in ("core", "_core")]
_DTYPE, _ENCODE = ("numpy", "dtype"), ("_codecs", "encode")
_VALUES = {
    *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"),
    *("STRING", "BINSTRING", "SHORT_BINSTRING", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8"),
    *("UNICODE", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"),
}
"""The steps whose argument is the value."""
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}


class _Call:
    """A call that a pickle asks for: a function's module and name, the arguments, and the state of its result."""

    def __init__(self, name: tuple[str, str], arguments: Any) -> None:
        self.name = name
        self.arguments = arguments
        self.state: Any = ()


def read_batch(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Pixels, uint8 (n, 3072), and labels, int64 (n,), 0 to 9, of a file. Raises DataError for any other."""
    content = read(path)
    try:
        found = _dictionary(content)
        pixels = _bytes_of(found["data"]).reshape(-1, PIXELS)
        labels = found["labels"]
        if not isinstance(labels, list) or not all(type(label) is int for label in labels):
            raise ValueError("its labels are no list of integers")
        if len(labels) != len(pixels):
            raise ValueError(f"it has {len(pixels)} images and {len(labels)} labels")
        if labels and not 0 <= min(labels) <= max(labels) < CLASSES:
            raise ValueError(f"its labels are {min(labels)} to {max(labels)}, expected 0 to {CLASSES - 1}")
    except KeyError as error:
        raise DataError(f"{path} is no batch of CIFAR-10: it has no {error}") from None
    except (ValueError, TypeError, AttributeError, IndexError) as error:
        raise DataError(f"{path} is no batch of CIFAR-10: {error}") from None
    return pixels, np.array(labels, np.int64)


def _dictionary(content: bytes) -> dict[str, Any]:
    """The dictionary of a pickle, its keys as text, with a `_Call` for each of an array's parts. Raises ValueError,
    TypeError, AttributeError or LookupError for a pickle of anything else."""
    stack: list[Any] = []
    marks: list[int] = []
    memo: dict[int, Any] = {}
    value: Any
    for number, (code, value, _) in enumerate(pickletools.genops(content)):
        step = code.name
        if number == MOST_STEPS:
            raise ValueError(f"it has more than {MOST_STEPS} steps")
        if step in _VALUES:
            stack.append(value)
        elif step == "GLOBAL":
            stack.append(tuple(value.split(" ")))
        elif step in _CONSTANTS:
            stack.append(_CONSTANTS[step])
        elif step in ("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"):
            memo[len(memo) if step == "MEMOIZE" else value] = stack[-1]
        elif step in ("GET", "BINGET", "LONG_BINGET"):
            stack.append(memo[value])
        elif step in ("EMPTY_LIST", "EMPTY_DICT"):
            stack.append([] if step == "EMPTY_LIST" else {})
        elif step == "MARK":
            marks.append(len(stack))
        elif step in ("TUPLE", "LIST", "DICT", "APPENDS", "SETITEMS"):
            items = stack[(start := marks.pop()) :]
            del stack[start:]
            if step == "DICT":
                stack.append({})
            if step in ("TUPLE", "LIST"):
                stack.append(tuple(items) if step == "TUPLE" else items)
            elif step == "APPENDS":
                stack[-1].extend(items)
            else:
                _set_items(stack[-1], items)
        elif step in ("APPEND", "SETITEM", "TUPLE1", "TUPLE2", "TUPLE3", "REDUCE", "BUILD", "STACK_GLOBAL"):
            count = {"APPEND": 1, "TUPLE1": 1, "TUPLE3": 3, "BUILD": 1}.get(step, 2)
            items = [stack.pop() for _ in range(count)][::-1]
            if step == "APPEND":
                stack[-1].append(*items)
            elif step == "SETITEM":
                _set_items(stack[-1], items)
            elif step == "BUILD":
                stack[-1].state = items[0]
            elif step == "REDUCE":
                stack.append(_called(*items))
            else:
                stack.append(tuple(items))  # a function too is the pair of its module and name
        elif step == "STOP":
            if not isinstance(stack[-1], dict):
                raise ValueError("the pickle is of no dictionary")
            return stack[-1]
        elif step not in ("PROTO", "FRAME"):
            raise ValueError(f"a pickle with the step {step} is not read")
    raise ValueError("the pickle has no end")


def _set_items(entries: dict[str, Any], items: list[Any]) -> None:
    """Put keys and values, in turn, into a dictionary."""
    for key, value in zip(items[::2], items[1::2], strict=True):
        if not isinstance(entries, dict) or not isinstance(key, (str, bytes)):
            raise ValueError("it has a key that is no text")
        entries[_latin1(key)] = value


def _called(name: Any, arguments: Any) -> Any:
    """The value of a function that a pickle calls. Raises ValueError for a function that makes no array."""
    if not isinstance(name, tuple) or len(name) != 2 or not all(isinstance(part, str) for part in name):
        raise ValueError("a pickle that calls what is no function is not read")
    if name == _ENCODE and isinstance(arguments[0], str) and arguments[1:] == ("latin1",):
        return arguments[0]  # bytes are text of as many letters here
    if name == _DTYPE or name in _RECONSTRUCT:
        return _Call(name, arguments)
    raise ValueError(f"a pickle that names {'.'.join(name)[:80]} is not read")


def _latin1(value: Any) -> Any:
    return value.decode("latin1") if isinstance(value, bytes) else value


def _bytes_of(array: Any) -> np.ndarray:
    """The numbers of an array of bytes, uint8. Raises ValueError, TypeError or AttributeError."""
    if not isinstance(array, _Call) or array.name not in _RECONSTRUCT:
        raise ValueError("its data are no array")
    _, shape, dtype, is_fortran, content = array.state
    if dtype.name != _DTYPE or _latin1(dtype.arguments[0]) not in ("u1", "|u1"):
        raise ValueError("its data are no bytes")
    numbers = np.frombuffer(_latin1(content).encode("latin1"), np.uint8)
    return np.ascontiguousarray(numbers.reshape(shape, order="F" if is_fortran else "C"))
