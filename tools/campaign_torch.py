"""PyTorch's databases of samples, for what dlsys offers under the same names: operators, modules, optimizers."""

from __future__ import annotations

import random
import warnings
from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import Any

import dlsys as dl
import numpy as np
from dlsys import nn, optim
from dlsys.errors import DlsysError
from dlsys.graph import Node

DRAWN = (
    "rand",
    "randn",
    "randint",
    "normal",
    "bernoulli",
    "multinomial",
    "empty",
    "dropout",
)  # other numbers
OTHER = ("sort", "argsort", "topk", "silu/complex")  # of equal elements another may come first
ORDERED = {"where": lambda x, condition, other: dl.where(condition, x, other)}  # the database's order of arguments
TOLERANCE = {"float32": 2e-4, "float64": 1e-7}


@cache
def _operators() -> list[tuple[Any, Callable[..., Any]]]:
    """PyTorch's operators that dlsys has, with the function of dlsys."""
    from torch.testing._internal.common_methods_invocations import op_db

    found = []
    for op in op_db:
        home, name = (nn.functional, op.name[14:]) if op.name.startswith("nn.functional.") else (dl, op.name)
        label = f"{name}/{op.variant_test_name}" if op.variant_test_name else name
        if any(name.startswith(word) for word in DRAWN) or label in OTHER or name in OTHER or "." in name:
            continue
        if callable(getattr(home, name, None)):
            found.append((op, ORDERED.get(name) or getattr(home, name)))
    return found


def _ours(value: Any, leaves: list[tuple[Any, Any]]) -> Any:
    """An argument with dlsys' tensors for PyTorch's; those that get gradients are noted."""
    import torch

    if isinstance(value, torch.Tensor):
        made = dl.tensor(value.detach().numpy().copy(), requires_grad=value.requires_grad)
        if value.requires_grad:
            leaves.append((value, made))
        return made
    if isinstance(value, (list, tuple)):
        return type(value)(_ours(item, leaves) for item in value)
    return str(value).removeprefix("torch.") if isinstance(value, torch.dtype) else value


def _listed(value: Any) -> list[Any]:
    return [x for item in value for x in _listed(item)] if isinstance(value, (tuple, list)) else [value]


def _equal(ours: Any, theirs: Any) -> bool:
    import torch

    if not isinstance(theirs, torch.Tensor):
        return bool(ours == theirs)
    got, want = np.asarray(ours.numpy() if isinstance(ours, Node) else ours), theirs.detach().numpy()
    if got.shape != want.shape:
        return False
    tolerance = TOLERANCE.get(str(want.dtype), 0)
    scale = (
        max(1.0, float(np.nanmax(np.abs(np.where(np.isfinite(want), want, 0)), initial=0)))
        if want.size
        else 1.0
    )
    return np.allclose(
        got.astype("float64"), want.astype("float64"), rtol=tolerance, atol=tolerance * scale, equal_nan=True
    )


def operators(seed: int, count: Counter, tell: Callable[[str], None]) -> None:
    """A sample of an operator: the same values and gradients as PyTorch's, or an error."""
    import torch

    draw = random.Random(seed)
    op, function = draw.choice(_operators())
    dtypes = [t for t in (torch.float32, torch.float64, torch.int64, torch.bool) if t in op.dtypes]
    if not dtypes:
        return
    dtype = draw.choice(dtypes)
    torch.manual_seed(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        grad = dtype.is_floating_point and op.supports_autograd
        samples = list(op.sample_inputs("cpu", dtype, requires_grad=grad))
        if not samples:
            return
        sample = draw.choice(samples)
        if sample.kwargs.get("dropout_p"):
            return
        _compare(
            f"{op.name} {sample.args} {sample.kwargs} of {dtype}", op.op, function, sample, grad, count, tell
        )


def _compare(
    label: str,
    theirs: Callable[..., Any],
    ours: Callable[..., Any],
    sample: Any,
    grad: bool,
    count: Counter,
    tell: Callable[[str], None],
) -> None:
    import torch

    try:
        want = theirs(sample.input, *sample.args, **sample.kwargs)
    except Exception:  # noqa: BLE001 - not every sample is one for this dtype
        return
    leaves: list[tuple[Any, Any]] = []
    try:
        args = [_ours(value, leaves) for value in (sample.input, *sample.args)]
        kwargs = {key: _ours(value, leaves) for key, value in sample.kwargs.items()}
        got = ours(*args, **kwargs)
        pairs = list(zip(_listed(got), _listed(want), strict=True))
        right = all(_equal(a, b) for a, b in pairs)
        floats = [(a, b) for a, b in pairs if isinstance(b, torch.Tensor) and b.requires_grad]
        if right and grad and floats:
            sum((b * b).sum() for _, b in floats).backward()
            sum((a * a).sum() for a, _ in floats).backward()
            right = all(t.grad is None or _equal(m.grad, t.grad) for t, m in leaves)
            label += " (gradient)" if not right else ""
    except DlsysError:
        count["clear error"] += 1
    except TypeError as error:
        words = str(error)
        known = "argument" in words or "unexpected keyword" in words  # a parameter that dlsys has not
        count["clear error" if known else "other error"] += 1
        if not known:
            tell(f"{label[:300]}: TypeError: {words[:200]}")
    except Exception as error:  # noqa: BLE001 - counted
        count["other error"] += 1
        tell(f"{label[:300]}: {type(error).__name__}: {str(error)[:200]}")
    else:
        count["right" if right else "wrong"] += 1
        if not right:
            tell(f"{label[:600]}: other values")


@cache
def _modules() -> list[Any]:
    from torch.testing._internal.common_modules import module_db

    return [info for info in module_db if isinstance(getattr(nn, info.module_cls.__name__, None), type)]


def modules(seed: int, count: Counter, tell: Callable[[str], None]) -> None:
    """A sample of a module, with PyTorch's state: outputs, gradients, and state after a call."""
    import torch

    draw = random.Random(seed)
    info = draw.choice(_modules())
    name = info.module_cls.__name__
    torch.manual_seed(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        inputs = info.module_inputs_func(info, "cpu", torch.float32, True, training=True)
        given = draw.choice([i for i in inputs if i.forward_input is not None])
        if "Dropout" in name or given.constructor_input.kwargs.get("dropout"):
            return
        theirs = info.module_cls(*given.constructor_input.args, **given.constructor_input.kwargs).float()
        label = f"{name} {given.constructor_input.args} {given.constructor_input.kwargs}"
        leaves: list[tuple[Any, Any]] = []
        try:
            args = [_ours(value, leaves) for value in given.constructor_input.args]
            kwargs = {key: _ours(value, leaves) for key, value in given.constructor_input.kwargs.items()}
            mine = getattr(nn, name)(*args, **kwargs)
            mine.load_state_dict(theirs.state_dict())
        except DlsysError:
            count["clear error"] += 1
            return
        except TypeError as error:
            known = "argument" in str(error)
            count["clear error" if known else "other error"] += 1
            return
        sample = type("Sample", (), {})()
        if not given.forward_input.args:
            return
        sample.input, *sample.args = given.forward_input.args
        sample.kwargs = given.forward_input.kwargs
        _compare(label, theirs, mine, sample, True, count, tell)


@cache
def _optimizers() -> list[Any]:
    from torch.testing._internal.common_optimizers import optim_db

    return [info for info in optim_db if hasattr(optim, info.optim_cls.__name__)]


def optimizers(seed: int, count: Counter, tell: Callable[[str], None]) -> None:
    """Five steps of an optimizer with settings of PyTorch's."""
    import torch

    draw, numbers = random.Random(seed), np.random.default_rng(seed)
    info = draw.choice(_optimizers())
    chosen = draw.choice(info.optim_inputs_func(device="cpu"))
    name, values = info.optim_cls.__name__, [numbers.standard_normal(s).astype("f4") for s in ((3, 4), (5,))]
    kwargs = {k: float(v) if isinstance(v, torch.Tensor) else v for k, v in chosen.kwargs.items()}
    theirs = [torch.tensor(v, requires_grad=True) for v in values]
    mine = [nn.Parameter(v) for v in values]
    try:
        second = getattr(optim, name)(mine, **kwargs)
    except (DlsysError, TypeError):
        count["clear error"] += 1
        return
    first = info.optim_cls(theirs, **kwargs)
    for _ in range(5):
        grads = [numbers.standard_normal(v.shape).astype("f4") for v in values]
        for a, b, grad in zip(theirs, mine, grads, strict=True):
            a.grad, b.grad = torch.tensor(grad), dl.tensor(grad)
        first.step()
        second.step()
    right = all(_equal(b, a) for a, b in zip(theirs, mine, strict=True))
    count["right" if right else "wrong"] += 1
    if not right:
        tell(f"{name} {kwargs}: other values after five steps")
