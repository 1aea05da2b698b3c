"""What several suites share: the sample cases of every operator and a NumPy interpreter of graphs.

`CASES` maps an operator's name to cases whose `build` makes a node of that operator from variables. A suite
that loops over it covers every operator, also those added later (test_ops.py fails for one without cases).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import cases_basic
import cases_layers
import cases_math
import cases_moves
import dlsys as dl
import numpy as np
from cases import Case
from dlsys import compute
from dlsys.checks import in_dtype
from dlsys.compiler import Group, Reason, TypedGraph, analyse, unrolled, value_inputs
from dlsys.compiler.base import rewrite, sorted_nodes
from dlsys.graph import OPS, Node, Op, Shape, find_topo_sort, named, type_of
from dlsys.ops.replay import replay
from dlsys.ops.state import State, WithUpdates
from dlsys.schedule import ScheduleWarning
from hypothesis import HealthCheck, settings

warnings.simplefilter("error", ScheduleWarning)  # a schedule rule that fails is no way to the fallback
# How long a loaded machine takes to draw or to test says nothing; files that use Hypothesis import this one.
settings.register_profile("dlsys", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("dlsys")

CASES: dict[str, list[Case]] = {}
COMPOSED: dict[str, list[Case]] = {}
"""Cases of functions that make nodes of several operators, by their names."""
for _module in (cases_basic, cases_math, cases_moves, cases_layers):
    for _name, _cases in _module.CASES.items():
        (CASES if _name in OPS else COMPOSED).setdefault(_name, []).extend(_cases)
NO_CASES = cases_basic.NO_CASES
LOOPS = ("scan_result",)
"""Operators of several kernels, without a tensor expression: as graphs of their steps."""
LIKE = tuple(
    name for name, op in OPS.items() if isinstance(op, State) or type(op).replacement is not Op.replacement
)
"""Operators of state, and of another node's shape: type inference puts others in their places, so they have no formula
of their own."""
OF_PASSES = (  # made by passes and by `freeze`, without gradients
    *("conv2d_panels", "conv2d_planes", "join_tiles", "matmul_panels", "pool_last", "transform_tiles"),
)


def every_case(of_each: int | None = None) -> tuple[list[Node], dict[Node, np.ndarray]]:
    """A node of every case of every operator, and a feed of all their variables, float32; with `of_each` no more cases
    than that of an operator. Cases with a Parameter, or that give a variable back, are not there."""
    nodes, feed = [], {}
    for cases in CASES.values():
        for case in cases[:of_each]:
            variables = case.variables()
            node = case.build(*variables)
            if not case.parameters and not any(node is variable for variable in variables):
                nodes.append(node)
                feed.update(zip(variables, case.draw("float32"), strict=True))
    return nodes, feed


def inputs_of(node: Node, given: list[Any]) -> list[Any]:
    """What a node reads: arrays, tensors, shapes or dtypes; `given` is it of the inputs that are no numbers."""

    def number(value: float) -> Any:
        if isinstance(given[-1], np.ndarray):
            return in_dtype(value, given[-1].dtype)
        if isinstance(given[-1], (tuple, str)):
            return () if isinstance(given[-1], tuple) else given[-1]
        return compute.immediate(in_dtype(value, str(given[-1].dtype)))

    rest = iter(given)
    return [number(x.attrs["value"]) if x.op.immediate else next(rest) for x in node.inputs]


def values_read(node: Node, values: Mapping[Node, Any]) -> list[Any]:
    """The inputs' values, with those of numbers, which are not among `values`."""
    return inputs_of(node, [values[value] for value in node.inputs if not value.op.immediate])


def numpy_value(node: Node, inputs: list[np.ndarray]) -> np.ndarray:
    """The node's value by the operators' NumPy rules."""
    if isinstance(node.op, State):
        return np.asarray(None if node.op.value is None else inputs[node.op.value])
    other = node.op.replacement(node)  # one of the inputs
    return node.op.numpy(node, inputs) if other is None else dict(zip(node.inputs, inputs, strict=True))[other]


def evaluate(nodes: Iterable[Node], feed: dict[Node, np.ndarray]) -> list[np.ndarray]:
    """The nodes' values by the operators' NumPy rules; each must have the inferred shape and dtype. Loops are written
    out."""
    nodes, feed = named(list(nodes)), named(dict(feed))
    types = {node: type_of(value.shape, str(value.dtype)) for node, value in feed.items()}
    stands_for, _ = replay(find_topo_sort(nodes), types)
    nodes = [stands_for.get(node, node) for node in nodes]
    values = {stands_for.get(node, node): value for node, value in feed.items()}
    if any(node.op.kind == "scan" for node in find_topo_sort(nodes)):
        fed = {node: (value.shape, str(value.dtype)) for node, value in values.items()}
        graph = unrolled(analyse(find_topo_sort(nodes), nodes, fed))
        nodes = [node for node in graph.outputs if node is not None]
        values = {graph.leaf_of(node): value for node, value in values.items()}
    for node in find_topo_sort(nodes):
        if node in values:
            continue
        if node.op.immediate:
            continue
        inputs = values_read(node, values)
        result = numpy_value(node, inputs)
        shape = node.op.infer_shape(node, [value.shape for value in inputs])
        dtype = node.op.infer_dtype(node, [str(value.dtype) for value in inputs])
        assert isinstance(result, np.ndarray), (node.op.name, type(result))
        assert result.shape == shape, (node.op.name, result.shape, shape)
        assert str(result.dtype) == dtype, (node.op.name, result.dtype, dtype)
        values[node] = result
    return [values[node] for node in nodes]


def expression(node: Node) -> str:
    """The expression below a node; attributes that are None or False are left out."""
    if node.op.name == "placeholder":
        return node.name
    if node.op.immediate:
        return repr(node.attrs["value"])
    attributes = [
        f"{k}={v}" for k, v in node.attrs.items() if v is not None and v is not False and k != "dtype"
    ]
    return f"{node.op.name}({', '.join([*map(expression, node.inputs), *attributes])})"


def check_form(graph: TypedGraph) -> None:
    """Inputs stand before their users, types are those that the operators infer, roots are there."""
    standing = set(graph.fed)
    for node in graph.nodes:
        assert node not in standing and all(value in standing for value in value_inputs(node)), node
        standing.add(node)
        assert (node.shape, node.dtype) == (node.shape, node.dtype), node
    assert standing.issuperset(graph.roots)


def check_reasons(before: TypedGraph, after: TypedGraph) -> None:
    """Each node that passes dropped, replaced or made has a reason; those that only read others now keep their name."""
    reasons = after.reasons[len(before.reasons) :]
    assert all(rule and why for rule, _, why in reasons)
    gone = {nodes[0].name for _, nodes, _ in reasons}
    made = {node.name for node in find_topo_sort([nodes[1] for _, nodes, _ in reasons if len(nodes) > 1])}
    old, new = ({node.name for node in graph.nodes} for graph in (before, after))
    assert old - new <= gone and new - old <= made


def check_groups_reasons(groups: Sequence[Group], reasons: Sequence[Reason]) -> None:
    """Each node of a group but its first has joined by a reason, and each two groups of which one reads the other have
    one to be two."""
    cheap = {node for rule, (_, node), _ in reasons if rule == "rematerialize"}
    owner = {node: number for number, group in enumerate(groups) for node in group.nodes if node not in cheap}
    joined = {(owner[member], node) for rule, (member, node), _ in reasons if rule != "apart"}
    apart = {frozenset(map(owner.__getitem__, pair)) for rule, pair, _ in reasons if rule == "apart"}
    for number, group in enumerate(groups):
        own = [node for node in group.nodes if node.op.name != "full"] or group.nodes[:1]
        assert sum((number, node) in joined for node in own) == len(own) - 1 or group.kind == "loop", group.name
        writers = {owner[value] for value in group.inputs if value in owner}
        assert all(frozenset((number, writer)) in apart for writer in writers), group.name


def python(
    *words: Any,
    status: int | None = 0,
    base: Mapping[str, str] = os.environ,
    cwd: Path | None = None,
    before: str = "",
    **variables: str,
) -> subprocess.CompletedProcess[str]:
    """What a process of Python has printed that is given these words: it must end with the status, if one is given. The
    `variables` are added to the environment `base`; the command stands behind the shell's words `before`, such as
    "ulimit -f 1;"."""
    command = [sys.executable, *map(str, words)]
    if before:
        command = ["sh", "-c", f'{before} "$0" "$@"', *command]
    done = subprocess.run(command, env={**base, **variables}, cwd=cwd, capture_output=True, text=True, timeout=1200)
    assert status in (None, done.returncode), f"{done.returncode}: {done.stdout}{done.stderr[-3000:]}"
    return done


@contextmanager
def running(
    *words: Any, base: Mapping[str, str] = os.environ, **variables: str
) -> Iterator[subprocess.Popen[str]]:
    """A process of Python that is given these words, as it runs; it is killed at the end."""
    command = [sys.executable, *map(str, words)]
    with subprocess.Popen(
        command, env={**base, **variables}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # behind a shell's `&` it is ignored
    ) as process:  # fmt: skip
        try:
            yield process
        finally:
            process.kill()


def error_of(kind: type[Exception], function: Callable[..., Any], *args: Any, **kwargs: Any) -> str:
    """The text of the exception of `kind` that the call must raise."""
    try:
        function(*args, **kwargs)
    except kind as error:
        return str(error)
    raise AssertionError(f"no {kind.__name__} was raised")


@contextmanager
def denormals_kept() -> Iterator[None]:
    """Kernels compiled within it compute denormal results."""
    dl.set_flush_denormal(False)
    try:
        yield
    finally:
        dl.set_flush_denormal(True)


@contextmanager
def on_threads(count: int) -> Iterator[None]:
    """Kernels made within it are for so many threads, or for as many as there are."""
    before = dl.get_num_threads()
    dl.set_num_threads(min(count, before))
    try:
        yield
    finally:
        dl.set_num_threads(before)


def typed_graph(
    outputs: Sequence[Node | None], updates: Sequence[tuple[Node, Node]], fed: dict[Node, tuple[Shape, str]]
) -> TypedGraph:
    """The graph below `outputs` and the updates' values, for feeds of these types, without the checks of `analyse`."""
    outputs, updates, fed = named(list(outputs)), named(list(updates)), named(dict(fed))
    stands_for, _ = replay(
        find_topo_sort([*(node for node in outputs if node is not None), *(value for _, value in updates)]),
        {node: type_of(*of) for node, of in fed.items()},
    )
    outputs = [None if node is None else stands_for.get(node, node) for node in outputs]
    updates = [(parameter, stands_for.get(value, value)) for parameter, value in updates]
    given = [stands_for.get(node, node) for node in fed]
    roots = [node for node in outputs if node is not None] + [value for _, value in updates]
    order = find_topo_sort(roots)
    computed = tuple(node for node in order if node not in set(given) and not node.op.immediate)
    current = {node: now for node, now in stands_for.items() if isinstance(now, Node)}
    graph = TypedGraph(computed, tuple(outputs), tuple(updates), frozenset(given), current)

    def rule(node: Node, typed: TypedGraph) -> Node | None:
        """What no evaluator computes goes: a function's argument that it has returned, stated gradients."""
        return node.inputs[0] if isinstance(node.op, WithUpdates) else node.op.replacement(node)

    graph = rewrite(graph, rule, name="types", why="gradients have been made")
    return replace(graph, nodes=sorted_nodes(graph))
