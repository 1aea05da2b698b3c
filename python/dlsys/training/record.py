"""What a training run leaves to read: rows of numbers, a log, a picture."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..serialization import write


@dataclass(repr=False)
class History:
    """The numbers of a run.

    Attributes:
        epochs: a row for each epoch: "epoch", "steps", "loss", the metrics, "lr", "seconds", and with validation
            "validation_loss" and so on.
        losses: the loss of every step.
    """

    epochs: list[dict[str, Any]] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)

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
        axes.plot(range(1, len(self.losses) + 1), self.losses, color="#9dbbe0", linewidth=0.8, label="loss of a step")
        for name, hue, label in (("loss", "#2f6db5", "mean of an epoch"), ("validation_loss", "#d9822b", "validation")):
            if rows := [row for row in self.epochs if name in row]:
                axes.plot([row["steps"] for row in rows], [row[name] for row in rows], ".-", color=hue, label=label)
        axes.set(title="Loss", xlabel="step", ylabel="loss", ylim=(min([0.0, *self.losses]), None))
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
