"""The IDX format of MNIST: a magic number, the sizes, the elements; big-endian.

The magic number is two zero bytes, a code of the element type, the number of dimensions
(Y. LeCun, C. Cortes, C. J. C. Burges: The MNIST database of handwritten digits).
"""

from __future__ import annotations

import math
import os
from pathlib import Path

import numpy as np

from ..errors import DataError
from .files import read

UNSIGNED_BYTE = 0x08


def read_idx(path: str | os.PathLike[str]) -> np.ndarray:
    """The array in an IDX file of unsigned bytes, plain or gzip. Raises DataError as `parse_idx` does."""
    return parse_idx(read(Path(path)), path)


def parse_idx(content: bytes, origin: object, rank: int | None = None) -> np.ndarray:
    """uint8 array of the shape that the header states; read-only, as it shares the memory of `content`.

    Raises DataError, naming `origin`, for another magic number (with `rank`: another number of dimensions) or
    a content longer or shorter than the header says.
    """
    if len(content) < 4:
        raise DataError(f"{origin} is no IDX file: it has {len(content)} bytes")
    expected = f"0x{UNSIGNED_BYTE:06x}{rank:02x}" if rank is not None else f"0x{UNSIGNED_BYTE:06x}NN"
    if content[:3] != bytes((0, 0, UNSIGNED_BYTE)) or (rank is not None and content[3] != rank):
        raise DataError(f"{origin}: magic number 0x{content[:4].hex()}, expected {expected}")
    dimensions = content[3]
    header = 4 + 4 * dimensions
    if len(content) < header:
        raise DataError(f"{origin} ends within its header, after {len(content)} of {header} bytes")
    shape = tuple(int.from_bytes(content[i : i + 4], "big") for i in range(4, header, 4))
    if (size := len(content) - header) != math.prod(shape):
        raise DataError(f"{origin}: the header says {shape}, {math.prod(shape)} bytes, but {size} follow")
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)
