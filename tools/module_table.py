"""Writes the module table's lines into README.md, from the files as they are: `python tools/module_table.py`."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "python" / "dlsys"
CORE = (
    *("graph.py", "gradients.py", "planner.py", "executor.py"),
    *(f"ops/{name}.py" for name in ("__init__", "rules", "types", "inputs", "arithmetic", "linalg", "shape")),
    *(f"ops/{name}.py" for name in ("reduction", "activation", "loss", "state")),
    *("compute/elementwise.py", "compute/contraction.py"),
    *(f"compiler/{name}.py" for name in ("__init__", "types", "base", "passes", "groups", "fuse", "aliases")),
    *(f"compiler/{name}.py" for name in ("lower", "program", "plan")),
    *(f"kernels/{name}.py" for name in ("spec", "cache", "build", "kernel", "runner")),
    *(f"schedule/{name}.py" for name in ("__init__", "target", "common", "stages", "roles", "codegen")),
    *(f"schedule/cpu/{name}.py" for name in ("__init__", "contraction", "tiles", "elementwise")),
)
"""The files to read in an afternoon: from a graph to the compiled loops of products and pointwise functions."""
BUDGETS = {
    "__init__.py": 140,
    "__main__.py": 10,
    "cli/": 450,
    "needle/": 1000,
    "training/": 450,
    "exchange/": 2440,
    "nn/": 1730,
    "data/": 1188,
    "serialization.py": 300,
    "optim/": 900,
    "random.py": 160,
    "tensors/": 1760,
    "autodiff.py": 40,
    "executor.py": 380,
    "relax/": 1500,
    "inspect/": 1000,
    "compiler/": 2400,
    "planner.py": 250,
    "gradients.py": 70,
    "ops/": 3200,
    "graph.py": 400,
    "gpu_op.py": 110,
    "ndarray.py": 40,
    "tvm_op.py": 220,
    "kernels/": 910,
    "schedule/": 2500,
    "compute/": 1700,
    "device/": 510,
    "errors.py": 47,
    "checks.py": 62,
    "names.py": 25,
    "scopes.py": 40,
    "storage.py": 65,
    "system.py": 48,
    "tvm_import.py": 45,
}
"""The lines that each room may have: 22,000 in all, and those of `relax/` and `exchange/`."""
ABOVE = {
    "needle/": 1308,
    "cli/": 590,  # 140 of them for roofline
    "nn/": 2293,  # 15 of them for sequences one at a time
    "optim/": 1012,
    "tensors/": 2531,  # 41 of them for devices
    "gradients.py": 96,  # 25 of them for loops, 2 for autocast
    "inspect/": 1365,  # 80 of them for loops
    "executor.py": 395,  # 10 of them for CUDA, as in the next rooms
    "device/": 782,  # 150 of them for graphs and copies on a GPU
    "system.py": 59,
    "scopes.py": 72,  # 32 of them for autocast
    "tvm_import.py": 76,
    "compiler/": 3774,  # 12 of them for export, 584 for loops, 130 for a GPU, 40 for short runs, 25 for columns
    "ops/": 5426,  # 220 of them for freezing, 591 for loops, 80 for sorts, 3 for strides
    "kernels/": 1435,  # 163 of them for tuning, export and freezing, 130 for loops, 75 for a GPU, 29 for objects
    "schedule/": 7002,  # 1,900 of them CUDA's; 738 for tuning, freezing, products, squares, rows; 330 many cores
    "compute/": 2579,  # 115 of them for freezing, 165 for sines and powers, 210 for sorts
}
"""Of rooms above their budget the most lines that they may have until they are within it: to be lowered only."""
ROW = re.compile(r"^\| `([\w/.]+)` \| (\d+) \| (\d+) \|", re.MULTILINE)
CORE_LINES = re.compile(r"\*\*core path\*\*, ([\d,]+) lines")


def lines_of(path: Path) -> int:
    """The lines of a file, or of all files of a folder."""
    files = path.rglob("*.py") if path.is_dir() else [path]
    return sum(len(file.read_text(encoding="utf-8").splitlines()) for file in files)


def core_lines() -> int:
    """The lines of the core path."""
    return sum(lines_of(PACKAGE / name) for name in CORE)


def main() -> None:
    """Rewrites the second column of each row that names a module, and the lines of the core path."""
    readme = ROOT / "README.md"
    text = readme.read_text(encoding="utf-8")
    text = ROW.sub(lambda found: f"| `{found[1]}` | {lines_of(PACKAGE / found[1])} | {BUDGETS[found[1]]} |", text)
    text = CORE_LINES.sub(f"**core path**, {core_lines():,} lines", text)
    readme.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
