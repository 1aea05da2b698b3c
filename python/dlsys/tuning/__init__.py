"""Schedules that a search has found: the file that keeps them, and which of their steps are taken from it."""

from __future__ import annotations

from .records import GAIN, MAIN, TUNED, Records, apply, key_of, records_of, replayed, workload

__all__ = ["GAIN", "MAIN", "TUNED", "Records", "apply", "key_of", "records_of", "replayed", "workload"]
