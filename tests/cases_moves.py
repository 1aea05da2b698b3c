"""Cases of the operators for indexing, joining, padding and random numbers."""

from __future__ import annotations

from cases import Case

CASES: dict[str, list[Case]] = {}
