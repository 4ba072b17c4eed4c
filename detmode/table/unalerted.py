"""ATen's own operators, run without PyTorch's flag, for several families' rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from detmode.process.torch_settings import deterministic_flag
from detmode.table.rule_table import resolve


@dataclass(frozen=True)
class WithoutFlag:
    """Runs an operator that raises under the flag, although it writes all that it returns.

    Inside, it allocates memory of a quantized tensor, which PyTorch does not fill. Rows with the
    same operator are equal, also after pickling, as they would not be with a partial function.

    Args:
        op: the operator.
        finish: writes to its result, if that is not left as it is.
    """

    op: str
    finish: Callable[[Tensor], None] | None = None

    def __call__(self, /, **arguments: Any) -> Any:
        """Return the operator's result.

        Raises:
            RuntimeError: as ATen, for instance for a dtype that it does not have on the device.
        """
        with deterministic_flag(False):
            result = resolve(self.op)(**arguments)  # type: ignore[misc]  # this PyTorch has it
        if self.finish is not None:
            self.finish(result)
        return result
