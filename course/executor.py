"""Part 1: a graph, its gradients, and an executor that plans its memory. To write: TODO 1 to TODO 5.

    X, W, y = variable("X"), variable("W"), variable("y")
    loss = Node("cross_entropy", X @ W, y)
    grad_W, = gradients(loss, [W])
    executor = Executor([loss, grad_W])
    loss_value, grad_value = executor.run({X: ..., W: ..., y: ...})

All values are float32.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import kernels
import numpy as np

Shape = tuple[int, ...]
ALIGNMENT = 64  # bytes: compiled kernels read whole vectors, and crash where an array begins elsewhere
_numbers = itertools.count()


class ShapeError(Exception):
    """The inputs of a node have shapes that its operator does not take. The message begins with the node's name."""


# Provided: nodes and operators -----------------------------------------------------------------------------


class Node:
    """A value of the graph: the name of an operator, the nodes that it reads, and numbers that belong to it.

    | op                     | value                                                                         |
    | ---------------------- | ----------------------------------------------------------------------------- |
    | variable               | what is fed                                                                   |
    | constant               | the number `attrs["value"]`, as an array of shape (1,)                        |
    | add, mul (a, b)        | a + b, a * b; shapes broadcast as NumPy's                                     |
    | matmul (a, b)          | the product of two matrices, each transposed first if `attrs` says so         |
    | relu (x)               | max(x, 0)                                                                     |
    | relu_gradient (x, g)   | g where x > 0, else 0; both have one shape                                    |
    | softmax (x)            | exp(x) / sum of exp(x), row by row of a matrix                                |
    | cross_entropy (x, y)   | -sum of y * log(softmax(x)) over two matrices of one shape; its shape is (1,) |
    | sum_to (g, x)          | g summed over the axes along which NumPy broadcasts x's shape to g's          |
    """

    def __init__(self, op: str, *inputs: Node, name: str = "", **attrs: Any):
        self.op, self.inputs, self.attrs = op, inputs, attrs
        self.name = name or f"{op}_{next(_numbers)}"

    def __repr__(self) -> str:
        return self.name

    def __add__(self, other: Node) -> Node:
        return Node("add", self, other)

    def __mul__(self, other: Node) -> Node:
        return Node("mul", self, other)

    def __matmul__(self, other: Node) -> Node:
        return matmul(self, other)


def variable(name: str) -> Node:
    """A value that is fed."""
    return Node("variable", name=name)


def matmul(a: Node, b: Node, trans_a: bool = False, trans_b: bool = False) -> Node:
    """The product of two matrices, each of which is transposed first if its flag says so."""
    return Node("matmul", a, b, trans_a=trans_a, trans_b=trans_b)


def _matmul_gradient(node: Node, grad: Node) -> list[Node]:
    (a, b), trans_a, trans_b = node.inputs, node.attrs["trans_a"], node.attrs["trans_b"]
    of_a = matmul(b, grad, trans_b, True) if trans_a else matmul(grad, b, False, not trans_b)
    of_b = matmul(grad, a, True, trans_a) if trans_b else matmul(a, grad, not trans_a, False)
    return [of_a, of_b]


GRADIENTS: dict[str, Callable[[Node, Node], list[Node]]] = {
    "add": lambda node, grad: [Node("sum_to", grad, x) for x in node.inputs],
    "mul": lambda node, grad: [Node("sum_to", grad * y, x) for x, y in (node.inputs, node.inputs[::-1])],
    "matmul": _matmul_gradient,
    "relu": lambda node, grad: [Node("relu_gradient", node.inputs[0], grad)],
    "cross_entropy": lambda node, grad: [
        (Node("softmax", node.inputs[0]) + Node("constant", value=-1) * node.inputs[1]) * grad
    ],
}
"""For each operator the gradients with respect to its inputs, all or the first ones. Rows of labels add up to 1."""


def gradients(output: Node, nodes: Sequence[Node]) -> list[Node]:
    """The gradients of a node of shape (1,) with respect to `nodes`, as new nodes of the graph."""
    sums = {output: Node("constant", value=1)}
    for node in reversed(topological_order([output])):
        if node in sums and node.inputs:
            for x, grad in zip(node.inputs, GRADIENTS[node.op](node, sums[node]), strict=False):
                sums[x] = sums[x] + grad if x in sums else grad
    return [sums[node] for node in nodes]


def topological_order(nodes: Iterable[Node], order: dict[Node, None] | None = None) -> list[Node]:
    """The nodes and all that they are computed from, each once and after its inputs; `order` has those before them."""
    order = {} if order is None else order
    for node in nodes:
        if node not in order:
            topological_order(node.inputs, order)
            order[node] = None
    return list(order)


# Part 1 --------------------------------------------------------------------------------------------------


def infer_shapes(order: Sequence[Node], feed_shapes: dict[Node, Shape]) -> dict[Node, Shape]:
    """The shape of each node, from those of the variables. Raises ShapeError."""
    shapes: dict[Node, Shape] = {}
    for node in order:
        if node.op == "variable" and node not in feed_shapes:
            raise ShapeError(f"{node.name} is not fed")
        leaf = tuple(feed_shapes.get(node, (1,)))
        shapes[node] = infer_shape(node, [shapes[x] for x in node.inputs]) if node.inputs else leaf
    return shapes


def infer_shape(node: Node, inputs: list[Shape]) -> Shape:
    """The shape of a node that is neither variable nor constant, from those of its inputs; `Node` has the operators.

    Raises ShapeError for shapes that the operator does not take, with the node's name and both shapes in the message.
    """
    raise NotImplementedError("TODO 1")


def lifetimes(steps: Sequence[Node], outputs: Sequence[Node]) -> dict[Node, tuple[int, int]]:
    """The first and the last step in which each node of `steps` is alive; step i computes steps[i].

    A node is alive from the step that computes it to the last that reads it. An output is alive to len(steps), as it
    outlives the run. A node that nothing reads is alive in one step, (i, i). Variables and constants are left out.
    """
    raise NotImplementedError("TODO 2")


def plan_memory(spans: dict[Node, tuple[int, int]], nbytes: dict[Node, int]) -> tuple[dict[Node, int], int]:
    """Where each value begins in one arena, in bytes, and the bytes of the arena.

    `spans` are lifetimes. Values whose spans have a step in common must not share a byte, the last step included: a
    kernel reads its inputs while it writes its output. Other values should share: no arena can be smaller than what is
    alive at the worst step, and this one should be hardly larger. Each value begins at a multiple of ALIGNMENT.
    """
    raise NotImplementedError("TODO 3")


def empty(shape: Shape) -> np.ndarray:
    """Provided: an array that begins at a multiple of ALIGNMENT, as kernels need it. Its elements are anything."""
    nbytes = 4 * math.prod(shape)
    memory = np.empty(nbytes + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    return memory[start : start + nbytes].view(np.float32).reshape(shape)


def view(arena: np.ndarray, offset: int, shape: Shape) -> np.ndarray:
    """Provided: the array of this shape that begins at byte `offset` of an arena, a 1-d array."""
    start, size = offset // 4, math.prod(shape)
    if offset % ALIGNMENT or offset < 0 or start + size > arena.size:
        raise ValueError(f"{shape} at byte {offset}: not a multiple of {ALIGNMENT}, or not in {arena.nbytes} bytes")
    return arena[start : start + size].reshape(shape)


class Executor:
    """Computes the values of `outputs`. `build(op, shapes, **attrs)` compiles the kernel of an operator for inputs of
    these shapes; a kernel is called with the arrays of its inputs, then that of its output.
    """

    def __init__(self, outputs: Iterable[Node], build: Callable[..., Callable[..., None]] = kernels.build):
        self.outputs, self.build = list(outputs), build
        self.order = topological_order(self.outputs)
        self.steps = [node for node in self.order if node.inputs]
        self.feed_shapes: dict[Node, Shape] | None = None  # for which the rest was prepared

    def prepare(self, feed_shapes: dict[Node, Shape]) -> None:
        """Does what depends on shapes alone. Sets

        self.arena: the memory of all steps' values, one array from `empty`;
        self.values: each node's array: a view of the arena for steps, one from `empty` for variables and constants;
        self.kernels: the compiled kernel of each step, in their order;
        self.feed_shapes.
        """
        raise NotImplementedError("TODO 4")

    def run(self, feed: dict[Node, np.ndarray]) -> list[np.ndarray]:
        """The outputs' values, as copies that later runs leave alone. Copies the feeds into self.values, where their
        memory is aligned; a feed that no output needs is not read. Prepares again only if a feed's shape is new."""
        raise NotImplementedError("TODO 5")
