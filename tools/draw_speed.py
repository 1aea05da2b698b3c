"""Draws docs/images/speed.png from benchmarks/results: `python tools/draw_speed.py [FILE.png]`.

Left: GFLOP/s of products on one thread, from bench_matmul. Right: a training step's time, PyTorch eager's being 1, from
bench_mnist and bench_models.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from dlsys.charts import COLOURS, styled

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
SHOWN = ("dlsys", "PyTorch", "torch.compile", "JAX", "NumPy")
PRODUCTS = ("1000x784x256 NN", "512x512x512 NN", "1024x1024x1024 NN")
NAMES = {"dlsys": "dlsys", "numpy": "NumPy", "torch": "PyTorch", "PyTorch eager": "PyTorch"}


def loaded(name: str) -> Any:
    """The results of a benchmark."""
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


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
    matmul, mnist, models = loaded("matmul"), loaded("mnist"), loaded("models")
    rows = {row["row"]: row["gflops"] for row in matmul["results"][0]["matmul"]}
    products = [row for row in PRODUCTS if row in rows] or list(rows)[:3]
    left = [
        (row.replace(" NN", "").replace("x", " x "), {NAMES[who]: v for who, v in rows[row].items() if who in NAMES})
        for row in products
    ]
    right: list[tuple[str, dict[str, float]]] = []
    for row in mnist["results"][0]["rows"]:
        if row["model"] == "mlp" and row["batch"] in (1000, 100):
            times = {NAMES.get(who, who): values[1] for who, values in row["ms_per_step"].items()}
            right.append((f"MLP,\nbatch {row['batch']}", {who: times[who] for who in SHOWN if who in times}))
    for name, title in (("resnet9", "ResNet9,\nbatch 128"), ("transformer", "Transformer,\nbatch 32")):
        found = models["results"]["runs"]["1"][name]["train"]
        right.append((title, {who: found[who] for who in SHOWN if who in found}))
    right = [(title, {who: v / values["PyTorch"] for who, v in values.items()}) for title, values in right]
    figure, (a, b) = plt.subplots(1, 2, figsize=(11, 3.8), width_ratios=(3, 4))
    grouped(a, left)
    a.axhline(matmul["results"][0]["peak_gflops"], color="#444444", linewidth=1.2)
    a.text(-0.45, matmul["results"][0]["peak_gflops"] * 1.01, "the processor's peak", fontsize=8, va="bottom")
    a.set_ylim(0, 1.15 * matmul["results"][0]["peak_gflops"])
    a.set_ylabel("GFLOP/s")
    a.set_title("Products, float32: more is better", fontsize=10)
    grouped(b, right)
    b.set_ylabel("time of a step, PyTorch eager = 1")
    b.set_title("Training steps: less is better", fontsize=10)
    handles = [plt.Rectangle((0, 0), 1, 1, color=COLOURS[who]) for who in SHOWN]
    figure.legend(handles, SHOWN, loc="lower center", ncols=len(SHOWN), frameon=False, fontsize=9)
    where = {"products": matmul, "MLP": mnist, "others": models}
    machines = ", ".join(f"{title}: {found['machine']['cpu']}" for title, found in where.items())
    figure.suptitle(f"One thread; {machines}", fontsize=10)
    figure.tight_layout(rect=(0, 0.06, 1, 1))
    figure.savefig(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "images" / "speed.png", dpi=110)


if __name__ == "__main__":
    main()
