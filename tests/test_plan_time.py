"""What keeps planning and compiling fast: short expressions in kernels, searches that find what simple ones do."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import tvm_ffi
from dlsys import autodiff as ad
from dlsys.compiler import (
    NAMES,
    PASSES,
    Program,
    TypedGraph,
    analyse,
    make_program,
    run_passes,
    single_groups,
    typed_graph,
)
from dlsys.compiler.fuse import Group, fuse
from dlsys.compiler.groups import MOST_LENGTH, READS, is_elementwise, kernel_spec, longest, ordered
from dlsys.compiler.order import SHARING, list_schedule
from dlsys.graph import OPS, Node, Shape, find_topo_sort
from dlsys.kernels.spec import prim_func
from dlsys.schedule.stages import read_stages
from helpers import CASES
from tvm import ir, tirx

SHAPE = (4, 64)


def kernels(output: Node) -> list[str]:
    """The names of the groups that compute a node of variables of one shape."""
    fed = {node: (SHAPE, "float32") for node in ad.find_topo_sort([output]) if not node.inputs}
    graph = run_passes(typed_graph([output], [], fed), tuple(PASSES))
    groups = fuse(graph)
    for group in groups:
        if group.kind != "rows":
            assert longest(group.nodes, group.outputs) <= MOST_LENGTH
    return sorted(group.name for group in groups)


def variables(count: int) -> list[Node]:
    return [ad.Variable(f"v{i}") for i in range(count)]


def test_no_costly_function_is_in_anothers_argument() -> None:
    x, w, bias, i, f, g, c = variables(7)
    w = ad.broadcast_shape_op(ad.reducesum_op(w), (64, 64))
    product = x @ w + bias
    sigmoid, tanh, exp = ad.sigmoid_op, ad.tanh_op, ad.exp_op

    def behind(output: Node) -> list[str]:
        return [name for name in kernels(output) if name != "reducesum" and "broadcast" not in name]

    assert behind(tanh(product)) == ["matmul_add_tanh"]
    gelu = product * (ad.erf_op(product * 0.7) + 1.0) * 0.5
    assert len(behind(gelu)) == 1
    assert behind(sigmoid(product) * tanh(c)) == ["matmul_add_sigmoid_tanh_mul"]
    assert behind(exp(tanh(product))) == ["exp", "matmul_add_tanh"]
    cell = sigmoid(f) * c + sigmoid(i) * tanh(g)
    assert behind(sigmoid(product) * tanh(cell)) == [  # an LSTM's last step
        "matmul_add_sigmoid_mul",
        "sigmoid_mul_sigmoid_tanh_mul_add",
        "tanh",
    ]
    assert behind(sigmoid(product) + cell) == ["matmul_add_sigmoid_sigmoid_5more_add"]


def test_terms_of_a_sum_and_what_follows_it_are_short() -> None:
    x, y = variables(2)
    assert kernels(ad.reducesum_op(ad.exp_op(x) * y, 0)) == ["exp_mul_reducesum"]
    assert kernels(ad.tanh_op(ad.reducesum_op(ad.exp_op(x), 0))) == ["exp_reducesum_tanh"]
    assert len(kernels(ad.tanh_op(ad.exp_op(ad.reducesum_op(x, 0))))) == 2


def test_a_value_that_is_read_twice_at_each_step_is_not_written_out() -> None:
    x, y = variables(2)
    value = x
    for _ in range(20):
        value = value * (value + y)
    assert 2 <= len(kernels(value)) <= 10


def reads(expression: Any, bound: dict[Any, int]) -> int:
    """How often an expression loads, with each variable's value written out."""
    found = 0

    def let(item: tirx.Let, mutator: Any) -> Any:
        bound[item.var] = reads(item.value, bound)
        mutator.mutate(item.body)
        return item

    def load(item: ir.TensorLoad, _: Any) -> Any:
        nonlocal found
        found += 1
        return item

    def var(item: ir.Var, _: Any) -> Any:
        nonlocal found
        found += bound.get(item, 0)
        return item

    tvm_ffi.structural_mutate(expression, [(tirx.Let, let), (ir.TensorLoad, load), (ir.Var, var)])
    return found


def test_the_costly_operators_are_those_that_read_their_argument_often() -> None:
    seen = set()
    for cases in CASES.values():
        case = cases[0]
        nodes = case.variables()
        node = case.build(*nodes)
        if node in set(nodes) or not is_elementwise(node):
            continue
        kinds = zip(case.shapes, case.dtypes("float32"), strict=True)
        graph = typed_graph([node], [], dict(zip(nodes, kinds, strict=True)))
        group = next(group for group in single_groups(graph) if node in group.nodes)
        stages = read_stages(prim_func(kernel_spec(group, graph, False)))
        assert stages is not None
        often = max(reads(stage.value, {}) for stage in stages) / len(group.inputs or [node]) > READS
        assert often == node.op.costly, node.op.name
        seen.add(node.op.name)
    assert seen >= {op.name for op in OPS.values() if op.costly}


def drawn(rng: random.Random, steps: int) -> TypedGraph:
    """A graph in which groups meet: products, sums, rows and elementwise nodes of few shapes, several updates."""
    fed: dict[Node, tuple[Shape, str]] = {}
    values = []
    for number in range(3):
        values.append(ad.Parameter([[float(number)] * 8] * 8))
        fed[values[-1]] = ((8, 8), "float32")
    parameters = list(values)
    make: list[Callable[[Node, Node], Node]] = [
        lambda a, b: a + b,
        lambda a, b: a * b,
        lambda a, b: a - b,
        lambda a, b: a @ b,
        lambda a, b: ad.softmax_op(a),
        lambda a, b: ad.broadcast_shape_op(ad.reducesum_op(a, 0), (8, 8)),
        lambda a, b: ad.relu_op(a),
    ]
    for _ in range(steps):
        values.append(rng.choice(make)(rng.choice(values[-8:]), rng.choice(values)))
    updates = [(parameter, rng.choice(values[3:])) for parameter in parameters]
    all_read = parameters[0] * parameters[1] * parameters[2]
    return typed_graph([values[-1], rng.choice(values[3:]), all_read], updates, fed)


def test_groups_are_in_no_circle() -> None:
    for seed in range(160):  # with ranks that do not follow the groups, five of these have circles
        graph = drawn(random.Random(seed), 150)
        groups = fuse(graph)
        owner = {node: group for group in groups for node in group.outputs}

        def before(group: Group, owner: dict[Node, Group] = owner) -> list[Group]:
            return [owner[value] for value in group.inputs if value in owner]

        assert ordered(groups, before) is not None
        assert sorted(node.id for group in groups for node in group.nodes) == sorted(n.id for n in graph.nodes)
        assert len(groups) < len(graph.nodes)  # had there been a circle, every node would be alone


def check_list_schedule(program: Program) -> None:
    """Each of the groups in this order is the one of the ready that frees most, as found by asking them all."""
    owner = {node: group for group in program.groups for node in group.outputs}
    kept = {program.source(node) for node in program.results if node is not None}

    def before(group: Group) -> list[Group]:
        return [owner[value] for value in group.inputs if value in owner]

    def read(group: Group) -> set[Node]:
        return {program.source(value) for value in group.inputs}

    def growth(group: Group) -> int:
        takes = sum(map(program.nbytes, {*map(program.source, group.outputs)}))
        readers = {m: sum(m in read(other) for other in left) for m in read(group) - kept}
        return takes - sum(program.nbytes(m) // n for m, n in readers.items() if n <= SHARING)

    left = list(program.groups)
    for chosen in list_schedule(left, before, lambda node: [program.source(node)], program.nbytes, kept):
        ready = [group for group in left if not any(other in left for other in before(group))]
        assert chosen is min(ready, key=lambda group: min(growth(group), 0))
        left = [group for group in left if group is not chosen]
    assert not left


def test_the_thrifty_order_takes_the_group_that_frees_most() -> None:
    rng = random.Random(6)
    for _ in range(30):
        check_list_schedule(make_program(drawn(rng, rng.randrange(5, 60)), ("views", "fuse")))


def test_kernels_of_several_launches_overwrite_no_input() -> None:
    """On a GPU each result of a kernel is a launch: the first may not write over what the second reads."""
    x, y, z = variables(3)
    a = (x + y) * z  # in the arena: what the two results are computed from
    product = a @ a
    results = [product * 2.0 + x, product * 3.0 - y]
    parameter = ad.Parameter(np.ones((64, 64), "float32"), "p")
    results += [ad.assign(parameter, parameter * product), parameter + product]
    for on_cpu in (True, False):
        graph = analyse(find_topo_sort(results), results, dict.fromkeys((x, y, z), ((64, 64), "float32")))
        program = make_program(graph, NAMES, None, on_cpu)
        shared = []
        for group in program.groups:
            for node in group.outputs:
                lies = [v for v in group.inputs if _place(program, v) == _place(program, node)]
                shared += [(group, v) for v in lies if len(group.outputs) > 1]
        assert bool(shared) == on_cpu, shared


def _place(program: Program, node: Node) -> int:
    source = program.source(node)
    buffers = program.memory.buffer_of if program.memory else {}
    return id(buffers.get(source, source))
