"""Launchers of ranks, run by detmode: each rank runs under detmode, the launcher itself does not.

``detmode run -m torch.distributed.run ARGS train.py`` becomes
``python -m torch.distributed.run ARGS -m detmode run train.py``.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path

_PARSERS = {
    "torch.distributed.run": "get_args_parser",
    "accelerate.commands.launch": "launch_command_parser",
}
"""Modules that launch ranks, and what in them makes the parser of their arguments."""

_OUTDATED = "torch.distributed.launch"

_COMMANDS = {
    "torchrun": ("torch.distributed.run", 0),
    "accelerate": ("accelerate.commands.launch", 1),
    "accelerate-launch": ("accelerate.commands.launch", 0),
}
"""Scripts that do: their modules, and the number of words before the arguments."""


def under_detmode(
    target: str, arguments: Sequence[str], command: Sequence[str], *, is_module: bool
) -> list[str] | None:
    """Return the command of a launcher whose ranks run under detmode; ``None`` for no launcher.

    It is what follows ``python``.

    Args:
        target: the path of the program, or a module's name.
        arguments: those of the program.
        command: detmode's command and its options.
        is_module: ``target`` is a module's name.

    Raises:
        ValueError: the launcher would start something else than a Python program.
        SystemExit: the launcher's arguments are wrong.
    """
    module, skipped = (target, 0) if is_module else _COMMANDS.get(Path(target).name, ("", 0))
    if module == _OUTDATED:
        raise ValueError(f"{module} is deprecated; give torch.distributed.run")
    if module not in _PARSERS:
        return None
    arguments = list(arguments[skipped:])
    options = getattr(importlib.import_module(module), _PARSERS[module])().parse_args(arguments)
    place = len(arguments) - len(options.training_script_args) - 1
    launching, program = arguments[:place], arguments[place:]
    if options.no_python or getattr(options, "run_path", False):
        raise ValueError(
            f"{module} would not start Python: {program[0]}; "
            "start detmode by it, as in torchrun --no-python detmode run script.py"
        )
    if launching[-1:] == ["--"]:
        launching.pop()
    if options.module:
        program = ["-m", *program]  # the launcher's own flag is now about detmode
    else:
        launching.append("-m")
    return ["-m", module, *launching, "detmode", *command, *program]
