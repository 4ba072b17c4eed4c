"""Aligning two sequences of calls, where one may have calls that the other does not.

Training repeats itself, so the kinds of its calls alone cannot tell an extra step from the next
one. Calls that are bitwise identical and occur once in each run (loading a batch) can; they are the
anchors. Between two anchors, calls are aligned by kind.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TypeAlias

Pair = tuple[int | None, int | None]
"""Positions of a call in both runs; None if a run did not make it."""

_WINDOW = 16
"""Consecutive calls that must match before an alignment resumes."""
_EDITS = 1000
"""Unmatched calls up to which a shortest edit script is searched for."""
_FAR = 1 << 16
_NOWHERE = (-1, None)
_Link: TypeAlias = "tuple[tuple[int, int], _Link | None]"
_Runs: TypeAlias = "tuple[range, int, _Runs | None]"

Sequences = tuple[Sequence[int], Sequence[int]]


def align(kinds: Sequences, whole: Sequences, anchors: Sequences) -> Iterator[Pair]:
    """Yield the calls of both runs in order, side by side.

    Args:
        kinds: for each run and call, a number for the operator and the form of its tensors.
        whole: the same, with the tensors' digests.
        anchors: ``whole``, with 0 for calls that must not be anchors.
    """
    (first, second), (a, b) = whole, kinds
    same = _common(first, second)
    for position in range(same):
        yield position, position
    at = (same, same)
    for anchor in [*_anchors(*anchors, same), (len(a), len(b))]:
        yield from _between(a, b, at, anchor)
        if anchor != (len(a), len(b)):
            yield anchor
            at = (anchor[0] + 1, anchor[1] + 1)


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """Return the number of calls that are the same at the beginning."""
    return next(
        (n for n, (a, b) in enumerate(zip(one, other)) if a != b), min(len(one), len(other))
    )


def _anchors(one: Sequence[int], other: Sequence[int], begin: int) -> list[tuple[int, int]]:
    """Return a longest chain of calls that occur once in each run, in the same order in both."""
    places = [_once(sequence, begin) for sequence in (one, other)]
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
    a: Sequence[int], b: Sequence[int], begin: tuple[int, int], end: tuple[int, int]
) -> Iterator[Pair]:
    """Align two stretches by the kinds of their calls, leaving as few unmatched as possible."""
    (i, j), (i_end, j_end) = begin, end
    while i < i_end and j < j_end:
        same = _common(a[i:i_end], b[j:j_end]) if a[i] == b[j] else 0
        yield from ((i + n, j + n) for n in range(same))
        i, j = i + same, j + same
        path = _shortest(a, b, (i, j), end) or _resumed(a, b, (i, j), end)
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


def _shortest(
    a: Sequence[int], b: Sequence[int], begin: tuple[int, int], end: tuple[int, int]
) -> list[tuple[int, int]] | None:
    """Return the pairs of a shortest edit script (Myers, 1986), and ``end``; None if too long."""
    n, m = end[0] - begin[0], end[1] - begin[1]
    # For each diagonal, how far it is reached, and the runs of equal calls on the way there.
    furthest: dict[int, tuple[int, _Runs | None]] = {1: (0, None)}
    for edits in range(_EDITS + 1):
        for k in range(-edits, edits + 1, 2):
            left, above = furthest.get(k - 1, _NOWHERE), furthest.get(k + 1, _NOWHERE)
            down = k == -edits or (k != edits and left[0] < above[0])
            x, runs = above if down else (left[0] + 1, left[1])
            run = x
            while x < n and x - k < m and a[begin[0] + x] == b[begin[1] + x - k]:
                x += 1
            furthest[k] = x, (range(run, x), k, runs)
            if x >= n and x - k >= m:
                return [*_pairs(furthest[k][1], begin), end]
    return None


def _pairs(runs: _Runs | None, begin: tuple[int, int]) -> list[tuple[int, int]]:
    pairs = []
    while runs is not None:
        along, k, runs = runs
        pairs += [(begin[0] + x, begin[1] + x - k) for x in reversed(along)]
    return pairs[::-1]


def _resumed(
    a: Sequence[int], b: Sequence[int], at: tuple[int, int], end: tuple[int, int]
) -> list[tuple[int, int]]:
    """Return the next position where both continue alike for a while; empty if there is none."""
    seen: dict[tuple[int, ...], int] = {}
    for j in range(at[1], min(end[1], at[1] + _FAR) - _WINDOW + 1):
        seen.setdefault(tuple(b[j : j + _WINDOW]), j)
    for i in range(at[0], min(end[0], at[0] + _FAR) - _WINDOW + 1):
        found = seen.get(tuple(a[i : i + _WINDOW]))
        if found is not None:
            return [(i, found)]
    return []
