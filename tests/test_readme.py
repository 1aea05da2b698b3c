"""What README.md and docs/ say is true: commands, what examples print, modules, lines, links, settings, errors."""

from __future__ import annotations

import re
import shlex
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from dlsys import errors
from optional import onnxscript, torch
from PIL import Image
from test_layers import RANK

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tools"))

import core_path
import draw_stack

import docs

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "python" / "dlsys"
README = (ROOT / "README.md").read_text(encoding="utf-8")
LINE_TOLERANCE = 0.05  # of the lines of a file


def command(name: str) -> list[str]:
    """The words of the fenced block that follows `<!-- NAME command -->`, as .ci/run reads it."""
    found = re.search(rf"^<!-- {name} command -->\n```sh\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    assert found, f"README.md has no {name} command"
    return shlex.split(found[1])


def test_commands_name_what_exists():
    main, test = command("main"), command("test")
    assert (ROOT / "tests" / "mnist_dlsys.py").is_file() and "tests/mnist_dlsys.py" in main
    assert main[-3:] == ["-l", "-m", "mlp"]
    nose = test.index(".venv/bin/nosetests")
    assert test[nose : nose + 2] == [".venv/bin/nosetests", "-v"] and ".venv/bin/pytest" in test[nose:]
    assert all((ROOT / word).is_file() for word in test if word.startswith("tests/"))
    for words in (main, test):
        assert words[:4] == ["python3", "-m", "venv", ".venv"] and ".venv/bin/pip" in words, words
    assert re.search(r"^test = \[", (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)


@pytest.mark.slow
@pytest.mark.parametrize("page", docs.PAGES, ids=lambda page: page.stem)
def test_the_code_of_a_page_prints_what_it_shows(page: Path, tmp_path: Path) -> None:
    text = page.read_text(encoding="utf-8")
    if "import torch" in text:
        assert torch.nn  # or skipped
    if "from_torch" in text:
        assert onnxscript.script
    printed = docs.run(page, tmp_path)
    made = {path.name for path in tmp_path.iterdir()}
    assert not docs.wrong(page, printed), "\n".join(docs.wrong(page, printed))
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        assert "://" in target or (page.parent / target).is_file(), target
    assert all(name in text for name in made if name.endswith((".svg", ".png"))), made


def test_pages_and_blocks_are_found() -> None:
    assert len(docs.PAGES) >= 6 and len(docs.shown(ROOT / "README.md")) >= 2


def test_overview_names_every_module():
    _, behind = README.split("\n## Modules\n")
    rows = set(re.findall(r"`(\w+\.py|\w+/)`", behind.split("\n\n| for |")[1].split("\n\n")[0]))
    packages = {path for path in PACKAGE.iterdir() if path.suffix == ".py" or any(path.rglob("*.py"))}
    true = {path.name if path.is_file() else f"{path.name}/" for path in packages}
    assert rows == true, rows ^ true


def test_core_path_counts_its_lines():
    _, paragraph, _ = core_path.told(README)
    shown = {name: int(lines) for name, lines in re.findall(r"`([\w/.]+)`\s(\d+)", paragraph)}
    true = core_path.core_path()
    assert list(shown) == list(true)
    for name, lines in true.items():
        assert abs(shown[name] - lines) <= LINE_TOLERANCE * lines + 2, (name, shown[name], lines)


def test_links_and_picture_exist():
    targets = [t for t in re.findall(r"\]\(([^)#]+)\)", README) if "://" not in t]
    assert "dl_stack.png" in targets
    for target in targets:
        assert (ROOT / target).is_file(), target


def test_picture_shows_the_modules_as_they_import_each_other():
    with Image.open(ROOT / "dl_stack.png") as picture:
        assert picture.text["Description"] == draw_stack.shown(), "python tools/draw_stack.py"
    ranks = [
        [RANK[name.rstrip("/").removesuffix(".py")] for name, _ in modules]
        for *_, modules in draw_stack.LAYERS
    ]
    assert all(min(above) > max(below) for above, below in pairwise(ranks)), ranks


def test_every_error_has_a_program_that_raises_it():
    page = (docs.DOCS / "errors.md").read_text(encoding="utf-8")
    sections = dict(part.split("\n", 1) for part in page.split("\n## ")[1:])
    for name in (name for name in vars(errors) if name.endswith("Error") and name != "DlsysError"):
        assert re.search(rf"^{name}: ", sections[name], re.MULTILINE), name


def test_variables_are_read_somewhere():
    """The documented environment variables occur in the package, and all of the package's are documented."""
    code = "".join(path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py"))
    page = (docs.DOCS / "settings.md").read_text(encoding="utf-8")
    documented = set(re.findall(r"^\| `([A-Z_]{6,})` \|", page, re.MULTILINE))
    assert documented == set(re.findall(r"\b(?:DLSYS|TVM)_[A-Z_]+\b", code))
