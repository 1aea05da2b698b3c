"""Kills a random rank of a run at a random moment, many times: `python kills.py [--runs 100] [--elastic]`.

Each time all must end within 10 s, with one message that names the rank; the next run, by another number of ranks,
continues from the checkpoint, and those that come to their end have found what a run without a fault finds. With
`--elastic` each run must come to its end with a rank less; MPIEXEC is then Open MPI's launcher with its options:
`MPIEXEC="mpiexec --with-ft ulfm" python kills.py --elastic --runs 20`.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
MPIEXEC = shlex.split(os.environ.get("MPIEXEC", str(Path(sys.executable).with_name("mpiexec"))))
WITHIN = 10.0  # seconds
EXACT = 1e-11


@dataclass
class Outcome:
    """A run: what it told, its exit status, how many ranks it had, the rank that was killed, None where the run had
    ended before, the seconds from then on, or from the time when all ranks were there, and whether the rank's program
    was at its end when it was killed."""

    told: str
    status: int
    ranks: int
    killed: int | None
    seconds: float
    at_end: bool


def run(ranks: int, what: str, folder: Path, rng: random.Random, moment: float | None, to_file: bool) -> Outcome:
    """A run of `ranks.py`, of which a rank is killed so many seconds after all are there."""
    program = [*MPIEXEC, "-n", str(ranks), sys.executable, str(HERE / "ranks.py"), what, str(folder)]
    log = folder / "told.txt"
    with log.open("wb") as file:
        errors = file if to_file else subprocess.PIPE
        process = subprocess.Popen(program, stdin=subprocess.DEVNULL, stdout=file, stderr=errors)
        pids: dict[int, int] = {}
        while len(pids) < ranks and process.poll() is None:
            pids = {int(rank): int(pid) for _, rank, pid in (path.name.split(".") for path in folder.glob("pid.*"))}
            time.sleep(0.002)
        began, killed = time.perf_counter(), None
        if moment is not None:
            time.sleep(moment)
            if process.poll() is None:
                began, killed = time.perf_counter(), rng.randrange(ranks)
                os.kill(pids[killed], signal.SIGKILL)
        at_end = (folder / f"{ranks}.{killed}.npz").exists()
        errors_told = (process.communicate(timeout=120)[1] or b"").decode(errors="replace")
        while any(Path(f"/proc/{pid}/stat").exists() for pid in pids.values()):
            time.sleep(0.01)
        seconds = time.perf_counter() - began
    for path in folder.glob("pid.*"):
        path.unlink()
    if to_file and killed is not None:
        time.sleep(0.1)  # the watcher appends when the launcher has ended
    told = errors_told + log.read_text(errors="replace")
    return Outcome(told, process.returncode, ranks, killed, seconds, killed is not None and at_end)


def is_right(folder: Path, whole: dict[str, np.ndarray]) -> bool:
    """Whether all that ranks have saved is what a run without a fault found."""
    files = [path for path in folder.glob("*.npz") if not path.name.startswith("whole")]
    found = [dict(np.load(path)) for path in files]
    return bool(found) and all(np.allclose(f[name], whole[name], EXACT, EXACT) for f in found for name in whole)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--elastic", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng, what = random.Random(options.seed), "elastic" if options.elastic else "long"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for _ in range(2):  # the first one compiles
            shutil.rmtree(folder / "run", ignore_errors=True)
            usual = run(2, what, folder, rng, None, False)
            assert usual.status == 0, usual.told
        whole = dict(np.load(folder / "2.0.npz"))
        print(f"a run takes {usual.seconds:.2f} s")
        kills, placed, alone, ends, slowest, wrong = 0, 0, 0, 0, 0.0, 0
        shutil.rmtree(folder / "run")
        while kills < options.runs:
            for path in folder.glob("*.npz"):
                path.unlink()
            ranks = rng.choice((3, 4) if options.elastic else (2, 3))
            found = run(ranks, what, folder, rng, rng.uniform(0, usual.seconds), bool(rng.randrange(2)))
            told = re.findall(r"dlsys: rank \d+ of \d+ .*", found.told)
            faults = []
            if found.at_end:
                continue
            if found.killed is None or options.elastic:
                ends += 1
                if found.status or not is_right(folder, whole):
                    faults.append(f"status {found.status}, or other parameters")
                shutil.rmtree(folder / "run", ignore_errors=True)
            if found.killed is not None:
                kills += 1
                slowest = max(slowest, found.seconds)
                placed += bool(told) and "bucket" in told[0] and "kernel" in told[0]
                if len(told) != 1 or f"rank {found.killed} of {ranks} died" not in told[0]:
                    faults.append(f"{len(told)} messages")
                alone += told[:1] != [line for line in told if "; rank" in line]
                if found.seconds > WITHIN and not options.elastic:
                    faults.append(f"{found.seconds:.1f} s")
            elif told:
                faults.append("a message without a kill")
            if faults:
                wrong += 1
                print(f"run {kills}, rank {found.killed} of {ranks}: {', '.join(faults)}\n{found.told}", flush=True)
        print(
            f"{kills} kills, {wrong} wrong; {placed} messages name a bucket and a kernel, {alone} one rank only; the "
            f"slowest end came after {slowest:.2f} s; {ends} runs came to their end"
        )
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
