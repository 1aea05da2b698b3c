"""Primitives: the operators of a graph. Each is a row of facts, and all that dlsys knows about it is there.

`primitive("tanh", numpy=np.tanh, te=compute.tanh, grad=lambda g, y, x: g * (1 - y * y))` defines an operator and
returns it: `tanh_op(x)` makes a node. This package defines its operators so, and a program its own.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import DTypeError, GraphError, ShapeError
from ..graph import FLOATS, Made, Node, Op, Shape, error_at, is_node, register, require_takes
from .replay import function
from .rules import broadcast_shapes
from .state import constant_op, is_number


class Primitive(Op):
    """An operator whose facts are a row, see `primitive`. Called with nodes it makes a node."""

    formula: Callable[..., Any] | None
    reference: Callable[..., Any]
    grad: Callable[..., Any] | None
    shape: Callable[..., Shape]
    dtype: Callable[..., str] | None
    result: str = ""

    def __init__(self, name: str, module: str, doc: str, facts: Mapping[str, Any]) -> None:
        package = __package__.rpartition(".")[0]
        facts = {"broadcasts": facts["kind"] == "elementwise" and facts["count"] != 1, **facts}
        rule = broadcast_shapes if facts["broadcasts"] else _first
        vars(self).update(facts, shape=facts["shape"] or rule, name=name, builtin=module.startswith(f"{package}."))
        self.__name__ = self.__qualname__ = f"{name}_op"
        self.__module__, self.__doc__ = module, doc
        self._beside_numbers = _beside_numbers(self)

    def of_others(self, inputs: Sequence[Any], attrs: dict[str, Any]) -> Made:
        """A node of nodes and numbers: a number takes the dtype of the node beside it. Raises GraphError for another
        input."""
        require_operands(self.name, inputs)
        return self._beside_numbers(*inputs, **attrs)

    def __repr__(self) -> str:
        return self.__name__

    def infer_shape(self, node: Node, input_shapes: list[Shape]) -> Shape:
        try:
            return self._called("shape", self.shape, node, input_shapes)
        except ShapeError as error:
            raise error_at(node, ShapeError, str(error)) from None

    def infer_dtype(self, node: Node, input_dtypes: list[str]) -> str:
        if self.dtype is None:
            common = super().infer_dtype(node, input_dtypes)
            return node.attrs.get(self.result, self.result) or common
        try:
            dtype = self._called("dtype", self.dtype, node, input_dtypes)
        except DTypeError as error:
            raise error_at(node, DTypeError, str(error)) from None
        return dtype or super().infer_dtype(node, input_dtypes)

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        """The gradient of each input, None where it is zero; of an elementwise operator in the result's shape, see
        `gradients.input_gradients`."""
        if self.grad is None:
            return [None] * len(node.inputs)
        grads = self._called("grad", self.grad, node, (output_grad, node, *node.inputs))
        each = list(grads) if isinstance(grads, (list, tuple)) else [grads]
        if len(each) != len(node.inputs) or any(not is_node(x) for x in each if x is not None):
            wanted = "a node" if len(node.inputs) == 1 else f"a tuple of {len(node.inputs)} nodes"
            raise error_at(node, GraphError, f"its grad must return {wanted}, or None where it is zero, not {grads!r}")
        return each

    def te(self, node: Node, inputs: list[Any], shape: Shape, dtype: str) -> Any:
        # an elementwise kernel takes arrays of one axis, whatever their shapes
        return self._called("te", self.formula, node, inputs, **({"shape": shape} if "shape" in node.attrs else {}))

    def numpy(self, node: Node, inputs: list[np.ndarray]) -> np.ndarray:
        with np.errstate(all="ignore"):  # infinities and NaN are results like others
            result = np.asarray(self._called("numpy", self.reference, node, inputs), order="C")
        return result if result.base is None or self.kind == "view" else result.copy()

    def _called(
        self, part: str, function: Callable[..., Any] | None, node: Node, arguments: Sequence[Any], **others: Any
    ) -> Any:
        """What a part of the row returns of these arguments and the node's attributes, of which some are `others`.
        Raises GraphError for a part that is not there, or takes other arguments."""
        if function is None:
            raise error_at(node, GraphError, self.never or f"it has no {part}")
        words = {key: value for key, value in node.attrs.items() if key != "precision"} | others
        try:
            return function(*arguments, **words)
        except TypeError:
            require_takes(node, part, function, arguments, words)
            raise


def require_operands(name: str, inputs: Sequence[Any]) -> None:
    """Raises GraphError for what is neither a node nor a number, and for numbers alone."""
    nodes = [is_node(value) for value in inputs]
    for position, value in enumerate(inputs):
        if not nodes[position] and not (any(nodes) and is_number(value)):
            raise GraphError(f"{name}: input {position} must be a node, not {type(value).__name__}")


def _beside_numbers(operator: Primitive) -> Callable[..., Made]:
    """The operator's function of nodes and numbers."""

    def apply(*inputs: Any, **attrs: Any) -> Made:
        dtype = next(value.dtype for value in reversed(inputs) if is_node(value))
        return operator(*[value if is_node(value) else constant_op(value, dtype) for value in inputs], **attrs)

    apply.__name__ = apply.__qualname__ = operator.__name__
    apply.__module__ = operator.__module__  # where pickles look for it
    return function()(apply)


def _first(shape: Shape, *others: Shape, **attrs: Any) -> Shape:
    return shape


def count_of(function: Callable[..., Any]) -> int | None:
    """How many arguments a function takes; None where that varies or is not known."""
    if isinstance(function, np.ufunc):
        return function.nin
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:  # some functions in C have no signature
        return None
    fixed = all(one.kind is one.POSITIONAL_OR_KEYWORD and one.default is one.empty for one in parameters)
    return len(parameters) if fixed else None


def primitive(
    name: str,
    *,
    numpy: Callable[..., Any],
    te: Callable[..., Any] | None = None,
    grad: Callable[..., Any] | None,
    shape: Callable[..., Shape] | None = None,
    dtype: str | Callable[..., str] = "",
    dtypes: Sequence[str] = FLOATS,
    kind: str = "elementwise",
    onnx: str = "",
    doc: str = "",
    **facts: Any,
) -> Primitive:
    """Defines an operator and returns it: called with the inputs, then attributes by keyword, it makes a node.

    Args:
        name: of the operator, in graphs and errors.
        numpy: from the inputs' arrays and the attributes to the result.
        te: the same as a TVM tensor expression; without one the operator runs in the `numpy` context alone.
        grad: from (g, y, *inputs) and the attributes to the gradient of each input, new nodes; None where it is zero. g
            is the gradient of the node y. What broadcasting repeated is summed back for elementwise operators. None for
            an operator whose gradient is zero everywhere.
        shape: from the inputs' shapes and the attributes to the result's; raises ShapeError. Without one: inputs
            broadcast if it is elementwise, else the first input's.
        dtype: of the result, or the name of the attribute that is it; without one the inputs' common dtype. Or a
            function of the inputs' dtypes, which may then differ, and the attributes, that returns it, or "" for the
            common dtype; raises DTypeError.
        dtypes: what the inputs may be.
        kind: how it uses its inputs, one of `dlsys.graph.KINDS`, see `Op.kind`.
        onnx: ONNX's operator of the same inputs and meaning.
        doc: the function's docstring.
        facts: more of what `Op` has, as `costly` or `commutative`.

    A number among the inputs takes the dtype of the node beside it. A program may define its operator again, as when a
    notebook's cell is run twice. Raises GraphError for the name of another operator and for an unknown kind or fact.
    """
    frame = sys._getframe(1)
    module = frame.f_globals.get("__name__", "__main__")  # of who defines it
    if unknown := [key for key in facts if not hasattr(Op, key)]:
        raise GraphError(f"operator {name}: an operator has no {', '.join(unknown)}")
    parts: dict[str, Any] = {"count": count_of(numpy), "reference": numpy, "formula": te, "grad": grad, "shape": shape}
    parts |= {"result": dtype, "dtype": None} if isinstance(dtype, str) else {"dtype": dtype}
    facts = {**parts, "dtypes": tuple(dtypes), "kind": kind, "onnx": onnx, **facts}
    return register(Primitive(name, module, doc, facts))
