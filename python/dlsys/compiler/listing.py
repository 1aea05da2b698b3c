"""Nodes as text: their names, shapes, operators and arguments."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Mapping

from ..graph import Node
from ..ops.replay import Deferred, Result


def extents(node: Node) -> str:
    """`[1000, 256]`."""
    return f"[{', '.join(map(str, node.shape))}]"


def labels(nodes: Iterable[Node]) -> dict[Node, str]:
    """The name of each node in a listing: its name, with its id where another has the same, as `X#3`."""
    distinct = dict.fromkeys(nodes)
    owners = Counter(node.name for node in distinct)
    return {node: node.name if owners[node.name] == 1 else f"{node.name}#{node.id}" for node in distinct}


def term(node: Node, name: Mapping[Node, str], fed: Container[Node] = ()) -> str:
    """A node's operator and arguments, `matmul(X, W1, trans_A=True)`; attributes that are None or False are left out,
    and of what is fed those that its type says."""
    if node in fed and node.inputs:
        return "fed"
    arguments = [repr(x.attrs["value"]) if x.op.immediate else name.get(x, x.name) for x in node.inputs]
    if isinstance(node.op, Result):
        return f"{arguments[0]}[{node.attrs['of']}]"
    if isinstance(node.op, Deferred):
        return f"{node.op.name}({', '.join(node.op.written(node, arguments))})"
    for key, value in node.attrs.items():
        if value is not None and value is not False and not (node in fed and key in ("shape", "dtype")):
            arguments.append(f"{key}={value.__name__ if callable(value) else repr(value)}")
    return f"{node.op.name}({', '.join(arguments)})"
