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
from detmode.cli.commands import UsageError, programs, tables
from detmode.environment import log

_Command = Callable[[argparse.Namespace, list[str]], int]


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    parser = _parser()
    try:
        options, unknown = parser.parse_known_args(arguments)
        command: _Command = options.command
        if unknown:
            place = " (a script's own stand after its name)" if "program" in options else ""
            raise UsageError(
                f"unrecognized arguments: {' '.join(unknown)}{place}; "
                f"see 'detmode {command.__name__} --help'"
            )
        try:
            log.level()
            log.formatter()
        except ValueError as error:
            raise UsageError(str(error)) from error
        return command(options, arguments)
    except UsageError as error:
        print(f"detmode: error: {error}", file=sys.stderr)
        return 2
    except RuntimeError as error:
        from detmode.rules import ForeignRulesError

        if not isinstance(error, ForeignRulesError):
            raise
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

    def add(name: str, command: _Command, about: str, *options: _Parser) -> _Parser:
        whole = f"{about[:1].upper()}{about[1:]}."
        added = commands.add_parser(name, help=about, description=whole, parents=options)
        added.set_defaults(command=command)
        return added

    program, simulation, under, inside = _program(), _simulation(), _mode(), _deterministic()
    files, report, form, shown = _files(), _report(), _format(), _shown()

    about = "run an unchanged script or module under the mode"
    add("run", programs.run, about, under, simulation, shown, report, files, program)

    about = "run a script on the CPU and report what it would meet on CUDA"
    add("audit", programs.audit, about, under, shown, files, program)

    about = "run a script and record every call, for diff"
    record = add("record", programs.record, about, inside, simulation, program)
    record.add_argument(
        "-o", "--output", type=Path, required=True, metavar="RUN", help="a folder to make"
    )
    record.add_argument(
        "--dump",
        action="append",
        default=[],
        metavar="OPERATOR@INDEX",
        help="write the tensors of that call of the operator too, e.g. aten::addmm.default@3; "
        "repeatable",
    )

    diff = add("diff", tables.diff, "where two recorded runs diverge", form, files)
    diff.add_argument("first", type=Path, metavar="RUN", help="what 'detmode record' wrote")
    diff.add_argument("second", type=Path, metavar="RUN")

    about = "run a script, each operator several times, and list those that vary"
    probe = add("probe", programs.probe, about, inside, simulation, report, files, program)
    probe.add_argument(
        "--repeats", type=int, default=3, metavar="N", help="repeats of each call (default: 3)"
    )
    probe.add_argument(
        "--skip",
        action="append",
        default=[],
        metavar="OP",
        help="pass over an operator, or a glob; repeatable",
    )

    rules = add("rules", tables.rules, "print the rule table", form)
    rules.add_argument("--long", action="store_true", help="a paragraph a row, with the reason")
    rules.add_argument("--torch", metavar="VERSION", help="only rows that hold for that PyTorch")
    rules.add_argument(
        "--op",
        metavar="GLOB",
        help="only rows of these operators, or of the name in PyTorch's message",
    )

    about = "what in this environment can break or slow reproducibility"
    add("doctor", tables.doctor, about, form)

    about = "run every family's samples on this machine and check what is claimed"
    verify = add("verify", tables.verify, about, form)
    verify.add_argument(
        "--device",
        choices=["cuda", "host"],
        help="the GPU, or the host runner; default: a GPU if any",
    )
    verify.add_argument("--family", "--room", metavar="NAME", help="only this family")
    verify.add_argument(
        "--repeats", type=int, default=20, metavar="N", help="runs of each sample (default: 20)"
    )
    return parser


# Options that several commands have


def _mode() -> _Parser:
    options = _Parser(add_help=False)
    options.add_argument("--warn-only", action="store_true", help="warn instead of raising")
    options.add_argument(
        "--strict",
        action="store_true",
        help="also raise on calls that may vary and on which PyTorch is silent",
    )
    options.add_argument(
        "--no-substitute", action="store_true", help="PyTorch's behaviour: native path, warn, raise"
    )
    options.add_argument(
        "--override",
        action="append",
        default=[],
        metavar="OP=ACTION",
        help="an operator, overload or glob to allow, warn, error, native or substitute, e.g. "
        "aten::histc=allow; repeatable",
    )
    return options


def _deterministic() -> _Parser:
    options = _Parser(add_help=False)
    options.add_argument(
        "--deterministic", action="store_true", help="run it under the mode, as 'detmode run' does"
    )
    return options


def _simulation() -> _Parser:
    options = _Parser(add_help=False)
    options.add_argument(
        "--simulate", choices=["cuda"], help="treat CPU tensors as CUDA; kernels run on the host"
    )
    options.add_argument(
        "--schedule-seed", type=int, metavar="N", help="with --simulate: shuffle blocks and threads"
    )
    return options


def _program() -> _Parser:
    options = _Parser(add_help=False)
    kind = options.add_mutually_exclusive_group()
    kind.add_argument("-m", dest="is_module", action="store_true", help="run a module")
    kind.add_argument("-c", dest="is_code", action="store_true", help="run code")
    # Unlike other positionals this one keeps every "--" of the program's own.
    options.add_argument(
        "program",
        nargs=argparse.PARSER,
        metavar="script.py",
        help="the script, '-' for standard input, the module or the code; then its own arguments: "
        "options for detmode stand before it",
    )
    return options


def _report() -> _Parser:
    options = _Parser(add_help=False)
    options.add_argument(
        "--report", type=Path, metavar="FILE.json", help="write the report there too; '-': stdout"
    )
    return options


def _files() -> _Parser:
    options = _Parser(add_help=False)
    options.add_argument(
        "--html", type=Path, metavar="FILE.html", help="write the report there too, as a page"
    )
    options.add_argument(
        "--sarif", type=Path, metavar="FILE.sarif", help="write it there too, for code scanning"
    )
    return options


def _format() -> _Parser:
    options = _Parser(add_help=False)
    _add_format(options)
    return options


def _shown() -> _Parser:
    options = _Parser(add_help=False)
    how = options.add_mutually_exclusive_group()
    how.add_argument("--quiet", action="store_true", help="print the verdict alone")
    how.add_argument("--long", action="store_true", help="print all that is known of each row")
    _add_format(how)
    return options


def _add_format(options: argparse._ActionsContainer) -> None:
    options.add_argument(
        "--format", choices=["table", "json"], default="table", help="default: table"
    )
