"""The bits that every substitute gives, pinned: a digest of each operator's samples.

``tools/write_expected.py`` writes ``tests/expect/digests.txt`` from them. The samples run in
float32 where they can, on the host runner in program order. Their inputs are made of integers, and
NaNs count as one, so that neither a math library nor a machine's vectors are in a digest. Nor are a
compiler's options: the host runner lets none contract a product with a sum, which avg_pool3d's and
grid_sampler's bits would show.
"""

import hashlib
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace

import torch

from detmode.table.maker import Maker
from detmode.table.samples import Sample
from detmode.verify.cases import Case, cases, run_substituted, stored, tensors_of
from tests.shared import ROOT
from tests.shared.selection import once

LINES = ROOT / "tests" / "expect" / "digests.txt"
LARGEST = 30_000
"""Elements of a sample's inputs, of which larger ones would take most of the time."""

LEFT_OUT = dict.fromkeys(
    ("ctc_loss aten::_ctc_loss_backward", "ctc_loss aten::_ctc_loss_backward.Tensor"),
    "its inputs are results of ATen's log_softmax and ctc_loss, which depend on the CPU's vectors",
)
"""Operators whose bits hang on the machine, and on what of it."""


class ExactMaker(Maker):
    """Makes tensors as :class:`Maker` does, of integers and powers of two only."""

    def normal(self, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Values of wide range and both signs, with 24 bits each."""
        dtype = dtype or self.dtype
        if not dtype.is_floating_point and not dtype.is_complex:
            return super().normal(*shape, dtype=dtype)
        sizes = (*shape, 2) if dtype.is_complex else shape
        numbers = torch.randint(1 - 2**24, 2**24, sizes, generator=self._generator)
        exponents = torch.randint(-27, -18, sizes, generator=self._generator)
        real = torch.ldexp(numbers.double(), exponents)
        return (torch.view_as_complex(real) if dtype.is_complex else real).to(self.device, dtype)

    def zipf(self, n: int, size: int) -> torch.Tensor:
        """Positions below ``size``, half of them 0, a quarter below the half, and so on."""
        drawn = torch.randint(1, max(size, 1) + 1, (n,), generator=self._generator)
        return (max(size, 1) // drawn - 1).clamp(max=max(size - 1, 0)).to(self.device)


def made_exactly(sample: Sample) -> Sample:
    """The sample with inputs of :class:`ExactMaker`."""
    return replace(sample, make=lambda maker: sample.make(ExactMaker(maker.dtype, maker.device)))


def small_cases(family: str | None = None) -> list[Case]:
    """A case of each sample that is not large."""
    exact = (replace(case, sample=made_exactly(case.sample)) for case in once(cases(family)))
    return [case for case in exact if elements_of(case) <= LARGEST]


def elements_of(case: Case) -> int:
    """Elements of all inputs."""
    inputs = tensors_of(tuple(case.sample.arguments(case.dtype).values()))
    return sum(stored(each).numel() for each in inputs)


def bits_of(tensors: Iterable[torch.Tensor]) -> bytes:
    """Dtypes, shapes and bytes; of a NaN not which."""
    parts = []
    for tensor in tensors:
        dense = stored(tensor).detach().contiguous().resolve_conj()
        real = torch.view_as_real(dense) if dense.is_complex() else dense
        if real.is_floating_point():
            real = real.masked_fill(real.isnan(), torch.nan)
        parts += [f"{tensor.dtype}{list(tensor.shape)}".encode(), bytes_of(real)]
    return b"".join(parts)


def bytes_of(tensor: torch.Tensor) -> bytes:
    """The bytes of a contiguous tensor."""
    return bytes(tensor.reshape(-1).view(torch.uint8).tolist())


def found(family: str | None = None) -> dict[str, str]:
    """The digest of each operator, of a family or of all, after the family's name."""
    hashes: dict[str, hashlib._Hash] = defaultdict(hashlib.sha256)
    for case in sorted(small_cases(family), key=str):
        own = hashes[f"{case.family} {case.sample.op}"]
        own.update(str(case).encode())
        own.update(bits_of(run_substituted(case.sample, case.dtype)))
    return {name: own.hexdigest()[:32] for name, own in hashes.items() if name not in LEFT_OUT}


def pinned() -> dict[str, str]:
    """The digests that are committed."""
    lines = (line.rpartition(" ") for line in LINES.read_text(encoding="utf-8").splitlines())
    return {name: digest for name, _, digest in lines if not name.startswith("#")}


HEAD = """\
# The bits of every substitute on its samples. A change of a line is a decision: it changes results
# of programs that run today, so it needs a line in CHANGELOG.md. tools/write_expected.py digests
"""


def text_of(digests: dict[str, str]) -> str:
    """The file's text, sorted."""
    return HEAD + "".join(f"{name} {digests[name]}\n" for name in sorted(digests))
