"""The command ``certify``."""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from detmode.cli.commands import UsageError
from detmode.cli.commands.output import check_output, form_of, give
from detmode.process.spelling import did_you_mean


def certify(options: argparse.Namespace, arguments: list[str]) -> int:
    """Certify kernels, each given as ``FILE::NAME``."""
    check_output(options)
    from detmode.cuda import CompileError
    from detmode.verify.certificates import certify as certified

    certificates = []
    for target in options.target:
        wanted = _arguments_of(target)
        if options.repeats is not None:
            wanted["repeats"] = options.repeats
        if options.seed is not None:
            wanted["seed"] = options.seed
        if options.timeout is not None:
            wanted["timeout"] = options.timeout
        try:
            certificates.append(certified(wanted.pop("kernel"), wanted.pop("arguments"), **wanted))
        except (CompileError, TimeoutError, TypeError, ValueError) as error:
            raise UsageError(f"{target}: {error}") from error
    if form_of(options) == "json":
        give(options, "[" + ", ".join(each.to_json() for each in certificates) + "]")
    else:
        give(options, "\n\n".join(map(str, certificates)))
    return 0 if all(each.is_order_independent for each in certificates) else 1


def _arguments_of(target: str) -> dict[str, Any]:
    """Return the arguments for ``detmode.certify`` that a Python file has or makes."""
    name, _, attribute = target.rpartition("::")
    file = Path(name)
    if not name or not attribute:
        raise UsageError(f"{target!r}: give FILE.py::NAME, the name of a function in the file")
    if not file.is_file():
        raise UsageError(f"{target!r}: there is no file {name}")
    spec = importlib.util.spec_from_file_location(file.stem, file)
    if spec is None or spec.loader is None:
        raise UsageError(f"{target!r}: {name} is no Python file")
    module = importlib.util.module_from_spec(spec)
    # As for a script: its neighbours can be imported, and itself by its name.
    sys.path.insert(0, str(file.absolute().parent))
    sys.modules[file.stem] = module
    spec.loader.exec_module(module)
    if not hasattr(module, attribute):
        hint = did_you_mean(attribute, vars(module))
        raise UsageError(f"{target!r}: {name} has no {attribute!r}{hint}")
    found = getattr(module, attribute)
    if callable(found):
        found = found()
    if not isinstance(found, Mapping) or not {"kernel", "arguments"} <= set(found):
        raise UsageError(
            f"{target!r}: {attribute} must be a function without arguments, or a dict, that gives "
            "the arguments of detmode.certify by name, 'kernel' and 'arguments' among them"
        )
    return dict(found)
