"""Aligning two sequences of calls, where one may have calls that the other does not.

Training repeats itself, so the kinds of its calls alone cannot tell an extra step from the next
one. Calls that are bitwise identical and occur once in each run (loading a batch) can; they are the
anchors. Between two anchors, calls are aligned by kind.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence

Pair = tuple[int | None, int | None]
"""Positions of a call in both runs; None if a run did not make it."""

_WINDOW = 16
"""Consecutive calls that must match before an alignment resumes."""
_EDITS = 1000
"""Unmatched calls up to which a shortest edit script is searched for."""
_FAR = 1 << 16


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
    shared = [(i, places[1][token]) for token, i in places[0].items() if token in places[1]]
    shared.sort()
    tails: list[int] = []
    last: list[int] = []
    before: list[int] = []
    for number, (_, j) in enumerate(shared):
        length = bisect_left(tails, j)
        before.append(last[length - 1] if length else -1)
        if length == len(tails):
            tails.append(j)
            last.append(number)
        else:
            tails[length], last[length] = j, number
    chain = []
    number = last[-1] if last else -1
    while number >= 0:
        chain.append(shared[number])
        number = before[number]
    return chain[::-1]


def _once(sequence: Sequence[int], begin: int) -> dict[int, int]:
    """Return the tokens that occur once from ``begin`` on, with their positions."""
    places: dict[int, int] = {}
    for position in range(begin, len(sequence)):
        token = sequence[position]
        if token:
            places[token] = -1 if token in places else position
    return {token: position for token, position in places.items() if position >= 0}


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
    furthest = {1: 0}
    history: list[dict[int, int]] = []
    for edits in range(_EDITS + 1):
        history.append(dict(furthest))
        for k in range(-edits, edits + 1, 2):
            left, above = furthest.get(k - 1, -1), furthest.get(k + 1, -1)
            x = above if k == -edits or (k != edits and left < above) else left + 1
            y = x - k
            while x < n and y < m and a[begin[0] + x] == b[begin[1] + y]:
                x, y = x + 1, y + 1
            furthest[k] = x
            if x >= n and y >= m:
                return [*_walk_back(history, n, m, begin), end]
    return None


def _walk_back(
    history: list[dict[int, int]], x: int, y: int, begin: tuple[int, int]
) -> list[tuple[int, int]]:
    pairs = []
    for edits in range(len(history) - 1, -1, -1):
        furthest, k = history[edits], x - y
        left, above = furthest.get(k - 1, -1), furthest.get(k + 1, -1)
        down = k == -edits or (k != edits and left < above)
        before = above if down else left
        from_x = before if down else before + 1
        while x > from_x and x > 0 and y > 0:
            x, y = x - 1, y - 1
            pairs.append((begin[0] + x, begin[1] + y))
        x, y = before, before - (k + 1 if down else k - 1)
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
