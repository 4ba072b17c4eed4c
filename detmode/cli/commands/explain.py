"""The command ``explain``."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from detmode.cli import options as option
from detmode.cli.output import check_output, form_of, give
from detmode.cli.rows import means, similar
from detmode.cli.usage import UsageError
from detmode.reports.terminal import fitted, paragraphs, terminal_width, wrapped

if TYPE_CHECKING:
    from detmode.table.rule import Rule
    from detmode.table.rule_table import Row, RuleTable

ABOUT = "explain why an operator varies, what to do, and what it costs"
EXAMPLES = (
    "torch.gather",
    "nn.AvgPool3d",
    "aten::index_add",
    "upsample_bilinear2d_backward_out_cuda",
    "'*cumsum*' --format json",
)


def add(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument_group("the operators").add_argument(
        "operator",
        nargs="+",
        metavar="OP",
        help="an operator (aten::index_add), a function or module of PyTorch (F.interpolate, "
        "nn.AvgPool3d), an overload, a glob, or the name in PyTorch's message",
    )
    output = parser.add_argument_group("the output")
    option.output(output, "table", "json")
    option.long(output)


def run(options: argparse.Namespace) -> int:
    """Explain what the table has on operators."""
    check_output(options)
    from detmode.rules import default_rules
    from detmode.table.called_as import public_name, without_module

    table = default_rules()
    listed: list[Row] = []
    unlisted = []
    for op in options.operator:
        rows = list(rows_for(table, op))
        if not rows:
            if not _overloads(op) and not public_name(without_module(op)):
                near = similar(table, op, among_all=True)
                raise UsageError(f"no operator and no rule is named {op!r}{near}")
            unlisted.append(op)
        listed += (row for row in rows if row not in listed)
    explained = [_explained(row) for row in listed]
    if form_of(options) == "json":
        give(options, json.dumps(explained, indent=2))
        return 0
    width = terminal_width(sys.stdout) if options.file is None else None
    none = "no rule: nothing is known that makes it vary. `detmode probe` shows what it does"
    parts = [paragraphs(("op", "rule"), [[op, none]], width) for op in unlisted]
    if options.long:
        parts += [_paragraph(row, width) for row in explained]
        if len({row.rule.op for row in listed}) < len(listed):
            text = "Of an operator's rows the first one whose condition holds decides."
            parts.append(wrapped("", text, width))
        for family in dict.fromkeys(row.family for row in listed):
            parts += (_paragraphs(part, width) for part in _about_family(family))
    else:
        parts += [_summary(ops, rows, width) for ops, rows in _chains(explained)]
        if explained:
            parts.append(wrapped("", "--long adds each row's fields, and what they cost.", width))
    give(options, "\n\n".join(parts))
    return 0


_SHOWN = ("op", "family", "when", "action", "guarantee", "alert", "because", "remedy", "traffic")


def _paragraph(row: dict[str, Any], width: int | None) -> str:
    texts = ["" if row[name] is None else str(row[name]) for name in _SHOWN]
    if row["traffic"] is not None:
        texts[-1] += " times the floor: inputs read once and outputs written once"
    return paragraphs(_SHOWN, [texts], width)


def _chains(rows: Sequence[dict[str, Any]]) -> list[tuple[list[str], list[dict[str, Any]]]]:
    """Return operators whose rows say the same, with these rows."""
    by_op: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        by_op.setdefault(row["op"], []).append(row)
    chains: dict[str, tuple[list[str], list[dict[str, Any]]]] = {}
    for op, chain in by_op.items():
        said = str([{**row, "op": "", "remedy": ""} for row in chain])
        chains.setdefault(said, ([], chain))[0].append(op)
    return list(chains.values())


_DONE = {
    "Substitute": "detmode runs its own kernel",
    "Native": "PyTorch's deterministic path runs",
    "Refuse": "detmode raises or warns",
    "Allow": "it runs, as it does not vary",
}
_BITS = {"run_to_run": "the same on one GPU model", "gpu_to_gpu": "the same on any GPU"}


def _summary(ops: Sequence[str], rows: Sequence[dict[str, Any]], width: int | None) -> str:
    """Return in a paragraph what the rows of operators do, in their order."""
    fields: list[tuple[str, str]] = []
    for row in rows:
        if row["when"] == "always" and fields:
            fields.append(("otherwise", f"{row['action']}: {row['because']}"))
            continue
        fields += (
            ("when", row["when"]),
            ("action", f"{row['action']}: {_DONE[row['action']]}"),
            ("bits", _BITS.get(row["guarantee"], "")),
            ("because", row["because"]),
        )
        if row["traffic"]:
            fields.append(("cost", f"moves {row['traffic']} times its inputs and outputs"))
        if row["action"] == "Refuse":
            fields.append(("remedy", row["remedy"]))
    names, texts = zip(*fields)
    page = rows[0]["docs"]
    head = ", ".join(ops) + (f"  ({page})" if page else "")
    body = paragraphs(("op", *names), [["", *texts]], width)
    return fitted(head, width) + body


def _explained(row: Row) -> dict[str, Any]:
    """Return a row's fields with its remedy, its cost, and the page that documents it."""
    from detmode.rules import families, page_of
    from detmode.table.rule import Substitute

    action = row.rule.action
    return {
        "family": row.family,
        **row.rule.as_text(),
        "remedy": _remedy(row.rule),
        "traffic": action.traffic if isinstance(action, Substitute) else None,
        "cost": _sections(row.family).get("Cost"),
        "docs": f"docs/rules/{page_of(row.family)}" if row.family in families() else None,
    }


def _remedy(rule: Rule) -> str:
    from detmode.process.interface import PYTHON
    from detmode.table.rule import Allow, Native, Substitute

    if isinstance(rule.action, Allow):
        return "none is needed: these calls do not vary"
    if isinstance(rule.action, Substitute):
        return "none is needed: detmode runs a deterministic kernel in place of PyTorch's"
    if isinstance(rule.action, Native):
        return "none is needed: detmode runs PyTorch's own deterministic path"
    name = rule.op.partition(".")[0]
    allow = PYTHON.how_to_allow(name)
    silent = "detmode warns, and raises with strict=True (--strict)"
    raised = "detmode raises" if rule.alert else silent
    return (
        f"{raised}; call another operator, or accept that it varies: {allow}, or "
        f"--override {name}=allow"
    )


def _sections(family: str) -> dict[str, str]:
    """Return the sections of a family's documentation by heading; none of a third party's."""
    import inspect

    from detmode.rules import families

    module = families().get(family)
    parts = (inspect.getdoc(module) or "").split("\n## ") if module else [""]
    return {
        heading: body.strip() for heading, _, body in (part.partition("\n") for part in parts[1:])
    }


def _about_family(family: str) -> Iterator[str]:
    """Yield what holds for all rows of a family: its cost, and its page."""
    from detmode.rules import page_of

    cost = _sections(family).get("Cost")
    if cost is not None:
        yield f"Cost of the family {family}:\n\n{cost.replace('``', '`')}"
        page = f"docs/rules/{page_of(family)}"
        yield f"More: {page} (What varies, What happens instead, Limits, Rows)"


def _paragraphs(text: str, width: int | None) -> str:
    """Return paragraphs, each as wide as the terminal; as they are where there is none."""
    if width is None:
        return text
    return "\n\n".join(wrapped("", " ".join(part.split()), width) for part in text.split("\n\n"))


def rows_for(table: RuleTable, op: str) -> Iterator[Row]:
    """Yield the rows of an operator, of a variant of one, or of all that a glob means.

    They are those that hold for this PyTorch, or where there are none, those for others.
    """
    from detmode.table.rule_table import TORCH_VERSION

    meant = [row for row in table if means(row.rule, op)]
    yield from [row for row in meant if row.rule.holds_for(TORCH_VERSION)] or meant
    if not meant:
        for func in _overloads(op):
            yield from table.get(func)


def _overloads(op: str) -> list[Any]:
    """Return the overloads that an operator's name means, with or without its namespace."""
    from detmode.mode.options import is_glob
    from detmode.table.called_as import without_module
    from detmode.table.names import overloads_of
    from detmode.table.rule_table import resolve

    if is_glob(op) or not op.isascii():
        return []
    base, _, overload = (op if "::" in op else f"aten::{without_module(op)}").partition(".")
    names = [overload] if overload else overloads_of(base)
    return [func for name in names if (func := resolve(f"{base}.{name}")) is not None]
