"""Every stage of a plan as text: the graph after the passes, the groups, the memory, the loops, the machine code."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Any

from ..compiler import Group, Key, Plan, Program, TypedGraph
from ..errors import GraphError
from ..graph import Node, Shape, find_topo_sort
from ..kernels import Call, Place, Repeat
from ..planner import table

MOST_CALLS = 400  # of a step that is shown whole

Which = int | str | None
"""A kernel by the number of its group, in a loop "3.0", or by its name; None for all."""


def labels(nodes: Iterable[Node]) -> dict[Node, str]:
    """The name of each node in a listing: its name, with its id where another has the same, as `X#3`."""
    distinct = dict.fromkeys(nodes)
    owners = Counter(node.name for node in distinct)
    return {node: node.name if owners[node.name] == 1 else f"{node.name}#{node.id}" for node in distinct}


def labels_of(graph: TypedGraph) -> dict[Node, str]:
    """The names of a graph's nodes in a listing, also those that are read for their shape alone."""
    read = (value for node in graph.nodes for value in node.inputs if not value.op.immediate)
    nodes = [*graph.fed, *read, *graph.nodes]
    return labels(sorted(nodes, key=lambda node: node.id))


def extents(shape: Shape) -> str:
    """`[1000, 256]`."""
    return f"[{', '.join(map(str, shape))}]"


def term(node: Node, name: Mapping[Node, str], fed: Container[Node] = ()) -> str:
    """A node's operator and arguments, `matmul(X, W1, trans_A=True)`; attributes that are None or False are left out,
    and of what is fed those that its type says."""
    read = [] if node in fed else node.inputs
    arguments = [repr(x.attrs["value"]) if x.op.immediate else name.get(x, x.name) for x in read]
    for key, value in node.attrs.items():
        if value is not None and value is not False and not (node in fed and key in ("shape", "dtype")):
            arguments.append(f"{key}={value!r}")
    return f"{node.op.name}({', '.join(arguments)})" if node not in fed or not node.inputs else "fed"


def format_graph(graph: TypedGraph | Iterable[Node], reasons: bool = False) -> str:
    """The graph below some nodes, one line per node: `matmul_7 = matmul(X, W1, trans_A=True)   # train.py:31`.

    For a typed graph each line also has the type, `add_6: float32[1000, 256] = add(matmul_5, b1)`; feeds and parameters
    come first, updates of parameters and results last, and with `reasons` one line for each change of a pass. Nodes of
    the same name are distinguished by their ids: `X#3`.
    """
    if not isinstance(graph, TypedGraph):
        name = labels([node for node in find_topo_sort(graph) if not node.op.immediate])
        return "\n".join(f"{name[node]} = {term(node, name)}   # {node.location}" for node in name)
    name, fed, lines = labels_of(graph), graph.fed, []
    read = {value for node in graph.nodes for value in node.inputs} | set(graph.roots)
    for node in [*(node for node in name if node in fed and node in read), *graph.nodes]:
        of_type = f"{graph.dtypes[node]}{extents(graph.shapes[node])}"
        lines.append(f"{name[node]}: {of_type} = {term(node, name, fed)}   # {node.location}")
    lines += [f"{name.get(parameter, parameter.name)} <- {name[value]}" for parameter, value in graph.updates]
    if results := [name[node] for node in graph.outputs if node is not None]:
        lines.append(f"return {', '.join(results)}")
    for rule, nodes, why in graph.reasons if reasons else ():
        terms = (name[node] if node in fed else f"{node.name} = {term(node, name)}" for node in nodes)
        lines.append(f"{rule}: {' -> '.join(terms)}   # {why}")
    return "\n".join(lines)


def format_groups(plan: Plan, reasons: bool = False) -> str:
    """One line per kernel, in the order in which they run: number, kernel, kind, what it reads -> what it writes.

    `into W1` means that the result is written into a parameter's memory, `in x` into its place in the join x, `over x`
    over an input that nothing reads afterwards. A loop is followed by the kernels before its steps and those of a
    step, with the names of that step's values.

    With `reasons` there is one more line for each node that joined a kernel, and one for each two kernels of which one
    reads the other, or which read the same value, that says why they are two.
    """
    rows = _group_rows(plan.program, "", {})
    lines = [table([("", "kernel", "kind", "reads", "", "writes"), *rows], "<<<<<<")]
    return "\n".join([*lines, *(_reason_lines(plan.program, "") if reasons else ())])


def _group_rows(program: Program, number: str, outside: Mapping[Node, str]) -> list[tuple[str, ...]]:
    """The rows of `format_groups`. `number`: what stands before a group's; `outside`: names of what is given."""
    graph, aliases, memory = program.graph, program.aliases, program.memory
    name = {**labels_of(graph), **outside}

    def read(node: Node) -> str:
        return name[node] + extents(graph.shapes[node])

    def stored(group: Group, node: Node) -> str:
        place = aliases.taken(node)
        if place is not None and place in outside:
            return read(place)
        if node in aliases.lies_in:
            return f"{read(node)} {'in' if place is None else 'into'} {aliases.lies_in[node][0].name}"
        assert memory is not None
        for value in group.inputs:
            same = value in memory.buffer_of and memory.buffer_of[value] is memory.buffer_of.get(node)
            if same and memory.offset(value) == memory.offset(node):
                return f"{read(node)} over {value.name}"
        return read(node)

    rows: list[tuple[str, ...]] = []
    for position, group in enumerate(program.groups):
        kind = f"{group.kind}, {group.loop.length} steps" if group.kind == "loop" else group.kind
        reads, writes = map(read, group.inputs), (stored(group, node) for node in group.outputs)
        rows.append((f"{number}{position}", group.name, kind, ", ".join(reads), "->", ", ".join(writes)))
        rows += loop_rows(program, group, f"{number}{position}", name)
    return rows


def loop_rows(program: Program, group: Group, number: str, name: Mapping[Node, str]) -> list[tuple[str, ...]]:
    """The rows of the kernels of a loop's steps, and of those before; none of a group that is no loop."""
    if group.kind != "loop":
        return []
    within = {node: in_step(program, group, node, name) for node in group.loop.where}
    parts = zip(MARKS, group.loop.parts, strict=True)
    return [row for mark, part in parts for row in _group_rows(part, f"{number}.{mark}", within)]


def _reason_lines(program: Program, number: str) -> list[str]:
    """`0: add_6 joined matmul_5: reads it`, and `0 | 1: softmax_10 is apart from add_6: its sums must be
    complete first`, by the numbers of the groups."""
    owner = {node: i for i, group in enumerate(program.groups) for node in group.nodes}
    joined: list[tuple[int, str]] = []
    apart: dict[tuple[int, int], str] = {}
    for rule, (member, node), why in program.reasons:
        a, b = owner[member], owner[node]
        if rule != "apart":
            joined.append((a, f"{number}{a}: {node.name} joined {member.name}: {why}"))
        elif (pair := (min(a, b), max(a, b))) not in apart:
            apart[pair] = f"{number}{pair[0]} | {number}{pair[1]}: {node.name} is apart from {member.name}: {why}"
    lines = [line for _, line in sorted(joined, key=lambda found: found[0])]
    lines += [apart[pair] for pair in sorted(apart)]
    for position, group in enumerate(program.groups):
        for mark, inner in zip(MARKS, group.loop.parts, strict=True) if group.kind == "loop" else ():
            lines += _reason_lines(inner, f"{number}{position}.{mark}")
    return lines


def in_step(program: Program, group: Group, node: Node, name: Mapping[Node, str]) -> str:
    """The name of what a loop's step is given, and its place in step t: `x[t]`, `h[t + 1]`, `c[t % 2]`, `h[34 - t]`."""
    where = group.loop.where[node]
    outer = group.outputs[where.number] if where.is_result else group.nodes[0].inputs[where.number]
    if program.graph.shapes[outer] == node.attrs["shape"]:
        return name[outer]
    nbytes = program.nbytes(outer) // program.graph.shapes[outer][0]
    first, t = where.offset // max(nbytes, 1), "t % 2" if where.alternates else "t"
    if where.stride < 0:
        return f"{name[outer]}[{first} - {t}]"
    return f"{name[outer]}[{first}]" if not where.stride else f"{name[outer]}[{t}{f' + {first}' if first else ''}]"


def format_plan(plan: Plan) -> str:
    """The memory plan; then the values without a place of their own in the arena: views, and values that are written
    into a parameter.

    The steps are the numbers of `format_groups`.
    """
    aliases = plan.program.aliases
    views, updates = [], []
    for node, (other, offset) in aliases.lies_in.items():
        if node in aliases.views:
            views.append(f"  {node.name} is {other.name}{f' from byte {offset} on' if offset else ''}")
        elif aliases.taken(node) is not None:
            updates.append(f"  {node.name} in {other.name}")
    titles = {
        "views, which no kernel computes:": views,
        "in the memory of a parameter:": updates,
    }
    return "\n".join([str(plan.memory), *(line for title, own in titles.items() if own for line in (title, *own))])


def kernels_of(plan: Plan) -> list[tuple[Any, list[Key]]]:
    """The different kernels in order of running, each with the numbers of the groups that it computes."""
    found: dict[str, tuple[Any, list[Key]]] = {}
    for position, kernel in plan.kernel_of.items():
        found.setdefault(kernel.symbol, (kernel, []))[1].append(position)
    return list(found.values())


def format_calls(plan: Plan) -> str:
    """The calls of a run, one line each: the kernel and its arguments. Feeds and parameters have their names, with the
    first byte that is read if it is not 0; values in the arena have their offsets."""
    names = {spec.symbol: spec.name for spec in plan.specs.values()}

    def place(at: Place) -> str:
        found = "arena" if at.base is None else plan.given[at.base].name
        found += f" + {at.offset}" if at.offset or at.base is None else ""
        for index, (stride, alternates) in zip(itertools.cycle("tuvw"), at.moves):
            step = f"({index} % 2)" if alternates else index
            found += f" {'+' if stride > 0 else '-'} {abs(stride)} * {step}" if stride else ""
        return found

    def lines(calls: Iterable[Call | Repeat], depth: int) -> Iterator[str]:
        margin = "#   " + "    " * depth
        for call in calls:
            if isinstance(call, Repeat):
                yield f"{margin}for {'tuvw'[depth % 4]} in range({call.times}):"
                yield from lines(call.calls, depth + 1)
            else:
                yield f"{margin}{names.get(call.symbol, call.symbol)}({', '.join(map(place, call.places))})"

    head = f"# the calls of a run, on an arena of {plan.memory.bytes_planned} bytes"
    return "\n".join([head, *lines(plan.calls, 0)])


def format_script(plan: Plan, which: Which = None) -> str:
    """The calls of a run, if all is asked for, then each kernel's loops as TVMScript.

    Raises GraphError for an unknown kernel.
    """
    whole = which is None and plan.ctx.kind == "cpu" and 0 < len(plan.kernel_of) <= MOST_CALLS
    scripts = [f"{title}\n{kernel.script()}" for kernel, title in _chosen(plan, which, "#")]
    return "\n\n".join([*([format_calls(plan)] if whole else ()), *scripts])


def format_source(plan: Plan, form: str, which: Which = None) -> str:
    """The generated code of each kernel; kernels that were compiled together come as one.

    Raises GraphError for an unknown kernel, KernelArgumentError for an unknown form.
    """
    together: dict[str, list[str]] = {}
    for kernel, title in _chosen(plan, which, {"asm": "#", "ll": ";"}.get(form, "//")):
        together.setdefault(kernel.source(form), []).append(title)
    return "\n\n".join("\n".join([*titles, source]) for source, titles in together.items())


MARKS = ("start", "")
"""What stands before the numbers of groups in the parts of a loop."""


def number(key: Key) -> str:
    """A group's number in `format_groups`: "3", in a loop "3.start0" and "3.0"."""
    inside = zip(key[1::2], key[2::2], strict=True)
    return ".".join([str(key[0]), *(f"{MARKS[part]}{position}" for part, position in inside)])


def _chosen(plan: Plan, which: Which, mark: str) -> list[tuple[Any, str]]:
    """The chosen kernels, each with its title as a comment. Raises GraphError for an unknown kernel."""
    if which is not None and (isinstance(which, bool) or not isinstance(which, (int, str))):
        raise GraphError(f"a kernel is chosen by its number or name, not by {which!r}")
    found, groups = kernels_of(plan), plan.program.groups
    titles = [(kernel, [*map(number, keys)]) for kernel, keys in found]
    chosen = [(k, own) for k, own in titles if which is None or str(which) in (k.name, *own)]
    if not chosen and isinstance(which, int) and 0 <= which < len(groups):
        raise GraphError(f"group {which}, {groups[which].name}, computes no element and has no kernel")
    if not chosen and which is not None:
        names = ", ".join(dict.fromkeys(kernel.name for kernel, _ in found))
        raise GraphError(f"there is no kernel {which!r}: the numbers are 0 to {len(groups) - 1}, the names {names}")
    return [(kernel, f"{mark} kernel {', '.join(own)}: {kernel!r}") for kernel, own in chosen]
