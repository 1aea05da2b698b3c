"""Cases of the operators for batched products, general convolutions, pooling and what networks are made of."""

from __future__ import annotations

from cases import Case

CASES: dict[str, list[Case]] = {}
