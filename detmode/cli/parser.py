"""The command line: ``detmode run``, ``record``, ``diff``, ``probe``, and what asks the table.

Exit codes: 0 fine, 1 a check failed, 2 wrong usage, 130 Ctrl-C; a program that is run and fails
gives its own.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import detmode
from detmode.cli.commands import UsageError, certificates, locks, lookup, programs, tables
from detmode.cli.commands.output import FORMATS
from detmode.cli.program import die_of
from detmode.process import log
from detmode.process.spelling import did_you_mean
from detmode.reports.terminal import has_colour, painted
from detmode.table.override_option import as_override

_Command = Callable[[argparse.Namespace, list[str]], int]


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        return _main(arguments)
    except UsageError as error:
        _say_error("detmode", str(error))
        return 2
    except RuntimeError as error:
        from detmode.rules import ForeignRulesError

        if not isinstance(error, ForeignRulesError):
            raise
        _say_error("detmode", str(error))
        return 2
    except KeyboardInterrupt:
        print("detmode: interrupted", file=sys.stderr)
        die_of(signal.SIGINT)
    except BrokenPipeError:
        # The reader of a table has seen enough (`detmode rules | head`).
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _main(arguments: list[str]) -> int:
    parser, commands = _parsers()
    name = next((word for word in arguments if not word.startswith("-")), None)
    if name is not None and name not in commands:
        hint = did_you_mean(name, commands) or "; see 'detmode --help'"
        raise UsageError(f"there is no command {name!r}{hint}")
    options, unknown = parser.parse_known_args(arguments)
    command: _Command = options.command
    if unknown:
        known = set(commands[command.__name__]._option_string_actions) - {"-h", "--help"}
        hint = did_you_mean(unknown[0].partition("=")[0], known)
        place = " (the script's own options go after its name)" if "program" in options else ""
        raise UsageError(
            f"unrecognized arguments: {' '.join(unknown)}{hint}{place}; "
            f"see 'detmode {command.__name__} --help'"
        )
    try:
        log.level()
        log.formatter()
    except ValueError as error:
        raise UsageError(str(error)) from error
    return command(options, arguments)


def _say_error(program: str, text: str) -> None:
    head = painted(f"{program}: error:", "error", has_colour(sys.stderr))
    print(f"{head} {text}", file=sys.stderr)


class _Parser(argparse.ArgumentParser):
    def __init__(self, **options: Any) -> None:
        form = argparse.RawDescriptionHelpFormatter
        super().__init__(allow_abbrev=False, formatter_class=form, **options)

    def error(self, message: str) -> NoReturn:
        _say_error(self.prog, f"{message}; see '{self.prog} --help'")
        raise SystemExit(2)


_Option = tuple[tuple[str, ...], dict[str, Any]]
"""Arguments of ``add_argument``."""

_Options = Sequence[_Option | list[_Option]]
"""A list in it is options of which one at most may be given."""


def _option(*names: str, **settings: Any) -> _Option:
    return names, settings


def _flag(name: str, about: str, **settings: Any) -> _Option:
    return (name,), {"action": "store_true", "help": about, **settings}


def _several(name: str, metavar: str, about: str, **settings: Any) -> _Option:
    shown = {"metavar": metavar, "help": about, **settings}
    return (name,), {"action": "append", "default": [], **shown}


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
        type=as_override,
    ),
)
_INTERCEPT = _option(
    "--intercept",
    choices=["all", "listed"],
    default="all",
    help="all calls of the program's thread (default), or those of listed operators in any thread, "
    "at no cost to others",
)
_RECHECK = _option(
    "--recheck",
    type=float,
    default=0.0,
    metavar="RATE",
    help="make this share of the calls twice, from 0 to 1, and fail where the bits differ",
)
_DETERMINISTIC = _flag("--deterministic", "run it under the mode, as 'detmode run' does")
_WARM = _flag("--warm", "compile and load the kernels before the program starts")
_LOCK = _path(
    "--lock", metavar="FILE", default=Path("detmode.lock"), help="the lock (default: detmode.lock)"
)
_LOCKING = [
    _flag("--write-lock", "write a lock when the program has ended: all that changes its bits"),
    _flag("--locked", "refuse what differs from the lock", action="store_const", const="error"),
    # With "=" it is an option of its own: an optional value would take the script's name.
    _flag(
        "--locked=warn",
        "tell what differs from the lock, and go on",
        action="store_const",
        const="warn",
        dest="locked",
    ),
]
_CUDA_ON_CPU = _flag(
    "--cuda-on-cpu", "let device names of CUDA mean the CPU, for programs that name them"
)
_SIMULATION = (
    _option(
        "--simulate", choices=["cuda"], help="treat CPU tensors as CUDA; kernels run on the host"
    ),
    _number("--schedule-seed", "with --simulate: the seed that shuffles blocks and threads"),
    _CUDA_ON_CPU,
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


def _output(*forms: str) -> tuple[_Option, _Option]:
    return (
        _option(
            "--format",
            choices=forms,
            help="default: what FILE's ending says (.json, .sarif, .html), or else table",
        ),
        _path(
            *("-o", "--output"),
            metavar="FILE",
            dest="file",
            help="write it there in place of printing it ('-': stdout)",
        ),
    )


_QUIET = _flag("--quiet", "print the verdict alone")
_LONG = _flag("--long", "print each row as a paragraph, with its reason and any remedy")
_REPORT = _path(
    "--report", metavar="FILE.json", help="print it, and write it there with --format json"
)
_FILES = (
    _path("--html", metavar="FILE.html", help="print it, and write it there with --format html"),
    _path("--sarif", metavar="FILE.sarif", help="print it, and write it there with --format sarif"),
)

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
    _flag("--quiet", "print only what could not be recorded"),
)
_AGAINST = _path("--against", metavar="FILE", help="list what differs from a lock too")
_LOCK_OUTPUT = _path(
    *("-o", "--output"),
    metavar="FILE",
    default=Path("detmode.lock"),
    help="the file to write (default: detmode.lock)",
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
    _option("--torch", metavar="VERSION", help="only rows for this version of PyTorch"),
    _option(
        "--op",
        metavar="GLOB",
        help="only rows of these operators, or of the name in PyTorch's message",
    ),
)
_OPERATOR = _option(
    "operator",
    nargs="+",
    metavar="OP",
    help="an operator, an overload, a glob, or the name in PyTorch's message, e.g. aten::index_add",
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
    _option(
        "--timeout",
        type=float,
        metavar="SECONDS",
        help="the time that one schedule may take (default: 120)",
    ),
)

_FIRST_STEPS = """\
first steps:
  detmode doctor                    what in this environment can make runs differ
  detmode audit train.py            what its calls would do on CUDA, on any machine
  detmode run train.py              run it reproducibly
  detmode record -o first train.py  twice, then: detmode diff first second

'detmode COMMAND --help' has the options of a command, and examples."""


def _parsers() -> tuple[_Parser, dict[str, _Parser]]:
    """Return the parser, and those of the commands by name."""
    parser = _Parser(prog="detmode", usage="detmode COMMAND ...", epilog=_FIRST_STEPS)
    parser.add_argument("--version", action="version", version=f"detmode {detmode.__version__}")
    commands = parser.add_subparsers(
        prog="detmode", metavar="COMMAND", required=True, help=argparse.SUPPRESS
    )
    about_all = ["Run PyTorch programs bitwise reproducibly, and prove it."]

    def group(title: str) -> None:
        about_all.append(f"\n{title}:")

    def add(command: _Command, about: str, examples: Sequence[str], **groups: _Options) -> None:
        name = command.__name__
        about_all.append(f"  {name:8}  {about}")
        added = commands.add_parser(
            name,
            description=f"{about[:1].upper()}{about[1:]}.",
            epilog="\n".join(["examples:", *(f"  detmode {name} {each}" for each in examples)]),
        )
        for title, options in groups.items():
            titled = added.add_argument_group(title.replace("_", " "))
            for option in options:
                choices = option if isinstance(option, list) else [option]
                place = titled.add_mutually_exclusive_group() if len(choices) > 1 else titled
                for names, settings in choices:
                    place.add_argument(*names, **settings)
                    if names == ("--format",):
                        added.set_defaults(formats=settings["choices"])
        added.set_defaults(command=command)

    shown = (*_output(*FORMATS), [_QUIET, _LONG])

    group("run a program")
    add(
        programs.run,
        "run an unchanged script or module under the mode",
        [
            "train.py --epochs 3",
            "--warn-only -o report.html train.py",
            "--override aten::histc=allow -m my_package.train",
        ],
        the_program=_PROGRAM,
        the_mode=(*_MODE, _INTERCEPT, _RECHECK, _WARM, *_SIMULATION),
        the_lock=(_LOCKING, _LOCK),
        the_report=(*shown, _REPORT, *_FILES),
    )
    add(
        programs.audit,
        "run a script on the CPU and report what would happen on CUDA",
        ["train.py --steps 2", "--format github train.py", "-o audit.html train.py"],
        the_program=_PROGRAM,
        the_mode=(*_MODE, _CUDA_ON_CPU),
        the_report=(*shown, *_FILES),
    )
    group("find what differs")
    add(
        programs.record,
        "run a script and record every call, for diff",
        [
            "-o first train.py",
            "-o long --level step train.py",
            "-o again --dump aten::addmm@3 train.py",
        ],
        the_program=_PROGRAM,
        the_mode=(_DETERMINISTIC, *_SIMULATION),
        the_recording=_RECORDING,
    )
    add(
        tables.diff,
        "find where two recorded runs diverge",
        ["first second", "-o diff.html first second"],
        the_runs=_RUNS,
        the_report=(*_output(*FORMATS), _QUIET, *_FILES),
    )
    add(
        programs.probe,
        "run a script, each operator several times, and list those that vary",
        ["train.py", "--repeats 10 --skip 'torchvision::*' train.py"],
        the_program=_PROGRAM,
        the_mode=(_DETERMINISTIC, *_SIMULATION),
        the_probe=_PROBING,
        the_report=(*_output(*FORMATS), _QUIET, _REPORT, *_FILES),
    )
    group("look something up")
    add(
        lookup.explain,
        "explain why an operator varies, what to do, and what it costs",
        ["aten::index_add", "upsample_bilinear2d_backward_out_cuda", "'*cumsum*' --format json"],
        the_operators=[_OPERATOR],
        the_output=_output("table", "json"),
    )
    add(
        lookup.rules,
        "print the rule table",
        ["--op '*index_add*'", "--torch 2.10 -o rules.json"],
        the_rows=_ROWS,
        the_output=(*_output("table", "json"), _LONG),
    )
    group("check this machine")
    add(
        tables.doctor,
        "list what in this environment can break or slow reproducibility",
        ["", "--against detmode.lock", "--format github"],
        the_lock=[_AGAINST],
        the_output=(*_output("table", "json", "github"), _QUIET),
    )
    add(
        locks.lock,
        "write every choice of this environment that changes bits",
        ["", "-o cluster.lock"],
        the_output=[_LOCK_OUTPUT],
    )
    add(
        tables.verify,
        "check every claim of the table on this machine",
        ["--device host --family index --repeats 3"],
        the_claims=_VERIFYING,
        the_output=(*_output("table", "json"), _QUIET),
    )
    add(
        certificates.certify,
        "run a CUDA or Triton kernel under many orders of its threads, without a GPU",
        ["kernels.py::histogram", "--repeats 100 kernels.py::histogram kernels.py::scatter"],
        the_kernels=_CERTIFYING,
        the_output=_output("table", "json"),
    )
    parser.description = "\n".join(about_all)
    return parser, commands.choices
