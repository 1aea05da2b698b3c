"""Every stage of a plan as text: the graph after the passes, the groups, the memory, the loops, the machine code."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ..compiler import Group, Key, Plan, TypedGraph
from ..compiler.base import nbytes_of
from ..compiler.listing import extents, labels, term
from ..errors import GraphError
from ..graph import Node, find_topo_sort
from ..kernels import Call, Place, Repeat
from ..planner import table

INDICES = "tuvw"  # of the steps of loops, the outermost first
PARTS = ("start", "")  # what stands before the numbers of groups in the parts of a loop


def labels_of(graph: TypedGraph) -> dict[Node, str]:
    """The names of a graph's nodes in a listing."""
    return labels(sorted([*graph.fed, *graph.nodes], key=lambda node: node.id))


def format_graph(graph: TypedGraph | Iterable[Node], reasons: bool = False) -> str:
    """The graph below some nodes, one line per node: `matmul_7 = matmul(X, W1, trans_A=True)   # train.py:31`.

    For a typed graph each line also has the type, `add_6: float32[1000, 256] = add(matmul_5, b1)`; feeds and parameters
    come first, updates of parameters and results last, and with `reasons` one line for each change of a pass. Nodes of
    the same name are distinguished by their ids: `X#3`.
    """
    if not isinstance(graph, TypedGraph):
        name = labels([node for node in find_topo_sort(graph) if not node.op.immediate])
        return "\n".join(f"{name[node]} = {term(node, name)}   # {node.location}" for node in name)
    return graph.listing(reasons)


def format_groups(plan: Plan, reasons: bool = False) -> str:
    """One line per kernel, in the order in which they run: number, kernel, kind, what it reads -> what it writes.

    `into W1` means that the result is written into a parameter's memory. A loop is followed by the kernels before its
    steps and those of a step, with the names of that step's values.

    With `reasons` there is one more line for each node that joined a kernel, and one for each two kernels of which one
    reads the other, that says why they are two.
    """
    rows = [("", "kernel", "kind", "reads", "", "writes"), *_group_rows(plan, "", {})]
    return "\n".join([table(rows, "<<<<<<"), *(_reason_lines(plan, "") if reasons else ())])


def _group_rows(plan: Plan, prefix: str, outside: Mapping[Node, str]) -> list[tuple[str, ...]]:
    """The rows of `format_groups`. `prefix`: what stands before a group's number; `outside`: names of what a loop's
    step reads and writes."""
    name = {**labels_of(plan.graph), **outside}

    def read(node: Node) -> str:
        return name[node] + extents(node)

    def written(node: Node) -> str:
        parameter = plan.memory.values[node].into
        if parameter is None:
            return read(node)
        return read(parameter) if parameter in outside else f"{read(node)} into {parameter.name}"

    rows: list[tuple[str, ...]] = []
    for position, group in enumerate(plan.groups):
        kind = f"{group.kind}, {group.loop.length} steps" if group.kind == "loop" else group.kind
        reads, writes = ", ".join(map(read, group.inputs)), ", ".join(map(written, group.outputs))
        rows.append((f"{prefix}{position}", group.name, kind, reads, "->", writes))
        rows += loop_rows(group, f"{prefix}{position}", name)
    return rows


def loop_rows(group: Group, number: str, name: Mapping[Node, str]) -> list[tuple[str, ...]]:
    """The rows of the kernels of a loop's steps, and of those before; none of a group that is not a loop."""
    if group.kind != "loop":
        return []
    within = {node: _in_step(group, node, name) for node in group.loop.where}
    parts = zip(PARTS, group.loop.parts, strict=True)
    return [row for mark, part in parts for row in _group_rows(part, f"{number}.{mark}", within)]


def _in_step(group: Group, node: Node, name: Mapping[Node, str]) -> str:
    """The name of what step t of a loop reads or writes: `x[t]`, `h[t + 1]`, `c[t % 2]`, `h[34 - t]`."""
    where = group.loop.where[node]
    outer = group.outputs[where.number] if where.is_result else group.nodes[0].inputs[where.number]
    if outer.shape == node.attrs["shape"]:
        return name[outer]
    first, t = where.offset // max(nbytes_of(outer) // outer.shape[0], 1), "t % 2" if where.alternates else "t"
    if where.stride < 0:
        return f"{name[outer]}[{first} - {t}]"
    return f"{name[outer]}[{first}]" if not where.stride else f"{name[outer]}[{t}{f' + {first}' if first else ''}]"


def _reason_lines(plan: Plan, prefix: str) -> list[str]:
    """`0: add_6 joined matmul_5: reads it`, and `0 | 1: softmax_10 is apart from add_6: its sums must be
    complete first`, by the numbers of the groups."""
    owner = {node: i for i, group in enumerate(plan.groups) for node in group.nodes}
    joined: list[tuple[int, str]] = []
    apart: dict[tuple[int, int], str] = {}
    for rule, (member, node), why in plan.reasons:
        a, b = sorted((owner[member], owner[node]))
        if rule != "apart":
            joined.append((owner[member], f"{prefix}{owner[member]}: {node.name} joined {member.name}: {why}"))
        else:
            apart.setdefault((a, b), f"{prefix}{a} | {prefix}{b}: {node.name} is apart from {member.name}: {why}")
    lines = [line for _, line in sorted(joined, key=lambda pair: pair[0])] + [apart[pair] for pair in sorted(apart)]
    for position, group in enumerate(plan.groups):
        for mark, inner in zip(PARTS, group.loop.parts, strict=True) if group.kind == "loop" else ():
            lines += _reason_lines(inner, f"{prefix}{position}.{mark}")
    return lines


def format_plan(plan: Plan) -> str:
    """The memory plan, by the kernels' numbers of `format_groups`; then the values without a place of their own in the
    arena: views, and values that are written into a parameter."""
    sections = dict[str, list[str]]()
    for node, offset in plan.views.items():
        line = f"  {node.name} is {node.inputs[0].name}{f' from byte {offset} on' if offset else ''}"
        sections.setdefault("views, which no kernel computes:", []).append(line)
    for parameter, _ in plan.graph.updates:
        value = next(value for value in plan.memory.values.values() if value.into is parameter)
        sections.setdefault("in the memory of a parameter:", []).append(f"  {value.id.name} in {parameter.name}")
    return "\n".join([str(plan.memory), *("\n".join([title, *lines]) for title, lines in sections.items())])


def format_calls(plan: Plan) -> str:
    """The calls of a run, one line each: the kernel and its arguments. Feeds and parameters have their names, with the
    first byte that is read if it is not 0; values in the arena have their offsets."""
    names = {spec.symbol: spec.name for spec in plan.specs.values()}

    def argument(at: Place) -> str:
        text = "arena" if at.base is None else plan.given[at.base].name
        text += f" + {at.offset}" if at.offset or at.base is None else ""
        for depth, (stride, alternates) in enumerate(at.moves):
            index = INDICES[depth % len(INDICES)]
            step = f"({index} % 2)" if alternates else index
            text += f" {'+' if stride > 0 else '-'} {abs(stride)} * {step}" if stride else ""
        return text

    def lines(calls: Iterable[Call | Repeat], depth: int) -> Iterator[str]:
        margin = "#   " + "    " * depth
        for call in calls:
            if isinstance(call, Repeat):
                yield f"{margin}for {INDICES[depth % len(INDICES)]} in range({call.times}):"
                yield from lines(call.calls, depth + 1)
            else:
                yield f"{margin}{names.get(call.symbol, call.symbol)}({', '.join(map(argument, call.places))})"

    head = f"# the calls of a run, on an arena of {plan.memory.bytes_planned} bytes"
    return "\n".join([head, *lines(plan.calls, 0)])


def format_script(plan: Plan, which: int | str | None = None) -> str:
    """The calls of a run, if all is asked for, then each kernel's loops as TVMScript. Raises GraphError for an unknown
    kernel."""
    whole = which is None and plan.ctx.kind == "cpu" and len(plan.kernel_of) > 0
    scripts = [f"{title}\n{kernel.script()}" for kernel, title in _chosen(plan, which, "#")]
    return "\n\n".join([*([format_calls(plan)] if whole else ()), *scripts])


def format_source(plan: Plan, form: str, which: int | str | None = None) -> str:
    """The generated code of each kernel; kernels that were compiled together come as one. Raises GraphError for an
    unknown kernel, KernelArgumentError for an unknown form."""
    together: dict[str, list[str]] = {}
    for kernel, title in _chosen(plan, which, {"asm": "#", "ll": ";"}.get(form, "//")):
        together.setdefault(kernel.source(form), []).append(title)
    return "\n\n".join("\n".join([*titles, source]) for source, titles in together.items())


def kernels_of(plan: Plan) -> list[tuple[Any, list[Key]]]:
    """The different kernels in order of running, each with the keys of the groups that it computes."""
    found: dict[str, tuple[Any, list[Key]]] = {}
    for key, kernel in plan.kernel_of.items():
        found.setdefault(kernel.symbol, (kernel, []))[1].append(key)
    return list(found.values())


def number(key: Key) -> str:
    """A group's number in `format_groups`: "3", in a loop "3.start0" and "3.0"."""
    inside = zip(key[1::2], key[2::2], strict=True)
    return ".".join([str(key[0]), *(f"{PARTS[part]}{position}" for part, position in inside)])


def _chosen(plan: Plan, which: int | str | None, mark: str) -> list[tuple[Any, str]]:
    """The kernel of a group's number, in a loop "3.0", or of a name; all for None. Each with its title as a comment.
    Raises GraphError for an unknown kernel."""
    wanted = str(which) if type(which) in (int, str) else None
    numbered = [(kernel, list(map(number, keys))) for kernel, keys in kernels_of(plan)]
    chosen = [(kernel, own) for kernel, own in numbered if which is None or wanted in (kernel.name, *own)]
    if not chosen and which is not None:
        last, names = len(plan.groups) - 1, ", ".join(dict.fromkeys(kernel.name for kernel, _ in numbered))
        raise GraphError(f"there is no kernel {which!r}: the numbers are 0 to {last}, less empty ones; names {names}")
    return [(kernel, f"{mark} kernel {', '.join(own)}: {kernel!r}") for kernel, own in chosen]
