"""Matrix products whose sizes do not fit their tiles: narrower last panels, operands read where they lie."""

from __future__ import annotations

import numpy as np
import tvm
from dlsys import compute, schedule, tvm_op
from dlsys.schedule import machine_code
from dlsys.schedule.cpu import tiles
from dlsys.schedule.roles import roles
from dlsys.schedule.target import machine_of
from helpers import on_threads
from tvm import s_tir, te

SIZES = [2, 3, 5, 7, 8, 10, 12, 15, 16, 17, 24, 31, 33, 48, 50, 63, 65, 100, 112, 130]
LONG = [*SIZES, 512, 1000]  # 512: rows that share lines of L1


def test_products_of_any_size_equal_numpy():
    random = np.random.default_rng(0)
    for _ in range(24):
        m, n, k = random.choice(SIZES), random.choice(SIZES), random.choice(LONG)
        trans_a, trans_b, dtype = (
            random.random() < 0.5,
            random.random() < 0.5,
            random.choice(["float32", "float64"]),
        )
        a = random.standard_normal((k, m) if trans_a else (m, k)).astype(dtype)
        b = random.standard_normal((n, k) if trans_b else (k, n)).astype(dtype)
        out = np.full((m, n), np.nan, dtype)
        kernel = tvm_op.make_matrix_mul(
            a.shape, trans_a, b.shape, trans_b, "llvm", "llvm", "product", str(dtype)
        )
        assert kernel.rule.name == "contraction", kernel
        kernel(a, b, out)
        want = (a.T if trans_a else a) @ (b.T if trans_b else b)
        np.testing.assert_allclose(
            out, want, rtol=0, atol=np.abs(want).max() * (1e-5 if dtype == "float32" else 1e-13)
        )


def _tile(a: tuple[int, int], b: tuple[int, int], trans_a: bool, trans_b: bool, threads: int) -> tiles.Tile:
    """The numbers that the rule chooses on a machine with AVX-512."""
    target = schedule.resolve_target({"kind": "llvm", "mcpu": "skylake-avx512", "num-cores": threads})
    x, y = te.placeholder(a, "float32", "x"), te.placeholder(b, "float32", "y")
    sch = s_tir.Schedule(te.create_prim_func([x, y, compute.matmul(x, y, trans_a, trans_b)]))
    found = roles(sch.get(sch.get_child_blocks(sch.get_sblock("root"))[0]))
    assert found is not None
    return tiles.choose(found, machine_of(target), "float32", [False, False])[1]


def test_last_panels_are_as_narrow_as_what_is_left():
    tile = _tile((1000, 256), (256, 100), False, False, threads=1)
    assert (tile.columns, tile.edge, tile.panels) == (32, 4, True)  # 32 + 32 + 32 + 4
    tile = _tile((1000, 256), (256, 100), False, False, threads=2)
    assert (tile.edge, tile.panels) == (
        4,
        False,
    )  # blocks of rows run in parallel, each with the narrow panel
    tile = _tile((1000, 100), (1000, 10), True, False, threads=1)
    assert (
        not tile.pack_b and tile.edge == 1
    )  # ten rows of the turned product: nothing would use a copy twice


def _transposed(m: int, n: int, k: int, dtype: str = "float32", relu: bool = False) -> str:
    """The loops of A^T B, which must be right."""
    x, y = te.placeholder((k, m), dtype, "x"), te.placeholder((k, n), dtype, "y")
    product = compute.matmul(x, y, True, False)
    func = te.create_prim_func([x, y, compute.relu(product) if relu else product])
    scheduled, rule = schedule.apply(func.with_attr("global_symbol", "product"), schedule.host_target())
    assert rule.name == "contraction"
    a, b = (np.random.default_rng(0).standard_normal((k, columns)).astype(dtype) for columns in (m, n))
    out = tvm.runtime.tensor(np.full((m, n), np.nan, dtype))
    machine_code.compiled({"product": scheduled}, schedule.host_target())["product"](
        *map(tvm.runtime.tensor, (a, b)), out
    )
    want = a.astype("float64").T @ b
    want = np.maximum(want, 0) if relu else want
    limit = 1e-5 if dtype == "float32" else 1e-13
    np.testing.assert_allclose(out.numpy(), want, rtol=0, atol=np.abs(want).max() * limit)
    return scheduled.script()


def test_gradients_of_weights_are_sums_of_products():
    def is_split(script: str) -> bool:
        return "matmul_rf" in script

    for threads in (1, 2):
        with on_threads(threads):
            assert is_split(_transposed(80, 48, 4096))
            assert is_split(_transposed(80, 48, 4096, relu=True))
            assert is_split(_transposed(47, 41, 8000))  # no vector divides the sum of the products
            assert is_split(_transposed(61, 72, 4000, "float64"))
            assert is_split(_transposed(72, 61, 4000, "float64"))  # turned, as 72 columns are whole vectors
            assert not is_split(_transposed(80, 48, 2048))  # A stays near
            assert not is_split(_transposed(80, 48, 4099))  # a prime
            assert not is_split(_transposed(1024, 1024, 1536))  # too much to write and read again


def test_far_operands_are_copied():
    for m, k, copied in ((784, 128, False), (784, 512, True)):
        assert _tile((k, m), (k, 512), True, False, threads=1).pack_a is copied
    assert not _tile((4096, 32), (4096, 16), True, False, threads=1).pack_a  # a panel or two read it
