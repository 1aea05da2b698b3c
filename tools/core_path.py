"""Writes the core path into README.md, with the lines of its files as they are: `python tools/core_path.py`."""

from __future__ import annotations

import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "python" / "dlsys"
CORE = (
    *("node.py", "graph.py", "gradients.py", "planner.py", "executor.py"),
    *(f"ops/{name}.py" for name in ("__init__", "primitive", "replay", "rules", "state", "elementwise", "linalg")),
    *(f"ops/{name}.py" for name in ("moves", "reduction", "loss")),
    *("compute/elementwise.py", "compute/contraction.py"),
    *(f"compiler/{name}.py" for name in ("__init__", "types", "base", "groups", "fuse")),
    *(f"compiler/{name}.py" for name in ("aliases", "lower", "plan")),
    *(f"kernels/{name}.py" for name in ("spec", "cache", "build", "kernel", "runner")),
    *(f"schedule/{name}.py" for name in ("__init__", "target", "common", "stages", "codegen")),
    *(f"schedule/cpu/{name}.py" for name in ("__init__", "tiler", "nest", "plan", "cost", "shares", "packing", "tile")),
    "schedule/cpu/pointwise.py",
)
"""The files to read in an afternoon: from a graph to the compiled loops of products and pointwise functions."""
MARKS = "<!-- core path -->\n", "\n<!-- end core path -->"
WIDTH = 128


def core_path() -> dict[str, int]:
    """The files of the core path in reading order, and the lines of each."""
    return {name: len((PACKAGE / name).read_text(encoding="utf-8").splitlines()) for name in CORE}


def told(text: str) -> tuple[str, str, str]:
    """A page in three: what stands before its paragraph of the core path, that paragraph, and what stands behind."""
    before, rest = text.split(MARKS[0])
    paragraph, behind = rest.split(MARKS[1])
    return before, paragraph, behind


def main() -> None:
    """Rewrites the paragraph of the core path."""
    readme = ROOT / "README.md"
    before, _, behind = told(readme.read_text(encoding="utf-8"))
    lines = core_path()
    files = ", ".join(f"`{name}` {count}" for name, count in lines.items())
    paragraph = textwrap.fill(f"{files}; {sum(lines.values()):,} lines.", WIDTH, break_on_hyphens=False)
    readme.write_text(before + MARKS[0] + paragraph + MARKS[1] + behind, encoding="utf-8")


if __name__ == "__main__":
    main()
