"""Written tensors are checked as ATen checks them: dtype, and memory that is read as well."""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch

from detmode import DeterministicMode
from detmode.process.arguments import signature_of
from detmode.rules import default_rules
from detmode.table.rule_table import resolve
from detmode.table.samples import Sample
from detmode.table.variants import variant_of
from detmode.verify.cases import Case
from tests.shared import needs
from tests.shared.selection import every_case

OTHER = (torch.float64, torch.float16, torch.int32, torch.complex64)


def written(family: str) -> Iterator[tuple[Any, Any, Sample, torch.dtype]]:
    """The out variants of a family's substitutes, each with its smallest sample."""
    table = default_rules()
    smallest: dict[Any, tuple[int, Case]] = {}
    for case in sorted(every_case(), key=lambda case: case.dtype is not torch.float32):
        func = resolve(case.sample.op)
        if func is None or case.family != family:
            continue
        if "cudnn" in case.sample.op:
            continue  # ATen has it on CUDA alone: there is nothing to compare with
        if torch.Tag.pointwise in func.tags:
            continue  # ATen's differ: ``sin`` casts to a wider dtype, ``neg`` refuses
        arguments = case.sample.arguments(case.dtype).values()
        size = min(t.numel() for t in arguments if isinstance(t, torch.Tensor)) or 1 << 60
        if func not in smallest or size < smallest[func][0]:
            smallest[func] = size, case
    for func, (_, case) in smallest.items():
        packet = getattr(torch.ops.aten, func._schema.name.partition("::")[2], None)
        for overload in packet.overloads() if packet is not None else ():
            out = getattr(packet, overload)
            if variant_of(out) == "out" and table.get(out) == table.get(func):
                yield func, out, case.sample, case.dtype


def outcome(call: Callable[..., Any], arguments: dict[str, Any]) -> type[Exception] | None:
    try:
        call(**arguments)
    except Exception as error:
        tensors = (each for each in arguments.values() if isinstance(each, torch.Tensor))
        is_dense = all(each.layout is torch.strided for each in tensors)
        # For sparse matrices of some dtypes ATen has kernels on CUDA alone.
        is_missing = isinstance(error, NotImplementedError) and not is_dense
        return RuntimeError if is_missing else type(error)
    return None


@needs.compiler
# As an error, which other warnings are here, it would look like a refusal.
@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
@pytest.mark.parametrize("family", dict.fromkeys(case.family for case in every_case()))
def test_out(family: str) -> None:
    """An ``out`` of another dtype, or that is an input, is refused where ATen refuses it.

    What is accepted has the bits of the functional operator.
    """
    for func, out, sample, dtype in written(family):
        given = signature_of(func).bind((), sample.arguments(dtype))
        with DeterministicMode(simulate="cuda"):
            result = func(**given)
        expected = dict(
            zip(signature_of(out).out_names, result if isinstance(result, tuple) else (result,))
        )
        attempts: list[tuple[str, torch.dtype | str]] = []
        for name, tensor in expected.items():
            attempts += ((name, each) for each in (tensor.dtype, *OTHER))
            attempts += (
                (name, read)
                for read, value in given.items()
                if isinstance(value, torch.Tensor)
                and (value.dtype, value.shape) == (tensor.dtype, tensor.shape)
            )
        for name, what in attempts:
            outcomes, native = [], {}
            for mode in (nullcontext(), DeterministicMode(simulate="cuda")):
                arguments = signature_of(func).bind((), sample.arguments(dtype))
                arguments |= {each: torch.empty_like(tensor) for each, tensor in expected.items()}
                if isinstance(what, str):
                    arguments[name] = arguments[what] = given[what].clone()
                else:
                    arguments[name] = torch.empty_like(expected[name], dtype=what)
                with mode:
                    outcomes.append(outcome(out, arguments))
                native = native or arguments
            assert outcomes[1] is outcomes[0], (out, sample.name, name, what)
            if outcomes[1] is None:
                for each, tensor in expected.items():
                    found = arguments[each]
                    if found.dtype is tensor.dtype:
                        torch.testing.assert_close(found, tensor, rtol=0, atol=0, equal_nan=True)
                    else:
                        torch.testing.assert_close(found, native[each], equal_nan=True)


X = torch.arange(4.0)
INDEX = torch.tensor([0, 0, 1, 2])

APART: dict[str, Callable[[], Any]] = {
    "scatter_add_": lambda: X.clone().scatter_add_(0, INDEX, X),
    "source": lambda: (lambda x: x.index_add_(0, INDEX, x))(X.clone()),
    "source, as a view": lambda: (lambda x: x[:3].index_add_(0, INDEX[:2], x[2:]))(X.clone()),
    "no part": lambda: (lambda x: x[:2].index_add_(0, INDEX[:2], x[2:]))(X.clone()),
    "every other one": lambda: (lambda x: x[::2].index_add_(0, INDEX[:2], x[1::2]))(X.clone()),
    "index": lambda: (lambda i: i.scatter_add_(0, i, i + 1))(INDEX.clone()),
    "put_": lambda: (lambda x: x.put_(INDEX, x))(X.clone()),
    "values": lambda: (lambda x: x.index_put_((INDEX,), x, accumulate=True))(X.clone()),
    "indices": lambda: (lambda i: i.index_put_((i,), i + 1, accumulate=True))(INDEX.clone()),
    "a part of self": lambda: (lambda x: torch.index_add(x[1:], 0, INDEX[:2], X[:2], out=x[:3]))(
        X.clone()
    ),
}


@needs.compiler
@pytest.mark.parametrize("call", APART.values(), ids=APART)
def test_memory_that_is_read(call: Callable[[], Any]) -> None:
    """An input that shares memory with what is written is refused where ATen refuses it."""
    native = outcome(call, {})
    with DeterministicMode(simulate="cuda"):
        assert outcome(call, {}) is native
