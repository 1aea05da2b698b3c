"""One style for all charts."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def chart(
    path: Any, title: str, xlabel: str, ylabel: str = "", size: tuple[float, float] = (8.0, 4.5)
) -> Iterator[Any]:
    """Matplotlib's axes to draw on; the figure is written to `path` afterwards, with a legend of all labels. Raises
    OSError if it cannot be written."""
    from matplotlib.figure import Figure  # without pyplot, whose backend is the program's to choose

    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots()
    axes.set(title=title, xlabel=xlabel, ylabel=ylabel)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="#dddddd", linewidth=0.8)
    axes.set_axisbelow(True)
    yield axes
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, fontsize="small")
    figure.savefig(path, dpi=130)
