"""The mode's arguments, checked before anything is changed."""

from __future__ import annotations

import difflib
import logging
import re
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase

import torch

from detmode.rule import Substitute
from detmode.table import RuleTable

ACTIONS = ("allow", "warn", "error", "native", "substitute")
"""What an override can ask for."""


def check_arguments(
    warn_only: object,
    substitute: object,
    rules: object,
    fill_uninitialized_memory: object,
    simulate: object,
    schedule_seed: object,
) -> None:
    """Refuse what has a wrong type (``TypeError``) or an impossible value (``ValueError``)."""
    check_bool("warn_only", warn_only)
    if not isinstance(substitute, bool):
        raise TypeError(f"substitute must be bool, not {type(substitute).__name__}")
    if rules is not None and not isinstance(rules, RuleTable):
        raise TypeError(
            f"rules must be a RuleTable, not {type(rules).__name__}; "
            "to add rules: rules=default_rules() + [Rule(...)]"
        )
    if not (fill_uninitialized_memory is None or isinstance(fill_uninitialized_memory, bool)):
        raise TypeError(
            "fill_uninitialized_memory must be bool or None, not "
            f"{type(fill_uninitialized_memory).__name__}"
        )
    if simulate not in (None, "cuda"):
        raise ValueError(f"simulate must be 'cuda' or None, got {simulate!r}")
    if schedule_seed is not None:
        if isinstance(schedule_seed, bool) or not isinstance(schedule_seed, int):
            raise TypeError(
                f"schedule_seed must be int or None, not {type(schedule_seed).__name__}"
            )
        if simulate is None:
            raise ValueError("schedule_seed orders the host runner; give simulate='cuda' as well")


def check_bool(name: str, value: object) -> None:
    """Refuse what is no bool, in the words of ``torch.use_deterministic_algorithms``."""
    if not isinstance(value, bool):
        raise TypeError(
            f"_set_deterministic_algorithms(): argument '{name}' must be bool, not "
            f"{type(value).__name__}"
        )


def check_overrides(overrides: Mapping[str, str] | None, table: RuleTable) -> dict[str, str]:
    """The overrides as a dict; ``ValueError`` for what no call could ever meet."""
    if overrides is None:
        return {}
    if not isinstance(overrides, Mapping):
        raise TypeError(
            "overrides must be a mapping such as {'aten::histc': 'allow'}, not "
            f"{type(overrides).__name__}"
        )
    for name, action in overrides.items():
        if action not in ACTIONS:
            raise ValueError(
                f"overrides[{name!r}] must be one of {', '.join(ACTIONS)}, got {action!r}"
            )
        if not isinstance(name, str) or "::" not in name:
            raise ValueError(
                f"overrides: {name!r} must be an operator such as 'aten::histc', or a glob"
            )
        check_operator("overrides", name, table)
        if action == "substitute" and name.startswith("aten::") and not _is_glob(name):
            _check_substitute(name, table)
    # A name is more precise than a glob, wherever it stands.
    return dict(sorted(overrides.items(), key=lambda item: _is_glob(item[0])))


def means_unlisted(name: str) -> bool:
    """Whether an override also means operators that are in no rule: aten's the table knows."""
    return not _is_glob(name) or not fnmatchcase("aten", name.split("::")[0])


def _is_glob(name: str) -> bool:
    return any(wildcard in name for wildcard in "*?[")


def check_operator(where: str, name: str, table: RuleTable | None = None) -> None:
    """Refuse a name in aten that means nothing; globs and other namespaces pass.

    Args:
        where: the argument that has the name.
        name: of an operator or an overload.
        table: may name operators that this PyTorch does not have; :func:`default_rules` if not
            given.

    Raises:
        ValueError: neither PyTorch nor the table knows it, or no mode ever sees it.
    """
    if not name.startswith("aten::") or _is_glob(name):
        return
    base, _, overload = name.removeprefix("aten::").partition(".")
    overloads = _overloads(base)
    if overload and overloads and overload not in overloads:
        raise ValueError(
            f"{where}: {base!r} has no overload {overload!r}; it has {', '.join(overloads)}"
        )
    # Generated for all operators, the out variants are not taken apart.
    meant = [overload] if overload else [each for each in overloads if "out" not in each]
    if overloads and not (meant and all(_is_taken_apart(base, each) for each in meant)):
        return
    if table is None:
        from detmode.rules import default_rules  # takes a second, and is needed for errors only

        table = default_rules()
    listed = {row.rule.op.partition(".")[0] for row in table}
    if f"aten::{base}" in listed:
        return
    if not overloads:
        hint = near_operator(name, listed)
        raise ValueError(f"{where}: this PyTorch has no operator {name!r}{hint}")
    parts = sorted(op for op in listed if re.match(f"aten::_*{base.lstrip('_')}", op))
    raise ValueError(
        f"{where}: PyTorch takes {name!r} apart before a mode sees it; name what it is made of"
        + (f", as {' or '.join(map(repr, parts))}" if parts else "")
    )


def near_operator(name: str, listed: Iterable[str]) -> str:
    """A question after the operator that is meant, where one of the listed is near; or nothing."""
    if _is_glob(name):
        return ""
    bare = name.partition("::")[2] or name
    near = difflib.get_close_matches(f"aten::{bare.partition('.')[0]}", listed, n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def _overloads(base: str) -> list[str]:
    packet = getattr(torch.ops.aten, base, None)
    return packet.overloads() if packet is not None else []


def _is_taken_apart(base: str, overload: str) -> bool:
    """Whether autograd replaces an operator by others (``CompositeImplicitAutograd``)."""
    try:
        func = getattr(getattr(torch.ops.aten, base), overload)
        return bool(func._can_decompose())
    except RuntimeError:
        return False  # TorchScript's alone


def _check_substitute(name: str, table: RuleTable) -> None:
    base, _, overload = name.removeprefix("aten::").partition(".")
    rows = [row for row in table if name in (row.rule.op, row.rule.op.partition(".")[0])]
    overloads = _overloads(base)
    for known in [overload] if overload and overloads else overloads:
        rows += table.get(getattr(getattr(torch.ops.aten, base), known))
    if not any(isinstance(row.rule.action, Substitute) for row in rows):
        raise ValueError(f"overrides: no rule has a substitute for {name!r}")


def logger_for(log: logging.Logger | int | str | None) -> logging.Logger:
    """The logger that the argument ``log`` means; a level is set on the logger ``detmode``."""
    if isinstance(log, logging.Logger):
        return log
    logger = logging.getLogger("detmode")
    if log is not None:
        if isinstance(log, bool) or not isinstance(log, (int, str)):
            raise TypeError(f"log must be a logger or a level, not {type(log).__name__}")
        logger.setLevel(log.upper() if isinstance(log, str) else log)
    return logger
