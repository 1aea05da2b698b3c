"""Runs the code of README.md and docs/*.md: `python tools/docs.py` checks what it prints, `--write` writes it there.

The `python` blocks of a page are one program, run in a folder of its own. A `text` block right behind one of them is
what it prints; `...` in a line stands for anything, a line of `...` for any lines. Pictures that the program leaves in
its folder are those of docs/images.
"""

from __future__ import annotations

import argparse
import doctest
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = (ROOT / "README.md", *sorted(DOCS.glob("*.md")))
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NUMBERED = re.compile(r"_\d+\b")  # of nodes, which a process counts
PROGRAM = """
import contextlib, io, json, sys
name, blocks = json.load(sys.stdin)
names, printed, line = {"__name__": "__main__"}, [], 0
for code in blocks:
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(compile(chr(10) * line + code, name, "exec"), names)
    line += code.count(chr(10))
    printed.append(out.getvalue())
json.dump(printed, open("printed.json", "w"))
"""


def run(page: Path, folder: Path) -> list[str]:
    """What each `python` block of a page prints, run in a folder. Raises RuntimeError where the program fails."""
    blocks = [code for language, code in BLOCK.findall(page.read_text(encoding="utf-8")) if language == "python"]
    folders = [str(ROOT / name) for name in ("python", "apps", "benchmarks")]
    paths = os.pathsep.join([*folders, os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": paths, "MPLBACKEND": "Agg", "TVM_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM],
        input=json.dumps([f"{page.stem}.py", blocks]),
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{page.name}: {done.stderr.strip()}")
    return json.loads((folder / "printed.json").read_text(encoding="utf-8"))


def shown(page: Path) -> list[tuple[int, int, str] | None]:
    """For each `python` block the `text` block right behind it, as (start, end, text); None where there is none."""
    content = page.read_text(encoding="utf-8")
    found = list(BLOCK.finditer(content))
    result: list[tuple[int, int, str] | None] = []
    for i, block in enumerate(found):
        if block[1] == "python":
            behind = found[i + 1] if i + 1 < len(found) else None
            joined = behind is not None and behind[1] == "text" and not content[block.end() : behind.start()].strip()
            result.append((behind.start(2), behind.end(2), behind[2]) if joined and behind is not None else None)
    return result


def wrong(page: Path, printed: list[str]) -> list[str]:
    """What is shown and not printed."""
    checker, found = doctest.OutputChecker(), []
    for number, (text, place) in enumerate(zip(printed, shown(page), strict=True), 1):
        if place is None:
            continue
        want, got = (NUMBERED.sub("_#", part) for part in (place[2], text))
        if not checker.check_output(want, got, doctest.ELLIPSIS):
            found.append(f"{page.name}, block {number} prints\n{text}\nwhere the page shows\n{place[2]}")
    return found


def write(page: Path, printed: list[str], folder: Path) -> None:
    """Put what is printed into the page, but where it has `...`, and the pictures into docs/images."""
    content = page.read_text(encoding="utf-8")
    for text, place in reversed(list(zip(printed, shown(page), strict=True))):
        if place is not None and "..." not in place[2]:
            content = content[: place[0]] + text + content[place[1] :]
    page.write_text(content, encoding="utf-8")
    for picture in (*folder.glob("*.svg"), *folder.glob("*.png")):
        shutil.copy(picture, DOCS / "images" / picture.name)


def main() -> int:
    """The number of blocks that print something else than is shown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="*", type=Path, help="README.md and all of docs/ by default")
    parser.add_argument("--write", action="store_true", help="put what is printed into the pages")
    options = parser.parse_args()
    count = 0
    for page in options.pages or PAGES:
        with tempfile.TemporaryDirectory() as name:
            printed = run(page, Path(name))
            if options.write:
                write(page, printed, Path(name))
        found = wrong(page, printed)
        print("\n".join(found) or f"{page.name}: {len(printed)} blocks")
        count += len(found)
    return count


if __name__ == "__main__":
    sys.exit(main())
