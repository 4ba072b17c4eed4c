"""The command line: ``detmode run``, ``record``, ``diff``, ``probe``, and what asks the table.

Exit codes: 0 fine, 1 a check failed, 2 wrong usage; a program that is run and fails gives its own.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import detmode
from detmode.commands import DASHES, UsageError, programs, tables


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    parser = _parser()
    try:
        options = parser.parse_args([DASHES if each == "--" else each for each in arguments])
        command: Callable[[argparse.Namespace, list[str]], int] = options.command
        return command(options, arguments)
    except UsageError as error:
        print(f"detmode: error: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        # The reader of a table has seen enough (`detmode rules | head`).
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


class _Parser(argparse.ArgumentParser):
    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        print(f"{self.prog}: error: {message}; see '{self.prog} --help'", file=sys.stderr)
        raise SystemExit(2)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="detmode", description="Run PyTorch programs bitwise reproducibly, and prove it."
    )
    parser.add_argument("--version", action="version", version=f"detmode {detmode.__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    run = commands.add_parser("run", help="run an unchanged script or module under the mode")
    run.set_defaults(command=programs.run)
    run.add_argument("--warn-only", action="store_true", help="warn instead of raising")
    run.add_argument(
        "--no-substitute", action="store_true", help="PyTorch's behaviour: native path, warn, raise"
    )
    run.add_argument(
        "--override",
        action="append",
        default=[],
        metavar="OP=ACTION",
        help="an operator, overload or glob to allow, warn, error, native or substitute",
    )

    record = commands.add_parser("record", help="run a script and record every call, for diff")
    record.set_defaults(command=programs.record)
    record.add_argument(
        "-o", "--output", type=Path, required=True, metavar="RUN", help="a folder to make"
    )

    probe = commands.add_parser(
        "probe", help="run a script, each operator several times, and list those that vary"
    )
    probe.set_defaults(command=programs.probe)
    probe.add_argument(
        "--repeats", type=int, default=3, metavar="N", help="repeats of each call (default: 3)"
    )
    probe.add_argument(
        "--skip", action="append", default=[], metavar="OP", help="pass over an operator, or a glob"
    )
    for command in (record, probe):
        command.add_argument(
            "--deterministic",
            action="store_true",
            help="run it under the mode, as 'detmode run' does",
        )
    for command in (run, record, probe):
        command.add_argument(
            "--simulate",
            choices=["cuda"],
            help="treat CPU tensors as CUDA; kernels run on the host",
        )
        command.add_argument(
            "--schedule-seed", type=int, metavar="N", help="shuffle simulated blocks and threads"
        )
        command.add_argument("-m", dest="is_module", action="store_true", help="run a module")
        command.add_argument("program", metavar="script.py", help="the script, or the module")
        rest = command.add_argument(
            "arguments", nargs=argparse.REMAINDER, metavar="ARGS", help="for it"
        )
        rest.required = False  # argparse would name it where only the program is missing

    diff = commands.add_parser("diff", help="where two recorded runs part")
    diff.set_defaults(command=tables.diff)
    diff.add_argument("first", type=Path, metavar="RUN", help="what 'detmode record' wrote")
    diff.add_argument("second", type=Path, metavar="RUN")

    _add_files(run, probe)
    _add_files(diff, json=False)

    rules = commands.add_parser("rules", help="print the rule table")
    rules.set_defaults(command=tables.rules)
    rules.add_argument("--torch", metavar="VERSION", help="only rows that hold for that PyTorch")
    rules.add_argument("--op", metavar="GLOB", help="only rows of these operators")

    doctor = commands.add_parser(
        "doctor", help="what in this environment can break or slow reproducibility"
    )
    doctor.set_defaults(command=tables.doctor)

    verify = commands.add_parser(
        "verify", help="run every room's samples on this machine and check what is claimed"
    )
    verify.set_defaults(command=tables.verify)
    verify.add_argument(
        "--device",
        choices=["cuda", "host"],
        help="the GPU, or the host runner; default: a GPU if any",
    )
    verify.add_argument("--room", metavar="NAME", help="only this room")
    verify.add_argument(
        "--repeats", type=int, default=20, metavar="N", help="runs of each sample (default: 20)"
    )

    for table in (rules, doctor, verify, diff):
        table.add_argument("--format", choices=["table", "json"], default="table")
    return parser


def _add_files(*parsers: argparse.ArgumentParser, json: bool = True) -> None:
    for parser in parsers:
        if json:
            parser.add_argument(
                "--report", type=Path, metavar="FILE.json", help="write the report there too"
            )
        parser.add_argument("--html", type=Path, metavar="FILE.html", help="and there as a page")
        parser.add_argument(
            "--sarif", type=Path, metavar="FILE.sarif", help="and there for code scanning"
        )
