"""Programs of tensors that are drawn line by line: values, gradients, prints, writes and `no_grad` in any order give
what evaluation line by line gives, that of a small reference in NumPy and, where it is at hand, PyTorch's."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import dlsys as dl
import numpy as np
import pytest
from dlsys import autodiff as ad
from optional import torch

N = 3
LINES = 24
TOLERANCE = {"float32": 2e-4, "float64": 1e-9}


class Reference:
    """A tensor that is computed at once, with the gradients of its inputs; a write gives it another array."""

    enabled = True

    def __init__(self, value: Any, inputs: Any = (), requires_grad: bool = False, is_leaf: bool = False) -> None:
        self.value = np.asarray(value, np.float64)
        kept = [(x, gradient) for x, gradient in inputs if x.needs_gradient]
        self.inputs: list[Any] = kept if Reference.enabled else []
        self.requires_grad, self.is_leaf = requires_grad, is_leaf
        self.grad: Reference | None = None

    @property
    def needs_gradient(self) -> bool:
        return self.requires_grad or bool(self.inputs)

    def __add__(self, other: Any) -> Reference:
        other = _as_reference(other)
        return Reference(self.value + other.value, [(self, lambda g: g), (other, lambda g: g)])

    def __mul__(self, other: Any) -> Reference:
        other = _as_reference(other)
        a, b = self.value, other.value
        return Reference(a * b, [(self, lambda g: g * b), (other, lambda g: g * a)])

    __rmul__ = __mul__

    def __sub__(self, other: Any) -> Reference:
        return self + _as_reference(other) * -1.0

    def __matmul__(self, other: Reference) -> Reference:
        a, b = self.value, other.value
        return Reference(a @ b, [(self, lambda g: g @ b.T), (other, lambda g: a.T @ g)])

    @property
    def T(self) -> Reference:
        return Reference(self.value.T, [(self, lambda g: g.T)])

    def tanh(self) -> Reference:
        y = np.tanh(self.value)
        return Reference(y, [(self, lambda g: g * (1 - y * y))])

    def relu(self) -> Reference:
        above = self.value > 0
        return Reference(self.value * above, [(self, lambda g: g * above)])

    def power(self, exponent: float) -> Reference:
        x = self.value
        return Reference(x**exponent, [(self, lambda g: g * exponent * x ** (exponent - 1))])

    def sum(self, axis: int | None = None) -> Reference:
        shape = self.value.shape
        return Reference(self.value.sum(axis), [(self, lambda g: np.broadcast_to(g, shape))])

    def detach(self) -> Reference:
        return Reference(self.value)

    def backward(self, retain_graph: bool = True) -> None:
        order: list[Reference] = []
        seen: set[int] = set()

        def visit(x: Reference) -> None:
            if id(x) not in seen:
                seen.add(id(x))
                for below, _ in x.inputs:
                    visit(below)
                order.append(x)

        visit(self)
        gradients = {id(self): np.ones_like(self.value)}
        for x in reversed(order):
            gradient = gradients[id(x)]
            if x.requires_grad:
                x.grad = Reference(gradient if x.grad is None else x.grad.value + gradient)
            for below, of in x.inputs:
                given = of(gradient)
                while given.ndim > below.value.ndim:
                    given = given.sum(0)
                gradients[id(below)] = gradients.get(id(below), 0.0) + given

    def _write(self, value: Any) -> Reference:
        self.value = np.array(np.broadcast_to(value, self.value.shape))
        return self

    def __setitem__(self, key: int, value: Any) -> None:
        changed = self.value.copy()
        changed[key] = _as_reference(value).value
        self._write(changed)

    def __isub__(self, other: Any) -> Reference:
        changed = self - other
        return self._write(changed.value) if self.is_leaf else changed

    def mul_(self, other: Any) -> Reference:
        return self._write((self * other).value)

    def copy_(self, other: Reference) -> Reference:
        return self._write(other.value)

    data = property(detach, lambda self, other: self._write(other.value))


def _as_reference(value: Any) -> Reference:
    return value if isinstance(value, Reference) else Reference(value)


class _NoGrad:
    def __enter__(self) -> None:
        self.before, Reference.enabled = Reference.enabled, False

    def __exit__(self, *error: object) -> None:
        Reference.enabled = self.before


class _BatchNorm:
    """nn.BatchNorm1d(N, affine=False) in training."""

    def __init__(self) -> None:
        self.running_mean, self.running_var = Reference(np.zeros(N)), Reference(np.ones(N))

    def __call__(self, x: Reference) -> Reference:
        mean = x.sum(0) * (1 / N)
        centred = x - mean
        var = (centred * centred).sum(0) * (1 / N)
        for state, now in ((self.running_mean, mean.value), (self.running_var, var.value * N / (N - 1))):
            state.value = 0.9 * state.value + 0.1 * now
        return centred * (var + 1e-5).power(-0.5)


class _SGD:
    def __init__(self, parameters: list[Reference], lr: float) -> None:
        self.parameters, self.lr = parameters, lr

    def step(self) -> None:
        for parameter in self.parameters:
            if parameter.grad is not None:
                parameter.value = parameter.value - self.lr * parameter.grad.value


def draw(seed: int, as_in_torch: bool) -> list[str]:
    """The lines of a program: w0 and w1 require gradients, b0 does not, bn is a batch norm and sgd an optimizer.

    `as_in_torch`: without what PyTorch forbids and dlsys does not: `backward` through what was written since, and
    writing what was computed."""
    rng = random.Random(seed)
    lines: list[str] = []
    version = {"w0": 0, "w1": 0, "b0": 0}
    squares: dict[str, dict[str, int]] = {"w0": {}, "w1": {}, "b0": {}}  # which versions of leaves each has read
    scalars: dict[str, dict[str, int]] = {}
    differentiable = {"w0", "w1"}
    forms = [
        "{a} + {b}", "{a} * {b}", "({a} @ {b}).tanh()", "{a}.relu()", "({a} * 0.5).tanh()", "{a} - {b}.sum() * 0.1",
        "({a}.T @ {b}).tanh()", "({a} * 0.5).detach() * {b}", "bn({a})",
    ]  # fmt: skip

    def computed() -> list[str]:
        return [name for name in squares if name.startswith("t")]

    def name_of_new() -> str:
        return f"t{len(lines)}"

    def reads(name: str) -> dict[str, int]:
        return {name: version[name]} if name in version else squares[name]

    def apply(form: str, no_grad: bool) -> tuple[str, dict[str, int], bool]:
        a, b = (rng.choice([*list(squares)[-5:], "w0", "w1", "b0"]) for _ in range(2))
        used = [x for x, way in ((a, "{a}"), (b, "{b}")) if way in form and f"{way} * 0.5).detach" not in form]
        has_gradient = not no_grad and any(x in differentiable for x in used)
        read = {k: v for x in used for k, v in reads(x).items()} if has_gradient else {}
        return form.format(a=a, b=b), read, has_gradient

    def is_current(read: dict[str, int]) -> bool:
        leaves = version if as_in_torch else ("w0", "w1")
        return all(version[leaf] == at for leaf, at in read.items() if leaf in leaves)

    def merge(read: dict[str, int], more: dict[str, int]) -> dict[str, int]:
        return {k: min(read.get(k, v), more.get(k, v)) for k, v in (*read.items(), *more.items())}

    while len(lines) < LINES:
        kind = rng.choices(
            ["make", "no_grad", "scalar", "look", "backward", "write", "step", "zero", "drop", "augment"],
            [30, 6, 12, 25, 14, 10, 6, 4, 3, 4],
        )[0]
        anything = [*squares, *scalars]
        if kind in ("make", "no_grad"):
            name, (text, read, has_gradient) = name_of_new(), apply(rng.choice(forms), kind == "no_grad")
            lines.append(f"{name} = {text}" if kind == "make" else f"with no_grad(): {name} = {text}")
            squares[name] = read
            if has_gradient:
                differentiable.add(name)
        elif kind == "scalar" and computed():
            name, of = f"s{len(lines)}", rng.choice(computed())
            lines.append(f"{name} = ({of} * {of}).sum()")
            scalars[name] = squares[of]
            if of in differentiable:
                differentiable.add(name)
        elif kind == "look":
            looks = ["print({x})", "look({x})", "look({x})", "look({x}.sum())", "show({x})", "look(bn.running_mean)"]
            lines.append(rng.choice(looks).format(x=rng.choice(anything)))
        elif kind == "backward":
            ready = [s for s in scalars if s in differentiable and is_current(scalars[s])]
            if ready:
                lines.append(f"{rng.choice(ready)}.backward(retain_graph=True)")
        elif kind == "write":
            leaf, value = rng.choice(list(version)), rng.choice(["w0", "w1", "b0", *computed()[-3:]])
            form = rng.choice(
                ["{x} -= 0.1 * {v}", "{x}[0] = 0.25", "{x}[1] = {v}[2]", "{x}.mul_(0.9)", "{x}.copy_({v})",
                 "{x}.data = {v}.detach() * 0.5"]
            )  # fmt: skip
            if "[2]" not in form:
                lines.append("with no_grad(): " + form.format(x=leaf, v=value))
                version[leaf] += 1
        elif kind == "step":
            lines.append("sgd.step()")
            version["w0"] += 1
            version["w1"] += 1
        elif kind == "zero":
            lines.append(f"{rng.choice(['w0', 'w1'])}.grad = None")
        elif kind == "drop" and computed():
            name = rng.choice(computed())
            del squares[name]
            differentiable.discard(name)
            lines.append(f"del {name}")
        elif kind == "augment" and computed() and not as_in_torch:
            name, other = rng.choice(computed()), rng.choice(list(squares))
            lines.append(f"{name} -= {other}")
            squares[name] = merge(squares[name], reads(other) if other in differentiable else {})
            if other in differentiable:
                differentiable.add(name)
    return lines


def run(lines: list[str], names: dict[str, Any], value_of: Callable[[Any], np.ndarray]) -> list[Any]:
    """What the program looks at, then all that it has at its end, gradients too."""
    seen: list[Any] = []
    space: dict[str, Any] = {"print": repr, "look": lambda x: seen.append(value_of(x)), "show": repr, **names}
    for line in lines:
        exec(line, space)
    seen += [value_of(space[name]) for name in sorted(space) if name[0] in "tswb" and name[1:].isdigit()]
    seen += [value_of(space["bn"].running_mean), value_of(space["bn"].running_var)]
    return [*seen, *(None if space[w].grad is None else value_of(space[w].grad) for w in ("w0", "w1"))]


def starts(seed: int) -> list[np.ndarray]:
    return list(np.random.default_rng(seed).uniform(-1, 1, (3, N, N)))


def by_dlsys(lines: list[str], seed: int, dtype: str) -> list[Any]:
    w0, w1, b0 = (dl.tensor(x.astype(dtype), requires_grad=i < 2) for i, x in enumerate(starts(seed)))
    names = {
        "w0": w0, "w1": w1, "b0": b0, "no_grad": dl.no_grad, "show": lambda x: repr(ad.Executor([x])),
        "bn": dl.nn.BatchNorm1d(N, affine=False).to(dtype), "sgd": dl.optim.SGD([w0, w1], lr=0.1),
    }  # fmt: skip
    return run(lines, names, lambda x: np.array(x.numpy()))


def by_reference(lines: list[str], seed: int) -> list[Any]:
    w0, w1, b0 = (Reference(x, requires_grad=i < 2, is_leaf=True) for i, x in enumerate(starts(seed)))
    names = {"w0": w0, "w1": w1, "b0": b0, "no_grad": _NoGrad, "bn": _BatchNorm(), "sgd": _SGD([w0, w1], 0.1)}
    return run(lines, names, lambda x: np.array(x.value))


def by_torch(lines: list[str], seed: int) -> list[Any]:
    w0, w1, b0 = (torch.tensor(x, requires_grad=i < 2) for i, x in enumerate(starts(seed)))
    names = {
        "w0": w0, "w1": w1, "b0": b0, "no_grad": torch.no_grad,
        "bn": torch.nn.BatchNorm1d(N, affine=False).double(), "sgd": torch.optim.SGD([w0, w1], lr=0.1),
    }  # fmt: skip
    return run(lines, names, lambda x: x.detach().numpy().copy())


def require_equal(found: list[Any], expected: list[Any], dtype: str, lines: list[str]) -> None:
    text = "\n".join(lines)
    assert len(found) == len(expected), text
    for number, (a, b) in enumerate(zip(found, expected, strict=True)):
        assert (a is None) == (b is None), f"value {number} is {a}, not {b}\n{text}"
        if a is not None:
            tolerance = TOLERANCE[dtype]
            np.testing.assert_allclose(a, b, tolerance, tolerance, err_msg=f"value {number}\n{text}")


@pytest.mark.parametrize("seed", range(24))
def test_lines_in_any_order_give_what_they_say(seed: int) -> None:
    lines, dtype = draw(seed, as_in_torch=False), ("float32", "float64")[seed % 2]
    require_equal(by_dlsys(lines, seed, dtype), by_reference(lines, seed), dtype, lines)


@pytest.mark.parametrize("seed", range(1000, 1012))
def test_lines_in_any_order_give_what_they_give_in_pytorch(seed: int) -> None:
    lines = draw(seed, as_in_torch=True)
    expected = by_torch(lines, seed)
    require_equal(by_reference(lines, seed), expected, "float64", lines)
    require_equal(by_dlsys(lines, seed, "float64"), expected, "float64", lines)
