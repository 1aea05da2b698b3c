"""Tries hard to find what is wrong: `python tools/campaign.py --seconds 3600`.

In turn, until the time is over: drawn graphs, with gradients, under every combination of passes, threads and
repeated runs, against NumPy's rules and PyTorch; the samples of PyTorch's operator, module and optimizer databases
for what dlsys offers; training runs ended at random moments; forks while other threads compile; several threads on
one leaf; bad arguments by the hundred. A failure prints the seed that repeats it (`--only graphs --seed 17 --seconds
0`); a drawn graph is made as small as still fails.

The last lines sum up: tried, right, clear error, other error, wrong, and hang: not done within its time.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable

import campaign_arguments
import campaign_graphs
import campaign_processes
import campaign_torch

Part = Callable[[int, Counter, Callable[[str], None]], None]
"""One try with a seed: counts what came of it, and tells of what is wrong."""

PARTS: dict[str, Part] = {
    "graphs": campaign_graphs.graphs,
    "operators": campaign_torch.operators,
    "modules": campaign_torch.modules,
    "optimizers": campaign_torch.optimizers,
    "kills": campaign_processes.kills,
    "forks": campaign_processes.forks,
    "leaf": campaign_processes.leaf,
    "junk": campaign_arguments.junk,
}
REPEATED = {"junk": 100, "operators": 8, "leaf": 3}
"""Tries of a part in a round, where they are quick."""
RARE = {"kills": 20, "forks": 4}
"""Parts that are slow: among others once in so many rounds."""
COLUMNS = ("right", "clear error", "other error", "wrong", "hang")


def campaign(seconds: float, seed: int, only: list[str], rounds: int = 1) -> dict[str, Counter]:
    """What came of the tries, by part, after some `seconds` and `rounds` of all parts at least."""
    counts = {name: Counter() for name in only}
    end, number = time.monotonic() + seconds, seed
    while True:
        for name in only:
            repeat = REPEATED.get(name, 1)
            for attempt in range(number * repeat, (number + 1) * repeat):
                if len(only) > 1 and number % RARE.get(name, 1):
                    continue

                def tell(text: str, name: str = name, number: int = number) -> None:
                    print(f"{name}, seed {number}: {text}", flush=True)

                try:
                    PARTS[name](attempt, counts[name], tell)
                except Exception as error:  # noqa: BLE001 - the rest goes on
                    counts[name]["other error"] += 1
                    tell(f"{type(error).__name__}: {error}")
        number += 1
        if time.monotonic() >= end and number >= seed + rounds:
            return counts


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60, help="how long")
    parser.add_argument("--rounds", type=int, default=1, help="how many rounds at least")
    parser.add_argument("--seed", type=int, default=0, help="of the first round")
    parser.add_argument("--only", default=",".join(PARTS), help="parts, e.g. graphs,junk")
    options = parser.parse_args()
    only = options.only.split(",")
    if unknown := set(only) - PARTS.keys():
        parser.error(f"no such part: {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    counts = campaign(options.seconds, options.seed, only, options.rounds)
    print(f"{'part':12}{'tried':>10}" + "".join(f"{column:>14}" for column in COLUMNS))
    for name, count in counts.items():
        print(f"{name:12}{sum(count.values()):>10}" + "".join(f"{count[column]:>14}" for column in COLUMNS))
    return int(any(count["wrong"] or count["hang"] for count in counts.values()))


if __name__ == "__main__":
    sys.exit(main())
