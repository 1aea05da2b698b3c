"""Draws programs of tensors at random and runs each by dlsys and by PyTorch: `python tools/campaign_torch.py --programs
10000`.

A program is a list of lines with the names of both libraries (see `drawn_programs.py`): values, views, writes in
place, `backward`, gradients of gradients, optimizers, modules, `no_grad`, looks at values anywhere, steps for
`dl.compile`. All values that it looks at, and all that it has at its end, are compared to rounding. Programs with
random numbers are compared with themselves, computed line by line; of eight programs one runs in two threads at once.

PyTorch runs where writes keep what `backward` reads, so a gradient belongs to the time when its graph was made, as in
dlsys. Where the libraries differ by design (docs/pytorch.md) nothing is drawn, or the error is one of REFUSALS. A
failure is wrong (another value), raw (an error that is none of dlsys.errors) or refused (an error where PyTorch has a
value). It is printed with its seed and its smallest part that still fails; `--seed 17 --programs 1` repeats it.
"""

from __future__ import annotations

import argparse
import collections
import sys
import threading
import time
import warnings
from typing import Any

import dlsys as dl
import numpy as np
import torch
from dlsys.errors import DlsysError
from drawn_programs import Draw, Lines, start

TOLERANCE = {"float64": 1e-9, "float32": 1e-4}
REFUSALS = (  # what dlsys does not do, and says so
    "would get a history of gradients, which ends with the call",
    "has a history of gradients, which",
    "knows it from outside too",
    "is a value of its own, no view of",
    "was overwritten since",
    "was computed outside of the compiled function",
    "has a value in a compiled function only",
    "is asked for in a compiled function",
)


class Outcome:
    """What a run of lines has shown, and the error with which it ended, at which line; None for none."""

    def __init__(self, library: Any, lines: Lines, seed: int, dtype: str, settles: bool = False) -> None:
        self.seen: list[Any] = []
        self.error: BaseException | None = None
        self.at = -1
        names = start(library, seed, dtype, self.seen)
        library.manual_seed(seed)
        for self.at, line in enumerate(lines):
            try:
                exec(line, names)
                if settles:
                    names["settle"]()
            except Exception as error:  # noqa: BLE001 - compared
                self.error = error
                return


def drawn(seed: int) -> Lines:
    """The program of a seed."""
    with torch.autograd.graph.allow_mutation_on_saved_tensors():
        return tuple(Draw(seed, seed % 8 == 7).lines)


def by_dlsys(lines: Lines, seed: int, dtype: str) -> Outcome:
    """The program by dlsys; if it runs in two threads, one of their outcomes, one with an error if there is one."""
    if seed % 8 != 5:
        return Outcome(dl, lines, seed, dtype)
    found: list[Outcome] = []
    threads = [threading.Thread(target=lambda: found.append(Outcome(dl, lines, seed, dtype))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return max(found, key=lambda outcome: outcome.error is not None)


def by_torch(lines: Lines, seed: int, dtype: str) -> Outcome:
    """The program by PyTorch, up to a `backward` through what was written by index since: that it cannot keep."""
    found = Outcome(torch, lines, seed, dtype)
    if "inplace operation" in str(found.error) and any("] " in line and "= " in line for line in lines):
        return found
    if "inplace operation" not in str(found.error) and not any(".data" in line for line in lines):
        return found
    with torch.autograd.graph.allow_mutation_on_saved_tensors():
        return Outcome(torch, lines, seed, dtype)


def difference(found: list[Any], wanted: list[Any], dtype: str) -> str | None:
    """Where shown values differ; None where they agree."""
    for number, (a, b) in enumerate(zip(found, wanted, strict=False)):
        if (a is None) != (b is None):
            return f"look {number}: {a}, not {b}"
        if a is not None and a.shape != b.shape:
            return f"look {number}: shape {a.shape}, not {b.shape}"
        if a is not None:
            scale = max(1.0, float(np.abs(b).max(initial=0)))
            if not np.allclose(a, b, rtol=0, atol=TOLERANCE[dtype] * scale, equal_nan=True):
                return f"look {number}: {a.tolist()}, not {b.tolist()}"
    return None


def is_raw(error: BaseException) -> bool:
    """Whether an error is none of dlsys, and comes from within it."""
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    return not isinstance(error, DlsysError) and last is not None and last.tb_frame.f_code.co_filename != "<string>"


def verdict(found: Outcome, wanted: Outcome, lines: Lines, dtype: str) -> tuple[str, str]:
    """How dlsys' outcome compares, and the details."""
    if isinstance(wanted.error, (NameError, UnboundLocalError)):
        return "none", "no program"
    if told := difference(found.seen, wanted.seen, dtype):
        return "wrong", told
    if found.error is None:
        if wanted.error is None:
            return ("equal", "") if len(found.seen) == len(wanted.seen) else ("wrong", "fewer looks")
        return "more", f"{wanted.error}".partition("\n")[0][:100]
    told = f"{type(found.error).__name__}: {found.error} at {lines[found.at]!r}"
    if is_raw(found.error):
        return "raw", told
    if wanted.error is not None and (found.at == wanted.at or "inplace operation" in str(wanted.error)):
        return "both raise", ""
    return ("documented", "") if any(one in told for one in REFUSALS) else ("refused", told)


def judged(lines: Lines, seed: int) -> tuple[str, str]:
    """The verdict about a program."""
    dtype = "float32" if seed % 16 == 3 else "float64"
    if seed % 8 == 7:
        found, wanted = Outcome(dl, lines, seed, dtype), Outcome(dl, lines, seed, dtype, settles=True)
        if type(found.error) is type(wanted.error) and found.error is not None and found.at == wanted.at:
            return ("raw", f"{found.error!r}") if is_raw(found.error) else ("both raise", "")
    else:
        found, wanted = by_dlsys(lines, seed, dtype), by_torch(lines, seed, dtype)
    return verdict(found, wanted, lines, dtype)


def shrunk(lines: Lines, seed: int, kind: str) -> Lines:
    """The part of a failing program that fails, and would not with any one line less."""
    for at in reversed(range(len(lines))):
        inner = lines[at].split("\n    ")
        parts = [lines[:at] + lines[at + 1 :]]
        fewer = ["\n    ".join([*inner[:i], *inner[i + 1 :]]) for i in range(1, len(inner) - 1)]
        parts += [(*lines[:at], text, *lines[at + 1 :]) for text in fewer]
        for part in parts:
            if part and judged(part, seed)[0] == kind:
                return shrunk(part, seed, kind)
    return lines


def main() -> int:
    """Draws programs; the exit status is 1 if one is wrong, raw or refused."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=int, default=100, help="how many")
    parser.add_argument("--seed", type=int, default=0, help="of the first")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    counts: collections.Counter[str] = collections.Counter()
    began = time.monotonic()
    for seed in range(options.seed, options.seed + options.programs):
        lines = drawn(seed)
        kind, told = judged(lines, seed)
        counts[kind] += 1
        if kind in ("wrong", "raw", "refused"):
            least = shrunk(lines, seed, kind)
            text = "\n".join(least).replace("\n", "\n    ")
            print(f"seed {seed}: {kind}: {judged(least, seed)[1]}\n    {text}", flush=True)
        elif kind == "more" and "inplace operation" not in told:
            print(f"seed {seed}: PyTorch alone raises {told} at {lines[-1]}", flush=True)
        if seed % 200 == 199:
            print(f"# {seed + 1}: {dict(counts)}, {time.monotonic() - began:.0f} s", flush=True)
    print(f"{options.programs} programs: {dict(counts)}, {time.monotonic() - began:.0f} s")
    return int(any(counts[kind] for kind in ("wrong", "raw", "refused")))


if __name__ == "__main__":
    sys.exit(main())
