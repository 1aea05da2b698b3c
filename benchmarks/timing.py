"""Contenders timed in turn, A B C A B C ..., so that the machine's noise falls on all of them."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping

Runner = Callable[[int], object]
"""A contender: called with n, it does its work n times and returns when all of it is done, on a GPU too."""


def repeat(function: Callable[[], object]) -> Runner:
    """A runner of a function that is synchronous."""

    def runner(times: int) -> None:
        for _ in range(times):
            function()

    return runner


def seconds(runner: Runner, calls: int = 1, clock: Callable[[], float] = time.perf_counter) -> float:
    """Seconds per call, the mean of `calls` calls."""
    start = clock()
    runner(calls)
    return (clock() - start) / calls


def calls_lasting(runner: Runner, least: float) -> int:
    """How many calls take `least` seconds; the runner is warm afterwards."""
    runner(1)
    calls = 1
    while (elapsed := calls * seconds(runner, calls)) < least:
        # Aim 20 % beyond `least`, but grow at most tenfold, since a short measurement is not exact.
        calls = min(10 * calls, math.ceil(1.2 * calls * least / max(elapsed, 1e-9)))
    return calls


def in_turn(
    runners: Mapping[str, Runner],
    rounds: int,
    least: float,
    pause: float = 0.0,
    most: float = math.inf,
    clock: Callable[[], float] = time.perf_counter,
    pick: Callable[[list[float]], float] = statistics.median,
) -> dict[str, float]:
    """The seconds per call of each runner: the median of all rounds, or what `pick` takes of them.

    Once per round each is called for at least `least` seconds, until its turns took `most`. Before each turn the
    process sleeps for `pause` seconds, so that the spinning threads of the last contender go to sleep; then some calls
    warm up this one, unless one call alone lasts `least`.
    """
    calls = {name: calls_lasting(runner, least) for name, runner in runners.items()}
    samples: dict[str, list[float]] = {name: [] for name in runners}
    for _ in range(rounds):
        for name, runner in runners.items():
            if calls[name] * sum(samples[name]) >= most:
                continue
            time.sleep(pause)
            if calls[name] > 1:
                runner(1 + calls[name] // 10)
            samples[name].append(seconds(runner, calls[name], clock))
    return {name: pick(values) for name, values in samples.items()}
