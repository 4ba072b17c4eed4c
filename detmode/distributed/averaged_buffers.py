"""Buffers that forward passes change, such as running statistics, averaged over microbatches."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from detmode.distributed.rank_group import RankGroup

_AVERAGED = (torch.float32, torch.bfloat16, torch.float16)
_WHOLE = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)


class AveragedBuffers:
    """The buffers of a module, which begin each microbatch of a step with the same values.

    Args:
        module: whose buffers they are.
        ranks: that share a step's microbatches.
        mean: of tensors, one of each microbatch of this rank, over all microbatches; a collective.
    """

    def __init__(
        self, module: nn.Module, ranks: RankGroup, mean: Callable[[Sequence[Tensor]], Tensor]
    ) -> None:
        self._module = module
        self._ranks = ranks
        self._mean = mean

    def begin(self) -> None:
        """Remember the values with which a step begins."""
        self._named = dict(self._module.named_buffers())
        self._old = {name: buffer.clone() for name, buffer in self._named.items()}
        self._new: dict[str, list[Tensor]] = {name: [] for name in self._named}
        self._changed = dict.fromkeys(self._named, False)

    def restore(self) -> None:
        """Give the buffers the values with which the step began."""
        with torch.no_grad():
            for name, value in self._old.items():
                self._named[name].copy_(value)

    def end_microbatch(self) -> None:
        """Keep what the microbatch made of the buffers, and restore what they were."""
        changes = [buffer.ne(self._old[name]).any() for name, buffer in self._named.items()]
        # Asked once, since a GPU has to be waited for.
        changed = torch.stack(changes).tolist() if changes else []
        for (name, buffer), is_changed in zip(self._named.items(), changed):
            self._new[name].append(buffer.clone() if is_changed else self._old[name])
            if is_changed:
                self._changed[name] = True
                buffer.copy_(self._old[name])

    def end(self) -> None:
        """Give the buffers that some microbatch changed their values after the step.

        Raises:
            TypeError: one that changed is of float64 or complex, which have no exact mean here.
            RuntimeError: microbatches changed one of integers or booleans to different values.
        """
        if not self._named:
            return
        flags = torch.tensor(list(self._changed.values()), device=self._ranks.device)
        flags = self._ranks.max(flags.to(torch.uint8))
        changed = [name for name, is_changed in zip(self._named, flags.tolist()) if is_changed]
        whole = [name for name in changed if self._named[name].dtype in _WHOLE]
        averaged = [name for name in changed if self._named[name].dtype in _AVERAGED]
        for name in changed:
            if name not in whole and name not in averaged:
                raise TypeError(
                    f"a microbatch changed the buffer {name}, and buffers of "
                    f"{self._named[name].dtype} have no exact mean; make it float32"
                )
        if averaged:
            self._give(averaged, self._mean(self._of_each_microbatch(averaged, torch.float32)))
        if whole:
            rows = torch.stack(self._of_each_microbatch(whole, torch.int64))
            extremes = self._ranks.max(torch.stack([rows.amax(0), -rows.amin(0)]))
            self._give(whole, extremes[0])
            if not torch.equal(extremes[0], -extremes[1]):
                raise RuntimeError(
                    f"microbatches gave integer buffers different values, one of {whole}; there is "
                    "no mean of them, so let each microbatch change them in the same way"
                )

    def _of_each_microbatch(self, names: Sequence[str], dtype: torch.dtype) -> list[Tensor]:
        """Return the buffers of each microbatch as one vector."""
        by_microbatch = zip(*(self._new[name] for name in names))
        return [
            torch.cat([value.reshape(-1).to(dtype) for value in values]) for values in by_microbatch
        ]

    def _give(self, names: Sequence[str], values: Tensor) -> None:
        buffers = [self._named[name] for name in names]
        for buffer, value in zip(buffers, values.split([buffer.numel() for buffer in buffers])):
            buffer.copy_(value.view(buffer.shape))
