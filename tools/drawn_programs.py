"""Programs of tensors that are drawn line by line, for `tools/campaign_torch.py`: the forms of their lines, and the
names with which they start. `T` is dlsys or PyTorch."""

from __future__ import annotations

import copy
import random
import re
from typing import Any

import dlsys as dl
import numpy as np
import torch

SHAPES = ((), (3,), (2,), (3, 3), (2, 3), (3, 1))
LARGEST = 1e4

VALUES = """{a} + {b}; {a} - {b}; {a} * {b}; {a} / ({b} * {b} + 1.0); ({a} @ {b}).tanh(); {a}.tanh(); {a}.relu();
{a} * {r}; {r} - {a}; {a}.sum(0); {a}.mean(0); {a}.T; {a}.reshape(-1, 3); {a}[{i}]; {a}[:, {i}]; {a}[1:]; {a}[{m}];
{a}[{k}]; T.where({m}, {a}, {b}); T.cat([{a}, {b}]); T.stack([{a}, {b}]); {a}.clone(); {a}.detach(); {a}.softmax(-1);
F.mse_loss({a}, {a} * {r}); F.linear({a}, {w}.reshape(-1, 3)); bn({a}); lin({a}); drop({a}); {a}.expand(3, 3);
{a}.data * {r}; {a}.cumsum(0); {a}.squeeze(); {a}; {a}.masked_fill({m}, {r}); {a}.contiguous();
{a}.unsqueeze(-1); {a}.amax(0); {a}.flatten()[:3];
{w}.grad * {r}; {w}.grad; {w}.detach(); {w} * {a}; ({a} @ {w}).tanh(); {w}.clone(); net({a}); {a}.detach().clone();
{a} if {g}.item() > 0.12 else {b}; T.zeros_like({a}); {a}.chunk(2)[0]; (lambda v: v.tanh() * v)({a}); {a}.pow(2)"""
SCALARS = """({a} * {b}).sum(); {a}.mean(); F.mse_loss({a}.tanh(), {a}); ({w} * {a}).sum(); lin({a}).pow(2).mean();
bn({a}).sum()"""
WRITES = """{y} += {a}; {y} -= {r} * {a}; {y} *= {a}; {y} /= 2.0; {y}.add_({a}); {y}.mul_({r}); {y}.zero_();
{y}.fill_({r}); {y}.copy_({a}); {y}[{i}] = {a}; {y}[{i}] = {r}; {y}[:, {i}] = {a}; {y}[{m}] = {r}; {y}[{k}] = {a};
{y}[{i}] += {a}; {y}[{m}] *= {r}; {y}.clamp_(-1.0, 1.0); {y}.masked_fill_({m}, {r}); {y}.add_({a}, alpha={r});
{y}[1:] -= {a};
{y}.data = {y}.detach() * {r}; {y}.requires_grad_(); {y}.requires_grad_(False); {y}[{i}].mul_({r});
with T.no_grad(): {w} -= 0.1 * {w}.grad; with T.no_grad(): {w}.add_({a}); with T.no_grad(): {w}[{i}] = {r};
with T.no_grad(): {w}.mul_({r}); with T.no_grad(): {w}[{m}] = {r}; with T.no_grad(): {w}.copy_({a});
{w}.data = {w}.detach() * {r}; {w}.data.mul_({r}); {w}.data -= 0.1 * {a}.detach(); {w}.grad.zero_();
{w}.grad = None; {w}.grad *= {r}; {w}.grad = {w}.detach() * {r}; {w} += {a}; {w}[{i}] = {r}; {w}.detach().zero_()"""
GRADIENTS = """{g}.backward(retain_graph=True); ({g} + {h}).backward(retain_graph=True);
{g}.backward(create_graph=True);
{n} = T.autograd.grad({g}, {w}, retain_graph=True)[0]; {n} = T.autograd.grad({g}, {w}, create_graph=True)[0];
{n} = T.autograd.grad({g} * {h}, {w}, create_graph=True)[0]; {a}.backward({a}.detach(), retain_graph=True);
{n} = T.autograd.grad({g}, {a}, retain_graph=True)[0]; {g}.backward()"""
STEPS = """sgd.zero_grad(); sgd.step(); adam.step(); sgd.zero_grad(set_to_none=False); adam.zero_grad();
sgd.param_groups[0]['lr'] = 0.05; lin.load_state_dict(other.state_dict());
sgd.load_state_dict(copy.deepcopy(sgd.state_dict()));
bn.eval(); bn.train(); nn.utils.clip_grad_norm_([w0, w1], 0.5); other = copy.deepcopy(lin); lin.zero_grad();
lin.requires_grad_(False); lin.requires_grad_(True); adam.load_state_dict(copy.deepcopy(adam.state_dict()))"""
LOOKS = """look({a}); show(repr({a})); {g}.item(); look({a}.sum()); look({w}.grad); look(bn.running_mean); float({g});
look({w}); look({a} * 2.0); show({a}.tolist()); look(lin.weight); show(f'{{{g}:.3f}}'); look({w}.grad)"""
RANDOM = """T.rand(3, 3, dtype=dtype); T.randn(3, dtype=dtype); T.nn.functional.dropout({a}, 0.5); T.rand(3, 1) * {a};
T.randn(2, 3, dtype=dtype) * {a}; T.randint(0, 3, (3,)) * {a}; T.manual_seed(3)"""
KINDS = {"value": 34, "scalar": 12, "write": 22, "gradient": 14, "step": 9, "look": 12, "mask": 3, "index": 2}
FORMS = {
    kind: re.split(r";\s+", text)
    for kind, text in {
        "value": VALUES, "scalar": SCALARS, "write": WRITES, "gradient": GRADIENTS, "step": STEPS, "look": LOOKS,
        "random": RANDOM, "mask": "{a} > {r}", "index": "{a}.argmax(0); T.tensor([2, 0])",
    }.items()
}  # fmt: skip
VIEWS = r"\[|\.T\b|shape|squeeze|flatten|expand|chunk"  # in PyTorch they require a gradient within no_grad() too
Lines = tuple[str, ...]


def arrays(seed: int) -> list[np.ndarray]:
    """The values at the start of a program."""
    return list(np.random.default_rng(seed).uniform(-1, 1, (8, 3, 3)))


def start(library: Any, seed: int, dtype: str, seen: list[Any]) -> dict[str, Any]:
    """The names of a program at its start."""
    nn, optim, values = library.nn, library.optim, arrays(seed)

    def tensor(value: Any, requires_grad: bool = False) -> Any:
        return library.tensor(value, dtype=getattr(library, dtype), requires_grad=requires_grad)

    def linear(weight: Any) -> Any:
        made = nn.Linear(3, 3).to(getattr(library, dtype))
        made.load_state_dict({"weight": tensor(weight), "bias": tensor(weight[1])})
        return made

    def look(x: Any) -> None:
        seen.append(None if x is None else np.array(x.detach().numpy()))

    w0, w1, b0 = (tensor(value, True) for value in (values[0], values[1], values[2][0]))
    lin, other, bn = linear(values[3]), linear(values[4]), nn.BatchNorm1d(3).to(getattr(library, dtype))
    names = {
        "T": library, "F": nn.functional, "nn": nn, "copy": copy, "dtype": getattr(library, dtype),
        "w0": w0, "w1": w1, "b0": b0, "x0": tensor(values[5]), "x1": tensor(values[6][:2]), "x2": tensor(values[7][0]),
        "m0": library.tensor(values[5] > 0), "m1": library.tensor([True, False, True]), "k0": library.tensor([1, 0]),
        "lin": lin, "other": other, "bn": bn, "drop": nn.Dropout(0.5).eval(), "look": look, "show": lambda text: None,
        "net": nn.Sequential(lin, nn.Tanh(), bn),
        "sgd": optim.SGD([w0, w1, *lin.parameters()], lr=0.1, momentum=0.9), "adam": optim.Adam([w1, b0], lr=0.01),
        "compiled": dl.compile if library is dl else lambda function: function,
    }  # fmt: skip
    names["settle"] = lambda: [x.numpy() for x in names.values() if isinstance(x, dl.Tensor)]
    return names


class Draw:
    """Draws the lines of a program, which PyTorch runs meanwhile, so that shapes fit."""

    def __init__(self, seed: int, is_random: bool) -> None:
        self.rng = random.Random(seed)
        self.seed, self.is_random = seed, is_random
        self.lines: list[str] = []
        self.protected: set[str] = set()  # names that a step's lines must not change
        self.has_steps = False
        self.restart()
        length = self.rng.randrange(5, 20)
        for _ in range(6 * length):
            if len(self.lines) >= length or not self.grow():
                break
        if not self.names.get("ended"):
            self.lines += [f"look({name})" for name in sorted(self.usable()) if name[0] in "twbx"]
            self.lines += [f"look({w}.grad)" for w in ("w0", "w1", "b0", "lin.weight") if not self.has_steps]
            self.lines += ["look(bn.running_var)", "look(lin.weight)", "look(lin.bias)"]

    def restart(self) -> None:
        """Run the lines so far from the start."""
        self.names = start(torch, self.seed, "float64", [])
        self.stale: set[str] = set()
        self.aliases: dict[str, str] = {}
        self.versions: dict[str, tuple[Any, int]] = {}
        torch.manual_seed(self.seed)
        for line in self.lines:
            self.run(line)

    def tensors(self) -> dict[str, Any]:
        """The tensors by their names."""
        return {name: x for name, x in self.names.items() if isinstance(x, torch.Tensor)}

    def usable(self) -> list[str]:
        """The names of floats whose memory nobody else has written."""
        found = [n for n, x in self.tensors().items() if n[0] in "wbxt" and x.dtype == torch.float64]
        return [n for n in found if n not in self.stale]

    def run(self, line: str) -> None:
        """Run a line, and note which names it leaves without a value in dlsys: a view does not follow a write."""
        exec(line, self.names)
        target = re.match(r"(?:with T.no_grad\(\): )?(\w+)", line)
        written = self.names.get(target.group(1)) if target else None
        for name, x in self.tensors().items():
            known, version = self.versions.get(name, (None, 0))
            if known is not x:
                self.stale.discard(name)
                made = re.fullmatch(rf"{name} = (\w+)\.(?:detach\(\)|data)", line)
                if made and self.names[made.group(1)].is_leaf:
                    self.aliases[name] = made.group(1)
            elif self.changes(x, version, line, written) and x is not written and not self.follows(name):
                self.stale.add(name)
            self.versions[name] = x, x._version

    def changes(self, x: Any, version: int, line: str, written: Any) -> bool:
        """Whether the line has written the memory of a tensor; writes by `data` are not counted."""
        by_data = ".data" in line and isinstance(written, torch.Tensor) and shares(x, written)
        return x._version != version or by_data

    def follows(self, name: str) -> bool:
        """Whether a name has what is written in PyTorch: it is no view, or a leaf's other name."""
        x = self.names[name]
        shared = [n for n, y in self.tensors().items() if y is not x and shares(x, y)]
        known = all(self.aliases.get(n) == name or self.aliases.get(name) == n for n in shared)
        return known and not x._is_view()

    def name(self, kind: str) -> str:
        """A name, or a number, for a place of a form."""
        if kind == "r":
            return self.rng.choice(("0.5", "-1.5", "0.1"))
        if kind == "i":
            return self.rng.choice(("0", "1", "-1"))
        if kind == "n":
            return f"t{len(self.lines)}"
        found = self.usable()
        if kind == "w":
            found = [n for n in ("w0", "w1", "b0") if n in found]
        elif kind in "gh":
            found = [n for n in found if self.names[n].shape == () and self.names[n].requires_grad]
        elif kind in "mk":
            dtype = torch.bool if kind == "m" else torch.int64
            found = [n for n, x in self.tensors().items() if x.dtype == dtype]
        elif kind == "y":
            found = [n for n in found if n[0] in "tx" and self.writable(n)]
        else:
            found = [*found[-6:], *self.rng.sample(found, 2)]
        return self.rng.choice(found)  # IndexError for none

    def writable(self, name: str) -> bool:
        """Whether nobody else sees a write to the name: it shares no memory with another."""
        x = self.names[name]
        return not any(y is not x and shares(x, y) for y in self.tensors().values())

    def form(self, kind: str) -> str:
        """A line of a kind."""
        text = self.rng.choice(FORMS[kind])
        text = text.format(**{place: self.name(place) for place in set(re.findall(r"{(\w)", text))})
        if kind in ("value", "scalar", "mask", "index") or (kind == "random" and "manual_seed" not in text):
            letter = {"mask": "m", "index": "k"}.get(kind, "t")
            again = [n for n in self.usable() if n[0] == "t" and n not in self.protected]
            name = self.rng.choice(again) if letter == "t" and again and self.rng.random() < 0.15 else None
            text = f"{name or f'{letter}{len(self.lines)}'} = {text}"
            if self.rng.random() < 0.08 and not re.search(VIEWS, text):
                text = f"with T.no_grad(): {text}"
        elif kind == "write":
            target, *others = [self.names[n] for n in re.findall(r"\b[wxtb]\d+", text)]
            if any(x is not target and shares(x, target) for x in others):
                raise IndexError  # memory that overlaps
        return text

    def fits(self) -> bool:
        """Whether all values are of the known shapes, and not large; and Adam counts as PyTorch's."""
        floats = [x for x in self.tensors().values() if x.is_floating_point()]
        try:
            grads = [x.grad for x in floats if x.is_leaf and x.grad is not None]
        except RuntimeError:  # one of several views, after a write
            return False
        known = all(tuple(x.shape) in SHAPES and bool((x.detach().abs() < LARGEST).all()) for x in (*floats, *grads))
        return known and len({self.names[w].grad is None for w in ("w1", "b0")}) == 1

    def grow(self) -> bool:
        """Add a line, where one that is drawn fits; whether the program goes on."""
        if not self.is_random and self.rng.random() < 0.04:
            return self.step()
        kind = self.rng.choices([*KINDS, "random"], [*KINDS.values(), 12 * self.is_random])[0]
        try:
            line = self.form(kind)
        except IndexError:
            return True
        if "grad" in line and self.has_steps and kind in ("value", "look", "write"):
            return True
        if kind == "gradient" and any(".data = " in one for one in self.lines):  # PyTorch reads the new memory there
            return True
        try:
            self.run(line)
        except Exception:  # noqa: BLE001 - dlsys shall say so too
            if self.rng.random() < (0.1 if kind in ("write", "gradient") else 0.01):
                self.lines.append(line)
                self.names["ended"] = True
                return False
            self.undo(line, kind)
            return True
        if not self.fits():
            self.undo(line, kind)
            return True
        self.lines.append(line)
        return True

    def undo(self, line: str, kind: str) -> None:
        """Forget a line that did not fit."""
        name = f"t{len(self.lines)} = "
        if kind == "value" and "bn" not in line and "net" not in line and name in line:
            self.names.pop(name.split()[0], None)
        elif kind not in ("value", "look") or "net" in line or "bn" in line or name not in line:
            self.restart()

    def step(self) -> bool:
        """Add a function that `dl.compile` makes a program of, and two calls of it or three."""
        begin = len(self.lines)
        self.protected = set(self.tensors())
        kinds = ["value", "value", "scalar", "scalar", "write", "write", "gradient", "step", "step"]
        if any(".data = " in one for one in self.lines):
            kinds.remove("gradient")
        for _ in range(self.rng.randrange(3, 12)):
            try:
                line = self.form(self.rng.choice(kinds))
                if ".item()" in line or "deepcopy" in line or "load_state" in line:
                    continue
                self.run(line)
                if self.fits():
                    self.lines.append(line)
                    continue
            except Exception:  # noqa: BLE001 - such a line is left out
                pass
            self.restart()
        body, self.lines[begin:] = self.lines[begin:], []
        made = [name for name in self.usable() if name not in self.protected]
        changed = {m.group(1) for line in body for m in re.finditer(r"(?:^|: )(\w+) [-+*/]?= ", line)} & self.protected
        arguments = sorted({n for n in self.protected if n[0] in "xt" and n not in changed and n in " ".join(body)})
        arguments = self.rng.sample(arguments, min(len(arguments), self.rng.randrange(3)))
        self.protected = set()
        results = ", ".join(self.rng.sample(made, min(len(made), 2)))
        head = [f"global {', '.join(sorted(changed))}"] if changed else []
        step = f"step{begin}"
        text = "\n    ".join([f"@compiled\ndef {step}({', '.join(arguments)}):", *head, *body, f"return ({results})"])
        lines = [text]
        for call in range(self.rng.randrange(2, 4)):
            given = ", ".join(f"{name}.detach() * {call + 1}.0" if call else name for name in arguments)
            lines += [f"settle(); r{begin} = {step}({given})", f"t{begin} = r{begin}.detach()"]
            if ", " in results:
                lines[-1:] = [f"t{begin}, t{begin + 1} = (x.detach() for x in r{begin})"]
        self.restart()
        before = len(self.lines)
        for line in lines:
            try:
                self.run(line)
                self.lines.append(line)
            except Exception:  # noqa: BLE001 - then it is no step
                break
            if not self.fits():
                break
        else:
            self.has_steps = True
            return True
        del self.lines[before:]
        self.restart()
        return True


def shares(x: Any, y: Any) -> bool:
    """Whether two tensors of PyTorch have memory in common."""
    return x.untyped_storage().data_ptr() == y.untyped_storage().data_ptr() and x.numel() > 0
