"""What the commands do; :mod:`detmode.cli` reads their arguments.

Each command is a function of the parsed options and the arguments as given, and returns an exit
code.
Nothing heavy is imported before a command needs it.
"""

DASHES = "\0--"
"""Stands for "--" while argparse reads: it would drop the program's own."""


class UsageError(Exception):
    """Asked for something that cannot be: printed on one line, exit code 2."""
