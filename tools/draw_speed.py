"""Draws docs/images/speed.png from benchmarks/results: `python tools/draw_speed.py [FILE.png]`.

Left: GFLOP/s of products on one thread, from bench_matmul. Right: a training step's time on one thread, PyTorch eager's
being 1, from bench_models.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from dlsys.charts import COLOURS, styled

ROOT = Path(__file__).resolve().parent.parent
SHOWN = ("dlsys", "PyTorch", "torch.compile", "JAX", "NumPy")
PRODUCTS = ("1000x784x256 NN", "512x512x512 NN", "1024x1024x1024 NN")
NETWORKS = ("MLP", "ResNet9", "Transformer", "LSTM", "ResNet-18", "ViT")
Group = tuple[str, dict[str, float]]
"""A title, and the number of each contender."""


def loaded(name: str) -> tuple[str, list[dict[str, str]]]:
    """The processor of a benchmark, and the rows of its first table for one thread, by columns."""
    text = (ROOT / "benchmarks" / "results" / f"{name}.md").read_text(encoding="utf-8")
    header, _, *lines = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in text.split("\n## ")[1].splitlines()
        if line.startswith("|")
    ]
    rows = [dict(zip(header, line, strict=True)) for line in lines]
    return text.split("\n\n")[2].split(", ")[0], [row for row in rows if row["threads"] == "1"]


def shown(row: dict[str, str]) -> dict[str, float]:
    """The numbers of those who are drawn, in their order."""
    return {who: float(row[who]) for who in SHOWN if row.get(who, "-") != "-"}


def grouped(axes: Any, groups: list[Group], title: str, unit: str) -> None:
    """Bars of each group's contenders, side by side."""
    for i, (_, values) in enumerate(groups):
        for j, (who, value) in enumerate(values.items()):
            place = i + (j - (len(values) - 1) / 2) * 0.8 / len(values)
            axes.bar(place, value, 0.74 / len(values), color=COLOURS[who])
    axes.set_xticks(range(len(groups)), [title for title, _ in groups], fontsize=8.5)
    axes.set_title(title, fontsize=10)
    axes.set_ylabel(unit)
    styled(axes)
    axes.grid(False, axis="x")


def main() -> None:
    (machine, products), (other, networks) = loaded("matmul"), loaded("models")
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 3.8), width_ratios=(3, 5))
    rows = [row for row in products if row["product"] in PRODUCTS]
    named = [(row["product"].removesuffix(" NN").replace("x", " x "), shown(row)) for row in rows]
    grouped(left, named, f"Products, float32, {machine}: more is better", "GFLOP/s")
    peak = float(rows[0]["peak"])
    left.axhline(peak, color="#444444", linewidth=1.2)
    left.text(-0.45, peak * 1.01, "the processor's peak", fontsize=8, va="bottom")
    left.set_ylim(0, 1.15 * peak)
    steps: list[Group] = []
    for row in networks:
        name, values = row["model"].split()[0].strip(","), shown(row)
        if name in NETWORKS:
            relative = {who: value / values["PyTorch"] for who, value in values.items()}
            steps.append((f"{name},\nbatch {row['model'].split()[-1]}", relative))
    grouped(right, steps, f"Training steps, {other}: less is better", "time of a step, PyTorch eager = 1")
    handles = [plt.Rectangle((0, 0), 1, 1, color=COLOURS[who]) for who in SHOWN]
    figure.legend(handles, SHOWN, loc="lower center", ncols=len(SHOWN), frameon=False, fontsize=9)
    figure.suptitle("One thread", fontsize=10)
    figure.tight_layout(rect=(0, 0.06, 1, 1))
    figure.savefig(sys.argv[1] if len(sys.argv) > 1 else ROOT / "docs" / "images" / "speed.png", dpi=110)


if __name__ == "__main__":
    main()
