"""The options that several commands share."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, TypeAlias

from detmode.cli.output import FILES, FORMATS
from detmode.table.override_option import as_override

Place: TypeAlias = argparse._ActionsContainer
"""A parser, or a group of its options."""


def flag(place: Place, name: str, about: str, **settings: Any) -> None:
    """Add an option without a value."""
    place.add_argument(name, **{"action": "store_true", "help": about, **settings})


def several(place: Place, name: str, metavar: str, about: str, **settings: Any) -> None:
    """Add an option that may be repeated."""
    shown = {"metavar": metavar, "help": about, **settings}
    place.add_argument(name, action="append", default=[], **shown)


def number(place: Place, name: str, about: str, **settings: Any) -> None:
    """Add an option whose value is an integer."""
    place.add_argument(name, type=int, metavar="N", help=about, **settings)


def path(place: Place, *names: str, **settings: Any) -> None:
    """Add an option whose value is a path."""
    place.add_argument(*names, type=Path, **settings)


def program(parser: argparse.ArgumentParser) -> None:
    """Add the program that a command runs."""
    group = parser.add_argument_group("the program")
    kind = group.add_mutually_exclusive_group()
    flag(kind, "-m", "run a module", dest="is_module")
    flag(kind, "-c", "run code", dest="is_code")
    # Unlike other positionals this one keeps every "--" of the program's own.
    group.add_argument(
        "program",
        nargs=argparse.PARSER,
        metavar="script.py",
        help="the script, the module or the code, or '-' for standard input; its own arguments "
        "come after it, detmode's options before it",
    )


def policy(group: Place) -> None:
    """Add what a mode does with the calls that it meets."""
    flag(group, "--warn-only", "warn instead of raising")
    flag(group, "--strict", "also raise on calls that may vary and on which PyTorch is silent")
    about = "do as PyTorch does: its deterministic path, its warning, its error"
    flag(group, "--no-substitute", about)
    several(
        group,
        "--override",
        "OP=ACTION",
        "an operator, overload, glob or module to allow, warn, error, native or substitute, e.g. "
        "aten::histc=allow, Net.head=warn; repeatable",
        type=as_override,
    )


def cuda_on_cpu(group: Place) -> None:
    """Add ``--cuda-on-cpu``."""
    about = "let device names of CUDA mean the CPU, for programs that name them"
    flag(group, "--cuda-on-cpu", about)


def simulation(group: Place) -> None:
    """Add the options for machines without a GPU."""
    about = "treat CPU tensors as CUDA; kernels run on the host"
    group.add_argument("--simulate", choices=["cuda"], help=about)
    about = "with --simulate: the seed that shuffles blocks and threads"
    number(group, "--schedule-seed", about)
    cuda_on_cpu(group)


def observed_mode(parser: argparse.ArgumentParser) -> None:
    """Add whether a program that is recorded or probed runs under the mode."""
    group = parser.add_argument_group("the mode")
    flag(group, "--deterministic", "run it under the mode, as 'detmode run' does")
    policy(group)
    simulation(group)


def output(group: Place, *forms: str) -> None:
    """Add the form and the file of a command's output.

    Args:
        group: of the options.
        forms: those that the command offers.
    """
    group.set_defaults(formats=forms)
    group.add_argument(
        "--format",
        choices=forms,
        help="default: what FILE's ending says (.json, .sarif, .html), or else table",
    )
    about = "write it there in place of printing it ('-': stdout)"
    path(group, "-o", "--output", metavar="FILE", dest="file", help=about)


def quiet(group: Place) -> None:
    """Add ``--quiet``, for a report or a table with a head."""
    flag(group, "--quiet", "print the verdict alone")


def long(group: Place) -> None:
    """Add ``--all``, which ``--long`` means too."""
    about = "print everything, each row as a paragraph with its reason and any remedy"
    group.add_argument("--all", "--long", action="store_true", help=about, dest="long")


def report(parser: argparse.ArgumentParser, *names: str) -> None:
    """Add the forms of a report, and options that name a file for it too.

    Args:
        parser: of the command.
        names: of these options: ``report``, ``html`` or ``sarif``.
    """
    group = parser.add_argument_group("the report")
    output(group, *FORMATS)
    kind = group.add_mutually_exclusive_group()
    quiet(kind)
    long(kind)
    for name in names:
        form = FILES[name]
        about = f"print it, and write it there with --format {form}"
        path(group, f"--{name}", metavar=f"FILE.{form}", help=about)
