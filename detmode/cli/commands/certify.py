"""The command ``certify``."""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from detmode.cli import options as option
from detmode.cli.output import check_output, form_of, give
from detmode.cli.usage import UsageError, usage_errors
from detmode.process.spelling import did_you_mean
from detmode.reports.terminal import terminal_width

ABOUT = "run a CUDA or Triton kernel under many orders of its threads, without a GPU"
EXAMPLES = (
    "kernels.py::histogram",
    "--repeats 100 kernels.py::histogram kernels.py::scatter",
)


def add(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    kernels = parser.add_argument_group("the kernels")
    kernels.add_argument(
        "target",
        nargs="+",
        metavar="FILE::NAME",
        help="a Python file, and in it a dict, or a function that returns one, of the arguments of "
        "detmode.certify: kernel, arguments, grid, ...",
    )
    option.number(kernels, "--repeats", "schedules of each kernel (default: 20)")
    option.number(kernels, "--seed", "the seed of the shuffles (default: 0)")
    about = "the time that one schedule may take (default: 120)"
    kernels.add_argument("--timeout", type=float, metavar="SECONDS", help=about)
    option.output(parser.add_argument_group("the output"), "table", "json")


def run(options: argparse.Namespace) -> int:
    """Certify kernels, each given as ``FILE::NAME``."""
    check_output(options)
    from detmode.cuda import CompileError
    from detmode.verify.certificates import certify

    certificates = []
    for target in options.target:
        wanted = _arguments_of(target)
        for name in ("repeats", "seed", "timeout"):
            if (value := getattr(options, name)) is not None:
                wanted[name] = value
        with usage_errors(CompileError, TimeoutError, TypeError, ValueError, about=f"{target}: "):
            certificates.append(certify(wanted.pop("kernel"), wanted.pop("arguments"), **wanted))
    if form_of(options) == "json":
        give(options, "[" + ", ".join(certificate.to_json() for certificate in certificates) + "]")
    else:
        width = terminal_width(sys.stdout) if options.file is None else None
        give(options, "\n\n".join(certificate.text(width=width) for certificate in certificates))
    return 0 if all(certificate.is_order_independent for certificate in certificates) else 1


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
    arguments = getattr(module, attribute)
    if callable(arguments):
        arguments = arguments()
    if not isinstance(arguments, Mapping) or not {"kernel", "arguments"} <= set(arguments):
        raise UsageError(
            f"{target!r}: {attribute} must be a function without arguments, or a dict, that gives "
            "the arguments of detmode.certify by name, 'kernel' and 'arguments' among them"
        )
    return dict(arguments)
