"""The command line: `python -m dlsys info`, `ladder`, `roofline`, `tracker`, `worker`."""

from __future__ import annotations

import argparse
import functools
import json
import math
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from ..errors import DlsysError
from ..tvm_import import with_compiler

PROGRAM = "python -m dlsys"
MOST_ELEMENTS = 2**31 - 1  # of a matrix: kernels count in 32 bits


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one sentence."""

    def error(self, message: str) -> NoReturn:
        """Ends the program with status 2."""
        self.exit(2, f"{self.prog}: {message}\n")


def main(argv: list[str] | None = None) -> int:
    """Run the program; its exit status: 0, 1 for a wrong result, 2 for wrong arguments, 130 after Ctrl-C."""
    parser = _parser()
    options = parser.parse_args(argv)
    if options.command is None:
        parser.print_help()
        return 0
    command = {
        "info": _info, "ladder": _ladder, "roofline": _roofline, "tracker": _tracker, "worker": _worker,
    }[options.command]  # fmt: skip
    return run(f"{PROGRAM} {options.command}", lambda: command(options))


def run(program: str, function: Callable[[], object]) -> int:
    """Calls a program's function, and returns its exit status: 0; 2 for a wrong request, or an error's own `status`,
    with one sentence; 130 after Ctrl-C."""
    from .. import distributed  # here, as it loads TVM's runtime

    try:
        distributed.group()  # of several processes rank 0 alone prints
        function()
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
        return 130
    except (DlsysError, OSError, MemoryError) as error:
        print(f"{program}: {error}", file=sys.stderr)
        return getattr(error, "status", 2)
    return 0


def _parser() -> Parser:
    """The parser of the commands and their options."""
    told = "What dlsys finds on this machine, and what its schedules gain."
    parser = Parser(prog=PROGRAM, description=told, allow_abbrev=False)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    told = "What dlsys runs on: versions, target, features of the CPU, threads, CUDA or why there is none, caches."
    info = commands.add_parser("info", allow_abbrev=False, help="versions, target, threads, caches", description=told)
    info.add_argument("--json", action="store_true", help="as JSON")
    ladder = commands.add_parser(
        "ladder",
        allow_abbrev=False,
        help="what each step of the matmul's schedule gains",
        description="Times the product of an M x K and a K x N matrix under one schedule after another, from TVM's "
        "default loops to the schedule in use, each checked before it is timed. The last rung runs on all threads, "
        "the others on one; peak is the machine's multiply-adds, measured on as many.",
    )
    ladder.add_argument("sizes", nargs="*", type=_count, metavar="M K N", help="default: 1024 1024 1024")
    ladder.add_argument("--threads", type=_count, metavar="N",
                        help="threads of the last rung (default: all); 1 leaves it out")  # fmt: skip
    ladder.add_argument("--dtype", choices=["float32", "float64"], default="float32", help="default: float32")
    ladder.add_argument("--rounds", type=_count, default=7, metavar="N",
                        help="times that each is timed, slow ones less often (default: 7)")  # fmt: skip
    roofline = commands.add_parser(
        "roofline",
        allow_abbrev=False,
        help="what limits the kernels of a training step",
        description="Prints what each kernel of a training step moves and computes, and the time that it takes at "
        "least: on a GPU, or on a CPU of many cores, predicted by a model of it; on this CPU by its measured peaks.",
    )
    roofline.add_argument("--target", choices=["cuda", "llvm"], help="default: cuda; llvm with --cores")
    roofline.add_argument("--arch", default="sm_90", help="of the GPU: sm_90 (H200) or sm_80 (A100); default: sm_90")
    roofline.add_argument("--cores", type=_count, metavar="N", help="predict for a CPU of so many cores")
    roofline.add_argument("-m", "--model", choices=["mlp", "cnn"], default="mlp", help="default: mlp")
    roofline.add_argument("--batch", type=_count, default=1000, metavar="N", help="default: 1000")
    told = "Prints a token and tells programs that have it which workers lend their CPU. Serves until it is ended."
    tracker = commands.add_parser("tracker", allow_abbrev=False, help="knows the devices far away", description=told)
    told = "Lends this CPU to programs that ask the tracker for it, one at a time. Serves until it is ended. The "
    told += "environment variable DLSYS_TOKEN is the token that the tracker has printed."
    worker = commands.add_parser("worker", allow_abbrev=False, help="lends this CPU to others", description=told)
    worker.add_argument("--tracker", metavar="HOST:PORT", required=True, help="where the tracker is")
    worker.add_argument("--key", metavar="NAME", required=True, help="what programs ask for; alike CPUs have one")
    for server, port in ((tracker, 9190), (worker, 0)):
        server.add_argument("--host", default="127.0.0.1", help="the address to listen on (default: 127.0.0.1, for "
                            "programs of this machine alone)")  # fmt: skip
        server.add_argument("--port", type=_port, default=port, metavar="N", help=f"default: {port or 'any'}")
    return parser


def _count(text: str, told: str = "an integer of 1 or more", least: int = 1, beyond: float = math.inf) -> int:
    """An argument that is an integer from `least` to below `beyond`."""
    if not text.isdecimal() or not least <= int(text) < beyond:
        raise argparse.ArgumentTypeError(f"must be {told}, not {text!r}")
    return int(text)


_port = functools.partial(_count, told="a port's number, 0 for any", least=0, beyond=2**16)


def _info(options: argparse.Namespace) -> None:
    info = with_compiler("cli.info")
    facts = info.facts()
    print(json.dumps(facts, indent=2) if options.json else info.as_text(facts))


def _roofline(options: argparse.Namespace) -> None:
    roofline = with_compiler("cli.roofline")
    target = options.target or ("llvm" if options.cores else "cuda")
    print(roofline.report(options.model, options.batch, target, options.arch, options.cores))


def _tracker(options: argparse.Namespace) -> None:
    with_compiler("rpc.server").track(options.host, options.port)


def _worker(options: argparse.Namespace) -> None:
    with_compiler("rpc.server").work(options.tracker, options.key, options.host, options.port)


def _ladder(options: argparse.Namespace) -> None:
    """Print the measurements of `ladder`. Raises DlsysError for sizes that do not fit."""
    if len(options.sizes) not in (0, 3):
        raise DlsysError(
            f"takes the three sizes M K N of an M x K and a K x N matrix, or none; given {len(options.sizes)}"
        )
    m, k, n = options.sizes or (1024, 1024, 1024)
    if max(m * k, k * n, m * n) > MOST_ELEMENTS:
        raise DlsysError(f"{m} x {k} x {n} is too large: each matrix must have fewer than 2**31 elements")
    ladder = with_compiler("cli.ladder")
    print(ladder.climb(m, k, n, options.dtype, options.threads, options.rounds))
