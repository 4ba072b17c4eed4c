"""Kinds of fault between two runs of a training, and the call at which each shows first."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from tests.shared.training import Fault, Training, bits


@dataclass(frozen=True)
class Kind:
    """A kind of fault.

    Args:
        name: as shown.
        training: the run that has it.
        divergence: the kind that is to be named.
        overload: the operator that is to be named.
        occurrence: which of the operator's calls; ``None`` where the kind is enough.
    """

    name: str
    training: Training
    divergence: str
    overload: str
    occurrence: int | None = None


def swap(args: tuple[Any, ...], result: torch.Tensor) -> None:
    flat = result.view(-1)
    flat[[1, 8]] = flat[[8, 1]]


def negate_zero(args: tuple[Any, ...], result: torch.Tensor) -> None:
    flat = bits(result).view(-1)
    where = int((flat == 0).nonzero()[0])
    flat[where] = -(2**31)


def one_more(args: tuple[Any, ...], result: torch.Tensor) -> None:
    result.view(-1)[3] += 1e-6


def other_payload(args: tuple[Any, ...], result: torch.Tensor) -> None:
    bits(result)[1] ^= 1


def other_update(args: tuple[Any, ...], result: None) -> None:
    args[0][2].view(-1)[0] *= 1.5


def faulty(name: str, overload: str, at: int, change: Callable[..., object]) -> Kind:
    """A fault in the outputs of a call, which is the one that is to be named."""
    return Kind(name, Training(fault=Fault(overload, at, change)), "outputs", overload, at)


KINDS = (
    faulty("one_element", "aten::addmm.default", 3, one_more),
    faulty("a_permutation", "aten::relu.default", 1, swap),
    faulty("a_sign_flip", "aten::mm.default", 4, lambda args, result: result.neg_()),
    faulty("negative_zero", "aten::relu.default", 2, negate_zero),
    faulty("nan_payload", "aten::log.default", 2, other_payload),
    faulty("a_foreach_update", "aten::_foreach_addcdiv_.ScalarList", 2, other_update),
    Kind("data_order", Training(order=5), "generator", "aten::randperm.generator", 0),
    Kind("seed", Training(seed=1), "seed", "aten::uniform_.default", 0),
    Kind("a_step_more", Training(again=1), "calls", "aten::slice.Tensor"),
    Kind("an_operator_less", Training(unclipped=2), "calls", "aten::clamp_.default", 8),
    Kind("dropout_mask", Training(reseeded=2), "generator", "aten::bernoulli_.float", 2),
    Kind("threads", Training(threads=3), "outputs", "aten::sum.default", 0),
)
