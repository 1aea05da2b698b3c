"""How far to step along a direction: J. Nocedal, S. Wright: Numerical Optimization, algorithms 3.5 and 3.6."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np


class Point(NamedTuple):
    """What is known at a length t along the direction: the loss, its gradient, and its slope along the direction."""

    t: float
    loss: float
    gradient: np.ndarray
    slope: float


def cubic_minimum(a: Point, b: Point, bounds: tuple[float, float] | None = None) -> float:
    """Where the cubic through two points with their slopes is least, within the bounds, or between the points."""
    low, high = (min(a.t, b.t), max(a.t, b.t)) if bounds is None else bounds
    with np.errstate(all="ignore"):
        d1 = a.slope + b.slope - 3 * np.float64(a.loss - b.loss) / (a.t - b.t)
        square = d1 * d1 - a.slope * b.slope
        if not square >= 0:
            return (low + high) / 2
        first, last = (a, b) if a.t <= b.t else (b, a)
        d2 = math.sqrt(square)
        found = last.t - (last.t - first.t) * ((last.slope + d2 - d1) / (last.slope - first.slope + 2 * d2))
    return float(min(max(found, low), high))


def strong_wolfe(
    evaluate: Callable[[float], Point],
    start: Point,
    t: float,
    length: float,
    c1: float = 1e-4,
    c2: float = 0.9,
    tolerance_change: float = 1e-9,
    most: int = 25,
) -> tuple[Point, int]:
    """A point where the loss is at most loss(0) + c1 t slope(0), and |slope| <= c2 |slope(0)|, or the best that was
    found; and how many were looked at.

    Args:
        evaluate: the point at a length.
        start: that of 0, whose slope is negative.
        t: the first length.
        length: the largest element of the direction, by which a bracket is known to be too small to go on.
        most: how many points are looked at after the first.
    """
    previous, new = start, evaluate(t)
    count, steps = 1, 0

    def is_high(point: Point) -> bool:
        return point.loss > start.loss + c1 * point.t * start.slope

    bracket = [start, new]
    while steps < most:
        if is_high(new) or (steps > 1 and new.loss >= previous.loss):
            bracket = [previous, new]
            break
        if abs(new.slope) <= -c2 * start.slope:
            return new, count
        if new.slope >= 0:
            bracket = [previous, new]
            break
        further = cubic_minimum(previous, new, (new.t + 0.01 * (new.t - previous.t), new.t * 10))
        previous, new = new, evaluate(further)
        count, steps = count + 1, steps + 1
        bracket = [start, new]

    is_stuck = False
    low, high = (0, 1) if bracket[0].loss <= bracket[1].loss else (1, 0)
    while steps < most:
        ends = sorted(point.t for point in bracket)
        if (ends[1] - ends[0]) * length < tolerance_change:
            break
        t = cubic_minimum(bracket[0], bracket[1])
        margin = 0.1 * (ends[1] - ends[0])
        if min(ends[1] - t, t - ends[0]) < margin:  # close to an end, a second time or beyond it: move inwards
            if is_stuck or t >= ends[1] or t <= ends[0]:
                t = ends[1] - margin if abs(t - ends[1]) < abs(t - ends[0]) else ends[0] + margin
                is_stuck = False
            else:
                is_stuck = True
        else:
            is_stuck = False
        new = evaluate(t)
        count, steps = count + 1, steps + 1
        if is_high(new) or new.loss >= bracket[low].loss:
            bracket[high] = new
            low, high = (0, 1) if bracket[0].loss <= bracket[1].loss else (1, 0)
            continue
        is_done = abs(new.slope) <= -c2 * start.slope
        if not is_done and new.slope * (bracket[high].t - bracket[low].t) >= 0:
            bracket[high] = bracket[low]
        bracket[low] = new
        if is_done:
            break
    return bracket[low], count
