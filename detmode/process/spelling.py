"""Suggestions for names that are misspelt."""

from __future__ import annotations

from collections.abc import Iterable


def did_you_mean(word: str, known: Iterable[str], most: int = 1) -> str:
    """Return ``"; did you mean 'x'?"`` if a known word is similar, else an empty text."""
    import difflib  # with the first mistake

    matches = [repr(match) for match in difflib.get_close_matches(word, sorted(known), n=most)]
    several = (
        f"{', '.join(matches[:-1])} or {matches[-1]}" if len(matches) > 1 else "".join(matches)
    )
    return f"; did you mean {several}?" if matches else ""
