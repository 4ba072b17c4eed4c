"""Digests of many tensors, computed in batches; each has a number to retrieve it by.

Small CPU tensors are copied together and digested at once; large ones are digested in place. A CUDA
tensor is digested by a launch into a slot of a buffer on its device. Nothing waits for the GPU
until a batch is taken.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

from detmode.bits.digest import add_digest, add_digests, finish_digests
from detmode.cuda.elements import in_memory, once
from detmode.process.dispatch import without_modes

STAGED_BYTES = 1 << 22
"""The most CPU bytes that wait to be digested."""
SLOTS = 1 << 12
"""Digests that one buffer on a GPU holds."""
_SMALL = 1 << 15
_UNDEFINED = 0


class Digests:
    """The digests that have not been taken yet."""

    def __init__(self) -> None:
        with without_modes():
            self._staged = torch.zeros(STAGED_BYTES // 8, dtype=torch.int64, device="cpu")
        self._address = self._staged.data_ptr()
        self._words = 0
        self._lengths: list[int] = []
        self._staged_block = 0
        # For each digest: the block and the row of its sums, and the number of bytes.
        self._waiting: list[tuple[int, int, int]] = []
        self._blocks: list[Tensor] = []
        # For each stream: the block that it fills, the slots used, and the stream.
        self._slots: dict[tuple[torch.device, int], tuple[int, int, torch.cuda.Stream]] = {}
        self._begin()

    def _begin(self) -> None:
        self._waiting.clear()
        self._slots.clear()
        with without_modes():
            self._blocks = [torch.zeros(1, 2, dtype=torch.int64, device="cpu")]

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def full(self) -> bool:
        """True if the batch should be taken before more is added."""
        return self._words * 8 > STAGED_BYTES // 2 or len(self._waiting) >= SLOTS // 2

    def add_undefined(self) -> int:
        """Add the digest of uninitialized memory, or a placeholder; return its number."""
        return self._number(_UNDEFINED, 0, 0)

    def replace(self, number: int, tensor: Tensor) -> None:
        """Replace a digest by that of a tensor, as it is now."""
        self.add(tensor)
        self._waiting[number] = self._waiting.pop()

    def add(self, tensor: Tensor) -> int:
        """Add the digest of a tensor, as it is now; return its number.

        Args:
            tensor: strided, with data, and not quantized.
        """
        n_bytes = tensor.nbytes
        if not tensor.is_contiguous():
            with without_modes():
                tensor = once(tensor)
        if tensor.is_cpu and tensor.nbytes <= _SMALL:
            return self._stage(tensor, n_bytes)
        with without_modes():
            if tensor.is_cuda:
                block, row = self._slot(tensor.device)
                add_digest(self._blocks[block][row], tensor)
            else:
                block, row = len(self._blocks), 0
                self._blocks.append(torch.zeros(1, 2, dtype=torch.int64, device="cpu"))
                add_digest(self._blocks[block][0], tensor.cpu())
        return self._number(block, row, n_bytes)

    def _number(self, block: int, row: int, n_bytes: int) -> int:
        self._waiting.append((block, row, n_bytes))
        return len(self._waiting) - 1

    def _stage(self, tensor: Tensor, whole: int) -> int:
        """Copy a small tensor's bytes to the staging buffer; ``whole`` counts repeated ones too."""
        n_bytes = tensor.nbytes
        lazy = tensor.is_conj() or tensor.is_neg() or tensor._is_zerotensor()
        if lazy or not tensor.is_contiguous():
            with without_modes():
                tensor = in_memory(tensor)
        words = -(-n_bytes // 8)
        if (self._words + words) * 8 > STAGED_BYTES:
            self._digest_staged()
        if words:
            begin = self._address + 8 * self._words
            if n_bytes % 8:
                ctypes.memset(begin + 8 * (words - 1), 0, 8)
            ctypes.memmove(begin, tensor.data_ptr(), n_bytes)
        if not self._lengths:
            self._staged_block = len(self._blocks)
            self._blocks.append(self._blocks[_UNDEFINED])  # until it is digested
        self._lengths.append(words)
        self._words += words
        return self._number(self._staged_block, len(self._lengths) - 1, whole)

    def _digest_staged(self) -> None:
        """Digest the staged tensors, so that there is room for more."""
        if not self._lengths:
            return
        with without_modes():
            sums = torch.zeros(len(self._lengths), 2, dtype=torch.int64, device="cpu")
            if self._words:
                add_digests(
                    sums, self._staged[: self._words], torch.tensor(self._lengths, device="cpu")
                )
        self._blocks[self._staged_block] = sums
        self._lengths.clear()
        self._words = 0

    def _slot(self, device: torch.device) -> tuple[int, int]:
        """Return a block of the current stream, and a free row of it."""
        stream = torch.cuda.current_stream(device)
        # Only its own stream knows when a launch into a block is done.
        key = (device, stream.cuda_stream)
        block, used, _ = self._slots.get(key, (_UNDEFINED, SLOTS, stream))
        if used == SLOTS:
            block, used = len(self._blocks), 0
            self._blocks.append(torch.zeros(SLOTS, 2, dtype=torch.int64, device=device))
        self._slots[key] = (block, used + 1, stream)
        return block, used

    def take(self, numbers: Sequence[int]) -> bytes:
        """Return the digests of these numbers, 16 bytes each; wait for the streams involved.

        Numbers start again at 0, and digests that are not taken are dropped.
        """
        self._digest_staged()
        chosen = [self._waiting[number] for number in numbers]
        with without_modes():
            for _, _, stream in self._slots.values():
                stream.synchronize()
            begins = list(accumulate((len(block) for block in self._blocks), initial=0))
            rows = [begins[block] + row for block, row, _ in chosen]
            sizes = torch.tensor(
                [n_bytes for _, _, n_bytes in chosen], dtype=torch.int64, device="cpu"
            )
            sums = torch.cat([block.cpu() for block in self._blocks])[rows]
            digests = finish_digests(sums, sizes)
            digests[[block == _UNDEFINED for block, _, _ in chosen]] = 0
            content: bytes = digests.numpy().tobytes()
        self._begin()
        return content
