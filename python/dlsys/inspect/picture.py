"""A picture in points, 1/72 inch, from its upper left corner: boxes, texts, lines, in a file that matplotlib writes."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..errors import DataError, GraphError

SUFFIXES = (".svg", ".png")
FONT = 8.0
CHARACTER = 0.62 * FONT  # the mean width of one, as wide as fonts have it
LINE = 1.25 * FONT
MARGIN = 18.0
DPI = 140
MOST_PIXELS = 20000  # along a side of a PNG: a sheet of that size is 140 inches

# Fill and line of the kinds of group, and of what is not computed.
COLOURS = {
    "contraction": ("#e3edf9", "#2f6db5"),
    "reduction": ("#efe7f7", "#7a56a5"),
    "rows": ("#ddf1ee", "#23857a"),
    "elementwise": ("#fbf0dc", "#c0792a"),
    "single": ("#ececec", "#666666"),
    "loop": ("#f1f1e4", "#6b6b2f"),
    "view": ("#ffffff", "#666666"),
    "feed": ("#cfe6c8", "#3b7d2f"),
    "parameter": ("#fde0a6", "#a8720b"),
    "result": ("#f6cbc8", "#b03a32"),
}


def checked_path(path: Any, what: str) -> Path:
    """The path, if its suffix is known. Raises GraphError."""
    if not isinstance(path, (str, os.PathLike)):
        raise GraphError(f"{what}: the path must be text or a pathlib.Path, not {type(path).__name__}")
    file = Path(path)
    if file.suffix.lower() not in SUFFIXES:
        raise GraphError(f"{what}: a picture is {' or '.join(SUFFIXES)}, not {file.name!r}")
    return file


class Picture:
    """A picture while it is drawn."""

    def __init__(self, width: float, height: float) -> None:
        from matplotlib.figure import Figure  # here: importing it takes as long as all else of dlsys

        self._figure = Figure(figsize=(width / 72, height / 72))
        self._axes = self._figure.add_axes((0.0, 0.0, 1.0, 1.0))
        self._axes.set(xlim=(0, width), ylim=(height, 0))
        self._axes.axis("off")

    def box(self, x: float, y: float, width: float, height: float, round: float = 0.0, **style: Any) -> None:
        """A rectangle, with corners of a radius. `kind` in place of a style gives it the colours of COLOURS."""
        from matplotlib.patches import FancyBboxPatch

        fill, line = COLOURS.get(style.pop("kind", ""), ("#ffffff", "#555555"))
        style = {"facecolor": fill, "edgecolor": line, "linewidth": 0.8, **style}
        shape = f"round,pad=0,rounding_size={min(round, height / 2)}" if round else "square,pad=0"
        self._axes.add_patch(FancyBboxPatch((x, y), width, height, shape, **style))

    def text(self, x: float, y: float, text: str, **style: Any) -> None:
        """A text with its middle at (x, y), unless `ha`, `va` say otherwise; no part of it is a formula, and characters
        that a file of XML cannot hold are replaced."""
        shown = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
        style = {"ha": "center", "va": "center", "fontsize": FONT, **style}
        self._axes.text(x, y, shown, parse_math=False, **style)

    def line(self, points: Sequence[tuple[float, float]], curved: bool = False, **style: Any) -> None:
        """A line through the points. If it is `curved`, the last three are a Bézier curve's."""
        from matplotlib.patches import PathPatch
        from matplotlib.path import Path as Outline

        straight = len(points) - 3 * curved
        codes = [Outline.MOVETO, *[Outline.LINETO] * (straight - 1), *[Outline.CURVE4] * (3 * curved)]
        self._axes.add_patch(PathPatch(Outline(points, codes), fill=False, **{"linewidth": 0.9, **style}))

    def head(self, x: float, y: float, colour: str, zorder: float) -> None:
        """The head of an arrow that points down at (x, y)."""
        from matplotlib.patches import Polygon

        corners = [(x, y), (x - 2.2, y - 5.0), (x + 2.2, y - 5.0)]
        self._axes.add_patch(Polygon(corners, color=colour, linewidth=0, zorder=zorder))

    def save(self, file: Path) -> None:
        """Write it; as SVG with its texts as text, and the same bytes for the same picture. Raises DataError where it
        cannot be written."""
        import matplotlib

        side = max(self._figure.get_size_inches())
        with warnings.catch_warnings(), matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "dlsys"}):
            warnings.filterwarnings("ignore", message="Glyph .* missing")  # a name in a script the font lacks
            metadata = {"Date": None} if file.suffix.lower() == ".svg" else None
            try:
                self._figure.savefig(file, dpi=min(DPI, MOST_PIXELS / side), metadata=metadata)
            except OSError as error:
                raise DataError(f"{file} cannot be written: {error.strerror or error}") from None
