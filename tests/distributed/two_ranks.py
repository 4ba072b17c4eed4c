"""Programs of several ranks, for the tests of launchers.

``python two_ranks.py [--fault FAULT] [--spawn]``: two ranks call operators of their own, and common
ones. ``raise`` has rank 1 raise in the first attempt, ``kill`` kills rank 0,
``stuck`` ends it while rank 1 waits in C++.
"""

import argparse
import os
import signal
import socket
import sys
from datetime import timedelta

import torch
from torch import distributed


def ranks(rank: int, fault: str) -> None:
    distributed.init_process_group("gloo", rank=rank, world_size=2, timeout=timedelta(seconds=60))
    x = torch.zeros(5)
    x.index_add_(0, torch.tensor([0, 1]), torch.ones(2))  # of both
    if rank == 1:
        torch.cumsum(torch.ones(4), 0)  # of one
    distributed.all_reduce(x)
    is_first_attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"
    if fault == "raise" and rank == 1 and is_first_attempt:
        raise RuntimeError("a fault of rank 1")
    if fault == "kill" and rank == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    if fault == "stuck" and rank == 0:
        sys.exit(3)
    if fault == "stuck":
        # Like a collective that never returns: Python's own handlers do not run meanwhile.
        store = distributed.TCPStore("localhost", 0, is_master=True, timeout=timedelta(seconds=50))
        store.wait(["never"])
    distributed.all_reduce(x)
    distributed.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", default="")
    parser.add_argument("--spawn", action="store_true")
    options = parser.parse_args()
    if options.spawn:
        with socket.socket() as free:
            free.bind(("localhost", 0))
            port = free.getsockname()[1]
        os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
        torch.multiprocessing.spawn(ranks, (options.fault,), nprocs=2)
    else:
        ranks(int(os.environ["RANK"]), options.fault)
