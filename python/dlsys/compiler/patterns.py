"""Patterns, which match nodes, and rules, which replace what a pattern matches; `rules.py` has the rules.

`p.add("x", p.neg("y"))` is a pattern: a sum, in either order, of anything and something negated. A string matches any
node; a string that occurs twice must match the same node. `p.full(value="c")` matches a constant, and "c" is its value.
On a rule's other side stands one of the names, or a function of what they have matched: `lambda m: m.x - m.y`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from types import SimpleNamespace
from typing import Any

from ..graph import OPS, Node, Op
from .base import Change, TypedGraph

_op = attrgetter("op")
Match = SimpleNamespace
"""What a rule has matched: `node`, its `shape` and `dtype`, and what each name stands for."""


@dataclass(frozen=True, eq=False)
class Pattern:
    """Nodes of one of the operators `ops`; of any where there is none.

    Attributes:
        inputs: a pattern for each input, or a name; None for any inputs.
        attrs: for an attribute the name of its value.
        test: what else must hold of the operator and those of the inputs.
    """

    ops: tuple[Op, ...] = ()
    inputs: tuple[Pattern | str, ...] | None = None
    attrs: Mapping[str, str] = field(default_factory=dict)
    test: Callable[[Op, tuple[Op, ...]], bool] | None = None

    def orders(self) -> Iterator[Pattern]:
        """The pattern, and where its operator commutes that of the inputs in the other order."""
        yield self
        commutes = all(op.commutative for op in self.ops)
        if self.inputs is not None and len(set(self.inputs)) == 2 and commutes:
            yield replace(self, inputs=self.inputs[::-1])

    def takes(self, op: Op, read: tuple[Op, ...]) -> bool:
        """Whether a node may match that has this operator, and inputs of those."""
        parts = [(part, one) for part, one in zip(self.inputs or (), read, strict=False) if isinstance(part, Pattern)]
        named = (not self.ops or op in self.ops) and all(one in part.ops for part, one in parts)
        return named and (self.test is None or self.test(op, read))

    def bind(self, node: Node, bound: dict[str, Any]) -> bool:
        """Whether a node matches that the pattern `takes`; `bound` then says what each name stands for."""
        for key, name in self.attrs.items():
            bound[name] = node.attrs[key]
        for part, x in zip(self.inputs or (), node.inputs, strict=False):
            if isinstance(part, str):
                if bound.setdefault(part, x) is not x:
                    return False
            elif x.op not in part.ops or not part.bind(x, bound):
                return False
        return True


class _Patterns:
    """Patterns of one operator: `p.add("x", "y")`."""

    def __getattr__(self, name: str) -> Callable[..., Pattern]:
        return lambda *inputs, **attrs: Pattern((OPS[name],), inputs, attrs)


p: _Patterns = _Patterns()


@dataclass(frozen=True)
class Rule:
    """A pattern, and what replaces the nodes that match it, of their shape and dtype.

    Attributes:
        why: its reason.
        pattern: what it is asked for.
        found: a name, or a function of the match, which may still say None.
        when: what must hold of a match.
    """

    why: str
    pattern: Pattern
    found: str | Callable[[Match], Node | None]
    when: Callable[[Match], Any] | None = None

    def replacement(self, m: Match) -> Node | None:
        """What replaces a match; None where it stays."""
        if self.when is not None and not self.when(m):
            return None
        return getattr(m, self.found) if isinstance(self.found, str) else self.found(m)


class Rules:
    """A table of rules, in the order in which they are tried."""

    def __init__(self, table: Mapping[str, Sequence[Rule]]) -> None:
        """`table`: by the name of a pass."""
        all_rules = [(rule, name) for name, rules in table.items() for rule in rules]
        self._all = [(pattern, rule, name) for rule, name in all_rules for pattern in rule.pattern.orders()]
        self._of: dict[tuple[Op, ...], list[tuple[Pattern, Rule, str]]] = {}

    def __call__(self, node: Node, graph: TypedGraph) -> Change | None:
        """The replacement of a node by the first rule that matches, the reason, and the pass; None where none does."""
        key = (node.op, *map(_op, node.inputs))
        try:
            rules = self._of[key]
        except KeyError:  # once: those that may match nodes of these operators
            rules = self._of[key] = [one for one in self._all if one[0].takes(node.op, key[1:])]
        for pattern, rule, name in rules:
            bound: dict[str, Any] = {}
            if pattern.bind(node, bound):
                found = rule.replacement(Match(**bound, node=node, shape=node.shape, dtype=node.dtype))
                if found is not None:
                    return found, rule.why, name
        return None
