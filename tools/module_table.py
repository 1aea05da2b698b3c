"""Writes the module table's lines into README.md, from the files as they are: `python tools/module_table.py`."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def lines_of(path: Path) -> int:
    """The lines of a file, or of all files of a folder."""
    files = path.rglob("*.py") if path.is_dir() else [path]
    return sum(len(file.read_text(encoding="utf-8").splitlines()) for file in files)


def main() -> None:
    """Rewrites the second column of each row that names a module."""
    readme = ROOT / "README.md"

    def row(match: re.Match[str]) -> str:
        return f"| `{match[1]}` | {lines_of(ROOT / 'python' / 'dlsys' / match[1])} |"

    text = readme.read_text(encoding="utf-8")
    readme.write_text(re.sub(r"^\| `([\w/.]+)` \| \d+ \|", row, text, flags=re.M), encoding="utf-8")


if __name__ == "__main__":
    main()
