"""Training whose bits do not depend on the number of ranks: one gradient, any world size."""

from __future__ import annotations

import operator
import warnings
import weakref
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import nullcontext

import torch
from torch import Tensor, distributed, nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.nn.parallel import DataParallel, DistributedDataParallel

from detmode.distributed.averaged_buffers import averaged_buffers
from detmode.distributed.buckets import ReplicatedGradients
from detmode.distributed.exact_sums import MOST_ADDENDS, ExactSum, exact_norm
from detmode.distributed.rank_group import RankGroup, digest
from detmode.distributed.sharded import ShardedGradients, group_of_shards, local_part
from detmode.environment.seeding import rng_state, seed_everything, set_rng_state


class MicrobatchReducer:
    """Gradients that have the same bits on any number of ranks.

    The global batch of a step is cut into a fixed number of microbatches. Each is computed alone,
    by one of the ranks, with generators that are seeded for it. The gradients are added as
    integers, so that neither the order of the microbatches nor the ranks that compute them matter,
    and their mean is rounded once. After the loop it is in ``grad`` of each parameter, on every
    rank:

    >>> model = torch.nn.Linear(4, 2)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> reducer = detmode.distributed.MicrobatchReducer(model, microbatches=8)
    >>> for step in range(2):
    ...     for index in reducer.microbatches(step):
    ...         inputs, classes = torch.rand(3, 4), torch.randint(2, (3,))
    ...         torch.nn.functional.cross_entropy(model(inputs), classes).backward()
    ...     norm = reducer.clip_grad_norm_(1.0)
    ...     optimizer.step()
    ...     optimizer.zero_grad()

    The module may be in :class:`~torch.nn.parallel.DistributedDataParallel`, whose own reduction is
    off in the loop, or sharded by ``fully_shard`` (FSDP2) on a mesh of one dimension; ``grad``
    holds a rank's shard then, of the same bits. Parameters and buffers of any other module are
    broadcast from the first rank, as DDP does it. Buffers that forward passes change, such as the
    running statistics of ``nn.BatchNorm2d``, begin each microbatch with the values they had before
    the step; after it they are the mean of what the microbatches made of them.

    The reducer keeps nothing from step to step. Checkpoints of the model and of the optimizer are
    all that a run needs to go on, also on another number of ranks.

    Args:
        module: the model, with parameters of float32, bfloat16 or float16.
        microbatches: of a global batch: at least as many as there are ranks, and at most 32768.
            The number of ranks need not divide it, except with FSDP2.
        seed: the generators of every microbatch are seeded with what follows from it.
        group: the ranks. Default: all of them, or this process alone if there is no process group;
            with FSDP2 those of the mesh.
        sum_dtype: in which gradients of bfloat16 and float16 are added. ``torch.int32`` sends half
            the bytes, is less exact, and takes at most 128 microbatches. Gradients of float32 are
            added in ``torch.int64`` in any case. With FSDP2 it has no effect: gradients are sent
            as they are.
        overlap: start collectives as soon as gradients are ready, in the backward pass of a rank's
            last microbatch. ``False`` allows more than one backward pass a microbatch.
        bucket_cap_mb: MiB of gradients that share a collective. The bits do not depend on it.

    Raises:
        TypeError: an argument has the wrong type; or the module has parts whose results depend on
            the number of ranks, or parameters whose gradients have no exact sum.
        ValueError: there are fewer microbatches than ranks, or too many.
        RuntimeError: the ranks disagree on arguments, or on the shapes of parameters.
    """

    def __init__(
        self,
        module: nn.Module,
        microbatches: int,
        *,
        seed: int = 0,
        group: distributed.ProcessGroup | None = None,
        sum_dtype: torch.dtype = torch.int64,
        overlap: bool = True,
        bucket_cap_mb: float = 25,
    ) -> None:
        trained = _trained(module)
        _refuse(module, trained)
        self._module = module
        self._count = operator.index(microbatches)
        self._seed = operator.index(seed)
        self._identity = _identity(trained)
        of_shards = group_of_shards(module)
        if of_shards is not None and group is not None:
            raise TypeError("group must not be given with fully_shard, whose mesh has the ranks")
        self._sharded = of_shards is not None
        self._ranks = RankGroup(of_shards if self._sharded else group, trained[0].device)
        sums = _dtypes_of_sums(sum_dtype)
        most = min(MOST_ADDENDS[sums[parameter.dtype]] for parameter in trained)
        if not self._ranks.size <= self._count <= most:
            raise ValueError(
                f"microbatches must be at least {self._ranks.size}, the number of ranks, and at "
                f"most {most}, which can be added without overflow, but is {microbatches}"
            )
        if self._sharded and self._count % self._ranks.size:
            raise ValueError(
                "with fully_shard every rank computes as many microbatches, so that their number "
                f"must be divisible by that of the ranks, {self._ranks.size}, but is {microbatches}"
            )
        tensors = [*module.parameters(), *module.buffers()]
        forms = [(tensor.shape, tensor.dtype) for tensor in tensors]
        arguments = digest((self._count, self._seed, sum_dtype, bucket_cap_mb, forms))
        self._ranks.agree("the reducer's arguments, or on the shapes in its module", arguments)
        if not self._sharded and not isinstance(module, DistributedDataParallel):
            self._ranks.broadcast(tensors)
        self._gradients: ShardedGradients | ReplicatedGradients
        if self._sharded:
            self._gradients = ShardedGradients(module, self._ranks, self._count)
        else:
            size = int(bucket_cap_mb * (1 << 20))
            self._gradients = ReplicatedGradients(
                trained, sums, self._ranks, self._count, size=size, overlap=overlap
            )
        self._begun: weakref.ref[Generator[int, None, None]] | None = None

    @property
    def local_indices(self) -> range:
        """The indices, in a global batch, of the microbatches that this rank computes."""
        rank, size = self._ranks.rank, self._ranks.size
        return range(rank * self._count // size, (rank + 1) * self._count // size)

    def microbatches(self, step: int) -> Iterator[int]:
        """Iterate over the microbatches that this rank computes, and add their gradients.

        Before each of them Python's, NumPy's and PyTorch's global generators are seeded from
        the reducer's seed, the step and the microbatch; afterwards they get the states back that
        they had before. Run the loop to its end: the gradients are there when it ends. A loop that
        is left, by ``break`` or an error, leaves no gradients and the buffers with which the step
        began, so that the step can be made again; so does one that is still open when the next
        begins.

        Args:
            step: the number of the step in the whole training. It is the same on all ranks, and
                goes on where it was when a run is resumed.

        Yields:
            The index of a microbatch in the global batch. Compute its mean loss and call
            ``backward()`` before the next one.

        Raises:
            RuntimeError: parameters have gradients already, or are not those the reducer was made
                for; the ranks disagree on the step; or microbatches changed an integer buffer
                differently.
            TypeError: a gradient is sparse, or a buffer that changed has no exact mean.
        """
        unfinished = None if self._begun is None else self._begun()
        if unfinished is not None:
            # Something holds it, such as a progress bar or a traceback; it would end in this step.
            unfinished.close()
        trained = _trained(self._module)
        if _identity(trained) != self._identity:
            raise RuntimeError(
                "other parameters require gradients than when the reducer was made, or they have "
                "another dtype or device; make a new one"
            )
        if any(parameter.grad is not None for parameter in trained):
            raise RuntimeError(
                "parameters have gradients before the first microbatch; call "
                "optimizer.zero_grad(), which sets them to None, before"
            )
        loop = self._loop(operator.index(step))
        self._begun = weakref.ref(loop)
        return loop

    def _loop(self, step: int) -> Generator[int, None, None]:
        module, indices = self._module, self.local_indices
        generators = rng_state()
        no_sync = module.no_sync() if isinstance(module, DistributedDataParallel) else nullcontext()
        try:
            with averaged_buffers(module, self._ranks, self.mean) as restore_buffers:
                with no_sync:
                    for index in indices:
                        seed_everything(digest((self._seed, step, index)) % (1 << 32))
                        self._gradients.begin_microbatch(last=index == indices[-1])
                        yield index
                        with torch.no_grad():
                            self._gradients.end_microbatch()
                            restore_buffers()
                self._ranks.agree("the step", step)
        except BaseException as error:
            if isinstance(error, GeneratorExit):
                warnings.warn(
                    f"the loop was left at microbatch {index} of {self._count}: the parameters "
                    "have no gradients of the global batch",
                    stacklevel=2,
                )
            for parameter in _trained(module):
                parameter.grad = None
            raise
        finally:
            self._gradients.clear()
            set_rng_state(generators)

    def mean(self, values: Sequence[Tensor | float]) -> Tensor:
        """Return the mean of values of all microbatches, such as losses, the same on all ranks.

        Args:
            values: one of each microbatch of this rank: numbers or tensors, which have one shape.
                They are rounded to float32; a list of losses may hold them as they come from the
                model, since no graph is kept.

        Returns:
            A tensor of their shape, of float64, which does not depend on the number of ranks.

        Raises:
            ValueError: there are more or fewer values than microbatches of this rank.
        """
        return self._total(values, self._count)

    def sum(self, values: Sequence[Tensor | float]) -> Tensor:
        """Return the sum over all microbatches, of counts for example, as :meth:`mean` does."""
        return self._total(values, 1)

    def clip_grad_norm_(self, max_norm: float, *, error_if_nonfinite: bool = False) -> Tensor:
        """Clip the norm of all gradients together, as :func:`torch.nn.utils.clip_grad_norm_` does.

        The squares of all elements are added exactly.

        Args:
            max_norm: of the 2-norm.
            error_if_nonfinite: raise if the norm is infinite or NaN.

        Returns:
            The norm before clipping: float64, a scalar, the same on all ranks.

        Raises:
            RuntimeError: the norm is not finite, and ``error_if_nonfinite``.
        """
        grads = (parameter.grad for parameter in _trained(self._module))
        gradients = [local_part(grad) for grad in grads if grad is not None]
        norm = exact_norm(gradients, self._ranks.device, self._ranks if self._sharded else None)
        if error_if_nonfinite and not norm.isfinite():
            raise RuntimeError(
                f"the norm of the gradients is {norm.item()}, so it cannot be clipped; scale the "
                "loss down, or call clip_grad_norm_ with error_if_nonfinite=False"
            )
        factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)
        for gradient in gradients:
            gradient.mul_(factor)
        return norm

    def _total(self, values: Sequence[Tensor | float], count: int) -> Tensor:
        if len(values) != len(self.local_indices):
            raise ValueError(
                f"got {len(values)} values, but this rank computes {len(self.local_indices)} "
                "microbatches; give one for each"
            )
        total = ExactSum(torch.int64)
        for value in values:
            tensor = torch.as_tensor(value, device=self._ranks.device).detach().to(torch.float32)
            total.add(tensor.reshape(-1))
        codes = self._ranks.max(total.codes())
        sums = self._ranks.sum(total.totals(codes))
        return total.mean(sums, codes, count, torch.float64).view(tensor.shape)


def _trained(module: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in module.parameters() if parameter.requires_grad]


def _identity(parameters: Iterable[nn.Parameter]) -> list[tuple[object, ...]]:
    return [(id(parameter), parameter.dtype, parameter.device) for parameter in parameters]


def _dtypes_of_sums(sum_dtype: torch.dtype) -> dict[torch.dtype, torch.dtype]:
    """Return the dtype of the sums for each dtype of gradients."""
    if sum_dtype not in MOST_ADDENDS:
        raise TypeError(f"sum_dtype must be torch.int64 or torch.int32, not {sum_dtype!r}")
    return {torch.float32: torch.int64, torch.bfloat16: sum_dtype, torch.float16: sum_dtype}


def _refuse(module: nn.Module, trained: Sequence[nn.Parameter]) -> None:
    """Raise for modules whose gradients cannot be the same on every number of ranks."""
    if not trained:
        raise ValueError("module has no parameter that requires a gradient")
    for name, part in module.named_modules():
        if isinstance(part, nn.SyncBatchNorm):
            raise TypeError(
                f"{name} is a SyncBatchNorm, which normalizes by what all ranks compute at a time, "
                "so that its output depends on their number; use BatchNorm, which normalizes each "
                "microbatch alone and whose running statistics the reducer averages, or GroupNorm"
            )
        if isinstance(part, (DataParallel, FullyShardedDataParallel)):
            raise TypeError(
                f"{name or 'module'} is a {type(part).__name__}, which adds gradients itself; give "
                "the reducer the plain module, or one in DistributedDataParallel"
            )
    for name, parameter in module.named_parameters():
        if parameter.requires_grad and parameter.dtype not in _dtypes_of_sums(torch.int64):
            raise TypeError(
                f"the parameter {name} is of {parameter.dtype}, but gradients are added exactly in "
                "float32, bfloat16 and float16 alone"
            )
