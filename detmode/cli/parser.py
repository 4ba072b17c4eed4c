"""The command line: ``detmode run``, ``record``, ``diff``, ``probe``, and what asks the table.

Exit codes: 0 fine, 1 a check failed, 2 wrong usage, 130 Ctrl-C; a program that is run and fails
gives its own.
"""

from __future__ import annotations

import argparse
import importlib
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import detmode
from detmode.cli.program import die_of
from detmode.cli.streams import say
from detmode.cli.usage import UsageError, usage_errors
from detmode.process import log
from detmode.process.project import as_words, defaults_for
from detmode.process.spelling import did_you_mean
from detmode.reports.terminal import fitted, has_colour, painted, terminal_width

_COMMANDS = {
    "run a program": ("run", "audit"),
    "find what differs": ("record", "diff", "probe"),
    "look something up": ("explain", "rules"),
    "check this machine": ("doctor", "lock", "verify", "certify"),
}
"""The modules of :mod:`detmode.cli.commands`, as ``--help`` shows them."""

_FILES = {"bash": "_shtab_compgen_files", "zsh": "_files", "tcsh": "f"}
"""The function of each shell that completes names of files, as in ``shtab.FILE``."""

_OF_PROJECT = ("run", "audit")
"""The commands for which ``[tool.detmode]`` in ``pyproject.toml`` has defaults."""

_FIRST_STEPS = """\
first steps:
  detmode doctor                    what in this environment can make runs differ
  detmode audit train.py            what its calls would do on CUDA, on any machine
  detmode run train.py              run it reproducibly
  detmode run --twice train.py      run it twice: identical, or where the runs diverge

'detmode COMMAND --help' has the options of a command, and examples."""


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
        say("detmode: interrupted")
        die_of(signal.SIGINT)
    except BrokenPipeError:
        # The reader of a table has seen enough (`detmode rules | head`).
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def command_line() -> argparse.ArgumentParser:
    """Return the parser of all commands, from which shtab writes completion for a shell."""
    parser, commands = _parsers()
    (listed,) = (action for action in parser._actions if action.choices is commands)
    listed.help = "a command"  # --help shows them in its own words
    for command in commands.values():
        for action in command._actions:
            if action.type is Path or action.dest == "program":
                setattr(action, "complete", _FILES)  # noqa: B010 -- an attribute that shtab reads
    return parser


def _main(arguments: list[str]) -> int:
    parser, commands = _parsers()
    if not arguments:
        parser.print_help()
        return 0
    name = next((word for word in arguments if not word.startswith("-")), None)
    if name is not None and name not in commands:
        hint = did_you_mean(name, commands) or "; see 'detmode --help'"
        raise UsageError(f"there is no command {name!r}{hint}")
    options, unknown = parser.parse_known_args(arguments)
    if unknown:
        known = set(commands[options.command]._option_string_actions) - {"-h", "--help"}
        hint = did_you_mean(unknown[0].partition("=")[0], known)
        place = " (the script's own options go after its name)" if "program" in options else ""
        raise UsageError(
            f"unrecognized arguments: {' '.join(unknown)}{hint}{place}; "
            f"see 'detmode {options.command} --help'"
        )
    with usage_errors(ValueError):
        log.level()
        log.formatter()
        if options.command in _OF_PROJECT:
            options = _with_defaults(parser, commands[options.command], options, arguments)
    options.arguments = arguments
    code: int = options.run(options)
    return code


def _with_defaults(
    parser: _Parser, command: _Parser, options: argparse.Namespace, arguments: list[str]
) -> argparse.Namespace:
    """Return the options of a command with those that the project chooses.

    Raises:
        FileError: the project's table is wrong.
    """
    typed = {word.partition("=")[0] for word in arguments[: -len(options.program)]}
    words: list[str] = []
    with suppress(FileNotFoundError):  # the working directory is gone
        words = as_words(defaults_for(Path.cwd()), command._option_string_actions, typed)
    if not words:
        return options
    command.prog = f"{command.prog}: [tool.detmode] in pyproject.toml"
    place = arguments.index(options.command) + 1
    return parser.parse_args([*arguments[:place], *words, *arguments[place:]])


def _say_error(program: str, text: str) -> None:
    head = f"{program}: error:"
    whole = fitted(f"{head} {text}", terminal_width(sys.stderr))
    say(painted(head, "error", has_colour(sys.stderr)) + whole.removeprefix(head))


class _Parser(argparse.ArgumentParser):
    def __init__(self, **options: Any) -> None:
        form = argparse.RawDescriptionHelpFormatter
        super().__init__(allow_abbrev=False, formatter_class=form, **options)

    def error(self, message: str) -> NoReturn:
        _say_error(self.prog, f"{message}; see '{self.prog} --help'")
        raise SystemExit(2)


def _parsers() -> tuple[_Parser, dict[str, _Parser]]:
    """Return the parser, and those of the commands by name."""
    parser = _Parser(prog="detmode", usage="detmode COMMAND ...", epilog=_FIRST_STEPS)
    parser.add_argument("--version", action="version", version=f"detmode {detmode.__version__}")
    commands = parser.add_subparsers(
        prog="detmode", metavar="COMMAND", required=True, help=argparse.SUPPRESS
    )
    about_all = ["Run PyTorch programs bitwise reproducibly, and prove it."]
    for title, names in _COMMANDS.items():
        about_all.append(f"\n{title}:")
        for name in names:
            module = importlib.import_module(f"detmode.cli.commands.{name}")
            about_all.append(f"  {name:8}  {module.ABOUT}")
            examples = (f"  detmode {name} {example}" for example in module.EXAMPLES)
            added = commands.add_parser(
                name,
                help=module.ABOUT,
                description=f"{module.ABOUT[:1].upper()}{module.ABOUT[1:]}.",
                epilog="\n".join(["examples:", *examples]),
            )
            module.add(added)
            added.set_defaults(command=name, run=module.run)
    parser.description = "\n".join(about_all)
    return parser, commands.choices
