"""Every stage of a plan as text: the graph after the passes, the groups, the memory, the loops, the machine code."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from ..compiler import Group, Plan, Program, TypedGraph
from ..errors import GraphError
from ..graph import Node, Shape
from ..kernels import Place

MOST_CALLS = 400  # of a step that is shown whole

Which = int | str | None
"""A kernel by the number of its group or by its name; None for all."""


def labels(nodes: Iterable[Node]) -> dict[Node, str]:
    """The name of each node in a listing: its name, with its id where another has the same, as `X#3`."""
    distinct = list(dict.fromkeys(nodes))
    owners = Counter(node.name for node in distinct)
    return {node: node.name if owners[node.name] == 1 else f"{node.name}#{node.id}" for node in distinct}


def labels_of(graph: TypedGraph) -> dict[Node, str]:
    """The names of a graph's nodes in a listing, also those that are read for their shape alone."""
    nodes = [*graph.fed, *(value for node in graph.nodes for value in node.inputs), *graph.nodes]
    return labels(sorted(nodes, key=lambda node: node.id))


def extents(shape: Shape) -> str:
    """`[1000, 256]`."""
    return f"[{', '.join(map(str, shape))}]"


def format_typed(graph: TypedGraph) -> str:
    """The graph, a line a node, with its type: `add_6: float32[1000, 256] = add(matmul_5, b1)   # train.py:31`.

    First what is given, last what is returned and which parameter takes which value.
    """
    name = labels_of(graph)
    read = {value for node in graph.nodes for value in node.inputs}
    given = [node for node in name if node in graph.fed and (node in read or node in graph.roots)]
    lines = []
    for node in [*given, *graph.nodes]:
        arguments = [] if node in graph.fed else [name[value] for value in node.inputs]
        known = {"shape", "dtype"} if node in graph.fed else set()  # said by the type already
        attrs = {key: value for key, value in node.attrs.items() if key not in known}
        arguments += [
            f"{key}={value!r}" for key, value in attrs.items() if value is not None and value is not False
        ]
        made = (
            f"{node.op.name}({', '.join(arguments)})" if node not in graph.fed or not node.inputs else "fed"
        )
        typed = f"{graph.dtypes[node]}{extents(graph.shapes[node])}"
        lines.append(f"{name[node]}: {typed} = {made}   # {node.location}")
    lines += [f"{name.get(parameter, parameter.name)} <- {name[value]}" for parameter, value in graph.updates]
    results = [name[node] for node in graph.outputs if node is not None]
    return "\n".join([*lines, f"return {', '.join(results)}"] if results else lines)


def written(plan: Plan, group: Group, node: Node) -> str:
    """Where a group's output goes, if that is not memory of its own: `into W1`, `in stack_7`, `over matmul_5`, else
    nothing."""
    program, memory = plan.program, plan.memory
    if node in program.aliases.placed:
        return f"into {program.aliases.placed[node].name}"
    if node in program.aliases.parts:
        return f"in {program.aliases.parts[node].name}"
    for value in group.inputs:
        same = value in memory.buffer_of and memory.buffer_of[value] is memory.buffer_of.get(node)
        if same and memory.offset(value) == memory.offset(node):
            return f"over {value.name}"
    return ""


def format_groups(plan: Plan) -> str:
    """A line a kernel in the order of running: number, kernel, kind, what it reads -> what it writes.

    `into W1` is written straight into a parameter's memory, `in x` where x puts it together with others, `over x`
    into that of an input which dies there.
    """
    graph = plan.program.graph
    name = labels_of(graph)

    def typed(node: Node) -> str:
        return name[node] + extents(graph.shapes[node])

    rows = [("", "kernel", "kind", "reads", "", "writes")]
    for number, group in enumerate(plan.program.groups):
        writes = [f"{typed(node)} {written(plan, group, node)}".rstrip() for node in group.outputs]
        reads = ", ".join(map(typed, group.inputs))
        rows.append((str(number), group.name, group.kind, reads, "->", ", ".join(writes)))
    return table(rows, "><<<<<")


def table(rows: Sequence[Sequence[str]], align: str) -> str:
    """Rows of cells as aligned text; `align` has `<` or `>` for each column."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(align))]
    lines = []
    for row in rows:
        cells = zip(row, align, widths, strict=True)
        lines.append("  ".join(f"{cell:{side}{width}}" for cell, side, width in cells).rstrip())
    return "\n".join(lines)


def format_plan(plan: Plan) -> str:
    """The memory plan; then the values that have no place in the arena: views, and those that lie in a parameter.

    The steps are the numbers of `format_groups`.
    """
    program = plan.program
    lines = [str(plan.memory)]
    if viewed := program.aliases.viewed:
        lines.append("views, which no kernel computes:")
        lines += [f"  {node.name} is {source.name}{_from(program, node)}" for node, source in viewed.items()]
    if program.aliases.parts:
        lines.append("put together by those that compute their parts there:")
        lines += [f"  {node.name}" for node in dict.fromkeys(program.aliases.parts.values())]
    if program.aliases.placed:
        lines.append("in the memory of a parameter:")
        lines += [f"  {node.name} in {parameter.name}" for node, parameter in program.aliases.placed.items()]
    return "\n".join(lines)


def _from(program: Program, node: Node) -> str:
    offset = program.aliases.offsets.get(node, 0)
    return f" from byte {offset} on" if offset else ""


def kernels_of(plan: Plan) -> list[tuple[Any, list[int]]]:
    """The different kernels in order of running, each with the numbers of the groups that it computes."""
    found: dict[str, tuple[Any, list[int]]] = {}
    for position, kernel in plan.kernel_of.items():
        found.setdefault(kernel.symbol, (kernel, []))[1].append(position)
    return list(found.values())


def format_calls(plan: Plan) -> str:
    """The calls that a run makes, a line each: the kernel and its arguments, arrays that are given by their names, with
    the byte from which they are read where it is not the first, and places of the arena by theirs."""

    def place(at: Place) -> str:
        name = "arena" if at.base is None else plan.given[at.base].name
        return f"{name} + {at.offset}" if at.offset or at.base is None else name

    names = {kernel.symbol: kernel.name for kernel in plan.kernel_of.values()}
    lines = [f"#   {names[call.symbol]}({', '.join(map(place, call.places))})" for call in plan.calls]
    return "\n".join([f"# the calls of a run, on an arena of {plan.memory.bytes_planned} bytes", *lines])


def format_script(plan: Plan, which: Which = None) -> str:
    """The calls of a run, if all is asked for, then each kernel's loops as TVMScript.

    Raises GraphError for an unknown kernel.
    """
    parts = []
    if which is None and plan.ctx.kind == "cpu" and 0 < len(plan.kernel_of) <= MOST_CALLS:
        parts.append(format_calls(plan))
    for kernel, positions in _chosen(plan, which):
        parts.append(f"# kernel {_numbers(positions)}: {kernel!r}\n{kernel.script()}")
    return "\n\n".join(parts)


def format_source(plan: Plan, form: str, which: Which = None) -> str:
    """The generated code of each kernel; kernels that were compiled together come as one.

    Raises GraphError for an unknown kernel, KernelArgumentError for an unknown form.
    """
    mark = {"asm": "#", "ll": ";"}.get(form, "//")
    together: dict[str, list[str]] = {}
    for kernel, positions in _chosen(plan, which):
        title = f"{mark} kernel {_numbers(positions)}: {kernel!r}"
        together.setdefault(kernel.source(form), []).append(title)
    return "\n\n".join("\n".join([*titles, source]) for source, titles in together.items())


def _numbers(positions: Sequence[int]) -> str:
    return ", ".join(map(str, positions))


def _chosen(plan: Plan, which: Which) -> list[tuple[Any, list[int]]]:
    """The kernels meant. Raises GraphError where there is none."""
    found = kernels_of(plan)
    if which is None:
        return found
    if isinstance(which, bool) or not isinstance(which, (int, str)):
        raise GraphError(f"a kernel is chosen by its number or name, not by {which!r}")
    if isinstance(which, int):
        chosen = [(kernel, positions) for kernel, positions in found if which in positions]
    else:
        chosen = [(kernel, positions) for kernel, positions in found if kernel.name == which]
    if chosen:
        return chosen
    groups = plan.program.groups
    if isinstance(which, int) and 0 <= which < len(groups):
        raise GraphError(f"group {which}, {groups[which].name}, computes no element and has no kernel")
    names = ", ".join(dict.fromkeys(kernel.name for kernel, _ in found))
    raise GraphError(
        f"there is no kernel {which!r}: the numbers are 0 to {len(groups) - 1}, the names {names}"
    )
