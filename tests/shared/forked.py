"""Runs a program once for each rank: ``python forked.py PROGRAM ARGUMENTS``.

``ARGUMENTS`` is a JSON list with the list of each rank's. What the program imports at its top level
is imported once, before the ranks are forked: PyTorch takes most of what a short program takes.
"""

import ast
import importlib
import json
import os
import runpy
import sys
from pathlib import Path

program, of_ranks = sys.argv[1:]
sys.path[0] = str(Path(program).parent)
imports = [
    statement
    for statement in ast.parse(Path(program).read_text(encoding="utf-8")).body
    if isinstance(statement, (ast.Import, ast.ImportFrom))
]
# The first optimizer imports the compiler.
importlib.import_module("torch._dynamo")
exec(compile(ast.Module(imports, []), program, "exec"), {})

processes = []
for rank, arguments in enumerate(json.loads(of_ranks)):
    process = os.fork()
    if process == 0:
        os.environ["RANK"] = str(rank)
        sys.argv[:] = [program, *arguments]
        runpy.run_path(program, run_name="__main__")
        break
    processes.append(process)
else:
    ends = [os.waitpid(process, 0)[1] for process in processes]
    sys.exit(any(ends))
