"""The time of ``detmode.warm`` with an empty cache, and with the kernels that it has compiled.

Each is a process of its own, from its first line to the last kernel loaded.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence

import torch
from provenance import cpu
from results import table

WARM = """
import sys, time
start = time.perf_counter()
import detmode
warmed = detmode.warm(sys.argv[2:] or None, device=sys.argv[1])
print(time.perf_counter() - start, warmed.seconds, len(warmed.compiled), len(warmed.found))
"""
CACHES = ("empty", "full")
"""In this order: the first process fills the cache for the second."""


def warmed(operators: Sequence[str], device: str) -> list[tuple[str, ...]]:
    """Warm with each cache: the cache, seconds of the process and of the call, and the kernels."""
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "DETMODE_CACHE": folder}
        for cache in CACHES:
            command = [sys.executable, "-c", WARM, device, *operators]
            answer = subprocess.check_output(command, env=environment, text=True)
            whole, own, compiled, found = answer.split()[-4:]
            lines.append((cache, f"{float(whole):.1f}", f"{float(own):.1f}", compiled, found))
    return lines


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    found.add_argument("operators", nargs="*", help="by name; default: all that are listed")
    found.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    options = parser().parse_args(arguments)
    heads = ("cache", "s", "s of warm", "compiled", "found")
    print(table(heads, warmed(options.operators, options.device)))
    gpu = torch.cuda.get_device_name() if options.device == "cuda" else "host runner"
    print(f"PyTorch {torch.__version__}, {gpu}, {cpu()}")


if __name__ == "__main__":
    main()
