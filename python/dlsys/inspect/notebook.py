"""What Jupyter shows of a tensor, a profile and an executor: tables as HTML, the picture of a graph as SVG."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from ..compiler import Plan
from ..errors import GraphError
from .draw import draw_graph

EDGE = 5  # rows and columns that are shown at each end of a larger tensor


def table(rows: Sequence[Sequence[str]], align: str, caption: str = "") -> str:
    """An HTML table of cells, of which the first row is the heading; `align` has `<` or `>` for each column."""
    sides = ["left" if side == "<" else "right" for side in align]

    def line(cells: Sequence[str], tag: str) -> str:
        pairs = zip(cells, sides, strict=True)
        return "".join(f'<{tag} style="text-align: {side}">{escape(text)}</{tag}>' for text, side in pairs)

    head, *body = rows
    lines = [f"<tr>{line(head, 'th')}</tr>", *(f"<tr>{line(cells, 'td')}</tr>" for cells in body)]
    return "\n".join(["<table>", f"<caption>{escape(caption)}</caption>", *lines, "</table>"])


def tensor(values: np.ndarray, caption: str) -> str:
    """The table of an array of one or two axes, with the indices; of a long axis the first and last EDGE places."""
    grid = np.atleast_2d(values)
    rows, columns = map(_shown, grid.shape)
    cells = [
        ["" if i is None else str(i), *("…" if i is None or j is None else f"{grid[i, j]:.4g}" for j in columns)]
        for i in rows
    ]
    head = ["", *("…" if j is None else str(j) for j in columns)]
    return table([head, *cells], ">" * len(head), caption)


def _shown(extent: int) -> list[int | None]:
    """The indices that are shown of an axis; None for those left out."""
    if extent <= 2 * EDGE:
        return list(range(extent))
    return [*range(EDGE), None, *range(extent - EDGE, extent)]


def graph(plan: Plan) -> str | None:
    """The picture of a plan's kernels as SVG; None for a graph that is too large for a picture."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "graph.svg"
        try:
            draw_graph(plan, path)
        except GraphError:
            return None
        return path.read_text(encoding="utf-8")
