"""`dl.compile`: a function of tensors, called once with variables, and then run as one program.

What the function does to tensors from outside, as an optimizer's step does, is done by the program: the function has
let a tensor name another node, and each run writes that node's value into the array that the tensor holds. So a
training step in a user's own words runs as fast as an `Executor` that was made by hand.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ..graph import Handle
from ..scopes import scopes
from .evaluate import arrays_of, changing
from .executors import settings
from .program import Program, flat_of, kind_of
from .recording import CompileError as CompileError

MOST_PROGRAMS = 256  # of one function: kinds of arguments, and states of what it reads outside


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
        structure = flat_of((args, words), flat)
        with changing:
            if computed := [value for value in flat if isinstance(value, Handle) and value.node.held is None]:
                arrays_of(computed)
            key = (structure, settings(), scopes.no_grad, scopes.precision, tuple(map(kind_of, flat)))
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
