"""The option ``--override OP=ACTION`` of the command line, of pytest and of a notebook's cell.

It is parsed before PyTorch is imported, which the other arguments of a mode need.
"""

from __future__ import annotations

from argparse import ArgumentTypeError


def as_override(pair: str) -> tuple[str, str]:
    """Return the operator and the action; argparse's ``type`` of the option.

    Raises:
        argparse.ArgumentTypeError: the text is not ``OP=ACTION``.
    """
    operator, _, action = pair.rpartition("=")
    if not operator or not action:
        raise ArgumentTypeError(f"give OP=ACTION, such as aten::histc=allow, not {pair!r}")
    return operator, action
