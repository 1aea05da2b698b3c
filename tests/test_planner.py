"""The memory planner: on random programs no two values alive at once overlap, unless they were to share."""

from __future__ import annotations

import random
from dataclasses import replace

from dlsys.planner import ALIGNMENT, MemoryPlan, Value, plan_memory
from hypothesis import given, settings
from hypothesis import strategies as st


def random_program(rng: random.Random, steps: int) -> list[Value]:
    """Values of one step each, some of them views of pieces; and arrays put together, of which all parts are computed
    before any is read as a whole."""
    sizes = [0, 4, 64, 100, 4096, 65536]
    values: list[Value] = []
    reads: list[list[int]] = []
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
            in_place = tuple(inputs) if rng.random() < 0.6 else ()
            values.append(Value(step, rng.choice(sizes), step, step, None, in_place))
    last = list(range(steps))
    for step, inputs in enumerate(reads):
        for value in inputs:
            last[value] = step
    for value in rng.sample(range(steps), steps // 5):
        last[value] = steps
    values = [replace(value, last=last[value.id]) for value in values]
    return with_joins(rng, values, steps)


def with_joins(rng: random.Random, values: list[Value], steps: int) -> list[Value]:
    """The values with some of them in arrays that are put together of them."""
    left = [value for value in values if value.alias is None]
    for number in range(rng.randint(0, 2)):
        parts = rng.sample(left, min(len(left), rng.randint(1, 4)))
        if not parts:
            break
        left = [value for value in left if value not in parts]
        start, placed = 0, {}
        for part in parts:
            placed[part.id] = replace(part, alias=f"join{number}", offset=start, in_place=())
            start += part.nbytes
        first, last = min(part.first for part in parts), max(part.first for part in parts)
        join = Value(f"join{number}", start, first, rng.randint(last, steps))
        values = [placed.get(value.id, value) for value in values]
        at = next(i for i, value in enumerate(values) if value.id in placed)
        values = [*values[:at], join, *values[at:]]
    return values


def check(values: list[Value], plan: MemoryPlan) -> None:
    """Replays the program on a map of whose each byte is: nobody may lose a byte that is still needed. Values that lie
    in others have their place there."""
    root: dict[object, object] = {}
    where: dict[object, int] = {}  # in the root
    for value in values:
        root[value.id] = value.id if value.alias is None else root[value.alias]
        where[value.id] = 0 if value.alias is None else where[value.alias] + value.offset
    for value in values:
        offset = plan.offset(value.id)
        assert offset >= 0 and offset + value.nbytes <= plan.bytes_planned
        assert plan.buffer_of[value.id].offset % ALIGNMENT == 0
        assert offset == plan.offset(root[value.id]) + where[value.id]

    def overlap(a: Value, b: Value) -> bool:
        low, high = plan.offset(a.id), plan.offset(b.id)
        return low < high + b.nbytes and high < low + a.nbytes

    for i, a in enumerate(values):
        for b in values[i + 1 :]:  # written later than a
            # what lies in one array is itself there, but for what is put together: its parts must not overlap
            if root[a.id] == root[b.id] or not overlap(a, b) or a.last < b.first:
                continue
            over = [other for other in b.in_place if plan.offset(other) == plan.offset(b.id)]
            assert a.last == b.first and any(root[other] == root[a.id] for other in over), (a, b)
            assert any(v.id in over and v.last == b.first and v.nbytes == b.nbytes for v in values)


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
        Value("b", 128, 1, 3, in_place=("low",)),
        Value("c", 128, 2, 3, in_place=("high",)),  # which is read later
    ]
    plan = plan_memory(values)
    check(values, plan)
    assert plan.offset("high") == plan.offset("a") + 128
    assert plan.offset("b") == plan.offset("low") and plan.bytes_planned == 256 + 128


def test_what_is_put_together_takes_no_memory_of_its_own() -> None:
    join = Value("join", 192, 0, 4)
    parts = [Value(i, 64, i, i + 1, "join", offset=64 * i) for i in range(3)]
    values = [join, *parts, Value("r", 64, 4, 5, in_place=(2,))]
    plan = plan_memory(values)
    check(values, plan)
    assert [plan.offset(i) - plan.offset("join") for i in range(3)] == [0, 64, 128]
    assert plan.bytes_planned == 256  # r may not lie on a part while the whole is read


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
