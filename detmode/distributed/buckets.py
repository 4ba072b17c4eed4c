"""Gradients in buckets: taken from parameters a microbatch at a time, and added over all ranks."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise

import torch
from torch import Tensor, distributed, nn

from detmode.distributed.exact_sums import ExactSum
from detmode.distributed.rank_group import RankGroup


class _Bucket:
    """Parameters of one dtype and device, whose gradients are added together."""

    def __init__(self, parameters: Sequence[nn.Parameter], total: torch.dtype) -> None:
        self.parameters = tuple(parameters)
        self._total = total
        self.clear()
        # Each parameter begins a block, so that bits do not depend on what shares its bucket.
        block = self._sum.block
        sizes = (-(-parameter.numel() // block) * block for parameter in parameters)
        self._begins = list(accumulate(sizes, initial=0))

    def clear(self) -> None:
        self._sum = ExactSum(self._total)
        self._used = [False] * len(self.parameters)

    def add(self) -> None:
        """Add the gradients that the parameters have, and take them away."""
        self._sum.add(self._take())

    def mean(self, ranks: RankGroup, count: int) -> Iterator[None]:
        """Add the gradients that the parameters have, and replace them by the mean over all ranks.

        Yields after the start of each collective, so that more can be started meanwhile. Parameters
        to which no microbatch gave a gradient get none.

        Args:
            ranks: all of them start the same collectives in the same order.
            count: of microbatches, on all ranks together.
        """
        last = self._take()
        codes = self._sum.codes(last)
        # The parameters' flags are more codes, so that they need no collective of their own.
        flags = torch.tensor(self._used, dtype=codes.dtype, device=codes.device)
        largest = torch.cat([codes.view(-1), flags])
        yield from ranks.start(largest, distributed.ReduceOp.MAX)
        codes, flags = largest[: len(codes)].view(-1, 1), largest[len(codes) :]
        totals = self._sum.totals(codes, last)
        yield from ranks.start(totals, distributed.ReduceOp.SUM)
        means = self._sum.mean(totals, codes, count, last.dtype).view(-1)
        for number, (parameter, mean) in enumerate(self._places(means)):
            # In this order, since flags on a GPU have to be waited for.
            if self._used[number] or flags[number]:
                strided = not parameter.is_contiguous()
                parameter.grad = torch.empty_like(parameter).copy_(mean) if strided else mean
        self.clear()

    def _take(self) -> Tensor:
        first = self.parameters[0]
        flat = torch.empty(self._begins[-1], dtype=first.dtype, device=first.device)
        for number, (parameter, place) in enumerate(self._places(flat)):
            gradient, parameter.grad = parameter.grad, None
            if gradient is None:
                place.zero_()
            else:
                _check_gradient(gradient, parameter.dtype)
                place.copy_(gradient.detach())
                self._used[number] = True
        return flat

    def _places(self, flat: Tensor) -> Iterator[tuple[nn.Parameter, Tensor]]:
        """Yield each parameter with its part of a tensor, and make what is between them zero."""
        for parameter, (begin, end) in zip(self.parameters, pairwise(self._begins)):
            part = flat[begin:end]
            part[parameter.numel() :].zero_()
            yield parameter, part[: parameter.numel()].view(parameter.shape)


def _check_gradient(gradient: Tensor, dtype: torch.dtype) -> None:
    """Refuse a gradient that cannot be added exactly."""
    if gradient.layout != torch.strided:
        raise TypeError(
            f"a gradient has the layout {gradient.layout}, and only dense ones are added; use "
            "sparse=False in embeddings"
        )
    if gradient.dtype != dtype:
        raise TypeError(
            f"a gradient of {gradient.dtype} belongs to a parameter of {dtype}; they must be equal"
        )


class ReplicatedGradients:
    """The gradients of parameters that every rank has whole, in buckets.

    Args:
        parameters: in the order of the module.
        sums: the dtype of the sum, for each dtype of parameters.
        ranks: that share the microbatches.
        count: of the microbatches of all ranks.
        size: of a bucket, in bytes of gradients; a larger parameter has one of its own.
        overlap: whether collectives start in the backward pass of the last microbatch.
    """

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        sums: Mapping[torch.dtype, torch.dtype],
        ranks: RankGroup,
        count: int,
        *,
        size: int,
        overlap: bool,
    ) -> None:
        self._ranks = ranks
        self._count = count
        self._buckets = _buckets(parameters, sums, size)
        self._bucket_of = {
            id(parameter): number
            for number, bucket in enumerate(self._buckets)
            for parameter in bucket.parameters
        }
        self.clear()
        if overlap:
            hook = _weak(self._is_ready)
            for parameter in parameters:
                parameter.register_post_accumulate_grad_hook(hook)

    def begin_microbatch(self, last: bool) -> None:
        """Be ready for the gradients of a microbatch, the last one of this rank or not."""
        self._last = last

    def end_microbatch(self) -> None:
        """Take the gradients that the parameters have; after the last microbatch, set the mean."""
        if not self._last:
            for bucket in self._buckets:
                bucket.add()
            return
        while self._started < len(self._buckets):
            self._start()
        while self._running:
            self._advance()
        self.clear()

    def clear(self) -> None:
        """Forget the microbatches so far."""
        for bucket in self._buckets:
            bucket.clear()
        self._last = False
        self._ready: set[int] = set()
        self._missing = [len(bucket.parameters) for bucket in self._buckets]
        self._started = 0
        self._running: list[Iterator[None]] = []

    def _is_ready(self, parameter: Tensor) -> None:
        """Start the collectives of the buckets that are full, in the order of all ranks."""
        if not self._last:
            return
        if id(parameter) in self._ready:
            raise RuntimeError(
                "a parameter got a gradient twice in one microbatch, as two backward passes give "
                "it; make the reducer with overlap=False, which allows that"
            )
        self._ready.add(id(parameter))
        self._missing[self._bucket_of[id(parameter)]] -= 1
        while self._started < len(self._buckets) and not self._missing[self._started]:
            self._start()

    def _start(self) -> None:
        bucket = self._buckets[self._started]
        self._started += 1
        self._running.insert(0, bucket.mean(self._ranks, self._count))
        self._advance()

    def _advance(self) -> None:
        """Let each bucket come to its next collective, the latest first: it has waited least."""
        self._running = [reduction for reduction in self._running if not next(reduction, True)]


def _buckets(
    parameters: Sequence[nn.Parameter], sums: Mapping[torch.dtype, torch.dtype], size: int
) -> list[_Bucket]:
    """Put the last parameters into the first buckets: their gradients are ready first."""
    buckets = []
    filling: dict[tuple[torch.dtype, torch.device], list[nn.Parameter]] = {}
    for parameter in reversed(parameters):
        inside = filling.setdefault((parameter.dtype, parameter.device), [])
        if inside and sum(tensor.nbytes for tensor in (*inside, parameter)) > size:
            buckets.append(_Bucket(inside, sums[parameter.dtype]))
            inside.clear()
        inside.append(parameter)
    return buckets + [_Bucket(inside, sums[dtype]) for (dtype, _), inside in filling.items()]


def _weak(method: Callable[[Tensor], None]) -> Callable[[Tensor], None]:
    """Return a hook that a parameter may keep: it does not keep the method's object."""
    reference = weakref.WeakMethod(method)

    def hook(parameter: Tensor) -> None:
        alive = reference()
        if alive is not None:
            alive(parameter)

    return hook
