"""Draws dl_stack.png, the picture of the stack in the README: `python tools/draw_stack.py [FILE.png]`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")  # a file is written, no window is needed

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

# (title, module line, colour, boxes: (name, what it does)); from the user down to the machine.
LAYERS = [
    (
        "Networks",
        "nn · optim · data · training",
        "#b0486b",
        [
            ("Module", "Linear … Transformer"),
            ("optimizers", "SGD … AdamW"),
            ("DataLoader", "MNIST, CIFAR-10, text"),
            ("fit", "loop, checkpoints, logs"),
        ],
    ),
    (
        "User API",
        "dlsys · dlsys.autodiff",
        "#2f6db5",
        [
            ("tensor", "values, backward()"),
            ("Variable", "X @ W + b, a graph"),
            ("gradients", "more of the same graph"),
            ("Executor", "run(feed_dict)"),
        ],
    ),
    (
        "Graph & execution",
        "graph · ops · passes · executor",
        "#23857a",
        [
            ("Node · Op", "one class per operator"),
            ("passes", "simplify, then fuse"),
            ("memory planner", "one arena, by liveness"),
            ("step", "one call, kept on disk"),
        ],
    ),
    (
        "Kernels",
        "compute · schedule · tvm_op",
        "#c0792a",
        [
            ("compute", "what: one TE formula each"),
            ("schedule rules", "how: pack, tile, vectorize"),
            ("make_matrix_mul, …", "thirteen kernel factories"),
        ],
    ),
    (
        "Code generation",
        "Apache TVM",
        "#7a56a5",
        [
            ("TensorIR", "loops, lowered"),
            ("LLVM", "host code"),
            ("CUDA C", "device code"),
        ],
    ),
    (
        "Hardware",
        "",
        "#55606e",
        [
            ("CPU", "AVX2 · AVX-512 · NEON, threads"),
            ("GPU", "CUDA"),
        ],
    ),
]
INK = "#1d2733"
WIDTH, HEIGHT = 1200, 930  # pixels; one unit of the axes is one pixel
MARGIN, LABEL_WIDTH, GAP = 30, 250, 36
LAYER_HEIGHT = (HEIGHT - 2 * MARGIN - (len(LAYERS) - 1) * GAP) / len(LAYERS)


def draw_box(axes: Axes, x: float, y: float, width: float, height: float, **style: Any) -> None:
    """A rounded rectangle with its lower left corner at (x, y)."""
    axes.add_patch(FancyBboxPatch((x, y), width, height, boxstyle="round,pad=0,rounding_size=10", **style))


def draw_layer(
    axes: Axes, y: float, title: str, modules: str, colour: str, boxes: list[tuple[str, str]]
) -> None:
    """One band of the picture: its title at the left, its parts side by side at the right."""
    draw_box(
        axes, MARGIN, y, WIDTH - 2 * MARGIN, LAYER_HEIGHT, facecolor=colour + "22", edgecolor=colour, lw=1.6
    )
    middle = y + LAYER_HEIGHT / 2
    title_y = middle + 13 if modules else middle
    axes.text(MARGIN + 20, title_y, title, fontsize=15, weight="bold", color=colour, va="center")
    axes.text(MARGIN + 20, middle - 15, modules, fontsize=10, color=INK, va="center")
    left, pad, space = MARGIN + LABEL_WIDTH + 10, 16, 16
    width = (WIDTH - MARGIN - pad - left - space * (len(boxes) - 1)) / len(boxes)
    for index, (name, what) in enumerate(boxes):
        x = left + index * (width + space)
        draw_box(axes, x, y + pad, width, LAYER_HEIGHT - 2 * pad, facecolor="white", edgecolor=colour, lw=1.2)
        centred: dict[str, Any] = {"color": INK, "ha": "center", "va": "center"}
        axes.text(x + width / 2, middle + 13, name, fontsize=13, weight="bold", **centred)
        axes.text(x + width / 2, middle - 14, what, fontsize=10.5, **centred)


def main(path: Path) -> None:
    # The font that comes with matplotlib: the picture is the same everywhere.
    plt.rcParams["font.family"] = "DejaVu Sans"
    figure = plt.figure(figsize=(WIDTH / 100, HEIGHT / 100), dpi=100)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, WIDTH), ylim=(0, HEIGHT))
    axes.axis("off")
    for index, layer in enumerate(LAYERS):
        y = HEIGHT - MARGIN - LAYER_HEIGHT - index * (LAYER_HEIGHT + GAP)
        draw_layer(axes, y, *layer)
        if index + 1 < len(LAYERS):
            centre = (WIDTH + LABEL_WIDTH) / 2
            arrow = FancyArrowPatch(
                (centre, y - 3), (centre, y - GAP + 3), arrowstyle="-|>", mutation_scale=18
            )
            arrow.set(color=INK, lw=1.6)
            axes.add_patch(arrow)
    figure.savefig(path, facecolor="white")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent.parent / "dl_stack.png")
