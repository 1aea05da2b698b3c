"""A hook of MkDocs: some pages are notebooks too, with what they print as their cells' output, linked at their top."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

sys.path.insert(0, str(Path(__file__).resolve().parent))

import docs

NOTEBOOKS = ("tour", "matmul", "relax")


def notebook(page: Path) -> dict[str, Any]:
    """The page as a notebook, in the form of Jupyter's nbformat 4: each `python` block is a cell with its output."""
    content, start = page.read_text(encoding="utf-8"), 0
    cells: list[dict[str, Any]] = []

    def text(end: int) -> None:
        if words := content[start:end].strip():
            cells.append({"cell_type": "markdown", "metadata": {}, "source": words})

    blocks = [block for block in docs.BLOCK.finditer(content) if block[1] == "python"]
    for block, shown in zip(blocks, docs.shown(page), strict=True):
        text(block.start())
        outputs = [] if shown is None else [{"output_type": "stream", "name": "stdout", "text": shown[2]}]
        code = {"cell_type": "code", "metadata": {}, "execution_count": None, "source": block[2].strip()}
        cells.append({**code, "outputs": outputs})
        start = block.end() if shown is None else content.index("```", shown[1]) + 3
    text(len(content))
    return {"nbformat": 4, "nbformat_minor": 4, "metadata": {}, "cells": cells}


def on_files(files: Any, config: Any) -> Any:
    """Called by MkDocs with all files of the site."""
    for name in NOTEBOOKS:
        content = json.dumps(notebook(docs.DOCS / f"{name}.md"), indent=1)
        files.append(File.generated(config, f"{name}.ipynb", content=content))
    return files


def on_page_markdown(markdown: str, page: Any, **kwargs: Any) -> str:
    """Called by MkDocs with the text of each page."""
    name = page.file.src_uri.removesuffix(".md")
    if name not in NOTEBOOKS:
        return markdown
    title, rest = markdown.split("\n", 1)
    return f"{title}\n\n[This page as a notebook]({name}.ipynb)\n{rest}"
