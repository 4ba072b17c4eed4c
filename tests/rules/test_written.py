"""What a call writes is checked as ATen checks it: dtype, and memory that is read as well."""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch

from detmode import DeterministicMode, cuda
from detmode.rules import default_rules, families
from detmode.table.call import Signature
from detmode.table.rule_table import resolve
from detmode.table.variants import out_names, variant_of
from detmode.verify.cases import matching_row, samples_of

OTHER = (torch.float64, torch.float16, torch.int32, torch.complex64)


def written() -> Iterator[Any]:
    """The out variants of all substitutes, each with its smallest sample, by dtype."""
    table = default_rules()
    for family in families():
        found: dict[Any, tuple[int, Any, torch.dtype]] = {}
        for sample in samples_of(family).cases:
            func = resolve(sample.op)
            dtype = torch.float32 if torch.float32 in sample.dtypes else sample.dtypes[0]
            row = matching_row(sample, dtype) if sample.device == "cuda" else None
            if func is None or row is None or str(row.rule.action) != "Substitute":
                continue
            if "cudnn" in sample.op:
                continue  # ATen has it on CUDA alone: there is nothing to compare with
            if torch.Tag.pointwise in func.tags:
                continue  # ATen's differ: ``sin`` casts to a wider dtype, ``neg`` refuses
            tensors = [t for t in sample.arguments(dtype).values() if isinstance(t, torch.Tensor)]
            size = min(t.numel() for t in tensors) or 1 << 60
            if func not in found or size < found[func][0]:
                found[func] = (size, sample, dtype)
        for func, (_, sample, dtype) in found.items():
            name = func._schema.name.partition("::")[2]
            packet = getattr(torch.ops.aten, name, None)
            for overload in packet.overloads() if packet is not None else ():
                out = getattr(packet, overload)
                if variant_of(out) == "out" and table.get(out) == table.get(func):
                    yield pytest.param(func, out, sample, dtype, id=f"{family}-{name}.{overload}")


def outcome(call: Callable[..., Any], arguments: dict[str, Any]) -> type[Exception] | None:
    try:
        call(**arguments)
    except Exception as error:
        return type(error)
    return None


@pytest.mark.skipif(
    cuda.unavailable("cpu") is not None, reason="the host runner needs a C++ compiler"
)
@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
@pytest.mark.parametrize(("func", "out", "sample", "dtype"), list(written()))
def test_out(func: Any, out: Any, sample: Any, dtype: torch.dtype) -> None:
    """An ``out`` of another dtype, or that is an input, is refused where ATen refuses it.

    What is accepted has the bits of the functional operator.
    """
    given = Signature(func).bind((), sample.arguments(dtype))
    with DeterministicMode(simulate="cuda"):
        result = func(**given)
    expected = dict(zip(out_names(out), result if isinstance(result, tuple) else (result,)))
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
            arguments = Signature(func).bind((), sample.arguments(dtype))
            arguments |= {each: torch.empty_like(tensor) for each, tensor in expected.items()}
            if isinstance(what, str):
                arguments[name] = arguments[what] = given[what].clone()
            else:
                arguments[name] = torch.empty_like(expected[name], dtype=what)
            with mode:
                outcomes.append(outcome(out, arguments))
            native = native or arguments
        assert outcomes[1] is outcomes[0], (name, what)
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


@pytest.mark.skipif(
    cuda.unavailable("cpu") is not None, reason="the host runner needs a C++ compiler"
)
@pytest.mark.parametrize("call", APART.values(), ids=APART)
def test_memory_that_is_read(call: Callable[[], Any]) -> None:
    """An input that shares memory with what is written is refused where ATen refuses it."""
    native = outcome(call, {})
    with DeterministicMode(simulate="cuda"):
        assert outcome(call, {}) is native
