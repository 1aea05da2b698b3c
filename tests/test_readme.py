"""What README.md says is true: its commands, its example's numbers, its overview of the modules."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from dlsys.system import available_cores

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tools"))

import core_path

import docs

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "python" / "dlsys"
README = (ROOT / "README.md").read_text(encoding="utf-8")
NUMBER = re.compile(r"\d+\.\d+")
LINE_TOLERANCE = 0.05  # of the lines of a file
NUMBERED = re.compile(r"_\d+\b")  # of nodes, which a process counts
DIGIT_TOLERANCE = 1.01e-4  # one unit in the last of the four digits that the example prints


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


def test_examples_print_what_is_shown():
    blocks = re.findall(r"```python\n(.*?)```\s+```text\n(.*?)```", README, re.DOTALL)
    assert len(blocks) == README.count("```python") == 3
    names: dict[str, object] = {}  # later blocks use the first one's imports
    for code, shown in blocks:
        with contextlib.redirect_stdout(io.StringIO()) as out:
            exec(compile(code, "README.md", "exec"), names)
        found, want = (NUMBERED.sub("_#", text) for text in (out.getvalue(), shown))
        assert " ".join(NUMBER.sub("#", found).split()) == " ".join(NUMBER.sub("#", want).split())
        printed, expected = ([float(n) for n in NUMBER.findall(text)] for text in (out.getvalue(), shown))
        assert np.allclose(printed, expected, rtol=0, atol=DIGIT_TOLERANCE), (printed, expected)


def test_the_code_of_the_docs_prints_what_they_show():
    pages = sorted(docs.DOCS.glob("*.md"))
    assert len(pages) >= 6

    def check(page: Path) -> None:
        with tempfile.TemporaryDirectory() as folder:
            printed = docs.run(page, Path(folder))
            made = {path.name for path in Path(folder).iterdir()}
        assert not docs.wrong(page, printed), "\n".join(docs.wrong(page, printed))
        text = page.read_text(encoding="utf-8")
        for target in re.findall(r"\]\(([^)#]+)\)", text):
            assert "://" in target or (docs.DOCS / target).is_file(), (page.name, target)
        assert all(name in text for name in made if name.endswith((".svg", ".png"))), (page.name, made)

    with ThreadPoolExecutor(available_cores()) as pool:  # each in a process of its own
        list(pool.map(check, pages))


def test_overview_names_every_module():
    rows = set(re.findall(r"^\| `([\w/]+\.py|\w+/)` \|", README, re.MULTILINE))
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


def test_variables_are_read_somewhere():
    """The documented environment variables occur in the package, and all of the package's are documented."""
    code = "".join(path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py"))
    documented = set(re.findall(r"^\| `([A-Z_]{6,})` \|", README, re.MULTILINE))
    assert documented == set(re.findall(r"\b(?:DLSYS|TVM)_[A-Z_]+\b", code))
