"""The buckets of ``DistributedDataParallel``, fixed before the first step."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel


def fix_buckets(model: DistributedDataParallel) -> None:
    """Fix the buckets of gradients, so that a resumed run gives the bits of one without a stop.

    Where an element lies in its bucket decides in which order the ranks' gradients are added. DDP
    makes buckets when it is constructed and once more after the first step, in the order in which
    gradients came. The first step after a resume then has other buckets than the same step of the
    run that went on, and with three ranks or more other bits. After this call the buckets stay:
    parameters are in the reverse order of their registration, as they most often come.

    Call it on all ranks, in every run, right after the construction, before hooks are registered
    and before the first backward. Weights, gradients, buffers and generators stay as they are. With
    ``find_unused_parameters=True`` DDP never makes buckets anew, and nothing is done. With
    ``static_graph=True`` the parameters are in the order of their registration, so that reductions
    hardly overlap with backward. The bits still depend on ``bucket_cap_mb``, on the number of
    ranks, and on which parameters require gradients.

    >>> model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
    >>> detmode.distributed.fix_buckets(model)

    Raises:
        TypeError: ``model`` is no ``DistributedDataParallel``.
        RuntimeError: it is too late: there are gradients, or hooks that would see this.
    """
    if not isinstance(model, DistributedDataParallel):
        raise TypeError(
            f"fix_buckets expects a DistributedDataParallel model, got {type(model).__name__}"
        )
    if model.find_unused_parameters and not model.static_graph:
        return
    parameters = [item for item in model.module.parameters() if item.requires_grad]
    for reason, holds in (
        ("it has gradients", any(item.grad is not None for item in parameters)),
        ("its parameters have hooks", any(map(_has_hooks, parameters))),
        ("it has a communication hook", model._comm_hooks),
        ("it has mixed_precision, which is not supported", model.mixed_precision),
        (
            "it has sparse gradients, which are not supported",
            any(getattr(item, "sparse", False) for item in model.modules()),
        ),
    ):
        if holds:
            raise RuntimeError(
                f"fix_buckets: {reason}; call it right after DistributedDataParallel(...)"
            )
    reducer = model.reducer
    if model.static_graph:
        # A backward here would be taken for the program's first, whose graph is the static one.
        reducer._push_all_rebuilt_params()
    else:
        _meet_gradients(reducer, parameters)
    if not reducer._rebuild_buckets():
        raise RuntimeError("fix_buckets: the buckets are fixed already; call it once")


def _has_hooks(parameter: torch.nn.Parameter) -> bool:
    """Return whether a gradient would be seen, by an optimizer that steps in backward, say."""
    return bool(
        parameter._backward_hooks
        or parameter._post_accumulate_grad_hooks
        or hasattr(parameter, "_in_backward_optimizers")
    )


@torch.enable_grad()
def _meet_gradients(reducer: Any, parameters: list[torch.nn.Parameter]) -> None:
    """Show the reducer a gradient of zeros for each parameter, that of the last one first."""
    reducer.prepare_for_forward()
    reducer.prepare_for_backward([])
    total = torch.zeros((), device="cpu")
    for parameter in parameters:
        # Backward goes through this chain from its end.
        total = total + (parameter.reshape(-1)[:1].abs() * 0).sum().to(total)
    total.backward()
    for parameter in parameters:
        parameter.grad = None
