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
from detmode.cli.commands import UsageError, certificates, programs, tables
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


_Option = tuple[tuple[str, ...], dict[str, Any]]
"""Arguments of ``add_argument``. A list of them is options of which one at most may be given."""


def _option(*names: str, **settings: Any) -> _Option:
    return names, settings


def _flag(name: str, about: str, **settings: Any) -> _Option:
    return (name,), {"action": "store_true", "help": about, **settings}


def _several(name: str, metavar: str, about: str) -> _Option:
    return (name,), {"action": "append", "default": [], "metavar": metavar, "help": about}


def _number(name: str, about: str, **settings: Any) -> _Option:
    return (name,), {"type": int, "metavar": "N", "help": about, **settings}


def _path(*names: str, metavar: str, **settings: Any) -> _Option:
    return names, {"type": Path, "metavar": metavar, **settings}


_MODE = (
    _flag("--warn-only", "warn instead of raising"),
    _flag("--strict", "also raise on calls that may vary and on which PyTorch is silent"),
    _flag("--no-substitute", "do as PyTorch does: its deterministic path, its warning, its error"),
    _several(
        "--override",
        "OP=ACTION",
        "an operator, overload or glob to allow, warn, error, native or substitute, e.g. "
        "aten::histc=allow; repeatable",
    ),
)
_INTERCEPT = _option(
    "--intercept",
    choices=["all", "listed"],
    default="all",
    help="all calls of the program's thread (default), or those of listed operators in any thread, "
    "at no cost to others",
)
_DETERMINISTIC = _flag("--deterministic", "run it under the mode, as 'detmode run' does")
_WARM = _flag("--warm", "compile and load the kernels before the program starts")
_SIMULATION = (
    _option(
        "--simulate", choices=["cuda"], help="treat CPU tensors as CUDA; kernels run on the host"
    ),
    _number("--schedule-seed", "with --simulate: the seed that shuffles blocks and threads"),
)
_PROGRAM = (
    [
        _flag("-m", "run a module", dest="is_module"),
        _flag("-c", "run code", dest="is_code"),
    ],
    # Unlike other positionals this one keeps every "--" of the program's own.
    _option(
        "program",
        nargs=argparse.PARSER,
        metavar="script.py",
        help="the script, the module or the code, or '-' for standard input; its own arguments "
        "come after it, detmode's options before it",
    ),
)
_REPORT = _path(
    "--report", metavar="FILE.json", help="write the report there too, as JSON ('-': stdout)"
)
_FILES = (
    _path("--html", metavar="FILE.html", help="write the report there too, as a page"),
    _path("--sarif", metavar="FILE.sarif", help="write the report there too, for code scanning"),
)
_FORMAT = _option("--format", choices=["table", "json"], default="table", help="default: table")
_SHOWN = [
    _flag("--quiet", "print the verdict alone"),
    _flag("--long", "print each row as a paragraph, with reason and remedy"),
    _FORMAT,
]

_RECORDING = (
    _path("-o", "--output", required=True, metavar="RUN", help="the folder to write"),
    _option(
        "--level",
        choices=["call", "module", "step"],
        default="call",
        help="record each call (default), or for each step one digest a module, or those of the "
        "state that it left",
    ),
    _option(
        "--steps",
        metavar="BEGIN:END",
        help="record these steps alone, counted from 0, without END; a step ends with the step() "
        "of an optimizer",
    ),
    _several(
        "--dump",
        "OPERATOR@INDEX",
        "write the tensors of that call of the operator too, e.g. aten::addmm.default@3; "
        "repeatable",
    ),
)
_RUNS = (
    _path("first", metavar="RUN", help="a folder that 'detmode record' wrote"),
    _path("second", metavar="RUN"),
)
_PROBING = (
    _number("--repeats", "repeats of each call (default: 3)", default=3),
    _several("--skip", "OP", "leave out an operator, or a glob; repeatable"),
)
_ROWS = (
    _flag("--long", "print each row as a paragraph, with the reason"),
    _option("--torch", metavar="VERSION", help="only rows for this version of PyTorch"),
    _option(
        "--op",
        metavar="GLOB",
        help="only rows of these operators, or of the name in PyTorch's message",
    ),
)
_VERIFYING = (
    _option(
        "--device",
        choices=["cuda", "host"],
        help="the GPU, or the host runner; default: a GPU if any",
    ),
    # The second is the older name.
    _option("--family", "--room", metavar="NAME", help="only this family"),
    _number("--repeats", "runs of each sample (default: 20)", default=20),
)
_CERTIFYING = (
    _option(
        "target",
        nargs="+",
        metavar="FILE::NAME",
        help="a Python file, and in it a dict, or a function that returns one, of the arguments of "
        "detmode.certify: kernel, arguments, grid, ...",
    ),
    _number("--repeats", "schedules of each kernel (default: 20)"),
    _number("--seed", "the seed of the shuffles (default: 0)"),
)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="detmode", description="Run PyTorch programs bitwise reproducibly, and prove it."
    )
    parser.add_argument("--version", action="version", version=f"detmode {detmode.__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    def add(command: _Command, about: str, *options: _Option | list[_Option]) -> None:
        whole = f"{about[:1].upper()}{about[1:]}."
        added = commands.add_parser(command.__name__, help=about, description=whole)
        added.set_defaults(command=command)
        for option in options:
            choices = option if isinstance(option, list) else [option]
            place = added.add_mutually_exclusive_group() if len(choices) > 1 else added
            for names, settings in choices:
                place.add_argument(*names, **settings)

    about = "run an unchanged script or module under the mode"
    own = (*_MODE, _INTERCEPT, _WARM, *_SIMULATION, _SHOWN, _REPORT)
    add(programs.run, about, *own, *_FILES, *_PROGRAM)
    about = "run a script on the CPU and report what would happen on CUDA"
    add(programs.audit, about, *_MODE, _SHOWN, *_FILES, *_PROGRAM)
    about = "run a script and record every call, for diff"
    add(programs.record, about, _DETERMINISTIC, *_SIMULATION, *_PROGRAM, *_RECORDING)
    add(tables.diff, "find where two recorded runs diverge", _FORMAT, *_FILES, *_RUNS)
    about = "run a script, each operator several times, and list those that vary"
    probing = (_DETERMINISTIC, *_SIMULATION, _REPORT, *_FILES, *_PROGRAM, *_PROBING)
    add(programs.probe, about, *probing)
    add(tables.rules, "print the rule table", _FORMAT, *_ROWS)
    add(tables.doctor, "list what in this environment can break or slow reproducibility", _FORMAT)
    about = "check every claim of the table on this machine"
    add(tables.verify, about, _FORMAT, *_VERIFYING)
    about = "run a CUDA or Triton kernel under many orders of its threads, without a GPU"
    add(certificates.certify, about, _FORMAT, *_CERTIFYING)
    return parser
