"""Plans on disk: what a later process needs to run one again, without the graph from which it was made.

A record is JSON: the kernels, by their keys on disk and their symbols, where the arguments of each call lie, the bytes
of the arena, and the places of the results in it. It is of a plan that has no loops, messages and updates.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .. import kernels
from ..devices import Array, Context, copied, to_array, view_of
from ..graph import Node
from ..kernels import Call, Loaded, Place, Runner
from ..system import collecting_later
from .plan import Plan
from .program import Arena


@dataclass(frozen=True)
class Record:
    """A plan as data.

    Attributes:
        kernels: the key on disk and the symbol of each.
        calls: of each the number of its kernel, and where its arguments lie.
        given: which of the arrays that a run is given are read.
        results: where the results lie in the arena, with their shapes and dtypes.
        nbytes: of the arena.
        after: how many other shapes its kernels take it that a process has met, see `kernels.rows`.
        members: the first kernels of formulas that it has, see `kernels.rows.note`.
        left: what else belongs to it.
    """

    kernels: Sequence[tuple[str, str]]
    calls: Sequence[tuple[int, Sequence[tuple[int | None, int, Sequence[int], str]]]]
    given: Sequence[int]
    results: Sequence[tuple[int, Sequence[int], str]]
    nbytes: int
    after: int
    members: Sequence[tuple[str, Sequence[Sequence[int]], Sequence[float]]] = ()
    left: Any = None

    def text(self) -> bytes:
        """The record as it is kept."""
        return json.dumps(self.__dict__, separators=(",", ":")).encode()


def read_record(text: bytes) -> Record:
    """The record of a text. Raises ValueError or TypeError for one that is none."""
    return Record(**json.loads(text))


def record_of(plan: Plan, variables: Sequence[Node], left: Any) -> Record | None:
    """The record of a plan that was run, whose feeds are some of these variables; None where it has more than calls of
    kernels that are kept on disk."""
    program, calls = plan.program, plan.calls
    if program.graph.updates or plan.exchange is not None or not all(type(call) is Call for call in calls):
        return None
    number = {node: i for i, node in enumerate(variables)}
    results = [node for node in program.results if node is not None and node in plan.memory.buffer_of]
    if len(results) < len(program.results) or not number.keys() >= set(plan.given):
        return None
    own = list(plan.kernel_of.values())
    keys = kernels.keys_on_disk(own)
    if keys is None:
        return None
    numbers: dict[tuple[str, str], int] = {}
    made = []
    for call, key in zip(calls, keys, strict=True):
        assert isinstance(call, Call)
        places = [(at.base, at.offset, at.shape, at.dtype) for at in call.places]
        made.append((numbers.setdefault(key, len(numbers)), places))
    where = [(plan.memory.offset(node), *program.type_of(node)) for node in results]
    after = max((kernel.after for kernel in own), default=0)
    given, members = [number[node] for node in plan.given], kernels.first_members(own)
    return Record(list(numbers), made, given, where, plan.nbytes_planned, after, members, left)


class RecordedPlan:
    """A plan from its record: it runs, and shows nothing. The arena is shared, and its lock held within a run."""

    def __init__(self, record: Record, functions: Mapping[str, Loaded], ctx: Context, arena: Arena) -> None:
        """`functions`: of the kernels, see `kernels.functions_on_disk`."""
        self._record, self._functions, self._ctx, self._arena = record, functions, ctx, arena
        self._runner: Runner | None = None
        self._results: list[Array] = []

    @property
    def left(self) -> Any:
        """The data that belong to the record besides the plan."""
        return self._record.left

    def __len__(self) -> int:
        """How many kernels it calls."""
        return len(self._record.calls)

    def leave(self) -> None:
        """Forget where the arena was."""
        self._runner, self._results = None, []

    def _ready(self) -> Runner:
        """The table of the calls in the arena's memory."""
        record = self._record
        with collecting_later():
            memory = self._arena.memory(max(record.nbytes, 1), self)
            calls, functions = list[Call](), list[Any]()
            for number, places in record.calls:
                key, symbol = record.kernels[number]
                functions.append(self._functions[key].function)
                calls.append(Call(symbol, tuple([Place(b, o, tuple(s), d) for b, o, s, d in places])))
            self._results = [Array(view_of(memory, tuple(s), d, o), self._ctx) for o, s, d in record.results]
            self._runner = Runner(calls, functions, len(record.given), memory)
        return self._runner

    def run(self, given: Sequence[Any]) -> list[Array]:
        """Copies of the results of these arrays, which are of the shapes and dtypes for which the plan was made."""
        with self._arena.lock:
            runner, ctx = self._runner or self._ready(), self._ctx
            arrays = [given[of] for of in self._record.given]
            arrays = [x if type(x) is Array and x.context is ctx else to_array(x, ctx) for x in arrays]
            for i, array in enumerate(arrays):
                runner.given[i] = array.tensor.data_ptr()
            if len(runner):
                runner.run()
            return [copied(result) for result in self._results]
