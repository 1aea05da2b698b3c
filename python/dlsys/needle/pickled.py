"""The pickles of CIFAR-10's Python version, read by an unpickler that knows four names, those of an array of bytes."""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np

from ..data.files import read
from ..errors import DataError

PIXELS, CLASSES = 3 * 32 * 32, 10


def _encode(text: str, encoding: str) -> bytes:
    """The bytes that Python 3 has written as text, for Python 2."""
    if encoding != "latin1":
        raise ValueError(f"text in the encoding {encoding!r} is not read")
    return text.encode(encoding)


def _dtype(name: str | bytes, *flags: Any) -> np.dtype:
    """uint8, the dtype of pixels."""
    if name not in ("u1", "|u1", b"u1", b"|u1"):
        raise ValueError(f"an array of {name!r} is not read")
    return np.dtype(np.uint8)


def _reconstruct(*arguments: Any) -> np.ndarray:
    """An array, whose shape and numbers the pickle sets next."""
    return np.empty(0, np.uint8)


_NAMES = {"ndarray": "numpy.ndarray", "_reconstruct": _reconstruct, "dtype": _dtype, "encode": _encode}
_MODULES = ("numpy", "numpy.core.multiarray", "numpy._core.multiarray", "_codecs")


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """The object that a pickle names. Raises UnpicklingError for all names but four, so that no file runs code."""
        if module in _MODULES and name in _NAMES:
            return _NAMES[name]
        raise pickle.UnpicklingError(f"a pickle that names {module}.{name} is not read")


def read_batch(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Pixels, uint8 (n, 3072), and labels, int64 (n,), 0 to 9, of a file. Raises DataError for any other."""
    content = read(path)
    try:
        found = _Unpickler(io.BytesIO(content), encoding="bytes").load()
        entries = {key.decode() if isinstance(key, bytes) else key: value for key, value in found.items()}
        pixels, labels = entries["data"].reshape(-1, PIXELS), entries["labels"]
        if not isinstance(labels, list) or not all(type(label) is int for label in labels):
            raise ValueError("its labels are no list of integers")
        if len(labels) != len(pixels):
            raise ValueError(f"it has {len(pixels)} images and {len(labels)} labels")
        if labels and not 0 <= min(labels) <= max(labels) < CLASSES:
            raise ValueError(f"its labels are {min(labels)} to {max(labels)}, expected 0 to {CLASSES - 1}")
    except Exception as error:  # noqa: BLE001 - a damaged pickle may raise any
        told = f"it has no {error}" if isinstance(error, KeyError) else str(error)
        raise DataError(f"{path} is no batch of CIFAR-10: {told}") from None
    return np.ascontiguousarray(pixels), np.array(labels, np.int64)
