"""Matrix products: sizes that do not fit the tiles, matrices packed once for several, what the inner loop holds."""

from __future__ import annotations

import platform
import re
from collections.abc import Callable

import numpy as np
import pytest
import tvm
from dlsys import autodiff as ad
from dlsys import compute, schedule, tvm_op
from dlsys.compiler import NAMES
from dlsys.schedule import machine_code
from dlsys.schedule.cpu import contraction, tiles
from dlsys.schedule.products import product_of
from dlsys.schedule.stages import read_stages, with_nests
from dlsys.schedule.target import machine_of
from helpers import on_threads
from machines import simulated
from tvm import te, tirx

SIZES = [2, 3, 5, 7, 8, 10, 12, 15, 16, 17, 24, 31, 33, 48, 50, 63, 65, 100, 112, 130]
LONG = [*SIZES, 512, 1000]  # 512: rows that share lines of L1


@pytest.mark.slow
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


@pytest.mark.parametrize(
    ("m", "k", "n", "turned"),
    [(19, 50, 45, "B"), (33, 1087, 23, "B"), (25, 41, 31, "AB"), (40, 1039, 23, "B"), (18, 40, 22, "A"),
     (100, 31, 22, "A"), (466, 41, 22, "A"), (84, 17, 20, "A")],
)
def test_rows_that_are_no_whole_squares_are_turned_by_squares(m: int, k: int, n: int, turned: str) -> None:
    """The last square lies over the one before it, also of a part of k that is shorter than others; exact, as all
    numbers are small."""
    random = np.random.default_rng(0)
    a, b = (random.integers(-9, 9, shape).astype("float32") for shape in ((m, k), (k, n)))
    given = [np.ascontiguousarray(x.T) if name in turned else x for name, x in (("A", a), ("B", b))]
    shapes = [x.shape for x in given]
    kernel = tvm_op.make_matrix_mul(shapes[0], "A" in turned, shapes[1], "B" in turned, "llvm", "llvm", "product")
    kernel(*given, out := np.full((m, n), np.nan, "float32"))
    np.testing.assert_array_equal(out, a @ b)


def _tile(
    a: tuple[int, int], b: tuple[int, int], trans_a: bool, trans_b: bool, threads: int, mcpu: str = "skylake-avx512"
) -> tiles.Tile:
    """The numbers that the rule chooses on a machine, with AVX-512 where no other is named."""
    target = simulated(mcpu, threads)
    x, y = te.placeholder(a, "float32", "x"), te.placeholder(b, "float32", "y")
    (stage,) = read_stages(te.create_prim_func([x, y, compute.matmul(x, y, trans_a, trans_b)])) or ()
    found = product_of(stage, in_runs=True)
    assert found is not None
    return tiles.choose(found, machine_of(target))[1]


def test_last_panels_are_as_narrow_as_what_is_left():
    def widths(n: int, threads: int) -> set[int]:
        """The columns of tiles."""
        target = simulated("skylake-avx512", threads)
        x, y = te.placeholder((200, 256), "float32", "x"), te.placeholder((256, n), "float32", "y")
        script = schedule.apply(te.create_prim_func([x, y, compute.matmul(x, y)]), target)[0].script()
        return {int(width) for width in re.findall(r"sums = T.alloc_local\(\(\d+, (\d+)\)", script)}

    for threads in (1, 2):
        columns = _tile((200, 256), (256, 100), False, False, threads).columns
        assert widths(100, threads) == {columns, 100 % columns} and 100 % columns % 16 == 4
        assert widths(99, threads) == {columns, 100 % columns}  # the narrowest vector that holds three
    tile = _tile((1000, 100), (1000, 10), True, False, threads=1)
    assert tile.b == tiles.LIES  # ten rows of the turned product: nothing would use a copy twice


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


@pytest.mark.slow
def test_a_part_of_a_long_sum_passes_all_tiles_of_a_share() -> None:
    def shape(script: str) -> tuple[int, ...] | None:
        """Of the array between two parts: panels, tiles along the rows, rows and columns; None for a sum of one."""
        found = re.search(r"between = T.alloc_buffer\(\((.*?)\)", script)
        return tuple(map(int, found[1].split(","))) if found else None

    for threads in (1, 2):
        with on_threads(threads):
            for m, n, k, dtype in (
                (80, 48, 4096, "float32"),
                (47, 41, 8000, "float32"),  # ragged both ways
                (61, 72, 4000, "float64"),
                (72, 61, 4000, "float64"),
                (80, 48, 4099, "float32"),  # a prime
                (300, 300, 1536, "float32"),
            ):
                script = _transposed(m, n, k, dtype, relu=m == 80)
                between = shape(script)
                assert between is not None
                panels, tiles, rows, columns = between
                assert max(panels * columns, tiles * rows) >= min(m, n), between  # a share has all of a side
                part, tile = (re.search(rf"\b{name}\b", script) for name in ("part", "tile"))  # of the loops around
                assert part and tile and part.start() < tile.start(), script
            assert shape(_transposed(80, 48, 96)) is None
            assert shape(_transposed(1024, 1024, 1000)) is None


@pytest.mark.slow
def test_a_product_of_an_array_with_itself_has_the_loops_of_two() -> None:
    def loops(function: tirx.PrimFunc, cpu: str, cores: int) -> list[str]:
        target = simulated(cpu, cores)
        scheduled, rule = schedule.apply(function, target)
        assert rule.name == "contraction", scheduled.script()
        lines = scheduled.script().replace("_again", "").splitlines()
        return [re.sub(r"\brelu\w*", "relu", line) for line in lines if not re.search("reads|writes|def ", line)]

    for shape in ((256, 256), (100, 400), (700, 64), (3, 24, 24)):
        for flags in ((False, False), (False, True), (True, False), (True, True)):
            if flags[0] == flags[1] and shape[-2] != shape[-1]:
                continue
            x, y = te.placeholder(shape, "float32", "x"), te.placeholder(shape, "float32", "x_again")
            for before in (lambda v: v, compute.relu)[: 2 if len(shape) == 2 else 1]:  # a batch makes it once
                once = before(x)
                one = te.create_prim_func([x, compute.matmul(once, once, *flags)])
                two = te.create_prim_func([x, y, compute.matmul(once, before(y), *flags)])
                for machine in (("skylake-avx512", 16), ("haswell", 2)):
                    assert loops(one, *machine) == loops(two, *machine), (shape, flags, machine)
    x = te.placeholder((256, 256), "float32", "x")
    both = te.create_prim_func([x, compute.matmul(compute.relu(x), compute.absolute(x), False, True)])
    assert loops(both, "skylake-avx512", 16)  # two factors that are made of one array


@pytest.mark.slow
def test_products_of_an_array_with_itself_equal_numpy() -> None:
    value = np.random.default_rng(0).standard_normal((3, 40, 40)).astype("float32")
    x = ad.Variable("x")
    for array in (value, value[0]):
        turned = np.swapaxes(array, -1, -2)
        relu = np.maximum(array, 0)
        nodes = [ad.matmul_op(x, x), ad.matmul_op(x, x, trans_B=True), ad.matmul_op(x, x, trans_A=True)]
        wanted = [array @ array, array @ turned, turned @ array]
        kept = ad.relu_op(x)
        nodes += [ad.matmul_op(kept, kept, trans_B=True), ad.matmul_op(ad.abs_op(x), kept, trans_B=True)]
        wanted += [relu @ np.swapaxes(relu, -1, -2), np.abs(array) @ np.swapaxes(relu, -1, -2)]
        for node, want in zip(nodes, wanted, strict=True):
            (found,) = ad.Executor([node]).run({x: array}, convert_to_numpy_ret_vals=True)
            np.testing.assert_allclose(found, want, rtol=0, atol=1e-5 * np.abs(want).max())


@pytest.mark.slow
def test_what_a_product_is_combined_with_is_computed_too() -> None:
    """A function of another array, which stands before the product in the kernel and is read behind it."""
    rng = np.random.default_rng(0)
    for k in (20, 4096):  # in one sum, and in parts
        shapes = ((k, 30), (k, 40), (30, 40))
        values = [rng.standard_normal(shape).astype("float32") for shape in shapes]
        a, b, c = (te.placeholder(shape, "float32", f"x{i}") for i, shape in enumerate(shapes))
        gate = compute.relu(c)
        func = te.create_prim_func([a, b, c, compute.add(gate, compute.mul(compute.matmul(a, b, True), gate))])
        scheduled, rule = schedule.apply(func.with_attr("global_symbol", "gated"), schedule.host_target())
        assert rule.name == "contraction"
        out = tvm.runtime.tensor(np.full((30, 40), np.nan, "float32"))
        kernel = machine_code.compiled({"gated": scheduled}, schedule.host_target())["gated"]
        kernel(*map(tvm.runtime.tensor, values), out)
        own = np.maximum(values[2], 0)
        want = own + (values[0].T @ values[1]) * own
        np.testing.assert_allclose(out.numpy(), want, rtol=0, atol=1e-5 * np.abs(want).max())


@pytest.mark.slow
def test_a_part_of_a_product_and_copies_of_it_are_right() -> None:
    """What reads some elements of a product, or one of them several times, has no tile of its own."""
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal(shape).astype("float32") for shape in ((12, 20), (20, 40)))
    row: Callable[..., object] = lambda z: te.compute((40,), lambda j: z(3, j))  # noqa: E731
    twice: Callable[..., object] = lambda z: te.compute((2, 12, 40), lambda n, i, j: z(i, j))  # noqa: E731
    second: Callable[..., object] = lambda z: te.compute((6, 40), lambda i, j: z(2 * i, j))  # noqa: E731
    wanted = (x @ y)[3], np.stack([x @ y] * 2), (x @ y)[::2]
    for part, want in zip((row, twice, second), wanted, strict=True):
        a, b = te.placeholder(x.shape, "float32", "a"), te.placeholder(y.shape, "float32", "b")
        function = te.create_prim_func([a, b, part(compute.matmul(a, b))]).with_attr("global_symbol", "part")
        scheduled, _ = schedule.apply(function, schedule.host_target())
        out = tvm.runtime.tensor(np.full(want.shape, np.nan, "float32"))
        kernel = machine_code.compiled({"part": scheduled}, schedule.host_target())
        kernel["part"](*map(tvm.runtime.tensor, (x, y)), out)
        np.testing.assert_allclose(out.numpy(), want, rtol=0, atol=1e-5)


def test_far_operands_are_copied():
    for k, copied in ((128, False), (512, True)):
        assert _tile((k, 784), (k, 1024), True, False, threads=1).a == (tiles.PACKED if copied else tiles.LIES)
    assert _tile((4096, 32), (4096, 16), True, False, threads=1).a == tiles.LIES  # a panel or two read it


def test_lines_that_l1_cannot_hold_together_are_copied() -> None:
    for m, copied in ((100, False), (128, True)):  # 128 floats: lines of one column fall into 8 of 64 sets
        tile = _tile((500, m), (500, m), True, False, threads=1, mcpu="haswell")
        assert tile.a == (tiles.PACKED if copied else tiles.LIES), tile


def test_few_tiles_of_rows_read_b_where_it_lies() -> None:
    """Unless B's rows lie at a distance of 4 KiB, so that they share a few lines of L1."""
    for m, n, b in ((24, 1000, tiles.LIES), (24, 1024, tiles.LIES), (64, 1000, tiles.LIES), (64, 1024, tiles.PACKED)):
        assert _tile((m, 500), (500, n), False, False, threads=1).b == b, (m, n)
    assert _tile((1000, 500), (500, 1000), False, False, threads=1).b != tiles.LIES


def test_rows_that_share_sets_are_stored_in_long_pieces() -> None:
    """Of a short sum, whose stores take longer than its multiply-adds."""
    for k, n, is_long in ((8, 1024, True), (8, 1000, False), (100, 1024, False)):
        tile = _tile((1000, k), (k, n), False, False, threads=1)
        assert (tile.columns >= 4 * tile.lanes) == is_long, (k, n)


def test_a_row_has_the_same_bits_in_products_of_few_and_of_many_rows() -> None:
    a, b = (np.random.default_rng(0).standard_normal(shape).astype("float32") for shape in ((60, 1000), (1000, 1024)))
    few, whole = (np.zeros((m, 1024), "float32") for m in (60, 480))
    with on_threads(1):
        for out in (few, whole):
            rows = np.resize(a, (len(out), 1000))
            kernel = tvm_op.make_matrix_mul(rows.shape, False, b.shape, False, "llvm", "llvm", f"rows{len(out)}")
            kernel(rows, b, out)
    np.testing.assert_array_equal(few, whole[:60])


def chain(k: int, steps: int, trans: bool, rows: int) -> tuple[ad.Node, ad.Node, ad.Parameter, np.ndarray]:
    """steps of h = tanh(h W), all with the same W."""
    rng = np.random.default_rng(0)
    w = ad.Parameter((rng.standard_normal((k, k)) / np.sqrt(k)).astype("float32"), "W")
    x = h = ad.Variable("x")
    for _ in range(steps):
        h = ad.tanh_op(ad.matmul_op(h, w, trans_B=trans))
    return x, h, w, rng.standard_normal((rows, k)).astype("float32")



@pytest.mark.slow
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


@pytest.mark.slow
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


def _inner_loops(asm: str) -> list[list[str]]:
    """The straight pieces of code that multiply and add, as instructions with their operands."""
    pieces: list[list[str]] = [[]]
    for line in asm.splitlines():
        code = line.split("#")[0].strip()
        if code.startswith("."):  # a directive, or a label that nothing jumps to
            continue
        if code.endswith(":") or re.match(r"j\w+\s", code):
            pieces.append([])
        elif code:
            pieces[-1].append(code)
    return [piece for piece in pieces if any("fmadd" in code for code in piece)]


def _check(shape_a: tuple[int, int], shape_b: tuple[int, int], trans_a: bool, trans_b: bool) -> None:
    kernel = tvm_op.make_matrix_mul(shape_a, trans_a, shape_b, trans_b, "llvm", "llvm", "product")
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(shape).astype(np.float32) for shape in (shape_a, shape_b))
    expected = (a.T if trans_a else a) @ (b.T if trans_b else b)
    out = np.zeros(expected.shape, np.float32)
    kernel(a, b, out)
    np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-3)
    _check_registers(kernel.source("asm"))


def _check_registers(asm: str) -> None:
    """No loop over k stores into memory."""
    loops = _inner_loops(asm)
    assert loops, "nothing multiplies and adds"
    for loop in loops:
        fused = [code for code in loop if code.startswith(("vfmadd", "vfnmadd"))]
        stores = [code for code in loop if re.match(r"vmov\w+\s+%[xyz]mm\d+, .*\(", code)]
        assert len(fused) >= 8 and not stores, "\n".join(loop)


@pytest.mark.slow
def test_products_for_other_cpus_keep_their_sums_in_registers() -> None:
    """Also those that lie across C's lines: masks that turn a tile took registers from its sums."""
    for cpu in ("haswell", "skylake-avx512"):
        target = simulated(cpu)
        for turned_a, turned_b in ((True, False), (True, True)):
            x, y = te.placeholder((512, 512), "float32", "x"), te.placeholder((512, 512), "float32", "y")
            function, rule = schedule.apply(
                te.create_prim_func([x, y, compute.matmul(x, y, turned_a, turned_b)]), target
            )
            assert rule.name == "contraction"
            built = machine_code.compiled({"k": function.with_attr("global_symbol", "k")}, target)
            _check_registers(built.inspect_source("asm"))


@pytest.mark.slow
def test_products_keep_their_sums_in_registers() -> None:
    if platform.machine() != "x86_64" or "vfmadd" not in _any_product():
        return  # other processors have other names for it
    for threads in (1, 2):
        with on_threads(threads):
            _check((160, 128), (128, 64), False, False)
            _check((160, 128), (64, 128), False, True)
            _check((128, 160), (128, 64), True, False)
            _check((640, 256), (256, 512), False, False)
            _check((256, 480), (256, 512), True, False)


def _any_product() -> str:
    return tvm_op.make_matrix_mul((64, 64), False, (64, 64), False, "llvm", "llvm", "product").source("asm")


@pytest.mark.slow
def test_every_legal_tile_gives_the_same_bits() -> None:
    """Whatever way the model takes a product: the terms are added in the same order."""
    haswell = simulated("haswell")
    machine, random = machine_of(haswell), np.random.default_rng(0)
    for (m, n, k), transposes in (((13, 21, 1100), (False, True)), ((9, 40, 48), (True, False))):
        shapes = [(k, m) if transposes[0] else (m, k), (n, k) if transposes[1] else (k, n)]
        a, b = (random.standard_normal(shape).astype("float32") for shape in shapes)
        x, y = (te.placeholder(shape, "float32", name) for shape, name in zip(shapes, "xy", strict=True))
        func = te.create_prim_func([x, y, compute.matmul(x, y, *transposes)])
        found = contraction.contraction_of(func, read_stages(func) or [])
        assert found is not None
        ways = {}  # the largest tile of each way of reading and order
        for way in tiles.ways(found.product):
            for tile in (one for whole in tiles._sizes(way, machine, ()) for one in tiles._shared(way, whole, machine)):
                ways.setdefault((way.a.value.source, tile.a, tile.b, tile.panels > 1), (way, tile))
        assert len(ways) >= 4
        results = []
        for way, tile in ways.values():
            nests = found.written(way, tile, machine)
            loops = with_nests(func, nests).with_attr("global_symbol", "product")
            kernel = machine_code.compiled({"product": loops}, schedule.host_target(1))["product"]
            out = tvm.runtime.tensor(np.full((m, n), np.nan, "float32"))
            kernel(tvm.runtime.tensor(a), tvm.runtime.tensor(b), out)
            results.append(out.numpy())
        want = (a.T if transposes[0] else a) @ (b.T if transposes[1] else b)
        np.testing.assert_allclose(results[0], want, rtol=0, atol=1e-4)
        assert all(np.array_equal(result, results[0]) for result in results[1:])
