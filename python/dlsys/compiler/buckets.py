"""Buckets: which arrays travel in one message.

An all-reduce takes a latency and its bytes' time, and messages follow each other on a link. So few large messages save
latencies, and many small ones begin earlier, while the backward pass still computes. The cuts between the arrays, in
the order in which they become ready, are those with which the last message ends first: with ready[j] the time at which
array j is there, B[j] the bytes of the arrays up to it, and end[-1] = 0,

    end[j] = min over i < j of max(ready[j], end[i]) + latency + (B[j] - B[i]) / bandwidth

Then neighbours are joined while the last message ends no later than by a call: each takes the processor's time, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

from ..distributed import Link

SPEED = 2e10  # floating-point operations a second by which a step's time is estimated
COPY = 5e9  # bytes a second by which a copy's time is estimated
CALL = 1e-5  # seconds of a message besides its link's


def cuts(
    sizes: Sequence[int],
    left: Sequence[float],
    link: Link,
    bucket_bytes: int | None = None,
    kind: str = "all_reduce",
) -> tuple[int, ...]:
    """Behind how many arrays each bucket ends, the last one behind all.

    Args:
        sizes: bytes of each array, in the order in which they become ready.
        left: of each the seconds of computation that are left when it is ready.
        bucket_bytes: the size at which a bucket ends, in place of the model.
        kind: the collective.
    """
    if bucket_bytes is not None:
        found, open_bytes = [], 0
        for number, size in enumerate(sizes, 1):
            open_bytes += size
            if open_bytes >= bucket_bytes:
                found.append(number)
                open_bytes = 0
        return tuple(dict.fromkeys([*found, len(sizes)]))
    ready = [max(left, default=0.0) - seconds for seconds in left]
    until = list(accumulate(sizes, initial=0))

    def arrival(before: float, first: int, last: int) -> float:
        return max(ready[last - 1], before) + CALL + link.seconds(until[last] - until[first], kind)

    end, best = [0.0], [0]
    for j in range(1, len(sizes) + 1):
        best.append(min(range(j), key=lambda i: arrival(end[i], i, j)))
        end.append(arrival(end[best[j]], best[j], j))
    found, at = [], len(sizes)
    while at:
        found.insert(0, at)
        at = best[at]

    def last_arrival(ends: Sequence[int]) -> float:
        time = 0.0
        for first, last in pairwise((0, *ends)):
            time = arrival(time, first, last)
        return time

    at = 0
    while at < len(found) - 1:
        joined = [*found[:at], *found[at + 1 :]]
        if last_arrival(joined) <= end[-1] + CALL:
            found = joined
        else:
            at += 1
    return tuple(found)
