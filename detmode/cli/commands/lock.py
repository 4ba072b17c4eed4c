"""The command ``lock``."""

from __future__ import annotations

import argparse
from pathlib import Path

from detmode.cli import options as option
from detmode.cli.locks import lock_here, write_lock

ABOUT = "write every choice of this environment that changes bits"
EXAMPLES = ("", "-o cluster.lock")


def add(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    option.path(
        parser.add_argument_group("the output"),
        *("-o", "--output"),
        metavar="FILE",
        default=Path("detmode.lock"),
        help="the file to write (default: detmode.lock)",
    )


def run(options: argparse.Namespace) -> int:
    """Write the lock of this environment, as a program finds it that ``detmode run`` starts."""
    write_lock(lock_here(), options.output)
    return 0
