"""Gradients compared with differences of values, as by `torch.autograd.gradcheck`."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..autodiff import Node, Parameter, gradients, mul_op
from ..errors import DlsysError, GraphError
from ..graph import FLOATS
from ..ops import dtype_of, shape_of
from .creation import leaf
from .leaves import tensor
from .mode import enable_grad
from .running import evaluate, leaves_that_require_grad


class GradcheckError(DlsysError, RuntimeError):
    """A gradient that is not that of the function."""


def gradcheck(
    func: Callable[..., Any],
    inputs: Any,
    *,
    eps: float = 1e-6,
    atol: float = 1e-5,
    rtol: float = 1e-3,
    raise_exception: bool = True,
    nondet_tol: float = 0.0,
    check_undefined_grad: bool = True,
    check_grad_dtypes: bool = False,
    check_batched_grad: bool = False,
    check_batched_forward_grad: bool = False,
    check_forward_ad: bool = False,
    check_backward_ad: bool = True,
    fast_mode: bool = False,
    masked: bool | None = None,
) -> bool:
    """Whether the gradients of the function's outputs, by each input that requires one, are what central differences
    of step `eps` give: |gradient - difference| <= atol + rtol |difference|.

    Args:
        func: takes the inputs and returns a tensor or a tuple of tensors.
        inputs: a tensor or a tuple of anything; those that require a gradient should be float64.
        raise_exception: whether False is an error instead.
        nondet_tol: how far two computations of a gradient may differ.
        check_undefined_grad, check_grad_dtypes, fast_mode, masked, check_backward_ad: PyTorch's; every element is
            compared, and the gradients' dtypes are always those of the inputs.
        check_batched_grad, check_batched_forward_grad, check_forward_ad: must be False.

    Raises GradcheckError, and GraphError for inputs none of which requires a gradient.
    """
    if check_batched_grad or check_batched_forward_grad or check_forward_ad:
        raise GraphError("gradcheck: there are no batched and no forward gradients to be checked")
    given = tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,)
    try:
        _check(func, given, eps, atol, rtol, nondet_tol)
    except GradcheckError:
        if raise_exception:
            raise
        return False
    return True


def gradgradcheck(
    func: Callable[..., Any],
    inputs: Any,
    grad_outputs: Any = None,
    *,
    eps: float = 1e-6,
    atol: float = 1e-5,
    rtol: float = 1e-3,
    gen_non_contig_grad_outputs: bool = False,
    raise_exception: bool = True,
    nondet_tol: float = 0.0,
    check_undefined_grad: bool = True,
    check_grad_dtypes: bool = False,
    check_batched_grad: bool = False,
    check_fwd_over_rev: bool = False,
    check_rev_over_rev: bool = True,
    fast_mode: bool = False,
    masked: bool = False,
) -> bool:
    """`gradcheck` of the gradients, as a function of the inputs and of `grad_outputs`, the weights of the outputs,
    which for None are drawn."""
    if check_batched_grad or check_fwd_over_rev:
        raise GraphError("gradgradcheck: there are no batched and no forward gradients to be checked")
    given = tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,)
    if grad_outputs is None:
        drawn = np.random.default_rng(0)
        weights = tuple(
            tensor(drawn.uniform(-1, 1, shape_of(output)), dtype_of(output), requires_grad=True)
            for output in _outputs(func, given)
        )
    else:
        weights = tuple(grad_outputs) if isinstance(grad_outputs, (tuple, list)) else (grad_outputs,)
    count = len(given)

    def first(*values: Any) -> tuple[Node, ...]:
        outputs = _outputs(func, values[:count])
        chosen = [value for value in values[:count] if _is_differentiated(value)]
        total = None
        for output, weight in zip(outputs, values[count:], strict=True):
            part = mul_op(output, weight).sum()  # type: ignore[attr-defined]
            total = part if total is None else total + part
        return tuple(gradients(total, chosen))  # type: ignore[arg-type]  # there is an output

    return gradcheck(first, (*given, *weights), eps=eps, atol=atol, rtol=rtol, raise_exception=raise_exception,
                     nondet_tol=nondet_tol)


def _is_differentiated(value: Any) -> bool:
    return isinstance(value, Node) and bool(leaves_that_require_grad(value))


def _outputs(func: Callable[..., Any], inputs: Sequence[Any]) -> list[Node]:
    """The function's outputs of floats. Raises GraphError where it returns what is no tensor."""
    with enable_grad():
        found = func(*inputs)
    outputs = list(found) if isinstance(found, (tuple, list)) else [found]
    for output in outputs:
        if not isinstance(output, Node):
            raise GraphError(f"gradcheck: the function must return tensors, not {type(output).__name__}")
    return [output for output in outputs if dtype_of(output) in FLOATS]


def _check(
    func: Callable[..., Any], given: tuple[Any, ...], eps: float, atol: float, rtol: float, nondet_tol: float
) -> None:
    chosen = [i for i, value in enumerate(given) if _is_differentiated(value)]
    if not chosen:
        raise GraphError(
            "gradcheck expects at least one input tensor to require gradient, "
            "but none of the them have requires_grad=True."
        )
    for i in chosen:
        if dtype_of(given[i]) != "float64":
            warnings.warn(
                f"Input #{i} requires gradient and is not a double precision floating point or complex. "
                "This check will likely fail if all the inputs are not of double precision floating point or complex. ",
                stacklevel=4,
            )
    leaves = {i: tensor(given[i], dtype_of(given[i]), requires_grad=True) for i in chosen}
    own = [leaves.get(i, value) for i, value in enumerate(given)]
    outputs = _outputs(func, own)
    inputs = [leaves[i] for i in chosen]
    for number, output in enumerate(outputs):
        found, again = _analytical(output, inputs), _analytical(output, inputs)
        for place, i in enumerate(chosen):
            numerical = _numerical(func, own, i, number, eps)
            if not np.allclose(found[place], numerical, rtol=rtol, atol=atol):
                raise GradcheckError(
                    f"Jacobian mismatch for output {number} with respect to input {i},\n"
                    f"numerical:{_shown(numerical)}\nanalytical:{_shown(found[place])}\n"
                )
            if np.abs(found[place] - again[place]).max(initial=0) > nondet_tol:
                raise GradcheckError(
                    "Backward is not reentrant, i.e., running backward with same input and grad_output multiple times "
                    "gives different values, although analytical gradient matches numerical gradient. "
                    f"The tolerance for nondeterminism was {nondet_tol}."
                )


def _shown(matrix: np.ndarray) -> str:
    return repr(leaf(np.ascontiguousarray(matrix)))


def _analytical(output: Node, inputs: Sequence[Parameter]) -> list[np.ndarray]:
    """For each input the matrix (its elements, the output's elements) of derivatives, by gradients."""
    count = math.prod(shape_of(output))
    found = [np.zeros((math.prod(x.shape), count), x.dtype) for x in inputs]
    for column in range(count):
        chosen = np.zeros(count, dtype_of(output))
        chosen[column] = 1
        with enable_grad():
            nodes = gradients(mul_op(output, leaf(chosen.reshape(shape_of(output)))), inputs)
        for matrix, x, node, value in zip(found, inputs, nodes, evaluate(nodes, keep=False), strict=True):
            if shape_of(node) != x.shape or dtype_of(node) != x.dtype:
                got = f"{dtype_of(node)} {shape_of(node)}"
                raise GradcheckError(f"Incorrect gradient of {x.dtype} {x.shape}: it is {got}")
            matrix[:, column] = np.asarray(value).ravel()
    return found


def _numerical(func: Callable[..., Any], inputs: Sequence[Any], i: int, number: int, eps: float) -> np.ndarray:
    """The matrix (elements of input i, elements of output `number`) of central differences."""
    start = inputs[i].value
    rows = []
    for element in np.ndindex(start.shape):
        sides = []
        for step in (eps, -eps):
            moved = start.copy()
            moved[element] += step
            values = [*inputs[:i], tensor(moved, start.dtype, requires_grad=True), *inputs[i + 1 :]]
            sides.append(_outputs(func, values)[number].numpy().ravel())  # type: ignore[attr-defined]
        rows.append((sides[0] - sides[1]) / (2 * eps))
    return np.stack(rows) if rows else np.zeros((0, 0), start.dtype)


__all__ = ["GradcheckError", "gradcheck", "gradgradcheck"]
