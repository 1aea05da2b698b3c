"""Numbers of ONNX's operators at the limits of their dtypes: beside NumPy's, by kernels and in the context "numpy"."""

from __future__ import annotations

from typing import Any

import dlsys as dl
import numpy as np
import onnx
import pytest
from dlsys import autodiff as ad
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper


def model_of(kind: str, *values: np.ndarray, **attributes: Any) -> Any:
    """A model of one node with an input for each value."""
    inputs = [
        helper.make_tensor_value_info(f"a{i}", helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
        for i, value in enumerate(values)
    ]
    output = helper.make_tensor_value_info("y", inputs[0].type.tensor_type.elem_type, None)
    node = helper.make_node(kind, [each.name for each in inputs], ["y"], **attributes)
    graph = helper.make_graph([node], "g", inputs, [output])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def results(kind: str, *values: np.ndarray, **attributes: Any) -> list[np.ndarray]:
    """The operator's results, by kernels and by NumPy."""
    network, _ = dl.from_onnx(model_of(kind, *values, **attributes))
    variables = [ad.Variable(f"x{i}", value.shape, str(value.dtype)) for i, value in enumerate(values)]
    feed = dict(zip(variables, values, strict=True))
    return [ad.Executor([network(*variables)], context).run(feed, True)[0] for context in (None, "numpy")]


FUNCTIONS = {"Cosh": np.cosh, "Sinh": np.sinh, "Acosh": np.arccosh, "Asinh": np.arcsinh, "Atanh": np.arctanh}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", FUNCTIONS)
def test_hyperbolic_functions_over_all_numbers_of_a_dtype(kind: str, dtype: str) -> None:
    largest = float(np.finfo(dtype).max)
    ends = np.log(largest) * np.array([0.99, 1.0, 1.005])  # where e^x, and where cosh x, overflows
    wide = np.exp(np.linspace(np.log(1e-6), np.log(largest) - 1e-9, 300))
    size = np.concatenate([wide, np.linspace(0, 3, 50), ends, [0.0, 89.0, 1e20, np.inf]])
    x = np.concatenate([size, -size, [np.nan]]).astype(dtype)
    with np.errstate(all="ignore"):
        wanted = FUNCTIONS[kind](x.astype("float64")).astype(dtype)
    for found in results(kind, x):
        np.testing.assert_allclose(found, wanted, rtol=8 * np.finfo(dtype).eps)


@pytest.mark.parametrize("kind", FUNCTIONS)
def test_gradients_of_hyperbolic_functions_are_finite(kind: str) -> None:
    x = np.array([0.5, 3.0, 60.0] if kind in ("Cosh", "Sinh") else [1e6, 1e9, 1e20], "float32")
    x = x if kind != "Atanh" else np.array([0.5, -0.25, 0.0], "float32")
    with np.errstate(all="ignore"):
        wide = x.astype("float64")
        wanted = {
            "Cosh": np.sinh, "Sinh": np.cosh, "Atanh": lambda x: 1 / (1 - x * x),
            "Acosh": lambda x: 1 / np.sqrt(x * x - 1), "Asinh": lambda x: 1 / np.sqrt(x * x + 1),
        }[kind](wide)  # fmt: skip
    network, _ = dl.from_onnx(model_of(kind, x))
    variable = ad.Variable("x", x.shape)
    (gradient,) = ad.gradients(network(variable), [variable])
    np.testing.assert_allclose(ad.Executor([gradient]).run({variable: x}, True)[0], wanted, rtol=1e-5)


INTEGERS = st.sampled_from(["int32", "int64"])


@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.data(), INTEGERS)
def test_integers_are_divided_exactly(data: Any, dtype: str) -> None:
    limits = np.iinfo(dtype)
    ends = st.sampled_from([limits.min, limits.max])
    numbers = st.one_of(st.integers(limits.min, limits.max), st.integers(-9, 9), ends)
    pairs = [(a, b or 7) for a, b in data.draw(st.lists(st.tuples(numbers, numbers), min_size=3, max_size=3))]
    pairs = [(a, 3 if (a, b) == (limits.min, -1) else b) for a, b in pairs]
    a, b = (np.array(column, dtype) for column in zip(*pairs, strict=True))
    wanted = [abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1) for x, y in pairs]
    for found in results("Div", a, b):
        assert found.dtype == dtype and found.tolist() == wanted


@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.data(), INTEGERS)
def test_integers_are_raised_exactly(data: Any, dtype: str) -> None:
    bits = np.iinfo(dtype).bits - 1
    pairs = []
    for base in data.draw(st.lists(st.integers(-50, 50), min_size=4, max_size=4)):
        most = bits // max(abs(base).bit_length(), 1) if abs(base) > 1 else 10**6
        pairs.append((base, data.draw(st.integers(0, most))))
    a, b = (np.array(column, dtype) for column in zip(*pairs, strict=True))
    wanted = [base**exponent for base, exponent in pairs]
    for found in results("Pow", a, b):
        assert found.dtype == dtype and found.tolist() == wanted


def test_remainders_of_floats_have_the_sign_of_the_first() -> None:
    a, b = np.array([5.5, -5.5, 3, -3, 1e9], "float32"), np.array([2, 2, -2, 1.25, 7], "float32")
    for found in results("Mod", a, b, fmod=1):
        np.testing.assert_array_equal(found, np.fmod(a, b))
    x, y = ad.Variable("x", a.shape), ad.Variable("y", b.shape)
    model = dl.to_onnx(ad.fmod_op(x, y), None, {x: a, y: b})
    onnx.checker.check_model(model)
    network, _ = dl.from_onnx(model)
    np.testing.assert_array_equal(network(a, b).numpy(), np.fmod(a, b))
