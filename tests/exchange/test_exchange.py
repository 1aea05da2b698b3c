"""Models of ONNX and PyTorch as networks, and ours as ONNX: values, names, training, what is refused and how."""

from __future__ import annotations

import io
import sys
import tempfile
import traceback
import warnings
from pathlib import Path
from typing import Any
from unittest import mock

import dlsys as dl
import numpy as np
import onnx
import pytest
from dlsys import autodiff as ad
from dlsys import nn, optim
from dlsys.errors import DataError, DlsysError, FeedError, GraphError, ShapeError
from dlsys.exchange import onnx_operators
from dlsys.graph import Node
from dlsys.tensors import shape_of
from helpers import CASES, error_of
from onnx import helper, numpy_helper
from onnx.backend.test.case.node import collect_testcases
from optional import onnxruntime, onnxscript, torch

RANDOM = np.random.default_rng(0)


def drawn(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype("float32")


def of_onnxruntime(model: Any, feeds: list[np.ndarray]) -> list[np.ndarray]:
    onnxruntime.set_default_logger_severity(4)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    return session.run(None, {given.name: x for given, x in zip(session.get_inputs(), feeds, strict=True)})


def flat(value: Any) -> list[np.ndarray]:
    if isinstance(value, (list, tuple)):
        return [array for item in value for array in flat(item)]
    return [value.detach().numpy()]


def equal(found: Any, wanted: Any, tolerance: float = 1e-5) -> None:
    for one, other in zip(found, wanted, strict=True):
        assert one.shape == other.shape and str(one.dtype) == str(other.dtype)
        np.testing.assert_allclose(
            one, other, rtol=tolerance, atol=tolerance * max(1.0, np.abs(other).max(initial=0))
        )


# Of PyTorch --------------------------------------------------------------------------------------------------


class Images(torch.nn.Module):
    """What ResNets, MobileNets, SqueezeNets and DenseNets are made of."""

    def __init__(self) -> None:
        super().__init__()
        t = torch.nn
        self.stem = t.Sequential(t.Conv2d(3, 8, 3, 2, 1, bias=False), t.BatchNorm2d(8), t.ReLU6(inplace=True))
        self.pool = t.MaxPool2d(3, 2, ceil_mode=True)
        self.depthwise = t.Sequential(t.Conv2d(8, 8, 3, padding=1, groups=8), t.BatchNorm2d(8), t.Hardswish())
        self.wide = t.Sequential(t.Conv2d(16, 12, 1), t.SiLU(inplace=True), t.AvgPool2d(2, ceil_mode=True))
        self.head = t.Sequential(t.AdaptiveAvgPool2d(1), t.Flatten(), t.Dropout(0.5), t.Linear(12, 5))

    def forward(self, x: Any) -> Any:
        x = self.pool(self.stem(x))
        scale = torch.nn.functional.hardsigmoid(x.mean((2, 3), keepdim=True))
        y = self.depthwise(x * scale)
        y += x
        return self.head(self.wide(torch.cat([x, y], 1)))


class Text(torch.nn.Module):
    """GPT-2's block, by PyTorch's layers and by hand, and what programs do with shapes."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = torch.nn.Embedding(30, 16), torch.nn.Embedding(12, 16)
        layer = torch.nn.TransformerEncoderLayer(16, 2, 32, 0.1, "gelu", batch_first=True, norm_first=True)
        self.blocks = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.joint = torch.nn.Linear(16, 48)
        self.register_buffer("mask", torch.tril(torch.ones(12, 12)).view(1, 1, 12, 12))

    def forward(self, tokens: Any) -> Any:
        length = tokens.shape[1]
        x = self.tokens(tokens) + self.places(torch.arange(length, device=tokens.device))
        causal = torch.nn.Transformer.generate_square_subsequent_mask(length)
        x = self.blocks(x, mask=causal, is_causal=True)
        q, k, v = (
            part.view(*part.shape[:2], 2, 8).transpose(1, 2) for part in self.joint(x).split(16, dim=2)
        )
        scores = (q @ k.transpose(-2, -1)) / 8**0.5
        scores = scores.masked_fill(self.mask[:, :, :length, :length] == 0, float("-inf"))
        y = (torch.softmax(scores, -1) @ v).transpose(1, 2).reshape(*x.shape)
        y = 0.5 * y * (1 + torch.tanh(0.8 * (y + 0.04 * torch.pow(y, 3.0))))
        return y, y[:, -1].argmax(-1), y.std(-1)


class Steps(torch.nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.layers = getattr(torch.nn, kind)(4, 6, 2, bidirectional=True, batch_first=True)

    def forward(self, x: Any) -> Any:
        return self.layers(x)


def networks() -> dict[str, tuple[Any, Any]]:
    torch.manual_seed(0)
    found = {
        "images": (Images(), torch.randn(2, 3, 19, 19)),
        "text": (Text(), torch.randint(0, 30, (2, 12))),
        **{kind: (Steps(kind), torch.randn(2, 5, 4)) for kind in ("LSTM", "GRU", "RNN")},
    }
    for network, _ in found.values():
        for name, buffer in network.named_buffers():
            if "running" in name:
                buffer.uniform_(0.5, 1.5)
    return {name: (network.eval(), x) for name, (network, x) in found.items()}


def as_onnx(network: Any, x: Any, **settings: Any) -> Any:
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(network, (x,), file, dynamo=False, **settings)
    return onnx.load_from_string(file.getvalue())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["images", "text", "LSTM", "GRU", "RNN"])
def test_networks_of_pytorch_by_onnx_and_by_export(name: str) -> None:
    assert onnxscript.script  # or skipped
    network, x = networks()[name]
    wanted = flat(network(x))
    for opset in {"images": (13, 20), "text": (14,)}.get(name, (17,)):
        read, parameters = dl.from_onnx(as_onnx(network, x, opset_version=opset))
        equal(flat(read(x.numpy())), wanted)
        assert parameters and all(value.requires_grad for value in parameters.values())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.export(network, (x,))
    read, parameters = dl.from_torch(program)
    equal(flat(read(x.numpy())), wanted)
    assert parameters.keys() == dict(network.named_parameters()).keys()
    assert {key for key, _ in read.named_buffers()} <= dict(network.named_buffers()).keys()
    (given,) = read.inputs
    outputs = read(given)
    executor = ad.Executor(list(outputs) if isinstance(outputs, tuple) else [outputs])
    equal(executor.run({given: x.numpy()}, True), wanted)


@pytest.mark.slow
def test_an_imported_network_is_trained() -> None:
    assert onnxscript.script  # or skipped
    network, x = networks()["images"]
    read, parameters = dl.from_torch(network, (x,))
    names = dict(network.named_parameters())
    labels = torch.tensor([1, 3])
    ours, theirs = optim.SGD(read.parameters(), lr=0.1), torch.optim.SGD(network.parameters(), lr=0.1)
    for _ in range(3):
        ours.zero_grad()
        theirs.zero_grad()
        loss = nn.functional.cross_entropy(read(x.numpy()), dl.tensor(labels.numpy()))
        wanted = torch.nn.functional.cross_entropy(network(x), labels)
        loss.backward()
        wanted.backward()
        ours.step()
        theirs.step()
        np.testing.assert_allclose(loss.item(), wanted.item(), rtol=1e-4)
    equal([parameters[name].numpy() for name in names], flat(list(names.values())), 1e-4)
    assert read(x.numpy()).shape == (2, 5)


def test_parameters_that_take_anothers_place_are_the_networks() -> None:
    module, x = nn.Linear(3, 2), drawn(4, 3)
    network, _ = dl.from_onnx(dl.to_onnx(module, None, {"x": x}))
    wide = network.double()(x.astype("float64"))
    assert wide.dtype == "float64" and np.allclose(wide.numpy(), module(dl.tensor(x)).numpy(), atol=1e-6)
    network.bias = nn.Parameter(np.full(2, 5.0))
    assert np.allclose(network(x.astype("float64")).numpy() - wide.numpy(), 5.0 - module.bias.numpy())


# Of ONNX -----------------------------------------------------------------------------------------------------


def known_inputs(case: Any) -> list[tuple[Any, list[np.ndarray]]]:
    """The case as it is, and with all its inputs but the first as constants, which ours may ask for."""
    inputs = [np.asarray(value) for value in case.data_sets[0][0]]
    fixed = onnx.ModelProto()
    fixed.CopyFrom(case.model)
    names = [given.name for given in case.model.graph.input]
    fixed.graph.initializer.extend(map(numpy_helper.from_array, inputs[1:], names[1:]))
    return [(case.model, inputs), (fixed, inputs[:1])]


def run(model: Any, inputs: list[np.ndarray], context: Any = "numpy") -> list[np.ndarray]:
    """The outputs of the network of a model."""
    read, _ = dl.from_onnx(model)
    given = [ad.Variable(f"x{i}", x.shape, str(x.dtype)) for i, x in enumerate(inputs)]
    outputs = read(*given)
    executor = ad.Executor(list(outputs) if isinstance(outputs, tuple) else [outputs], context)
    return executor.run(dict(zip(given, inputs, strict=True)), True)


def cases_of_onnx() -> list[Any]:
    """ONNX's own test cases whose values are tensors."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the suite's own arithmetic
        cases = collect_testcases(None)
    numbers = (np.ndarray, np.generic)
    return [case for case in cases if all(isinstance(value, numbers) for part in case.data_sets[0] for value in part)]


@pytest.mark.slow
def test_onnx_backend_suite() -> None:
    """None of the cases gives a wrong number, by NumPy's references, and of each operator that is read and that ONNX
    has a case for one is right."""
    right, asked = set[str](), set[str]()
    for case in cases_of_onnx():
        kinds = {node.op_type for node in case.model.graph.node}
        asked |= kinds
        for model, inputs in known_inputs(case):
            try:
                found = run(model, inputs)
            except DlsysError:
                continue
            for one, other in zip(found, case.data_sets[0][1], strict=True):
                assert one.shape == np.shape(other) and one.dtype == other.dtype, case.name
                np.testing.assert_allclose(one, other, case.rtol, max(case.atol, 1e-6), err_msg=case.name)
            right |= kinds
            break
    reset_before = {"GRU"}  # of which ONNX's cases reset before the product, PyTorch's layers after it
    assert not sorted((asked & onnx_operators.OPERATORS.keys()) - right - reset_before)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(2, 3, 5, 4), (1, 4, 6, 6)])
def test_transposed_convolutions_go_to_onnx(shape: tuple[int, ...]) -> None:
    dl.manual_seed(0)
    x = drawn(*shape)
    for settings in ({}, {"stride": 2, "padding": 1, "output_padding": 1}, {"stride": (2, 1), "dilation": 2}):
        module = nn.ConvTranspose2d(shape[1], 6, 3, **settings)
        model = dl.to_onnx(module, None, {"x": x})
        assert "ConvTranspose" in {node.op_type for node in model.graph.node}
        wanted = [module(dl.tensor(x)).numpy()]
        equal(of_onnxruntime(model, [x]), wanted)
        equal(flat(dl.from_onnx(model)[0](x)), wanted)


@pytest.mark.slow
def test_every_operator_that_onnx_has() -> None:
    for name in CASES:
        for case in CASES[name][:3]:
            variables = case.variables()
            node = case.build(*variables)
            if case.parameters or any(node is variable for variable in variables):
                continue
            feed = dict(zip(variables, case.draw("float32"), strict=True))
            try:
                model = dl.to_onnx(node, None, feed)
            except GraphError as error:
                assert "no operator for" in str(error) or "product of bytes" in str(error)
                continue
            (wanted,) = ad.Executor([node], ctx="numpy").run(feed)
            of_name = {variable.name: value for variable, value in feed.items()}
            given = [of_name[each.name] for each in model.graph.input]
            equal(run(model, given), [wanted])
            try:
                found = of_onnxruntime(model, [np.asarray(value) for value in given])
            except Exception as error:  # noqa: BLE001  # of its own kinds: some have no implementation there
                told = str(error)
                assert any(text in told for text in ("NOT_IMPLEMENTED", "ut of", "INVALID_GRAPH")), (name, told)
                continue
            if wanted.size:
                equal(found, [wanted], 1e-4)


class Sentences(nn.Module):
    def __init__(self) -> None:
        self.embedding = nn.Embedding(20, 8)
        self.block = nn.TransformerEncoderLayer(
            8, 2, 16, batch_first=True, norm_first=True, activation="gelu"
        )
        self.steps = nn.LSTM(8, 4, batch_first=True)

    def forward(self, tokens: Node) -> Any:
        return self.steps(self.block(self.embedding(tokens)))[0]


@pytest.mark.slow
def test_modules_go_to_onnx_and_come_back() -> None:
    dl.manual_seed(0)
    convolutions = nn.Sequential(
        nn.Conv2d(3, 6, 3, 2, 1, bias=False), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.5),
        nn.Conv2d(6, 6, 3, padding=1, groups=6), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 4),
    )  # fmt: skip
    convolutions(drawn(4, 3, 8, 8)).numpy()  # moves the running statistics
    for module, x in ((convolutions, drawn(2, 3, 8, 8)), (Sentences(), RANDOM.integers(0, 20, (2, 5)))):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.onnx"
            model = dl.to_onnx(module, path, {"x": x})
            assert module.training  # as before
            assert [given.name for given in model.graph.input] == ["x"]
            read, parameters = dl.from_onnx(path)
        wanted = flat(module.eval()(dl.tensor(x)))
        equal(of_onnxruntime(model, [x]), wanted)
        equal(flat(read(x)), wanted, 1e-6)
        assert parameters.keys() == dict(module.named_parameters()).keys()
        assert {name for name, _ in module.named_buffers()} - {"1.num_batches_tracked"} <= dict(
            read.named_buffers()
        ).keys()
        if module is convolutions:
            assert {node.name.split("/")[0] for node in model.graph.node} >= {"0", "1", "3", "8"}
        module.train()


# What is refused ---------------------------------------------------------------------------------------------


def model_of(kind: str, shapes: list[Any], constants: Any = (), domain: str = "", **attributes: Any) -> Any:
    """A model of one node `it` of inputs a, b, ... and constants."""
    names = [chr(ord("a") + i) for i in range(len(shapes) + len(constants))]
    inputs = [helper.make_tensor_value_info(n, 1, s) for n, s in zip(names, shapes, strict=False)]
    fixed = [
        numpy_helper.from_array(np.asarray(v), n)
        for v, n in zip(constants, names[len(shapes) :], strict=True)
    ]
    node = helper.make_node(kind, names, ["y"], "it", domain=domain, **attributes)
    graph = helper.make_graph([node], "g", inputs, [helper.make_tensor_value_info("y", 1, None)], fixed)
    opsets = [helper.make_opsetid(name, 18) for name in {"", domain}]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def test_mistakes_are_told() -> None:
    def read(*args: Any, **kwargs: Any) -> Any:
        return dl.from_onnx(model_of(*args, **kwargs))[0]

    def called(kind: str, shapes: list[Any], *args: Any, **kwargs: Any) -> Any:
        return read(kind, shapes, *args, **kwargs)(*(ad.Variable("x", shape) for shape in shapes))

    assert error_of(GraphError, read, "Det", [(2, 2)]) == "from_onnx: no operator for Det (it)"
    assert "no operator for com.other.Relu (it)" in error_of(
        GraphError, read, "Relu", [(1, 2)], domain="com.other"
    )
    assert "MaxPool it: MaxPool: dilations" in error_of(
        GraphError, called, "MaxPool", [(1, 2, 8, 8)], kernel_shape=[2, 2], dilations=[2, 2]
    )
    floor = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    for scales, settings in (([1, 2, 2, 2], floor), ([1, 1, 2, 2], {}), ([1, 1, 2, 2], {**floor, "mode": "cubic"})):
        given = [np.zeros(0, "f4"), np.float32(scales)]
        assert "Resize it: Resize of (1, 2, 3, 3) to " in error_of(
            GraphError, called, "Resize", [(1, 2, 3, 3)], given, **settings
        )
    assert "must follow from constants and shapes" in error_of(GraphError, called, "Reshape", [(1, 2), (2,)])
    assert "float16" in error_of(GraphError, read, "Add", [(1, 2)], [np.ones(2, "float16")])
    assert "MatMul it" in error_of(ShapeError, called, "MatMul", [(2, 3), (4, 5)])
    network = read("Relu", [(1, 2)])
    assert "takes 1 values, a; got 2" in error_of(GraphError, network, drawn(1, 2), drawn(1, 2))
    assert "a has no known shape: give feed_shapes" in error_of(ShapeError, dl.freeze, read("Relu", [("n", 2)]))


def of_nodes(*nodes: Any, initial: Any = (), shape: Any = (2, 6), opset: int = 18, dtype: int = 1, **more: Any) -> Any:
    """A model of nodes that make y of a."""
    inputs = [helper.make_tensor_value_info("a", dtype, shape)]
    outputs = [helper.make_tensor_value_info("y", dtype, None)]
    graph = helper.make_graph(list(nodes), "g", inputs, outputs, list(initial))
    domains = {node.domain for node in nodes} - {""}
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(domain, 1) for domain in sorted(domains))]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10, **more)


def add(initial: Any) -> Any:
    """A model that adds an initial value w to a."""
    return of_nodes(helper.make_node("Add", ["a", "w"], ["y"], "it"), initial=[initial])


def tensor_of(value: Any, **changed: Any) -> Any:
    """A tensor w with some of its fields changed."""
    made = numpy_helper.from_array(np.asarray(value), "w")
    for name, other in changed.items():
        if isinstance(other, list):
            del getattr(made, name)[:]
            getattr(made, name).extend(other)
        else:
            setattr(made, name, other)
    return made


def one(kind: str, *constants: Any, outputs: Any = ("y",), shape: Any = (2, 6), **attributes: Any) -> Any:
    """A model of one node `it` of a and constants."""
    names = [f"c{i}" for i in range(len(constants))]
    initial = [numpy_helper.from_array(np.asarray(v), n) for v, n in zip(constants, names, strict=True)]
    inputs = names if kind in ("Range", "ConstantOfShape") else ["a", *names]
    return of_nodes(helper.make_node(kind, inputs, outputs, "it", **attributes), initial=initial, shape=shape)


def function(name: str, *nodes: Any) -> Any:
    """A function of the domain `own` from x to z."""
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("own", 1)]
    return helper.make_function("own", name, ["x"], ["z"], list(nodes), opsets)


def indices(*values: int) -> np.ndarray:
    return np.asarray(values, "int64")


def hostile() -> dict[str, tuple[Any, str]]:
    """Models that ONNX does not allow, and what the error says beside the file's name."""
    node, weight = helper.make_node, np.ones((4, 3, 3, 3), "float32")
    image = {"shape": (1, 3, 8, 8)}
    return {
        "parts": (one("Split", indices(2, 2, 2), axis=1, outputs="yz"), "Split it: Split of extent 6 into 2"),
        "axis": (one("Split", axis=7, outputs="yz"), "Split it: there are 2 axes, and it names 7"),
        "dims": (add(tensor_of(np.ones(4, "f4"), dims=[-4])), "Negative dimension value"),
        "few bytes": (add(tensor_of(np.ones((2, 6), "f4"), raw_data=b"abcd")), "TensorProto (tensor name: w)"),
        "many bytes": (add(tensor_of(np.ones(3, "f4"), raw_data=bytes(99))), "w: "),
        "dtype 99": (of_nodes(node("Relu", ["a"], ["y"]), dtype=99), "a: there is no dtype of number 99"),
        "extents": (one("Relu", shape=(-4, 2)), "a has the shape (-4, 2)"),
        "operator set": (of_nodes(node("Relu", ["a"], ["y"]), opset=999), "operator set 999 is newer than "),
        "circle": (
            of_nodes(node("Relu", ["y"], ["z"], "it"), node("Relu", ["z"], ["y"], "other")),
            "Nodes in a graph must be",
        ),
        "no output": (of_nodes(node("Relu", ["a"], ["z"], "it")), "Graph output 'y'"),
        "empty constant": (
            of_nodes(node("Constant", [], ["c"], "it"), node("Add", ["a", "c"], ["y"])),
            "Constant it: a Constant has one attribute, its value, not 0",
        ),
        "range by 0": (one("Range", 0, 3, 0), "Range it: Range from 0 to 3 by 0 has no end"),
        "range of 2^40": (one("Range", 0, 2**40, 1), "Range it: Range of 1099511627776 numbers has more than"),
        "negative shape": (one("ConstantOfShape", indices(-3)), "ConstantOfShape it: a shape has no negative extent"),
        "tiles": (one("Tile", indices(2)), "Tile it: repeats must be a number for each of 2 axes, not [2]"),
        "pads": (one("Pad", indices(0, 0, 1)), "Pad it: pads must be 4 numbers, not 3"),
        "slices": (one("Slice", indices(0, 0), indices(1)), "Slice it: 2 starts, 1 ends, 2 axes and 2 steps"),
        "strides": (one("Conv", weight, strides=[0, 1], **image), "Conv it: strides must be positive, not [0, 1]"),
        "steps": (one("LSTM", np.ones(6, "f4"), np.ones(6, "f4"), shape=(2, 3, 4)), "LSTM it: LSTM: x, w and r"),
        "few inputs": (of_nodes(node("Add", [], ["y"], "it")), "Node(it) with schema"),
        "kind of an attribute": (one("Transpose", perm=1.5), "Mismatched attribute type in 'it : perm'"),
        "circle of functions": (
            of_nodes(
                node("F", ["a"], ["y"], domain="own"),
                functions=[
                    function("F", node("G", ["x"], ["z"], domain="own")),
                    function("G", node("F", ["x"], ["z"], domain="own")),
                ],
            ),
            "Cycle detected in model-local function references",
        ),
    }  # fmt: skip


def test_models_that_onnx_does_not_allow_are_named_with_their_node() -> None:
    def read_and_called(path: Path) -> None:
        network, _ = dl.from_onnx(path)
        network(*network.inputs)

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "hostile.onnx"
        for name, (model, told) in hostile().items():
            path.write_bytes(model.SerializeToString())
            found = error_of(DataError, read_and_called, path)
            assert found.startswith(f"from_onnx: {path}: {told}"), (name, found)


def test_a_model_stays_as_it_is() -> None:
    """Also one whose operators are read as others, with attributes that it leaves out."""
    model = of_nodes(helper.make_node("Elu", ["a"], ["y"], "it"), shape=None)
    before = model.SerializeToString()
    network, _ = dl.from_onnx(model)
    assert model.SerializeToString() == before
    x = drawn(2, 3)
    np.testing.assert_allclose(network(x).numpy(), np.where(x > 0, x, np.expm1(x)), rtol=1e-5, atol=1e-6)


def test_numbers_have_the_dtype_of_what_is_beside_them() -> None:
    network, _ = dl.from_onnx(one("Mul", np.float32(0.5)))
    for dtype in ("float32", "float64"):
        assert network(np.ones((2, 6), dtype)).numpy().tolist() == [[0.5] * 6] * 2


def test_what_follows_from_constants_is_computed_once() -> None:
    node = helper.make_node
    model = of_nodes(
        node("Constant", [], ["c"], value_floats=[1.0, 2.0, 3.0]), node("Neg", ["c"], ["d"]),
        node("Tile", ["d", "t"], ["e"]), node("Add", ["a", "e"], ["y"]),
        initial=[numpy_helper.from_array(indices(2), "t")],
    )  # fmt: skip
    network, parameters = dl.from_onnx(model)
    assert not parameters and repr(network).startswith("OnnxNetwork(a (2, 6); 1 operators)")
    np.testing.assert_array_equal(network(np.zeros((2, 6), "f4")).numpy(), [[-1, -2, -3] * 2] * 2)


def test_local_functions_are_inlined() -> None:
    node = helper.make_node
    doubled = function("Doubled", node("Add", ["x", "x"], ["z"]))
    both = function("Both", node("Doubled", ["x"], ["u"], domain="own"), node("Relu", ["u"], ["z"]))
    model = of_nodes(
        node("Both", ["a"], ["u"], "first", domain="own"),
        node("Doubled", ["u"], ["y"], "second", domain="own"),
        functions=[both, doubled],
    )
    x = drawn(2, 6)
    network, _ = dl.from_onnx(model)
    equal(flat(network(x)), of_onnxruntime(model, [x]))
    np.testing.assert_array_equal(network(x).numpy(), 4 * np.maximum(x, 0))


def test_values_in_other_files_are_read() -> None:
    weights = np.arange(12, dtype="float32").reshape(2, 6)
    with tempfile.TemporaryDirectory() as folder:
        path, data = Path(folder) / "model.onnx", Path(folder) / "data"
        onnx.save(add(numpy_helper.from_array(weights, "w")), path, save_as_external_data=True, location="data",
                  size_threshold=0)  # fmt: skip
        np.testing.assert_array_equal(dl.from_onnx(path)[0](np.zeros((2, 6), "f4")).numpy(), weights)
        model = onnx.load(path, load_external_data=False)
        assert "tensor name: w) should be stored in data" in error_of(DataError, dl.from_onnx, model)
        data.unlink()
        assert f"from_onnx: {path}: " in error_of(DataError, dl.from_onnx, path)


def test_sizes_that_are_only_stated_take_no_memory() -> None:
    """Products, comparisons, triangles and windows of constants or inputs of many GiB."""
    node, ones = helper.make_node, np.ones((2**18, 1), "int64")
    wide = [numpy_helper.from_array(value, name) for name, value in (("u", ones), ("v", ones.reshape(1, -1)))]
    for model in (
        of_nodes(node("MatMul", ["u", "v"], ["y"]), initial=wide, dtype=7),
        of_nodes(node("Equal", ["u", "v"], ["z"]), node("Not", ["z"], ["y"]), initial=wide, dtype=7),
        one("ConstantOfShape", indices(2**36), shape=(1,)),
        one("Expand", indices(2**18, 2**18), shape=(1, 1)),
        one("Pad", indices(0, 0, 2**36, 0)),
        one("Trilu", shape=(2**18, 2**18)),
        one("AveragePool", kernel_shape=[2, 2], pads=[0, 0, 1, 1], shape=(1, 1, 2**18, 2**18)),
    ):
        network = dl.from_onnx(model)[0]
        assert np.prod(shape_of(network(*network.inputs)), dtype=object) >= 2**34


def test_names_of_values_may_be_any_text() -> None:
    names = ["...", "forward", "forward.x", "forward.y", "a.b", "a", "a.b.c", "__class__", "_modules.w", "x.\0.\n"]
    initial = [numpy_helper.from_array(drawn(6), name) for name in names]
    values = ["a0", *(f"a{i + 1}" for i in range(len(names) - 1)), "y"]
    nodes = [helper.make_node("Add", [values[i], n], [values[i + 1]]) for i, n in enumerate(names)]
    model = of_nodes(helper.make_node("Relu", ["a"], ["a0"]), *nodes, initial=initial[:5] + initial[6:] + initial[5:6])
    model.graph.input[0].name = model.graph.node[0].input[0] = "input"
    network, parameters = dl.from_onnx(model)
    assert len(parameters) == len(names) and len(network.state_dict()) == len(names)
    x = drawn(2, 6)
    wanted = np.maximum(x, 0) + sum(numpy_helper.to_array(tensor) for tensor in initial)
    np.testing.assert_allclose(network(x).numpy(), wanted, rtol=1e-5, atol=1e-5)


def test_mistakes_in_exports_are_told() -> None:
    x = ad.Variable("x")
    dropped = nn.functional.dropout(x, 0.5)
    assert "to_onnx: no operator for random_bits (" in error_of(
        GraphError, dl.to_onnx, dropped, None, {x: (2, 3)}
    )
    assert "names of arguments" in error_of(FeedError, dl.to_onnx, nn.Linear(2, 3), None, {x: (1, 2)})


def test_a_mistake_within_forward_keeps_its_traceback() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            self.layer = nn.Linear(2, 3)

        def forward(self, x: ad.Node) -> ad.Node:
            return self.layer(x) + len(5)  # type: ignore[arg-type]

    net_line = Net.forward.__code__.co_firstlineno + 1
    for export in (lambda: dl.to_onnx(Net(), None, {"x": (1, 2)}), lambda: dl.freeze(Net(), {"x": (1, 2)})):
        try:
            export()
        except TypeError as error:
            last = traceback.extract_tb(error.__traceback__)[-1]
            assert (last.filename, last.lineno, str(error)) == (__file__, net_line, "object of type 'int' has no len()")
        else:
            raise AssertionError("no error")


@pytest.mark.slow
def test_what_pytorch_does_not_export_is_refused() -> None:
    assert onnxscript.script  # or skipped
    assert "takes a torch.nn.Module or an ExportedProgram, not int" in error_of(GraphError, dl.from_torch, 3)
    network, x = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3)), torch.randn(4, 3)
    for trained, given in ((network.train(), (x,)), (torch.export.export(network, (x,)), ())):
        assert "export it after model.eval()" in error_of(GraphError, dl.from_torch, trained, given)
    network.eval()
    assert "from_torch: the model is not exported: " in error_of(GraphError, dl.from_torch, network, (x, x))
    with mock.patch.dict(sys.modules, {"onnxscript": None}):
        assert "pip install torch onnxscript" in error_of(GraphError, dl.from_torch, network, (x,))


@pytest.mark.slow
def test_relax_reads_the_same_models() -> None:
    """TVM's importers as a cross-check: of the ONNX file, and of the exported program."""
    from tvm.relax.frontend.onnx import from_onnx
    from tvm.relax.frontend.torch import from_exported_program

    network, x = networks()["images"]
    model = as_onnx(network, x, opset_version=17)
    (found,) = (value.numpy() for value in [dl.from_onnx(model)[0](x.numpy())])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.export(network, (x,))
        modules = [from_onnx(model), from_exported_program(program)]
    for module in modules:
        (other,) = dl.relax.compile(module)(x.numpy())
        np.testing.assert_allclose(found, other, rtol=1e-4, atol=1e-5)
