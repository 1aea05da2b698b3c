"""From a graph to a plan: types -> rules -> views -> rematerialize -> fuse -> order -> place -> plan, each printable.

Four structures: `TypedGraph` (base.py), `Group` (groups.py), `MemoryPlan` (planner.py), `Plan` (plan.py).

    types.py          a graph with the types of a run's feeds, and what of it is computed: a `TypedGraph`
    rules.py          it becomes simpler by one sweep (base.py) of rules, written as patterns (patterns.py)
    listing.py        nodes as text
    aliases.py        values that are a part of their input's memory
    rematerialize.py  cheap values that each kernel computes that reads them
    fuse.py           `Group`s, one kernel each; groups.py says what a kernel computes
    lower.py          does these, orders the groups, and places each value: a `MemoryPlan`, and so a `Plan`
    loops.py          a loop's step becomes a plan of its own
    plan.py           calls, kernels and runs; arena.py its memory; indices.py the feeds that hold indices
"""

from __future__ import annotations

from .arena import Arena
from .base import BOUNDARY, Reason, TypedGraph, value_inputs
from .fuse import fuse
from .groups import Group, single_groups
from .loops import Loop, make_plan, unrolled
from .plan import Key, Plan
from .rules import NAMES, PASSES, extend, run_passes, select
from .types import analyse, feed_type, needed_feeds
