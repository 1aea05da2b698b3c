"""The ladder as a figure."""

from __future__ import annotations

from pathlib import Path

from .ladder import Report, number

SERIAL, PARALLEL, PEAK, NUMPY = "#2f6db5", "#1b3f6b", "#555555", "#d9822b"


def draw(report: Report, path: Path) -> None:
    """Writes a PNG file: a bar for each rung, and where the peak and NumPy lie on as many threads. Raises OSError."""
    import matplotlib

    matplotlib.use("Agg")  # no display needed
    from matplotlib import pyplot as plt

    rows = report.rows
    figure, axes = plt.subplots(figsize=(8.0, 1.0 + 0.45 * len(rows)), layout="constrained")
    places = range(len(rows))
    colours = [SERIAL if row.threads == 1 else PARALLEL for row in rows]
    axes.barh(places, [row.gflops for row in rows], height=0.62, color=colours, zorder=2)
    for place, row in zip(places, rows, strict=True):
        axes.annotate(f"{number(row.gflops)}  ({number(row.speed_up)}x)", (row.gflops, place), xytext=(5, 0),
                      textcoords="offset points", va="center", zorder=4,
                      bbox={"boxstyle": "square,pad=0.15", "fc": "white", "ec": "none"})  # fmt: skip
    for threads, peak in report.peak.items():
        own = [place for place, row in zip(places, rows, strict=True) if row.threads == threads]
        ends = min(own) - 0.45, max(own) + 0.45
        first = threads == 1
        axes.vlines(peak, *ends, color=PEAK, linewidth=1.6, zorder=3, label="peak" if first else "_")
        axes.vlines(report.numpy[threads], *ends, color=NUMPY, linewidth=1.6, linestyle="--", zorder=3,
                    label="NumPy" if first else "_")  # fmt: skip
    axes.set_yticks(places, [row.title for row in rows])
    axes.invert_yaxis()
    axes.set_xlim(0, 1.02 * max(*report.peak.values(), *(1.25 * row.gflops for row in rows)))
    axes.set_xlabel("GFLOP/s")
    axes.set_title(report.title, loc="left")
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", color="#dddddd", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.legend(frameon=False, loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=2, borderaxespad=0.2)
    figure.savefig(path, dpi=150)
    plt.close(figure)
