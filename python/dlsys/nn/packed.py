"""Sequences of several lengths in one batch."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import autodiff as ad
from ..autodiff import Node
from ..eager import known_shape, tensor
from ..errors import GraphError, ShapeError


class PackedSequence:
    """Sequences (length, batch, ...), padded to one length, and how long each is.

    Recurrent layers take it in place of a tensor, hold a sequence's state from its end on, and return one. Where
    PyTorch's holds the steps one behind another, this one holds the padded tensor: values that lie behind a sequence's
    end mean nothing. The lengths are part of the graph, so that a graph of variables is of these lengths alone.

    Attributes:
        padded: (length, batch, ...).
        lengths: int64 (batch,).
    """

    def __init__(self, padded: Node, lengths: np.ndarray) -> None:
        self.padded, self.lengths = padded, lengths

    def inside(self, rank: int) -> Node:
        """Booleans (length, batch, 1, ...) of `rank` axes: which steps are a sequence's."""
        length = (known_shape(self.padded) or (int(self.lengths.max()),))[0]
        steps = np.arange(length)[:, None] < self.lengths
        return tensor(steps.reshape(*steps.shape, *(1,) * (rank - 2)))


def pad_sequence(sequences: Sequence[Any], batch_first: bool = False, padding_value: float = 0.0) -> Node:
    """Sequences (length, ...) of known shapes, in one tensor (longest, batch, ...), with `batch_first` (batch, longest,
    ...), behind which each has `padding_value`. Raises GraphError for none, ShapeError where more than the lengths
    differ."""
    given = [value if isinstance(value, Node) else tensor(np.asarray(value)) for value in sequences]
    shapes = [known_shape(value) for value in given]
    if not given or None in shapes:
        raise GraphError("pad_sequence: needs a list of sequences of known shapes")
    known = [shape for shape in shapes if shape is not None]
    if any(not shape or shape[1:] != known[0][1:] for shape in known):
        raise ShapeError(f"pad_sequence: sequences differ in more than their lengths: {known}")
    longest = max(shape[0] for shape in known)
    padded = [
        ad.pad_op(value, [(0, longest - shape[0]), *[(0, 0)] * (len(shape) - 1)], padding_value)
        if shape[0] < longest
        else value
        for value, shape in zip(given, known, strict=True)
    ]
    return ad.stack_op(padded, 0 if batch_first else 1)


def pack_padded_sequence(
    input: Any, lengths: Any, batch_first: bool = False, enforce_sorted: bool = True
) -> PackedSequence:
    """Sequences (length, batch, ...), with `batch_first` (batch, length, ...), of known shape, and how long each is: a
    list, an array or a tensor of data. `enforce_sorted`: whether the longest must come first, as PyTorch asks for.
    Raises GraphError, ShapeError."""
    x = input if isinstance(input, Node) else tensor(np.asarray(input))
    shape = known_shape(x)
    if shape is None or len(shape) < 2:
        raise ShapeError(f"pack_padded_sequence: needs (length, batch, ...) of known shape, not {shape}")
    length, batch = (shape[1], shape[0]) if batch_first else shape[:2]
    found = np.asarray(lengths)
    if found.dtype.kind not in "iu" or found.shape != (batch,):
        raise GraphError(f"pack_padded_sequence: lengths must be {batch} integers, one of each sequence")
    if not batch or found.min() < 1 or found.max() > length:
        raise GraphError(f"pack_padded_sequence: lengths must be from 1 to {length}, not {found.tolist()}")
    if enforce_sorted and (np.diff(found.astype("int64")) > 0).any():
        told = "the longest sequence must come first, or pass enforce_sorted=False"
        raise GraphError(f"pack_padded_sequence: {told}: {found.tolist()}")
    return PackedSequence(ad.swapaxes_op(x, 0, 1) if batch_first else x, found.astype("int64"))


def pad_packed_sequence(
    sequence: PackedSequence,
    batch_first: bool = False,
    padding_value: float = 0.0,
    total_length: int | None = None,
) -> tuple[Node, Any]:
    """The sequences padded to the longest, or to `total_length`, and a tensor of their lengths. Raises GraphError."""
    if not isinstance(sequence, PackedSequence):
        raise GraphError(f"pad_packed_sequence: needs a PackedSequence, not {type(sequence).__name__}")
    longest = int(sequence.lengths.max())
    target = longest if total_length is None else operator.index(total_length)
    if target < longest:
        raise GraphError(f"pad_packed_sequence: total_length {target} is less than the longest sequence, {longest}")
    shape = known_shape(sequence.padded)
    if shape is None:
        raise GraphError(f"pad_packed_sequence: the shape of {sequence.padded.name} must be known here")
    padded = ad.where_op(sequence.inside(len(shape)), sequence.padded, padding_value)
    if target < shape[0]:
        padded = ad.slice_op(padded, (slice(0, target),))
    elif target > shape[0]:
        padded = ad.pad_op(padded, [(0, target - shape[0]), *[(0, 0)] * (len(shape) - 1)], padding_value)
    return ad.swapaxes_op(padded, 0, 1) if batch_first else padded, tensor(sequence.lengths)


def pack_sequence(sequences: Sequence[Any], enforce_sorted: bool = True) -> PackedSequence:
    """`pack_padded_sequence` of a list of sequences (length, ...). Raises GraphError, ShapeError."""
    lengths = [len(value) for value in sequences]
    return pack_padded_sequence(pad_sequence(sequences), lengths, enforce_sorted=enforce_sorted)


def unpad_sequence(padded_sequences: Node, lengths: Any, batch_first: bool = False) -> list[Node]:
    """The sequences (length, ...) of a tensor that `pad_sequence` made."""
    x = padded_sequences if batch_first else ad.swapaxes_op(padded_sequences, 0, 1)
    return [ad.slice_op(x, (i, slice(0, int(length)))) for i, length in enumerate(np.asarray(lengths))]
