"""Quantized models of ONNX, read and written: results are onnxruntime's, products are of bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dlsys as dl
import numpy as np
import onnx
import pytest
from dlsys import autodiff as ad
from dlsys import nn
from dlsys.compiler import analyse, run_passes
from dlsys.errors import DlsysError
from dlsys.graph import Node, find_topo_sort
from dlsys.ops.types import dtype_of
from helpers import error_of
from onnx import TensorProto, helper, numpy_helper
from optional import onnxruntime

SHAPE = (2, 3, 12, 12)


def images(count: int) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal(SHAPE).astype("float32") for _ in range(count)]


def small() -> nn.Module:
    dl.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, 2, 1), nn.Tanh(),
        nn.Conv2d(16, 16, 3, padding=1, groups=16), nn.Conv2d(16, 8, 1), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(8 * 9, 10),
    ).eval()  # fmt: skip


def of_onnxruntime(model: Any, *feeds: np.ndarray) -> np.ndarray:
    onnxruntime.set_default_logger_severity(4)
    session = onnxruntime.InferenceSession(model if isinstance(model, str) else model.SerializeToString())
    names = [given.name for given in session.get_inputs()]
    return session.run(None, dict(zip(names, feeds, strict=True)))[0]


def run(network: Any, *feeds: np.ndarray) -> np.ndarray:
    return ad.Executor(list(network.outputs)).run(dict(zip(network.inputs, feeds, strict=True)), True)[0]


def of_bytes(nodes: Any, dtypes: Any = None) -> int:
    """How many products have int32 results."""
    return sum(
        node.op.kind == "contraction" and (dtype_of(node) if dtypes is None else dtypes[node]) == "int32"
        for node in nodes
    )


def compiled(network: Any, *feeds: np.ndarray) -> Any:
    """The network's graph as an Executor compiles it."""
    outputs = list(network.outputs)
    fed = {node: (x.shape, str(x.dtype)) for node, x in zip(network.inputs, feeds, strict=True)}
    return run_passes(analyse(find_topo_sort(outputs), outputs, fed), ("fold", "simplify", "bytes", "dead"))


def quantized(folder: Path, network: nn.Module, kind: str, **options: Any) -> str:
    """The path of a model that onnxruntime has quantized."""
    quantization = pytest.importorskip("onnxruntime.quantization")
    before, after = str(folder / "before.onnx"), str(folder / "after.onnx")
    model = dl.to_onnx(network, before, {"x": SHAPE})
    if kind == "dynamic":
        quantization.quantize_dynamic(before, after)
        return after

    class Batches(quantization.CalibrationDataReader):
        def __init__(self) -> None:
            self.left = [{model.graph.input[0].name: x} for x in images(4)]

        def get_next(self) -> Any:
            return self.left.pop() if self.left else None

    form = getattr(quantization.QuantFormat, kind)
    kinds = {key: getattr(quantization.QuantType, value) for key, value in options.items() if key.endswith("type")}
    others = {key: value for key, value in options.items() if not key.endswith("type")}
    quantization.quantize_static(before, after, Batches(), quant_format=form, **kinds, **others)
    return after


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("activation", ["QUInt8", "QInt8"])
def test_models_with_dequantized_products_run_in_bytes(tmp_path: Path, activation: str, per_channel: bool) -> None:
    path = quantized(
        tmp_path, small(), "QDQ", activation_type=activation, weight_type="QInt8", per_channel=per_channel
    )
    (network, parameters), x = dl.from_onnx(path), images(6)[5]
    assert not any("scale" in name for name in parameters)
    graph = compiled(network, x)
    assert of_bytes(graph.nodes, graph.dtypes) == 4  # all but that of single channels
    expected, found = of_onnxruntime(path, x), run(network, x)
    np.testing.assert_allclose(found, expected, atol=1e-6)  # no value is a step off
    frozen = dl.freeze(network)
    assert of_bytes(find_topo_sort(frozen.outputs)) == 4
    np.testing.assert_allclose(run(frozen, x), expected, atol=1e-6)
    np.testing.assert_allclose(of_onnxruntime(dl.to_onnx(network, None, {"x": SHAPE}), x), expected, atol=1e-6)
    in_float = ad.Executor(list(network.outputs), passes=["fold"]).run({network.inputs[0]: x}, True)[0]
    assert np.abs(in_float - expected).max() < 0.02 * np.abs(expected).max()


def test_weights_of_the_other_sign_with_a_zero_point_are_of_floats(tmp_path: Path) -> None:
    path = quantized(tmp_path, small(), "QDQ", activation_type="QUInt8", weight_type="QUInt8")
    network, x = dl.from_onnx(path)[0], images(6)[5]
    expected = of_onnxruntime(path, x)
    assert np.abs(run(network, x) - expected).max() < 0.02 * np.abs(expected).max()


def test_dynamically_quantized_models(tmp_path: Path) -> None:
    path = quantized(tmp_path, small(), "dynamic")
    network, x = dl.from_onnx(path)[0], images(6)[5]
    kinds = {node.op_type for node in onnx.load(path).graph.node}
    assert {"DynamicQuantizeLinear", "ConvInteger", "MatMulInteger"} <= kinds
    np.testing.assert_allclose(run(network, x), of_onnxruntime(path, x), atol=1e-6)


def plain() -> Any:
    """A model of Conv, Relu and MatMul alone, of which onnxruntime makes QLinearConv and QLinearMatMul."""
    rng = np.random.default_rng(0)

    def initial(name: str, *shape: int) -> Any:
        return numpy_helper.from_array(rng.standard_normal(shape).astype("float32") * 0.2, name)

    nodes = [
        helper.make_node("Conv", ["x", "f", "b"], ["y"], pads=[1, 0, 1, 2], strides=[2, 1]),
        helper.make_node("Relu", ["y"], ["z"]),
        helper.make_node("Conv", ["z", "g"], ["u"], group=2, auto_pad="SAME_UPPER"),
        helper.make_node("MatMul", ["u", "w"], ["v"]),
    ]
    known = [initial("f", 8, 3, 3, 3), initial("b", 8), initial("g", 8, 4, 3, 3), initial("w", 12, 7)]
    x, v = (helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in "xv")
    x.type.tensor_type.shape.CopyFrom(
        helper.make_tensor_value_info("x", TensorProto.FLOAT, SHAPE).type.tensor_type.shape
    )
    graph = helper.make_graph(nodes, "plain", [x], [v], known)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("activation", ["QUInt8", "QInt8"])
def test_models_of_quantized_operators(tmp_path: Path, activation: str, per_channel: bool, monkeypatch: Any) -> None:
    monkeypatch.setattr(dl, "to_onnx", lambda network, path, shapes: onnx.save(plain(), path) or plain())
    path = quantized(
        tmp_path, small(), "QOperator", activation_type=activation, weight_type="QInt8", per_channel=per_channel
    )
    assert {"QLinearConv", "QLinearMatMul"} <= {node.op_type for node in onnx.load(path).graph.node}
    x = images(6)[5]
    network = dl.from_onnx(path)[0]
    expected, found = of_onnxruntime(path, x), run(network, x)
    np.testing.assert_array_equal(found, expected)
    assert of_bytes(find_topo_sort(network.outputs)) == 3
    np.testing.assert_array_equal(run(dl.freeze(network), x), expected)


def test_networks_of_quantize_go_to_onnx_and_come_back(tmp_path: Path) -> None:
    network = dl.quantize(small(), images(4))
    model = dl.to_onnx(network, tmp_path / "bytes.onnx", {"x0": SHAPE})
    kinds = {node.op_type for node in model.graph.node}
    assert {"QuantizeLinear", "DequantizeLinear", "ConvInteger", "MatMulInteger"} <= kinds
    back = dl.from_onnx(tmp_path / "bytes.onnx")[0]
    for x in images(8):
        found, expected = run(network, x), of_onnxruntime(model, x)
        np.testing.assert_allclose(found, expected, atol=1e-6 * np.abs(expected).max())  # to the last bits
        np.testing.assert_array_equal(run(back, x), found)
    frozen = dl.freeze(network)
    np.testing.assert_allclose(run(frozen, x), found, atol=1e-6)


def one(kind: str, *inputs: tuple[str, Any], output: int = TensorProto.INT32, **attributes: Any) -> Any:
    """A model of one node; what is an array is known, a shape is of an input."""
    infos, known = [], []
    for name, value in inputs:
        if isinstance(value, np.ndarray):
            known.append(numpy_helper.from_array(value, name))
        else:
            dtype, shape = value
            code = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
            infos.append(helper.make_tensor_value_info(name, code, shape))
    node = helper.make_node(kind, [name for name, _ in inputs], ["out"], **attributes)
    out = helper.make_tensor_value_info("out", output, None)
    graph = helper.make_graph([node], "one", infos, [out], known)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


@pytest.mark.parametrize("b_zero", [0, 3])
@pytest.mark.parametrize(("a", "b"), [("uint8", "int8"), ("int8", "int8"), ("uint8", "uint8"), ("int8", "uint8")])
def test_integer_products_with_zero_points(a: str, b: str, b_zero: int) -> None:
    rng = np.random.default_rng(0)

    def drawn(dtype: str, *shape: int) -> np.ndarray:
        limits = np.iinfo(dtype)
        return rng.integers(limits.min, limits.max + 1, shape).astype(dtype)

    x, w, zero = drawn(a, 2, 5, 37), drawn(b, 37, 9), drawn(a)
    model = one(
        "MatMulInteger", ("a", (a, x.shape)), ("b", w), ("u", (a, ())), ("v", np.array(b_zero, b))
    )
    network = dl.from_onnx(model)[0]
    expected = (x.astype("int64") - int(zero)) @ (w.astype("int64") - b_zero)
    np.testing.assert_array_equal(run(network, x, zero), expected)
    rows = drawn(a, 5)
    model = one("MatMulInteger", ("a", (a, x.shape)), ("b", w), ("u", rows), ("v", drawn(b, 9)))
    columns = numpy_helper.to_array(model.graph.initializer[2]).astype("int64")
    found = run(dl.from_onnx(model)[0], x)
    np.testing.assert_array_equal(found, (x.astype("int64") - rows[:, None]) @ (w.astype("int64") - columns))


def test_what_is_not_supported_is_named() -> None:
    scale = np.array(0.5, "float32")

    def told(**changes: Any) -> str:
        model = one("DequantizeLinear", *changes.items(), output=TensorProto.FLOAT)
        return error_of(DlsysError, dl.from_onnx, model)

    assert "int16, not one of" in told(x=("uint8", (3,)), s=scale, z=np.array(1, "int16"))
    assert "(2,) are no numbers along axis 1 of (3, 4)" in told(x=("uint8", (3, 4)), s=np.ones(2, "float32"))
    x, q = ad.Variable("x"), ad.Variable("q", (3,), "int64")
    assert "quantize_linear: dtype int32 is not one of uint8, int8" in error_of(
        dl.GraphError, ad.quantize_linear_op, x, 0.1, 0, "int32"
    )
    node: Node = ad.dequantize_linear_op(q, 0.5)
    assert "q is int64, not one of uint8, int8, int32" in error_of(
        dl.DTypeError, ad.Executor([node]).run, {q: np.ones(3, "int64")}
    )
