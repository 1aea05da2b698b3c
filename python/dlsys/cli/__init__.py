"""The command line: `python -m dlsys info`, `tracker`, `worker`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from typing import NoReturn

from ..errors import DlsysError
from ..tvm_import import with_compiler

PROGRAM = "python -m dlsys"


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one sentence."""

    def error(self, message: str) -> NoReturn:
        """Ends the program with status 2."""
        self.exit(2, f"{self.prog}: {message}\n")


def main(argv: list[str] | None = None) -> int:
    """Run the program; its exit status: 0, 2 for a wrong request, 130 after Ctrl-C."""
    parser = _parser()
    options = parser.parse_args(argv)
    if options.command is None:
        parser.print_help()
        return 0
    command = {"info": _info, "tracker": _tracker, "worker": _worker}[options.command]
    return run(f"{PROGRAM} {options.command}", lambda: command(options))


def run(program: str, function: Callable[[], object]) -> int:
    """Calls a program's function, and returns its exit status: 0; 2 for a wrong request, with one sentence; 130 after
    Ctrl-C."""
    try:
        function()
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
        return 130
    except (DlsysError, OSError, MemoryError) as error:
        print(f"{program}: {error}", file=sys.stderr)
        return 2
    return 0


def _parser() -> Parser:
    """The parser of the commands and their options."""
    told = "What dlsys finds on this machine, and this machine's CPU lent to programs elsewhere."
    parser = Parser(prog=PROGRAM, description=told, allow_abbrev=False)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    told = "What dlsys runs on: versions, target, features of the CPU, threads, CUDA or why there is none, caches."
    info = commands.add_parser("info", allow_abbrev=False, help="versions, target, threads, caches", description=told)
    info.add_argument("--json", action="store_true", help="as JSON")
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


def _port(text: str) -> int:
    """An argument that is the number of a port, 0 for any."""
    if not text.isdecimal() or int(text) >= 2**16:
        raise argparse.ArgumentTypeError(f"must be a port's number, 0 for any, not {text!r}")
    return int(text)


def _info(options: argparse.Namespace) -> None:
    info = with_compiler("cli.info")
    facts = info.facts()
    print(json.dumps(facts, indent=2) if options.json else info.as_text(facts))


def _tracker(options: argparse.Namespace) -> None:
    with_compiler("rpc.server").track(options.host, options.port)


def _worker(options: argparse.Namespace) -> None:
    with_compiler("rpc.server").work(options.tracker, options.key, options.host, options.port)
