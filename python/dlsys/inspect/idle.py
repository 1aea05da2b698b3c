"""Compiled functions that do nothing, which a profile compares with: what calling a kernel costs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tvm
from tvm import tirx
from tvm.target import Target

from ..kernels.build import UNCHECKED

Types = tuple[Any, ...]


def idle_functions(types: Iterable[Types], target: Target) -> dict[Types, Any]:
    """For each list of arguments' shapes and dtypes a compiled function that does nothing."""
    functions: dict[str, Any] = {}
    names: dict[Types, str] = {}
    for of in types:
        if of not in names:
            name = names[of] = f"idle_{len(names)}"
            buffers = [tirx.decl_buffer(shape, dtype, data_alignment=4) for shape, dtype in of]
            functions[name] = tirx.PrimFunc(buffers, tirx.Evaluate(0)).with_attr("global_symbol", name)
    with tvm.transform.PassContext(config=UNCHECKED):
        module = tvm.compile(tvm.IRModule(functions), target=target).mod
    return {of: module[name] for of, name in names.items()}
