"""Suggestions for names that are misspelt."""

from __future__ import annotations

from collections.abc import Iterable


def did_you_mean(word: str, known: Iterable[str], most: int = 1) -> str:
    """Return ``"; did you mean 'x'?"`` if a known word is similar, else an empty text.

    Args:
        word: as it was given.
        known: the words that there are.
        most: the number of suggestions.
    """
    import difflib  # with the first mistake

    found = [repr(each) for each in difflib.get_close_matches(word, sorted(known), n=most)]
    several = f"{', '.join(found[:-1])} or {found[-1]}" if len(found) > 1 else "".join(found)
    return f"; did you mean {several}?" if found else ""
