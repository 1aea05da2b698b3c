"""Random numbers: the words of Philox on every context, the distributions made of them, dropout."""

from __future__ import annotations

import dlsys as dl
import numpy as np
import pytest
from dlsys import autodiff as ad
from dlsys import compute, ops
from test_ops_moves import both, on_each_number_of_threads


def philox(counter: np.ndarray, key: np.ndarray) -> np.ndarray:
    words = [*counter[:, None]], [*key[:, None]]
    return np.ravel(compute.philox(*words, lambda n, dtype: np.dtype(dtype).type(n), lambda value: value))


def test_philox_gives_the_words_of_random123() -> None:
    # kat_vectors of Random123 (https://github.com/DEShawResearch/random123), philox4x32 10: counter, key, words
    for line in (
        "00000000 00000000 00000000 00000000 00000000 00000000 6627e8d5 e169c58d bc57ac4c 9b00dbd8",
        "ffffffff ffffffff ffffffff ffffffff ffffffff ffffffff 408f276d 41c83b0e a20bc7c6 6d5451fd",
        "243f6a88 85a308d3 13198a2e 03707344 a4093822 299f31d0 d16cfe09 94fdcceb 5001e420 24126ea1",
    ):
        words = np.array([int(word, 16) for word in line.split()], np.uint32)
        np.testing.assert_array_equal(philox(words[:4], words[4:6]), words[6:])
    key = ad.Variable("key")
    (bits,) = both([ops.random_bits_op(key, 4)], {key: np.zeros(4, "uint32")})
    assert [f"{word:08x}" for word in bits] == ["6627e8d5", "e169c58d", "bc57ac4c", "9b00dbd8"]


def test_bits_are_those_of_the_counter_on_every_context_and_number_of_threads() -> None:
    key = ad.Variable("key")
    words = np.array([0xDEADBEEF, 2**32 - 1, 3, 0x80000000], "uint32")
    nodes = [ops.random_bits_op(key, (259, 311)), ops.random_bits_op(key, (5, 2, 3))]
    feed = {key: words}
    large, small = ad.Executor(nodes, "numpy").run(feed)
    np.testing.assert_array_equal(small.ravel(), large.ravel()[:30])
    block = philox(np.array([5000, 0, *words[2:]], np.uint32), words[:2])
    np.testing.assert_array_equal(large.ravel()[20000:20004], block)
    assert large.size % 4 == 1
    found = on_each_number_of_threads(ad.Executor(nodes, dl.cpu(0)), feed)
    for i, result in enumerate(found):
        np.testing.assert_array_equal(result, (large, small)[i % 2])


@pytest.mark.slow
def test_distributions_have_their_moments_and_fill_16_bins_evenly() -> None:
    count = 200_000
    key = ad.Variable("key")
    nodes = []
    for dtype in ("float32", "float64"):
        nodes += [
            ops.random_uniform_op(key, count, dtype=dtype),
            ops.random_uniform_op(key, count, -2.0, 6.0, dtype),
            ops.random_normal_op(key, count, dtype=dtype),
            ops.random_normal_op(key, count, 5.0, 0.25, dtype),
        ]
    found = both(nodes, {key: np.array([7, 0, 1, 2], "uint32")})
    quartered = np.sort(np.random.default_rng(0).standard_normal(4_000_000))  # for the bins' edges
    edges = quartered[np.arange(1, 16) * len(quartered) // 16]
    for i, values in enumerate(found):
        low, high, mean, std = [
            (0, 1, 0.5, 12**-0.5),
            (-2, 6, 2, 8 * 12**-0.5),
            (0, 0, 0, 1),
            (0, 0, 5, 0.25),
        ][i % 4]
        assert str(values.dtype) == ("float32", "float64")[i // 4]
        values = values.astype("float64")
        assert abs(values.mean() - mean) < 5 * std / count**0.5
        assert abs(values.std() - std) < 5 * std / count**0.5
        if i % 4 < 2:
            assert low <= values.min() < values.max() < high
            bins = np.histogram(values, 16, (low, high))[0]
        else:
            bins = np.bincount(np.searchsorted(edges, (values - mean) / std), minlength=16)
        chi_square = ((bins - count / 16) ** 2).sum() / (count / 16)
        assert 3.5 < chi_square < 44.3, (i, chi_square)  # 15 degrees of freedom: 0.1 % and 0.01 % beyond
        assert abs(np.corrcoef(values[:-1], values[1:])[0, 1]) < 5 / count**0.5


@pytest.mark.slow
def test_uniform_numbers_never_reach_their_upper_limit() -> None:
    key = ad.Variable("key")
    feed = {key: np.array([7, 0, 1, 2], "uint32")}
    for low, high in ((-1.0, 1e-3), (1.0, float(np.nextafter(np.float32(1), np.float32(2))))):
        (values,) = both([ops.random_uniform_op(key, 10_000, low, high)], feed)
        assert (low <= values).all() and (values < np.float32(high)).all(), (low, high)


@pytest.mark.slow
def test_dropout_drops_by_the_key_and_its_gradient_drops_the_same() -> None:
    x, key = ad.Variable("x"), ad.Variable("key")
    array = np.ones((100, 333), "float32")
    feed = {x: array, key: np.array([1, 2, 3, 4], "uint32")}
    for p in (0.1, 0.5):
        node = ops.dropout_op(x, key, p)
        (grad,) = ad.gradients(node, [x])
        value, slope = both([node, grad], feed)
        np.testing.assert_array_equal(value, slope)
        assert set(np.unique(value)) == {np.float32(0), np.float32(1 / (1 - p))}
        assert abs((value != 0).mean() - (1 - p)) < 5 * (p * (1 - p) / value.size) ** 0.5
        np.testing.assert_array_equal(value, both([ops.dropout_op(x, key, p)], feed)[0])
        other = both([node], {**feed, key: np.array([1, 2, 3, 5], "uint32")})[0]
        assert (other != value).any()
    np.testing.assert_array_equal(both([ops.dropout_op(x, key, 0.0)], feed)[0], array)
    feed[x] = np.where(np.arange(333) % 2, np.inf, np.nan).astype("float32") * array
    (value,) = both([ops.dropout_op(x, key, 0.5)], feed)  # inf * 0 is NaN, as in PyTorch
    assert np.isnan(value[:, ::2]).all() and {*np.unique(np.isnan(value[:, 1::2]))} == {False, True}
