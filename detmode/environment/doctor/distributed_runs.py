"""Distributed runs: what NCCL may choose, and what hangs on the order of gradients."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch

from detmode.environment import known, nccl
from detmode.environment.doctor.finding import Finding, Look, Severity, variable

_CHUNKING = (
    *("NCCL_PROTO", "NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS", "NCCL_MIN_CTAS", "NCCL_MAX_CTAS"),
    *("NCCL_BUFFSIZE", "NCCL_NTHREADS", "NCCL_PAT_ENABLE"),
)
"""Variables that decide how NCCL cuts a tensor, or by which tree it adds."""


def _nccl() -> Iterator[Finding]:
    if not torch.distributed.is_available():
        return
    algorithms = nccl.algorithms()
    remedy: str | None = f"export NCCL_ALGO={nccl.EXCLUDING}, or NCCL_NVLS_ENABLE=0"
    if nccl.nvls_is_excluded():
        remedy = None
        effect = "the same bits for the same ranks and links between them: NVLS is not among them"
    elif algorithms is None:
        effect = (
            "under its flag PyTorch sets ^NVLS when a process group is made, which leaves NVLSTree "
            "across nodes; a group made before the mode is entered may vary on one node too"
        )
    else:
        effect = (
            "NVLS and NVLSTree add in the switch, in any order, and not every function that "
            "reduces is kept from them; PyTorch leaves a given value as it is"
        )
    severity: Severity = "warning" if remedy and torch.cuda.is_available() else "note"
    state = "not set" if algorithms is None else algorithms
    yield Finding("NCCL_ALGO", state, effect, remedy, severity)
    nvls = variable("NCCL_NVLS_ENABLE")
    yield Finding(
        "NCCL_NVLS_ENABLE",
        nvls,
        "NCCL does not use NVLS"
        if nvls == "0"
        else "NCCL uses NVLS where the machine has it and NCCL_ALGO allows it",
        remedy,
        severity,
    )


def _collnet() -> Iterator[Finding]:
    if not torch.distributed.is_available():
        return
    value = variable("NCCL_COLLNET_ENABLE")
    yield Finding.either(
        "NCCL_COLLNET_ENABLE",
        value,
        value in ("not set", "0") or nccl.excludes("collnetdirect", "collnetchain"),
        "NCCL does not reduce inside the network",
        "NCCL may reduce inside the network's switches, in an order of their own",
        f"unset NCCL_COLLNET_ENABLE, or export NCCL_ALGO={nccl.EXCLUDING},CollNetDirect,"
        "CollNetChain",
        "warning" if torch.cuda.is_available() else "note",
    )


def _tuner() -> Iterator[Finding]:
    value = known.variable("NCCL_TUNER_PLUGIN")
    if value is not None:
        yield Finding(
            "NCCL_TUNER_PLUGIN",
            value,
            "the plugin chooses algorithm, protocol and channels of every collective, and may do "
            "so by timing",
            "unset NCCL_TUNER_PLUGIN, or make sure that it chooses the same in every run",
            "warning" if torch.cuda.is_available() else "note",
        )


def _chunking() -> Iterator[Finding]:
    if not torch.distributed.is_available():
        return
    settings = [f"{name} {variable(name)}" for name in _CHUNKING if known.variable(name)]
    yield Finding(
        "NCCL's protocol and channels",
        ", ".join(settings) or "NCCL chooses",
        "they decide at which rank the sum of an element begins: the same for the same sizes, "
        "ranks and links; other machines, numbers of nodes and versions may have others",
        "for the same bits on other machines: export NCCL_ALGO=Ring NCCL_PROTO=Simple, equal "
        "NCCL_MIN_NCHANNELS and NCCL_MAX_NCHANNELS, and the same ranks on each node",
        "note",
    )
    files = [Path(known.variable("NCCL_CONF_FILE") or "~/.nccl.conf"), Path("/etc/nccl.conf")]
    paths = [str(file) for file in files if file.expanduser().is_file()]
    if paths:
        yield Finding(
            "NCCL's configuration",
            ", ".join(paths),
            "NCCL also takes variables from there, which are not seen here",
            "set what must not change in the environment, which wins",
            "note",
        )


def _buckets() -> Iterator[Finding]:
    if not torch.distributed.is_available():
        return
    yield Finding(
        "DistributedDataParallel",
        "not known before a program runs",
        "buckets of gradients are made anew after the first step: on three ranks or more, a run "
        "that is resumed from its weights gives other bits than one without a stop",
        "detmode.distributed.fix_buckets(model) right after the construction, in every run",
        "note",
    )


LOOKS: tuple[Look, ...] = (_nccl, _collnet, _tuner, _chunking, _buckets)
