"""Primitives: what a graph is made of. Each is a row of facts, and all that dlsys knows about it is there.

`primitive("tanh", numpy=np.tanh, te=compute.tanh, grad=lambda g, y, x: g * (1 - y * y))` defines an operator and
returns the function that makes its nodes. So are those of this package defined, and a program defines its own so.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from ..errors import DTypeError, GraphError, ShapeError
from ..graph import FLOATS, KINDS, OPS, Made, Node, Op, Shape, error_at, require_takes, require_value
from ..hooks import hooks
from ..scopes import scopes
from .inputs import constant_op, is_number
from .replay import function
from .rules import broadcast_shapes

Row = Callable[..., Made]
"""The function of an operator's nodes, see `primitive`."""

OfNode: TypeAlias = Callable[..., Made]
"""The function of an operator of one node."""
OfNodes: TypeAlias = Callable[[Any, Any], Made]
"""That of an operator of two nodes, of which one may be a number."""


class Primitive(Op):
    """An operator whose facts are a row, see `primitive`."""

    count: int | None
    formula: Callable[..., Any] | None
    reference: Callable[..., Any]
    grad: Callable[..., Any] | None
    shape: Callable[..., Shape] | None
    dtype: Callable[..., str] | None
    result: str = ""

    def __init__(self, name: str, module: str, facts: Mapping[str, Any]) -> None:
        package = __package__.rpartition(".")[0]
        facts = {"broadcasts": facts["kind"] == "elementwise" and facts["count"] != 1, **facts}
        vars(self).update(facts, name=name, module=module, builtin=module.startswith(f"{package}."))

    def __call__(self, inputs: Sequence[Node], attrs: dict[str, Any] | None = None, name: str | None = None) -> Made:
        """A new node that applies the operator. Raises GraphError for an input that is no node, and for an attribute of
        a program's own operator that cannot be told from others by its text."""
        for position, value in enumerate(inputs):
            if not isinstance(value, Node):
                raise GraphError(f"{self.name}: input {position} must be a node, not {type(value).__name__}")
        return self.applied(inputs, {} if attrs is None else attrs, name)

    def applied(self, inputs: Sequence[Node], attrs: dict[str, Any], name: str | None = None) -> Made:
        """As a call, of inputs that are nodes."""
        own = len(attrs) - ("precision" in attrs) if attrs else 0
        if self.count is not None and len(inputs) + own != self.count:
            raise GraphError(f"{self.name}: takes {self.count - own} nodes, not {len(inputs)}")
        if self.kind == "contraction" and scopes.precision is not None:
            attrs = {"precision": scopes.precision, **attrs}
        if attrs and not self.builtin:
            for key, value in attrs.items():
                require_value(f"{self.name}: the attribute {key}", value)
        return hooks.make_node(self, list(inputs), attrs, name)

    make = __call__

    def infer_shape(self, node: Node, input_shapes: list[Shape]) -> Shape:
        rule = self.shape or (broadcast_shapes if self.broadcasts else _first)
        words = arguments_of(node) if self.shape else {}
        try:
            return rule(*input_shapes, **words)
        except ShapeError as error:
            raise error_at(node, ShapeError, str(error)) from None
        except TypeError:
            require_takes(node, "shape", rule, input_shapes, words)
            raise

    def infer_dtype(self, node: Node, input_dtypes: list[str]) -> str:
        if self.dtype is None:
            common = super().infer_dtype(node, input_dtypes)
            return node.attrs.get(self.result, self.result) or common
        try:
            dtype = self.dtype(*input_dtypes, **arguments_of(node))
        except DTypeError as error:
            raise error_at(node, DTypeError, str(error)) from None
        except TypeError:
            require_takes(node, "dtype", self.dtype, input_dtypes, arguments_of(node))
            raise
        return dtype or super().infer_dtype(node, input_dtypes)

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        """The gradient of each input, None where it is zero; of an elementwise operator in the result's shape, see
        `gradients.input_gradients`."""
        if self.grad is None:
            return [None] * len(node.inputs)
        arguments = output_grad, node, *node.inputs
        try:
            grads = self.grad(*arguments, **arguments_of(node))
        except TypeError:
            require_takes(node, "grad", self.grad, arguments, arguments_of(node))
            raise
        found = list(grads) if isinstance(grads, (list, tuple)) else [grads]
        if len(found) != len(node.inputs) or any(not isinstance(x, Node) for x in found if x is not None):
            wanted = "a node" if len(node.inputs) == 1 else f"a tuple of {len(node.inputs)} nodes"
            raise error_at(node, GraphError, f"its grad must return {wanted}, or None where it is zero, not {grads!r}")
        return found

    def te(self, node: Node, inputs: list[Any], shape: Shape, dtype: str) -> Any:
        attrs = arguments_of(node)
        if "shape" in attrs:  # an elementwise kernel takes arrays of one axis, whatever their shapes
            attrs = {**attrs, "shape": shape}
        return self._computed("te", node, inputs, attrs)

    def numpy(self, node: Node, inputs: list[np.ndarray]) -> np.ndarray:
        with np.errstate(all="ignore"):  # infinities and NaN are results like others
            result = np.asarray(self._computed("numpy", node, inputs, arguments_of(node)), order="C")
        return result if result.base is None or self.kind == "view" else result.copy()

    def _computed(self, part: str, node: Node, inputs: list[Any], attrs: Mapping[str, Any]) -> Any:
        """The formula or the reference, applied to the inputs."""
        applied = self.formula if part == "te" else self.reference
        if applied is None:
            raise error_at(node, GraphError, self.never or f"it has no {part}")
        try:
            return applied(*inputs, **attrs)
        except TypeError:
            require_takes(node, part, applied, inputs, attrs)
            raise


def _first(shape: Shape, *others: Shape) -> Shape:
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


def arguments_of(node: Node) -> dict[str, Any]:
    """The attributes that a primitive's parts take."""
    attrs = node.attrs
    return {key: value for key, value in attrs.items() if key != "precision"} if "precision" in attrs else attrs


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
) -> Row:
    """Defines an operator; returns the function of its nodes, which takes the inputs, then attributes by keyword.

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
    if kind not in KINDS:
        raise GraphError(f"operator {name}: its kind {kind!r} is not one of {', '.join(KINDS)}")
    if unknown := [key for key in facts if not hasattr(Op, key)]:
        raise GraphError(f"operator {name}: an operator has no {', '.join(unknown)}")
    parts: dict[str, Any] = {"count": count_of(numpy), "reference": numpy, "formula": te, "grad": grad, "shape": shape}
    parts |= {"result": dtype, "dtype": None} if isinstance(dtype, str) else {"dtype": dtype}
    operator = Primitive(name, module, {**parts, "dtypes": tuple(dtypes), "kind": kind, "onnx": onnx, **facts})
    before = OPS.get(name)
    if before is not None:
        owner = getattr(before, "module", type(before).__module__)
        if operator.builtin or owner != module:
            raise GraphError(f"operator {name} exists already, in {owner}: give the one of {module} another name")
        operator.edition = before.edition + 1
    OPS[name] = operator

    def apply(*inputs: Any, **attrs: Any) -> Made:
        for value in inputs:
            if not isinstance(value, Node):
                are_operands = all(isinstance(one, Node) or is_number(one) for one in inputs)
                return beside_numbers(*inputs, **attrs) if are_operands else operator(inputs, attrs)
        return operator.applied(inputs, attrs)

    def beside_numbers(*inputs: Any, **attrs: Any) -> Made:
        like = next((value for value in reversed(inputs) if isinstance(value, Node)), None)
        if like is None:
            return operator(inputs, attrs)
        return operator([constant_op(x, like.dtype) if is_number(x) else x for x in inputs], attrs)

    for made in (apply, beside_numbers):
        made.__name__ = made.__qualname__ = f"{name}_op"
        made.__module__, made.__doc__ = module, doc  # where pickles look for it
    beside_numbers = function()(beside_numbers)
    return apply
