"""The mode's arguments, checked before anything is changed."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any, get_args

from detmode.mode.module_overrides import is_module_path
from detmode.process.spelling import did_you_mean
from detmode.table import names
from detmode.table.called_as import called_as, name_of, names_of_users, without_module
from detmode.table.names import K, Operator, Overrides
from detmode.table.outcome import ActionName
from detmode.table.rule import Substitute
from detmode.table.rule_table import Row, RuleTable, forwards_of, resolve

ACTIONS = get_args(ActionName)
"""Actions that an override can ask for."""


# Looked up once: logging's own lock would be held at each new mode, when a signal may strike.
_LOGGER = logging.getLogger("detmode")


def check_arguments(
    warn_only: object,
    strict: object,
    substitute: object,
    rules: object,
    intercept: object,
    fill_uninitialized_memory: object,
    simulate: object,
    schedule_seed: object,
    compile: object,
    recheck: object,
    summary: object,
) -> None:
    """Raise TypeError for a wrong type, and ValueError for an impossible value."""
    check_bool("warn_only", warn_only)
    for name, value, optional in (
        ("strict", strict, ""),
        ("substitute", substitute, ""),
        ("compile", compile, ""),
        ("summary", summary, ""),
        ("fill_uninitialized_memory", fill_uninitialized_memory, " or None"),
    ):
        if not isinstance(value, bool) and not (optional and value is None):
            raise TypeError(f"{name} must be bool{optional}, not {type(value).__name__}")
    if warn_only and strict:
        raise ValueError(
            "warn_only=True asks for warnings and strict=True for errors; leave one of them out"
        )
    if rules is not None and not isinstance(rules, RuleTable):
        raise TypeError(
            f"rules must be a RuleTable, not {type(rules).__name__}; "
            "to add rules: rules=default_rules() + [Rule(...)]"
        )
    if intercept not in ("all", "listed"):
        raise ValueError(f"intercept must be 'all' or 'listed', got {intercept!r}")
    if simulate not in (None, "cuda"):
        raise ValueError(f"simulate must be 'cuda' or None, got {simulate!r}")
    if schedule_seed is not None:
        if isinstance(schedule_seed, bool) or not isinstance(schedule_seed, int):
            raise TypeError(
                f"schedule_seed must be int or None, not {type(schedule_seed).__name__}"
            )
        if simulate is None:
            raise ValueError("schedule_seed orders the host runner; give simulate='cuda' as well")
    if isinstance(recheck, bool) or not isinstance(recheck, (int, float)):
        raise TypeError(f"recheck must be float, not {type(recheck).__name__}")
    if not 0 <= recheck <= 1:  # nor is it NaN
        raise ValueError(
            "recheck is the share of calls that are made twice, such as 0.001: a "
            f"number from 0 to 1, got {recheck!r}"
        )


def check_bool(name: str, value: object) -> None:
    """Raise PyTorch's TypeError unless the value is a bool."""
    if not isinstance(value, bool):
        raise TypeError(
            f"_set_deterministic_algorithms(): argument '{name}' must be bool, not "
            f"{type(value).__name__}"
        )


def check_overrides(overrides: Overrides[K] | None, table: RuleTable) -> dict[str, ActionName]:
    """Return the overrides as a dict by name; raise ValueError for one that can match no call."""
    if overrides is None:
        return {}
    if not isinstance(overrides, Mapping):
        raise TypeError(
            "overrides must be a mapping such as {'aten::histc': 'allow'}, not "
            f"{type(overrides).__name__}"
        )
    named: dict[str, ActionName] = {}
    for operator, action in overrides.items():
        if action not in ACTIONS:
            raise ValueError(
                f"overrides[{names.text_of(operator)!r}] must be one of {', '.join(ACTIONS)}, "
                f"got {action!r}"
            )
        if isinstance(operator, str) and is_module_path(operator):
            named[operator] = action
            continue
        for name in _dispatched("overrides", operator):
            if named.setdefault(name, action) != action:
                raise ValueError(
                    f"overrides: {name!r} is given two actions: {named[name]!r}, {action!r}"
                )
            check_operator("overrides", name, table)
            if action == "substitute" and name.startswith("aten::") and not is_glob(name):
                _check_substitute(name, table)
    # A name is more precise than a glob, wherever it stands.
    return dict(sorted(named.items(), key=lambda item: is_glob(item[0])))


def operator_names(where: str, operators: Iterable[Operator]) -> tuple[str, ...]:
    """Return operators by name; raise TypeError or ValueError for one that there is not."""
    named = tuple(name for operator in operators for name in _dispatched(where, operator))
    for name in named:
        check_operator(where, name)
    return named


def _dispatched(where: str, operator: Any) -> tuple[str, ...]:
    """Return the operators of the dispatcher that a user means: ``aten::histc``, or globs.

    Raises:
        TypeError: it names nothing.
        ValueError: no function of PyTorch that calls a listed operator has this name.
    """
    name = names.text_of(operator)
    if not isinstance(name, str):
        name = name_of(operator)
    if name is None:
        raise TypeError(
            f"{where} takes operators, got {type(operator).__name__}; give 'torch.histc', "
            "'aten::histc' or PyTorch's function itself"
        )
    if "::" in name or (where != "overrides" and name == "*"):
        return (name,)
    if is_module_path(name):
        raise ValueError(
            f"{where} takes operators, got {name!r}, the path of a module; give the mode "
            f"overrides={{{name!r}: 'allow'}}"
        )
    called = called_as(name)
    if called is not None and called.forward:
        return tuple(op for op in called.forward if names.overloads_of(op))
    op = f"aten::{without_module(name)}"
    if not names.overloads_of(op):
        near = did_you_mean(without_module(name), names_of_users())
        raise ValueError(f"{where}: no operator is named {name!r}{near}")
    return (op,)


def means_unlisted(name: str) -> bool:
    """Return whether an override covers operators without a rule; the table knows all of aten's."""
    return not is_glob(name) or not fnmatchcase("aten", name.split("::")[0])


def is_glob(name: str) -> bool:
    """Return whether a name has wildcards of :mod:`fnmatch`."""
    return any(wildcard in name for wildcard in "*?[")


def check_operator(where: str, name: str, table: RuleTable | None = None) -> None:
    """Refuse an unknown name or glob; names in a namespace that is not loaded are accepted.

    The table, by default :func:`default_rules`, may name operators that this PyTorch does not have.

    Raises:
        ValueError: neither a loaded library nor the table knows it, or no mode ever sees it.
    """
    namespace = name.partition("::")[0]
    if is_glob(namespace):
        return
    base, _, overload = name.partition(".")
    overloads = names.overloads_of(name)
    if is_glob(name):
        loaded = names.registered(namespace)
        spelt = {*loaded, *(candidate.partition(".")[0] for candidate in loaded)}
        if not loaded or any(fnmatchcase(candidate, name) for candidate in spelt):
            return
    elif overload and overloads and overload not in overloads:
        raise ValueError(f"{where}: {names.misnamed(name)}")
    elif namespace != "aten":
        if overloads or names.misnamed(name) is None:
            return
    else:
        # Generated for all operators, the out variants are not taken apart.
        meant = (
            [overload]
            if overload
            else [candidate for candidate in overloads if "out" not in candidate]
        )
        if overloads and not (
            meant and all(_is_taken_apart(base, candidate) for candidate in meant)
        ):
            return
    if table is None:
        from detmode.rules import default_rules  # takes a second, and is needed for errors only

        table = default_rules()
    listed = {row.rule.op.partition(".")[0] for row in table}
    if any(fnmatchcase(candidate, base) for candidate in listed):
        return
    if is_glob(name):
        raise ValueError(f"{where}: no operator of {namespace} matches {name!r}")
    if not overloads:
        raise ValueError(f"{where}: {names.misnamed(name)}")
    bare = base.partition("::")[2].lstrip("_")
    parts = sorted(op for op in listed if re.match(f"aten::_*{bare}", op))
    raise ValueError(
        f"{where}: PyTorch takes {name!r} apart before a mode sees it; name what it is made of"
        + (f", as {' or '.join(map(repr, parts))}" if parts else "")
    )


def _is_taken_apart(base: str, overload: str) -> bool:
    """Return whether autograd replaces an operator by others (``CompositeImplicitAutograd``)."""
    func = resolve(f"{base}.{overload}")
    try:
        return func is not None and bool(func._can_decompose())
    except RuntimeError:
        return False  # TorchScript's alone


def rows_of(name: str, table: RuleTable) -> list[Row]:
    """Return the rows of an operator, an overload or a variant, or of those that a glob matches.

    Those of its backward are among them.
    """
    base, _, overload = name.partition(".")
    ops = ((row, row.rule.op) for row in table)
    rows = [
        row
        for row, op in ops
        if names.matches((op, op.partition(".")[0], *forwards_of(op)), [name])
    ]
    for known in [overload] if overload else names.overloads_of(name):
        func = resolve(f"{base}.{known}")
        rows += table.get(func) if func is not None else ()
    return rows


def _check_substitute(name: str, table: RuleTable) -> None:
    if not any(isinstance(row.rule.action, Substitute) for row in rows_of(name, table)):
        raise ValueError(f"overrides: no rule has a substitute for {name!r}")


def logger_for(log: logging.Logger | int | str | None) -> logging.Logger:
    """Return the logger for the argument ``log``; a level is set on the logger ``detmode``."""
    if isinstance(log, logging.Logger):
        return log
    logger = _LOGGER
    if log is not None:
        if isinstance(log, bool) or not isinstance(log, (int, str)):
            raise TypeError(f"log must be a logger or a level, not {type(log).__name__}")
        logger.setLevel(log.upper() if isinstance(log, str) else log)
    return logger
