"""Tables of the dispatcher and rows, for the tests of ``intercept="listed"``."""

import torch

INDEX_ADD = ("aten::index_add.default", "substitute", 1)
"""The row of :func:`tests.shared.programs.index_add`."""


def tables() -> list[str]:
    """Tables of the dispatcher for operators that the tests list."""
    names = ("index_add", "index_add_", "index_add.out", "put_", "upsample_bicubic2d_backward")
    return [torch._C._dispatch_dump_table(f"aten::{name}") for name in (*names, "neg")]
