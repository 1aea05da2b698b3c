"""Draws docs/images/speed.png from benchmarks/results: `python tools/draw_speed.py [FILE.png]`.

Left: GFLOP/s of products on one thread, from bench_matmul. Right: a training step's time, PyTorch eager's being 1, from
bench_mnist and bench_models.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from dlsys.charts import COLOURS, styled

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
SHOWN = ("dlsys", "PyTorch", "torch.compile", "JAX", "NumPy")
PRODUCTS = ("1000x784x256 NN", "512x512x512 NN", "1024x1024x1024 NN")
NETWORKS = ("ResNet9", "Transformer")
NAMES = {"PyTorch eager": "PyTorch", "step": "dlsys"}
"""What a column is called here, where its own name is another."""


def loaded(name: str, section: str) -> tuple[str, str, list[dict[str, str]]]:
    """The processor of a benchmark, the title of the section that begins with `section`, and its rows, by columns;
    of two columns of one name the first."""
    text = (RESULTS / f"{name}.md").read_text(encoding="utf-8")
    part = next(part for part in text.split("\n## ") if part.startswith(section))
    header, _, *rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in part.splitlines() if line.startswith("|")
    ]
    processor = text.split("\n\n")[2].split(", ")[0]
    return processor, part.splitlines()[0], [dict(zip(header[::-1], row[::-1], strict=True)) for row in rows]


def shown(row: dict[str, str]) -> dict[str, float]:
    """The numbers of those who are drawn, in their order."""
    named = {NAMES.get(column, column): cell for column, cell in row.items()}
    return {who: float(named[who]) for who in SHOWN if named.get(who, "-") != "-"}


def grouped(axes: Any, groups: list[tuple[str, dict[str, float]]]) -> None:
    """Bars of each group's contenders, side by side."""
    for i, (_, values) in enumerate(groups):
        for j, (who, value) in enumerate(values.items()):
            place = i + (j - (len(values) - 1) / 2) * 0.8 / len(values)
            axes.bar(place, value, 0.74 / len(values), color=COLOURS[who])
    axes.set_xticks(range(len(groups)), [title for title, _ in groups], fontsize=8.5)
    styled(axes)
    axes.grid(False, axis="x")


def main() -> None:
    processor, title, products = loaded("matmul", "Matrix multiplication, GFLOP/s, 1 thread")
    peak = float(title.split("peak ")[1].split()[0])
    rows = [row for row in products if row["row"] in PRODUCTS]
    left = [(row["row"].replace(" NN", "").replace("x", " x "), shown(row)) for row in rows]
    processors = {"products": processor}
    right: list[tuple[str, dict[str, float]]] = []
    processors["MLP"], _, steps = loaded("mnist", "Seconds per epoch")
    for row in steps:
        if row["model"] == "mlp" and row["threads"] == "1" and row["batch"] in ("1000", "100"):
            right.append((f"MLP,\nbatch {row['batch']}", shown(row)))
    processors["others"], _, networks = loaded("models", "Milliseconds of a training step")
    for row in networks:
        name, batch = row["model"].split(",")[0], row["model"].split()[-1]
        if row["threads"] == "1" and name.split()[0] in NETWORKS:
            right.append((f"{name.split()[0]},\nbatch {batch}", shown(row)))
    right = [(title, {who: v / values["PyTorch"] for who, v in values.items()}) for title, values in right]
    figure, (a, b) = plt.subplots(1, 2, figsize=(11, 3.8), width_ratios=(3, 4))
    grouped(a, left)
    a.axhline(peak, color="#444444", linewidth=1.2)
    a.text(-0.45, peak * 1.01, "the processor's peak", fontsize=8, va="bottom")
    a.set_ylim(0, 1.15 * peak)
    a.set_ylabel("GFLOP/s")
    a.set_title("Products, float32: more is better", fontsize=10)
    grouped(b, right)
    b.set_ylabel("time of a step, PyTorch eager = 1")
    b.set_title("Training steps: less is better", fontsize=10)
    handles = [plt.Rectangle((0, 0), 1, 1, color=COLOURS[who]) for who in SHOWN]
    figure.legend(handles, SHOWN, loc="lower center", ncols=len(SHOWN), frameon=False, fontsize=9)
    machines = ", ".join(f"{what}: {processor}" for what, processor in processors.items())
    figure.suptitle(f"One thread; {machines}", fontsize=10)
    figure.tight_layout(rect=(0, 0.06, 1, 1))
    figure.savefig(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "images" / "speed.png", dpi=110)


if __name__ == "__main__":
    main()
