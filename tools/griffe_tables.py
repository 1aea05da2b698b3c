"""An extension of griffe, which reads the sources for the site: a function that a row makes, `exp_op =
primitive("exp", ..., doc="exp(x); ...")` or `log2 = _of_floats("log2", ..., doc="...")`, has the documentation that the
row gives it."""

from __future__ import annotations

import ast
from typing import Any

import griffe


class Tables(griffe.Extension):
    """Documents attributes of modules whose value is a call with the argument `doc`."""

    def on_attribute_instance(self, *, node: Any, attr: griffe.Attribute, agent: Any, **kwargs: Any) -> None:
        """Called with each attribute and the assignment that made it."""
        call = getattr(node, "value", None)
        if isinstance(call, ast.Call):
            for word in call.keywords:
                if word.arg == "doc" and isinstance(word.value, ast.Constant):
                    attr.docstring = griffe.Docstring(ast.literal_eval(word.value), parent=attr)
                    attr.value = attr.annotation = None
