"""Arrays taken apart and put together: slices and their gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from dlsys import autodiff as ad
from dlsys import ops
from dlsys.compiler import PASSES, run_passes
from helpers import evaluate, typed_graph
from hypothesis import given, settings
from hypothesis import strategies as st


def keys(shape: tuple[int, ...]) -> st.SearchStrategy[Any]:
    """Keys of a part of an array, often along one axis and of one of few places there."""

    def item(extent: int) -> st.SearchStrategy[Any]:
        ends = st.tuples(*[st.none() | st.integers(-extent, extent)] * 2).map(lambda pair: slice(*pair))
        some = [slice(i, i + 1) for i in range(extent)] + [slice(extent // 2), slice(extent // 2, None)]
        return ends | st.sampled_from([*some, slice(None, None, 2)]) | st.integers(-extent, extent - 1)

    one = st.integers(0, len(shape) - 1).flatmap(
        lambda axis: item(shape[axis]).map(lambda found: (*(slice(None),) * axis, found))
    )
    return one | item(shape[-1]).map(lambda found: (..., found)) | st.tuples(*map(item, shape)) | st.just((...,))


@pytest.mark.slow
@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.data(), st.sampled_from([(6,), (4, 6), (2, 3, 4)]), st.integers(1, 7), st.booleans())
def test_the_gradient_of_what_is_taken_apart(
    data: st.DataObject, shape: tuple[int, ...], count: int, is_known: bool
) -> None:
    x = ad.Variable("x", *[shape, "float64"] if is_known else [])
    want, feed, terms = np.zeros(shape), {x: np.zeros(shape)}, []
    for _ in range(count):
        if data.draw(st.integers(0, 3)):
            key = data.draw(keys(shape))
            pairs = [(x[key], want[key])]
        else:
            axis = data.draw(st.integers(-len(shape), len(shape) - 1))
            some = data.draw(st.sampled_from([shape[axis], 1, [1], [0, 2]]))
            pairs = list(zip(ad.split_op(x, some, axis), np.split(want, some, axis), strict=True))
            pairs = data.draw(st.permutations(pairs))[: data.draw(st.integers(1, len(pairs)))]
        for part, target in pairs:
            feed[weight := ad.Variable("w", target.shape, "float64")] = np.full(target.shape, float(len(feed)))
            terms.append(ops.reducesum_op(part * weight))
            if isinstance(target, np.ndarray):
                target += feed[weight]
            else:
                want[key] += feed[weight]
    (grad,) = ad.gradients(ad.sum_node_list(terms), [x])
    graph = run_passes(typed_graph([grad], [], {node: (v.shape, "float64") for node, v in feed.items()}), tuple(PASSES))
    for node in (grad, *graph.outputs):
        np.testing.assert_array_equal(evaluate([node], feed)[0], want)


@pytest.mark.parametrize("width", [4, 3])  # of 3, slices begin at no multiple of 16 bytes
def test_rows_of_a_slice_are_moved(width: int) -> None:
    """As those of attention's heads."""
    x = ad.Variable("x", (2, 5, 3, 4, width), "float32")
    parts = [x[:, :, i] for i in range(3)]
    moved = [ops.transpose_op(part, (0, 2, 1, 3)) for part in parts[:2]]
    executor = ad.Executor([*moved, ops.transpose_op(parts[2], (0, 2, 3, 1)), moved[0] * 2.0, parts[1]])
    given = np.arange(2 * 5 * 3 * 4 * width, dtype="float32").reshape(2, 5, 3, 4, width)
    found = executor.run({x: given}, convert_to_numpy_ret_vals=True)
    first = given[:, :, 0].swapaxes(1, 2)
    second, third = given[:, :, 1].swapaxes(1, 2), given[:, :, 2].transpose(0, 2, 3, 1)
    for got, expected in zip(found, [first, second, third, first * 2, given[:, :, 1]], strict=True):
        np.testing.assert_array_equal(got, expected)
