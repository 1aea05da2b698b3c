"""Cases of the operators for elementary functions, comparisons, selections and reductions."""

from __future__ import annotations

from cases import Case

CASES: dict[str, list[Case]] = {}
