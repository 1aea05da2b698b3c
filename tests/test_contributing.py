"""What CONTRIBUTING.md and docs/operators.md say is true: the files are there, and an operator needs no others."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest
from helpers import python

ROOT = Path(__file__).resolve().parent.parent
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
OPERATORS = (ROOT / "docs" / "operators.md").read_text(encoding="utf-8")
TRIES = """
import helpers, test_graph, test_ops, test_own_operators
own = "my_outer"
test_ops.test_every_operator_has_cases_of_its_own()
for name in set(helpers.CASES) - {own}:
    del helpers.CASES[name]
for name, test in vars(test_ops).items():
    if name.startswith("test_") and "each_case" in test.__code__.co_names and "own" not in name:
        for arguments in zip(range(test_ops.CHUNKS)) if test.__code__.co_argcount else [()]:
            test(*arguments)
print("tried", *helpers.CASES)
"""


def test_files_that_are_named_exist() -> None:
    for page in (CONTRIBUTING, OPERATORS):
        paths = re.findall(r"`((?:\.|\w)[\w./-]*/[\w./-]*)`", page)
        assert len(paths) >= 6
        for path in paths:
            path = path if (ROOT / path.split("/")[0]).exists() else f"python/dlsys/{path}"
            assert (ROOT / path).exists(), path
        for target in re.findall(r"\]\(([^)#:]+)\)", page):
            assert (ROOT / target).is_file() or (ROOT / "docs" / target).is_file(), target


def appended(path: Path, code: str) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write("\n\n" + code)


@pytest.mark.slow
def test_an_operator_needs_the_four_files_of_the_page(tmp_path: Path) -> None:
    """The page's operator, put into a copy of the package as it says, passes the tests of operators there."""
    ignored = shutil.ignore_patterns("__pycache__")
    for folder in ("python", "tests"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=ignored)
    formula, operator, *_ = re.findall(r"^```python\n(.*?)^```$", OPERATORS, re.MULTILINE | re.DOTALL)
    (cases,) = re.findall(r"^```py\n(.*?)^```$", OPERATORS, re.MULTILINE | re.DOTALL)
    files = re.findall(r"^\| `([\w./]+)` \|", OPERATORS.split("touches four files")[1], re.MULTILINE)[:4]
    parts = (
        formula[formula.index("def ") :],
        "from ..errors import ShapeError\nfrom .primitive import primitive\n\n"
        + operator[operator.index("def ") :].replace("te=my", "te=compute.my"),
        "from .linalg import my_outer_op\n",
        cases,
    )
    for path, part in zip(files, parts, strict=True):
        appended(tmp_path / path, part)
    paths = os.pathsep.join(str(tmp_path / path) for path in ("python", "tests", "tests/ops"))
    done = python("-c", TRIES, cwd=tmp_path / "tests", PYTHONPATH=paths)
    assert done.stdout.splitlines()[-1:] == ["tried my_outer"], done.stdout + done.stderr
