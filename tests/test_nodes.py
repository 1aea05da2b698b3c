"""Nodes are the same whatever a program imports, and nothing is set on their class from elsewhere."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent / "python" / "dlsys"
FIRST = (
    "from dlsys.ops import Variable",
    "from dlsys.autodiff import Variable",
    "import dlsys.gradients; from dlsys.ops import Variable",
    "import dlsys; from dlsys import autodiff; Variable = autodiff.Variable",
    "import dlsys.needle; from dlsys.ops import Variable",
)


def test_nodes_do_not_depend_on_what_is_imported() -> None:
    told = "x = Variable('x', (2,), 'float32'); print(type(x).__module__, type(x + 1).__name__, x.exp().shape)"
    programs = [[sys.executable, "-c", f"{imports}; {told}"] for imports in FIRST]
    running = [subprocess.Popen(program, stdout=subprocess.PIPE, text=True) for program in programs]
    found = {child.communicate(timeout=120)[0].strip() for child in running}
    assert found == {"dlsys.tensors.base Tensor (2,)"}


def test_nothing_is_patched() -> None:
    """No module sets attributes of another's class, no metaclass, no class assigned, no reference counts."""
    wrong = []
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            place = f"{path.relative_to(PACKAGE)}:{getattr(node, 'lineno', 0)}"
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "setattr":
                target = node.args[0]
                if not (isinstance(target, ast.Name) and target.id == "self"):
                    wrong.append(f"{place}: setattr")
            if isinstance(node, ast.Attribute) and node.attr in ("getrefcount", "__class__"):
                wrong.append(f"{place}: {node.attr}")
            if isinstance(node, ast.ClassDef) and any(keyword.arg == "metaclass" for keyword in node.keywords):
                wrong.append(f"{place}: metaclass")
    assert not wrong, wrong
