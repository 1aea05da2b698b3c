"""Writes the stubs that type checkers and editors read, `python tools/stubs.py`: of the public names, which
`dlsys/__init__.py` loads at first use, and of tensors' methods, which are functions of `dlsys.tensors.table`."""

from __future__ import annotations

import inspect
import re
import textwrap
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dlsys
from dlsys.tensors import table

PACKAGE = Path(__file__).resolve().parent.parent / "python" / "dlsys"
WIDTH = 120
TOLD = '"""{}. `tools/stubs.py` writes this file."""\n\n'
IMPORTS = {
    "collections.abc": "Sequence", "typing": "Any Literal Unpack overload", "numpy": "np", "..graph": "Handle Node",
    ".base": "Tensor", ".creation": "Options", ".typing": "ArrayLike Axis Device DType Extremum Index Nested Size",
}  # fmt: skip
"""What annotations of functions may name, by modules."""


def of_names() -> str:
    """`__init__.pyi`."""
    lines = [f"from {module or '.'} import {name} as {name}" for name, module in dlsys.PUBLIC.items()]
    lines.insert(lines.index("from . import autodiff as autodiff"), "")
    lines += ["", "__version__: str", "__all__: list[str]"]
    lines += [f"{name} = {value!r}" for name, value in dlsys.CONSTANTS.items()]
    return TOLD.format("The public names: where each is from") + "\n".join(lines) + "\n"


def of_method(name: str, function: Callable[..., Any]) -> list[str]:
    """The lines of one method: its signature, or its overloads."""
    several, lines = typing.get_overloads(inspect.unwrap(function)), list[str]()
    for one in several or [function]:
        signature = inspect.signature(one)
        first, *others = signature.parameters.values()
        shown = [first.replace(name="self", annotation=first.empty, kind=first.POSITIONAL_OR_KEYWORD), *others]
        for numpys, word in {} if several else table.NUMPYS.items():
            ours = signature.parameters.get(word)
            if ours is not None and ours.default is not ours.empty:
                shown.append(ours.replace(name=numpys, kind=ours.KEYWORD_ONLY))
        shown = [one if one.default is one.empty else one.replace(default=...) for one in shown]
        text = str(signature.replace(parameters=shown)).replace("'", "").replace("Ellipsis", "...")
        line = f"    def {name}{text}: ..."
        if len(line) > WIDTH:
            before, _, rest = line.partition("(")
            inner, _, after = rest.rpartition(") -> ")
            line = f"{before}(\n{textwrap.indent(textwrap.fill(inner, WIDTH - 8), ' ' * 8)}\n    ) -> {after}"
        lines += ["    @overload", line] if several else [line]
    return lines


def of_methods() -> str:
    """`tensors/methods.pyi`."""
    lines = [line for name, function in table.TABLE.items() for line in of_method(name, function)]
    used = set(re.findall(r"\w+", "\n".join(["Handle", *lines])))
    imports = []
    for module, names in IMPORTS.items():
        if known := ", ".join(name for name in names.split() if name in used):
            imports += ["", "import numpy as np", ""] if module == "numpy" else [f"from {module} import {known}"]
    head = ["", "class Methods(Handle):", '    """Functions of a tensor as its methods."""', "    __slots__ = ()"]
    return TOLD.format("Tensors' methods") + "\n".join([*imports, *head, *lines]) + "\n"


STUBS = {"__init__.pyi": of_names, "tensors/methods.pyi": of_methods}


def main() -> None:
    """Writes the stubs."""
    for name, written in STUBS.items():
        (PACKAGE / name).write_text(written(), encoding="utf-8")


if __name__ == "__main__":
    main()
