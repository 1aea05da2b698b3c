"""Tries hard to find what is wrong: `python tools/campaign.py --seconds 3600`.

In turn, until the time is over: drawn graphs, with gradients, under every combination of passes, threads and
repeated runs, against NumPy's rules and PyTorch; the samples of PyTorch's operator, module and optimizer databases
for what dlsys offers; flipped bits in every kind of file; training runs killed at random moments; bad arguments by
the hundred. A failure prints the seed that repeats it (`--only graphs --seed 17 --seconds 0`); a drawn graph is made
as small as still fails.

The last lines sum up: tried, right, clear error, other error, wrong.
"""

from __future__ import annotations

import argparse
import gzip
import inspect
import os
import random
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import campaign_graphs
import campaign_torch
import dlsys as dl
import numpy as np
from dlsys import autodiff as ad
from dlsys import kernels, nn, optim
from dlsys.data.files import Collection, load
from dlsys.errors import DlsysError

Part = Callable[[int, Counter, Callable[[str], None]], None]
"""One try with a seed: counts what came of it, and tells of what is wrong."""

TRAINING = """
import sys
import dlsys as dl, numpy as np
from dlsys import nn, optim
from dlsys.data import DataLoader, TensorDataset
dl.manual_seed(1)
draw = np.random.default_rng(0)
data = TensorDataset(draw.standard_normal((60, 5)).astype("f4"), draw.integers(0, 3, 60))
model = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Dropout(0.2), nn.Linear(8, 3))
opt = optim.Adam(model.parameters(), 0.01)
history = dl.fit(model, nn.CrossEntropyLoss(), opt, DataLoader(data, 10, shuffle=True), epochs=4, progress=False,
                 schedule=optim.StepLR(opt, 2), directory=sys.argv[1] if len(sys.argv) > 1 else None, save_every=3)
state = model.state_dict()
print(b"".join(np.ascontiguousarray(state[name]).tobytes() for name in sorted(state)).hex(), history.losses)
"""


def flipped(content: bytes, draw: random.Random) -> bytes:
    """The content with a bit changed, or cut, or with something behind it."""
    kind, changed = draw.randrange(6), bytearray(content)
    if kind == 0:
        return content[: draw.randrange(len(content))]
    if kind == 1:
        return content + bytes([draw.randrange(256)])
    bit = draw.randrange(8 * (len(content) if kind > 3 else min(len(content), 400)))
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def files(seed: int, count: Counter, tell: Callable[[str], None]) -> None:
    """A damaged file of some kind: an error, or what was saved."""
    draw = random.Random(seed)
    kind = ("tree", "idx", "kernels")[seed % 3]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "file")
        arrays = {"w": np.arange(12.0).reshape(3, 4), "n": np.arange(3)}
        read: Callable[[], Any]
        if kind == "tree":
            dl.save({"model": arrays, "epoch": 3, "pair": (1, "a")}, path)
            read = lambda: dl.load(path)  # noqa: E731
        elif kind == "idx":
            import hashlib

            content = struct.pack(">HBBI", 0, 8, 1, 5) + bytes(range(5))
            path = Path(folder, "set", "part-idx1-ubyte")
            path.parent.mkdir()
            path.write_bytes(gzip.compress(content) if seed % 8 < 4 else content)
            found = Collection("set", {path.name: hashlib.md5(content).hexdigest()}, ())
            read = lambda: load(found, folder)[0]  # noqa: E731
        else:
            os.environ[kernels.disk.VARIABLE] = folder
            kernels.cache._kernels.clear()
            x = ad.Variable("x")
            read = lambda: _fresh(lambda: ad.Executor([ad.exp_op(x) + 1.0]).run({x: np.zeros(3, "f4")}, True))  # noqa: E731
            read()
            path = draw.choice(sorted(Path(folder).glob("*.so")))
        want = repr(_sorted(read()))
        content = path.read_bytes()
        path.unlink()  # this process may have it mapped
        path.write_bytes(flipped(content, draw))
        try:
            got = repr(_sorted(read()))
        except DlsysError:
            count["clear error"] += 1
        else:
            count["right" if got == want else "wrong"] += 1
            if got != want:
                tell(f"a damaged {kind} gave {got[:200]}")


def _fresh(function: Callable[[], Any]) -> Any:
    """The function's result in a process that has no kernels."""
    kernels.cache._kernels.clear()
    return function()


def _sorted(value: Any) -> Any:
    if isinstance(value, dict):
        return [(key, _sorted(value[key])) for key in sorted(value)]
    return [_sorted(item) for item in value] if isinstance(value, (list, tuple)) else value


def kills(seed: int, count: Counter, tell: Callable[[str], None]) -> None:
    """A training run killed at random moments and begun again ends with the bits of one that was not."""
    draw = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-W", "ignore", "-c", TRAINING]
        environment = {
            **os.environ,
            "DLSYS_COMPILE_CACHE": str(Path(tempfile.gettempdir(), "campaign-kernels")),
        }
        plain = subprocess.run(command, capture_output=True, text=True, env=environment, check=True).stdout
        for _ in range(draw.randrange(1, 4)):
            running = subprocess.Popen([*command, folder], stdout=subprocess.DEVNULL, env=environment)
            try:
                running.wait(draw.uniform(1.0, 6.0))
            except subprocess.TimeoutExpired:
                running.send_signal(signal.SIGKILL)
                running.wait()
        done = subprocess.run([*command, folder], capture_output=True, text=True, env=environment)
        same = done.returncode == 0 and done.stdout == plain
        count["right" if same else "wrong"] += 1
        if not same:
            tell(f"resumed: {done.stderr[-300:] or 'other numbers'}")


NUMBERS = (None, 0, -1, 3, 2**70, 1.5, float("nan"), True)
OBJECTS = ("text", b"bytes", (), [], {}, (2, 3), [1, "a"], {"a": 1}, object(), print, int, slice(None))
ARRAYS = (np.zeros((2, 3)), np.zeros((0,), "f4"), np.array("text"), np.zeros(2, complex))


def junk(seed: int, count: Counter, tell: Callable[[str], None]) -> None:
    """A public function called with arguments that make no sense: an error of dlsys, or of Python's call."""
    draw = random.Random(seed)
    homes = [vars(nn), vars(optim), vars(nn.functional), {n: getattr(dl, n) for n in dir(dl)}, vars(ad)]
    home = draw.choice(homes)
    no_functions = {"Any", "Node", "Op", "TensorTuple", "annotations"}
    dangerous = {"set_num_threads", "set_grad_enabled", "Executor", "save", "fit"} | no_functions
    names = [n for n, v in home.items() if callable(v) and not n.startswith("_") and n not in dangerous]
    name = draw.choice(sorted(names))
    pool = [*NUMBERS, *OBJECTS, *ARRAYS, ad.Variable("x"), dl.ones(2, 3), nn.Linear(2, 2)]
    args = [draw.choice(pool) for _ in range(draw.randrange(4))]
    try:
        made = home[name]
        call, own = (made.__init__, [made]) if inspect.isclass(made) else (made, [])
        inspect.signature(call).bind(*own, *args)
    except (TypeError, ValueError):
        return  # Python's own error
    try:
        result = home[name](*args)
        repr(result)
    except DlsysError:
        count["clear error"] += 1
    except (Exception, SystemExit) as error:  # noqa: BLE001 - counted
        count["other error"] += 1
        tell(f"{name}{tuple(map(_short, args))}: {type(error).__name__}: {str(error)[:100]}")
    else:
        count["right"] += 1


def _short(value: Any) -> str:
    return repr(value)[:30]


PARTS: dict[str, Part] = {
    "graphs": campaign_graphs.graphs,
    "operators": campaign_torch.operators,
    "modules": campaign_torch.modules,
    "optimizers": campaign_torch.optimizers,
    "files": files,
    "kills": kills,
    "junk": junk,
}
COLUMNS = ("right", "clear error", "other error", "wrong")


def campaign(seconds: float, seed: int, only: list[str], rounds: int = 1) -> dict[str, Counter]:
    """What came of the tries, by part, after some `seconds` and `rounds` of all parts at least."""
    counts = {name: Counter() for name in only}
    end, number = time.monotonic() + seconds, seed
    while True:
        for name in only:

            def tell(text: str, name: str = name, number: int = number) -> None:
                print(f"{name}, seed {number}: {text}", flush=True)

            repeat = {"junk": 100, "files": 8, "operators": 8}.get(name, 1)
            for inner in range(repeat):
                if name == "kills" and number % 20:
                    continue
                try:
                    PARTS[name](number * repeat + inner, counts[name], tell)
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
    parser.add_argument("--only", default=",".join(PARTS), help="parts, e.g. graphs,files")
    options = parser.parse_args()
    only = options.only.split(",")
    if unknown := set(only) - PARTS.keys():
        parser.error(f"no such part: {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    counts = campaign(options.seconds, options.seed, only, options.rounds)
    print(f"{'part':12}{'tried':>10}" + "".join(f"{column:>14}" for column in COLUMNS))
    for name, count in counts.items():
        print(f"{name:12}{sum(count.values()):>10}" + "".join(f"{count[column]:>14}" for column in COLUMNS))
    return int(any(count["wrong"] for count in counts.values()))


if __name__ == "__main__":
    sys.exit(main())
