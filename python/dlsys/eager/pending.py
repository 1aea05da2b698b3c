"""What has not been computed yet and reads values that are about to be forgotten: it is computed before.

A Parameter keeps the value before its present one, which is enough for what is computed soon. Of what a program holds
longer, as the actions in a replay memory, the values are those of the time when they were made, as in PyTorch.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Sequence

from ..errors import DlsysError
from ..graph import FLOATS, Node
from ..ops import Parameter, before_change
from .running import evaluate

_NO_VALUE = ("assign", "group", "latest")
_busy = threading.local()


def settle(parameters: Sequence[Parameter]) -> bool:
    """Compute what the program holds of that which reads the values before the present ones of Parameters that are
    about to change; whether there was any. What cannot be computed, as it raises an error, raises it where its value
    is asked for."""
    if getattr(_busy, "now", False):
        return False
    late = _late(parameters)
    if not late:
        return False
    _busy.now = True
    try:
        for node in late:  # one by one: of each the form is met again, of so many together it would not be
            with contextlib.suppress(DlsysError):
                evaluate([node])
    finally:
        _busy.now = False
    return True


def _late(parameters: Sequence[Parameter]) -> list[Node]:
    """The nodes that something else refers to than nodes that read them, in the order in which they were made."""
    stack: list[Node] = []
    for parameter in parameters:
        if parameter._readers and parameter.dtype in FLOATS:
            stack += _readers_of_before(parameter)
    if not stack:
        return []
    seen, stack = set(stack), list(dict.fromkeys(stack))
    count = getattr(sys, "getrefcount", None)
    found = []
    while stack:
        node = stack.pop()
        if node._value is not None or node.op.name in _NO_VALUE:
            continue
        readers = node.readers()
        inner = sum(value is node for reader in readers for value in reader.inputs)
        saved = any(reader.op.name == "function" for reader in readers)  # a Function refers to what it has saved
        # Besides: `seen`, the loop's variable, and the argument of the call.
        if not readers or (count is not None and not saved and count(node) > inner + 3):
            found.append(node)
        stack.extend(reader for reader in readers if reader not in seen)
        seen.update(readers)
    return sorted(found, key=lambda node: node.id)


def _readers_of_before(parameter: Parameter) -> list[Node]:
    """The nodes that read the value before the present one. They are looked at once: the list of readers, which is in
    the order of their numbers, then begins with those of the present value."""
    readers, version, found = parameter._readers, parameter.version, []
    passed = 0
    for reader in readers:
        node = reader()
        if node is not None:
            if node.id > version:
                break
            if parameter.seen_by(node) is not None:
                found.append(node)
        passed += 1
    if passed:
        del readers[:passed]
    return found


def install() -> None:
    """Let Parameters say that they change."""
    before_change(settle)
