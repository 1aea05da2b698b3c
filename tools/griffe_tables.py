"""An extension of griffe, which reads the sources for the site: a function that a table makes, `exp_op = unary("exp",
"exp(node); ...", ...)`, has the documentation that the table gives it."""

from __future__ import annotations

import ast
from typing import Any

import griffe

TABLES = {"unary", "binary", "comparison", "by_const"}  # of `dlsys.ops.family`


class Tables(griffe.Extension):
    """Documents attributes of modules whose value is a call of one of TABLES."""

    def on_attribute_instance(self, *, node: Any, attr: griffe.Attribute, agent: Any, **kwargs: Any) -> None:
        """Called with each attribute and the assignment that made it."""
        call = getattr(node, "value", None)
        if isinstance(call, ast.Call) and getattr(call.func, "id", "") in TABLES and len(call.args) > 1:
            told = call.args[1]
            if isinstance(told, ast.Constant) and isinstance(told.value, str):
                attr.docstring = griffe.Docstring(told.value, parent=attr)
                attr.value = attr.annotation = None
