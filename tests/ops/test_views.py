"""Views: offsets and strides of what operators move, and the slices that they are."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from dlsys import ops
from dlsys.ops.views import View
from hypothesis import given, settings
from hypothesis import strategies as st


def elements(view: View, array: np.ndarray) -> np.ndarray:
    """What a view has of an array."""
    index = np.full(view.shape, view.offset)
    for axis, stride in enumerate(view.strides):
        steps = [1] * len(view.shape)
        steps[axis] = -1
        index = index + stride * np.arange(view.shape[axis]).reshape(steps)
    return array.reshape(-1)[index]


def moved(data: st.DataObject, node: Any, shape: tuple[int, ...]) -> Any:
    """A slice, reshape, transpose or broadcast of a node."""
    kind = data.draw(st.sampled_from(["slice", "slice", "reshape", "transpose", "broadcast"]))
    if kind == "slice":
        limits = st.none() | st.integers(-3, 3)
        steps = st.sampled_from([None, 1, 2, -1])
        items = st.builds(slice, limits, limits, steps) | st.integers(0, 0) | st.none()
        key = [data.draw(items) for _ in shape]
        return ops.slice_op(node, tuple(key))
    if kind == "reshape":
        rest, found = math.prod(shape), []
        while rest > 1:
            found.append(data.draw(st.sampled_from([n for n in range(1, rest + 1) if rest % n == 0])))
            rest //= found[-1]
        return ops.reshape_op(node, tuple(found))
    if kind == "transpose":
        return ops.transpose_op(node, tuple(data.draw(st.permutations(range(len(shape))))))
    wide = [data.draw(st.integers(1, 3)) if extent == 1 else extent for extent in shape]
    return ops.broadcast_shape_op(node, (*[data.draw(st.integers(1, 2))] * data.draw(st.integers(0, 1)), *wide))


@pytest.mark.slow
@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.data(), st.sampled_from([(12,), (4, 6), (2, 3, 4), (3, 1, 8), ()]), st.integers(1, 4))
def test_views_compose(data: st.DataObject, shape: tuple[int, ...], count: int) -> None:
    array = np.arange(math.prod(shape)).reshape(shape)
    value, view, node = array, View.of(shape), ops.Variable("x", shape)
    for _ in range(count):
        if not value.size:
            break
        node = moved(data, ops.Variable("x", value.shape), value.shape)
        value = node.op.numpy(node, [value])
        view = node.op.view(node, view)
        if view is None:
            assert node.op.kind == "view"  # a reshape of what does not lie together
            return
        assert view.shape == value.shape
        np.testing.assert_array_equal(elements(view, array), value)
    flat = value.reshape(-1)
    lies = bool(flat.size) and np.array_equal(flat, np.arange(flat[0], flat[0] + flat.size))
    assert view.run == (flat[0] if lies else None)
    if (key := view.key(shape)) is not None:
        np.testing.assert_array_equal(array[key].reshape(-1), flat)
    elif flat.size and shape:  # no slice has it
        index = np.array(np.unravel_index(flat, shape))
        picked = [np.unique(own) for own in index]
        even = all(len(set(np.diff(own))) < 2 for own in picked)
        assert not (even and np.array_equal(array[np.ix_(*picked)].reshape(-1), flat))


def test_equal_views_are_equal() -> None:
    assert View.of((2, 1, 3)).strides == (3, 0, 1)
    x = View.of((4, 6))
    assert x.sliced((4, 1), (0, 2), (1, 5)) == x.sliced((4, 1), (0, 2), (1, 1))
    assert x.sliced((2, 6), (1, 0), (1, 1)).run == 6 and x.sliced((2, 3), (0, 0), (1, 1)).run is None
    assert x.reshaped((24,)).sliced((3,), (4,), (8,)).key((4, 6)) is None
    assert x.reshaped((24,)).sliced((8,), (1,), (3,)).key((4, 6)) == (slice(0, 4, 1), slice(1, 5, 3))
