"""Looking inside an executor: every stage as text, the two pictures, the profile."""

from __future__ import annotations

import math
import tempfile
import xml.etree.ElementTree as ET
from pathlib import Path
from unittest import mock

import dlsys as dl
import numpy as np
import pytest
from dlsys import autodiff as ad
from dlsys import errors
from dlsys.kernels import peak as peaks
from helpers import error_of


def step(passes: list[str] | None = None) -> tuple[ad.Executor, dict, dict[str, ad.Node]]:
    """A training step of a layer with ReLU, the mean of its squares as loss; its feed; its nodes by name."""
    x, w, b = ad.Variable("x"), ad.Parameter(np.full((3, 4), 0.5), "w"), ad.Parameter(np.ones(4), "b")
    product = x @ w
    out = ad.relu_op(product + b)
    loss = ad.reducesum_op(out * out)
    train = ad.group(
        [ad.assign(p, p - 0.1 * g) for p, g in zip((w, b), ad.gradients(loss, [w, b]), strict=True)]
    )
    nodes = {"x": x, "w": w, "b": b, "product": product, "out": out, "loss": loss}
    return ad.Executor([loss, train], passes=passes), {x: np.ones((5, 3))}, nodes


def lines_with(text: str, *words: str) -> list[str]:
    return [line for line in text.splitlines() if all(word in line for word in words)]


def test_graph_as_written_and_after_the_passes() -> None:
    executor, feed, nodes = step()
    product = nodes["product"].name
    assert lines_with(executor.graph(), f"{product} = matmul(x, w)")
    text = executor.graph(optimized=True, feed_shapes=feed)
    assert lines_with(text, f"{product}: float64[5, 4] = matmul(x, w)", "# test_inspect.py:")
    assert lines_with(text, "w: float64[3, 4] = parameter()   #")
    (result, _) = executor.latest_plan().results
    assert text.splitlines()[-1] == f"return {result}" and len(lines_with(text, "w <- ")) == 1
    assert "assign" in executor.graph() and "assign" not in text
    assert ad.Executor([nodes["loss"]], "numpy").graph(True, feed).endswith(f"return {nodes['loss'].name}")


def test_groups() -> None:
    executor, feed, nodes = step()
    head, *lines = executor.groups(feed).splitlines()
    assert head.split() == ["kernel", "kind", "reads", "writes"] and len(lines) == len(
        executor.latest_plan().groups
    )
    assert [int(line.split()[0]) for line in lines] == list(range(len(lines)))
    assert len({line.index("->") for line in lines}) == 1  # aligned
    (first,) = lines_with(lines[0], "matmul_add_relu", "contraction", "x[5, 3], w[3, 4], b[4]")
    assert first.split("->")[1].split() == [f"{nodes['out'].name}[5,", "4]"]
    assert len(lines_with("\n".join(lines), "into w")) == len(lines_with("\n".join(lines), "into b")) == 1


@pytest.mark.slow
def test_loops_and_code_of_all_kernels_or_of_one() -> None:
    executor, feed, _ = step()
    executor.infer_shape(feed)
    kernels = executor.latest_plan().kernel_of
    whole = executor.script()
    assert whole.startswith("# the calls of a run") and all(
        kernel.symbol in whole for kernel in kernels.values()
    )
    assert executor.script(0) in whole and "calls" not in executor.script(0)
    assert executor.script("matmul_add_relu") == executor.script(0)
    source = executor.source(kernel=0)
    assert kernels[0,].symbol in source and source.startswith("# kernel 0: <kernel matmul_add_relu(")
    assert "define" in executor.source("ll", "matmul_add_relu")
    assert all(f"kernel {number}" in executor.source() for number in (0, len(kernels) - 1))
    for wrong in (len(kernels), -1, "convolution", 1.0, True):
        error = error_of(errors.GraphError, executor.script, wrong)
        assert repr(wrong) in error
    error_of(errors.KernelArgumentError, executor.source, "wasm")
    empty = ad.Executor([ad.Variable("v") * 2.0])
    assert "no kernel 0" in error_of(errors.GraphError, empty.script, 0, {empty.topo_order[0]: (0, 2)})


def texts_of(file: Path) -> str:
    """All text of an SVG file, a line each."""
    found = (node.text or "" for node in ET.parse(file).iter() if node.tag.endswith("}text"))
    return "\n".join(found)


def test_the_structures_print_themselves() -> None:
    executor, feed, _ = step(None)
    executor.infer_shape(feed)
    plan = executor.latest_plan()
    assert str(plan.graph) == executor.graph(optimized=True)
    assert f"0  {plan.groups[0]}\n" in str(plan) and str(plan).endswith(str(plan.memory))
    assert f"{plan.groups[0].name}, {plan.groups[0].kind}: " in str(plan.groups[0])


@pytest.mark.slow
def test_pictures_are_files_that_name_everything() -> None:
    for passes in (None, ["views"]):
        executor, feed, _ = step(passes)
        executor.infer_shape(feed)
        plan, memory = executor.latest_plan(), executor.latest_plan().memory
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "graph.svg"
            executor.draw(file)
            shown = texts_of(file).splitlines()
            assert {node.name for node in plan.graph.nodes} | {"x", "w", "b"} <= set(shown)
            assert {"result 0", "writes w", "writes b", "[5, 4]"} <= set(shown)
            assert {f"{i}  {group.name}" for i, group in enumerate(plan.groups)} <= set(shown)
            executor.draw_memory(file)
            shown = texts_of(file)
            assert all(value.id.name in shown for buffer in memory.buffers for value in buffer.values)
            assert f"lower bound {memory.lower_bound} B" in shown
            for method in (executor.draw, executor.draw_memory):
                if passes is None:
                    method(Path(folder) / "picture.PNG")
                    assert (Path(folder) / "picture.PNG").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_pictures_of_odd_names_and_of_nothing() -> None:
    a = ad.Variable("$a_1 <&>\x00\n$")
    executor = ad.Executor([a * 2.0, ad.Variable("変数") + 1.0])
    shapes = {node: (2, 2) for node in executor.topo_order if node.op.name == "placeholder"}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "odd.svg"
        executor.draw(file, shapes)
        assert {"$a_1 <&>\ufffd\ufffd$", "変数"} <= set(texts_of(file).splitlines())
        again = file.read_bytes()
        executor.draw(str(file))
        assert file.read_bytes() == again
        executor.draw_memory(file)
        executor.draw(Path(folder) / "odd.png")
        w = ad.Parameter(np.ones(3), "w")
        ad.Executor([ad.assign(w, w * 2.0)]).draw(file, {})  # the value of an assignment is a result, too
        assert {"result 0", "writes w"} <= set(texts_of(file).splitlines())
        for empty in (ad.Executor([]), ad.Executor([ad.group([])])):
            empty.draw(file, {})
            empty.draw_memory(file)
            assert texts_of(file) and empty.groups().count("\n") == 0 and empty.script() == ""


def test_profile() -> None:
    executor, feed, nodes = step()
    results = executor.run(feed)
    before = [nodes[name].value for name in "wb"]
    kept = results[0].numpy()
    peak, bandwidth = mock.Mock(return_value=10.0), mock.Mock(return_value=20.0)
    with mock.patch.multiple(peaks, fma_peak=peak, memory_bandwidth=bandwidth):
        found = executor.profile(feed, runs=3)
    assert peak.call_args.args[1] == "float64" and found.runs == 3
    assert all(np.array_equal(nodes[name].value, value) for name, value in zip("wb", before, strict=True))
    assert results[0].numpy() == kept
    groups = executor.latest_plan().groups
    assert [row.name for row in found.rows] == [groups[row.groups[0][0]].name for row in found.rows]
    assert sorted(key for row in found.rows for key in row.groups) == [(number,) for number in range(len(groups))]
    first = found.rows[0]
    assert first.flop == 2 * 5 * 3 * 4 and first.nbytes == 8 * (5 * 3 + 3 * 4 + 4 + 5 * 4)
    assert math.isclose(first.gflops, first.flop / first.seconds / 1e9)
    assert math.isclose(first.gbytes, first.nbytes / first.seconds / 1e9)
    assert (found.peak_gflops, found.peak_gbytes) == (10, 20)
    assert 0 < found.seconds == sum(row.seconds for row in found.rows) and found.step > 0
    text = str(found)
    assert text == repr(found)
    assert len(lines_with(text, "matmul_add_relu", "contraction", f"{first.gflops / 10:.0%}")) == 1
    assert lines_with(text, "step as run takes it", f"{found.step * 1e6:.1f} us", "of 3 runs")


def test_a_notebook_shows_tensors_and_executors() -> None:
    matrix = dl.tensor([[1.0, 2.5], [-3.0, float("nan")]]) * 2.0
    page = ET.fromstring(matrix._repr_html_())
    assert [cell.text for cell in page.iter("td")] == ["2", "5", "-6", "nan"]
    assert page.findtext("caption") == "float32 (2, 2)"
    long = ET.fromstring(dl.arange(1000)._repr_html_())
    assert [cell.text for cell in long.iter("th")][1:-1] == [*"01234", "…", *(str(i) for i in range(995, 1000))]
    for tensor in (dl.zeros((2, 2, 2)), dl.tensor(1.0), ad.Variable("x"), ad.Variable("x") * matrix):
        assert tensor._repr_html_() is None

    executor, feed, _ = step()
    assert executor._repr_svg_() is None and ad.Executor([dl.tensor(1.0)], ctx=dl.numpy())._repr_svg_() is None
    executor.run(feed)
    picture = ET.fromstring(executor._repr_svg_())
    assert picture.tag.endswith("svg") and "matmul_add_relu" in executor._repr_svg_()
