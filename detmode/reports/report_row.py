"""One row of a report: the calls of one overload with one action at one site."""

from __future__ import annotations

from dataclasses import dataclass, field

from detmode.reports.modules import agreed
from detmode.table.outcome import ActionName, Guarantee


@dataclass
class ReportRow:
    """One row: the calls of one overload with one action at one site.

    >>> with detmode.DeterministicMode(simulate="cuda") as mode:
    ...     sums = torch.ones(3).cumsum(0)
    >>> (row,) = mode.records
    >>> row.family, row.count, row.varies
    ('scan', 1, False)

    Args:
        overload: ``"aten::put_.default"``.
        family: the family of the rule, ``"user"`` for rules given by the user, ``None`` if only
            an override or an allow region applied.
        action: ``"substitute"``, ``"native"``, ``"warn"``, ``"error"`` or ``"allow"``.
        guarantee: a :class:`detmode.Guarantee`, which equals its text, or ``None``.
        alert: PyTorch's caller name, or ``None``.
        count: the number of calls.
        site: "file:line" of the user's code; for a backward operator, of the forward call.
        module: the ``nn.Module`` path of those calls, or ``None``; where they have several, a
            pattern, in which ``*`` stands for one name: ``"Net.layers.*"``.
        modules: the number of calls of each path; calls in no module are in none.
        because: the reason why ATen's result varies, or does not.
        remedy: advice on the row; ``None`` if nothing needs to be done.
        outer_site: "file:line" of the program's own line, outside installed packages, that led to
            the first call at ``site``; for a backward operator, to the forward call.
        ranks: the ranks of a distributed run whose calls these are; empty for one process, and for
            the calls of a process that has started the ranks.
    """

    overload: str
    family: str | None
    action: ActionName
    guarantee: Guarantee | None
    alert: str | None
    count: int
    site: str
    module: str | None
    modules: dict[str, int] = field(default_factory=dict)
    because: str | None = None
    remedy: str | None = None
    outer_site: str | None = None
    ranks: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.module, self.modules = agreed(self.module, self.modules, self.count)
        self.ranks = list(self.ranks)

    @property
    def line(self) -> tuple[str, str, str]:
        """Return what no two rows of a report share: the overload, the action and the site."""
        return self.overload, self.action, self.site

    @property
    def varies(self) -> bool:
        """True if the calls may vary between runs, because nothing guarantees their bits."""
        return self.guarantee is None

    @property
    def fills_memory(self) -> bool:
        """True if the calls only fill new memory, with the same bits on any GPU."""
        return self.family == "uninitialized_memory" and not self.varies
