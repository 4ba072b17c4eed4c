"""One pure function decides what happens with a call."""

from itertools import product

import pytest

from detmode import Allow, Native, Refuse, Rule, Substitute
from detmode.mode.decide import Policy, decide


def rule(action, alert=None):
    guarantee = "run_to_run" if isinstance(action, (Native, Substitute)) else None
    return Rule(op="a::b", action=action, alert=alert, guarantee=guarantee, because="it races")


NATIVE, FIXED = rule(Native()), rule(Allow())
ALERTS, SILENT = rule(Refuse(), "b"), rule(Refuse())
KERNEL, KERNEL_OR_NATIVE = rule(Substitute(print), "b"), rule(Substitute(print, otherwise=Native()))
KERNEL_OR_SILENT = rule(Substitute(print, otherwise=Refuse()))
RULES = (NATIVE, FIXED, ALERTS, SILENT, KERNEL, KERNEL_OR_NATIVE, KERNEL_OR_SILENT, None)

DEFAULT, WARN, STRICT = Policy(), Policy(warn_only=True), Policy(strict=True)
PLAIN, PLAIN_STRICT = Policy(substitute=False), Policy(substitute=False, strict=True)
OFF, BROKEN = {"is_flag_on": False}, {"unavailable": "no compiler"}


@pytest.mark.parametrize(
    ("rule", "policy", "facts", "action"),
    [
        (None, STRICT, {}, "pass"),
        (FIXED, STRICT, {"override": "error"}, "pass"),
        (FIXED, DEFAULT, {"is_allowed": True}, "pass"),
        # A native row; the program may turn the flag off that it needs.
        (NATIVE, DEFAULT, {}, "native"),
        (NATIVE, PLAIN_STRICT, {}, "native"),
        (NATIVE, DEFAULT, OFF, "warn"),
        (NATIVE, STRICT, OFF, "error"),
        # A row without a deterministic path.
        (ALERTS, DEFAULT, {}, "error"),
        (ALERTS, WARN, {}, "warn"),
        (ALERTS, DEFAULT, OFF, "warn"),
        (ALERTS, STRICT, OFF, "error"),
        (SILENT, DEFAULT, {}, "warn"),
        (SILENT, WARN, OFF, "warn"),
        (SILENT, STRICT, {}, "error"),
        # A row with a kernel: as PyTorch would, where that cannot run or is not wanted.
        (KERNEL, WARN, OFF, "substitute"),
        (KERNEL, PLAIN, {}, "error"),
        (KERNEL, DEFAULT, BROKEN, "error"),
        (KERNEL, WARN, BROKEN, "warn"),
        (KERNEL_OR_NATIVE, PLAIN, {}, "native"),
        (KERNEL_OR_NATIVE, DEFAULT, BROKEN, "native"),
        (KERNEL_OR_NATIVE, DEFAULT, {**BROKEN, **OFF}, "warn"),
        (KERNEL_OR_SILENT, PLAIN, {}, "warn"),
        (KERNEL_OR_SILENT, PLAIN_STRICT, {}, "error"),
        (KERNEL_OR_SILENT, STRICT, BROKEN, "error"),
        # Overrides win over the policy, and allow regions over overrides.
        (KERNEL, STRICT, {"override": "warn"}, "warn"),
        (KERNEL, WARN, {"override": "error"}, "error"),
        (ALERTS, STRICT, {"override": "native"}, "native"),
        (ALERTS, STRICT, {"override": "allow"}, "allow"),
        (KERNEL, PLAIN, {"override": "substitute"}, "substitute"),
        (KERNEL, PLAIN, {"override": "substitute", **BROKEN}, "error"),
        (ALERTS, DEFAULT, {"override": "substitute"}, "error"),
        (None, DEFAULT, {"override": "substitute"}, "pass"),
        (None, DEFAULT, {"override": "error"}, "error"),
        (None, STRICT, {"override": "warn"}, "warn"),
        (KERNEL, STRICT, {"override": "error", "is_allowed": True}, "allow"),
    ],
)
def test_the_action(rule, policy, facts, action):
    """Row, policy and facts give the action; it has a reason of one line."""
    decision = decide(rule, policy, **facts)
    assert decision.action == action
    assert decision.why
    assert "\n" not in decision.why


def test_what_no_combination_does():
    """Whatever the facts: strict never warns unasked, ``warn_only`` never raises unasked."""
    bools = (False, True)
    overrides = (None, "allow", "warn", "error", "native", "substitute")
    for each, warn_only, strict, substitute in product(RULES, bools, bools, bools):
        policy = Policy(warn_only=warn_only, strict=strict, substitute=substitute)
        for override, allowed, on, broken in product(overrides, bools, bools, (None, "broken")):
            decision = decide(
                each,
                policy,
                override=override,
                is_allowed=allowed,
                is_flag_on=on,
                unavailable=broken,
            )
            action = decision.action
            if strict and not warn_only:
                assert action != "warn" or override == "warn"
            if warn_only:
                assert action != "error" or override == "error"
            if action == "native":
                assert on or override == "native"
            if action == "substitute":
                assert broken is None
                assert substitute or override == "substitute"
            if decision.unavailable is not None:
                # The user is told of it only where the kernel was wanted.
                assert each in (KERNEL, KERNEL_OR_NATIVE, KERNEL_OR_SILENT)
                assert substitute or override == "substitute"
            if action == "allow":
                assert allowed or override == "allow"
