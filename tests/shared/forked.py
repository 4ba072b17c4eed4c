"""Forks programs from a process that has imported PyTorch, which takes most of their time.

It answers each line of its standard input, a JSON object, with the number of the process that runs
the program, and then with its exit code, each in a line:

    program: a Python file, ``-c`` or ``-m``.
    arguments: a list of arguments for each rank; the first is the text for ``-c``, the module for
        ``-m``.
    environment: all variables; ``RANK`` is added where there are several ranks.
    folder: the one to run in.
    output: a file for what it writes to its standard output, and one for errors.
"""

import ast
import gc
import importlib
import json
import os
import runpy
import sys
from pathlib import Path
from typing import Any

MODULES = ("detmode.mode.deterministic_mode", "detmode.runs.recording", "torch._dynamo")
"""The first optimizer imports the compiler."""

IMPORTS = (ast.Import, ast.ImportFrom)


def asked_for() -> dict[str, Any]:
    """In a new process for each line, return what the line asks for; the first one ends here."""
    for line in sys.stdin:
        process = os.fork()
        if process == 0:
            return dict(json.loads(line))
        print(process, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), flush=True)
    sys.exit()


def become(environment: dict[str, str], folder: str, output: tuple[str, str]) -> None:
    """Be a process that was started with all of that, in a session of its own."""
    os.setsid()
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    for number, path in enumerate((os.devnull, *output)):
        os.dup2(os.open(path, os.O_RDWR), number)


def imports_of(program: str) -> ast.Module:
    tree = ast.parse(Path(program).read_text(encoding="utf-8"))
    return ast.Module([each for each in tree.body if isinstance(each, IMPORTS)], [])


def reports_leaks() -> bool:
    """Return whether Triton's binding says at the end that what a frozen heap holds has leaked."""
    binding = sys.modules.get("triton._C.libtriton")
    return binding is not None and type(binding.ir.builder).__module__ == "nanobind"


def run(program: str, *arguments: str) -> None:
    """Run a program as Python's command line does."""
    if program == "-c":
        sys.path[0], sys.argv[:] = "", ["-c", *arguments[1:]]
        main = type(sys)("__main__")
        sys.modules["__main__"] = main
        exec(compile(arguments[0], "<string>", "exec"), vars(main))
    elif program == "-m":
        sys.path[0], sys.argv[:] = "", arguments
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
    else:
        sys.path[0], sys.argv[:] = str(Path(program).parent), [program, *arguments]
        runpy.run_path(program, run_name="__main__")


for module in MODULES:
    importlib.import_module(module)
# At its end Python looks through all objects for cycles: a second for those of PyTorch, and a
# copy of all that a program shares with this process, since a collection writes to objects.
if not reports_leaks():
    gc.freeze()
asked = asked_for()
program, of_ranks = asked["program"], asked["arguments"]
become(asked["environment"], asked["folder"], asked["output"])
if program not in ("-c", "-m"):
    exec(compile(imports_of(program), program, "exec"), {})
elif len(of_ranks) == 1:
    run(program, *of_ranks[0])
    sys.exit()
processes = []
for rank, arguments in enumerate(of_ranks):
    process = os.fork()
    if process == 0:
        os.environ["RANK"] = str(rank)
        run(program, *arguments)
        sys.exit()
    processes.append(process)
sys.exit(any([os.waitpid(process, 0)[1] for process in processes]))
