"""Raising and warning about calls that may vary, at the user's line."""

from __future__ import annotations

import functools
import warnings
from typing import Any

from detmode.mode import messages
from detmode.mode.base_mode import BaseMode
from detmode.mode.decide import Decision
from detmode.mode.handled import Handled
from detmode.mode.row_counter import remedy_for
from detmode.process.setting import is_flag_on
from detmode.table.call_site import Site

__tracebackhide__ = True

_FILES = 1 << 10


class DeterminismWarning(UserWarning):
    """A call ran whose result may vary between runs; given once for each site.

    >>> import warnings
    >>> warnings.simplefilter("error", detmode.DeterminismWarning)
    """


def tell(call: Handled, decision: Decision, mode: BaseMode) -> None:
    """Raise or warn about a call that may vary, with all that the user needs to know."""
    assert call.site is not None
    overload, (site, module) = call.overload, call.site
    rule, warned = call.rule, decision.action == "warn"
    alert = rule.alert_for(overload.variant) if rule and is_flag_on() else None
    if alert is not None:
        text = messages.alert_text(alert, warn=warned)
    else:
        text = messages.own_text(overload.name, decision.why)
    remedy = remedy_for(call, decision, mode.interface)
    message = messages.with_place(text, site.text, module, remedy)
    if not warned:
        raise RuntimeError(message)
    mode.logger.warning("%s", message)
    warn_at(message, site)


def warn_at(message: str, site: Site) -> None:
    """Warn with the user's line, where Python's filters look for it."""
    if site.file is None:
        warnings.warn(message, DeterminismWarning, stacklevel=2)
        return
    registry = _registry_of(site.file)
    warnings.warn_explicit(
        message, DeterminismWarning, site.file, site.line, site.python_module, registry
    )


@functools.lru_cache(_FILES)
def _registry_of(file: str) -> dict[Any, Any]:
    """Return where Python notes the warnings of a file that were shown.

    With it, a program that makes a mode for each step is warned once. Of generated code there may
    be ever new files.
    """
    return {}
