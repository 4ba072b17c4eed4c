"""Aligning two sequences of calls, where one may have calls that the other does not.

Training repeats itself, so the kinds of its calls alone cannot tell an extra step from the next
one. Calls that are bitwise identical and occur once in each run (loading a batch) can; they are the
anchors. Between two anchors, calls are aligned by kind.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

Pair = tuple[int | None, int | None]
"""Positions of a call in both runs; None if a run did not make it."""

_WINDOW = 16
"""Consecutive calls that must match before an alignment resumes."""
_EDITS = 1000
"""Unmatched calls up to which a shortest edit script is searched for."""
_MOST_WORK = 1 << 25
"""The comparisons and steps of searches after which an alignment becomes coarse."""
_FEWEST = 16
"""The same after searches that have failed: where runs differ all along, each of them would."""
_FAR = (1 << 6, 1 << 9, 1 << 12, 1 << 16)
"""The calls among which an alignment is resumed, the nearest first."""
_NOWHERE = (-1, None)
_Link: TypeAlias = "tuple[tuple[int, int], _Link | None]"
_Runs: TypeAlias = "tuple[range, int, _Runs | None]"

Sequences = tuple[Sequence[int], Sequence[int]]


class _Effort:
    """The steps that an alignment may still take, so that its time is bounded."""

    def __init__(self, most: int, on_coarse: Callable[[int], object]) -> None:
        self.left = most
        self.edits = _EDITS
        """The unmatched calls up to which the next script is searched for."""
        self._on_coarse: Callable[[int], object] | None = on_coarse

    def suffices(self, call: int) -> bool:
        """Return whether there is effort left for the calls from one on; tell the first without."""
        if self.left <= 0 and self._on_coarse is not None:
            self._on_coarse(call)
            self._on_coarse = None
        return self.left > 0


def align(
    kinds: Sequences,
    whole: Sequences,
    anchors: Sequences,
    on_coarse: Callable[[int], object] = lambda call: None,
    most: int = _MOST_WORK,
) -> Iterator[Pair]:
    """Yield the calls of both runs in order, side by side.

    Once the effort is spent, calls are aligned between two anchors from both ends only, and what
    lies between is left unmatched.

    Args:
        kinds: for each run and call, a number for the operator and the form of its tensors.
        whole: the same, with the tensors' digests.
        anchors: ``whole``, with 0 for calls that must not be anchors.
        on_coarse: is called with the first call of the first run that is aligned coarsely, if any.
        most: the comparisons and steps of all searches.
    """
    effort = _Effort(most, on_coarse)
    (first, second), (a, b) = whole, kinds
    same = _common(first, second)
    for position in range(same):
        yield position, position
    at = (same, same)
    for anchor in [*_anchors(*anchors, same), (len(a), len(b))]:
        yield from _between(a, b, at, anchor, effort)
        if anchor != (len(a), len(b)):
            yield anchor
            at = (anchor[0] + 1, anchor[1] + 1)


def _common(first: Sequence[int], second: Sequence[int]) -> int:
    """Return the number of calls that are the same at the beginning."""
    return next(
        (n for n, (a, b) in enumerate(zip(first, second)) if a != b), min(len(first), len(second))
    )


def _anchors(first: Sequence[int], second: Sequence[int], begin: int) -> list[tuple[int, int]]:
    """Return a longest chain of calls that occur once in each run, in the same order in both."""
    places = [_once(sequence, begin) for sequence in (first, second)]
    shared = sorted((i, places[1][token]) for token, i in places[0].items() if token in places[1])
    # By length of a chain: the smallest second position that ends one, and that chain's links.
    ends: list[int] = []
    chains: list[_Link | None] = [None]
    for i, j in shared:
        length = bisect_left(ends, j)
        ends[length : length + 1] = [j]
        chains[length + 1 : length + 2] = [((i, j), chains[length])]
    chain = []
    link = chains[-1]
    while link is not None:
        pair, link = link
        chain.append(pair)
    return chain[::-1]


def _once(sequence: Sequence[int], begin: int) -> dict[int, int]:
    """Return the tokens that occur once from ``begin`` on, with their positions."""
    rest = sequence[begin:]
    counts = Counter(rest)
    return {token: place for place, token in enumerate(rest, begin) if token and counts[token] == 1}


def _between(
    a: Sequence[int],
    b: Sequence[int],
    begin: tuple[int, int],
    end: tuple[int, int],
    effort: _Effort,
) -> Iterator[Pair]:
    """Align two stretches by the kinds of their calls, leaving as few unmatched as possible."""
    (i, j), (i_end, j_end) = begin, end
    while i < i_end and j < j_end:
        same = _common_in(a, b, (i, j), end)
        yield from ((i + n, j + n) for n in range(same))
        i, j = i + same, j + same
        if not effort.suffices(i):
            path = _from_the_end(a, b, (i, j), end)
        else:
            path = _shortest(a, b, (i, j), end, effort) or _resumed(a, b, (i, j), end, effort)
        if not path:
            break
        for down, right in path:
            # Unmatched calls of the first run come before those of the second.
            yield from ((n, None) for n in range(i, down))
            yield from ((None, n) for n in range(j, right))
            if down == i_end and right == j_end:
                return
            yield down, right
            i, j = down + 1, right + 1
    yield from ((n, None) for n in range(i, i_end))
    yield from ((None, n) for n in range(j, j_end))


def _common_in(
    a: Sequence[int], b: Sequence[int], begin: tuple[int, int], end: tuple[int, int]
) -> int:
    """Return the number of calls that are the same at the beginning of two stretches."""
    (i, j), (i_end, j_end) = begin, end
    most = min(i_end - i, j_end - j)
    return next((n for n in range(most) if a[i + n] != b[j + n]), most)


def _from_the_end(
    a: Sequence[int], b: Sequence[int], begin: tuple[int, int], end: tuple[int, int]
) -> list[tuple[int, int]]:
    """Return the pairs that are the same at the end of two stretches, and ``end``."""
    most = min(end[0] - begin[0], end[1] - begin[1])
    same = next((n for n in range(most) if a[end[0] - 1 - n] != b[end[1] - 1 - n]), most)
    return [(end[0] - n, end[1] - n) for n in range(same, -1, -1)]


def _shortest(
    a: Sequence[int],
    b: Sequence[int],
    begin: tuple[int, int],
    end: tuple[int, int],
    effort: _Effort,
) -> list[tuple[int, int]] | None:
    """Return the pairs of a shortest edit script (Myers, 1986), and ``end``; None if too long."""
    n, m = end[0] - begin[0], end[1] - begin[1]
    # For each diagonal, how far it is reached, and the runs of equal calls on the way there.
    furthest: dict[int, tuple[int, _Runs | None]] = {1: (0, None)}
    for edits in range(effort.edits + 1):
        if not effort.suffices(begin[0]):
            return None
        effort.left -= edits + 1
        for k in range(-edits, edits + 1, 2):
            left, above = furthest.get(k - 1, _NOWHERE), furthest.get(k + 1, _NOWHERE)
            down = k == -edits or (k != edits and left[0] < above[0])
            x, runs = above if down else (left[0] + 1, left[1])
            run = x
            while x < n and x - k < m and a[begin[0] + x] == b[begin[1] + x - k]:
                x += 1
            effort.left -= x - run
            furthest[k] = x, (range(run, x), k, runs)
            if x >= n and x - k >= m:
                effort.edits = min(2 * effort.edits, _EDITS)
                return [*_pairs(furthest[k][1], begin), end]
    effort.edits = max(effort.edits // 4, _FEWEST)
    return None


def _pairs(runs: _Runs | None, begin: tuple[int, int]) -> list[tuple[int, int]]:
    pairs = []
    while runs is not None:
        along, k, runs = runs
        pairs += [(begin[0] + x, begin[1] + x - k) for x in reversed(along)]
    return pairs[::-1]


def _resumed(
    a: Sequence[int],
    b: Sequence[int],
    at: tuple[int, int],
    end: tuple[int, int],
    effort: _Effort,
) -> list[tuple[int, int]]:
    """Return the next position where both continue alike for a while; empty if there is none."""
    for far in _FAR:
        ends = tuple(min(last, first + far) - _WINDOW + 1 for first, last in zip(at, end))
        effort.left -= ends[0] - at[0] + ends[1] - at[1]
        seen: dict[tuple[int, ...], int] = {}
        for j in range(at[1], ends[1]):
            seen.setdefault(tuple(b[j : j + _WINDOW]), j)
        for i in range(at[0], ends[0]):
            place = seen.get(tuple(a[i : i + _WINDOW]))
            if place is not None:
                return [(i, place)]
    return []
