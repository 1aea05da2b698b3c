"""One style for all charts."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

COLOURS = {"dlsys": "#2f6db5", "PyTorch": "#e0703c", "torch.compile": "#c9a227", "JAX": "#3e9b5f", "NumPy": "#9aa3ad",
           "Relax": "#b3a2d1"}  # fmt: skip
"""Of those that are compared."""


def styled(axes: Any) -> None:
    """Gives matplotlib's axes two sides, and a light grid behind what is drawn."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="#dddddd", linewidth=0.8)
    axes.set_axisbelow(True)


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
    styled(axes)
    yield axes
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, fontsize="small")
    figure.savefig(path, dpi=130)
