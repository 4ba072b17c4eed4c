"""The command ``rules``."""

from __future__ import annotations

import argparse

from detmode.cli import options as option
from detmode.cli.output import check_output, give, rows_as_asked, say_next
from detmode.cli.rows import means, similar
from detmode.cli.usage import UsageError, usage_errors

ABOUT = "print the rule table"
EXAMPLES = ("--op '*index_add*'", "--torch 2.10 -o rules.json")


def add(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    rows = parser.add_argument_group("the rows")
    rows.add_argument("--torch", metavar="VERSION", help="only rows for this version of PyTorch")
    about = "only rows of these operators, or of the name in PyTorch's message"
    rows.add_argument("--op", metavar="GLOB", help=about)
    output = parser.add_argument_group("the output")
    option.output(output, "table", "json")
    option.long(output)


def run(options: argparse.Namespace) -> int:
    """Print the rule table."""
    check_output(options)
    from detmode.process.versions import SUPPORTED, VERSIONS, parse_version
    from detmode.rules import default_rules

    table = default_rules()
    rows = [row for row in table if options.op is None or means(row.rule, options.op)]
    if not rows:
        raise UsageError(f"--op: no rule for {options.op!r}{similar(table, options.op)}")
    if options.torch is not None:
        with usage_errors(ValueError, about="--torch: "):
            version = parse_version(options.torch)
        if not SUPPORTED[0] <= version <= SUPPORTED[1]:
            raise UsageError(f"--torch {options.torch}: the rule table is for PyTorch {VERSIONS}")
        rows = [row for row in rows if row.rule.holds_for(version)]
    texts = [{"family": row.family, **row.rule.as_text()} for row in rows]
    columns = ("op", "when", "action", "guarantee", "alert", "versions", "family")
    widths = (None, 50, None, None, 50, None, None)
    more = ("because", *(["certificate"] if any(row["certificate"] for row in texts) else ()))
    text = rows_as_asked(options, texts, columns, widths, more=more, long=options.long)
    give(options, text)
    say_next(
        options, "`detmode explain OPERATOR` says why it varies, what to do, and what it costs"
    )
    return 0
