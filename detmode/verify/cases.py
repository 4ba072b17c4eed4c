"""Every sample that matches a substitute, and its results: substituted, by ATen, and exact."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from detmode.mode.deterministic_mode import DeterministicMode
from detmode.process.arguments import signature_of
from detmode.process.torch_settings import deterministic_flag
from detmode.rules import default_rules, families
from detmode.table.call import Call
from detmode.table.outcome import Guarantee
from detmode.table.rule import Substitute
from detmode.table.rule_table import Row, resolve
from detmode.table.samples import Maker, Sample, Samples


class ClaimError(AssertionError):
    """A claim of the table does not hold; the message names the case and where to look."""


@dataclass(frozen=True)
class Case:
    """A sample in one dtype that matches a row with a substitute.

    Args:
        family: the family of the row.
        sample: the inputs.
        dtype: the dtype of the inputs.
        guarantee: the guarantee of the row.
    """

    family: str
    sample: Sample
    dtype: torch.dtype
    guarantee: Guarantee | None

    def __str__(self) -> str:
        """``upsample-float16-upsample_linear1d_backward-odd_sizes``."""
        op = self.sample.op.partition("::")[2]
        return f"{self.family}-{name_of(self.dtype)}-{op}-{self.sample.name}"


def samples_of(family: str) -> Samples:
    """The family's ``SAMPLES``.

    Raises:
        ImportError: the family has none.
    """
    samples: Samples = importlib.import_module(f"detmode.rules.{family}.samples").SAMPLES
    return samples


def matching_row(sample: Sample, dtype: torch.dtype) -> Row | None:
    """Return the row that ``sample`` matches; ``None`` if there is none."""
    func = resolve(sample.op)
    if func is None:
        return None
    call = Call(signature_of(func), (), sample.arguments(dtype), sample.device)
    return default_rules().row_of(call)


def prepared(sample: Sample, prepare: Callable[[dict[str, Any]], None]) -> Sample:
    """Return a sample whose arguments ``prepare`` changes before the call."""

    def make(maker: Maker) -> dict[str, Any]:
        arguments = sample.make(maker)
        prepare(arguments)
        return arguments

    return replace(sample, make=make)


@cache
def cases(family: str | None = None) -> tuple[Case, ...]:
    """Return every sample and dtype, of one family or of all, that matches a substitute on CUDA."""
    return tuple(
        Case(row.family, sample, dtype, row.rule.guarantee)
        for name in families()
        if family in (None, name)
        for sample in samples_of(name).cases
        if sample.device == "cuda"
        for dtype in sample.dtypes
        if (row := matching_row(sample, dtype)) and isinstance(row.rule.action, Substitute)
    )


def run_substituted(
    sample: Sample,
    dtype: torch.dtype,
    device: str = "host",
    *,
    schedule_seed: int | None = None,
) -> tuple[torch.Tensor, ...]:
    """Run the sample under the mode, substituted, and return the resulting tensors.

    Args:
        sample: the inputs, made anew for this run.
        dtype: the dtype they are made in.
        device: ``"cuda"`` or ``"host"``.
        schedule_seed: the host runner's schedule.

    Raises:
        ClaimError: the mode ran the ATen kernel.
    """
    arguments = sample.arguments(dtype, "cuda" if device == "cuda" else "cpu")
    on_host = device != "cuda"
    mode = DeterministicMode(
        simulate="cuda" if on_host else None, schedule_seed=schedule_seed if on_host else None
    )
    with mode:
        result = call(sample, arguments)
    if not any(record.action == "substitute" for record in mode.records):
        raise ClaimError(f"{sample.op} ({sample.name}, {name_of(dtype)}) was not substituted")
    return tensors_of(result)


def run_aten(
    sample: Sample, dtype: torch.dtype, device: str = "host"
) -> tuple[torch.Tensor, ...] | None:
    """Return ATen's result in the same dtype; ``None`` if ATen has no kernel for it."""
    arguments = sample.arguments(dtype, "cuda" if device == "cuda" else "cpu")
    tensors = tensors_of(tuple(arguments.values()))
    if device == "cuda" and not all(stored(tensor).numel() for tensor in tensors):
        # Some of ATen's CUDA kernels read, or divide by, what is not there: the process would end.
        return None
    try:
        with deterministic_flag(False):
            return tensors_of(call(sample, arguments))
    except (RuntimeError, NotImplementedError) as error:
        # No kernel for the dtype, none for the device, or one that has too little shared memory.
        texts = ("not implemented for", "Could not run", "can not be handled")
        if any(text in str(error) for text in texts):
            return None
        raise


def run_each_aten(
    sample: Sample, dtype: torch.dtype, device: str = "host", *, on_cpu: bool = True
) -> tuple[tuple[torch.Tensor, ...], ...]:
    """Return the results of ATen's kernels, on the CPU; the device's own comes first.

    On a GPU the kernel of the CPU is asked as well, and for 16-bit dtypes the GPU's own in float32:
    where terms are NaN, infinite or -0.0 the three may give different results. Some CUDA kernels
    round weights and positions to 16 bits, and a weight of zero makes NaN of an infinity.

    Args:
        sample: the inputs.
        dtype: the dtype they are made in.
        device: ``"cuda"`` or ``"host"``.
        on_cpu: whether a GPU's results are completed by those of the CPU.

    Raises:
        RuntimeError, ValueError: the device's kernel rejects the inputs.
    """
    results = [run_aten(sample, dtype, device)]
    if device == "cuda":
        others = [(sample, "host")] if on_cpu else []
        if dtype.itemsize == 2:
            others.append((in_float32(sample), device))
        for alternative, where in others:
            with contextlib.suppress(RuntimeError, ValueError):
                results.append(run_aten(alternative, dtype, where))
    return tuple(
        tuple(one.detach().cpu() for one in tensors) for tensors in results if tensors is not None
    )


def in_float32(sample: Sample) -> Sample:
    """Return the sample with its floating-point tensors in float32, of the values they had."""

    def single(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.float() if tensor.is_floating_point() else tensor

    def prepare(arguments: dict[str, Any]) -> None:
        arguments.update(tree_map_only(torch.Tensor, single, arguments))

    return prepared(sample, prepare)


def run_truth(family: str, sample: Sample, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    """Return the result in float64 or complex128, of the family's reference or ATen on the CPU."""
    wide = tree_map_only(torch.Tensor, widened, sample.arguments(dtype))
    reference = _reference(family, sample)
    if reference is not None:
        func = resolve(sample.op)
        assert func is not None
        return tensors_of(reference(**signature_of(func).bind((), wide)))
    with deterministic_flag(False):
        return tensors_of(call(sample, wide))


def run_assigned(family: str, sample: Sample, dtype: torch.dtype) -> torch.Tensor | None:
    """Return an assignment's result when the last source of each destination stays, bit for bit.

    ``None`` for an operator that the family's ``assignments`` do not name, or that adds here. ATen
    is not asked: where destinations repeat, any of the sources may stay.
    """
    places = samples_of(family).assignments.get(sample.op)
    func = resolve(sample.op)
    if places is None or func is None:
        return None
    assigned = places(**signature_of(func).bind((), sample.arguments(dtype)))
    return None if assigned is None else last_stays(*assigned)


def last_stays(
    before: torch.Tensor, destinations: torch.Tensor, source: torch.Tensor
) -> torch.Tensor:
    """Return ``before`` with ``source`` written to it one element after the other.

    Args:
        before: of any shape and dtype, on the CPU.
        destinations: row-major positions in ``before``, of the shape of ``source``.
        source: the elements that are written, in row-major order.
    """
    places = enumerate(destinations.flatten().tolist())
    last = {destination: place for place, destination in places}
    result = before.clone(memory_format=torch.contiguous_format)
    to, winners = (
        torch.tensor(list(positions), dtype=torch.int64, device="cpu")
        for positions in (last, last.values())
    )
    result.view(-1)[to] = source.reshape(-1)[winners]
    return result


def has_reference(case: Case) -> bool:
    """Return whether the family has its own reference for the case's operator."""
    return _reference(case.family, case.sample) is not None


def _reference(family: str, sample: Sample) -> Callable[..., Any] | None:
    return samples_of(family).references.get(sample.op)


def call(sample: Sample, arguments: Mapping[str, Any]) -> Any:
    """Call the sample's operator with arguments by schema name."""
    func = resolve(sample.op)
    if func is None:
        raise LookupError(f"this PyTorch has no operator {sample.op}")
    return func(**arguments)


def tensors_of(result: Any) -> tuple[torch.Tensor, ...]:
    """Return the tensors of an operator's result."""
    results = result if isinstance(result, (tuple, list)) else (result,)
    return tuple(result for result in results if isinstance(result, torch.Tensor))


def stored(tensor: torch.Tensor) -> torch.Tensor:
    """Return the elements that a tensor stores: of a sparse one its values, else itself."""
    if tensor.layout is torch.strided:
        return tensor
    values = tensor._values() if tensor.layout is torch.sparse_coo else tensor.values()
    return values.detach()


def widened(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor in float64 or complex128; one of integers as it is."""
    if tensor.is_complex():
        return tensor.to(torch.complex128)
    return tensor.double() if tensor.is_floating_point() else tensor


def name_of(dtype: torch.dtype) -> str:
    """``"float16"``."""
    return str(dtype).removeprefix("torch.")
