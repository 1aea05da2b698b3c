"""Draws dl_stack.png, the picture of the modules in the README: `python tools/draw_stack.py [FILE.png]`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")  # a file is written, no window is needed

import matplotlib.pyplot as plt
from core_path import ROOT
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

# (title, colour, modules: (files of the package, what is in it)); from the user down to the machine.
LAYERS: list[tuple[str, str, list[tuple[str, str]]]] = [
    ("Train", "#b0486b", [("training/", "fit"), ("nn/", "modules"), ("optim/", "optimizers"),
                          ("data/", "sets, loaders"), ("needle/", "the course"), ("exchange/", "ONNX"),
                          ("deploy/", "freeze, C"), ("relax/", "TVM Relax")]),
    ("Write", "#2f6db5", [("tensors/", "values, backward()"), ("autodiff.py", "Variable, gradients"),
                          ("random.py", "streams of numbers")]),
    ("Compile", "#23857a", [("executor.py", "run(feed_dict)"), ("inspect/", "text, pictures"),
                            ("compiler/", "rules, fusion, plan"), ("planner.py", "one arena")]),
    ("Operators", "#6a5aa8", [("gradients.py", "more graph"), ("ops/", "one class each: shape, gradient, formula")]),
    ("Kernels", "#c0792a", [("tvm_op.py", "make_relu, ..."), ("gpu_op.py", "course of 2017"),
                            ("kernels/", "build, call"), ("schedule/", "how: the loops"),
                            ("compute/", "what: formulas")]),
    ("Base", "#56606b", [("devices/", "arrays, threads"), ("node.py", "Node"), ("graph.py", "Op, the order"),
                         ("scopes.py", "no_grad, autocast"), ("errors.py", "exceptions")]),
]  # fmt: skip
ONCE = ["the graph", "its gradients", "types, rules", "groups, fused", "a place in the arena", "loops by a rule",
        "machine code"]  # fmt: skip
EACH = ["feeds, parameters", "a table of calls", "kernels, in order", "results in the arena"]
WIDTH, HEIGHT, GAP = 86.0, 10.5, 2.0


def shown() -> str:
    """All that the picture says, which the file holds as its description."""
    return repr([*((title, modules) for title, _, modules in LAYERS), ONCE, EACH])


def box(axes: Any, x: float, y: float, width: float, height: float, colour: str, fill: str) -> None:
    """A rounded box whose lower left corner is (x, y)."""
    style = "round,pad=0,rounding_size=0.8"
    axes.add_patch(FancyBboxPatch((x, y), width, height, boxstyle=style, ec=colour, fc=fill, linewidth=1.4))


def way(axes: Any, x: float, title: str, steps: list[str], colour: str, top: float, bottom: float) -> None:
    """Steps from top to bottom, joined by arrows."""
    axes.text(x, top + 1.2, title, ha="center", va="bottom", fontsize=11.5, fontweight="bold", color=colour)
    each = (top - bottom) / len(steps)
    for i, step in enumerate(steps):
        y = top - (i + 0.5) * each
        box(axes, x - 9, y - 1.7, 18, 3.4, colour, "white")
        axes.text(x, y, step, ha="center", va="center", fontsize=9.2)
        if i:
            ends = (x, y + each - 1.7), (x, y + 1.7)
            axes.add_patch(FancyArrowPatch(*ends, arrowstyle="-|>", mutation_scale=11, color=colour))


def main() -> None:
    total = len(LAYERS) * (HEIGHT + GAP)
    figure, axes = plt.subplots(figsize=(14, 7.6))
    for layer, (title, colour, modules) in enumerate(LAYERS):
        y = total - (layer + 1) * (HEIGHT + GAP)
        box(axes, 0, y, WIDTH, HEIGHT, colour, colour + "1c")
        axes.text(1.6, y + HEIGHT / 2, title, va="center", fontsize=13.5, fontweight="bold", color=colour)
        width = (WIDTH - 17) / len(modules)
        for i, (name, what) in enumerate(modules):
            x = 16.5 + i * width
            box(axes, x, y + 1.4, width - 1.2, HEIGHT - 2.8, colour, "white")
            middle = x + (width - 1.2) / 2
            large, small = min(10, 0.8 * width), min(8, 0.64 * width)  # as many letters as fit
            axes.text(middle, y + 6.6, name, ha="center", va="center", fontsize=large, fontweight="bold")
            axes.text(middle, y + 3.7, what, ha="center", va="center", fontsize=small)
    way(axes, WIDTH + 13, "once", ONCE, "#23857a", total - GAP - 5, 0)
    way(axes, WIDTH + 35, "each step", EACH, "#b0486b", total - GAP - 5, 0)
    for x, note in (
        (WIDTH / 2, "A module imports only from modules below it. Apache TVM generates the code."),
        (WIDTH + 13, "for each set\nof feed shapes"),
        (WIDTH + 35, "no Python between kernels,\nno memory allocated"),
    ):
        axes.text(x, -2, note, ha="center", va="top", fontsize=9, color="#333333")
    axes.set(xlim=(-1, WIDTH + 46), ylim=(-7, total + 1))
    axes.axis("off")
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "dl_stack.png"
    figure.savefig(path, dpi=110, bbox_inches="tight", metadata={"Description": shown()})


if __name__ == "__main__":
    main()
