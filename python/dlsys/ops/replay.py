"""Replay: functions of nodes that are called again when types are known.

A variable need not declare its type, as in the course: `y = softmax_op(X @ W)` is written before anybody knows how
large X is. A function that meets a node without a type is noted: it returns a node that stands for the call. When the
types of the feeds are known, `replay` calls every such function again, inputs first, with nodes that have types. So no
function has to do without a shape, and no operator waits for one.

What is noted is called once for each signature of feeds. So it must be pure: it draws no random numbers and changes
nothing; what it depends on besides its arguments (random keys, modes) it gets as arguments.
"""

from __future__ import annotations

import functools
import inspect
import pkgutil
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar, overload

import numpy as np

from ..devices import host_array
from ..errors import DlsysError, DTypeError, GraphError, ShapeError
from ..graph import (
    Handle,
    Made,
    Node,
    Op,
    Type,
    error_at,
    find_topo_sort,
    handles,
    is_node,
    kind_of_results,
    mapped,
    named,
    stamp,
    type_of,
)
from ..node import user_line
from ..scopes import scopes
from .state import WITH_UPDATES, variable_of

P = ParamSpec("P")
R = TypeVar("R")
Results = int | Callable[..., int] | None


@dataclass(frozen=True)
class Slot:
    """The place of an input among a call's arguments."""

    number: int


DEFERRED: dict[tuple[str, str], Deferred] = {}
"""The operators of calls, by the functions' modules and names."""


class Deferred(Op):
    """A call of a function whose arguments have no types yet. There is one operator for each function."""

    never = "a call is replayed when types are known: see `dlsys.ops.replay`"

    def __init__(self, function: Callable[..., Any], results: Results, on_tensors: bool = False) -> None:
        self.name = function.__name__.removesuffix("_op").lstrip("_")  # type: ignore[misc]
        self.function = function
        self.results = results
        self.on_tensors = on_tensors
        self.signature: inspect.Signature | None = None  # computed at the first call
        DEFERRED[function.__module__, function.__qualname__] = self

    def __reduce__(self) -> Any:
        return _call_of, (self.function.__module__, self.function.__qualname__)

    def type_of(self, node: Node) -> None:
        return None

    def noted(self, args: tuple[Any, ...], words: dict[str, Any]) -> Any:
        """The node that stands for a call, or a tuple of nodes, one for each of its results. Raises TypeError for
        arguments that the function does not take."""
        if self.signature is None:
            self.signature = inspect.signature(self.function)
        self.signature.bind(*args, **words)
        inputs: dict[Node, int] = {}

        def slot(value: Any) -> Any:
            if isinstance(value, Node):
                return Slot(inputs.setdefault(value, len(inputs)))
            return np.array(host_array(value)) if hasattr(value, "__dlpack__") else value  # which may be written to

        attrs = {"args": mapped(args, slot), "words": mapped(words, slot), "precision": scopes.precision}
        node = Node(self, list(inputs), attrs)
        if self.results is None:
            return node
        count = self.results if isinstance(self.results, int) else self.results(*args, **words)
        return tuple([Node(RESULT, [node], {"of": of}) for of in range(count)])

    def written(self, node: Node, names: Sequence[str]) -> list[str]:
        """The arguments as a program writes them; `names`: the inputs'."""

        def shown(value: Any) -> str:
            if isinstance(value, Slot):
                return names[value.number]
            if type(value) in (list, tuple):
                return f"[{', '.join(map(shown, value))}]"
            return repr(value)

        words = node.attrs["words"].items()
        return [*map(shown, node.attrs["args"]), *(f"{key}={shown(value)}" for key, value in words)]

    def replayed(self, node: Node, inputs: list[Node]) -> Any:
        """What the function returns of these inputs."""
        filled = lambda value: inputs[value.number] if type(value) is Slot else value  # noqa: E731
        return self.applied(mapped(node.attrs["args"], filled), mapped(node.attrs["words"], filled))

    def applied(self, args: tuple[Any, ...], words: dict[str, Any]) -> Any:
        """What the function returns, as nodes. Raises GraphError for what is no node where it takes one."""
        try:
            if not self.on_tensors:
                return self.function(*args, **words)
            kind = Handle.results
            words = {key: handles(value, kind) for key, value in words.items()}
            return named(self.function(*handles(args, kind), **words))
        except (AttributeError, IndexError, TypeError, ValueError):
            names = self.function.__code__.co_varnames
            for name, value in (*zip(names, args, strict=False), *words.items()):
                takes = self.function.__annotations__.get(name)
                is_needed = takes == "Node" or (takes == "Node | None" and value is not None)
                if is_needed and not is_node(value):
                    told = f"{self.name}: takes tensors and nodes, not {type(value).__name__}"
                    raise GraphError(told) from None
            raise


class Result(Op):
    """Result number `attrs["of"]` of a call that has several."""

    name = "result"
    never = Deferred.never

    def __reduce__(self) -> Any:
        return "RESULT"

    def type_of(self, node: Node) -> None:
        return None

    def replayed(self, node: Node, inputs: list[Any]) -> Any:
        return inputs[0][node.attrs["of"]]


RESULT = Result()


def _call_of(module: str, name: str) -> Op:
    """The operator of the calls of a function, whose module is imported as pickle does it."""
    pkgutil.resolve_name(module)
    return DEFERRED[module, name]


def _has_no_type(values: Iterable[Any]) -> bool:
    """Whether one of the arguments is a node without a type, or a list with one."""
    for value in values:
        if isinstance(value, Node):
            if value.value_type is None:
                return True
        elif type(value) in (list, tuple) and value and not isinstance(value[0], int) and _has_no_type(value):
            return True
    return False


@overload
def function(results: None = None, on_tensors: bool = False) -> Callable[[Callable[P, Node]], Callable[P, Made]]: ...


@overload
def function(
    results: int | Callable[..., int], on_tensors: bool = False
) -> Callable[[Callable[P, R]], Callable[P, R]]: ...


def function(results: Results = None, on_tensors: bool = False) -> Any:
    """Decorates a function of nodes that reads their types: called with a node that has none, it is noted. Called with
    handles, it returns handles.

    Args:
        results: None if it returns one node; else how many it returns, or a function of its arguments that says so.
        on_tensors: whether the function calls methods of tensors, so that it gets handles also when it is replayed.

    A function that returns one of its arguments returns a node of its own in its place: a gradient with respect to
    either is then its own.
    """

    def decorate(body: Callable[P, Any]) -> Callable[P, Any]:
        call = Deferred(body, results, on_tensors)

        @functools.wraps(body)
        def called(*args: P.args, **words: P.kwargs) -> Any:
            kind = kind_of_results(args) or (kind_of_results(words.values()) if words else None)
            given = args, words
            if kind is not None:
                args, words = named(args), named(words)
            if _has_no_type(args) or (words and _has_no_type(words.values())):
                result: Any = call.noted(args, words)
                return result if kind is None else handles(result, kind)
            try:
                result = call.applied(*(given if on_tensors and kind is not None else (args, words)))
            except DlsysError as error:
                if scopes.origin is None and not re.search(r"\bat [^\]]+:\d+\]", told := str(error)):
                    error.args = (f"{told} [at {user_line()}]",)
                raise
            if isinstance(result, Node):
                if scopes.origin is None and any(result is value for value in args):
                    result = WITH_UPDATES(result)
                if result.op.name != call.name:
                    result.function = call.name
            return result if kind is None else handles(result, kind)

        return called

    return decorate


def replay(order: Iterable[Node], feeds: Mapping[Node, Type]) -> tuple[dict[Node, Any], dict[Node, Node]]:
    """For each node without a type the one that stands for it, now that the feeds' types are known; and for each that
    has none still, a variable that was not fed.

    `order`: inputs first. Raises what the functions raise, with the user's line.
    """
    stands_for: dict[Node, Any] = {}
    missing: dict[Node, Node] = {}
    for node in order:
        if node.value_type is not None:
            continue
        lacking = node if node.op.variable else next((missing[x] for x in node.inputs if x in missing), None)
        if lacking is None:
            stands_for[node] = _again(node, [stands_for.get(value, value) for value in node.inputs])
        elif node in feeds:
            stands_for[node] = fed_variable(node, feeds[node])
        else:
            missing[node] = lacking
    return stands_for, missing


def fed_variable(node: Node, fed: Type) -> Node:
    """A variable of a known type for a node that is fed."""
    variable = variable_of(fed, node.name)
    variable.placed_as(node)
    return variable


def _again(node: Node, inputs: list[Any]) -> Any:
    """What a node computes, of inputs with types."""
    before = stamp()
    with scopes.inside(origin=node, precision=node.attrs.get("precision"), no_grad=node.no_grad):
        try:
            result = node.op.replayed(node, inputs)
        except DlsysError as error:  # of a node that the function has made: the user knows this one
            told, count = re.subn(r"\[node [^,\]]+, made at ", f"[node {node.name}, made at ", str(error))
            if count:
                raise type(error)(told) from error
            raise error_at(node, type(error), told.removeprefix(f"{node.op.name}: ")) from error
    if isinstance(result, Node):
        if result.id <= before and not isinstance(node.op, Result):
            with scopes.inside(origin=node):
                result = WITH_UPDATES(result)
        result.name = node.name
    return result


def declared_type(node: Node, part: str) -> Any:
    """The shape or dtype of a node without a type, where it follows from the shapes that variables declare. Raises
    ShapeError or DTypeError where it depends on what is fed."""
    if node.op.variable and node.attrs[part] is not None:
        return node.attrs[part]
    order = find_topo_sort([node])
    variables = [one for one in order if one.op.variable and one.value_type is None]
    for variable in variables:
        if part == "shape" and variable.attrs["shape"] is None:
            raise error_at(variable, ShapeError, "the shape is known only when the variable is fed")
        if part == "dtype" and None in (variable.attrs["shape"], variable.attrs["dtype"]):
            raise error_at(variable, DTypeError, "the dtype is known only when the variable is fed")
    feeds = {one: type_of(one.attrs["shape"], one.attrs["dtype"] or "float32") for one in variables}
    stands_for, _ = replay(order, feeds)
    return getattr(stands_for[node].value_type, part)
