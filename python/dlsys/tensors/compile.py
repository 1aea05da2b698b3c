"""`dl.compile`: a function of tensors, called once with variables, and then run as one program.

What the function does to tensors from outside, as an optimizer's step does, is done by the program: the function has
let a tensor name another node, and each run writes that node's value into the array that the tensor holds. So a
training step in a user's own words runs as fast as an `Executor` that was made by hand.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ..devices import Array, copied
from ..errors import GraphError
from ..graph import Handle, Node, error_at, stamp
from ..node import user_line
from ..ops import assign_op, group_op, leaf, variable
from ..ops.state import Assign, WithUpdates, is_array, present
from ..scopes import scopes
from .evaluate import array_of, changing, evaluate
from .executors import copy_of, settings
from .inplace import settled
from .structure import SETTLED, device_of

MOST_PROGRAMS = 32  # of one function: kinds of arguments, and states of what it reads outside


class CompileError(GraphError):
    """A function that `dlsys.compile` records asks for what only a run knows, or does not do the same each time."""


class Recording:
    """What a function does while it is called with variables.

    Attributes:
        began: the number of the first node that it makes.
        changed: the tensors that were assigned, and what they named before.
        grads: the tensors whose `grad` was used: what it was, and whether it was read before it was written.
        modules: the modules that were called, and whether they were training.
        before_call, each_call: what is called before each run, and after it, as a schedule's step.
        numbers: numbers for what is ordered, the same each time that the function is called.
    """

    def __init__(self) -> None:
        self.began: int = stamp()
        self.changed: dict[int, tuple[Any, Node]] = {}
        self.grads: dict[int, tuple[Any, Any, bool]] = {}
        self.modules: dict[int, tuple[Any, bool]] = {}
        self._state: set[int] = set()
        self.before_call: list[Callable[[], Any]] = []
        self.each_call: list[Callable[[], Any]] = []
        self.numbers: Iterator[int] = itertools.count()

    def changes(self, handle: Any) -> None:
        """Note that a tensor is about to be assigned."""
        before: Node | None = getattr(handle, "node", None)
        if before is not None and (before.id < self.began or id(handle) in self._state):
            self.changed.setdefault(id(handle), (handle, before))

    def keeps(self, handle: Any) -> None:
        """Take a leaf that was made within the function for state, which outlives the call."""
        self._state.add(id(handle))

    def grad_of(self, handle: Any) -> Any:
        """The tensor's `grad`, which is read."""
        self.grads.setdefault(id(handle), (handle, handle._grad, True))
        return handle._grad

    def grad_changes(self, handle: Any) -> None:
        """Note that a tensor's `grad` is about to be written."""
        self.grads.setdefault(id(handle), (handle, getattr(handle, "_grad", None), False))

    def calls(self, module: Any) -> None:
        """Note that a module is called."""
        self.modules.setdefault(id(module), (module, module.training))

    def asked(self, nodes: Any) -> CompileError:
        """The error for a value that is asked for while there is none."""
        told = f"the value of {nodes[0].name} is asked for in a compiled function, which is called without values"
        return CompileError(f"{told}: return the tensor and ask outside, or choose with where() [at {user_line()}]")

    def restore(self) -> tuple[list[tuple[Any, Node, Node]], list[tuple[Any, Any, Any, bool]]]:
        """Let all be as it was: (tensor, node before, node after), (tensor, grad before, grad after, was it read)."""
        changed = [(handle, before, handle.node) for handle, before in self.changed.values()]
        grads = [(handle, before, handle._grad, read) for handle, before, read in self.grads.values()]
        for handle, before, _ in changed:
            handle.node = before
        for handle, before, _, _ in grads:
            handle._grad = before
        return [one for one in changed if one[1] is not one[2]], grads


# Arguments and results -------------------------------------------------------------------------------------


def _flat(value: Any, found: list[Any]) -> Any:
    """The structure of a value: the number of each thing in its lists, tuples and dictionaries, which go to `found`."""
    if type(value) in (list, tuple):
        return type(value), tuple([_flat(one, found) for one in value])
    if type(value) is dict:
        return dict, tuple([(key, _flat(one, found)) for key, one in value.items()])
    found.append(value)
    return len(found) - 1


def _built(structure: Any, values: list[Any]) -> Any:
    """The value of a structure."""
    if isinstance(structure, int):
        return values[structure]
    kind, parts = structure
    if kind is dict:
        return {key: _built(part, values) for key, part in parts}
    return kind([_built(part, values) for part in parts])


def _is_input(value: Any) -> bool:
    return isinstance(value, (Handle, np.ndarray, Array, float))


def _kind_of(value: Any) -> Any:
    """What of an argument decides the program: an array's type, of a number or text the value, of an object which."""
    if isinstance(value, Handle):
        return value.node.value_type, value.node.tracks
    if isinstance(value, (np.ndarray, Array)):
        return str(value.dtype), value.shape
    if type(value) is float:
        return float
    if value is None or isinstance(value, (bool, int, str, bytes)):
        return type(value), value
    return id(value)


# Programs --------------------------------------------------------------------------------------------------


class Program:
    """What a function does, for one kind of arguments.

    Attributes:
        executor: the `Executor` of its results and assignments, which shows every stage.
    """

    def __init__(self, function: Callable[..., Any], flat: list[Any], structure: Any, arguments: list[Any]) -> None:
        self._kept = arguments  # objects whose ids are in the key
        self.is_checked = False
        self.variables: list[tuple[int, Any]] = []
        given = list(flat)
        for at, value in enumerate(flat):
            if _is_input(value):
                shape, dtype = ((), "float32") if type(value) is float else (tuple(value.shape), str(value.dtype))
                own = Handle.results.of(variable(f"input_{at}", shape, dtype))
                own.node.tracks = isinstance(value, Handle) and value.node.tracks
                self.variables.append((at, own))
                given[at] = own
        with changing:
            evaluate([])
            recording = Recording()
            with scopes.inside(recording=recording):
                try:
                    args, words = _built(structure, given)
                    returned = function(*args, **words)
                finally:
                    changed, grads = recording.restore()
            results: list[Any] = []
            self.structure: Any = _flat(returned, results)
            self.results: list[Any] = results
            self.before_call, self.each_call = recording.before_call, recording.each_call
            self._build(recording, results, changed, grads)

    def _build(self, recording: Recording, results: list[Any], changed: Any, grads: Any) -> None:
        self.guards: list[tuple[Any, bool]] = [(handle, before is None) for handle, before, _, read in grads if read]
        self.modules = list(recording.modules.values())
        copies: dict[Node, Any] = {}
        self.grads_in: list[tuple[Any, Any]] = []
        for handle, before, _, read in grads:
            if read and before is not None:
                own = _variable_of(f"{handle.name}.grad", before)
                self.grads_in.append((handle, own))
                copies[before.node] = own.node
        outputs = [value.node for value in results if isinstance(value, Handle)]
        kept = [(handle, after) for handle, before, after, read in grads if read and after is not None]
        self.grads_out = [handle for handle, _ in kept]
        self.grads_after = [
            (handle, None if after is None else _variable_of(f"{handle.name}.grad", after))
            for handle, _, after, read in grads
            if not read or after is None
        ]
        values = [after.inputs[0] if after.op is SETTLED else after for _, _, after in changed]
        wanted = [*outputs, *(grad.node for _, grad in kept), *values]
        self.types: list[tuple[Any, Any]] = []
        inputs = {own.node for _, own in self.variables}
        self.told: list[Any] = _copy_graph(wanted, recording.began, copies, inputs, self.types)
        updates = []
        for _, before, after in changed:
            if before.value_type is not after.value_type:
                told = f"{before.name} is {before.value_type}, and is assigned {after.value_type}"
                raise error_at(after, CompileError, told)
            at = _outside(before, copies, self.types)
            value = copies[after.inputs[0] if after.op is SETTLED else after]
            updates.append(assign_op(at, value))
        roots = [copies[node] for node in outputs] + [copies[grad.node] for _, grad in kept]
        self.count = len(outputs)
        from ..executor import Executor

        ctx = device_of([node for node in copies.values() if isinstance(node, Node)])
        self.executor: Any = Executor([*roots, *([group_op(updates)] if updates else [])], ctx)

    def fits(self) -> bool:
        """Whether what it reads outside is as it was when the function was called."""
        return (
            all((handle._grad is None) is none for handle, none in self.guards)
            and all(module.training is mode for module, mode in self.modules)
            and all(handle.node.value_type is kind for handle, kind in self.types)
        )

    def run(self, flat: list[Any]) -> Any:
        """The results of a call."""
        for action in self.before_call:
            action()
        feeds: dict[Any, Any] = {}
        for at, own in self.variables:
            value = flat[at]
            if type(value) is float:
                value = np.float32(value)
            feeds[own] = array_of(value) if isinstance(value, Handle) else value
        for handle, own in self.grads_in:
            feeds[own] = array_of(handle._grad)
        found = self.executor.run(feeds)
        arrays = [copied(value) for value in found[: self.count + len(self.grads_out)]]
        for handle, array in zip(self.grads_out, arrays[self.count :], strict=True):
            handle._grad = Handle.results.of(leaf(array, f"{handle.name}.grad"))
        for handle, grad in self.grads_after:
            handle._grad = grad
        for action in self.each_call:
            action()
        values = iter(arrays)
        kinds = Handle.results
        found = [kinds.of(leaf(next(values))) if isinstance(x, Handle) else x for x in self.results]
        return _built(self.structure, found)


def _variable_of(name: str, like: Any) -> Any:
    """A variable of a tensor's type."""
    return Handle.results.of(variable(name, like.shape, like.dtype))


def _outside(node: Node, copies: dict[Node, Any], types: list[tuple[Any, Any]]) -> Node:
    """The leaf that stands for a node of outside: that of its tensor, whose array each run reads, or its value."""
    if node not in copies:
        handle = None if node.owner is None else node.owner()
        if is_array(node) and handle is None:
            copies[node] = node
        elif handle is not None and handle.node is node:
            copies[node] = node if is_array(node) else settled(handle)
            types.append((handle, node.value_type))
        elif node.op.leaf:
            copies[node] = node if present(node) is node else present(node)
            types.append((handle, node.value_type))
        else:
            evaluate([node])
            copies[node] = leaf(copied(node.held), node.name)
    return copies[node]


def _copy_graph(
    wanted: list[Node], began: int, copies: dict[Node, Any], inputs: set[Node], types: list[tuple[Any, Any]]
) -> list[Any]:
    """Enter copies of the nodes that the function has made, over the leaves of outside; what it has made, as text."""
    seen, stack = set(wanted), list(wanted)
    while stack:
        node = stack.pop()
        if node.id > began and not is_array(node) and node not in copies:
            new = [x for x in node.inputs if x not in seen]
            seen.update(new)
            stack += new
    order = sorted(seen, key=lambda node: node.id)
    told = []
    made_here = [node for node in order if node.id > began and not is_array(node)]
    number = {node: at for at, node in enumerate(made_here)}
    for node in order:
        if node in copies:
            continue
        if node in inputs or node.op.immediate or (is_array(node) and node.id > began):
            copies[node] = node
        elif node.id <= began:
            _outside(node, copies, types)
        else:
            of = [copies[x] for x in node.inputs]
            made = node.op(*of, **node.attrs) if isinstance(node.op, (WithUpdates, Assign)) else copy_of(node, of, {})
            if isinstance(made, Node):
                made.placed_as(node)
            copies[node] = made
        if node.id > began and not is_array(node):
            told.append((node.op.name, repr(node.attrs), tuple([number.get(x) for x in node.inputs]), node))
    return told


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
        key = (structure, settings(), scopes.no_grad, scopes.precision, tuple(map(_kind_of, flat)))
        programs = self._programs.setdefault(key, [])
        program = next((one for one in programs if one.fits()), None)
        if program is None:
            program = Program(self._function, flat, structure, [args, words])
            self.recorded += 1
            programs.append(program)
            if sum(map(len, self._programs.values())) > MOST_PROGRAMS:
                self._programs = {key: programs}
        elif not program.is_checked:
            self._check(program, flat, structure, args, words)
        self._current = program
        return program.run(flat)

    def _check(self, program: Any, flat: list[Any], structure: Any, args: Any, words: Any) -> None:
        """At the second call: does Python say the same again? Raises CompileError."""
        again = Program(self._function, flat, structure, [args, words])
        for (name, attrs, inputs, _), (other, more, places, now) in zip(program.told, again.told, strict=False):
            if (name, attrs, inputs) != (other, more, places):
                told = f"the compiled function does something else at its second call: {other} {more} at {now.location}"
                why = "what Python counts or draws is recorded once: count in a tensor, or make it an argument"
                raise CompileError(f"{told}, first {name} {attrs}: {why}")
        if len(program.told) != len(again.told):
            raise CompileError("the compiled function does something else at its second call: it makes other operators")
        program.is_checked = True


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
