"""From a graph to a plan: types -> passes -> aliases -> rematerialize -> fuse -> order -> plan, each printable.

`types` infers shapes and dtypes and finds what a run computes, `indices` which feeds hold indices; `passes` make the
graph simpler by the table of `rules`, which are `patterns` and what becomes of them; `aliases` finds the values that
lie in the memory of others; `rematerialize` finds what each kernel computes that reads it; `fuse` makes groups of
nodes, one kernel each; `order` puts them in an order that saves memory, and `lower` does all of this; `loops` lowers a
loop's step; `messages` exchanges values with other processes; `program` holds the result and says where values lie, and
which kernels and calls it takes, those of its loops too; `plan` gives it memory and compiled kernels. Passes and `fuse`
tell why, see `Reason`.
"""

from __future__ import annotations

from .base import BOUNDARY, Reason, TypedGraph, value_inputs
from .fuse import fuse
from .groups import Group, single_groups
from .loops import Loop, make_program, unrolled
from .passes import NAMES, PASSES, extend, run_passes, select
from .plan import Plan
from .products import Columns, pack
from .program import Arena, Key, Program
from .types import analyse, feed_type, needed_feeds
