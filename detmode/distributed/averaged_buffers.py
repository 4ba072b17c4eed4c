"""Buffers that forward passes change, such as running statistics, averaged over microbatches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from detmode.distributed.rank_group import RankGroup

_AVERAGED = (torch.float32, torch.bfloat16, torch.float16)
_WHOLE = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)


@contextmanager
def averaged_buffers(
    module: nn.Module, ranks: RankGroup, mean: Callable[[Sequence[Tensor]], Tensor]
) -> Iterator[Callable[[], None]]:
    """Let a module's buffers begin each microbatch of a step with the same values.

    The block is the step; it calls what it gets after each microbatch. At its end the buffers have
    their values after the step, or, if it raises, those before.

    Args:
        module: whose buffers they are.
        ranks: that share the step's microbatches.
        mean: of tensors, one of each microbatch of this rank, over all microbatches; a collective.

    Raises:
        TypeError: a buffer that changed is of float64 or complex, which have no exact mean here.
        RuntimeError: microbatches changed one of integers or booleans to different values.
    """
    buffers = dict(module.named_buffers())
    old = {name: buffer.clone() for name, buffer in buffers.items()}
    by_microbatch: list[dict[str, Tensor]] = []
    changed = dict.fromkeys(buffers, False)

    def end_microbatch() -> None:
        changes = [buffer.ne(old[name]).any() for name, buffer in buffers.items()]
        # Asked once, since a GPU has to be waited for.
        flags = torch.stack(changes).tolist() if changes else []
        values = dict(old)
        for (name, buffer), is_changed in zip(buffers.items(), flags):
            if is_changed:
                changed[name] = True
                values[name] = buffer.clone()
                buffer.copy_(old[name])
        by_microbatch.append(values)

    try:
        yield end_microbatch
        with torch.no_grad():
            if buffers:
                _average(buffers, by_microbatch, changed, ranks, mean)
    except BaseException:
        with torch.no_grad():
            for name, value in old.items():
                buffers[name].copy_(value)
        raise


def _average(
    buffers: dict[str, Tensor],
    by_microbatch: Sequence[dict[str, Tensor]],
    changed: dict[str, bool],
    ranks: RankGroup,
    mean: Callable[[Sequence[Tensor]], Tensor],
) -> None:
    """Give the buffers that a microbatch of some rank changed their values after the step."""

    def vectors(names: Sequence[str], dtype: torch.dtype) -> list[Tensor]:
        return [
            torch.cat([values[name].reshape(-1).to(dtype) for name in names])
            for values in by_microbatch
        ]

    def give(names: Sequence[str], vector: Tensor) -> None:
        for name, part in zip(names, vector.split([buffers[name].numel() for name in names])):
            buffers[name].copy_(part.view(buffers[name].shape))

    flags = ranks.max(torch.tensor(list(changed.values()), device=ranks.device).to(torch.uint8))
    names = [name for name, is_changed in zip(buffers, flags.tolist()) if is_changed]
    whole = [name for name in names if buffers[name].dtype in _WHOLE]
    averaged = [name for name in names if buffers[name].dtype in _AVERAGED]
    for name in names:
        if name not in whole and name not in averaged:
            raise TypeError(
                f"a microbatch changed the buffer {name}, and buffers of {buffers[name].dtype} "
                "have no exact mean; make it float32"
            )
    if averaged:
        give(averaged, mean(vectors(averaged, torch.float32)))
    if whole:
        rows = torch.stack(vectors(whole, torch.int64))
        extremes = ranks.max(torch.stack([rows.amax(0), -rows.amin(0)]))
        give(whole, extremes[0])
        if not torch.equal(extremes[0], -extremes[1]):
            raise RuntimeError(
                f"microbatches gave integer buffers different values, one of {whole}; there is "
                "no mean of them, so let each microbatch change them in the same way"
            )
