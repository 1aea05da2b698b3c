"""The memory planner: on random programs no two values alive at once overlap, unless they were to share."""

from __future__ import annotations

import random

from dlsys.planner import ALIGNMENT, MemoryPlan, Value, plan_memory
from hypothesis import given, settings
from hypothesis import strategies as st


def random_program(rng: random.Random, steps: int) -> list[Value]:
    sizes = [0, 4, 64, 100, 4096, 65536]
    reads: list[list[int]] = []
    nbytes: list[int] = []
    alias: list[int | None] = []
    for step in range(steps):
        inputs = rng.sample(range(step), min(step, rng.randint(0, 3)))
        viewed = inputs[0] if inputs and rng.random() < 0.2 else None
        reads.append(inputs)
        alias.append(viewed)
        nbytes.append(nbytes[viewed] if viewed is not None else rng.choice(sizes))
    last = list(range(steps))
    for step, inputs in enumerate(reads):
        for value in inputs:
            last[value] = step
    for value in rng.sample(range(steps), steps // 5):
        last[value] = steps
    elementwise = [rng.random() < 0.5 for _ in range(steps)]
    return [
        Value(v, nbytes[v], v, last[v], alias[v], tuple(reads[v]) if elementwise[v] else ())
        for v in range(steps)
    ]


def check(values: list[Value], plan: MemoryPlan) -> None:
    """Replays the program on a map of who owns each range: nobody may lose a range that is still needed."""
    root: dict[object, object] = {}
    last: dict[object, int] = {}
    for value in values:
        root[value.id] = value.id if value.alias is None else root[value.alias]
        last[root[value.id]] = max(last.get(root[value.id], 0), value.last)
    own = [value for value in values if value.alias is None]
    for value in values:
        offset = plan.offset(value.id)
        assert offset % ALIGNMENT == 0 and offset >= 0 and offset + value.nbytes <= plan.bytes_planned
        assert offset == plan.offset(root[value.id])
    for i, a in enumerate(own):
        for b in own[i + 1 :]:  # written later than a
            overlap = (
                plan.offset(a.id) < plan.offset(b.id) + b.nbytes
                and plan.offset(b.id) < plan.offset(a.id) + a.nbytes
            )
            if not overlap or last[a.id] < b.first:
                continue
            may_overwrite = any(root[other] == a.id for other in b.in_place) or (
                plan.buffer_of[a.id] is plan.buffer_of[b.id]
            )
            assert last[a.id] == b.first and may_overwrite, (a, b)
            assert plan.offset(a.id) == plan.offset(b.id) and a.nbytes == b.nbytes


def test_no_two_values_alive_at_once_overlap() -> None:
    for seed in range(150):
        rng = random.Random(seed)
        values = random_program(rng, rng.randint(1, 60))
        plan = plan_memory(values)
        check(values, plan)
        assert plan.bytes_unplanned == sum(value.nbytes for value in values)
        assert plan.lower_bound <= plan.bytes_planned


@given(st.randoms(use_true_random=False), st.integers(1, 40))
@settings(max_examples=50, deadline=None)
def test_drawn_programs(rng: random.Random, steps: int) -> None:
    values = random_program(rng, steps)
    check(values, plan_memory(values))


def test_a_chain_in_place_takes_one_buffer() -> None:
    chain = [Value(i, 1000, i, min(i + 1, 9), in_place=(i - 1,) if i else ()) for i in range(10)]
    plan = plan_memory(chain)
    assert (plan.bytes_unplanned, plan.bytes_planned, plan.lower_bound) == (10_000, 1000, 1000)


def test_a_chain_not_in_place_takes_two() -> None:
    plan = plan_memory([Value(i, 1024, i, min(i + 1, 9)) for i in range(10)])
    assert plan.bytes_planned == plan.lower_bound == 2048


def test_a_value_read_later_is_not_overwritten() -> None:
    values = [Value("a", 64, 0, 2), Value("b", 64, 1, 2, in_place=("a",)), Value("c", 64, 2, 3)]
    plan = plan_memory(values)
    assert len({plan.offset(v) for v in "abc"}) == 3


def test_a_view_keeps_what_it_views_alive() -> None:
    values = [Value("a", 64, 0, 1), Value("view", 64, 1, 3, alias="a"), Value("b", 64, 2, 3)]
    plan = plan_memory(values)
    assert plan.offset("view") == plan.offset("a") != plan.offset("b")


def test_long_programs_are_planned_in_linear_time() -> None:
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
