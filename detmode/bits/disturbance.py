"""The conditions varied between a call and its repeats: threads, schedules, contention."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch

from detmode.cuda import host
from detmode.process.dispatch import without_modes

_LOAD_BYTES = 1 << 26
_LOAD_LAUNCHES = 16


class Disturbance:
    """Varies the conditions from repeat to repeat; the first repeat keeps the original ones."""

    def __init__(self) -> None:
        self._streams: dict[torch.device, tuple[torch.cuda.Stream, torch.Tensor]] = {}

    @contextmanager
    def of(self, repeat: int, devices: set[torch.device], *, on_host: bool) -> Iterator[list[str]]:
        """Set the conditions of a repeat; the list names them when the block ends.

        Args:
            repeat: the number of the repeat, from 0.
            devices: the devices of the call's tensors.
            on_host: whether an earlier repeat launched on the host runner.
        """
        names: list[str] = []
        with ExitStack() as stack:
            busy = repeat > 0 and self._load(devices)
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

    def _load(self, devices: set[torch.device]) -> bool:
        """Load a second stream of each GPU with work that outlasts a short kernel."""
        gpus = [device for device in devices if device.type == "cuda"]
        with without_modes():
            for device in gpus:
                if device not in self._streams:
                    stream = torch.cuda.Stream(device)
                    with torch.cuda.stream(stream):
                        data = torch.zeros(_LOAD_BYTES // 4, device=device)
                    self._streams[device] = stream, data
                stream, data = self._streams[device]
                if stream.query():
                    with torch.cuda.stream(stream):
                        for _ in range(_LOAD_LAUNCHES):
                            data.add_(1)
        return bool(gpus)
