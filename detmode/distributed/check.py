"""check_ranks: what must be equal on all ranks, compared by digest while the program runs.

A check has two halves. The first digests what the rank holds and starts an all-gather of a small
table; the second, at the next check, reads the tables of all ranks, so that neither the host nor
the device waits for anything meanwhile. Every rank reads the same tables and so knows as soon as
the others that there is a difference. Only then do the ranks exchange the digests of single
tensors, through the store of the process group, which works without further collectives.
"""

from __future__ import annotations

import itertools
import json
import re
import time
import weakref
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import timedelta
from types import TracebackType
from typing import Any, NoReturn

import torch
from torch import distributed, nn
from torch.distributed import ProcessGroup, distributed_c10d
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

from detmode.distributed.begun_check import BegunCheck, agree, local_tensors
from detmode.distributed.check_verdict import (
    RankError,
    ranks_text,
    verdict_on_steps,
    verdict_on_tensors,
)
from detmode.process.dispatch import untraced, without_modes
from detmode.process.rank import has_group

_PAUSES = (1e-4, 0.05)
"""The shortest and the longest time between two looks at what has not arrived, in seconds."""
_FAREWELL = 10.0
"""The seconds for which a rank that has read the verdict waits until all others have."""
_GRACE = 2.0
"""The seconds for which ranks may be behind after a connection has failed, and count as present."""
_FAULT = "fault"
_made = itertools.count()


class check_ranks:
    """Compares what must be equal on all ranks, at every ``every``-th step of the optimizer.

    A context manager: in its block every step of an optimizer of the module's parameters is
    counted, and the states of these optimizers are compared too. Where no optimizer of PyTorch
    makes the steps, call :meth:`step` after each, on all ranks.

    Compared are the module's parameters and buffers, the optimizers' states and options, and
    ``also``. Of sharded tensors (``DTensor``, as FSDP2 and tensor parallelism have, and FSDP1's
    parameters) replicas of the same shard are compared.

    The result of a check is read at the next one, or at the end of the block, so that nothing waits
    for it. A fault after step ``n`` is therefore reported within two checks, on every rank of
    ``group``; the ranks of another group raise together two checks later at most.

    >>> model = torch.nn.Linear(2, 1)
    >>> with detmode.check_ranks(model, every=100) as check:
    ...     check.compare()

    Args:
        module: the same on all ranks of the group.
        every: the number of steps from one check to the next.
        group: the ranks that hold replicas; the whole job if left out. With pipeline stages, give
            each stage its own.
        also: by name, what else must be equal: tensors, arrays, numbers, texts, generators,
            objects with a ``state_dict()``, lists and dicts of these, or a function without
            arguments that returns one of them, called at each check.
        ignore: globs of names that may differ, such as ``"*.running_mean"``.
        timeout: the seconds to wait for ranks that have not taken part in a check.

    Raises:
        RankError: a difference, or a rank that took no part; at a step, or at the end of the block.
        RuntimeError: there is no process group.
        TypeError, ValueError: an argument has the wrong type or an impossible value.
    """

    def __init__(
        self,
        module: nn.Module,
        *,
        every: int = 1,
        group: ProcessGroup | None = None,
        also: Mapping[str, object] | None = None,
        ignore: Iterable[str] = (),
        timeout: float = 600.0,
    ) -> None:
        if not isinstance(module, nn.Module):
            raise TypeError(f"check_ranks: module must be an nn.Module, got {_type(module)}")
        if not isinstance(every, int) or isinstance(every, bool):
            raise TypeError(f"check_ranks: every must be an int, got {_type(every)}")
        if every < 1:
            raise ValueError(f"check_ranks: every must be at least 1, got {every}")
        if isinstance(ignore, str):
            raise TypeError("check_ranks: ignore must be a list of globs, got one str")
        if not timeout > 0:
            raise ValueError(f"check_ranks: timeout must be above 0 seconds, got {timeout}")
        if not has_group():
            raise RuntimeError(
                "check_ranks compares the ranks of a process group: call "
                "torch.distributed.init_process_group first"
            )
        self._group = group or distributed_c10d._get_default_group()
        self._rank = distributed.get_rank(self._group)
        if self._rank < 0:
            raise ValueError("check_ranks: this rank does not belong to the group")
        self._ranks = distributed.get_process_group_ranks(self._group)
        self._module = module
        self._every = every
        self._also = dict(also or {})
        self._ignore = tuple(ignore)
        self._timeout = timeout
        self._store = distributed_c10d.PrefixStore(
            f"detmode/check_ranks/{next(_made)}", distributed_c10d._get_default_store()
        )
        self._optimizers: weakref.WeakKeyDictionary[Optimizer, bool] = weakref.WeakKeyDictionary()
        self._hook: Any = None
        self._steps = self._checks = 0
        self._agreed: int | None = None
        self._pending: BegunCheck | None = None
        self._stream: torch.cuda.Stream | None = None

    def __enter__(self) -> check_ranks:
        if self._hook is not None:
            raise RuntimeError("check_ranks: the block is open already")
        self._hook = register_optimizer_step_post_hook(self._after_step)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._hook.remove()
        self._hook = None
        if error is None and self._pending is not None:
            self._finish()

    @untraced
    def _after_step(self, stepped: Optimizer, *_: object) -> None:
        if stepped not in self._optimizers:
            parameters = set(map(id, self._module.parameters()))
            trained = (parameter for group in stepped.param_groups for parameter in group["params"])
            self._optimizers[stepped] = any(id(parameter) in parameters for parameter in trained)
        if self._optimizers[stepped]:
            self.step()

    @untraced
    def step(self) -> None:
        """Count a step, and check if one is due; on all ranks of the group alike.

        Raises:
            RankError: the check before this one found a difference, or a rank took no part.
        """
        if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
            raise RuntimeError(
                "check_ranks: the step is being captured into a CUDA graph, whose replays call no "
                "hook; open the block after the capture, and call step() after each replay"
            )
        self._steps += 1
        if self._steps % self._every == 0:
            self._finish()
            self._begin()

    @untraced
    def compare(self) -> None:
        """Compare now, and wait for the result; on all ranks of the group alike.

        Raises:
            RankError: there is a difference, or a rank took no part.
        """
        self._finish()
        self._begin()
        self._finish()

    def _begin(self) -> None:
        """Begin a check: digest what this rank holds, and send it to the others."""
        if len(self._ranks) == 1:
            self._raise_if_told()
            return
        self._checks += 1
        with without_modes(), torch.no_grad():
            optimizers = [optimizer for optimizer, is_own in self._optimizers.items() if is_own]
            tensors = local_tensors(self._module, optimizers, self._also, self._ignore)
            check = self._pending = BegunCheck(
                self._checks, self._steps, tensors, knows_of_fault=self._knows_of_fault()
            )
            began = f"began/{self._key_of(self._rank)}"
            self._reached(self._store.set, began, str(check.number))
            try:
                if check.meets_on_gpu(self._group):
                    self._stream = self._stream or torch.cuda.Stream()
                    check.send_from_gpu(self._group, self._stream)
                else:
                    check.send(self._group)
            except RuntimeError as error:
                self._lost(check, error)

    def _finish(self) -> None:
        """Read the result of the check that is pending.

        Raises:
            RankError: there is a difference, or a rank took no part.
        """
        check, self._pending = self._pending, None
        if check is None:
            return
        with without_modes():
            self._until_arrived(check)
            try:
                tables = check.received()
            except RuntimeError as error:
                self._lost(check, error)
            if tables[:, 0, 3].any():
                # One rank alone must not stop: the others would wait for it in their next step.
                self._raise_if_told()
            steps = dict(zip(self._ranks, tables[:, 0, 1].tolist()))
            if len(set(steps.values())) > 1:
                self._conclude(check, lambda: verdict_on_steps(steps))
            if not agree(tables):
                key = f"{check.number}/{self._key_of(self._rank)}"
                self._reached(self._store.set, key, json.dumps(check.held()))
                self._conclude(check, lambda: self._judge(check))
        self._agreed = check.step

    def _until_arrived(self, check: BegunCheck) -> None:
        """Wait for the tables of all ranks, or until another rank has found a difference."""
        begin = time.monotonic()
        pause, longest = _PAUSES
        while not check.has_arrived():
            if time.monotonic() - begin > self._timeout:
                self._lost(check, None)
            time.sleep(pause)
            pause = min(2 * pause, longest)
            if pause == longest:
                self._raise_if_told()

    # The store

    def _key_of(self, rank: int) -> str:
        return f"{self._group.group_name}/{rank}"

    def _reached(self, ask: Callable[..., Any], *args: Any) -> Any:
        """Ask the store, and raise if it is gone."""
        try:
            return ask(*args)
        except RuntimeError as error:
            raise RankError(
                "check_ranks: the store of the process group cannot be reached, so that the "
                f"process that holds it, mostly that of rank 0, has ended: {_brief(error)}",
                step=self._steps,
            ) from error

    def _knows_of_fault(self) -> bool:
        """Return whether a rank, of this group or of another, has found a difference."""
        return bool(self._reached(self._store.check, [_FAULT]))

    def _raise_if_told(self) -> None:
        if self._knows_of_fault():
            verdict = RankError.from_json(self._reached(self._store.get, _FAULT))
            assert verdict is not None
            raise verdict

    def _lost(self, check: BegunCheck, error: Exception | None) -> NoReturn:
        """Raise for a check that does not end, with the ranks that have not begun it."""
        behind, end = self._behind(check), time.monotonic() + _GRACE
        while error and time.monotonic() < end:
            # A connection fails at once; others may be about to begin.
            time.sleep(_PAUSES[1])
            behind = self._behind(check)
        self._raise_if_told()
        who = f"{ranks_text(behind)} took no part" if behind else "all ranks have begun it"
        why = _brief(error) if error else f"nothing came in {self._timeout:g} seconds"
        text = (
            f"check_ranks: no result of the check after step {check.step}: {who}; {why}. A rank "
            "that takes no part has ended, hangs, or makes other steps than the others"
        )
        raise RankError(text, tuple(behind), step=check.step) from error

    def _behind(self, check: BegunCheck) -> list[int]:
        """Return the ranks that have not begun a check."""
        behind = []
        for rank, number in enumerate(self._ranks):
            key = f"began/{self._key_of(rank)}"
            begun = self._reached(self._store.check, [key])
            if not begun or int(self._reached(self._store.get, key)) < check.number:
                behind.append(number)
        return behind

    def _conclude(self, check: BegunCheck, find: Callable[[], RankError | None]) -> None:
        """Raise on every rank of the job what the group's first rank finds, if it finds any."""
        key = f"{check.number}/{self._group.group_name}"
        if self._rank == 0:
            verdict = find()
            if verdict is not None:
                self._reached(self._store.set, _FAULT, verdict.to_json())
            self._reached(self._store.set, key, verdict.to_json() if verdict else "null")
        else:
            verdict = RankError.from_json(self._awaited(check, key))
        if verdict is None:
            return
        # The store may end with the first process that does.
        end = time.monotonic() + _FAREWELL
        with suppress(RuntimeError):
            self._store.add(f"{key}/read", 1)
            while self._store.add(f"{key}/read", 0) < len(self._ranks) and time.monotonic() < end:
                time.sleep(_PAUSES[1])
        raise verdict

    def _awaited(self, check: BegunCheck, key: str) -> bytes:
        """Return what another rank writes to the store."""
        try:
            self._store.wait([key], timedelta(seconds=self._timeout))
        except RuntimeError as error:
            self._lost(check, error)
        value: bytes = self._reached(self._store.get, key)
        return value

    def _judge(self, check: BegunCheck) -> RankError | None:
        """Find the verdict from the digests that all ranks have written."""
        held = {}
        for rank, number in enumerate(self._ranks):
            details = json.loads(self._awaited(check, f"{check.number}/{self._key_of(rank)}"))
            held[number] = {name: tuple(item) for name, item in details.items()}
        return verdict_on_tensors(held, check.step, self._agreed)


def _type(value: object) -> str:
    return type(value).__name__


def _brief(error: Exception) -> str:
    """Return the first sentence of an error's text, without the line of PyTorch's source."""
    line = str(error).partition("\n")[0]
    return re.sub(r"^\[\S*\] ", "", line).partition(". ")[0]
