"""The graph itself: order, depth, names, printing, source lines, arithmetic, differentiation; what nodes are."""

from __future__ import annotations

import ast
import inspect
import operator
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from dlsys import autodiff as ad
from dlsys import ops
from dlsys.errors import DlsysError, GraphError, ShapeError
from dlsys.executor import Executor
from dlsys.gradients import gradients, sum_node_list
from dlsys.graph import OPS, Node, find_topo_sort
from dlsys.inspect.text import format_graph
from helpers import error_of, evaluate

DEPTH = 30_000


def here() -> str:
    """`test_graph.py:<the caller's line>`."""
    frame = inspect.currentframe()
    assert frame is not None and frame.f_back is not None
    return f"test_graph.py:{frame.f_back.f_lineno}"


def chain(length: int) -> tuple[Node, Node, Node]:
    x, b = ad.Variable("x"), ad.Variable("b")
    node = x
    for step in range(length):
        node = (node * 0.5, node + b, ops.relu_op(node), -node)[step % 4]
    return x, b, node


@pytest.mark.slow
def test_deep_chain_builds_differentiates_and_prints() -> None:
    x, b, output = chain(DEPTH)
    grads = gradients(output, [x, b])
    assert sum(not node.op.immediate for node in find_topo_sort([output])) == DEPTH + 2
    assert len(find_topo_sort(grads)) < 6 * DEPTH
    text = format_graph([output, *grads])
    assert text.count("\n") < 6 * DEPTH
    assert max(map(len, text.splitlines())) < 120  # no names that grow


def test_doubling_chain_takes_no_exponential_time() -> None:
    x = ad.Variable("x")
    node = x
    for _ in range(60):
        node = node + node
    grad = gradients(node, [x])[0]
    assert evaluate([grad], {x: np.ones(1)})[0] == 2.0**60


def test_names_are_short_and_the_users_are_kept() -> None:
    x, w = ad.Variable("x"), ad.Variable("w")
    product = x @ w
    assert (x.name, repr(x), str(x)) == ("x", "x", "x")
    assert product.name == repr(product) == f"matmul_{product.id}"
    assert product.id > w.id > x.id
    assert ad.placeholder_op().name.startswith("placeholder_")
    assert product.inputs == [x, w] and product.op is OPS["matmul"]
    assert (x + 2).const_attr == 2.0 and product.const_attr is None
    assert ops.matmul_op(x, w, trans_B=True).matmul_attr_trans_B and not product.matmul_attr_trans_B


def test_graph_as_text() -> None:
    x = ad.Variable("x", shape=(2, 3))
    w = ad.Variable("w")
    y = ops.matmul_op(x, w, trans_A=True)
    z = ops.reducesum_op(y * 0.5, (0,)); line = here()  # noqa: E702
    lines = format_graph([z]).splitlines()
    half = z.inputs[0]
    assert lines[0].startswith("x = placeholder(shape=(2, 3))   # test_graph.py:")
    assert lines[1].startswith("w = placeholder()   # test_graph.py:")
    assert lines[2].startswith(f"{y.name} = matmul(x, w, trans_A=True)   # ")
    assert lines[3] == f"{half.name} = mul({y.name}, 0.5)   # {line}"
    assert lines[4] == f"{z.name} = reducesum({half.name}, [0])   # {line}"
    assert len(lines) == 5 and format_graph([]) == ""


def test_nodes_of_one_name_are_told_apart_in_text() -> None:
    first, second = ad.Variable("x"), ad.Variable("x")
    text = format_graph([first + second])
    assert f"add(x#{first.id}, x#{second.id})" in text


def test_locations_are_the_users_lines() -> None:
    x = ad.Variable("x", (2, 3), "float32"); line = here()  # noqa: E702
    assert x.location == line
    y = 2 / (x + 1); line = here()  # noqa: E702
    assert [node.location for node in find_topo_sort([y]) if node.inputs] == [line, line]
    lines = {node.name: line for node in find_topo_sort([y])}
    output = ops.softmax_op(y); lines[output.name] = here()  # noqa: E702
    old = set(find_topo_sort([output]))
    (grad,) = gradients(output, [x])
    made = [node for node in find_topo_sort([grad]) if node not in old and node.gradient_of is not None]
    assert {node.gradient_of for node in made} >= {output.name, y.name}
    for node in made:  # which have the line of what is differentiated
        assert node.location == f"{lines[node.gradient_of]}, gradient of {node.gradient_of}"
    total = sum_node_list([x, y]); line = here()  # noqa: E702
    assert total.location == line


def test_arithmetic_with_constants_on_both_sides() -> None:
    x, y = ad.Variable("x"), ad.Variable("y")
    x_np, y_np = np.array([[1.0, -2.0], [3.0, 0.5]]), np.array([[2.0, 4.0], [-1.0, 8.0]])
    operators = (operator.add, operator.sub, operator.mul, operator.truediv)
    pairs = [(apply(x, y), apply(x_np, y_np)) for apply in (*operators, operator.matmul)]
    pairs += [(-x, -x_np), (x**2, x_np**2)]
    for c in (3, 2.5, True, np.float32(2.5), np.float64(2.5), np.int64(3), np.array(2.5)):
        for apply in operators:
            pairs += [(apply(x, c), apply(x_np, c)), (apply(c, x), apply(c, x_np))]
        pairs.append(((x * x) ** c, (x_np * x_np) ** float(c)))
    for node, expected in pairs:
        assert isinstance(node, ad.Node)
        np.testing.assert_allclose(evaluate([node], {x: x_np, y: y_np})[0], expected, rtol=1e-15)
    names = (x + 1, "add"), (2 * x, "mul"), (1 / x, "div"), (x**2, "power")
    assert all(node.op.name == name for node, name in names)
    assert [node.const_attr for node in (x + 1, 2 * x, 5 - x, x - 5, 1 / x, x**2, x + y)] == [1, 2, 5, 5, 1, 2, None]


def test_arithmetic_refuses_what_is_no_number() -> None:
    x = ad.Variable("x")
    array = np.full(3, 2.0)  # a constant in the dtype of the feed
    nodes = [x + array, array * x, array @ x, x - array, array == x]
    found = Executor(nodes).run({x: np.float32([1, 2, 3])}, convert_to_numpy_ret_vals=True)
    assert [value.tolist() for value in found] == [[3, 4, 5], [2, 4, 6], 12, [-1, 0, 1], [False, True, False]]
    for wrong in (lambda: x + "1", lambda: [1] - x, lambda: x @ 2, lambda: x * 1j):
        error_of(TypeError, wrong)


def test_nodes_are_keys_by_identity_and_compare_by_operators() -> None:
    x, other = ad.Variable("x"), ad.Variable("x")
    assert len({x, other, x}) == 2 and {x: 1, other: 2}[x] == 1
    assert (x == other).op.name == "equal" and (x != other).op.name == "not_equal"
    assert (x == None) is False and (x != "x") is True and (x == [1]) is False  # noqa: E711


def test_same_variable_twice() -> None:
    x = ad.Variable("x")
    feed = {x: np.array([3.0, -2.0])}
    for output, expected in ((x + x, [2, 2]), (x * x, [6, -4]), (x - x, [0, 0]), (x / x, [0, 0])):
        first, second = gradients(output, [x, x])
        assert first is second
        np.testing.assert_allclose(evaluate([first], feed)[0], expected, atol=1e-15)


def test_shared_subgraph_is_differentiated_once() -> None:
    x = ad.Variable("x")
    shared = ops.exp_op(x)
    output = shared * shared + shared
    before = len(find_topo_sort([output]))
    grad = gradients(output, [x])[0]
    value = np.array([0.3, -1.0])
    np.testing.assert_allclose(evaluate([grad], {x: value})[0], 2 * np.exp(2 * value) + np.exp(value))
    users_of_x = [node for node in find_topo_sort([grad]) if node.op.name == "exp"]
    assert users_of_x == [shared] and before == 4


def test_independent_variable_has_gradient_zeros() -> None:
    x, y = ad.Variable("x"), ad.Variable("y")
    grads = gradients(x * 2.0, [x, y])
    feed = {x: np.ones((2, 3)), y: np.ones((4, 1))}
    np.testing.assert_array_equal(evaluate(grads, feed)[1], np.zeros((4, 1)))
    # x reaches this output by its shape alone
    grad = gradients(ops.broadcastto_op(y, x), [x])[0]
    feed[x] = np.ones((4, 3))
    np.testing.assert_array_equal(evaluate([grad], feed)[0], np.zeros((4, 3)))


def test_gradient_of_the_output_and_of_inner_nodes() -> None:
    x = ad.Variable("x")
    inner = x * 3.0
    output = inner * inner
    grads = gradients(output, [output, inner, x])
    values = evaluate(grads, {x: np.array([2.0])})
    assert [value.tolist() for value in values] == [[1.0], [12.0], [36.0]]
    assert evaluate(gradients(x, [x]), {x: np.full((2,), 5.0)})[0].tolist() == [1.0, 1.0]
    assert gradients(x, []) == []


def test_error_names_operator_shapes_node_and_line() -> None:
    x, w = ad.Variable("x"), ad.Variable("w")
    node = x @ w; line = here()  # noqa: E702
    text = error_of(ShapeError, node.op.infer_shape, node, [(1000, 784), (256, 100)])
    expected = f"inner dimensions differ: (1000, 784) x (256, 100) [node {node.name}, made at {line}]"
    assert text == f"matmul: {expected}"
    assert issubclass(ShapeError, DlsysError) and issubclass(ShapeError, ValueError)


def test_declared_shape_and_dtype() -> None:
    x = ad.Variable("x", shape=[2, 3], dtype=np.float32)
    assert (x.shape, x.dtype) == ((2, 3), "float32")
    y = ad.Variable("y", shape=4)
    assert y.shape == (4,)
    z = ad.Variable("z")
    assert "known only when the variable is fed" in error_of(ShapeError, lambda: z.shape)


PACKAGE = Path(__file__).resolve().parent.parent / "python" / "dlsys"
FIRST = (
    "from dlsys.autodiff import Variable",
    "from dlsys.autodiff import Variable",
    "import dlsys.gradients; from dlsys.autodiff import Variable",
    "import dlsys; from dlsys import autodiff; Variable = autodiff.Variable",
    "import dlsys.needle; from dlsys.autodiff import Variable",
)


@pytest.mark.slow
def test_nodes_do_not_depend_on_what_is_imported() -> None:
    told = "x = Variable('x', (2,), 'float32'); print(type(x).__module__, type(x + 1).__name__, x.exp().shape)"
    programs = [[sys.executable, "-c", f"{imports}; {told}"] for imports in FIRST]
    running = [subprocess.Popen(program, stdout=subprocess.PIPE, text=True) for program in programs]
    found = {child.communicate(timeout=1200)[0].strip() for child in running}
    assert found == {"dlsys.tensors.base Tensor (2,)"}


@pytest.mark.slow
def test_nothing_is_patched() -> None:
    """No module sets attributes of another's class, no metaclass, no class assigned, no reference counts."""
    wrong = []
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            place = f"{path.relative_to(PACKAGE)}:{getattr(node, 'lineno', 0)}"
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "setattr":
                target = node.args[0]
                if not (isinstance(target, ast.Name) and target.id == "self"):
                    wrong.append(f"{place}: setattr")
            if isinstance(node, ast.Attribute) and node.attr in ("getrefcount", "__class__"):
                wrong.append(f"{place}: {node.attr}")
            if isinstance(node, ast.ClassDef) and any(keyword.arg == "metaclass" for keyword in node.keywords):
                wrong.append(f"{place}: metaclass")
    assert not wrong, wrong


def test_a_number_prints_itself_and_has_no_value_alone() -> None:
    x = ad.Variable("x", (2,), "float32")
    number = (x + 2.5).inputs[1]
    assert repr([x, number]) == "[x, 2.5]"
    assert "2.5 has a dtype only beside" in error_of(GraphError, Executor, [number])
