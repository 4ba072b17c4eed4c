"""One row of the rule table: a frozen dataclass that checks itself."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

from detmode.process.versions import parse_version
from detmode.table.condition import ALWAYS, Condition
from detmode.table.outcome import GPU_TO_GPU as GPU_TO_GPU
from detmode.table.outcome import RUN_TO_RUN as RUN_TO_RUN
from detmode.table.outcome import Guarantee
from detmode.table.values import Value, check_name

_OP = re.compile(r"[A-Za-z_]\w*::\w+(\.\w+)?")
_VERSION = re.compile(r"\d+\.\d+")

CUBLAS = "cuBLAS"
"""The alert of rows with PyTorch's message about cuBLAS (2.8 and 2.9)."""


@dataclass(frozen=True)
class _Action(Value):
    """An action of the mode for calls that match a row. Prints as its own name."""

    def __str__(self) -> str:
        return type(self).__name__


@dataclass(frozen=True)
class Native(_Action):
    """Run PyTorch's own deterministic path, with its flag on and ``warn_only`` off.

    >>> scope = detmode.RUN_TO_RUN
    >>> action = detmode.Native()
    >>> rule = detmode.Rule(op="mine::sum", action=action, guarantee=scope, because="it sorts")
    >>> print(rule.action, rule.guarantee)
    Native run_to_run
    """


@dataclass(frozen=True)
class Refuse(_Action):
    """Raise PyTorch's standard error, or warn under ``warn_only``.

    PyTorch is silent about the operator of a row without ``alert``. Such a row only warns, in
    detmode's own words, so that switching detmode on does not raise where PyTorch would not; with
    ``strict=True`` it raises.

    >>> why = "its threads race"
    >>> rule = detmode.Rule(op="my_extension::scatter", action=detmode.Refuse(), because=why)
    >>> print(rule.action)
    Refuse
    """


@dataclass(frozen=True)
class Substitute(_Action):
    """Run ``function`` instead of the ATen kernel.

    ``function`` takes the ATen operator's arguments by the schema's names, in its order, and
    returns what the functional operator returns. If it has a keyword argument ``out``, the in-place
    variant passes ``self`` there; otherwise the mode copies the result to ``self``.

    ``otherwise`` is PyTorch's own action, for ``substitute=False`` and for machines where the
    kernel cannot run. The default is ``Refuse()`` if the row has an alert, else ``Native()``.

    ``launches`` is False for a function that only calls ATen operators, and so runs on any machine.

    ``traffic`` is the number of bytes that the substitute reads and writes, as a multiple of the
    floor (inputs read once, outputs written once). It is at least 1 and counted by hand for the
    case that the family's docstring names under *Cost*. Reads shared by neighbouring threads count
    once, and an atomic counts as its operand. ``None`` if it has not been counted.

    >>> def sum_in_order(input):
    ...     return input.cumsum(0)[-1]
    >>> action = detmode.Substitute(sum_in_order, launches=False)
    >>> action.takes_out
    False
    """

    function: Callable[..., Any]
    otherwise: Native | Refuse | None = None
    launches: bool = True
    traffic: float | None = None

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise TypeError(
                f"Substitute: function must be callable, got {type(self.function).__name__}"
            )
        if self.traffic is not None and not self.traffic >= 1:
            raise ValueError(
                "Substitute: traffic must be at least 1, which is the floor, or None, got "
                f"{self.traffic!r}"
            )

    def __reduce__(self) -> tuple[type[Substitute], tuple[Any, ...]]:
        check_name(self.function, str(self))
        return Substitute, (self.function, self.otherwise, self.launches, self.traffic)

    @cached_property
    def takes_out(self) -> bool:
        """True if the function has an argument ``out``."""
        return "out" in inspect.signature(self.function).parameters

    @cached_property
    def raises_like_aten(self) -> bool:
        """True if the function is marked by :func:`~detmode.cuda.checks.raises_like_aten`."""
        return getattr(self.function, "raises_like_aten", False)


@dataclass(frozen=True)
class Allow(_Action):
    """Call the operator: its result does not vary.

    >>> rule = detmode.Rule(op="mine::count", action=detmode.Allow(), because="it adds integers")
    >>> rule.allows
    True
    """


@runtime_checkable
class _KernelEvidence(Protocol):
    """The part of a :class:`detmode.Certificate` that a rule uses."""

    @property
    def is_order_independent(self) -> bool:
        """True if no schedule of the kernel changed a bit."""

    @property
    def summary(self) -> str:
        """The verdict, on one line."""


@dataclass(frozen=True, kw_only=True)
class Rule(Value):
    """One row: the calls of an operator that it matches, and the action for them.

    >>> rule = detmode.Rule(
    ...     op="my_extension::scatter",
    ...     when=detmode.conditions.on("cuda"),
    ...     action=detmode.Refuse(),
    ...     because="atomic additions of floats",
    ... )
    >>> print(rule.when, rule.action)
    on('cuda') Refuse

    Args:
        op: a functional ``OpOverload`` by name; ``"aten::index_add"`` means ``.default``. In-place,
            ``out=`` and ``grad_input`` variants follow from the schema and are never named.
        when: the condition on the call's arguments; rows of an operator are tried in order.
        action: ``Substitute(function)``, ``Native()``, ``Refuse()`` or ``Allow()``.
        guarantee: the scope of the same bits, as a :class:`Guarantee` or its text; required for
            ``Substitute`` and ``Native``.
        alert: the exact caller name of PyTorch's message, or a pair (functional, out variant) if
            the two differ; ``None`` if PyTorch does not alert.
        since: the first PyTorch version for which the row holds, such as "2.13"; ``None`` for any.
        until: the last PyTorch version for which the row holds; ``None`` for any.
        because: one line that says why ATen's result varies, or why it does not.
        certificate: of the kernel that makes a ``Substitute``, ``Native`` or ``Allow`` row hold: a
            :class:`detmode.Certificate`; ``detmode rules`` shows its summary.

    Raises:
        ValueError: a field is invalid; the message names the field and what it should be.
    """

    op: str
    when: Condition = ALWAYS
    action: _Action
    guarantee: Guarantee | None = None
    alert: str | tuple[str, str] | None = None
    since: str | None = None
    until: str | None = None
    because: str
    certificate: _KernelEvidence | None = None

    def __post_init__(self) -> None:
        def refuse(what: str) -> None:
            raise ValueError(f"Rule({self.op!r}): {what}")

        if not isinstance(self.op, str) or not _OP.fullmatch(self.op):
            refuse("op must be 'namespace::name' or 'namespace::name.overload'")
        base = self.op.partition(".")[0]
        if base.startswith("aten::") and base.endswith("_") and not base.endswith("__"):
            refuse("op must be the functional operator; in-place variants are derived from it")
        if not isinstance(self.when, Condition):
            refuse(f"when must be a Condition from detmode.conditions, got {self.when!r}")
        if not isinstance(self.action, _Action):
            refuse(f"action must be Substitute, Native, Refuse or Allow, got {self.action!r}")
        if self.guarantee is not None:
            if self.guarantee not in tuple(Guarantee):
                words = " or ".join(repr(guarantee.value) for guarantee in Guarantee)
                refuse(f"guarantee must be {words}, got {self.guarantee!r}")
            object.__setattr__(self, "guarantee", Guarantee(self.guarantee))
        if isinstance(self.action, (Substitute, Native)) != (self.guarantee is not None):
            refuse("guarantee must be given for Substitute and Native, and for them only")
        if isinstance(self.action, Allow) and self.alert is not None:
            refuse("an Allow row has no alert")
        for field in ("since", "until"):
            version = getattr(self, field)
            if version is not None and not _VERSION.fullmatch(version):
                refuse(f"{field} must be 'major.minor', got {version!r}")
        if not isinstance(self.because, str) or not self.because.strip() or "\n" in self.because:
            refuse("because must be one line that says why")
        if self.certificate is not None:
            if not isinstance(self.certificate, _KernelEvidence):
                refuse(f"certificate must be a detmode.Certificate, got {self.certificate!r}")
            if not isinstance(self.action, Refuse) and not self.certificate.is_order_independent:
                refuse(
                    f"certificate says {self.certificate.summary!r}, so the action must be Refuse()"
                )

    @cached_property
    def allows(self) -> bool:
        """True if the call does not vary, and is only made."""
        return isinstance(self.action, Allow)

    @cached_property
    def launches(self) -> bool:
        """True if a kernel of a substitute is launched for the call."""
        return isinstance(self.action, Substitute) and self.action.launches

    @property
    def without_substitute(self) -> _Action:
        """PyTorch's own action for the call, without detmode's kernels."""
        if not isinstance(self.action, Substitute):
            return self.action
        return self.action.otherwise or (Refuse() if self.alert else Native())

    def holds_for(self, version: tuple[int, int]) -> bool:
        """Return whether the row holds for a PyTorch version given as (major, minor)."""
        since = parse_version(self.since) if self.since else version
        until = parse_version(self.until) if self.until else version
        return since <= version <= until

    def may_vary(self, devices: Collection[str] | None, sparse: bool) -> bool:
        """Return whether the row may hold for a call, and the call may vary if so.

        Args:
            devices: the types of device of the call's tensors; ``None`` for any.
            sparse: whether one of them has a sparse layout.
        """
        if isinstance(self.action, Allow) or (self.when.needs_sparse and not sparse):
            return False
        wanted = self.when.devices
        return not wanted or devices is None or any(device in devices for device in wanted)

    def alert_for(self, variant: str) -> str | None:
        """Return the caller name in PyTorch's message, for a variant of the operator."""
        if isinstance(self.alert, tuple):
            return self.alert[variant == "out"]
        return self.alert

    def as_text(self) -> dict[str, str | None]:
        """Return the fields by name, each as text; ``None`` for a field that is not given."""
        alert = ", ".join(self.alert) if isinstance(self.alert, tuple) else self.alert
        return {
            "op": self.op,
            "when": str(self.when),
            "action": str(self.action),
            "guarantee": str(self.guarantee) if self.guarantee else None,
            "alert": alert,
            "since": self.since,
            "until": self.until,
            "because": self.because,
            "certificate": None if self.certificate is None else self.certificate.summary,
        }
