"""What stages are, found from their expressions: products and their axes, sums and their parts."""

from __future__ import annotations

from typing import Any

from dlsys import compute
from dlsys.schedule.codegen import VectorCode
from dlsys.schedule.products import Product, product_of
from dlsys.schedule.stages import Stage, inlined, unrelated
from dlsys.schedule.sums import in_parts, parts_along, sum_of
from tvm import te, tirx


def _stages(inputs: list[te.Tensor], output: te.Tensor) -> list[Stage]:
    found = inlined(te.create_prim_func([*inputs, output]))
    assert found is not None
    return found


def _product(shapes: list[tuple[int, ...]], formula: Any) -> Product:
    inputs = [te.placeholder(shape, "float32", f"x{i}") for i, shape in enumerate(shapes)]
    (stage,) = (stage for stage in _stages(inputs, formula(*inputs)) if stage.reduced)
    found = product_of(stage)
    assert found is not None
    return found


def test_products_are_found_whatever_is_transposed() -> None:
    for trans_a in (False, True):
        for trans_b in (False, True):
            shapes = [(7, 5) if trans_a else (5, 7), (6, 7) if trans_b else (7, 6)]
            found = _product(shapes, lambda a, b, turned=(trans_a, trans_b): compute.matmul(a, b, *turned))
            assert [found.shape(axes) for axes in (found.batch, found.m, found.n, found.k)] == [(), (5,), (6,), (7,)]
            (m,), (n,), (k,) = found.m, found.n, found.k
            a, b = found.a.strides, found.b.strides
            assert a is not None and (a[m], a[n], a[k]) == ((1, 0, 5) if trans_a else (7, 0, 1))
            assert b is not None and (b[m], b[n], b[k]) == ((0, 7, 1) if trans_b else (0, 1, 6))


def test_an_array_with_itself_is_a_product() -> None:
    found = _product([(8, 8)], lambda x: compute.matmul(x, x, False, True))
    assert found.a.value.source.same_as(found.b.value.source) and found.size(found.k) == 8
    at = found.at({found.m: tirx.const(3, "int32"), found.n: tirx.const(5, "int32")})
    assert [int(at[found.stage.iters[axis].var]) for axis in (*found.m, *found.n)] == [3, 5]


def test_convolutions_are_products() -> None:
    found = _product([(2, 3, 9, 9), (4, 3, 3, 3)], lambda x, f: compute.conv2d(x, f, (1, 1), (1, 1)))
    assert found.size(found.k) == 27 and found.size(found.m) == 4 and found.size(found.n) == 2 * 81
    steps = found.b.strides  # of the image with its border, 11 x 11
    assert steps is not None and [steps[axis] for axis in (*found.n, *found.k)] == [363, 11, 1, 121, 11, 1]
    assert found.last(found.m) == found.m[0]


def test_other_reductions_are_no_products() -> None:
    x, y, k = te.placeholder((5, 7), "float32"), te.placeholder((5, 7), "float32"), te.reduce_axis((0, 7), "k")
    total = te.compute((5,), lambda i: te.sum(x[i, k], axis=k))
    most = te.compute((5,), lambda i: te.max(x[i, k] * y[i, k], axis=k))
    both = te.compute((5,), lambda i: te.sum(x[i, k] * y[i, k], axis=k))  # each row with its own: no column
    for inputs, output in (([x], total), ([x, y], most), ([x, y], both)):
        assert product_of(_stages(inputs, output)[-1]) is None


def test_sums_tell_what_lies_side_by_side_and_are_cut_into_parts() -> None:
    for axis, columns in ((0, True), (1, False)):
        x = te.placeholder((40, 30), "float32")
        (stage,) = _stages([x], compute.reduce_sum(x, (axis,)))
        whole = sum_of(stage, [], [stage], {stage.buffer})
        assert (whole.columns, whole.count) == (columns, (40, 30)[axis])
        term = [i for i, v in enumerate(stage.iters) if v.iter_type == tirx.IterVar.CommReduce]
        first, rest, last = (sum_of(one, [], [one], {one.buffer}) for one in in_parts(stage, {term[0]: 12}))
        count, left = divmod(whole.count, 12)
        array = first.stage.buffer
        assert (count + 1, *whole.results) == tuple(map(int, array.shape)) and array.same_as(rest.stage.buffer)
        assert (first.results, rest.results) == ((count, *whole.results), (1, *whole.results))
        assert (first.count, rest.count, last.count, last.columns) == (12, left, count + 1, True)
        assert (first.columns, last.results) == (columns, whole.results)
        for part, place in ((first, 2), (rest, count)):  # the parts that are left lie behind the others
            code, index = VectorCode(1), tirx.const(0 if part is rest else 2, "int32")
            part.store(code, [index, tirx.const(7, "int32")], tirx.const(0.0, "float32"))
            assert f"{array.name}[{place}, 7]" in str(code.loop())


def test_parts_are_about_as_many_as_wanted() -> None:
    for shape, wanted, lengths in (
        ((4096,), 16, {0: 256}),
        ((1000,), 4, {0: 250}),
        ((1009,), 4, {0: 253}),  # a prime: the last part is shorter
        ((32, 28, 28), 98, {0: 1, 1: 7}),
        ((3, 97), 5, {0: 1, 1: 49}),
        ((5, 2), 5, {0: 1}),
        ((100,), 1, {}),
    ):
        x = te.placeholder(shape, "float32")
        (stage,) = _stages([x], compute.reduce_sum(x, tuple(range(len(shape)))))
        first = len(stage.spatial)
        assert parts_along(stage, wanted) == {first + axis: length for axis, length in lengths.items()}, shape


def test_parts_have_no_array_in_common() -> None:
    a, b, c = (te.placeholder((n,), "float32", name) for n, name in ((4, "a"), (4, "b"), (6, "c")))
    half = te.compute((4,), lambda i: te.exp(a[i]), "half")
    first = [half, te.compute((6,), lambda i: c[i] * 2.0, "twice"), te.compute((4,), lambda i: half[i] + b[i], "sum")]

    def parts(*formulas: te.Tensor) -> list[list[str]]:
        stages = inlined(te.create_prim_func([a, b, c, *formulas]))
        assert stages is not None
        return [[stage.name for stage in part] for part in unrelated(stages)]

    assert parts(*first) == [["half", "sum"], ["twice"]]
    assert parts(*first, te.compute((6,), lambda i: c[i] + a[0], "joins")) == [["half", "twice", "sum", "joins"]]
