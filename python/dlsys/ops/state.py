"""Leaves of a graph: variables, which are fed, numbers beside nodes, and nodes that hold arrays; and what evaluators
take out of a graph: assignments, which change leaves at the end of a run, and gradients that a composition states."""

from __future__ import annotations

import numbers
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar

import numpy as np

from .. import compute
from ..checks import flag
from ..devices import Array, Context, array, cpu, to_array
from ..errors import DTypeError, GraphError
from ..graph import (
    DTYPES,
    FLOATS,
    Handle,
    Made,
    Node,
    Op,
    Shape,
    Type,
    error_at,
    is_node,
    register,
    shape_error,
    type_of,
)
from ..hooks import hooks
from .rules import dtype_attribute, real_constant, require_constant, shape_attribute

# Variables and numbers -------------------------------------------------------------------------------------


class Placeholder(Op):
    """A value that `Executor.run` is fed. It may declare its shape and dtype."""

    name = "placeholder"
    variable = True
    never = "a variable has no value but the one it is fed"

    def type_of(self, node: Node) -> Type | None:
        """The declared type; None where a part of it is not declared."""
        shape, dtype = node.attrs["shape"], node.attrs["dtype"]
        return None if shape is None or dtype is None else type_of(shape, dtype)

    def te(self, node: Node, inputs: list[Any], shape: Shape, dtype: str) -> Any:
        return compute.placeholder(shape, dtype, node.name)


class Constant(Op):
    """The number `attrs["value"]` in the dtype `attrs["dtype"]`, that of what it stands beside; of shape ()."""

    name = "constant"
    constant = immediate = True
    never = "a number stands in the code of what reads it"

    def infer_shape(self, node: Node, input_shapes: list[Shape]) -> Shape:
        return ()


PLACEHOLDER, CONSTANT = register(Placeholder()), register(Constant())


def placeholder(name: str | None = None, shape: Any = None, dtype: Any = None) -> Node:
    """A variable; see `variable`."""
    if name is not None and not isinstance(name, str):
        raise GraphError(f"placeholder: the name must be text, not {type(name).__name__}")
    if shape is not None:
        shape = shape_attribute("placeholder", shape)
    if dtype is not None:
        dtype = dtype_attribute("placeholder", dtype)
    return Node(PLACEHOLDER, [], {"shape": shape, "dtype": dtype}, name)


def variable(name: str, shape: Any = None, dtype: Any = None) -> Node:
    """A value that is fed to `Executor.run`.

    Args:
        name: for printing and errors; need not be unique.
        shape: the shape it will be fed with, an int or a tuple; None where feeds may differ.
        dtype: one of `dlsys.graph.DTYPES`, as "float32" or "int64"; None for what is fed.

    Raises GraphError for a name that is no text, and for a shape or dtype that is none.
    """
    if not isinstance(name, str):
        raise GraphError(f"Variable: the name must be text, not {type(name).__name__}")
    return placeholder(name, shape, dtype)


def variable_of(known: Type | None, name: str) -> Node:
    """A variable of a type; of none where it depends on what is fed."""
    return Node(PLACEHOLDER, [], {"shape": known and known.shape, "dtype": known and known.dtype}, name)


def constant_op(value: Any, dtype: str = "float32") -> Node:
    """A number as an operand, in the dtype of the other one.

    Raises GraphError for what is no real number, DTypeError for one that the dtype does not hold."""
    if type(value) is float and dtype in FLOATS:  # as mostly
        return Node(CONSTANT, [], {"value": value, "dtype": dtype}, repr(value))
    number = bool(value) if isinstance(value, (bool, np.bool_)) else real_constant("constant", value)
    if dtype == "bool" and not isinstance(number, bool):
        raise DTypeError(f"constant: {number:g} is not a boolean, as the other operand is")
    require_constant("constant", number, dtype, "the other operand")
    return Node(CONSTANT, [], {"value": number, "dtype": dtype}, repr(number))


MOST_CONSTANTS = 1 << 12
_constants: dict[tuple[Any, type, str], Node] = {}


def constant_beside_tensor(value: float, dtype: str) -> Node:
    """`constant_op` for the graphs of a loop, which makes them anew at each step: one node for all equal numbers."""
    node = _constants.get((value, type(value), dtype))
    if node is None:
        node = constant_op(value, dtype)
        if len(_constants) < MOST_CONSTANTS and value and value == value:  # -0.0 == 0.0, and NaN is not equal to itself
            _constants[value, type(value), dtype] = node
    return node


def is_number(value: Any) -> bool:
    """Whether the value is one real number, which takes the dtype of what it meets."""
    if isinstance(value, np.ndarray):
        return value.ndim == 0 and value.dtype.kind in "biuf"
    return isinstance(value, (numbers.Real, np.bool_))

# Leaves that hold arrays -----------------------------------------------------------------------------------


class ParameterOp(Op):
    """A leaf: the node holds its value. `attrs["roams"]`: whether it moves to the device that uses it, and does not
    decide where others are computed. `attrs["shared"]`: whether what it is given is written in its memory, which a
    library or program shares."""

    name = "parameter"
    leaf = True
    never = "a parameter's value is given, not computed"


PARAMETER = register(ParameterOp())


def leaf(value: Any, name: str | None = None, **attrs: Any) -> Node:
    """A node that holds data, in the value's own memory where that can be: that of an Array, else on the CPU. Raises
    DTypeError for an array of a dtype that is none of `dlsys.graph.DTYPES`."""
    held = value if isinstance(value, Array) else to_array(value, cpu())
    if held.dtype not in DTYPES:
        raise DTypeError(f"tensor: dtype {held.dtype} is not one of {', '.join(DTYPES)}")
    made = Node(PARAMETER, [], {"shape": held.shape, "dtype": held.dtype, **attrs}, name)
    made.held = held
    return made


def is_array(node: Node) -> bool:
    """Whether the node is a leaf that holds an array, and no value that was assigned."""
    return node.op.leaf and not node.inputs


def present(node: Node) -> Node:
    """The leaf whose array stands for a leaf in a run: that which its handle names by now, else itself. What was
    assigned, or computed, since is computed first."""
    handle = None if node.owner is None else node.owner()
    if handle is not None:
        return handle.node if is_array(handle.node) else hooks.settled(handle)
    return node if node.held is not None else hooks.settled(node)


def give(node: Node, value: Array) -> None:
    """Let a leaf's handle name a leaf of a new array; a leaf that none names holds it."""
    handle = None if node.owner is None else node.owner()
    if handle is None:
        node.held = value
    else:
        handle.hold(value)


def array_on(node: Node, ctx: Context) -> Any:
    """The array that stands for a leaf in a run, on `ctx`: it moves there if it lies elsewhere. For the `numpy` context
    an `np.ndarray`, to read."""
    node = present(node)
    held = node.held
    if ctx.kind == "numpy":
        return np.asarray(held)
    if held.context is not ctx:
        if held.context != ctx:
            node.held = held = array(held, ctx)
        held.context = ctx  # the same object next time: comparing two takes longer than all else here
    return held

# State -----------------------------------------------------------------------------------------------------


class State(Op):
    """An operator that is taken out of a graph before it is computed: its value is that of input number `value`; None
    of a group."""

    value: ClassVar[int | None] = 0
    dtypes = DTYPES
    never = "state changes as a graph is evaluated: see `dlsys.compiler.analyse`"


class Assign(State):
    """The value, which the parameter takes at the end of the run: (parameter, value) -> value."""

    name = "assign"
    value = 1

    def infer_shape(self, node: Node, input_shapes: list[Shape]) -> Shape:
        if input_shapes[0] != input_shapes[1]:
            parameter = node.inputs[0].name
            raise shape_error(node, f"{parameter} has shape {input_shapes[0]}, the value {input_shapes[1]}")
        return input_shapes[1]

    def infer_dtype(self, node: Node, input_dtypes: list[str]) -> str:
        if input_dtypes[0] != input_dtypes[1]:
            parameter = node.inputs[0].name
            raise error_at(node, DTypeError, f"{parameter} is {input_dtypes[0]}, the value {input_dtypes[1]}")
        return input_dtypes[1]

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        return [None, output_grad]


class Group(State):
    """Nodes evaluated together; it has no value itself, `run` returns None for it."""

    name = "group"
    value = None

    def infer_shape(self, node: Node, input_shapes: list[Shape]) -> Shape:
        return (0,)

    def infer_dtype(self, node: Node, input_dtypes: list[str]) -> str:
        return "float32"

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        raise error_at(node, GraphError, "a group has no value, so no gradient")


class WithUpdates(State):
    """(x, assignments...) -> x; whoever evaluates it evaluates the assignments too.

    For what changes state as it computes, as running means and counters of random numbers.
    """

    name = "with_updates"

    def infer_dtype(self, node: Node, input_dtypes: list[str]) -> str:
        return input_dtypes[0]

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        return [output_grad, *[None] * (len(node.inputs) - 1)]

    def replacement(self, node: Node) -> Node | None:
        return node.inputs[0] if len(node.inputs) == 1 else None


class Latest(State):
    """A parameter's value as the assignments left it that were made before this node and belong to the same run; its
    own where there are none."""

    name = "latest"


class WithGradient(Op):
    """(y, inputs...) -> y; its gradient is stated, see `with_gradient`. Nothing is computed for it: y replaces it once
    shapes are known."""

    name = "with_gradient"
    dtypes = DTYPES
    broadcasts = True

    def type_of(self, node: Node) -> Type | None:
        return node.inputs[0].value_type

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        attrs = {key: value for key, value in node.attrs.items() if key != "rule"}
        grads = node.attrs["rule"](output_grad, node, *node.inputs[1:], **attrs)
        return [None, *(grads if isinstance(grads, (list, tuple)) else (grads,))]

    def differentiated(self, node: Node) -> Sequence[Node]:
        wanted = node.attrs.get("wanted")
        return node.inputs[1:] if wanted is None else node.inputs[1 : 1 + wanted]

    def replacement(self, node: Node) -> Node:
        return node.inputs[0]


ASSIGN, GROUP, WITH_UPDATES = register(Assign()), register(Group()), register(WithUpdates())
LATEST, WITH_GRADIENT = register(Latest()), register(WithGradient())


def with_gradient(y: Node, inputs: Sequence[Node], rule: Callable[..., Any], **attrs: Any) -> Made:
    """y, a composition of `inputs`, whose gradient is that which `rule` states, not that of the composition.

    `rule(g, y, *inputs, **attrs)` returns the gradient of each input, None where it is zero, of one input without a
    tuple; what broadcasting repeated is summed back. It may read y, the node itself, so that the gradient of a gradient
    is stated too. An attribute `wanted` says how many of the inputs have a gradient. The rule is a function of a
    module, and the attributes are hashable: the structure of a graph, which has both, is a key of caches.
    """
    return WITH_GRADIENT(y, *inputs, rule=rule, **attrs)


def assign_op(parameter: Node, node: Node, each_run: bool = False) -> Made:
    """A node that has `node`'s value, and gives it to the parameter at the end of a run that evaluates it.

    All reads in that run, also those of other assignments, see the old value. Raises GraphError for a first argument
    that is no Parameter; at the run, ShapeError and DTypeError where the value does not fit, and GraphError where
    two assignments to one parameter meet. `each_run`: whether it is for what runs again and again, an Executor, and not
    for values on demand.
    """
    if isinstance(parameter, Handle) and not (parameter.op.leaf or parameter.is_open or parameter.node.tracks):
        hooks.settled(parameter)
    if not is_node(parameter) or not parameter.op.leaf:
        raise GraphError(f"assign: the first argument must be a Parameter, not {parameter!r}")
    attrs = {"each_run": True} if flag("assign", "each_run", each_run) else {}
    return ASSIGN(parameter, node, **attrs)


def group_op(nodes: Sequence[Node]) -> Made:
    """A node whose evaluation evaluates all of `nodes`, for their assignments; `run` returns None for it. Raises
    GraphError for what is no list of nodes."""
    if is_node(nodes) or isinstance(nodes, np.ndarray) or not isinstance(nodes, Iterable):
        raise GraphError(f"group: takes a list of nodes, not {type(nodes).__name__}")
    return GROUP(*nodes)
