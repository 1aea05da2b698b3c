"""The memory planner on random programs; and which nodes share a kernel."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest
from dlsys import autodiff as ad
from dlsys.compiler import NAMES, PASSES, Group, TypedGraph, fuse, make_plan, run_passes
from dlsys.compiler.lower import list_schedule
from dlsys.errors import PlanError
from dlsys.graph import Node, Shape
from dlsys.planner import ALIGNMENT, MemoryPlan, Value, plan_memory
from helpers import typed_graph
from hypothesis import given, settings
from hypothesis import strategies as st


def random_program(rng: random.Random, steps: int, most: int = 6) -> list[Value]:
    """Values of one step each, some of them views of pieces."""
    sizes = [0, 4, 64, 100, 4096, 65536][:most]
    values: list[Value] = []
    reads: list[list[int]] = []

    def root(value: object) -> object:
        return value if values[value].alias is None else root(values[value].alias)

    for step in range(steps):
        inputs = rng.sample(range(step), min(step, rng.randint(0, 3)))
        reads.append(inputs)
        if inputs and rng.random() < 0.3:
            whole = values[inputs[0]].nbytes
            start = 0 if rng.random() < 0.3 else 4 * rng.randrange(whole // 4 + 1)
            values.append(
                Value(step, rng.randint(0, (whole - start) // 4) * 4, step, step, inputs[0], (), start)
            )
        else:
            read = Counter(
                root(one) for one in inputs
            )  # a value of which a view is read too may be read elsewhere
            in_place = tuple(one for one in inputs if read[root(one)] == 1) if rng.random() < 0.6 else ()
            values.append(Value(step, rng.choice(sizes), step, step, None, in_place))
    last = list(range(steps))
    for step, inputs in enumerate(reads):
        for value in inputs:
            last[value] = step
    for value in rng.sample(range(steps), steps // 5):
        last[value] = steps
    return [replace(value, last=last[value.id]) for value in values]


def check(plan: MemoryPlan) -> None:
    plan.check()
    assert all(buffer.offset % ALIGNMENT == 0 for buffer in plan.buffers)


def test_no_two_values_alive_at_once_overlap() -> None:
    for seed in range(150):
        rng = random.Random(seed)
        values = random_program(rng, rng.randint(1, 60))
        plan = plan_memory(values)
        check(plan)
        assert plan.bytes_unplanned == sum(value.nbytes for value in values)
        assert plan.lower_bound <= plan.bytes_planned


@given(st.randoms(use_true_random=False), st.integers(1, 40))
@settings(max_examples=50, deadline=None)
def test_drawn_programs(rng: random.Random, steps: int) -> None:
    values = random_program(rng, steps)
    check(plan_memory(values))


def _moved(plan: MemoryPlan, value: str, offset: int) -> MemoryPlan:
    """The plan, but for the offset of the buffer in which a value is."""
    plan.buffer_of[value].offset = offset
    return plan


def test_wrong_plans_are_told() -> None:
    values = [
        Value("a", 64, 0, 2),
        Value("b", 64, 1, 2, in_place=("a",)),
        Value("c", 64, 2, 3),
        Value("d", 64, 3, 4),
    ]
    plan_memory(values).check()
    (at,) = {plan_memory(values).offset("a")}
    with pytest.raises(
        PlanError, match=r"a \(bytes \d+ to \d+, steps 0 to 2\) and b \(.*steps 1 to 2\) are needed at the"
    ):
        _moved(plan_memory(values), "b", at).check()  # a is read after b is computed
    with pytest.raises(PlanError, match=r"and c .* are needed at the same time"):
        _moved(plan_memory(values), "c", at + 32).check()
    with pytest.raises(PlanError, match=r"d .* is not where it belongs: the arena has 192"):
        _moved(plan_memory(values), "d", 1024).check()
    over = [Value("a", 64, 0, 1), Value("b", 64, 1, 2, in_place=("a",))]
    plan_memory(over).check()
    with pytest.raises(PlanError, match="are needed at the same time"):  # the kernel may not run in place
        _moved(plan_memory([over[0], replace(over[1], in_place=())]), "b", 0).check()


def test_a_parameter_that_is_overwritten_while_it_is_read_is_told() -> None:
    """Its old value, or a view of it, is read at step 2; the new one is written at step 1, or over it at step 2."""
    view, new = Value("view", 32, -1, 2, "w", offset=32), Value("new", 64, 2, 3, in_place=("w",), into="w")
    read, unread = (Value("w", 64, -1, last, given=True) for last in (2, 0))
    for values in ([read, new], [unread, replace(view, last=1), new], [unread, replace(new, first=1)]):
        plan = plan_memory(values)
        plan.check()
        assert plan.bytes_planned == 0 and plan.at("new") == ("w", 0) and plan.at(values[1].id)[0] == "w"
    for values in ([read, replace(new, first=1)], [read, replace(new, in_place=())], [unread, view, new]):
        with pytest.raises(PlanError, match=r"new .* are needed at the same time"):
            plan_memory(values).check()
    with pytest.raises(PlanError, match=r"new .* is not where it belongs: w has 64"):
        plan_memory([read, replace(new, nbytes=128)]).check()


def test_plans_of_drawn_graphs_lose_no_value() -> None:
    for seed in range(12):
        plan = make_plan(drawn(random.Random(seed), 60), NAMES)
        plan.memory.check()
        assert {value.into for value in plan.memory.values.values()} >= {one for one, _ in plan.graph.updates}


@given(st.randoms(use_true_random=False), st.integers(2, 12))
@settings(max_examples=200, deadline=None)
def test_a_check_finds_what_a_replay_finds(rng: random.Random, steps: int) -> None:
    """Of plans of which one buffer was moved: a map of whose each byte is says whether a value loses one."""
    values = random_program(rng, steps, 4)
    plan = plan_memory(values)
    buffer = rng.choice(plan.buffers)
    buffer.offset = ALIGNMENT * rng.randrange(plan.bytes_planned // ALIGNMENT + 1)
    root: dict[object, object] = {}
    for value in values:
        root[value.id] = value.id if value.alias is None else root[value.alias]
    memory: dict[int, object] = {}
    lost = any(plan.offset(value.id) + value.nbytes > plan.bytes_planned for value in values)
    for step in range(steps + 1):
        for (
            value
        ) in values:  # what is read or written at this step is still there, or is overwritten by its reader
            owners = [memory.get(plan.offset(value.id) + byte) for byte in range(0, value.nbytes, 4)]
            if value.first < step <= value.last:
                lost |= any(owner != root[value.id] for owner in owners)
        for value in values:
            if value.first == step and value.alias is None:
                for byte in range(0, value.nbytes, 4):
                    before = memory.get(at := plan.offset(value.id) + byte)
                    for other in values:  # an input that is read now
                        begin = plan.offset(other.id)
                        if (
                            other.first < step <= other.last
                            and root[other.id] == before
                            and begin <= at < begin + other.nbytes
                        ):
                            alike = begin == plan.offset(value.id) and other.nbytes == value.nbytes
                            lost |= not (other.last == step and other.id in value.in_place and alike)
                    memory[at] = value.id
    if lost:
        with pytest.raises(PlanError):
            plan.check()
    else:
        plan.check()


def test_a_value_read_later_is_not_overwritten() -> None:
    values = [Value("a", 64, 0, 2), Value("b", 64, 1, 2, in_place=("a",)), Value("c", 64, 2, 3)]
    plan = plan_memory(values)
    assert len({plan.offset(v) for v in "abc"}) == 3


def test_a_view_keeps_what_it_views_alive() -> None:
    values = [Value("a", 64, 0, 1), Value("view", 64, 1, 3, alias="a"), Value("b", 64, 2, 3)]
    plan = plan_memory(values)
    assert plan.offset("view") == plan.offset("a") != plan.offset("b")


def test_pieces_lie_in_what_they_are_pieces_of() -> None:
    values = [
        Value("a", 256, 0, 0),
        Value("low", 128, 0, 1, "a"),
        Value("high", 128, 0, 3, "a", offset=128),
        Value("b", 128, 1, 3, in_place=("low",)),  # a piece is no whole buffer
    ]
    plan = plan_memory(values)
    check(plan)
    assert plan.offset("high") == plan.offset("a") + 128 and plan.bytes_planned == 256 + 128


def test_long_programs_are_planned_in_some_seconds() -> None:
    steps = 20_000
    plan = plan_memory([Value(i, 128, i, 2 * steps - i) for i in range(steps)])
    assert plan.bytes_planned == plan.lower_bound == 128 * steps


def test_nothing_and_empty_values() -> None:
    assert plan_memory([]).bytes_planned == 0
    plan = plan_memory([Value("none", 0, 0, 1), Value("some", 8, 1, 2)])
    assert plan.bytes_planned == 8 and "none" in str(plan)


def test_the_plan_prints_who_lives_where_and_when() -> None:
    text = str(plan_memory([Value("x", 64, 0, 1), Value("y", 128, 1, 2)]))
    assert "x" in text and "0-1" in text and "192 bytes with one buffer per node" in text


SHAPE = (4, 64)


def kernels(output: Node) -> list[str]:
    """The names of the groups that compute a node of variables of one shape."""
    fed = {node: (SHAPE, "float32") for node in ad.find_topo_sort([output]) if not node.inputs}
    graph = run_passes(typed_graph([output], [], fed), tuple(PASSES))
    return sorted(group.name for group in fuse(graph))


def variables(count: int) -> list[Node]:
    return [ad.Variable(f"v{i}") for i in range(count)]


def test_terms_of_a_sum_and_what_follows_it_are_its_kernel() -> None:
    x, y = variables(2)
    assert kernels(ad.reducesum_op(ad.exp_op(x) * y, 0)) == ["exp_mul_reducesum"]
    assert kernels(ad.tanh_op(ad.reducesum_op(ad.exp_op(x), 0))) == ["exp_reducesum_tanh"]
    assert kernels(ad.tanh_op(ad.exp_op(ad.reducesum_op(x, 0)))) == ["reducesum_exp_tanh"]


def test_a_value_that_is_read_twice_at_each_step_stays_in_one_kernel() -> None:
    x, y = variables(2)
    value = x
    for _ in range(20):
        value = value * (value + y)
    assert len(kernels(value)) == 1


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


@pytest.mark.slow
def test_groups_are_in_no_circle() -> None:
    for seed in range(160):  # with ranks that do not follow the groups, five of these have circles
        graph = drawn(random.Random(seed), 150)
        groups = fuse(graph)
        owner = {node: group for group in groups for node in group.outputs}

        def before(group: Group, owner: dict[Node, Group] = owner) -> list[Group]:
            return [owner[value] for value in group.inputs if value in owner]

        assert len(list_schedule(groups, before, lambda node: node, lambda node: 0, ())) == len(groups)
        computed = Counter(node for group in groups for node in group.nodes)
        assert set(computed) == set(graph.nodes)
        assert all(node not in owner for node, count in computed.items() if count > 1)  # it is stored nowhere
        assert len(groups) < len(graph.nodes)
