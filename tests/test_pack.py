"""Matrices that several products read are packed once."""

from __future__ import annotations

import numpy as np
from dlsys import autodiff as ad
from dlsys.compiler import NAMES


def chain(k: int, steps: int, trans: bool, rows: int) -> tuple[ad.Node, ad.Node, ad.Parameter, np.ndarray]:
    """steps of h = tanh(h W), all with the same W."""
    rng = np.random.default_rng(0)
    w = ad.Parameter((rng.standard_normal((k, k)) / np.sqrt(k)).astype("float32"), "W")
    x = h = ad.Variable("x")
    for _ in range(steps):
        h = ad.tanh_op(ad.matmul_op(h, w, trans_B=trans))
    return x, h, w, rng.standard_normal((rows, k)).astype("float32")



def test_a_matrix_that_many_products_read_is_packed_once() -> None:
    for trans in (False, True):
        x, h, w, value = chain(64, 5, trans, 12)
        grads = ad.gradients(h, [w, x])
        packed = ad.Executor([h, *grads])
        plain = ad.Executor([h, *grads], passes=[name for name in NAMES if name != "pack"])
        found = packed.run({x: value}, convert_to_numpy_ret_vals=True)
        expected = plain.run({x: value}, convert_to_numpy_ret_vals=True)
        text = str(packed.groups())
        assert text.count(" pack_panels ") == 2  # for the products forwards, and for those backwards
        assert text.count(" matmul_panels") >= 10 and "pack_panels" not in str(plain.groups())
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(found[0], ad.Executor([h], "numpy").run({x: value})[0], rtol=1e-4, atol=1e-5)


def test_packing_is_done_where_it_serves_only() -> None:
    for k, steps, rows in ((64, 1, 12), (67, 4, 12), (16, 4, 12), (64, 4, 2)):  # once; ragged; small; few rows
        x, h, _, value = chain(k, steps, False, rows)
        executor = ad.Executor([h])
        executor.run({x: value})
        assert "pack_panels" not in str(executor.groups()), (k, steps, rows)


def test_parameters_are_packed_anew_in_every_run() -> None:
    x, h, w, value = chain(64, 3, False, 8)
    executor = ad.Executor([h, ad.assign(w, w * 0.5)])
    for _ in range(3):
        before = w.value
        (found, _) = executor.run({x: value}, convert_to_numpy_ret_vals=True)
        expected = value
        for _ in range(3):
            expected = np.tanh(expected @ before)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal(w.value, before * np.float32(0.5))
