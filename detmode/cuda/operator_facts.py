"""The facts about an operator of ATen that decide how the recorder notes a call of it."""

from __future__ import annotations

import functools

import torch

ABOUT_FORMS = frozenset(
    (
        *("aten::is_set_to", "aten::is_same_size", "aten::is_coalesced", "aten::_nnz"),
        *("aten::sparse_dim", "aten::dense_dim"),
    )
)
"""Operators that look at no values."""

HOST_READ = "values are read on the host"
_REFUSED_TAGS = {
    torch.Tag.data_dependent_output: HOST_READ,
    torch.Tag.dynamic_output_shape: "the size of a result depends on values",
    torch.Tag.nondeterministic_seeded: "random numbers are drawn",
}


@functools.lru_cache(1 << 10)
def operator_facts(func: torch._ops.OpOverload) -> tuple[str, int, bool, bool, str | None]:
    """Return the facts about an operator, which its schema takes long to tell.

    They are its name without that of the overload, the number of its results, whether it writes to
    its arguments, whether its results are views of them, and the reason why no plan calls it.
    """
    schema, tags = func._schema, func.tags
    makes_views = not schema.is_mutable and any(result.alias_info for result in schema.returns)
    problem = next((problem for tag, problem in _REFUSED_TAGS.items() if tag in tags), None)
    return schema.name, len(schema.returns), schema.is_mutable, makes_views, problem
