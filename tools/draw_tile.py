"""Draws docs/images/matmul_tile.svg, a tile of a product, its panel and its rows: `python tools/draw_tile.py`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
from matplotlib.patches import Rectangle

TARGET = Path(__file__).resolve().parent.parent / "docs" / "images" / "matmul_tile.svg"
ROWS, VECTORS, LANES = 10, 2, 16
BLUE, GREEN, AMBER, GREY = "#2f6db5", "#3e9b5f", "#e0a030", "#9aa3ad"


def box(axes: Any, place: tuple[float, float], size: tuple[float, float], colour: str, alpha: float, edge: str) -> None:
    """One rectangle."""
    axes.add_patch(Rectangle(place, *size, facecolor=colour, alpha=alpha, edgecolor="none"))
    axes.add_patch(Rectangle(place, *size, fill=False, edgecolor=edge, linewidth=1.0))


def main() -> None:
    mpl.rcParams["svg.hashsalt"] = "dlsys"
    figure, axes = plt.subplots(figsize=(10, 5.2))
    box(axes, (0, 0), (22, 30), "white", 1, GREY)  # A
    box(axes, (0, 14), (22, 4), BLUE, 0.25, BLUE)
    box(axes, (9, 14), (0.6, 4), AMBER, 1, AMBER)
    box(axes, (26, 34), (30, 16), "white", 1, GREY)  # B
    box(axes, (44, 34), (6, 16), GREEN, 0.25, GREEN)
    box(axes, (44, 43), (6, 0.6), AMBER, 1, AMBER)
    box(axes, (26, 0), (30, 30), "white", 1, GREY)  # C
    box(axes, (44, 14), (6, 4), BLUE, 0.6, BLUE)
    for text, x, y in (
        ("A, m x k", 11, 31),
        ("B, k x n", 41, 51),
        ("C, m x n", 41, 31),
        (f"MR = {ROWS} rows of A,\nread as they lie", 11, 10.5),
        (f"panel of B:\nNR = {VECTORS * LANES} columns,\npacked", 35, 42),
        (f"tile: {ROWS} x {VECTORS} vectors\nof {LANES} lanes stay in\n{ROWS * VECTORS} registers", 44, 9),
    ):
        axes.text(x, y, text, ha="center", va="center", fontsize=10)
    note = "one step of k (amber):\n2 vectors of B are loaded,\n10 numbers of A broadcast,\n20 multiply-adds done"
    axes.text(66, 42, note, ha="center", va="center", fontsize=10)
    axes.text(66, 12, "after all k:\nthe epilogue,\nthen the store", ha="center", va="center", fontsize=10)
    axes.set_title("A tile of C = A B, 1000 x 784 by 784 x 256, float32, vectors of 512 bits", fontsize=11)
    axes.set(xlim=(-1, 76), ylim=(-1, 54))
    axes.axis("off")
    figure.savefig(TARGET, bbox_inches="tight", metadata={"Date": None})


if __name__ == "__main__":
    main()
