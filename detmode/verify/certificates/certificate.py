"""The certificate of a kernel: what was tried, what was found, and what it does not show."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from itertools import groupby
from math import prod

import torch
from tabulate import tabulate

from detmode.bits.difference import same_bits
from detmode.bits.tensors import dtype_and_shape
from detmode.process.checked import checked
from detmode.process.files import parsed_json
from detmode.reports.page import listed
from detmode.reports.terminal import terminal_width, wrapped
from detmode.table.values import Value

_WIDEST = 60
"""The characters in which an order is shown."""

PROGRAM_ORDER = "program order"
"""The name of the first schedule."""

NEW_MEMORY = f"{PROGRAM_ORDER} with other values in new memory"
"""The name of the schedule that shows whether results depend on memory that nothing wrote."""


def shuffled_by(seed: int) -> str:
    """Return the name of a schedule that a seed shuffles."""
    return f"shuffled order (seed {seed})"


def in_turns(who: str, turns: Sequence[int]) -> str:
    """Return the name of the order in which blocks or programs have their turns.

    Args:
        who: ``"blocks"`` or ``"programs"``.
        turns: their numbers; one may have several turns, which end at its atomics.
    """
    order = [number for number, _ in groupby(turns)]
    if not order:
        return PROGRAM_ORDER
    kind = "the order" if len(order) == len(set(order)) else "turns (each to an atomic or its end)"
    return f"{kind} of {who} {_shown(order)}"


def _shown(order: Sequence[int]) -> str:
    """Return numbers as text, which ends in dots where there are many."""
    text = ", ".join(map(str, order))
    return text if len(text) <= _WIDEST else re.sub(r" \S*$", " ...", text[:_WIDEST])


def not_ended(kernel: str, schedule: str, timeout: float | None) -> str:
    """Return the message about a schedule that has not ended in its time, in seconds."""
    return (
        f"certify(): {kernel} did not end in {timeout:g} seconds (in {schedule}): give "
        "smaller arguments, or a longer timeout; if no time is enough, a thread waits for what "
        "none does, or a loop has no end"
    )


def described(value: object) -> str:
    """Return a tensor by dtype and shape; anything else by what it prints."""
    return dtype_and_shape(value) if isinstance(value, torch.Tensor) else repr(value)


FLOAT_ADD = "float add"
"""The kind of atomics whose order shows in the bits."""


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
        schedules: the two, such as ``("program order", "shuffled order (seed 3)")``.
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
        return f"{place} is {self.values[0]} in {first}, and {self.values[1]} in {second}{more}"


@dataclass(frozen=True, kw_only=True)
class Certificate(Value):
    """The findings of :func:`detmode.certify` about one kernel with one set of arguments.

    >>> source = "__global__ void count(int* n) { atomicAdd(n, 1); }"
    >>> n = torch.zeros(1, dtype=torch.int32)
    >>> certificate = detmode.certify(source, {"n": n}, grid=4, block=32)
    >>> print(certificate.summary)
    order-independent: the same bits in every order of the 4 blocks
    >>> detmode.Certificate.from_json(certificate.to_json()) == certificate
    True

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
        float_adds: the lines at which they ran, such as ``"sum.cu:4"``, as far as they are known.
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
    float_adds: tuple[str, ...] = ()
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
        if not self.is_order_independent:
            adds = ", ".join(self.float_adds) if self._differs_by_order else ""
            cause = f" (atomics add floats at {adds})" if adds else ""
            return f"{self.verdict}: {self.variation or self.reason}{cause}"
        if self.all_orders and prod(self.grid) > 1:
            return f"order-independent: the same bits in every order of the {self._owners}"
        return f"order-independent: the same bits in {self.schedules} orders that were run"

    @property
    def _differs_by_order(self) -> bool:
        """True if two orders gave different bits: not two configs, nor two contents of memory."""
        first, second = self.variation.schedules if self.variation else ("", "")
        return first == PROGRAM_ORDER and second != NEW_MEMORY

    @property
    def _owners(self) -> str:
        """The number of blocks or programs of the grid."""
        return f"{prod(self.grid)} {'programs' if self.language == 'Triton' else 'blocks'}"

    def _rows(self) -> list[tuple[str, str]]:
        launch = f"grid {_sizes(self.grid)}"
        if self.block:
            launch += f", block {_sizes(self.block)}"
        tried = f"{self.schedules}"
        if self.all_orders and prod(self.grid) > 1:
            tried += (
                f" runs, which stand for every order of the {self._owners}: exchanging two that do "
                "not depend on each other through memory changes no bit"
            )
        return [
            ("kernel", f"{self.kernel} ({self.language}, sha256 {self.sha256[:16]})"),
            ("arguments", ", ".join(self.arguments)),
            ("launch", launch),
            ("schedules", tried),
            ("data races", "looked for" if self.races_checked else "not looked for"),
            ("atomics", ", ".join(map(self._with_lines, self.atomics)) or "none"),
            *(("note", note) for note in self.notes),
            *(("not shown", reason) for reason in self.not_shown),
        ]

    def _with_lines(self, kind: str) -> str:
        """Return a kind of atomics, with the lines that are known."""
        lines = ", ".join(self.float_adds) if kind == FLOAT_ADD else ""
        return f"{kind} at {lines}" if lines else kind

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


def compare(
    schedules: tuple[str, str], first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]
) -> None:
    """Raise :class:`FoundError` if :func:`first_variation` returns one."""
    if (variation := first_variation(schedules, first, second)) is not None:
        raise FoundError(KernelVerdict.VARIES, variation)


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
