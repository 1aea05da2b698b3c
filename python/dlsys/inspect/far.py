"""The profile of a step on a device far away: its kernels are compiled here, and timed there."""

from __future__ import annotations

import ctypes
import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from ..compiler import Plan
from ..devices import to_tensor
from ..graph import Node
from ..kernels import Call, Place, tuned, unrolled_calls
from ..rpc.server import library
from ..tvm_import import with_compiler
from .profile import Profile, Times, arguments_of, dtype_of, peaks_of, profile_of, timed

_EMPTY = ctypes.c_uint8()
TIMED = "dlsys.inspect.timed"


def profile(where: str, executor: Any, plan: Plan, feeds: Mapping[Node, Any], runs: int) -> Profile:
    """The Profile of `runs` runs on a device of an executor's plan for these feeds. Raises DeviceError."""
    device = with_compiler("rpc.client").remote(where)
    step = device.load(executor)
    step.feed(feeds)
    calls = [(at, asdict(call)) for at, call in unrolled_calls(step.exported.calls)]
    request = {"calls": calls, "runs": runs, "dtype": dtype_of(plan), "given": step.exported.given}
    told = json.loads(step.asked(TIMED, json.dumps(request)))
    specs = tuned(list(plan.specs.values()), device.how)
    return profile_of(plan, Times(**told["times"]), told["peaks"], dict(zip(plan.specs, specs, strict=True)))


def _timed(request: str, *arrays: Any) -> str:
    """On the device: times a step's calls as `profile.timed` does."""
    asked, functions, calls = json.loads(request), library("step.so"), []
    arrays = tuple(map(_owned, arrays))
    arena = arrays[asked["given"]] if asked["given"] < len(arrays) else None  # or a result, which no call asks for
    for number, call in asked["calls"]:
        places = tuple(Place(**{**place, "shape": tuple(place["shape"])}) for place in call["places"])
        calls.append((number, functions[call["symbol"]], arguments_of(Call(call["symbol"], places), arrays, arena)))
    step = functions["step"]
    times = timed(calls, lambda: step(*arrays), asked["runs"])
    return json.dumps({"times": asdict(times), "peaks": peaks_of(asked["dtype"])})


def _owned(array: Any) -> Any:
    """A tensor on the memory of one that TVM lends a function for a call, and that cannot be viewed."""
    dtype = np.dtype(str(array.dtype))
    nbytes = math.prod(array.shape) * dtype.itemsize
    memory = (ctypes.c_uint8 * max(nbytes, 1)).from_address(array.data_ptr() or ctypes.addressof(_EMPTY))
    return to_tensor(np.frombuffer(memory, np.uint8)[:nbytes].view(dtype).reshape(array.shape))


SERVED = {TIMED: _timed}
