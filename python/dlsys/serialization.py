"""Files of parameters in safetensors' format. Values that are no arrays, and the nesting, are JSON in the header.

Each file has the SHA-256 of all its bytes, computed with zeros in place of the checksum; `load` compares it.

Nothing is unpickled. A file is written under a temporary name, flushed to the disk, and renamed: a process that is
killed at any moment leaves the old file or the new one (and perhaps a ``.tmp`` file beside it).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from .checks import has_no_effect
from .errors import DataError, DTypeError
from .storage import read_file, write_atomically
from .system import memory

BFLOAT16 = "BF16"
DTYPES = {
    "BOOL": "bool",
    **{f"U{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)},
    **{f"I{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
    **{f"F{bits}": f"float{bits}" for bits in (16, 32, 64)},
}
"""safetensors' name -> NumPy's."""
TREE = "dlsys.tree"
"""The header's entry with the saved object as JSON, in which arrays are names."""
CHECKSUM = "dlsys.sha256"
"""The header's entry with the checksum."""
HEADER_LIMIT = 100_000_000
"""Bytes of the largest header that safetensors reads."""


def save(obj: Any, path: str | os.PathLike[str] | BinaryIO, metadata: Mapping[str, str] | None = None) -> None:
    """Writes `obj` as a safetensors file, replacing `path` in one step; `load` returns it again.

    Args:
        obj: arrays (NumPy's, or objects with a method `numpy`, such as tensors, or a field `value`), numbers, text,
            True, False and None, in nested dictionaries, lists and tuples: a `state_dict`, or {"model":
            model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3}. Keys are text or integers. An array's
            name in the file is its path, "model.fc.weight"; other values are JSON in the file's header.
        path: the file; or an open one, as io.BytesIO, to which it is written as it is.
        metadata: text -> text for the file's header.

    Raises DTypeError, which names the place, for values of other types, DataError if the file cannot be written.
    """
    from safetensors.numpy import save as serialized

    if isinstance(obj, (str, os.PathLike)):
        told = f"the first argument is what to save, the second the path; the first is the path {str(obj)!r}"
        raise DTypeError(f"save: {told}")
    target = path if hasattr(path, "write") else as_path("save", path)
    for key, text in (metadata or {}).items():
        if not isinstance(key, str) or not isinstance(text, str):
            raise DTypeError(f"save: metadata are text -> text, given {key!r}: {type(text).__name__}")
    arrays: dict[str, np.ndarray] = {}
    try:
        tree = packed(obj, "", arrays)
    except RecursionError:
        raise DTypeError("save: the dictionaries and lists contain themselves, or are nested too deeply") from None
    header = dict(metadata or {})
    for key in {TREE, CHECKSUM} & header.keys():
        raise DTypeError(f"save: the metadata {key!r} belong to the file format")
    if tree != {"dict": {name: {"array": name} for name in arrays}}:  # else any other reader's file
        header[TREE] = json.dumps(tree)
    header[CHECKSUM] = _ZEROS.decode()
    content = serialized(arrays, header)
    if (length := int.from_bytes(content[:8], "little")) > HEADER_LIMIT:
        raise DataError(f"{path}: names and metadata take {length} bytes, the format allows {HEADER_LIMIT}")
    if isinstance(target, Path):
        write(target, _with_checksum(content))
    else:
        target.write(_with_checksum(content))


def load(path: str | os.PathLike[str] | BinaryIO, map_location: Any = None, *, weights_only: bool = True) -> Any:
    """The object that `save` has written, with writable NumPy arrays of the stored dtypes (bfloat16, which NumPy lacks,
    becomes float32: the same values); for other safetensors files a dictionary of name -> array. `path` may be an open
    file, of which the rest is read.

    `map_location` and `weights_only` are PyTorch's and have no effect, which a warning says: values are NumPy's, and
    nothing is unpickled. Raises DataError, which names the file and the cause, for a file that is missing, damaged or
    not in safetensors' format, and for one larger than half the memory, since loading holds it twice. Raises
    DTypeError for an argument that is no path.
    """
    if map_location is not None:
        has_no_effect("load", "map_location", "values are NumPy's")
    if not weights_only:
        has_no_effect("load", "weights_only=False", "nothing is unpickled")
    arrays, metadata = read(path if hasattr(path, "read") else as_path("load", path))
    if TREE not in metadata:
        return arrays
    try:
        return unpacked(json.loads(metadata[TREE]), arrays)
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise DataError(f"{path} is damaged: its header's {TREE!r}: {error!r}") from None


def as_path(function: str, path: Any) -> Path:
    """The argument as a path. Raises DTypeError."""
    if not isinstance(path, (str, os.PathLike)):
        raise DTypeError(f"{function}: the path must be text or a pathlib.Path, not {type(path).__name__}")
    if "\0" in os.fspath(path):
        raise DataError(f"{function}: the path {os.fspath(path)!r} has a zero byte, which no file's name has")
    return Path(path)


# Values ----------------------------------------------------------------------------------------------------


def packed(value: Any, place: str, arrays: dict[str, np.ndarray]) -> Any:
    """`value` as JSON, with its arrays put into `arrays`. Plain values and lists stand for themselves; an object has
    one key: "array", and its name; "tuple", and its entries; "dict", and its entries, as pairs where a key is no text.
    Raises DTypeError.
    """
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, (int, float)) and not isinstance(value, np.generic):
        return _integer(value, place) if isinstance(value, int) else float(value)
    if isinstance(value, Mapping):
        for key in value:
            if isinstance(key, bool) or not isinstance(key, (str, int)):
                raise DTypeError(f"save: names are text or integers, given {key!r}{f' in {place!r}' if place else ''}")
            if isinstance(key, int):
                _integer(key, place)
        entries = [(k, packed(item, _below(place, k), arrays)) for k, item in value.items()]
        return {"dict": dict(entries) if all(isinstance(key, str) for key in value) else entries}
    if isinstance(value, (list, tuple)):
        items = [packed(item, _below(place, number), arrays) for number, item in enumerate(value)]
        return items if isinstance(value, list) else {"tuple": items}
    if hasattr(value, "state_dict"):
        what = f"{place!r}: " if place else ""
        raise DTypeError(f"save: {what}save {type(value).__name__}'s state_dict()")
    if place == "__metadata__":
        raise DTypeError("save: the name '__metadata__' belongs to the file format")
    if "\0" in place:
        raise DTypeError(f"save: the name {place!r} has a zero byte, which other readers take for its end")
    name = place or "tensor"
    array = as_array(name, value)
    while name in arrays:  # {"a": {"b": x}, "a.b": y}
        name += "'"
    arrays[name] = array
    return {"array": name}


def _integer(value: int, place: str) -> int:
    """The value as JSON has it. Raises DTypeError for one that Python writes down no digits of."""
    try:
        str(value)
    except ValueError:
        where = f" in {place!r}" if place else ""
        told = f"an integer of {value.bit_length()} bits{where} has more digits than Python reads"
        raise DTypeError(f"save: {told}: save its bytes as an array") from None
    return int(value)


def _below(place: str, key: Any) -> str:
    return f"{place}.{key}" if place else str(key)


def unpacked(tree: Any, arrays: Mapping[str, np.ndarray]) -> Any:
    """The values of which `packed` made `tree`. Raises LookupError, TypeError or ValueError where it is damaged."""
    if isinstance(tree, list):
        return [unpacked(item, arrays) for item in tree]
    if not isinstance(tree, dict):
        return tree
    ((kind, inner),) = tree.items()
    if kind == "array":
        return arrays[inner]
    if kind == "tuple":
        return tuple(unpacked(item, arrays) for item in inner)
    if kind != "dict":
        raise ValueError(f"no kind of value: {kind!r}")
    return {key: unpacked(item, arrays) for key, item in (inner.items() if isinstance(inner, dict) else inner)}


def as_array(name: str, value: Any) -> np.ndarray:
    """`value` as a C-contiguous array of a dtype that the format has. Raises DTypeError."""
    if not isinstance(value, (np.ndarray, np.generic)):
        if callable(getattr(value, "numpy", None)):
            value = value.numpy()
        elif hasattr(value, "value"):
            return as_array(name, value.value)
        elif not isinstance(value, (bool, int, float)):
            raise DTypeError(f"save: {name!r} is no array: {type(value).__name__}")
    array = np.asarray(value, order="C")
    if array.dtype.name not in DTYPES.values():
        raise DTypeError(f"save: {name!r} has dtype {array.dtype}; a file holds {', '.join(DTYPES.values())}")
    return array


# Files -----------------------------------------------------------------------------------------------------


_ZEROS = b"0" * 64
_STATED = re.compile(rb'"dlsys\.sha256":"([0-9a-f]{64})"')


def _with_checksum(content: bytes) -> bytes:
    """The file's bytes with their checksum in place of its zeros."""
    stated = _STATED.search(content)
    assert stated is not None
    return content[: stated.start(1)] + hashlib.sha256(content).hexdigest().encode() + content[stated.end(1) :]


def _require_checksum(path: object, content: bytes) -> bool:
    """Whether the bytes state their checksum. Raises DataError where it is not theirs."""
    stated = _STATED.search(content, 8, 8 + min(int.from_bytes(content[:8], "little"), HEADER_LIMIT))
    if stated is None:
        return False
    view = memoryview(content)
    actual = hashlib.sha256(view[: stated.start(1)])
    actual.update(_ZEROS)
    actual.update(view[stated.end(1) :])
    if actual.hexdigest().encode() != stated[1]:
        told = diagnosis(content, ValueError())
        told = told if "truncated" in told else "is damaged: its bytes are not those of its checksum"
        raise DataError(f"{path} {told}")
    return True


def last_good(folder: Path, damaged: Path) -> Path | None:
    """The latest other checkpoint of a folder that is whole; None where there is none."""
    found = [path for path in folder.glob("*.safetensors") if path != damaged]
    for path in sorted(found, key=lambda path: path.stat().st_mtime, reverse=True):
        with contextlib.suppress(DataError):
            load(path)
            return path
    return None


def read(path: str | os.PathLike[str] | BinaryIO) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Arrays and metadata of a safetensors file; DataError if it is none, or is not what its checksum says."""
    from safetensors import SafetensorError, deserialize

    # Read at once, not mapped: it stays one file even while another process replaces or cuts it.
    content = read_file(path, memory() // 2) if isinstance(path, (str, os.PathLike)) else path.read()
    is_checked = _require_checksum(path, content)
    try:
        tensors = deserialize(content)
        length = int.from_bytes(content[:8], "little")
        metadata = json.loads(content[8 : 8 + length]).get("__metadata__") or {}
    except (SafetensorError, ValueError, RecursionError) as error:
        raise DataError(f"{path} {diagnosis(content, error)}") from None
    del content
    if not is_checked and {TREE, CHECKSUM} & metadata.keys():
        raise DataError(f"{path} is damaged: it has no checksum")
    arrays = {}
    for name, tensor in tensors:
        try:
            arrays[name] = _array(tensor["dtype"], tensor.pop("data")).reshape(tensor["shape"])
        except KeyError:
            raise DataError(f"{path}: {name!r} is of dtype {tensor['dtype']}, which NumPy lacks") from None
        except ValueError as error:  # of more axes than NumPy has, or extents beside a 0 beyond all memory
            raise DataError(f"{path}: {name!r} is of shape {tensor['shape']}: {error}") from None
    return arrays, metadata


def _array(stored: str, data: bytes) -> np.ndarray:
    """Bytes as a row of numbers, writable, of the dtype that NumPy has for safetensors'. Raises KeyError."""
    if stored == BFLOAT16:  # the upper half of a float32
        return (np.frombuffer(data, "<u2").astype(np.uint32) << np.uint32(16)).view(np.float32)
    if stored == "BOOL":  # any byte but 0 is true
        return np.frombuffer(data, np.uint8) != 0
    dtype = np.dtype(DTYPES[stored])
    return np.frombuffer(data, dtype.newbyteorder("<")).astype(dtype)


def diagnosis(content: bytes, error: Exception) -> str:
    """Says of a file that safetensors refuses what is wrong, as the rest of a sentence."""
    if not content:
        return "is empty"
    length = int.from_bytes(content[:8], "little")
    if content[8:9] != b"{" or length > HEADER_LIMIT:
        return f"is no safetensors file: {error}; pickles, as PyTorch's, are never read here"
    if (end := 8 + length) > len(content):
        return f"is truncated: it has {len(content)} bytes, its header alone takes {end}"
    with contextlib.suppress(ValueError, TypeError, LookupError, AttributeError, RecursionError):
        header = json.loads(content[8:end])
        ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
        if (expected := end + max(ends, default=0)) > len(content):
            return f"is truncated: it has {len(content)} bytes of {expected}"
    return f"is a damaged safetensors file: {error}"


def write(path: Path, content: bytes) -> None:
    """Writes a file whole or not at all. Raises DataError."""
    try:
        write_atomically(path, content)
    except OSError as error:
        raise DataError(f"{path} cannot be written: {error.strerror or error}") from None
