"""ATen's own operators, run without PyTorch's flag, for several families' rows."""

from __future__ import annotations

from typing import Any

from detmode.environment.settings import deterministic_flag
from detmode.table.rule_table import resolve


def without_flag(op: str, **arguments: Any) -> Any:
    """Run an operator that raises under the flag, although it writes all that it returns.

    Inside, it allocates memory of a quantized tensor, which PyTorch does not fill.
    """
    with deterministic_flag(False):
        return resolve(op)(**arguments)  # type: ignore[misc]  # this PyTorch has it
