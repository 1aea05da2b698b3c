"""The random function Philox4x32-10, of NumPy's arrays and of TVM's expressions.

J. K. Salmon, M. A. Moraes, R. O. Dror, D. E. Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011. A block of
four words is a function of a key of two words and a counter of four; so every element knows its own bits, whichever
thread or machine computes it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

ROUNDS = 10
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)  # added to the key from round to round: the golden ratio, sqrt(3) - 1


def philox(
    counter: Sequence[Any], key: Sequence[Any], number: Callable[[int, str], Any], keep: Callable[[Any], Any]
) -> list[Any]:
    """The four words of a counter, of four words, under a key, of two; all of uint32.

    `number` is a constant of a dtype; `keep` gives a value a name, so that an expression is computed once.
    """
    state, keys = list(map(keep, counter)), list(map(keep, key))
    for _ in range(ROUNDS):
        pairs = zip((0, 2), MULTIPLIERS, strict=True)
        products = [keep(state[i].astype("uint64") * number(m, "uint64")) for i, m in pairs]
        high0, high1 = ((p >> number(32, "uint64")).astype("uint32") for p in products)
        low0, low1 = (p.astype("uint32") for p in products)
        state = list(map(keep, (high1 ^ state[1] ^ keys[0], low1, high0 ^ state[3] ^ keys[1], low0)))
        keys = [keep(k + number(w, "uint32")) for k, w in zip(keys, WEYL, strict=True)]
    return state
