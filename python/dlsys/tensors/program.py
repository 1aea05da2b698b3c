"""A function of tensors as one program: the graph that it has made, and what it has done to tensors from outside."""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..devices import Array, copied, cpu
from ..graph import Handle, Node, error_at
from ..ops import assign_op, group_op, leaf
from ..ops.state import PLACEHOLDER, Assign, WithUpdates, is_array, present
from ..scopes import scopes
from .evaluate import array_of, evaluate
from .executors import arena_of, copy_of
from .inplace import hold, settled
from .recording import CompileError, Recording, owner_of
from .structure import SETTLED, device_of

MOST_RECORDED = 2  # different programs of one kind of arguments, one after the other, until two calls agree


# Arguments and results -------------------------------------------------------------------------------------


def flat_of(value: Any, found: list[Any]) -> Any:
    """The structure of a value: the number of each thing in its lists, tuples and dictionaries, which go to `found`; a
    tensor that is there twice has one number."""
    if type(value) in (list, tuple) or hasattr(value, "_fields"):
        return type(value), tuple([flat_of(one, found) for one in value])
    if type(value) in (dict, OrderedDict):
        return type(value), tuple([(key, flat_of(one, found)) for key, one in value.items()])
    if isinstance(value, Handle) and (known := [at for at, one in enumerate(found) if one is value]):
        return known[0]
    found.append(value)
    return len(found) - 1


def _built(structure: Any, values: list[Any]) -> Any:
    """The value of a structure."""
    if isinstance(structure, int):
        return values[structure]
    kind, parts = structure
    if issubclass(kind, dict):
        return kind((key, _built(part, values)) for key, part in parts)
    built = [_built(part, values) for part in parts]
    return kind(*built) if hasattr(kind, "_fields") else kind(built)


_ARRAYS = (Handle, np.ndarray, Array)
_FLOATS = (float, np.floating)
_PLAIN = (bool, int, float, str, bytes, type(None), np.generic)


def kind_of(value: Any) -> Any:
    """What of an argument decides the program: an array's type, of a number or text the value, of an object which."""
    if isinstance(value, Handle):
        held = value.node.held
        return value.node.value_type, value.node.tracks, None if held is None else held.context
    if isinstance(value, (np.ndarray, Array)):
        return str(value.dtype), value.shape
    if isinstance(value, _FLOATS):
        return float
    return (type(value), value) if isinstance(value, _PLAIN) else id(value)


def _variable(name: str, shape: Any, dtype: str) -> Any:
    """A variable, which has a value while a program runs only; `attrs["recorded"]` is the device of its array."""
    attrs = {"shape": tuple(shape), "dtype": dtype, "recorded": cpu()}
    return Handle.results.of(Node(PLACEHOLDER, [], attrs, name))


# Programs --------------------------------------------------------------------------------------------------


class Program:
    """What a function does, for one kind of arguments.

    Attributes:
        executor: the `Executor` of its results and assignments, which shows every stage.
    """

    def __init__(self, function: Callable[..., Any], flat: list[Any], structure: Any, streams: list[int]) -> None:
        """`streams`: see `Recording`."""
        self._kept = [value for value in flat if isinstance(kind_of(value), int)]  # objects whose ids are in the key
        self.is_checked = False
        self.recorded = 1
        self.streams = streams
        self.variables: list[tuple[int, Any]] = []
        given = list(flat)
        number = "float64" if any(isinstance(x, _ARRAYS) and str(x.dtype) == "float64" for x in flat) else "float32"
        for at, value in enumerate(flat):
            if isinstance(value, (*_ARRAYS, *_FLOATS)):
                shape, dtype = (value.shape, str(value.dtype)) if isinstance(value, _ARRAYS) else ((), number)
                own = _variable(f"input_{at}", shape, dtype)
                if isinstance(value, Handle):
                    own.node.tracks, own.node.attrs["recorded"] = value.node.tracks, value.node.held.context
                self.variables.append((at, own))
                given[at] = own
        evaluate([])
        recording = Recording(streams)
        self.results: list[Any] = []
        with scopes.inside(recording=recording):
            try:
                args, words = _built(structure, given)
                self.structure: Any = flat_of(function(*args, **words), self.results)
                outputs = [value.node for value in self.results if isinstance(value, Handle)]
            finally:
                changed, grads = recording.restore()
        for value in self.results:
            if not isinstance(value, (Handle, *_PLAIN)):
                told = "a compiled function returns tensors, numbers and text, in lists, tuples and dictionaries"
                raise CompileError(f"{told}, not {type(value).__name__}")
        self.before_call, self.each_call = recording.before_call, recording.each_call
        self._build(recording, flat, outputs, changed, grads)

    def _build(self, recording: Recording, flat: list[Any], results: list[Node], changed: Any, grads: Any) -> None:
        self.guards: list[tuple[Any, bool]] = [(handle, before is None) for handle, before, _, read in grads if read]
        self.settings = list(recording.settings.values())
        copies: dict[Node, Any] = {}
        self.grads_in: list[tuple[Any, Any]] = []
        read_grads = [one for one in grads if one[3] and one[1] is not None]
        for handle, before, _, _ in read_grads:
            own = _variable(f"{handle.name}.grad", before.shape, before.dtype)
            self.grads_in.append((handle, own))
            copies[before.node] = own.node
        kept = [(handle, after) for handle, before, after, read in grads if read and after is not None]
        self.grads_out = [handle for handle, _ in kept]
        self.grads_after = [
            (handle, None if after is None else _variable(f"{handle.name}.grad", after.shape, after.dtype))
            for handle, _, after, read in grads
            if not read or after is None
        ]
        places = {id(own): at for at, own in self.variables}
        values = [(x, before, after.inputs[0] if after.op is SETTLED else after) for x, before, after in changed]
        own = [(places[id(handle)], value) for handle, _, value in values if id(handle) in places]
        self.written = [at for at, _ in own if not isinstance(flat[at], _FLOATS)]
        outputs = results + [grad for _, grad in kept] + [value for at, value in own if at in self.written]
        of_grads = {id(before) for _, before, _, _ in grads}
        changes = [one for one in values if id(one[0]) not in places and id(one[0]) not in of_grads]
        self.outside: list[tuple[Any, Node]] = []  # tensors, and what they named when their types were seen
        numbers = {own.node: at for at, own in self.variables}
        order = _reached([*outputs, *(value for _, _, value in changes)], recording.began, copies)
        made = [node for node in order if node.id > recording.began and not is_array(node)]
        known: dict[Node, Any] = {**numbers, **{node: -at for at, node in enumerate(made, 1)}}
        known |= {before.node: f"grad {at}" for at, (_, before, _, _) in enumerate(read_grads)}
        token = functools.partial(_token, recording=recording, numbers=known)
        self.told: list[Any] = [(n.op.name, repr(n.attrs), *map(token, n.inputs)) for n in made]
        self.told += [("result", "", token(node)) for node in outputs]
        self.told += [("assignment", "", token(before), token(value)) for _, before, value in changes]
        self.places = [node.location for node in (*made, *outputs, *(value for _, _, value in changes))]
        for handle, before, value in changes:
            if before.value_type is not value.value_type:
                told = f"{before.name} is {before.value_type}, and is assigned {value.value_type}"
                raise error_at(value, CompileError, told)
            copies[before] = _written(before, handle)
            self.outside.append((handle, before))
        for handle, before, after in changed:
            if after.tracks and not after.op.leaf and id(handle) not in of_grads:
                told = f"{before.name} would get a history of gradients, which ends with the call: write a detach()"
                raise error_at(after, CompileError, told)
        _enter_copies(order, recording, copies, numbers, self.outside)
        self.values = [(node, *held) for node, held in recording.values.items() if node.held is held[1]]
        updates = [assign_op(copies[before], copies[value]) for _, before, value in changes]
        self._read = {id(handle) for handle, _ in self.outside} if self.written else set[int]()
        self._changed = {id(handle) for handle, _, _ in changes}
        from ..executor import Executor

        roots = [copies[node] for node in outputs]
        ctx = device_of([one for one in (*copies.values(), *numbers) if isinstance(one, Node)])
        wanted = [*roots, *([group_op(updates)] if updates else [])]
        self.executor: Any = Executor(wanted, ctx, arena=arena_of(ctx))  # results are copied
        self.count = len(outputs)

    def _require_apart(self, flat: list[Any]) -> None:
        """Raises CompileError for an argument that is an array and is written, and for one that the function knows from
        outside too, if either is written."""
        for at, value in enumerate(flat):
            if at in self.written and not isinstance(value, Handle):
                raise CompileError(f"argument {at} is written, and is {type(value).__name__}: pass a tensor")
            if id(value) in self._changed or (at in self.written and id(value) in self._read):
                told = "is an argument of the compiled function, which knows it from outside too, and is written"
                raise CompileError(f"{value.name} {told}: use one of the two")

    def fits(self) -> bool:
        """Whether what it reads outside is as it was when the function was called."""
        for handle, none in self.guards:
            if (handle._grad is None) is not none:
                return False
        for owner, attribute, value in self.settings:
            if getattr(owner, attribute) != value:
                return False
        for at, (handle, known) in enumerate(self.outside):
            if (node := handle.node) is not known:
                if node.value_type is not known.value_type or node.tracks is not known.tracks:
                    return False
                self.outside[at] = handle, node
        return all(_is_as_it_was(*known) for known in self.values)

    def follows(self, before: Program) -> None:
        """Note that the function has been recorded again, as it did something else before. Raises CompileError at the
        third time."""
        self.recorded = before.recorded + 1
        if self.recorded > MOST_RECORDED:
            pairs = enumerate(zip(self.told, before.told, strict=False))
            at = next((at for at, (now, then) in pairs if now != then), min(len(self.told), len(before.told)) - 1)
            now, then = (" ".join(map(str, program.told[at][:2])) for program in (self, before))
            told = f"the compiled function does something else at each call: {now}, before {then}, at {self.places[at]}"
            why = "what Python counts or draws is recorded once: count in a tensor, or make it an argument"
            raise CompileError(f"{told}: {why}")

    def run(self, flat: list[Any]) -> Any:
        """The results of a call."""
        self._require_apart(flat)
        for action in self.before_call:
            action()
        feeds: dict[Any, Any] = {}
        for at, own in self.variables:
            value = array_of(flat[at]) if isinstance(flat[at], Handle) else flat[at]
            feeds[own] = np.asarray(value, own.dtype) if isinstance(value, _FLOATS) else value
        for handle, own in self.grads_in:
            feeds[own] = array_of(handle._grad)
        arrays = [copied(value) for value in self.executor.run(feeds)[: self.count]]
        values = iter(arrays)
        kinds = Handle.results
        found = [kinds.of(leaf(next(values))) if isinstance(x, Handle) else x for x in self.results]
        for handle in self.grads_out:
            handle._grad = kinds.of(leaf(next(values), f"{handle.name}.grad"))
        for at in self.written:
            hold(flat[at], next(values))
        for handle, grad in self.grads_after:
            handle._grad = grad
        for action in self.each_call:
            action()
        return _built(self.structure, found)


def _is_as_it_was(node: Node, handle: Any, array: Array, written: int) -> bool:
    """Whether a value that a function has read is still that of its tensor."""
    return node.held is array and array.written == written and (handle is None or handle.node is node)


class _Leaf:
    """What two recordings compare of a leaf: which node or tensor it is, or the value of a constant."""

    def __init__(self, node: Node, tensor: Any) -> None:
        self.node, self.tensor = node, tensor
        self.value = np.asarray(node.held).tobytes() if tensor is None and is_array(node) else None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Leaf) or self.node is other.node:
            return isinstance(other, _Leaf)
        same = self.tensor is not None and self.tensor is other.tensor
        return same or (self.value is not None and self.value == other.value)


def _token(node: Node, recording: Recording, numbers: Mapping[Node, Any]) -> Any:
    """What two recordings of a function compare of a node: its number, or the leaf."""
    if node in numbers:
        return numbers[node]
    return _Leaf(node, recording.tensor_of(node))


def _outside(node: Node, recording: Recording, outside: list[tuple[Any, Node]]) -> Node:
    """The leaf that stands for a node of outside: that of its tensor, whose array each run reads; of a computed node
    its value, as long as its tensor names it."""
    handle = owner_of(node)
    if not node.op.leaf:
        evaluate([node])
        recording.reads(node)
        return leaf(copied(node.held), node.name)
    found = node if handle is None and is_array(node) else present(node)
    if handle is not None:
        outside.append((handle, node))
    return found


def _written(node: Node, handle: Any) -> Node:
    """The leaf of a tensor of outside that the function writes. Raises CompileError where that has a history."""
    if node.op.leaf:
        return present(node)
    if node.tracks:
        told = f"{node.name} has a history of gradients, which a compiled function that writes it would lose"
        raise error_at(node, CompileError, f"{told}: write into {node.name}.detach()")
    return settled(handle)


def _reached(wanted: list[Node], began: int, copies: dict[Node, Any]) -> list[Node]:
    """The nodes that the function has made for what is wanted, and the leaves and nodes of outside that they read."""
    seen, stack = set(wanted), list(wanted)
    while stack:
        node = stack.pop()
        if node.id > began and not is_array(node) and node not in copies:
            new = [x for x in node.inputs if x not in seen]
            seen.update(new)
            stack += new
    return sorted(seen, key=lambda node: node.id)


def _enter_copies(
    order: list[Node],
    recording: Recording,
    copies: dict[Node, Any],
    inputs: dict[Node, int],
    outside: list[tuple[Any, Node]],
) -> None:
    """Enter copies of the nodes that the function has made, over the leaves of outside."""
    for node in order:
        if node in copies:
            continue
        if node in inputs or node.op.immediate:
            copies[node] = node
        elif is_array(node) and node.id > recording.began:  # a constant, or another name of a tensor that lives on
            copies[node] = leaf(node.held, node.name) if recording.tensor_of(node) is None else node
        elif node.id <= recording.began:
            copies[node] = _outside(node, recording, outside)
        else:
            of = [copies[x] for x in node.inputs]
            made = node.op(*of, **node.attrs) if isinstance(node.op, (WithUpdates, Assign)) else copy_of(node, of, {})
            if isinstance(made, Node):
                made.placed_as(node)
            copies[node] = made
