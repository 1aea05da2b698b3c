"""Graphs as Relax modules: every operator's value, training in place, what is printed, what is kept in a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dlsys as dl
import numpy as np
import pytest
from dlsys import autodiff as ad
from dlsys import nn, optim
from dlsys.errors import DlsysError, FeedError, GraphError
from dlsys.graph import Node, find_topo_sort
from helpers import error_of, every_case, python
from tvm import relax, tirx
from tvm.relax.frontend import nn as relax_nn

RANDOM = np.random.default_rng(0)


def drawn(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype("float32")


def mlp() -> tuple[Node, Node, Node, list[Node]]:
    """Images, labels, the loss and the parameters of a small network."""
    x, y = ad.Variable("x"), ad.Variable("y")
    w1, w2 = ad.Parameter(drawn(12, 32), "w1"), ad.Parameter(drawn(32, 4), "w2")
    bias = ad.Parameter(np.zeros(32, "float32"), "bias")
    loss = ad.softmaxcrossentropy_op(ad.relu_op(x @ w1 + bias) @ w2, y)
    return x, y, loss, [w1, w2, bias]


def equal(found: Any, wanted: Any, tolerance: float = 1e-5) -> None:
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=tolerance, atol=tolerance / 10)


@pytest.mark.slow
def test_every_operator_has_the_executors_values() -> None:
    every, values = every_case(of_each=2)
    nodes = [node for node in every if not node.op.by_numpy]
    feed = {node: values[node] for node in find_topo_sort(nodes) if node in values}
    compiled = dl.relax.compile(nodes, feed_shapes=feed)
    found, wanted = compiled(*feed.values()), ad.Executor(nodes).run(feed, True)
    assert len(found) == len(nodes) and compiled.rules["contraction"] > 5
    for node, one, other in zip(nodes, found, wanted, strict=True):
        assert one.shape == other.shape and one.dtype == str(other.dtype), node
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6, err_msg=str(node))


@pytest.mark.slow
def test_a_module_is_compiled_by_its_arguments_names() -> None:
    dl.manual_seed(0)
    module, x = nn.Sequential(nn.Linear(12, 8), nn.Dropout(0.5), nn.Linear(8, 3)), drawn(4, 12)
    compiled = dl.relax.compile(module, feed_shapes={"image": x})
    assert compiled.names == ("image", "_0_weight", "_0_bias", "_2_weight", "_2_bias") and module.training
    equal(compiled(x), [module.eval()(dl.tensor(x)).numpy()])
    frozen = dl.relax.compile(dl.freeze(module, {"image": x}), params="constants")
    assert frozen.names == ("image",)
    equal(frozen(x), compiled(x))
    assert "feed_shapes is a dictionary" in error_of(FeedError, dl.relax.compile, module)


@pytest.mark.slow
def test_training_writes_the_parameters_as_the_executor_does() -> None:
    x, y, loss, parameters = mlp()
    step = [loss, optim.SGD(parameters, lr=0.1, momentum=0.9).minimize(loss)]
    images, labels = drawn(8, 12), np.eye(4, dtype="float32")[RANDOM.integers(0, 4, 8)]
    compiled = dl.relax.compile(step, feed_shapes={x: images, y: labels})
    assert compiled.names[:2] == ("x", "y") and set(compiled.parameters) > {"w1", "w2", "bias"}
    before = np.asarray(parameters[0].value)
    executor = ad.Executor(step)
    for _ in range(5):
        found, *new = compiled(images, labels)
        equal([found], executor.run({x: images, y: labels}, True)[:1])
    own = {name: np.asarray(value) for name, value in compiled.parameters.items()}
    equal([own[p.name] for p in parameters], [np.asarray(p.value) for p in parameters])
    assert np.abs(own["w1"] - before).max() > 1e-3
    pointers = {np.from_dlpack(value).ctypes.data for value in compiled.parameters.values()}
    assert {np.from_dlpack(value).ctypes.data for value in new} <= pointers


@pytest.mark.slow
def test_networks_forward_and_a_step() -> None:
    dl.manual_seed(0)
    convolutions = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(128, 5)
    )
    attention = nn.Sequential(nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True), nn.Linear(16, 5))
    for model, shape, classes in ((convolutions, (4, 3, 8, 8), (4,)), (attention, (2, 6, 16), (2, 6))):
        x, y = ad.Variable("x", shape), ad.Variable("y", classes, "int64")
        images, labels = drawn(*shape), RANDOM.integers(0, 5, classes)
        model.eval()
        logits = model(x)
        compiled, executor = dl.relax.compile(logits, feed_shapes={x: shape}), ad.Executor([logits])
        equal(compiled(images), executor.run({x: images}, True), 1e-4)
        model.train()
        loss = nn.functional.cross_entropy(model(x).reshape((-1, 5)), y.reshape((-1,)))
        step = [loss, optim.AdamW(model.parameters(), lr=0.01).minimize(loss)]
        compiled, executor = dl.relax.compile(step, feed_shapes={x: shape, y: labels}), ad.Executor(step)
        for _ in range(3):
            equal(compiled(images, labels)[:1], executor.run({x: images, y: labels}, True)[:1], 1e-4)


def test_what_lies_in_a_parameter_that_is_written_is_read_before() -> None:
    a, b = ad.Parameter(drawn(2, 3), "a"), ad.Parameter(drawn(2, 3), "b")
    old_a, old_b = np.array(a.value), np.array(b.value)
    swap = ad.group_op([ad.assign_op(a, b), ad.assign_op(b, a)])
    flat = ad.reshape_op(a, (6,))
    compiled = dl.relax.compile([a, flat, ad.matmul_op(a, b, trans_B=True), swap], feed_shapes={})
    for first, second in ((old_a, old_b), (old_b, old_a)):
        equal(compiled(), [first, first.ravel(), first @ second.T, second, first])
    equal(compiled.parameters.values(), [old_a, old_b])
    product = ad.relu_op(ad.matmul_op(b, ad.matmul_op(b, a, trans_A=True)))
    compiled = dl.relax.compile([ad.assign_op(a, product)], feed_shapes={})
    equal(compiled()[-1:], [np.maximum(old_b @ (old_b.T @ old_a), 0)])
    a, b = (ad.Parameter(drawn(40, 40), name) for name in "ab")
    wanted = np.maximum(np.array(b.value) @ np.array(a.value), 0)
    compiled = dl.relax.compile(ad.group_op([ad.assign_op(a, ad.relu_op(b @ a))]), feed_shapes={})
    equal(compiled(), [wanted], 1e-4)  # `a` is not written while the product reads it


def test_the_stages_show_what_was_fused_and_scheduled() -> None:
    x, _, loss, _ = mlp()
    hidden = loss.inputs[0].inputs[0]
    compiled = dl.relax.compile(hidden, feed_shapes={x: (8, 12)})
    names = {stage: {g.name_hint for g in module.get_global_vars()} for stage, module in compiled.stages.items()}
    assert names["translated"] == {"main", "matmul", "add", "relu"}
    assert names["fused"] == names["scheduled"] == {"main", "fused_matmul_add_relu"}
    assert compiled.rules == {"contraction": 1} and str(compiled) == "kernels: 1 contraction"
    assert "T.vectorized" in compiled.stages["scheduled"]["fused_matmul_add_relu"].script()
    assert compiled.stages["translated"]["main"].attrs["num_input"] == 1
    plain = dl.relax.compile(hidden, "llvm", False, "default", feed_shapes={x: (8, 12)})
    assert plain.rules == {"default": 3}
    images = drawn(8, 12)
    equal(plain(images), compiled(images))


@pytest.mark.slow
def test_a_file_runs_without_tvms_compiler(folder: Path) -> None:
    x, _, loss, _ = mlp()
    logits = loss.inputs[0]
    compiled = dl.relax.compile(logits, feed_shapes={x: (8, 12)}, params="constants")
    images = drawn(8, 12)
    path = folder / "model.so"
    compiled.export(path)
    np.save(folder / "images.npy", images)
    program = "import sys, numpy as np, dlsys as dl; model = dl.relax.load(sys.argv[1]); print(model.names)\n"
    program += "np.save(sys.argv[2], model(np.load(sys.argv[2]))[0]); print('tvm' in sys.modules)"
    assert python("-c", program, path, folder / "images.npy").stdout == "('x',)\nFalse\n"
    equal([np.load(folder / "images.npy")], compiled(images))
    (folder / "other.so").write_bytes(b"none")
    assert "other.so is not a compiled module" in error_of(DlsysError, dl.relax.load, folder / "other.so")
    assert "gone.so is not a compiled module" in error_of(DlsysError, dl.relax.load, "gone.so")


def test_modules_of_others_are_compiled_by_our_rules() -> None:
    class Net(relax_nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = relax_nn.Linear(12, 32), relax_nn.Linear(32, 4)

        def forward(self, x: Any) -> Any:
            return self.second(relax_nn.op.relu(self.first(x)))

    module, parameters = Net().export_tvm(spec={"forward": {"x": relax_nn.spec.Tensor((8, 12), "float32")}})
    module["main"] = module["forward"].with_attr("global_symbol", "main")
    del module["forward"]
    compiled = dl.relax.compile(module)
    assert compiled.rules["contraction"] == 2 and compiled.names[0] == "x" and len(parameters) == 4
    x, w, b, v, c = drawn(8, 12), drawn(32, 12), drawn(32), drawn(4, 32), drawn(4)
    equal(compiled(x, w, b, v, c), [np.maximum(x @ w.T + b, 0) @ v.T + c])


def test_modules_of_others_may_split_and_must_have_known_shapes() -> None:
    builder, x = relax.BlockBuilder(), relax.Var("x", relax.TensorType((6, 4), "float32"))
    with builder.function("main", [x]):
        halves = builder.emit(relax.op.split(x, 2, axis=0))
        summed = builder.emit(relax.op.add(halves[0], halves[1]))
        builder.emit_func_output(relax.Tuple([summed, builder.emit(relax.op.nn.softmax(summed))]))
    given = drawn(6, 4)
    found = dl.relax.compile(builder.get())(given)
    equal(found[:1], [given[:3] + given[3:]])
    equal([np.asarray(found[1]).sum(1)], [np.ones(3)])
    builder, x = relax.BlockBuilder(), relax.Var("x", relax.TensorType((tirx.Var("n", "int64"), 4), "float32"))
    with builder.function("main", [x]):
        builder.emit_func_output(builder.emit(relax.op.nn.relu(x)))
    assert "relu takes arrays of unknown extents: " in error_of(GraphError, dl.relax.compile, builder.get())


def test_inputs_have_names_of_their_own() -> None:
    names = ["w", "w", "w_1", "a b", "a_b", "1"]
    variables = [ad.Variable(name) for name in names]
    module = dl.relax.to_relax(variables, dict.fromkeys(variables, (2,)))
    assert [str(value.name) for value in module["main"].params] == ["w", "w_1", "w_1_1", "a_b", "a_b_1", "_1"]


def test_parameters_keep_the_names_of_the_graph() -> None:
    x, y, loss, _ = mlp()
    names = [str(parameter.name) for parameter in dl.relax.to_relax(loss, {x: (8, 12), y: (8, 4)})["main"].params]
    assert names == ["x", "y", "w1", "bias", "w2"]
