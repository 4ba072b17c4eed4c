"""The buckets of ``DistributedDataParallel``, fixed before the first step."""

from __future__ import annotations

from collections.abc import Callable

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
    parameters = [each for each in model.module.parameters() if each.requires_grad]
    for found, what in (
        (any(each.grad is not None for each in parameters), "gradients"),
        (any(each._backward_hooks for each in parameters), "hooks of its parameters"),
        (any(each._post_accumulate_grad_hooks for each in parameters), "hooks of its parameters"),
        (model._comm_hooks, "a communication hook"),
    ):
        if found:
            raise RuntimeError(
                f"fix_buckets: the model already has {what}; call it right after "
                "DistributedDataParallel(...)"
            )
    reducer = model.reducer
    if model.static_graph:
        # A backward would be taken for the first of the program, whose graph is the static one.
        reducer._push_all_rebuilt_params()
    else:
        _backward(reducer, parameters)
    reducer._rebuild_buckets()
