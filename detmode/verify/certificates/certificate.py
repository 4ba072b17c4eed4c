"""The certificate of a kernel: what was tried, what was found, and what it does not show."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import Enum

import torch
from tabulate import tabulate

from detmode.bits.difference import same_bits
from detmode.bits.tensors import dtype_and_shape
from detmode.process.checked import checked
from detmode.process.files import parsed_json
from detmode.reports.page import listed
from detmode.reports.terminal import terminal_width, wrapped
from detmode.table.values import Value

__all__ = ["Certificate", "KernelVerdict", "Variation", "first_variation"]


PROGRAM_ORDER = "program order"
"""The name of the first schedule."""


def not_ended(kernel: str, schedule: str, timeout: float | None) -> str:
    """Return the message about a schedule that has not ended in its time, in seconds."""
    return (
        f"certify(): {kernel} did not end in {timeout:g} seconds (schedule '{schedule}'): give "
        "smaller arguments, or a longer timeout; if no time is enough, a thread waits for what "
        "none does, or a loop has no end"
    )


def described(value: object) -> str:
    """Return a tensor by dtype and shape; anything else by what it prints."""
    return dtype_and_shape(value) if isinstance(value, torch.Tensor) else repr(value)


class KernelVerdict(str, Enum):
    """A certificate's verdict, in one word or two."""

    ORDER_INDEPENDENT = "order-independent"
    """All schedules gave the same bits, and nothing else was found."""
    VARIES = "varies"
    """Two schedules gave different bits."""
    RACE = "race"
    """Two accesses to one byte, at least one of them a write, that nothing orders."""
    OUT_OF_BOUNDS = "out of bounds"
    """An access outside the arguments."""
    FAULT = "fault"
    """Anything else that is an error or undefined on a GPU, such as a divergent barrier."""

    def __str__(self) -> str:
        return self.value


class FoundError(Exception):
    """A verdict other than order-independent, with its reason."""

    def __init__(self, verdict: KernelVerdict, reason: Variation | str) -> None:
        super().__init__(reason)
        self.verdict, self.reason = verdict, reason


@dataclass(frozen=True, kw_only=True)
class Variation(Value):
    """The first element in which the results of two schedules differ.

    Args:
        schedules: the two, such as ``("program order", "seed 3")``.
        argument: the name of the argument.
        element: its index, one int for each dimension.
        values: the two values, as text.
        differing: the number of elements of the argument that differ.
    """

    schedules: tuple[str, str]
    argument: str
    element: tuple[int, ...]
    values: tuple[str, str]
    differing: int

    def __str__(self) -> str:
        first, second = self.schedules
        place = f"{self.argument}{list(self.element)}" if self.element else self.argument
        more = f", and {self.differing - 1} more elements" if self.differing > 1 else ""
        return (
            f"{place} is {self.values[0]} in schedule '{first}' and {self.values[1]} in "
            f"'{second}'{more}"
        )


@dataclass(frozen=True, kw_only=True)
class Certificate(Value):
    """The findings of :func:`detmode.certify` about one kernel with one set of arguments.

    Args:
        kernel: the name of the kernel, such as ``"sum_rows<float>"``.
        language: ``"CUDA C++"`` or ``"Triton"``.
        sha256: the hash of its source, in hexadecimal digits.
        arguments: each as ``"name: dtype[shape]"`` or ``"name: value"``.
        grid: the blocks of the launch (Triton: the programs), up to three sizes.
        block: the threads of a block, up to three sizes; empty for Triton.
        schedules: the number of schedules that were run.
        all_orders: among the schedules are all orders of whole blocks (Triton: programs) that touch
            the same memory; orders that only exchange others give the same bits.
        races_checked: data races were looked for.
        verdict: a :class:`KernelVerdict`, or its text.
        variation: the first difference of two schedules, if there is one.
        reason: for a race, an access out of bounds or another fault: the thread, place and remedy.
        atomics: the kinds of atomics that ran, such as ``"integer add"`` and ``"float add"``; the
            order of float adds shows in the result's bits.
        notes: more that was found, one sentence each.
        not_shown: the limits of such runs, one sentence each.
    """

    kernel: str
    language: str
    sha256: str
    arguments: tuple[str, ...]
    grid: tuple[int, ...]
    block: tuple[int, ...] = ()
    schedules: int
    all_orders: bool = False
    races_checked: bool
    verdict: KernelVerdict
    variation: Variation | None = None
    reason: str | None = None
    atomics: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    not_shown: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "verdict", KernelVerdict(self.verdict))
        if (self.variation is not None) != (self.verdict is KernelVerdict.VARIES):
            raise ValueError("Certificate(): variation belongs to the verdict 'varies' alone")

    @property
    def is_order_independent(self) -> bool:
        """True if no schedule changed a bit, and no race or fault was found."""
        return self.verdict is KernelVerdict.ORDER_INDEPENDENT

    @property
    def summary(self) -> str:
        """The verdict with its reason, on one line."""
        if self.is_order_independent:
            if self.all_orders:
                return f"order-independent under all orders of blocks ({self.schedules} schedules)"
            return f"order-independent under {self.schedules} schedules"
        return f"{self.verdict}: {self.variation or self.reason}"

    def _rows(self) -> list[tuple[str, str]]:
        launch = f"grid {_sizes(self.grid)}"
        if self.block:
            launch += f", block {_sizes(self.block)}"
        tried = f"{self.schedules}"
        if self.all_orders:
            tried += ", among them all orders of the blocks that touch the same memory"
        return [
            ("kernel", f"{self.kernel} ({self.language}, sha256 {self.sha256[:16]})"),
            ("arguments", ", ".join(self.arguments)),
            ("launch", launch),
            ("schedules", tried),
            ("data races", "looked for" if self.races_checked else "not looked for"),
            ("atomics", ", ".join(self.atomics) or "none"),
            *(("note", note) for note in self.notes),
            *(("not shown", reason) for reason in self.not_shown),
        ]

    def text(self, *, width: int | None = None) -> str:
        """Return the summary and a table, in lines of at most ``width`` characters."""
        return f"{wrapped('', self.summary, width)}\n\n{listed(self._rows(), width)}"

    def __str__(self) -> str:
        """Return the text, as wide as the terminal on stdout."""
        return self.text(width=terminal_width(sys.stdout))

    def _repr_html_(self) -> str:
        """Return the same for a notebook."""
        rows = [("verdict", self.summary), *self._rows()]
        return str(tabulate(rows, tablefmt="html"))

    def to_json(self) -> str:
        """Return all fields as a JSON object, with ``version``, the number of this form."""
        return json.dumps({"version": 1, **asdict(self)}, indent=2)

    @classmethod
    def from_json(cls, text: str) -> Certificate:
        """Read what :meth:`to_json` gave.

        Raises:
            ValueError: it is something else.
        """
        try:
            fields = parsed_json(text)
            if fields.pop("version") != 1:
                raise ValueError("its version is not 1")
            certificate: Certificate = checked(cls, fields)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"not a certificate that detmode wrote: {error}") from error
        return certificate


def _sizes(sizes: Sequence[int]) -> str:
    return " x ".join(map(str, sizes))


def first_variation(
    schedules: tuple[str, str], first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]
) -> Variation | None:
    """Return where the results of two schedules differ in a bit, or None.

    Args:
        schedules: their names.
        first: the tensors after the first one, by argument.
        second: the same after the second one.
    """
    for name, before in first.items():
        after = second[name]
        if same_bits(before, after):
            continue
        differing = (_as_bytes(before) != _as_bytes(after)).any(-1)
        place = tuple(differing.nonzero()[0].tolist())
        values = _text(before[place]), _text(after[place])
        return Variation(
            schedules=schedules,
            argument=name,
            element=place,
            values=values,
            differing=int(differing.sum()),
        )
    return None


def _as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of each element, in a last dimension of their own."""
    return tensor.contiguous().reshape(*tensor.shape, 1).view(torch.uint8)


def _text(value: torch.Tensor) -> str:
    """A number such that two with different bits have different texts, as far as they can."""
    number = value.item()
    if isinstance(number, float):
        # Enough digits to tell two neighbours of float64 from each other.
        return repr(number) if number == number else f"nan ({_as_bytes(value)[0].tolist()})"
    return repr(number)
