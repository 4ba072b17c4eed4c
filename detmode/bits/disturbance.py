"""The conditions varied between a call and its repeats: threads, schedules, contention."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TypeAlias

import torch

from detmode.cuda import host
from detmode.process.dispatch import without_modes

Streams: TypeAlias = dict[torch.device, tuple[torch.cuda.Stream, torch.Tensor]]
"""A second stream of each GPU, with data to work on."""

_LOAD_BYTES = 1 << 26
_LOAD_LAUNCHES = 16


@contextmanager
def disturbed(
    streams: Streams, repeat: int, devices: set[torch.device], *, on_host: bool
) -> Iterator[list[str]]:
    """Vary the conditions from repeat to repeat; the list names them when the block ends.

    Args:
        streams: empty for the first repeat of all; those of the GPUs that are met are added.
        repeat: the number of the repeat, from 0; the first keeps the original conditions.
        devices: the devices of the call's tensors.
        on_host: whether an earlier repeat launched on the host runner.
    """
    names: list[str] = []
    with ExitStack() as stack:
        busy = repeat > 0 and _load(streams, devices)
        varies_threads = repeat > 0 and not busy and not on_host
        if varies_threads:
            n = torch.get_num_threads()
            stack.callback(torch.set_num_threads, n)
            others = sorted({1, 2, n // 2} - {0, n})
            torch.set_num_threads(others[(repeat - 1) % len(others)])
        # The first repeat runs in program order, not in the program's own schedule.
        stack.enter_context(host.schedule(repeat or None))
        try:
            yield names
        finally:
            if busy:
                names.append("contention")
            elif host.launches():
                names.append("schedule")
            else:
                names.append("threads" if varies_threads else "again")


def _load(streams: Streams, devices: set[torch.device]) -> bool:
    """Load a second stream of each GPU with work that outlasts a short kernel."""
    gpus = [device for device in devices if device.type == "cuda"]
    with without_modes():
        for device in gpus:
            if device not in streams:
                stream = torch.cuda.Stream(device)
                with torch.cuda.stream(stream):
                    data = torch.zeros(_LOAD_BYTES // 4, device=device)
                streams[device] = stream, data
            stream, data = streams[device]
            if stream.query():
                with torch.cuda.stream(stream):
                    for _ in range(_LOAD_LAUNCHES):
                        data.add_(1)
    return bool(gpus)
