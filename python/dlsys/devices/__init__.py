"""Contexts, arrays on a device, threads, facts of the machine, and a GPU's graphs of launches and copies."""

from __future__ import annotations

from .. import tvm_import  # first: it loads TVM's runtime
from .array import (
    VECTOR, Array, allocate, allocation_count, array, copied, empty, host_array, is_aligned, lies_on, new_array,
    shared_array, to_array, to_tensor, view_of, zeros,
)
from .context import (
    Context, ThreadCountError, context, cpu, cuda, device, flushes_denormal, get_float32_matmul_precision,
    get_num_threads, gpu, named, numpy, set_float32_matmul_precision, set_flush_denormal, set_num_threads,
)
from .machine import Machine, host_machine
from .streams import Graph, Staging
