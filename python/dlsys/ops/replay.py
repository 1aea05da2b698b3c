"""Replay: functions of nodes that are called again when types are known.

A variable need not declare its type, as in the course: `y = softmax_op(X @ W)` is written before anybody knows how
large X is. A function that meets a node without a type is noted: it returns a node that stands for the call. When the
types of the feeds are known, `replay` calls every such function again, inputs first, with nodes that have types. So no
function has to do without a shape, and no operator waits for one.

A call on tensors is noted, too, if one of the same types and numbers was made before: its type is known then, and one
node stands for all those that the function would make, until it is compiled. A loop makes its graph at each step, and
spends its time on nodes.

What is noted is called once for each signature of feeds. So it must be pure: it draws no random numbers and changes
nothing; what it depends on besides its arguments (random keys, modes) it gets as arguments.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import pkgutil
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar, overload

import numpy as np

from ..devices import host_array
from ..errors import DlsysError, DTypeError, GraphError, IndexRangeError, ShapeError
from ..graph import (
    Handle,
    IndexRange,
    Made,
    Node,
    Op,
    Type,
    below,
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
from .state import WITH_UPDATES, Assign, Latest, variable_of

P = ParamSpec("P")
R = TypeVar("R")
Results = int | Callable[..., int] | None


@dataclass(frozen=True)
class Slot:
    """The place of an input among a call's arguments."""

    number: int


DEFERRED: dict[tuple[str, str], Deferred] = {}
"""The operators of calls, by the functions' modules and names."""


def require_in_range(node: Node, of: IndexRange, indices: np.ndarray, name: str = "") -> None:
    """Raises IndexRangeError for indices of a node that are out of range; it names the first of them. `name`: of what
    has the indices, that input of the node by default."""
    if not indices.size or indices.dtype.kind not in "iu":
        return
    if int(indices.view(f"u{indices.itemsize}").max()) < of.beyond:  # a negative number is a large one there
        return
    wrong = (indices < of.least) | (indices >= of.beyond)
    if of.besides is not None:
        wrong &= indices != of.besides
    if wrong.any():
        number, name = indices[wrong].flat[0], name or node.inputs[of.position].name
        raise error_at(node, IndexRangeError, f"index {number} is out of range for {of.told} [{name}]")


MOST_NUMBERS = 4  # values of the numbers among the arguments of calls on tensors that are noted; then nodes are made
MOST_CALLS = 1 << 12  # of one function that are known
_VIEWS = ("slice", "reshape", "transpose", "broadcast_shape", "with_updates")


class Call(dict[str, Any]):
    """The attributes of nodes that stand for calls on tensors of the same types and numbers: one object for all, by
    which they compare.

    Attributes:
        value_type: of the result. tracks: whether gradients pass through it.
        reached: the inputs that gradients go to.
        made: the operator, its attributes and inputs, where the function makes this one node; None else.
        of: which of several results it is; None for the one.
        ranges: (position, range) of the inputs that hold indices.
    """

    __slots__ = ("made", "of", "ranges", "reached", "tracks", "value_type")
    of: int | None
    ranges: tuple[tuple[int, IndexRange], ...]
    value_type: Type
    tracks: bool
    reached: tuple[int, ...]
    made: tuple[Op, dict[str, Any], tuple[int, ...]] | None

    __hash__ = object.__hash__  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return self is other


class Deferred(Op):
    """A call of a function whose arguments have no types yet, or on tensors. There is one operator for each function.
    """

    never = "a call is replayed when types are known: see `dlsys.ops.replay`"

    def __init__(self, function: Callable[..., Any], results: Results, on_tensors: bool = False) -> None:
        self.name = function.__name__.removesuffix("_op").lstrip("_")  # type: ignore[misc]
        self.function = function
        self.results = results
        self.on_tensors = on_tensors
        self.signature: inspect.Signature | None = None  # computed at the first call
        self.known: dict[Any, list[Call] | None] = {}  # calls on tensors, by results; None where they are not noted
        self.numbers: dict[Any, int] = {}  # how many of them differ in numbers alone
        DEFERRED[function.__module__, function.__qualname__] = self

    def __reduce__(self) -> Any:
        return _call_of, (self.function.__module__, self.function.__qualname__)

    def type_of(self, node: Node) -> Type | None:
        attrs = node.attrs
        return attrs.value_type if type(attrs) is Call else None

    def differentiated(self, node: Node) -> Sequence[Node]:
        attrs = node.attrs
        return [node.inputs[i] for i in attrs.reached] if type(attrs) is Call else node.inputs

    def stand(self, calls: list[Call], inputs: list[Node], kind: Any) -> Any:
        """The tensors of a known call."""
        if self.results is None:
            return kind.of(self._standing(calls[0], inputs))
        return tuple([kind.of(self._standing(call, inputs)) for call in calls])

    def _standing(self, call: Call, inputs: list[Node]) -> Node:
        """The node of a call on tensors."""
        if call.made is None:
            node = Node(self, inputs, call, None, call.value_type)
        else:
            op, attrs, places = call.made
            node = Node(op, [inputs[i] for i in places], attrs, None, call.value_type)
            node.function = None if op.name == self.name else self.name
        node.tracks = call.tracks
        for position, of in call.ranges:
            if (held := inputs[position].held) is not None:
                require_in_range(node, of, np.asarray(held), inputs[position].name)
        return node

    def learn(self, key: Any, args: Any, words: Any, inputs: list[Node]) -> Any:
        """What the function returns of tensors. Enters what stands for its calls with this key; None where each call
        makes its nodes: of a view, of what reads more than its arguments, and of numbers that vary."""
        like = _without_numbers(key)
        count = self.numbers.get(like, 0)
        if count >= MOST_NUMBERS:
            return self.applied(args, words)
        mark = stamp()
        with scopes.inside(applies=True):
            result = self.applied(args, words)
        several = [(None, result)] if self.results is None else list(enumerate(result))
        count_of = itertools.count()

        def slot(value: Any) -> Any:
            return Slot(next(count_of)) if is_node(value) else value

        parts = {"args": mapped(args, slot), "words": mapped(words, slot)}
        calls = [self._call_of(of, named(one), parts, inputs, mark) for of, one in several]
        self.numbers[like] = count + any(call is not None and call.made is None for call in calls)
        if len(self.known) >= MOST_CALLS:
            self.known.clear()
        self.known[key] = None if None in calls else calls  # type: ignore[assignment]
        return result

    def _call_of(self, of: int | None, result: Any, parts: Any, inputs: list[Node], mark: int) -> Call | None:
        if not isinstance(result, Node) or result.id <= mark or result.value_type is None:
            return None
        given = set(inputs)
        nodes = below([result], lambda node: node in given)
        new = [node for node in nodes if not node.op.immediate]
        if any(node.id <= mark or isinstance(node.op, Assign) for node in new):
            return None
        call = Call(parts, precision=scopes.precision)
        call.of, call.value_type, call.tracks, call.made = of, result.value_type, result.tracks, None
        place = {x: i for i, x in enumerate(inputs)}
        ranges = []
        for node in new:
            of_node = node.op.index_range and node.op.index_range(node, [x.shape for x in node.inputs])
            if of_node is not None and (indices := node.inputs[of_node.position]) in given:
                ranges.append((place[indices], of_node))
        call.ranges = tuple(ranges)
        if new == [result] and given.issuperset(result.inputs):
            call.made = result.op, result.attrs, tuple([place[x] for x in result.inputs])
        elif result.op.name in _VIEWS:
            return None
        reached, stack = {result}, [result]
        while stack:
            node = stack.pop()
            if node in given or not node.tracks:
                continue
            more = [x for x in node.op.differentiated(node) if x.tracks and x not in reached]
            reached.update(more)
            stack += more
        call.reached = tuple([i for i, x in enumerate(inputs) if x in reached])
        return call

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


class NoKeyError(Exception):
    """An argument by which calls do not compare."""


def _key_of(value: Any, inputs: list[Node]) -> Any:
    """An argument as a part of a key: of a tensor its type, and its node is entered among the inputs. Raises NoKeyError
    for what depends on variables, and for arrays and other objects."""
    if isinstance(value, Handle):
        node = value.node
        if node.is_open or node.value_type is None or isinstance(node.op, Latest):
            raise NoKeyError
        inputs.append(node)
        return node.value_type, node.tracks
    kind = type(value)
    if value is None or kind in (int, bool, str):
        return kind, value
    if kind is float:
        return kind, value if value and value == value else repr(value)
    if kind in (list, tuple):
        return kind, tuple([_key_of(one, inputs) for one in value])
    if kind is dict:
        return tuple([(key, _key_of(one, inputs)) for key, one in value.items()])
    if kind is slice:
        return kind, _key_of((value.start, value.stop, value.step), inputs)
    raise NoKeyError


def _without_numbers(key: Any) -> Any:
    """A key without the values of its numbers."""
    if type(key) is not tuple:
        return key
    return key[:1] if key and key[0] in (int, float) else tuple([_without_numbers(one) for one in key])


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


def function(results: Results = None, on_tensors: bool = False, untyped: bool = True) -> Any:
    """Decorates a function of nodes that reads their types: called with a node that has none, it is noted. Called with
    handles, it returns handles.

    Args:
        results: None if it returns one node; else how many it returns, or a function of its arguments that says so.
        on_tensors: whether the function calls methods of tensors, so that it gets handles also when it is replayed.
        untyped: whether it reads types, so that a call with a node that has none is noted.

    A function that returns one of its arguments returns a node of its own in its place: a gradient with respect to
    either is then its own.
    """

    def decorate(body: Callable[P, Any]) -> Callable[P, Any]:
        call = Deferred(body, results, on_tensors)

        @functools.wraps(body)
        def called(*args: P.args, **words: P.kwargs) -> Any:
            kind = kind_of_results(args) or (kind_of_results(words.values()) if words else None)
            key, inputs = None, list[Node]()
            if kind is not None and kind is Handle.results and scopes.notes():
                try:
                    key = (*_key_of(args, inputs), _key_of(words, inputs), scopes.precision, scopes.no_grad)
                    if len(distinct := dict.fromkeys(inputs)) < len(inputs):  # f(x, x) is not f(x, y)
                        key = (*key, *map([*map(id, distinct)].index, map(id, inputs)))
                except NoKeyError:
                    key = None
                if key is not None and (known := call.known.get(key)) is not None:
                    return call.stand(known, inputs, kind)
            given = args, words
            if kind is not None:
                args, words = named(args), named(words)
            if untyped and (_has_no_type(args) or (words and _has_no_type(words.values()))):
                result: Any = call.noted(args, words)
                return result if kind is None else handles(result, kind)
            try:
                arguments = given if on_tensors and kind is not None else (args, words)
                if key is not None and key not in call.known:
                    result = call.learn(key, *arguments, inputs)
                    if (known := call.known.get(key)) is not None:
                        return call.stand(known, inputs, kind)
                else:
                    result = call.applied(*arguments)
            except DlsysError as error:
                if scopes.origin is None and not re.search(r"\bat [^\]]+:\d+\]", told := str(error)):
                    error.args = (f"{told} [at {user_line()}]",)
                raise
            if isinstance(result, Node):
                if scopes.origin is None and any(result is value for value in args):
                    result = WITH_UPDATES(result)
                if untyped and result.op.name != call.name:
                    result.function = call.name
            return result if kind is None else handles(result, kind)

        return called

    return decorate


def composition(body: Callable[P, R]) -> Callable[P, R]:
    """Decorates a function of tensors, for whose call with types that are known one node stands, see above. Of nodes of
    variables it makes what it makes."""
    return function(on_tensors=True, untyped=False)(body)  # type: ignore[call-overload]


def compositions(results: int | Callable[..., int]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """`composition` of a function that returns a tuple of so many."""
    return function(results, on_tensors=True, untyped=False)  # type: ignore[call-overload]


def replay(order: Iterable[Node], feeds: Mapping[Node, Type]) -> tuple[dict[Node, Any], dict[Node, Node]]:
    """For each node without a type the one that stands for it, now that the feeds' types are known; and for each that
    has none still, a variable that was not fed.

    `order`: inputs first. Raises what the functions raise, with the user's line.
    """
    stands_for: dict[Node, Any] = {}
    missing: dict[Node, Node] = {}
    several: dict[Any, Any] = {}
    order = list(order)
    if anew := any(type(node.attrs) is Call for node in order):  # then all nodes, in the order in which they were made
        order.sort(key=lambda node: node.id)
    for node in order:
        is_made = node.value_type is not None and (not anew or node.op.variable)
        if is_made or node.op.leaf or node.op.immediate:
            continue
        lacking = node if node.op.variable else next((missing[x] for x in node.inputs if x in missing), None)
        if lacking is None:
            stands_for[node] = again(node, [stands_for.get(value, value) for value in node.inputs], several)
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


def again(node: Node, inputs: list[Any], several: dict[Any, Any] | None = None) -> Any:
    """What a node computes, of inputs with types. `several`: the results of calls that have several, which are made
    once."""
    attrs = node.attrs
    if type(attrs) is not Call or attrs.of is None:
        return _made_again(node, inputs)
    several = {} if several is None else several
    key = (id(attrs["args"]), *inputs)  # one object for all results of a call
    if key not in several:
        several[key] = _made_again(node, inputs)
    return several[key][attrs.of]


def _made_again(node: Node, inputs: list[Any]) -> Any:
    before = stamp()
    with scopes.inside(origin=node, differentiated=None, precision=node.attrs.get("precision"), no_grad=node.no_grad):
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
