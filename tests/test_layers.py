"""The arrows between modules: a file of dlsys imports only from the layers below it."""

from __future__ import annotations

import ast
import shutil
import tempfile
from pathlib import Path

import pytest
from helpers import python

PACKAGE = Path(__file__).resolve().parent.parent / "python" / "dlsys"

# From the ground up. Modules of one line are of one layer and do not import each other;
# a package (ops, schedule, ...) is one entry, and inside it only cycles are forbidden.
LAYERS = [
    ("charts", "errors", "hooks", "system"),
    ("storage",),
    ("scopes",),
    ("node",),
    ("checks", "graph", "tvm_import"),
    ("devices",),
    ("compute",),
    ("schedule",),
    ("kernels",),
    ("tvm_op",),
    ("gpu_op", "ndarray"),
    ("ops",),
    ("gradients",),
    ("planner",),
    ("compiler",),
    ("inspect",),
    ("executor",),
    ("tensors",),
    ("autodiff",),
    ("operator_check",),
    ("random",),
    ("distributions", "optim"),
    ("distributed",),
    ("data", "nn", "serialization"),
    ("deploy",),
    ("exchange", "needle", "relax", "rpc"),
    ("training",),
    ("apps",),
    ("__init__",),  # the names users see
    ("cli",),
    ("__main__",),
]
RANK = {name: rank for rank, layer in enumerate(LAYERS) for name in layer}
# TVM's API moves between minor versions: it is met at these doors only.
TVM_DOORS = {"devices", "compute", "schedule", "kernels", "deploy", "relax", "rpc", "tvm_import"}


def module_name(path: Path, package: Path) -> str:
    """`ops/matmul.py` -> "ops.matmul", `ops/__init__.py` -> "ops", `__init__.py` -> "__init__"."""
    parts = path.relative_to(package).with_suffix("").parts
    if len(parts) > 1 and parts[-1] == "__init__":
        parts = parts[:-1]
    return ".".join(parts)


BY_NAME = {"__import__", "import_module", "with_compiler"}  # functions that import the module of a name
COMPUTED = {"__init__", "tvm_import"}  # which may compute it: one knows all modules, one is what others call


def imported_by_name(node: ast.AST) -> str | None:
    """The name in a call that imports a module by it, without what is computed: "relax." of `f"relax.{part}"`. None for
    another call."""
    if not isinstance(node, ast.Call) or not node.args:
        return None
    function = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    if function not in BY_NAME:
        return None
    first = node.args[0]
    name = first.values[0] if isinstance(first, ast.JoinedStr) else first
    found = name.value if isinstance(name, ast.Constant) and isinstance(name.value, str) else ""
    return f"dlsys.{found}" if function == "with_compiler" and found else found


def is_for_types(node: ast.AST) -> bool:
    """Whether it is `if TYPE_CHECKING:`."""
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def is_own(node: ast.AST) -> bool:
    """Whether it is `from .module import name`."""
    return isinstance(node, ast.ImportFrom) and node.level == 1


def imports_of(path: Path, package: Path) -> list[tuple[int, str, bool]]:
    """Every import of a file, also those inside functions and those by name: (line, absolute name, is it `import *`).

    `from a import b` gives "a.b"; whether b is a module is decided by whoever knows the modules. The end of a name
    that is computed is left out, as in "dlsys.relax.". What a file imports from its own package for a type checker
    alone is none: nothing runs it.
    """
    found = []
    folder = [package.name, *path.relative_to(package).parts[:-1]]
    tree = ast.parse(path.read_text(encoding="utf-8"))
    unread = {node for block in tree.body if is_for_types(block) for node in ast.walk(block) if is_own(node)}
    for node in ast.walk(tree):
        if node in unread:
            continue
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name, False) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = folder[: len(folder) - node.level + 1] if node.level else []
            base = [*base, *([node.module] if node.module else [])]
            for alias in node.names:
                found.append((node.lineno, ".".join([*base, alias.name]), alias.name == "*"))
        elif (name := imported_by_name(node)) is not None:
            rest = name.lstrip(".")
            base = folder[: len(folder) - (len(name) - len(rest)) + 1] if name.startswith(".") else []
            found.append((node.lineno, ".".join([*base, rest]), False))
    return found


def resolve(name: str, package: str, modules: set[str]) -> set[str]:
    """The module of the package that an imported name comes from, none for names of other packages; of a name whose end
    is computed, all that it may be."""
    if name.endswith("."):
        return {module for module in modules if f"{package}.{module}".startswith(name)}
    parts = name.split(".")
    if parts[0] != package:
        return set()
    inner = parts[1:]
    while inner and ".".join(inner) not in modules:
        inner = inner[:-1]
    return {".".join(inner) or "__init__"} & modules


def run_by(name: str, target: str, modules: set[str]) -> set[str]:
    """The modules that an import runs: its target and, before it, the packages around it that are not around the
    importing one as well."""
    parts = target.split(".")
    packages = {".".join(parts[:i]) for i in range(1, len(parts))} & modules
    return {target, *(outer for outer in packages if not f"{name}.".startswith(f"{outer}."))}


def violations(package: Path) -> list[str]:
    """What is wrong with the imports of a package, one sentence each."""
    paths = {module_name(path, package): path for path in sorted(package.rglob("*.py"))}
    wrong = []
    arrows: dict[str, set[str]] = {name: set() for name in paths}
    for name, path in paths.items():
        room = name.split(".")[0]
        if room not in RANK:
            wrong.append(f"{name}: has no layer")
            continue
        for line, imported, star in imports_of(path, package):
            if not imported.strip(".") or imported == f"{package.name}.":
                wrong += [] if name in COMPUTED else [f"{name}:{line}: imports by a computed name"]
                continue
            place = f"{name}:{line}"
            if star:
                wrong.append(f"{place}: import *")
            if imported.split(".")[0] in ("tvm", "tvm_ffi") and room not in TVM_DOORS:
                wrong.append(f"{place}: imports TVM")
            for target in resolve(imported, package.name, set(paths)):
                arrows[name] |= run_by(name, target, set(paths))
                target_room = target.split(".")[0]
                if target_room != room and RANK.get(target_room, -1) >= RANK[room]:
                    wrong.append(f"{place}: imports {target}, which is not below it")
    return wrong + [f"cycle: {' -> '.join(cycle)}" for cycle in cycles(arrows)]


def cycles(arrows: dict[str, set[str]]) -> list[list[str]]:
    """One cycle for each module that still stands when modules without open imports are taken away."""
    open_imports = {name: set(targets) for name, targets in arrows.items()}
    while free := [name for name, targets in open_imports.items() if not targets]:
        for name in free:
            del open_imports[name]
        for targets in open_imports.values():
            targets.difference_update(free)
    found: list[list[str]] = []
    for start in sorted(open_imports):
        path = [start]
        while (step := min(open_imports[path[-1]])) not in path:
            path.append(step)
        cycle = [*path[path.index(step) :], step]
        if not any(set(cycle) == set(other) for other in found):
            found.append(cycle)
    return found


def violations_of(files: dict[str, str]) -> list[str]:
    """`violations` of a package written for the occasion."""
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder) / "dlsys"
        for name, text in files.items():
            path = package / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        return violations(package)


@pytest.mark.slow
def test_imports_run_downwards_and_in_no_cycle_of_files():
    modules = {module_name(path, PACKAGE).split(".")[0] for path in PACKAGE.rglob("*.py")}
    assert {"errors", "graph", "tvm_op", "executor", "autodiff"} <= modules
    assert violations(PACKAGE) == []


def test_types_of_the_own_package_alone_may_go_round_in_a_circle():
    block = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .{} import Tensor\n"
    circle = {"ops/base.py": "from . import typing\n", "ops/typing.py": block.format("base"), "ops/__init__.py": ""}
    assert violations_of(circle) == []
    above = {"ops/base.py": block.format(".tensors"), "tensors/__init__.py": "", "ops/__init__.py": ""}
    assert violations_of(above) == ["ops.base:3: imports tensors, which is not below it"]


def package_of(*files: str) -> dict[str, str]:
    """Files by their paths, each given as "module: its text"; a line break is written |."""
    return {f"{name}.py": text.strip().replace("|", "\n") + "\n" for name, _, text in (f.partition(":") for f in files)}


ACCEPTED = (
    "__init__: from . import autodiff|from .errors import DlsysError", "errors: import numpy",
    "compute: import tvm|from tvm import te", "ops/__init__: from .matmul import make|from . import add",
    "ops/matmul: from .. import compute|from ..graph import Node|from . import base",
    "ops/add: import dlsys.errors|from dlsys.graph import Node", "ops/base:",
    "graph: from .errors import GraphError", "autodiff: from .ops.matmul import make",
)  # fmt: skip
VIOLATIONS = {
    "graph:1: imports ops.add, which is not below it": ("graph: from .ops import add", "ops/add:"),
    "graph:2: imports executor, which is not below it": ("graph: def f():|    import dlsys.executor", "executor:"),
    "kernels:1: imports ops.add, which is not below it": (
        "kernels/__init__: module = import_module('..ops.add', __package__)", "ops/add:",
    ),
    "graph:2: imports ops.add, which is not below it": (
        "graph: def f(name):|    return with_compiler(f'ops.{name}')", "ops/add:",
    ),
    "graph:1: imports by a computed name": ("graph: module = import_module(name)",),
    "optim:1: imports nn, which is not below it": ("optim: from . import nn", "nn:"),
    "graph:1: imports __init__, which is not below it": ("__init__: cpu = 1", "graph: from dlsys import cpu"),
    "graph:1: imports TVM": ("graph: from tvm import te",),
    "ops.add:1: import *": ("ops/add: from numpy import *",),
    "helpers: has no layer": ("helpers:",),
    "cycle: schedule.cpu -> schedule.sums -> schedule.cpu": (  # what a package imports is imported before its files
        "schedule/cpu/__init__: from ..sums import x", "schedule/cpu/tiles:", "schedule/sums: from .cpu.tiles import y",
    ),
    "cycle: ops.a -> ops.b -> ops.a": ("ops/a: from .b import x", "ops/b: def f():|    from . import a"),
}  # fmt: skip


def test_downward_imports_are_accepted_and_violations_found() -> None:
    assert violations_of(package_of(*ACCEPTED)) == []
    for told, files in VIOLATIONS.items():
        assert violations_of(package_of(*files)) == [told]


def test_no_operator_is_told_by_its_name():
    """What a pass or an exporter needs of an operator its class says: nothing compares `op.name`, or looks it up."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            looked = [node.left, *node.comparators] if isinstance(node, ast.Compare) else []
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                looked += {"get": node.args[:1], "startswith": [node.func.value]}.get(node.func.attr, [])
            looked += [node.slice] if isinstance(node, ast.Subscript) else []
            looked += [node.subject] if isinstance(node, ast.Match) else []
            names = [ast.unparse(x) for x in looked if isinstance(x, ast.Attribute)]
            if any(name.endswith("node.op.name") for name in names):
                found.append(f"{path.name}:{node.lineno}: {ast.unparse(node)}")
    assert not found, found


def test_a_tensor_is_made_without_the_compiler() -> None:
    """It is loaded for the first value that is computed."""
    program = "import dlsys, sys; dlsys.tensor([1.0], requires_grad=True); print(*sys.modules)"
    told = python("-c", program, cwd=PACKAGE.parent).stdout
    loaded = {name.split(".")[1] for name in told.split() if name.startswith("dlsys.")}
    assert "tensors" in loaded and not loaded & {"compiler", "executor", "inspect", "kernels", "planner", "schedule"}


EXTENSIONS = (
    *("cli", "data", "deploy", "distributed", "exchange", "needle", "relax", "rpc", "training"),
    *("inspect.draw", "inspect.notebook", "inspect.profile", "inspect.trace", "schedule.cuda"),
)
BY_CORE = {  # what of them the core still imports, when a method is first called that needs it
    "inspect.stages -> inspect.draw", "inspect.stages -> inspect.profile", "inspect.stages -> inspect.trace",
    "tensors.base -> inspect.notebook",
}  # fmt: skip


@pytest.mark.slow
def test_the_core_imports_no_extension() -> None:
    paths = {module_name(path, PACKAGE): path for path in PACKAGE.rglob("*.py")}

    def is_extension(name: str) -> bool:
        return any(f"{name}.".startswith(f"{one}.") for one in EXTENSIONS)

    found = set()
    for name, path in paths.items():
        if not is_extension(name) and name not in (*COMPUTED, "__main__"):
            for _, imported, _ in imports_of(path, PACKAGE):
                if imported.endswith("."):  # of an extension's name, which a target has
                    continue
                reached = resolve(imported, PACKAGE.name, set(paths))
                found |= {f"{name} -> {target}" for target in reached if is_extension(target)}
    assert found == BY_CORE


TRAINS = """
import numpy as np, dlsys as dl
from dlsys import autodiff as ad, nn, optim
network = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
optimizer, random = optim.SGD(network.parameters(), lr=0.5), np.random.default_rng(0)
x, y = dl.tensor(random.normal(size=(64, 8)).astype("float32")), dl.tensor(random.integers(0, 3, 64))
losses = []
for _ in range(5):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(network(x), y)
    loss.backward()
    optimizer.step()
    losses.append(float(loss))
a, b = ad.Variable("a"), ad.Variable("b")
executor = ad.Executor([a @ b])
executor.run({a: np.ones((2, 3), "float32"), b: np.ones((3, 2), "float32")})
print(dl.__file__, losses[-1] < losses[0], "matmul" in executor.groups())
"""


@pytest.mark.slow
def test_a_network_trains_without_the_extensions(tmp_path: Path) -> None:
    shutil.copytree(PACKAGE, tmp_path / "dlsys", ignore=shutil.ignore_patterns("__pycache__"))
    for name in EXTENSIONS:
        path = tmp_path.joinpath("dlsys", *name.split("."))
        shutil.rmtree(path) if path.is_dir() else path.with_suffix(".py").unlink()
    printed = python("-c", TRAINS, cwd=tmp_path, PYTHONPATH=str(tmp_path)).stdout.split()
    assert printed == [str(tmp_path / "dlsys" / "__init__.py"), "True", "True"]
