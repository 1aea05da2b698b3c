"""To look inside a plan: text of every stage, pictures, the loops and machine code of its kernels, and their times."""

from __future__ import annotations

from . import text
from .draw import draw_graph
from .draw_arena import draw_memory
from .profile import Profile, measure
