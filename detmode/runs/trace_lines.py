"""The lines of a trace: calls, ends of steps, and what these refer to by number."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import IO, Any, TypeAlias

from detmode.process.checked import checked
from detmode.process.text import text_of
from detmode.runs.collectives import Collective, GroupIdentity

DIGEST_BYTES = 16
_FIELDS = 10
"""The fields of a call; those at the end may be missing."""
_MOST_TEXT_A_CALL = 1 << 23
"""Characters of the texts that a call names; one long text may be named by 100,000 tensors."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The common part of calls that differ only in digests and plain arguments.

    Args:
        overload: as in :class:`~detmode.runs.trace_file.TraceCall`, and so ``site`` and ``module``.
        sides: the forms of inputs, outputs and mutated arguments.
        digests: the number of digests of each call.
        graph: as in :class:`~detmode.runs.trace_file.TraceCall`.
    """

    overload: str
    site: str
    module: str | None
    sides: tuple[tuple[str, ...], ...]
    digests: int
    graph: str | None

    @property
    def in_place(self) -> bool:
        """True if the call writes its first inputs."""
        inputs, _, mutated = self.sides
        return bool(mutated) and inputs[: len(mutated)] == mutated

    @property
    def is_random(self) -> bool:
        """True if a generator's state was digested."""
        return self.digests > sum(map(len, self.sides))

    @classmethod
    def of(cls, numbers: tuple[Any, ...], texts: Sequence[str]) -> Shape:
        """Parse the shape of a line.

        Raises:
            ValueError, TypeError, LookupError: the line is not a line of a trace.
        """
        overload, site, module, *sides, random, graph = numbers
        if len(sides) != 3 or type(random) is not int or random not in (0, 1):
            raise ValueError
        named = [overload, site, *chain(*sides)]
        named += [number for number in (module, graph) if number is not None]
        if any(type(number) is not int or number < 0 for number in named):
            raise ValueError
        if sum(len(texts[number]) for number in named) > _MOST_TEXT_A_CALL:
            raise ValueError
        forms = tuple(tuple(texts[number] for number in side) for side in sides)
        names = [None if number is None else texts[number] for number in (module, graph)]
        n_digests = sum(map(len, forms)) + random
        return cls(texts[overload], texts[site], names[0], forms, n_digests, names[1])


CallLine: TypeAlias = tuple[Shape, str, bytes, Collective | None]
"""A call: its shape, its plain arguments, its concatenated digests, and its collective."""


StepLine: TypeAlias = dict[str, bytes]
"""The end of a step: for each module, or part of the state, the digest of its step; empty if the
calls are in the trace."""


def line_parser(digests: IO[bytes]) -> Callable[[dict[str, Any]], CallLine | StepLine | None]:
    """Return what parses the lines of a trace, in their order.

    It returns what a line stands for, if it is a call or the end of a step. It raises ``EOFError``
    if its digests are not all there, and ``ValueError``, ``TypeError``, ``LookupError`` or
    ``AttributeError`` if it is not a line of a trace.

    Args:
        digests: the file of digests.
    """
    texts: list[str] = []
    shapes: dict[Any, Shape] = {}
    groups: list[GroupIdentity] = []

    def read(count: int) -> bytes:
        content = digests.read(count * DIGEST_BYTES)
        if len(content) < count * DIGEST_BYTES:
            raise EOFError
        return content

    def call(value: list[Any]) -> CallLine:
        fields: list[Any] = [*value, *[None] * (_FIELDS - len(value))]
        *numbers, arguments, graph, identity = fields
        key = _frozen([*numbers, graph])
        shape = shapes.get(key)
        if shape is None:
            shape = shapes[key] = Shape.of(key, texts)
        collective = _collective(identity, groups)
        return shape, text_of(arguments), read(shape.digests), collective

    def parsed(fields: dict[str, Any]) -> CallLine | StepLine | None:
        value = fields.get("call")
        if value is not None:
            return call(value)
        if "step" in fields:
            names = [texts[number] for number in fields["step"]]
            return dict(zip(names, split(read(len(names)))))
        if "group" in fields:
            groups.append(_group(*fields["group"]))
        else:
            texts.append(text_of(fields["text"]))
        return None

    return parsed


def _group(name: Any, description: Any, backend: Any, ranks: Any) -> GroupIdentity:
    members = tuple(checked(list[int], ranks))
    return GroupIdentity(text_of(name), text_of(description), text_of(backend), members)


def _collective(identity: Any, groups: Sequence[GroupIdentity]) -> Collective | None:
    if identity is None:
        return None
    if any(type(number) is not int for number in identity):
        raise ValueError
    group, number, *peers = identity
    if group < 0 or number < 0 or len(peers) not in (0, 3):
        raise ValueError
    return Collective(groups[group], number, tuple(peers))


def _frozen(numbers: list[Any]) -> tuple[Any, ...]:
    return tuple(tuple(number) if isinstance(number, list) else number for number in numbers)


def split(digests: bytes) -> Iterator[bytes]:
    """Yield the concatenated digests one by one."""
    for begin in range(0, len(digests), DIGEST_BYTES):
        yield digests[begin : begin + DIGEST_BYTES]
