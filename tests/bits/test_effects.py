"""Effects of operators are said once, and of operators and arguments that PyTorch has."""

import pytest
import torch

from detmode.bits.effects import _BUFFERS, _UNSAID, COLLECTIVES, UNDEFINED_OUTPUTS, effects_of
from detmode.process.arguments import signature_of
from detmode.process.dispatch import is_foreign
from detmode.rules import default_rules
from detmode.table.names import overloads_of

if torch.distributed.is_available():
    import torch.distributed._functional_collectives
    import torch.distributed._symmetric_memory
    import torch.distributed.fsdp

aten = torch.ops.aten


def functional(op: str) -> list[torch._ops.OpOverload]:
    """The loaded overloads of an operator without ``out=``; a vendor's may be missing."""
    namespace, _, name = op.partition("::")
    packet = getattr(getattr(torch.ops, namespace), name, None)
    overloads = (getattr(packet, overload) for overload in overloads_of(op))
    return [func for func in overloads if not signature_of(func).out_names]


@pytest.mark.parametrize("op", sorted(_UNSAID | _BUFFERS))
def test_arguments_that_schemas_do_not_say(op):
    """Those that a table names exist: a new name in PyTorch would go unnoticed otherwise."""
    buffer = _BUFFERS.get(op)
    named = {*_UNSAID.get(op, ()), *([buffer] if buffer else ())}
    for func in functional(op):
        assert named <= {*signature_of(func).names}


@pytest.mark.parametrize("op", sorted(UNDEFINED_OUTPUTS))
def test_undefined_outputs_are_tensors(op):
    """The positions are of results, and of tensors."""
    for func in functional(op):
        results = func._schema.returns
        assert {str(results[position].type) for position in effects_of(func).undefined} == {
            "Tensor"
        }


def test_new_memory_is_filled():
    """Each operator of ATen that gives new memory has the rows that say how it is filled."""
    names = (name for name in torch._C._dispatch_get_all_op_names() if name.startswith("aten::"))
    for op in {name.partition(".")[0] for name in names}:
        for func in functional(op):
            is_named = (
                func._overloadname == "names"
            )  # which PyTorch refuses under any dispatch mode
            if effects_of(func).gives_new_memory and not is_named:
                rows = default_rules().get(func)
                assert {row.family for row in rows} == {"uninitialized_memory"}, func


def test_collectives_are_pytorchs():
    """All that may wait for other processes is known to be PyTorch's own, and is not made again."""
    for name in torch._C._dispatch_get_all_op_names():
        if name.partition("::")[0] in COLLECTIVES:
            for func in functional(name.partition(".")[0]):
                assert effects_of(func).is_collective
                assert not is_foreign(func)


@pytest.mark.parametrize(
    ("func", "reads"),
    [
        (aten.normal_.default, False),
        (aten.copy_.default, False),
        (aten.add_.Tensor, True),
        (aten.native_dropout.default, True),
    ],
)
def test_what_is_written_may_be_read_first(func, reads):
    """Draws in place and copies overwrite; what draws and writes no argument reads all of them."""
    assert effects_of(func).overwrites is not reads


def test_effects_are_found_once():
    """All that ask get the same object, and a bounded number of them is kept."""
    assert effects_of(aten.add.Tensor) is effects_of(aten.add.Tensor)
    assert effects_of.cache_info().maxsize is not None
