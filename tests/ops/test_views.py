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
    """A slice or transpose of a node."""
    if data.draw(st.booleans()):
        return ops.transpose_op(node, tuple(data.draw(st.permutations(range(len(shape))))))
    limits = st.none() | st.integers(-3, 3)
    steps = st.sampled_from([None, 1, 2, -1])
    items = st.builds(slice, limits, limits, steps) | st.integers(0, 0) | st.none()
    return ops.slice_op(node, tuple([data.draw(items) for _ in shape]))


@pytest.mark.slow
@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.data(), st.sampled_from([(12,), (4, 6), (2, 3, 4), (3, 1, 8), ()]), st.integers(1, 4))
def test_views_compose(data: st.DataObject, shape: tuple[int, ...], count: int) -> None:
    array = np.arange(math.prod(shape)).reshape(shape)
    value, view = array, View.of(shape)
    for _ in range(count):
        if not value.size:
            break
        node = moved(data, ops.Variable("x", value.shape), value.shape)
        value = node.op.numpy(node, [value])
        view = node.op.view(node, view)
        assert view.shape == value.shape
        np.testing.assert_array_equal(elements(view, array), value)
    flat = value.reshape(-1)
    lies = bool(flat.size) and np.array_equal(flat, np.arange(flat[0], flat[0] + flat.size))
    assert view.run == (flat[0] if lies else None)
