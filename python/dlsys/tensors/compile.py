"""`dl.compile`: a function of tensors, called once with variables, and then run as one program.

What the function does to tensors from outside, as an optimizer's step does, is done by the program: the function has
let a tensor name another node, and each run writes that node's value into the array that the tensor holds. So a
training step in a user's own words runs as fast as an `Executor` that was made by hand.
"""

from __future__ import annotations

import functools
import itertools
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from ..devices import Array, copied, cpu
from ..errors import GraphError
from ..graph import Handle, Node, error_at, stamp
from ..node import user_line
from ..ops import assign_op, group_op, leaf
from ..ops.state import PLACEHOLDER, Assign, WithUpdates, is_array, present
from ..scopes import scopes
from .evaluate import array_of, arrays_of, changing, evaluate
from .executors import arena_of, copy_of, settings
from .inplace import hold, settled
from .structure import SETTLED, device_of

MOST_PROGRAMS = 256  # of one function: kinds of arguments, and states of what it reads outside
MOST_RECORDED = 2  # different programs of one kind of arguments, one after the other, until two calls agree


class CompileError(GraphError):
    """A function that `dlsys.compile` records asks for what only a run knows, or does not do the same each time."""


class Recording:
    """What a function does while it is called with variables.

    Attributes:
        began: the number of the first node that it makes.
        changed: the tensors that were assigned, and what they named before.
        grads: the tensors whose `grad` was used: what it was, and whether it was read before it was written.
        settings: what of Python decides the program: (object, attribute, value), as whether a module is training.
        values: the nodes of outside whose values were read: their tensors, and the arrays as they were.
        state: the tensors that were made within the function, and outlive the call.
        streams: the numbers of the random streams, in the order in which they were asked for.
        before_call, each_call: what is called before each run, and after it, as a schedule's step.
        numbers: numbers for what is ordered, the same each time that the function is called.
    """

    def __init__(self, streams: list[int]) -> None:
        """`streams`: those of an earlier recording of the same program, which this one takes again."""
        self.began: int = stamp()
        self.changed: dict[int, tuple[Any, Node]] = {}
        self.grads: dict[int, tuple[Any, Any, bool]] = {}
        self.settings: dict[tuple[int, str], tuple[Any, str, Any]] = {}
        self.values: dict[Node, tuple[Any, Array, int]] = {}
        self.state: dict[int, Any] = {}
        self.streams = streams
        self._taken = 0
        self.before_call: list[Callable[[], Any]] = []
        self.each_call: list[Callable[[], Any]] = []
        self.numbers: Iterator[int] = itertools.count()

    def changes(self, handle: Any) -> None:
        """Note that a tensor is about to be assigned."""
        before: Node | None = getattr(handle, "node", None)
        if before is not None and (before.id < self.began or id(handle) in self.state):
            self.changed.setdefault(id(handle), (handle, before))

    def keeps(self, handle: Any) -> None:
        """Take a leaf that was made within the function for state, which outlives the call."""
        self.state[id(handle)] = handle

    def tensor_of(self, node: Node) -> Any:
        """The tensor of a node which was there before the function was called, or is state that the function has made;
        None where there is none, or it has been assigned what the node holds."""
        handle = _owner(node)
        lives = handle is not None and (handle.node.id < self.began or id(handle) in self.state)
        return handle if lives and (node.id < self.began or handle.node.held is node.held) else None

    def reads(self, node: Node) -> None:
        """Note that a value is read: it is part of the program, which another value compiles anew."""
        if node.id < self.began:
            self.values[node] = _owner(node), node.held, node.held.written

    def stream(self, new: Callable[[], int]) -> int:
        """The number of the next random stream."""
        if self._taken == len(self.streams):
            self.streams.append(new())
        self._taken += 1
        return self.streams[self._taken - 1]

    def grad_of(self, handle: Any) -> Any:
        """The tensor's `grad`, which is read."""
        self.grads.setdefault(id(handle), (handle, handle._grad, True))
        return handle._grad

    def grad_changes(self, handle: Any) -> None:
        """Note that a tensor's `grad` is about to be written."""
        self.grads.setdefault(id(handle), (handle, getattr(handle, "_grad", None), False))

    def depends(self, owner: Any, attribute: str) -> None:
        """Note that an object's attribute decides the program, which another value compiles anew."""
        self.settings.setdefault((id(owner), attribute), (owner, attribute, getattr(owner, attribute)))

    def asked(self, nodes: Any) -> CompileError:
        """The error for a value that is asked for while there is none."""
        told = f"the value of {nodes[0].name} is asked for in a compiled function, which is called without values"
        return CompileError(f"{told}: return the tensor and ask outside, or choose with where() [at {user_line()}]")

    def goes_outside(self, node: Node) -> CompileError:
        """The error for gradients that would go through what was computed outside."""
        told = f"{node.name} was computed outside of the compiled function (at {node.location})"
        return CompileError(f"{told}: compute it inside, or detach() it, or call backward() outside [at {user_line()}]")

    def restore(self) -> tuple[list[tuple[Any, Node, Node]], list[tuple[Any, Any, Node | None, bool]]]:
        """Let all be as it was: (tensor, node before, node after), (tensor, grad before, node of grad after, was it
        read)."""
        changed = [(handle, before, handle.node) for handle, before in self.changed.values()]
        grads = [
            (handle, before, None if handle._grad is None else handle._grad.node, read)
            for handle, before, read in self.grads.values()
        ]
        for handle, before, _ in changed:
            handle.name_node(before)
        for handle, before, _, _ in grads:
            handle._grad = before
        same = [old is new or (new.held is not None and new.held is old.held) for _, old, new in changed]
        return [one for one, is_same in zip(changed, same, strict=True) if not is_same], grads


# Arguments and results -------------------------------------------------------------------------------------


def _flat(value: Any, found: list[Any]) -> Any:
    """The structure of a value: the number of each thing in its lists, tuples and dictionaries, which go to `found`; a
    tensor that is there twice has one number."""
    if type(value) in (list, tuple) or hasattr(value, "_fields"):
        return type(value), tuple([_flat(one, found) for one in value])
    if type(value) in (dict, OrderedDict):
        return type(value), tuple([(key, _flat(one, found)) for key, one in value.items()])
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


def _kind_of(value: Any) -> Any:
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


def _owner(node: Node) -> Any:
    """The tensor that names a node, or named it last; None where there is none."""
    return None if node.owner is None else node.owner()


# Programs --------------------------------------------------------------------------------------------------


class Program:
    """What a function does, for one kind of arguments.

    Attributes:
        executor: the `Executor` of its results and assignments, which shows every stage.
    """

    def __init__(self, function: Callable[..., Any], flat: list[Any], structure: Any, streams: list[int]) -> None:
        """`streams`: see `Recording`."""
        self._kept = [value for value in flat if isinstance(_kind_of(value), int)]  # objects whose ids are in the key
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
                self.structure: Any = _flat(function(*args, **words), self.results)
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
    handle = _owner(node)
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


class CompiledFunction:
    """What `dlsys.compile` returns: called as the function.

    Attributes:
        executor: the `Executor` of the latest call; None before the first.
        recorded: how often the function was called with variables.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function)
        self._function = function
        self._programs: dict[Any, list[Program]] = {}
        self._current: Program | None = None
        self.recorded = 0

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    @property
    def executor(self) -> Any:
        """The `Executor` of the latest call, which shows every stage; None before the first."""
        return None if self._current is None else self._current.executor

    def __call__(self, *args: Any, **words: Any) -> Any:
        """The function's results. Raises `CompileError` for what a program cannot do, and what the operators raise."""
        if scopes.recording is not None:
            return self._function(*args, **words)
        flat: list[Any] = []
        structure = _flat((args, words), flat)
        with changing:
            if computed := [value for value in flat if isinstance(value, Handle) and value.node.held is None]:
                arrays_of(computed)
            key = (structure, settings(), scopes.no_grad, scopes.precision, tuple(map(_kind_of, flat)))
            programs = self._programs.setdefault(key, [])
            program = next((one for one in programs if one.fits()), None)
            if program is None:
                program = Program(self._function, flat, structure, [])
                self.recorded += 1
                programs.append(program)
                if sum(map(len, self._programs.values())) > MOST_PROGRAMS:
                    del self._programs[next(iter(self._programs))]  # the oldest
            elif not program.is_checked:
                again = Program(self._function, flat, structure, program.streams)
                program.is_checked = again.told == program.told
                if not program.is_checked:
                    again.follows(program)
                    self.recorded += 1
                    programs[programs.index(program)] = program = again
            self._current = program
            return program.run(flat)


def compile(function: Callable[..., Any]) -> Any:
    """A function of tensors as one program, also as a decorator: it is called once for each kind of arguments, with
    variables, and what it computes and assigns is compiled.

    ```python
    @dl.compile
    def step(x, y):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss
    ```

    Tensors, arrays and floats among the arguments are inputs; other things are part of the program, which another value
    compiles anew. Tensors of outside are read as they are at each call. Raises `CompileError` where the function asks
    for a value (`if loss.item() > 1`), and where it does something else at its second call.
    """
    return CompiledFunction(function)
