"""Models of ONNX and PyTorch as networks, and ours as ONNX: values, names, training, what is refused and how."""

from __future__ import annotations

import io
import os
import tempfile
import traceback
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import dlsys as dl
import numpy as np
import onnx
import onnxruntime
import torch
from dlsys import autodiff as ad
from dlsys import nn, optim
from dlsys.errors import DataError, DlsysError, FeedError, GraphError, ShapeError
from dlsys.graph import Node
from helpers import CASES, error_of
from onnx import helper, numpy_helper
from onnx.backend.test.case.node import collect_testcases

RANDOM = np.random.default_rng(0)
onnxruntime.set_default_logger_severity(4)


def drawn(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype("float32")


def of_onnxruntime(model: Any, feeds: list[np.ndarray]) -> list[np.ndarray]:
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
    encoder = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, activation="gelu")
    found = {
        "images": (Images(), torch.randn(2, 3, 19, 19)),
        "text": (Text(), torch.randint(0, 30, (2, 12))),
        "encoder": (torch.nn.TransformerEncoder(encoder, 2), torch.randn(2, 5, 16)),
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


def test_networks_of_pytorch_by_onnx_and_by_export() -> None:
    for name, (network, x) in networks().items():
        wanted = flat(network(x))
        for opset in {"images": (13, 20), "text": (14,)}.get(name, (17,)):
            read, parameters = dl.from_onnx(as_onnx(network, x, opset_version=opset))
            equal(flat(read(x.numpy())), wanted)
            assert parameters and all(value.requires_grad for value in parameters.values())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.export.export(network, (x,))
            read, parameters = dl.from_torch(program)
        found = read(x.numpy())
        equal(flat(found), wanted)
        assert parameters.keys() == dict(network.named_parameters()).keys()
        assert {key for key, _ in read.named_buffers()} <= dict(network.named_buffers()).keys()
        outputs = ad.Executor(read.outputs).run({read.inputs[0]: x.numpy()}, True)  # the graph itself
        equal(outputs, wanted)


def test_an_imported_network_is_trained() -> None:
    network, x = networks()["images"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        read, parameters = dl.from_torch(torch.export.export(network, (x,)))
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
    assert ad.Executor(read.outputs).run({read.inputs[0]: x.numpy()}, True)[0].shape == (2, 5)


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


def test_onnx_backend_suite() -> None:
    counts: Counter[str] = Counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the suite's own arithmetic
        cases = collect_testcases(None)
    for case in cases:
        values = [value for part in case.data_sets[0] for value in part]
        if not all(isinstance(value, (np.ndarray, np.generic)) for value in values):
            counts["no tensors"] += 1
            continue
        for model, inputs in known_inputs(case):
            try:
                read, _ = dl.from_onnx(
                    model, dict(zip((i.name for i in model.graph.input), map(np.shape, inputs), strict=False))
                )
                found = ad.Executor(read.outputs, ctx="numpy").run(
                    dict(zip(read.inputs, inputs, strict=True))
                )
            except DlsysError as error:
                outcome = str(error)
                continue
            for one, other in zip(found, case.data_sets[0][1], strict=True):
                assert one.shape == np.shape(other) and one.dtype == other.dtype, case.name
                np.testing.assert_allclose(one, other, case.rtol, max(case.atol, 1e-6), err_msg=case.name)
            outcome = "passed"
            break
        counts["passed" if outcome == "passed" else "not supported"] += 1
    assert counts["passed"] > 700, counts


def test_every_operator_that_onnx_has() -> None:
    counts: Counter[str] = Counter()
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
                assert "no operator for" in str(error)
                counts["missing"] += 1
                continue
            (wanted,) = ad.Executor([node], ctx="numpy").run(feed)
            read, _ = dl.from_onnx(model)
            of_name = {variable.name: value for variable, value in feed.items()}
            given = {variable: of_name[variable.name] for variable in read.inputs}
            equal(ad.Executor(read.outputs, ctx="numpy").run(given), [wanted])
            try:
                found = of_onnxruntime(model, [np.asarray(value) for value in given.values()])
            except Exception as error:  # noqa: BLE001  # of its own kinds
                told = str(error)
                assert any(text in told for text in ("NOT_IMPLEMENTED", "ut of", "INVALID_GRAPH")), (
                    name,
                    told,
                )
                counts["onnxruntime has none"] += 1
                continue
            if wanted.size:
                equal(found, [wanted], 1e-4)
            counts["equal"] += 1
    assert counts["equal"] > 220 and counts["onnxruntime has none"] < 10, counts


class Sentences(nn.Module):
    def __init__(self) -> None:
        self.embedding = nn.Embedding(20, 8)
        self.block = nn.TransformerEncoderLayer(
            8, 2, 16, batch_first=True, norm_first=True, activation="gelu"
        )
        self.steps = nn.LSTM(8, 4, batch_first=True)

    def forward(self, tokens: Node) -> Any:
        return self.steps(self.block(self.embedding(tokens)))[0]


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
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def test_mistakes_are_told() -> None:
    def read(*args: Any, **kwargs: Any) -> Any:
        return dl.from_onnx(model_of(*args, **kwargs))

    assert error_of(GraphError, read, "Resize", [(1, 2)]) == "from_onnx: no operator for Resize (it)"
    assert "no operator for com.other.Relu (it)" in error_of(
        GraphError, read, "Relu", [(1, 2)], domain="com.other"
    )
    assert "MaxPool it: MaxPool: dilations" in error_of(
        GraphError, read, "MaxPool", [(1, 2, 8, 8)], kernel_shape=[2, 2], dilations=[2, 2]
    )
    assert "unexpected keyword argument 'banana'" in error_of(GraphError, read, "Relu", [(1, 2)], banana=1)
    assert "must be known when the model is read" in error_of(GraphError, read, "Reshape", [(1, 2), (2,)])
    assert error_of(ShapeError, read, "Relu", [("n", 3)]) == (
        "from_onnx: a has shape (n, 3): give shapes={'a': ...}"
    )
    model = model_of("Relu", [("n", 3)])
    assert dl.from_onnx(model, {"a": (2, 3)})[0].inputs[0].attrs["shape"] == (2, 3)
    assert "has shape (n, 3), not (2, 4)" in error_of(ShapeError, dl.from_onnx, model, {"a": (2, 4)})
    assert "shapes has x, but the inputs are a" in error_of(ShapeError, dl.from_onnx, model, {"x": (2, 4)})
    assert "float16" in error_of(GraphError, read, "Add", [(1, 2)], [np.ones(2, "float16")])
    assert "MatMul it" in error_of(
        ShapeError, lambda: read("MatMul", [(2, 3), (4, 5)])[0](drawn(2, 3), drawn(4, 5)).shape
    )
    assert "there is no file" in error_of(DataError, dl.from_onnx, "nothing.onnx")
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "other.onnx")
        Path(path).write_bytes(b"no model at all")
        assert "other.onnx" in error_of(DataError, dl.from_onnx, path)
    assert "takes a path or an onnx.ModelProto, not int" in error_of(DataError, dl.from_onnx, 3)
    assert "takes what torch.export.export returns, not int" in error_of(GraphError, dl.from_torch, 3)
    network, _ = read("Relu", [(1, 2)])
    assert "takes 1 values, a; got 2" in error_of(GraphError, network, drawn(1, 2), drawn(1, 2))
    assert "a must be (1, 2), as imported, not (2, 2)" in error_of(ShapeError, network, drawn(2, 2))


def test_mistakes_in_exports_are_told() -> None:
    x = ad.Variable("x")
    dropped = nn.functional.dropout(x, 0.5)
    assert "to_onnx: no operator for random_bits (" in error_of(
        GraphError, dl.to_onnx, dropped, None, {x: (2, 3)}
    )
    assert "was not fed" in error_of(FeedError, dl.to_onnx, ad.relu_op(x), None, {})
    assert "takes nodes or a module, not int" in error_of(GraphError, dl.to_onnx, [3], None, {})
    assert "cannot be written" in error_of(
        DataError, dl.to_onnx, ad.relu_op(x), "/no/such/place.onnx", {x: (2,)}
    )
    assert "names of arguments" in error_of(FeedError, dl.to_onnx, nn.Linear(2, 3), None, {x: (1, 2)})
    for feeds, expected in (({"a": (1, 2), "b": (1,)}, "too many"), ({}, "missing a required argument: 'x'")):
        assert f"Linear.forward: {expected}" in error_of(FeedError, dl.to_onnx, nn.Linear(2, 3), None, feeds)


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


def test_programs_that_train_are_refused() -> None:
    network = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3))
    program = torch.export.export(network.train(), (torch.randn(4, 3),))
    assert "export the model after model.eval()" in error_of(GraphError, dl.from_torch, program)
    program = torch.export.export(
        torch.nn.Sequential(torch.nn.FractionalMaxPool2d(2, output_size=2)), (torch.randn(1, 1, 6, 6),)
    )
    assert "no operator for aten.rand.default (rand); aten.fractional_max_pool2d" in error_of(
        GraphError, dl.from_torch, program
    )


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
