"""The cell magic ``%%deterministic`` of IPython and Jupyter: ``%load_ext detmode`` defines it.

Its options are those of ``detmode run`` that are about the mode; a cell has no files to write and
no process of its own.
"""

from __future__ import annotations

import ast
from typing import Any

from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell
from IPython.core.magic import Magics, cell_magic, magics_class, no_var_expand
from IPython.core.magic_arguments import argument, magic_arguments, parse_argstring
from IPython.display import display

from detmode.mode.deterministic_mode import DeterministicMode
from detmode.process.interface import NOTEBOOK
from detmode.table.override_option import as_override


@magics_class
class _DeterministicMagics(Magics):
    """The magics of detmode."""

    @no_var_expand
    @magic_arguments()
    @argument("name", nargs="?", help="a variable for the report")
    @argument("--warn-only", action="store_true", help="warn instead of raising")
    @argument("--strict", action="store_true", help="also raise where PyTorch is silent")
    @argument("--no-substitute", action="store_true", help="do as PyTorch does")
    @argument(
        "--override",
        type=as_override,
        metavar="OP=ACTION",
        action="append",
        default=[],
        help="allow, warn, error, native or substitute an operator or a glob; repeatable",
    )
    @argument(
        "--intercept", choices=["all", "listed"], default="all", help="the calls to intercept"
    )
    @argument("--simulate", choices=["cuda"], help="treat CPU tensors as CUDA tensors")
    @argument("--schedule-seed", metavar="N", type=int, help="with --simulate: the threads' order")
    @argument("--quiet", action="store_true", help="show the verdict alone")
    @cell_magic
    def deterministic(self, line: str, cell: str) -> Any:
        """Run a cell under a DeterministicMode, and show what the mode intercepted."""
        options = parse_argstring(self.deterministic, line)
        try:
            mode = DeterministicMode(
                options.warn_only,
                strict=options.strict,
                substitute=not options.no_substitute,
                overrides=dict(options.override),
                intercept=options.intercept,
                simulate=options.simulate,
                schedule_seed=options.schedule_seed,
            )
        except (TypeError, ValueError) as error:
            raise UsageError(NOTEBOOK.in_words(str(error))) from error
        mode.start_through(NOTEBOOK)
        body, last = self._compiled(cell)
        try:
            with mode:
                exec(body, self.shell.user_ns)
                return eval(last, self.shell.user_ns) if last is not None else None
        finally:
            report = mode.report()
            if options.name:
                self.shell.user_ns[options.name] = report
            if options.quiet:
                print(report.verdict)
            else:
                shown = {"text/plain": str(report), "text/html": report._repr_html_()}
                display(shown, raw=True)

    def _compiled(self, cell: str) -> tuple[Any, Any]:
        """Return the code of a cell, and that of the expression at its end, whose value it has."""
        # Above it, as the user sees it, is the magic's line; IPython leaves out empty ones.
        above = 1 + cell[: len(cell) - len(cell.lstrip())].count("\n")
        text = "\n" * above + self.shell.transform_cell(cell)
        compiler = self.shell.compile
        # IPython 9 counts the cell before it is run, and earlier versions after.
        number = len(self.shell.history_manager.input_hist_raw) - 1
        name = compiler.cache(text, number, raw_code=cell)
        tree = self.shell.transform_ast(compiler.ast_parse(text, name))
        last = None
        if tree.body and isinstance(tree.body[-1], ast.Expr):
            last = compiler(ast.Expression(tree.body.pop().value), name, "eval")
        return compiler(tree, name, "exec"), last


def load(shell: InteractiveShell) -> None:
    """Register the magics in a shell."""
    shell.register_magics(_DeterministicMagics)
