"""Data sets, which have a length and are indexed, and how their samples become batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .. import checks
from ..errors import DlsysError, DTypeError, IndexRangeError, ShapeError
from ..graph import DTYPES, is_node


class DataArgumentError(DlsysError, ValueError):
    """An argument that a data set, a loader or a transform cannot work with."""


class Dataset:
    """Base of data sets: a subclass defines `__len__`, the number of samples, and `__getitem__`, sample number i.

    A sample is an array, a tensor, a number, or a tuple of these. A subclass may also define `batch(indices)`, which
    returns the stacked samples of an array of indices, shape (n,), if it can do so at once.
    """


class TensorDataset(Dataset):
    """Arrays of one length n; sample i is the tuple of their rows i. If one of them is a tensor of dlsys, samples and
    batches are tensors, else NumPy arrays. Raises ShapeError for no arrays, 0-d ones or different lengths."""

    def __init__(self, *arrays: Any) -> None:
        self.tensors = arrays
        self.arrays: tuple[np.ndarray, ...] = tuple(np.asarray(array) for array in arrays)
        shapes = [array.shape for array in self.arrays]
        if () in shapes or len({shape[0] for shape in shapes}) != 1:
            raise ShapeError(f"TensorDataset: needs arrays whose first axes have one extent, not of shapes {shapes}")

    def __len__(self) -> int:
        return len(self.arrays[0])

    def __getitem__(self, index: Any) -> tuple[Any, ...]:
        """The samples of a number, a slice or an array of numbers: a tuple of one array for each tensor. Raises
        IndexRangeError for an index out of range, DataArgumentError for one of another kind."""
        try:
            rows = tuple(array[index] for array in self.arrays)
        except (IndexError, TypeError, ValueError) as error:
            kind = IndexRangeError if isinstance(error, IndexError) else DataArgumentError
            raise kind(f"TensorDataset of {len(self)} samples: {error}") from None
        return as_tensors(rows) if any(is_node(array) for array in self.tensors) else rows

    batch = __getitem__  # which accepts an array of indices, too


class Subset(Dataset):
    """The samples of a data set with these numbers, in their order."""

    def __init__(self, dataset: Any, indices: Sequence[int]) -> None:
        self.dataset, self.indices = dataset, indices

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: Any) -> Any:
        return self.dataset[int(self.indices[index])]

    def batch(self, indices: np.ndarray) -> Any:
        return fetch_batch(self.dataset, np.asarray(self.indices, np.int64)[indices])


def random_split(dataset: Any, lengths: Sequence[float], generator: Any = None) -> list[Subset]:
    """Parts of a data set that share no sample, drawn by a `dlsys.random.Generator`, the default one for None.

    Lengths are integers that add up to the data set's, or shares that add up to 1; what these leave over goes to the
    first parts. Raises DataArgumentError for others.
    """
    from ..random import default_generator  # here: it imports TVM

    size, sizes = len(dataset), list(lengths)
    if abs(sum(sizes) - 1) < 1e-9 and all(0 <= share <= 1 for share in sizes):
        sizes = [int(size * share) for share in sizes]
        sizes = [n + (i < size - sum(sizes)) for i, n in enumerate(sizes)]
    counts = [integer("random_split", "a length", n, 0) for n in sizes]
    if sum(counts) != size:
        raise DataArgumentError(f"random_split: lengths {list(lengths)} do not add up to {size} samples")
    order = (default_generator if generator is None else generator).numpy().permutation(size)
    return [Subset(dataset, part.tolist()) for part in np.split(order, np.cumsum(counts[:-1]))]


def fetch_batch(dataset: Any, indices: np.ndarray) -> Any:
    """The stacked samples of any object with `__getitem__`. Its method `batch` is used, if it has one, unless a
    subclass of the class that defines `batch` has overridden `__getitem__`."""
    methods = (name for owner in type(dataset).__mro__ for name in ("batch", "__getitem__") if name in vars(owner))
    if next(methods, None) == "batch":
        return dataset.batch(indices)
    return default_collate([dataset[int(index)] for index in indices])


def default_collate(samples: Sequence[Any]) -> Any:
    """A list of samples as one batch: arrays and numbers stacked, tuples part by part.

    n arrays of shape s give one of (n, *s); Python's int, float and bool give int64, float64 and bool; tuples and lists
    give a tuple, dictionaries one with the same keys; strings stay as they are. The results are tensors of dlsys if the
    first sample is one, else NumPy arrays. Raises ShapeError for samples of different shapes, DTypeError for other
    types.
    """
    if len(samples) == 0:
        raise DataArgumentError("default_collate: no samples to stack")
    if len(structures := {_structure(sample) for sample in samples}) > 1:
        different = ", ".join(sorted(structures))
        raise ShapeError(f"default_collate: samples of {different} cannot be stacked: use a `collate_fn` that can")
    first = samples[0]
    if isinstance(first, Mapping):
        return {key: default_collate([sample[key] for sample in samples]) for key in first}
    if isinstance(first, (tuple, list)):
        return tuple(map(default_collate, zip(*samples, strict=True)))
    if isinstance(first, (str, bytes)):
        return samples
    stacked = np.stack([np.asarray(sample) for sample in samples])
    if stacked.dtype.kind not in "biuf":
        raise DTypeError(f"default_collate: samples of {stacked.dtype}: use a `collate_fn` that stacks these")
    return as_tensors(stacked) if is_node(first) else stacked


def _structure(sample: Any) -> str:
    """A text that is equal for samples of one batch: a dictionary's keys, a tuple's length, or an array's shape."""
    if isinstance(sample, Mapping):
        return f"keys {sorted(map(str, sample))}"
    if isinstance(sample, (tuple, list)):
        return f"{len(sample)} parts"
    return "text" if isinstance(sample, (str, bytes)) else str(np.shape(sample))


def as_tensors(batch: Any) -> Any:
    """A batch with tensors in place of arrays, of the dtypes that operators take."""
    from ..tensors import tensor  # here: it imports TVM, which data sets of arrays do not need

    if isinstance(batch, Mapping):
        return {key: as_tensors(part) for key, part in batch.items()}
    if isinstance(batch, (tuple, list)):
        return batch if batch and isinstance(batch[0], (str, bytes)) else tuple(map(as_tensors, batch))
    if not isinstance(batch, (np.ndarray, np.generic)) or batch.dtype.kind not in "biuf":
        return batch
    return tensor(batch, dtype=nearest_dtype(batch.dtype))


def nearest_dtype(dtype: np.dtype) -> str:
    """The dtype of operators that numbers of this dtype are converted to: itself, float32 for half precision, int64 for
    other integers."""
    return str(dtype) if str(dtype) in DTYPES else "float32" if dtype.kind == "f" else "int64"


def integer(owner: str, name: str, value: Any, least: int = 1) -> int:
    """`value` as an int; DataArgumentError unless it is an integer >= `least`."""
    return checks.integer(owner, name, value, least, DataArgumentError)
