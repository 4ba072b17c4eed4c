"""The decision on one call: a pure function, so that the same facts give the same decision."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch

from detmode import cuda
from detmode.mode import messages
from detmode.table.outcome import ActionName
from detmode.table.rule import Native, Rule, Substitute

_get_mode = torch._C._get_dispatch_mode
_PROXY = torch._C._TorchDispatchModeKey.PROXY


class Policy(NamedTuple):
    """The arguments of a mode that affect decisions."""

    warn_only: bool = False
    strict: bool = False
    substitute: bool = True


@dataclass(frozen=True, slots=True)
class Decision:
    """The decision on a call.

    Args:
        action: ``"substitute"``, ``"native"``, ``"warn"``, ``"error"`` or ``"allow"``, as in
            reports; ``"pass"`` for a call that is made and not counted.
        why: one line.
        unavailable: the reason why the substitute cannot run, with the remedy.
        override: the action that ``overrides`` give the operator, or its forward.
    """

    action: ActionName | Literal["pass"]
    why: str
    unavailable: str | None = None
    override: ActionName | None = None


def decide(
    rule: Rule | None,
    policy: Policy,
    *,
    override: ActionName | None = None,
    is_allowed: bool = False,
    is_flag_on: bool = True,
    unavailable: str | None = None,
) -> Decision:
    """Decide on the action for a call.

    Without a rule no row lists the call. PyTorch's flag may be off by the program's choice inside
    the block; ``unavailable`` is the reason why the rule's substitute cannot run here.
    """
    if rule is None and override in (None, "substitute"):
        return Decision("pass", "no rule lists it")
    if rule is not None and rule.allows:
        return Decision("pass", rule.because)
    if is_allowed:
        return Decision("allow", "an allow region covers it")
    if override in ("allow", "native"):
        return Decision(override, "an override asks for it")
    if override in ("warn", "error") or rule is None:
        action: ActionName = override or "warn"
        unavailable = None
    else:
        if not isinstance(rule.action, Substitute) or not (policy.substitute or override):
            unavailable = None
        elif unavailable is None:
            return Decision("substitute", rule.because)
        if isinstance(rule.without_substitute, Native) and is_flag_on:
            return Decision("native", rule.because, unavailable)
        is_silent = rule.alert is None or not is_flag_on
        action = "warn" if policy.warn_only or (is_silent and not policy.strict) else "error"
    if rule is None:
        why = "no rule lists it, but an override asks for a warning or an error"
    else:
        why = rule.because if is_flag_on else messages.flag_is_off(rule)
    return Decision(action, why, unavailable)


def launcher_missing(launches_on: str) -> str | None:
    """Return why no substitute can be launched, with the remedy; ``None`` if one can."""
    if _get_mode(_PROXY) is not None:
        return "make_fx traces real tensors, and would miss the launch; use tracing_mode='fake'."
    return cuda.unavailable(launches_on)
