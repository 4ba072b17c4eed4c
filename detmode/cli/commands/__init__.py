"""The commands themselves; :mod:`detmode.cli` reads their arguments.

Each command is a function of the parsed options and the arguments as given, and returns an exit
code.
Nothing heavy is imported before a command needs it.
"""


class UsageError(Exception):
    """An impossible request: printed on one line, exit code 2."""
