"""What ``detmode diff`` takes of two long recordings: seconds, and memory at its peak.

A small network is trained and recorded twice; the second time one step begins with another weight,
so that the rest of the runs differs.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from provenance import cpu
from torch import nn

from detmode import record


def train(path: Path, calls: int, other: bool) -> int:
    """Record ``calls`` calls or a few more; how many.

    Args:
        path: of the recording.
        calls: of ATen's operators.
        other: whether a weight is changed before the middle.
    """
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.1), nn.ReLU(), nn.Linear(16, 4))
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    counter = _Counter()
    with record(path), counter:
        while counter.calls < calls:
            batch, classes = torch.randn(8, 8), torch.randint(0, 4, (8,))
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(batch), classes).backward()
            if other and counter.calls >= calls // 2:
                other = False
                with torch.no_grad():
                    model[0].weight[0, 0] *= 1 + 1e-6
            optimizer.step()
    return counter.calls


class _Counter(torch.utils._python_dispatch.TorchDispatchMode):
    """Counts the calls that a recording outside it sees too."""

    calls = 0

    # PyTorch's own has no types.
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.calls += 1
        return func(*args, **(kwargs or {}))


def compare(first: Path, second: Path) -> tuple[float, int, str]:
    """Seconds and bytes at the peak of ``detmode diff`` in a process of its own; what it prints.

    Raises:
        RuntimeError: it found no difference, or failed.
    """
    command = [sys.executable, "-m", "detmode", "diff", str(first), str(second)]
    begin = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        printed = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    seconds = time.perf_counter() - begin
    if process.returncode != 1:
        raise RuntimeError(f"detmode diff ended with {process.returncode}")
    return seconds, usage.ru_maxrss * 1024, printed


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--calls", type=int, default=1_000_000, help="of each recording")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        paths = Path(folder, "first"), Path(folder, "second")
        begin = time.perf_counter()
        calls = [train(path, options.calls, path is paths[1]) for path in paths]
        recorded = (time.perf_counter() - begin) / sum(calls)
        on_disk = sum(file.stat().st_size for file in paths[0].iterdir())
        seconds, peak, printed = compare(*paths)
    print(printed.partition("\n")[0])
    print(
        f"{calls[0]:,} and {calls[1]:,} calls: recorded in {recorded * 1e6:.0f} us a call, the "
        f"training itself included, to {on_disk / calls[0]:.0f} bytes a call; compared in "
        f"{seconds:.1f} s with {peak / 1e6:.0f} MB at the peak"
    )
    print(f"PyTorch {torch.__version__}, {cpu()}")


if __name__ == "__main__":
    main()
