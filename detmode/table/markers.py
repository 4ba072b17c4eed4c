"""Operators of detmode's own, called where code runs that no mode can see into.

They do nothing: the rule table lists them, so that such code meets rows, overrides, ``allow``
regions and the report as operators do.
"""

from __future__ import annotations

import torch

AHEAD_OF_TIME_PROGRAM = "detmode::ahead_of_time_program"
"""Called before a program that was compiled ahead of time, with its tensors."""

FLEX_ATTENTION_BACKWARD = "detmode::flex_attention_backward"
"""Called after compiled code for the backward of ``flex_attention`` that adds by atomics.

It claims to write what it is given, the gradient of the queries, so that no compiler drops it.
"""

_library = torch.library.Library("detmode", "FRAGMENT")
for _name, _schema in (
    (AHEAD_OF_TIME_PROGRAM, "(Tensor[] inputs) -> ()"),
    (FLEX_ATTENTION_BACKWARD, "(Tensor(a!) gradient) -> ()"),
):
    _library.define(_name.partition("::")[2] + _schema)
    _library.impl(_name.partition("::")[2], lambda *args: None, "CompositeExplicitAutograd")
    torch.library.register_fake(_name, lambda *args: None, lib=_library)
