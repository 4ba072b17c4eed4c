"""The modules of a row's calls: how many calls each made, and all of them as one short text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

_SHOWN = 3


def pattern_of(paths: Iterable[str]) -> str | None:
    """One short text for the paths of modules; ``None`` where there are none.

    Paths of one root and one length are shown together: ``"Net.layers.*"``, where ``*`` stands for
    one name. What cannot be is listed, to the third: ``"Net, Net.head, Loss and 2 more"``.
    """
    alike: dict[tuple[str, int], list[list[str]]] = {}
    for path in dict.fromkeys(paths):
        names = path.split(".")
        alike.setdefault((names[0], len(names)), []).append(names)
    patterns = [
        ".".join(column[0] if len(set(column)) == 1 else "*" for column in zip(*group))
        for group in alike.values()
    ]
    if not patterns:
        return None
    more = f" and {len(patterns) - _SHOWN} more" if len(patterns) > _SHOWN else ""
    return ", ".join(patterns[:_SHOWN]) + more


def agreed(
    module: str | None, modules: Mapping[str, int], count: int
) -> tuple[str | None, dict[str, int]]:
    """A row's fields ``module`` and ``modules``, of which one may be left out.

    Args:
        module: the path of all calls, or a pattern.
        modules: the number of calls of each path; calls in no module are in none.
        count: the number of calls.
    """
    if modules:
        return pattern_of(modules), dict(modules)
    return module, {} if module is None else {module: count}
