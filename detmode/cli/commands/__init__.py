"""What the commands do; :mod:`detmode.cli` reads their arguments.

Each command is a function of the parsed options and the arguments as given, and returns an exit
code.
Nothing heavy is imported before a command needs it.
"""


class UsageError(Exception):
    """Asked for something that cannot be: printed on one line, exit code 2."""
