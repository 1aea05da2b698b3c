"""Draws docs/images/trace.svg, a step on two processes: `mpiexec -n 2 python tools/draw_trace.py`.

`python tools/draw_trace.py STEP.json PICTURE.svg` draws a file of `Executor.trace`.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
from dlsys import autodiff as ad
from dlsys import distributed, optim

TARGET = Path(__file__).resolve().parent.parent / "docs" / "images" / "trace.svg"
COLOURS = {"contraction": "#2f6db5", "start": "#e0a030", "wait": "#c8553d", "other": "#3e9b5f"}
NAMES = {"contraction": "products", "start": "a message starts", "wait": "waiting for one", "other": "other kernels"}
WIDTH, ROWS, LAYERS = 384, 256, 4


def record(path: Path) -> None:
    """Traces a training step of some layers in a group of processes."""
    distributed.init(bucket_bytes=4 * WIDTH * WIDTH)
    rng = np.random.default_rng(distributed.rank())
    shape = WIDTH, WIDTH
    weights = [ad.Parameter(0.05 * rng.standard_normal(shape).astype("float32"), f"w{i}") for i in range(LAYERS)]
    x = h = ad.Variable("x")
    for weight in weights:
        h = ad.relu_op(h @ weight)
    loss = ad.mean_op(h * h)
    executor = ad.Executor([loss, optim.SGD(weights, lr=0.1).minimize(loss)])
    feed = {x: rng.standard_normal((ROWS, WIDTH)).astype("float32")}
    for _ in range(20):
        executor.run(feed)
    executor.trace(path, feed)


def kind_of(event: dict[str, Any]) -> str:
    """What a slice is, of `COLOURS`."""
    if event["cat"] == "communication":
        return event["name"].split("_")[0]
    return event["cat"] if event["cat"] in COLOURS else "other"


def draw(events: list[dict[str, Any]], path: Path) -> None:
    """A row of slices for each process, an arrow for each message, and below the bytes of the first process's arena."""
    mpl.rcParams["svg.hashsalt"] = "dlsys"
    ranks = sorted({event["pid"] for event in events})
    figure, (axes, below) = plt.subplots(2, 1, figsize=(10, 4.2), sharex=True, height_ratios=(3, 1))
    for event in events:
        row = len(ranks) - 1 - event["pid"]
        if event["ph"] == "X":
            colour = COLOURS[kind_of(event)]
            axes.barh(row, event["dur"], 0.32, event["ts"], color=colour, edgecolor="white", linewidth=0.4)
        if event["ph"] == "s":
            (end,) = [e for e in events if e["ph"] == "f" and e["id"] == event["id"]]
            way = {"arrowstyle": "->", "connectionstyle": "arc3,rad=-0.2", "color": "#555555"}
            axes.annotate("", (end["ts"], row + 0.17), (event["ts"], row + 0.17), arrowprops=way)
    axes.set_yticks([len(ranks) - 1 - rank for rank in ranks], [f"rank {rank}" for rank in ranks])
    axes.set(ylim=(-0.4, len(ranks) - 0.15))
    handles = [plt.Rectangle((0, 0), 1, 1, color=COLOURS[kind]) for kind in COLOURS]
    figure.legend(handles, list(NAMES.values()), ncols=4, loc="upper center", frameon=False)
    first = [event for event in events if event["ph"] == "C" and event["pid"] == 0]
    counts = [(event["ts"], event["args"]["bytes"] / 1e6) for event in first]
    below.step(*zip(*counts, strict=True), where="post", color="#555555")
    below.set(ylim=(0, None), xlabel="us", ylabel="MB in the arena")
    figure.savefig(path, bbox_inches="tight", metadata={"Date": None})


def main() -> None:
    if len(sys.argv) == 3:
        draw(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))["traceEvents"], Path(sys.argv[2]))
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "step.json")
        record(path)
        if distributed.rank() == 0:
            draw(json.loads(path.read_text(encoding="utf-8"))["traceEvents"], TARGET)


if __name__ == "__main__":
    main()
