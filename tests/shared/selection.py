"""The choice of a run of the tests: a profile says how much, ``--family`` and ``--case`` of what.

``DETMODE_PROFILE`` names the profile, ``quick`` where it is not set; ``tox -e full`` sets it. Every
claim is checked in every profile; a larger one checks it on more inputs. Of what ``quick`` samples
each day has another share (:func:`todays_share`); ``DETMODE_SHARE`` names the day.
"""

import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from functools import cache
from itertools import islice
from types import ModuleType
from typing import Any, TypeVar
from zlib import crc32

import pytest
import torch

from detmode import rules
from detmode.verify.cases import Case, name_of
from detmode.verify.cases import cases as cases_of
from detmode.verify.claims import NotCheckedError

ALL = 1 << 30


@dataclass(frozen=True, kw_only=True)
class Profile:
    """The amount that the tests look at.

    Args:
        examples: Hypothesis cases a property.
        schedules: the host runner's, by which a claim about bits is checked in float32 ...
        other_schedules: ... and in any other dtype.
        dtypes: in how many of its dtypes a sample runs.
        other_dtypes: beside float32, of the dtypes one in so many is looked at each day.
        operators: of PyTorch's operators with sample inputs, one in so many runs them each day.
        operator_samples: of how many of its samples each compares the bits without a mode.
        operator_dtypes: in how many dtypes.
        architectures: of GPUs, for how many of them every kernel compiles in all its forms.
        sanitized: the dtypes that run under the sanitizers; none for all.
        thorough: whether tests marked ``thorough`` run.
        forms: of what one claim is checked on, and takes long, one in so many runs each day.
        interrupted_lines: an interrupt strikes at every line, or at one in so many.
        signals: the number of them that strike at any moment.
        locked: seconds for which signals strike a lock.
        stress: seconds for which threads, forks and signals contend.
        beside: seconds for which threads recheck, record, warn and draw.
        calls: that plans make, behind which memory is compared.
    """

    examples: int
    schedules: int
    other_schedules: int
    dtypes: int = ALL
    other_dtypes: int = 1
    operators: int = 1
    operator_samples: int = 3
    operator_dtypes: int = 3
    architectures: int = ALL
    sanitized: tuple[str, ...] = ("torch.float32",)
    thorough: bool = True
    forms: int = 1
    interrupted_lines: int = 1
    signals: int = 2000
    locked: int = 4
    stress: int = 4
    beside: int = 10
    calls: int = 20_000

    def schedules_in(self, dtype: torch.dtype) -> int:
        """The number of schedules by which a claim about bits is checked in a dtype."""
        return self.schedules if dtype is torch.float32 else self.other_schedules


PROFILES = {
    "quick": Profile(
        examples=12,
        # Of sums of twenty addends in five places, added in any order, seven of ten shuffles show
        # that they vary; a family's samples are many, and races are looked for besides.
        schedules=8,
        other_schedules=4,
        dtypes=1,
        # A kernel is compiled for each dtype.
        other_dtypes=3,
        operators=7,
        thorough=False,
        forms=5,
        interrupted_lines=7,
        signals=150,
        locked=1,
        stress=1,
        beside=2,
        calls=2_000,
    ),
    "thorough": Profile(examples=30, schedules=20, other_schedules=20, architectures=1),
    "full": Profile(
        examples=2000,
        schedules=100,
        other_schedules=100,
        operator_samples=ALL,
        operator_dtypes=ALL,
        sanitized=(),
        locked=60,
        stress=120,
        beside=120,
        calls=1_000_000,
    ),
}
"""The profiles by name; what a larger one does not say is all there is."""

PROFILE_NAME = os.environ.get("DETMODE_PROFILE", "quick")
if PROFILE_NAME not in PROFILES:
    known = ", ".join(PROFILES)
    raise pytest.UsageError(f"DETMODE_PROFILE is {PROFILE_NAME!r}; profiles are {known}")
PROFILE = PROFILES[PROFILE_NAME]

# Processes that this one starts have the same share, also past midnight.
os.environ.setdefault("DETMODE_SHARE", str(date.today().toordinal()))
if not os.environ["DETMODE_SHARE"].isdecimal():
    raise pytest.UsageError(
        f"DETMODE_SHARE is {os.environ['DETMODE_SHARE']!r}; it is the number of a day, such as "
        f"{date.today().toordinal()} for today"
    )
SHARE = int(os.environ["DETMODE_SHARE"])

T = TypeVar("T")


def todays_share(values: Iterable[T], count: int) -> Iterator[T]:
    """Every ``count``-th value, from another one each day: ``count`` days have all of them.

    With :data:`SHARE` 7 (``DETMODE_SHARE=7``) and ``count`` 3 the values 1, 4, 7, ...; with
    ``count`` 1 all of them, as the larger profiles ask for.
    """
    return islice(values, SHARE % count, None, count)


_limits: dict[str, str | None] = {"family": None, "case": None}


def limit(*, family: str | None, case: str | None) -> None:
    """Limit a run to a family, and to cases whose names contain a text; ``None`` does not.

    Raises:
        pytest.UsageError: there is no such family.
    """
    if family is not None and family not in rules.families():
        raise pytest.UsageError(
            f"there is no family {family!r}; families are {', '.join(rules.families())}"
        )
    _limits.update(family=family, case=case)


def _is_limited() -> bool:
    return any(limit is not None for limit in _limits.values())


def todays_forms(values: Iterable[T]) -> list[T]:
    """Of what one claim is checked on those that the profile looks at, such as programs or models.

    At least one each day; all of them if a family or a case is asked for.
    """
    values = list(values)
    return list(todays_share(values, 1 if _is_limited() else min(PROFILE.forms, len(values))))


DTYPES = (
    *(torch.float16, torch.bfloat16, torch.float64),
    *(torch.complex64, torch.complex128, torch.bool),
    *(torch.int64, torch.int32, torch.uint8, torch.int8, torch.int16),
)
"""Dtypes beside float32, so that each day has others of each kind."""


def todays_dtypes(dtypes: Iterable[torch.dtype]) -> list[torch.dtype]:
    """Of dtypes float32, and those of the others that the profile looks at today, if any are.

    Else the first; all of them if a family or a case is asked for.
    """
    every, left_out = list(dtypes), _left_out()
    return [dtype for dtype in every if dtype not in left_out] or every[:1]


def _left_out() -> set[torch.dtype]:
    return {*DTYPES}.difference(todays_share(DTYPES, 1 if _is_limited() else PROFILE.other_dtypes))


def families() -> dict[str, ModuleType]:
    """The families that this run looks at, by name."""
    only = _limits["family"]
    return {name: each for name, each in rules.families().items() if only in (None, name)}


def every_case() -> tuple[Case, ...]:
    """All cases, in all their dtypes, of the families that this run looks at."""
    family = _limits["family"]
    return cases_of() if family is None else cases_of(family)  # `cases_of(None)` is cached apart


@cache
def cases() -> tuple[Case, ...]:
    """The cases that the profile looks at."""
    return chosen(every_case())


def chosen(every: Sequence[Case]) -> tuple[Case, ...]:
    """Of all cases those that the profile looks at; all, if a case is asked for.

    A sample runs in float32 and then in what its operator ran in least, of equals in another one
    each day; and an operator in all that it takes of today's, each by another sample each day.
    """
    if _limits["case"] is not None:
        return tuple(every)
    by_sample: dict[int, list[Case]] = defaultdict(list)
    for case in every:
        by_sample[id(case.sample)].append(case)
    runs: Counter[tuple[str, torch.dtype]] = Counter()
    kept = set()

    def keep(case: Case) -> None:
        kept.add(case)
        runs[case.sample.op, case.dtype] += 1

    for sampled in by_sample.values():
        todays = todays_dtypes(case.dtype for case in sampled)
        group = [case for case in sampled if case.dtype in todays]
        first = SHARE % len(group)
        group[:] = [*group[first:], *group[:first]]
        group.sort(key=lambda each: runs[each.sample.op, each.dtype])
        group.sort(key=lambda each: each.dtype is not torch.float32)
        for case in group[: PROFILE.dtypes]:
            keep(case)
    by_dtype: dict[tuple[str, torch.dtype], list[Case]] = defaultdict(list)
    left_out = _left_out()
    for case in every:
        if not runs[case.sample.op, case.dtype] and case.dtype not in left_out:
            by_dtype[case.sample.op, case.dtype].append(case)
    for group in by_dtype.values():
        keep(group[SHARE % len(group)])
    return tuple(case for case in every if case in kept)


def once(cases: Iterable[Case]) -> list[Case]:
    """One dtype of each sample, float32 where it has it."""
    return list(
        {
            (case.family, case.sample.op, case.sample.name): case
            for case in sorted(cases, key=lambda case: case.dtype == torch.float32)
        }.values()
    )


@dataclass(frozen=True)
class Group:
    """Cases of one family in one dtype: what a test checks together."""

    family: str
    dtype: torch.dtype
    cases: tuple[Case, ...]

    def __str__(self) -> str:
        return f"{self.family}-{name_of(self.dtype)}"


def spread_operators(operators: list[Any]) -> list[Any]:
    """Of PyTorch's operators those that the profile looks at; all, if a case is asked for."""
    count = PROFILE.operators if _limits["case"] is None else 1
    return list(todays_share(operators, count))


def wanted(name: str) -> bool:
    """Tell whether ``--case`` asks for what has the name."""
    return (_limits["case"] or "") in name


def grouped(cases: Iterable[Case]) -> list[Group]:
    """Cases by family and dtype; only those that ``--case`` asks for."""
    found: dict[tuple[str, torch.dtype], list[Case]] = defaultdict(list)
    for case in cases:
        if wanted(str(case)):
            found[case.family, case.dtype].append(case)
    return [Group(*key, tuple(each)) for key, each in found.items()]


def check_each(group: Group, check: Callable[[Case], object]) -> None:
    """Check all cases of a group, and name each that fails.

    Raises:
        AssertionError: some fail; with their messages, and how to run one alone.
    """
    failures: dict[Case, Exception] = {}
    unchecked = []
    for case in group.cases:
        try:
            check(case)
        except NotCheckedError as reason:
            unchecked.append(str(reason))
        except Exception as error:
            failures[case] = error
    if failures:
        texts = [f"{case}: {error}" for case, error in failures.items()]
        raise AssertionError(
            f"{len(failures)} of {len(group.cases)} cases fail; to run the first alone, add "
            f"--case {next(iter(failures))}\n" + "\n".join(texts)
        ) from next(iter(failures.values()))
    if len(unchecked) == len(group.cases):
        pytest.skip("; ".join(sorted(set(unchecked))))


def of_this_week(names: Iterable[str]) -> list[str]:
    """Of names the seventh whose day it is, so that a week has them all; all in larger profiles."""
    if PROFILE.thorough or _limits["case"] is not None:
        return list(names)
    # By a name's own digest, so that parametrizations of one function have the same values.
    return [name for name in names if crc32(name.encode()) % 7 == SHARE % 7]
