"""Gradients of modules that FSDP2 shards: added as integers by the rank that keeps the shard."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, distributed, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from detmode.distributed.exact_sums import ExactSum
from detmode.distributed.rank_group import RankGroup


def group_of_shards(module: nn.Module) -> distributed.ProcessGroup | None:
    """Return the ranks over which FSDP2 shards a module, or ``None`` if no parameter is sharded.

    Raises:
        TypeError: it is sharded in another way than ``fully_shard`` does on a mesh of one
            dimension, or this PyTorch has no hook for the reduce-scatter.
    """
    meshes = []
    named = [item for item in module.named_parameters() if item[1].requires_grad]
    for name, parameter in named:
        if not isinstance(parameter, DTensor):
            continue
        meshes.append(parameter.device_mesh)
        if parameter.device_mesh.ndim != 1 or not parameter.placements[0].is_shard():
            raise TypeError(
                f"the parameter {name} is laid out as {parameter.placements} on a mesh of "
                f"{parameter.device_mesh.ndim} dimensions; of sharded parameters only those of "
                "fully_shard on a mesh of one dimension are reduced exactly (no hybrid sharding, "
                "no tensor or pipeline parallelism)"
            )
    if not meshes:
        return None
    parts = [part for part in module.modules() if isinstance(part, FSDPModule)]
    if not parts or len(meshes) < len(named) or any(item != meshes[0] for item in meshes):
        raise TypeError(
            "module has DTensors that fully_shard does not manage, parameters that are not sharded "
            "beside sharded ones, or more than one mesh; call fully_shard on the whole module"
        )
    if not hasattr(FSDPModule, "set_custom_reduce_scatter"):
        raise TypeError(
            f"PyTorch {torch.__version__} has no FSDPModule.set_custom_reduce_scatter, which sums "
            "of sharded gradients need; use PyTorch 2.9 or newer, or DistributedDataParallel"
        )
    return meshes[0].get_group()


class ShardedGradients:
    """The gradients of parameters of which each rank has a shard.

    Args:
        module: one that :func:`group_of_shards` accepts.
        ranks: those of the mesh.
        count: of the microbatches of all ranks, each of which computes as many.
    """

    def __init__(self, module: nn.Module, ranks: RankGroup, count: int) -> None:
        self._parameters = [
            parameter for parameter in module.parameters() if parameter.requires_grad
        ]
        self._alone = ranks.size == 1
        self._count = count
        self._scatters: list[_ExactReduceScatter] = []
        self._names: list[int] | None
        for part in module.modules():
            if isinstance(part, FSDPModule):
                scatter = _ExactReduceScatter(count)
                part.set_custom_reduce_scatter(cast(Any, scatter))  # older PyTorch lacks its base
                # What is scattered is the mean already.
                part.set_gradient_divide_factor(1.0)
                part.set_force_sum_reduction_for_comms(True)
                self._scatters.append(scatter)
        self.clear()

    def begin_microbatch(self, last: bool) -> None:
        """Be ready for the gradients of a microbatch, the last one or not."""
        self._last = last
        for scatter in self._scatters:
            scatter.last = last

    def end_microbatch(self) -> None:
        """Take the gradients that the parameters have; after the last microbatch, leave the mean.

        Raises:
            RuntimeError: other parameters have gradients than in the first microbatch.
        """
        with_gradients = [parameter for parameter in self._parameters if parameter.grad is not None]
        names = [id(parameter) for parameter in with_gradients]
        first = names if self._names is None else self._names
        if names != first or not names:
            raise RuntimeError(
                "with FSDP2 the same parameters must get gradients in every microbatch, and be "
                "reduced in each: use all of them, and leave set_requires_gradient_sync at True"
            )
        self._names = names
        for parameter in with_gradients:
            if self._alone:  # FSDP2 adds nothing then
                self._add(parameter)
            if not self._last:
                parameter.grad = None

    def clear(self) -> None:
        """Forget the microbatches so far."""
        self._names = None
        self._sums: dict[nn.Parameter, ExactSum] = {}
        self.begin_microbatch(last=False)
        for scatter in self._scatters:
            scatter.clear()

    def _add(self, parameter: nn.Parameter) -> None:
        assert parameter.grad is not None
        gradient = local_part(parameter.grad)
        total = self._sums.setdefault(parameter, ExactSum(torch.int64))
        total.add(gradient.reshape(-1))
        if self._last:
            gradient.copy_(_mean(total, self._count, gradient.dtype).view(gradient.shape))


class _ExactReduceScatter:
    """The reduce-scatter of an ``FSDPModule``, as its ``set_custom_reduce_scatter`` takes it.

    Ranks exchange gradients as they are, and each adds those of its shard. The result is zeros
    until the last microbatch, and then the mean of all.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self.last = False
        self.clear()

    def clear(self) -> None:
        self._sum = ExactSum(torch.int64)

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: distributed.ProcessGroup,
        op: Any,
        async_op: bool = False,
    ) -> None:
        """Add the gradients of a microbatch of each rank."""
        received = torch.empty_like(input_tensor)
        distributed.all_to_all_single(received, input_tensor, group=group)
        for gradient in received.view(group.size(), -1):
            self._sum.add(gradient)
        if self.last:
            output_tensor.copy_(_mean(self._sum, self._count, output_tensor.dtype))
        else:
            output_tensor.zero_()


def local_part(tensor: Tensor) -> Tensor:
    """Return what this rank has of a tensor; it shares the memory."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _mean(total: ExactSum, count: int, dtype: torch.dtype) -> Tensor:
    codes = total.codes()
    return total.mean(total.totals(codes), codes, count, dtype).view(-1)
