"""What a training run leaves to read: rows of numbers, a log, a picture, a line of progress."""

from __future__ import annotations

import contextlib
import json
import math
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from ..serialization import write


class History:
    """The numbers of a run.

    Attributes:
        epochs: a row for each epoch: "epoch", "steps", "loss", the metrics, "lr", "seconds", and with validation
            "validation_loss" and so on.
        losses: the loss of every step.
    """

    def __init__(self, epochs: Sequence[dict[str, Any]] = (), losses: Sequence[float] = ()) -> None:
        self.epochs, self.losses = [dict(row) for row in epochs], list(losses)

    def __repr__(self) -> str:
        return "\n".join(map(line_of, self.epochs)) or "no epoch yet"

    def write(self, path: Path) -> None:
        """The rows as JSON lines, null for what JSON has no number for. Replaces the file in one step. Raises
        DataError."""
        rows = (
            {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()}
            for row in self.epochs
        )
        write(path, "".join(json.dumps(row) + "\n" for row in rows).encode())

    def draw(self, path: Path) -> None:
        """The losses of steps and epochs as a picture. Raises OSError."""
        import matplotlib

        matplotlib.use("Agg")  # no display needed
        from matplotlib import pyplot as plt

        figure, axes = plt.subplots(figsize=(7.0, 4.0), layout="constrained")
        steps = range(1, len(self.losses) + 1)
        axes.plot(steps, self.losses, color="#9dbbe0", linewidth=0.8, label="loss of a step", zorder=1)
        ends = [row["steps"] for row in self.epochs]
        marker = "o" if len(ends) < 40 else None
        axes.plot(ends, [row["loss"] for row in self.epochs], color="#2f6db5", marker=marker, markersize=3,
                  label="mean of an epoch", zorder=2)  # fmt: skip
        if self.epochs and "validation_loss" in self.epochs[-1]:
            rows = [row for row in self.epochs if "validation_loss" in row]
            axes.plot([row["steps"] for row in rows], [row["validation_loss"] for row in rows], color="#d9822b",
                      marker=marker, markersize=3, label="validation", zorder=3)  # fmt: skip
        if self.losses:
            axes.set_ylim(bottom=min(0.0, *self.losses))
        axes.set_xlabel("step")
        axes.set_ylabel("loss")
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(color="#dddddd", linewidth=0.8)
        axes.set_axisbelow(True)
        axes.legend(frameon=False)
        figure.savefig(path, dpi=130)
        plt.close(figure)


def line_of(row: dict[str, Any]) -> str:
    """An epoch in one line."""
    shown = [f"epoch {row['epoch']}"]
    for name, value in row.items():
        if name == "seconds":
            shown.append(f"{value:.1f} s")
        elif name == "lr":
            shown.append(f"lr {value:.3g}")
        elif name not in ("epoch", "steps"):
            shown.append(f"{name.replace('_', ' ')} {value:.4f}")
    return ", ".join(shown)


class Progress:
    """A bar of an epoch's steps in a terminal; elsewhere only the lines that are told."""

    def __init__(self, shown: bool | None) -> None:
        """shown: None for a bar in a terminal and lines elsewhere, True for lines at least, False for nothing."""
        self.lines = shown is not False
        self.bars = shown is not False and sys.stderr.isatty()

    @contextlib.contextmanager
    def epoch(self, number: int, total: int | None, done: int) -> Iterator[Any]:
        """A function that is told (loss, lr) after each step."""
        if not self.bars:
            yield lambda loss, lr: None
            return
        with tqdm(total=total, initial=done, desc=f"epoch {number}", leave=False, unit="step") as bar:

            def tell(loss: float, lr: float) -> None:
                bar.set_postfix(loss=f"{loss:.4f}", lr=f"{lr:.3g}", refresh=False)
                bar.update()

            yield tell

    def say(self, text: str) -> None:
        """A line, below the bar."""
        if self.lines:
            tqdm.write(text, file=sys.stdout)
            sys.stdout.flush()
