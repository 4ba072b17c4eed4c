"""Digests of many tensors, in the order in which they are added, made a batch at a time.

Small CPU tensors are copied together and digested at once; large ones where they are. A CUDA tensor
is digested by a launch into a slot of a buffer on its device; nothing waits for the GPU until a
batch is taken.
"""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from detmode.cuda.digest import add_digest, add_digests, finish_digests

STAGED_BYTES = 1 << 22
"""CPU bytes that wait for their digest at most."""
SLOTS = 1 << 12
"""Digests of one GPU that wait at most."""
_SMALL = 1 << 15
_STAGED = "staged"


class Digests:
    """The digests that wait to be taken."""

    def __init__(self) -> None:
        self._staged = torch.zeros(STAGED_BYTES // 8, dtype=torch.int64)
        self._address = self._staged.data_ptr()
        self._words = 0
        # Of each digest where its sums are and in which row, and how many bytes went in: STAGED,
        # a tensor, or None for an undefined one.
        self._waiting: list[tuple[Tensor | str | None, int, int]] = []
        self._lengths: list[int] = []
        self._slots: dict[torch.device, tuple[Tensor, int]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def full(self) -> bool:
        """Whether the batch should be taken before more is added."""
        return self._words * 8 > STAGED_BYTES // 2 or len(self._waiting) >= SLOTS // 2

    def add_undefined(self) -> None:
        """Add the digest of memory that nobody has written."""
        self._waiting.append((None, 0, 0))

    def add(self, tensor: Tensor) -> None:
        """Add the digest of a strided tensor with data, as it is now."""
        n_bytes = tensor.nbytes
        if tensor.is_cpu and n_bytes <= _SMALL:
            if not tensor.is_contiguous() or tensor.is_conj() or tensor.is_neg():
                with _disable_current_modes():
                    tensor = tensor.detach().resolve_conj().resolve_neg().contiguous()
            words = -(-n_bytes // 8)
            if (self._words + words) * 8 > STAGED_BYTES:
                raise OverflowError("the batch must be taken before more is added")
            if words:
                begin = self._address + 8 * self._words
                if n_bytes % 8:
                    ctypes.memset(begin + 8 * (words - 1), 0, 8)
                ctypes.memmove(begin, tensor.data_ptr(), n_bytes)
            self._waiting.append((_STAGED, len(self._lengths), n_bytes))
            self._lengths.append(words)
            self._words += words
            return
        with _disable_current_modes():
            if tensor.is_cuda:
                buffer, used = self._slots.get(tensor.device, (None, 0))
                if buffer is None or used == len(buffer):
                    buffer, used = torch.zeros(SLOTS, 2, dtype=torch.int64, device=tensor.device), 0
                self._slots[tensor.device] = (buffer, used + 1)
                add_digest(buffer[used], tensor)
                self._waiting.append((buffer, used, n_bytes))
            else:
                sums = torch.zeros(1, 2, dtype=torch.int64)
                add_digest(sums[0], tensor.cpu())
                self._waiting.append((sums, 0, n_bytes))

    def take(self) -> bytes:
        """All digests that wait, 16 bytes each; waits for the GPUs that have some."""
        with _disable_current_modes():
            staged = torch.zeros(len(self._lengths), 2, dtype=torch.int64)
            if self._words:
                add_digests(staged, self._staged[: self._words], torch.tensor(self._lengths))
            # The buffers one after the other, and of each digest its row there.
            rows = {id(None): 0, id(_STAGED): 1}
            buffers = [torch.zeros(1, 2, dtype=torch.int64), staged]
            n = 1 + len(staged)
            for where, _, _ in self._waiting:
                if id(where) not in rows and isinstance(where, Tensor):
                    rows[id(where)] = n
                    buffers.append(where.cpu())
                    n += len(where)
            of = [rows[id(where)] + slot for where, slot, _ in self._waiting]
            sizes = torch.tensor([n_bytes for _, _, n_bytes in self._waiting], dtype=torch.int64)
            found = finish_digests(torch.cat(buffers)[of], sizes)
            found[[where is None for where, _, _ in self._waiting]] = 0
            content: bytes = found.numpy().tobytes()
        self._waiting.clear()
        self._lengths.clear()
        self._slots.clear()
        self._words = 0
        return content
