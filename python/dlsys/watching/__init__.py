"""The end of a run of several processes of which one is lost.

Mechanism:

    board, watch    each rank writes what it does; a process beside them reads it, and ends all with one message when a
                    rank raises, dies or hangs
"""

from __future__ import annotations

from .board import Board, as_text, opened
