"""ATen's own operators, run without PyTorch's flag, for several families' rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from detmode.process.torch_settings import deterministic_flag
from detmode.table.rule_table import resolve


@dataclass(frozen=True)
class WithoutFlag:
    """Runs an operator that raises under the flag, although it writes all that it returns.

    Inside, it allocates memory of a quantized tensor, which PyTorch does not fill. Rows with the
    same operator are equal, also after pickling, as they would not be with a partial function.
    """

    op: str

    def __call__(self, /, **arguments: Any) -> Any:
        """Return the operator's result."""
        with deterministic_flag(False):
            return resolve(self.op)(**arguments)  # type: ignore[misc]  # this PyTorch has it
