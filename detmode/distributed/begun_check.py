"""A check of ``check_ranks`` that has begun: what a rank holds, and the table that it sends."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import torch
from torch import Tensor, distributed, nn
from torch.distributed import ProcessGroup
from torch.optim import Optimizer
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from detmode.bits.digest import add_digest, add_digests
from detmode.bits.tensors import dtype_and_shape
from detmode.cuda.elements import plain
from detmode.distributed.check_verdict import Held

WHOLE = "whole"
"""The shard of a tensor that every rank holds whole."""
_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_OPTION = (*_PLAIN, Tensor)
_SMALL = 1 << 15
"""CPU tensors of at most so many bytes are digested together."""


_MOST_SHARDS = 31
"""The most shards, of different forms or devices, of which a rank may hold tensors."""


@dataclass(frozen=True, eq=False)
class _LocalTensor:
    """A tensor as a rank holds it.

    Attributes:
        name: as in ``named_parameters``, with a prefix if it is not of the module itself.
        tensor: strided, on any device.
        shard: ranks with the same text hold the same bytes.
        form: the dtype and shape; of a plain value, the value.
    """

    name: str
    tensor: Tensor
    shard: str
    form: str


def local_tensors(
    module: nn.Module,
    optimizers: Iterable[Optimizer],
    also: Mapping[str, object],
    ignore: Iterable[str],
) -> list[_LocalTensor]:
    """Return what is compared: parameters, buffers, the optimizers' state and what is named.

    Args:
        module: its parameters and buffers.
        optimizers: their states and options; a state is named after its parameter.
        also: by name, anything that :func:`check_ranks` takes.
        ignore: globs of names to leave out.

    Raises:
        TypeError: a tensor has no bytes that could be compared, or a value is not known.
    """
    shards = _shards_of_fsdp1(module)
    tensors: list[_LocalTensor] = []

    def add(name: str, value: object, shard: str) -> None:
        if any(fnmatchcase(name, glob) for glob in ignore):
            return
        for inner, leaf in _leaves(name, value):
            if any(fnmatchcase(inner, glob) for glob in ignore):
                continue
            if isinstance(leaf, Tensor):
                tensors.extend(_parts(inner, leaf, shard))
            else:
                data = torch.frombuffer(bytearray(leaf.encode()), dtype=torch.uint8)
                tensors.append(_LocalTensor(inner, data, shard, leaf))

    names: dict[Tensor, str] = {}
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        names[tensor] = name
        add(name, tensor, shards.get(name, WHOLE))
    for number, optimizer in enumerate(optimizers):
        prefix = f"optimizer{number or ''}"
        for index, group in enumerate(optimizer.param_groups):
            options = {
                name: value
                for name, value in group.items()
                if name != "params" and all(isinstance(option, _OPTION) for option in _each(value))
            }
            add(f"{prefix}.{index}", options, WHOLE)
            for position, parameter in enumerate(group["params"]):
                name = names.get(parameter, f"{index}.{position}")
                state = optimizer.state.get(parameter, {})
                add(f"{prefix}.{name}", state, shards.get(name, WHOLE))
    for name, value in also.items():
        is_function = callable(value) and not hasattr(value, "state_dict")
        add(name, value() if is_function else value, WHOLE)  # type: ignore[operator]  # is a function
    return tensors


def _each(value: object) -> Iterable[object]:
    return value if isinstance(value, (list, tuple)) else (value,)


def _leaves(name: str, value: Any) -> Iterator[tuple[str, Tensor | str]]:
    """Yield the tensors of a value, and its plain values as text, each with its name."""
    if isinstance(value, Tensor):
        yield name, value
    elif isinstance(value, np.ndarray):
        yield name, torch.from_numpy(np.ascontiguousarray(value).view(np.uint8))
    elif isinstance(value, _PLAIN):
        yield name, repr(value)
    elif isinstance(value, torch.Generator):
        yield name, value.get_state()
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _leaves(f"{name}.{key}", item)
    elif isinstance(value, (list, tuple)):
        for position, item in enumerate(value):
            yield from _leaves(f"{name}.{position}", item)
    elif hasattr(value, "state_dict"):
        yield from _leaves(name, value.state_dict())
    else:
        raise TypeError(
            f"check_ranks: {name!r} is of the type {type(value).__name__}; give a tensor, an "
            "array, a number, a text, a torch.Generator, what has a state_dict(), a list or dict "
            "of these, or a function that returns one of them"
        )


def _parts(name: str, tensor: Tensor, shard: str) -> Iterator[_LocalTensor]:
    """Yield the plain tensors of which this rank's part of a tensor is made."""
    sharded = sys.modules.get("torch.distributed.tensor")
    if sharded is not None and isinstance(tensor, sharded.DTensor):
        yield from _parts(name, tensor._local_tensor, _shard_of(tensor))
    elif is_traceable_wrapper_subclass(tensor):
        for inner in tensor.__tensor_flatten__()[0]:
            yield from _parts(f"{name}.{inner}", getattr(tensor, inner), shard)
    elif tensor.layout != torch.strided or tensor.is_meta or tensor.is_nested:
        kind = "meta" if tensor.is_meta else str(tensor.layout).removeprefix("torch.")
        raise TypeError(
            f"check_ranks cannot compare {name!r}, a tensor of the kind {kind}; leave it out with "
            f"ignore=[{name!r}]"
        )
    else:
        yield _LocalTensor(name, tensor.detach(), shard, dtype_and_shape(tensor))


def _shard_of(tensor: Any) -> str:
    """Return the shard of a DTensor that this rank holds; replicas have the same one.

    It does not name the ranks of the mesh: what several meshes of one form hold, such as the
    groups of tensor parallel replicas, is replicated among them.
    """
    mesh, placements = tensor.device_mesh, tensor.placements
    coordinate = mesh.get_coordinate() or ()
    where = tuple(
        "*" if placement.is_replicate() else at for placement, at in zip(placements, coordinate)
    )
    return f"{placements} of {mesh.mesh_dim_names} {tuple(mesh.mesh.shape)} at {where}"


def _shards_of_fsdp1(module: nn.Module) -> dict[str, str]:
    """Return, by the names of parameters that FSDP1 has cut, the shard that this rank holds."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    if fsdp is None:
        return {}
    shards = {}
    for path, inner in module.named_modules():
        if not isinstance(inner, fsdp.FullyShardedDataParallel):
            continue
        whole = inner.sharding_strategy == fsdp.ShardingStrategy.NO_SHARD
        shard = WHOLE if whole else f"of {inner.process_group.size()} at {inner.rank}"
        for name, _ in inner.named_parameters(prefix=path):
            shards[name] = shard
    return shards


@dataclass(eq=False)
class _ShardDigests:
    """The tensors of one shard and device type, and their digests.

    Attributes:
        key: of the shard, the same on all ranks that hold it.
        layout: of the names, dtypes and shapes.
        tensors: by name, each with its position among all tensors.
        sums: int64 of shape (n, 2), on the tensors' device.
        root: int64 of shape (2,), the digest of ``sums``, there too.
    """

    key: int
    layout: int
    tensors: list[tuple[int, _LocalTensor]]
    sums: Tensor
    root: Tensor


def digests_of(local_tensors: list[_LocalTensor]) -> list[_ShardDigests]:
    """Digest the tensors, on their devices and without waiting for any, shard by shard."""
    by_shard: dict[tuple[str, str, torch.device], list[tuple[int, _LocalTensor]]] = {}
    devices: dict[torch.device, str] = {torch.device("cpu"): "cpu"}
    for position, local in enumerate(local_tensors):
        device = local.tensor.device
        if not (local.tensor.is_cpu or local.tensor.is_cuda):
            device = torch.device("cpu")
        # Ranks number their GPUs as they like: the first of each is compared with the first.
        number = devices.setdefault(device, f"{device.type}{len(devices)}")
        by_shard.setdefault((local.shard, number, device), []).append((position, local))
    digests = []
    for (shard, number, device), tensors in by_shard.items():
        tensors.sort(key=lambda pair: pair[1].name)
        sums = torch.zeros(len(tensors), 2, dtype=torch.int64, device=device)
        _digest(sums, [local.tensor for _, local in tensors])
        root = torch.zeros(2, dtype=torch.int64, device=device)
        add_digest(root, sums)
        layout = ";".join(f"{local.name} {local.form}" for _, local in tensors)
        digests.append(
            _ShardDigests(_hash_of(f"{shard} {number}"), _hash_of(layout), tensors, sums, root)
        )
    return digests


def _digest(sums: Tensor, tensors: list[Tensor]) -> None:
    small: list[int] = []
    for row, tensor in enumerate(tensors):
        if sums.is_cpu:
            tensor = tensor.cpu()
            if tensor.nbytes <= _SMALL:
                small.append(row)
                continue
        add_digest(sums[row], tensor)
    if small:
        words = [_words(tensors[row].cpu()) for row in small]
        small_sums = torch.zeros(len(small), 2, dtype=torch.int64, device="cpu")
        lengths = torch.tensor([len(part) for part in words], device="cpu")
        if lengths.any():
            add_digests(small_sums, torch.from_numpy(np.concatenate(words)), lengths)
        sums[small] = small_sums


def _words(tensor: Tensor) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return a CPU tensor's bytes as 64-bit words, padded with zeros."""
    data = plain(tensor).view(torch.uint8).numpy()
    return np.concatenate([data, np.zeros(-len(data) % 8, np.uint8)]).view(np.int64)


def _hash_of(text: str) -> int:
    """Return 64 bits of a text, the same in every process."""
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


class BegunCheck:
    """A check that has begun.

    Args:
        number: counted from 1.
        step: the number of the step after which it is made.
        tensors: those that the rank holds.
        knows_of_fault: whether a rank has reported a difference.

    Attributes:
        has_arrived: tells without waiting whether the tables of all ranks are here; set as the
            table is sent.
    """

    def __init__(
        self, number: int, step: int, tensors: list[_LocalTensor], *, knows_of_fault: bool
    ) -> None:
        self.number = number
        self.step = step
        self._shards = shards = digests_of(tensors)
        if len(shards) > _MOST_SHARDS:
            raise ValueError(
                f"check_ranks: tensors of {len(shards)} different shards and devices, and only "
                f"{_MOST_SHARDS} can be compared; leave some out with ignore="
            )
        # A row of its own, and one for each shard: its key, its layout and its root.
        self._table = torch.zeros(1 + _MOST_SHARDS, 4, dtype=torch.int64, device="cpu")
        names = sorted(local.name for shard in shards for _, local in shard.tensors)
        header = (_hash_of("\n".join(names)), step, len(shards), int(knows_of_fault))
        self._table[0] = torch.tensor(header, device="cpu")
        for row, shard in enumerate(shards, 1):
            self._table[row, :2] = torch.tensor([shard.key, shard.layout], device="cpu")

    def meets_on_gpu(self, group: ProcessGroup) -> bool:
        """Return whether the group gathers the tables on GPUs."""
        pairs = distributed.get_backend_config(group).split(",")
        backends = dict(pair.split(":") for pair in pairs)
        on_gpu = any(shard.root.is_cuda for shard in self._shards)
        return "cpu" not in backends or (on_gpu and backends.get("cuda") == "nccl")

    def send(self, group: ProcessGroup) -> None:
        """Send the table to all ranks, from the host."""
        for row, shard in enumerate(self._shards, 1):
            self._table[row, 2:] = shard.root
        self._received = torch.empty(
            group.size(), *self._table.shape, dtype=torch.int64, device="cpu"
        )
        received = list(self._received.unbind(0))
        self._work = distributed.all_gather(received, self._table, group, async_op=True)
        self.has_arrived = self._work.is_completed

    def send_from_gpu(self, group: ProcessGroup, stream: torch.cuda.Stream) -> None:
        """Send the table to all ranks, on a stream of its own; the host waits for nothing."""
        on_host = [shard for shard in self._shards if not shard.root.is_cuda]
        for row, shard in enumerate(self._shards, 1):
            if shard in on_host:
                self._table[row, 2:] = shard.root
            else:
                stream.wait_stream(torch.cuda.current_stream(shard.root.device))
        # Memory that is not pinned would be copied at once, after waiting for the stream.
        self._table = self._table.pin_memory()
        with torch.cuda.stream(stream):
            self._sent = self._table.to(stream.device, non_blocking=True)
            for row, shard in enumerate(self._shards, 1):
                if shard not in on_host:
                    self._sent[row, 2:].copy_(shard.root, non_blocking=True)
            shape = (group.size(), *self._table.shape)
            self._gathered = self._sent.new_empty(shape)
            gathered = list(self._gathered.unbind(0))
            self._work = distributed.all_gather(gathered, self._sent, group, async_op=True)
            self._work.wait()  # of the stream
            self._received = torch.empty(shape, dtype=torch.int64, pin_memory=True, device="cpu")
            self._received.copy_(self._gathered, non_blocking=True)
            self.has_arrived = stream.record_event().query

    def received(self) -> Tensor:
        """Return the tables of all ranks; after they have arrived.

        Raises:
            RuntimeError: a rank has ended meanwhile.
        """
        if not self._received.is_pinned():
            self._work.wait()
        return self._received

    def held(self) -> dict[str, Held]:
        """Return what this rank holds, in the module's order."""
        by_position: dict[int, tuple[str, Held]] = {}
        for shard in self._shards:
            for (position, local), sums in zip(shard.tensors, shard.sums.tolist()):
                digest = "".join(f"{lane % (1 << 64):016x}" for lane in sums)
                by_position[position] = local.name, (shard.key, local.form, digest)
        return dict(by_position[position] for position in sorted(by_position))


def agree(tables: Tensor) -> bool:
    """Return whether the ranks hold tensors of the same names, and replicas are equal.

    Tensors that have moved to another shard on some ranks count as a difference too.
    """
    seen: dict[int, list[int]] = {}
    of_ranks: list[list[list[int]]] = tables.tolist()
    return len({header[0] for header, *_ in of_ranks}) == 1 and all(
        seen.setdefault(key, content) == content
        for header, *rows in of_ranks
        for key, *content in rows[: header[2]]
    )
