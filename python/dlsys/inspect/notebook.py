"""What Jupyter shows of a tensor: a table."""

from __future__ import annotations

from html import escape
from typing import Any

import numpy as np

EDGE = 5  # rows and columns that are shown at each end of a larger tensor


def tensor(values: np.ndarray, caption: str) -> str:
    """An array of one or two axes as an HTML table with the indices; of a long axis the first and last EDGE places."""
    grid = np.atleast_2d(values)
    rows, columns = map(_shown, grid.shape)
    lines = [["<th></th>", *(f"<th>{j}</th>" for j in columns)]]
    for i in rows:
        lines.append([f"<th>{i}</th>", *(f"<td>{'…' if '…' in (i, j) else f'{grid[i, j]:.4g}'}</td>" for j in columns)])
    body = "\n".join(f"<tr>{''.join(cells)}</tr>" for cells in lines)
    return f"<table>\n<caption>{escape(caption)}</caption>\n{body}\n</table>"


def _shown(extent: int) -> list[Any]:
    """The indices that are shown of an axis; an ellipsis for those left out."""
    every = list(range(extent))
    return every if extent <= 2 * EDGE else [*every[:EDGE], "…", *every[-EDGE:]]
