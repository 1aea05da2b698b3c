"""The ground: contexts, arrays on a device, threads."""

from __future__ import annotations

from .array import (
    Array, allocate, allocation_count, array, copied, empty, host_array, to_array, to_tensor, view_of, zeros,
)
from .context import Context, context, cpu, cuda, gpu, numpy
from .threads import ThreadCountError, get_num_threads, set_num_threads
