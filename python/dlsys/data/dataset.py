"""Data sets: something of a length, indexed; whole arrays, parts of data sets, batches."""

from __future__ import annotations

import numbers
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import DlsysError, DTypeError, IndexRangeError, ShapeError
from ..graph import DTYPES, Node


class DataArgumentError(DlsysError, ValueError):
    """An argument that a data set, a loader or a transform cannot work with."""


class Dataset:
    """A number of samples: a subclass says how many, `__len__`, and gives one by its number, `__getitem__`.

    A sample is an array, a tensor, a number, or a tuple or dictionary of these. A subclass that can fetch many at once
    may have a method `batch` too: (n,) numbers of samples -> the samples, stacked.
    """

    def __len__(self) -> int:
        raise NotImplementedError(f"{type(self).__name__} has no __len__")

    def __getitem__(self, index: Any) -> Any:
        raise NotImplementedError(f"{type(self).__name__} has no __getitem__")


class TensorDataset(Dataset):
    """Arrays of one length n; sample i is the tuple of their rows i. Where one is a tensor of dlsys, samples and
    batches are tensors, else arrays of NumPy.

    Raises ShapeError for 0-d arrays or lengths that differ.
    """

    def __init__(self, *arrays: Any) -> None:
        self.tensors = arrays
        self.arrays = tuple(np.asarray(array) for array in arrays)
        self._as_tensors = any(isinstance(array, Node) for array in arrays)
        if not self.arrays:
            raise DataArgumentError("TensorDataset: needs at least one array")
        shapes = [array.shape for array in self.arrays]
        if () in shapes:
            raise ShapeError(f"TensorDataset: arrays need a first axis, given shapes {_listed(shapes)}")
        if len({shape[0] for shape in shapes}) > 1:
            raise ShapeError(f"TensorDataset: arrays of different lengths: {_listed(shapes)}")

    def __len__(self) -> int:
        return len(self.arrays[0])

    def __getitem__(self, index: Any) -> tuple[Any, ...]:
        found = tuple(array[index] for array in self.arrays)
        return as_tensors(found) if self._as_tensors else found

    def batch(self, indices: np.ndarray) -> Any:
        if len(indices) and not -len(self) <= indices.min() <= indices.max() < len(self):
            wrong = indices[(indices < -len(self)) | (indices >= len(self))][0]
            raise IndexRangeError(f"TensorDataset: sample {wrong} is out of range for {len(self)}")
        found = tuple(array[indices] for array in self.arrays)  # copies, never views of the data
        return as_tensors(found) if self._as_tensors else found


# Batches ---------------------------------------------------------------------------------------------------


def fetch_batch(dataset: Any, indices: np.ndarray) -> Any:
    """The samples of any object with `__getitem__`, stacked; at once by its method `batch`, unless a subclass of the
    class that has it makes samples of its own."""
    for owner in type(dataset).__mro__:
        if "batch" in vars(owner):
            return dataset.batch(indices)
        if "__getitem__" in vars(owner):
            break
    return default_collate([dataset[int(index)] for index in indices])


def default_collate(samples: Sequence[Any]) -> Any:
    """A list of samples as one batch: arrays and numbers stacked, tuples and dictionaries part by part.

    n arrays of shape s give one of (n, *s); Python's int, float and bool give int64, float64 and bool; tuples and lists
    give a tuple, dictionaries a dictionary. Arrays of NumPy; tensors of dlsys, all of them, where a sample holds one.
    Raises ShapeError for samples that do not fit each other, DTypeError for anything else.
    """
    if len(samples) == 0:
        raise DataArgumentError("default_collate: no samples to stack")
    batch = _stacked(samples)
    return as_tensors(batch) if _holds_tensor(samples[0]) else batch


def _holds_tensor(sample: Any) -> bool:
    if isinstance(sample, (tuple, list)):
        return any(map(_holds_tensor, sample))
    return any(map(_holds_tensor, sample.values())) if isinstance(sample, Mapping) else isinstance(sample, Node)


def as_tensors(batch: Any) -> Any:
    """A batch with tensors in place of arrays, of the dtypes that operators take."""
    from ..tensors import tensor  # imports TVM, which data sets of arrays need not pay for

    if isinstance(batch, (tuple, list)):
        known = type(batch) in (tuple, list)  # not one with names
        return type(batch)(as_tensors(part) for part in batch) if known else batch
    if isinstance(batch, dict):
        return {key: as_tensors(part) for key, part in batch.items()}
    if not isinstance(batch, (np.ndarray, np.generic)) or batch.dtype.kind not in "biuf":
        return batch
    return tensor(batch, dtype=nearest_dtype(batch.dtype))


def nearest_dtype(dtype: np.dtype) -> str:
    """The dtype that operators take numbers of this one in: float32 for halves, int64 for other integers."""
    return str(dtype) if str(dtype) in DTYPES else "float32" if dtype.kind == "f" else "int64"


def _stacked(samples: Sequence[Any]) -> Any:
    """The samples as one batch; see `default_collate`."""
    first = samples[0]
    if isinstance(first, (tuple, list)):
        _same_kind(samples, (tuple, list))
        if len({len(sample) for sample in samples}) > 1:
            counts = sorted({len(sample) for sample in samples})
            raise ShapeError(f"default_collate: samples of {' and '.join(map(str, counts))} parts")
        return tuple(_stacked(part) for part in zip(*samples, strict=True))
    if isinstance(first, Mapping):
        _same_kind(samples, (Mapping,))
        for sample in samples:
            if missing := sorted(map(repr, sample.keys() ^ first.keys())):
                raise ShapeError(f"default_collate: not every sample has the key {', '.join(missing)}")
        return {key: _stacked([sample[key] for sample in samples]) for key in first}
    for kind, dtype in ((bool, np.bool_), (int, np.int64), (float, np.float64)):
        if all(type(sample) is kind for sample in samples):
            return np.array(samples, dtype)
    _same_kind(samples, (np.ndarray, np.generic, Node, int, float))
    arrays = [np.asarray(sample) for sample in samples]
    if any(array.dtype.kind in "OSUV" for array in arrays):
        raise DTypeError(f"default_collate: arrays of {arrays[0].dtype}; give the loader a `collate_fn` for these")
    if len(shapes := {array.shape for array in arrays}) > 1:
        raise ShapeError(
            f"default_collate: samples of shapes {_listed(sorted(shapes))} cannot be stacked; "
            "give the loader a `collate_fn` that can"
        )
    return np.stack(arrays)


def checked_seed(owner: str, seed: Any) -> int:
    """`seed` as an int; DataArgumentError unless it is an integer >= 0."""
    if not isinstance(seed, numbers.Integral) or seed < 0:
        raise DataArgumentError(f"{owner}: seed must be an integer >= 0, not {seed!r}")
    return int(seed)


def _same_kind(samples: Sequence[Any], kinds: tuple[type, ...]) -> None:
    """Raises DTypeError unless every sample is of one of `kinds`."""
    for sample in samples:
        if not isinstance(sample, kinds):
            others = sorted({type(other).__name__ for other in samples})
            raise DTypeError(
                f"default_collate: samples of {', '.join(others)}; it stacks arrays, numbers, and tuples and "
                "dictionaries of these: give the loader a `collate_fn` for others"
            )


def _listed(shapes: Sequence[tuple[int, ...]]) -> str:
    return ", ".join(map(str, shapes))
