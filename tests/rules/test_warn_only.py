"""ATen's native calls need PyTorch's strict flag only where ATen looks at ``warn_only``."""

import json
import platform
import struct
from collections.abc import Collection
from pathlib import Path

import numpy as np
import pytest
import torch

from detmode.mode.base_mode import facts_of
from detmode.mode.handled import Handled
from detmode.process.versions import parse_version
from detmode.rules import default_rules
from detmode.table.rule import Native, Substitute
from tests.shared import table_facts as facts

FACTS = json.loads((facts.TESTS / "facts" / "warn_only.json").read_text(encoding="utf-8"))
LIBRARIES = Path(torch.__file__).parent / "lib"
AT_ONCE = 1 << 26
"""Bytes of code that are looked at together."""
GETTER = b"_ZNK2at7Context31deterministicAlgorithmsWarnOnlyEv"


def readers() -> set[str]:
    """The operators that look at it without an alert."""
    of_libraries = [*FACTS["libtorch_cpu"], *FACTS["libtorch_cuda"]]
    lists = [fact["operators"] for fact in of_libraries if isinstance(fact["operators"], list)]
    return {op for operators in lists for op in operators}


def has_native(action: object) -> bool:
    """True if PyTorch's own path may make calls of a row."""
    return isinstance(action, Native) or (
        isinstance(action, Substitute) and isinstance(action.otherwise, Native)
    )


def test_native_rows() -> None:
    """Families say of their operators what the binaries do; other libraries' are not known."""
    table, wrong = default_rules(), []
    for row in facts.rows():
        func = facts.resolve(row.rule.op)
        if func is None or not has_native(row.rule.action):
            continue
        reads = func.namespace != "aten" or func._schema.name in readers()
        if facts_of(func, table, {}).reads_warn_only != reads:
            wrong.append(f"{facts.family_file(row)}: {row.rule.op}, READS_WARN_ONLY")
    assert not wrong, wrong[0]


def test_rows_that_alert() -> None:
    """An alert reads it as well, so that calls of such a row do; others of the operator do not."""
    info = facts_of(torch.ops.aten.put.default, default_rules(), {})
    arguments = torch.zeros(3), torch.tensor([0]), torch.zeros(1)
    alerting, adding = (Handled(info, (*arguments, adds), {}) for adds in (False, True))
    assert alerting.reads_warn_only
    assert not adding.reads_warn_only


# The machine code


class Library:
    """A shared library of x86-64.

    Args:
        path: of the file.
    """

    def __init__(self, path: Path) -> None:
        self.data = np.memmap(path, np.uint8, "r")
        start, size, count, names = struct.unpack_from("<Q10xHHH", self.bytes(0x28, 0x18))
        heads = [
            struct.unpack("<IIQQQQIIQQ", self.bytes(start + size * i, 64)) for i in range(count)
        ]
        texts = self.bytes(*heads[names][4:6])
        self.sections = {
            texts[head[0] : texts.index(b"\0", head[0])].decode(): head[3:6] for head in heads
        }
        strings = self.section(".dynstr")
        self.symbols = [
            (strings[name : strings.index(b"\0", name)], value, size)
            for name, _, _, _, value, size in struct.iter_unpack("<IBBHQQ", self.section(".dynsym"))
        ]

    def bytes(self, offset: int, size: int) -> bytes:
        """Bytes of the file."""
        return self.data[offset : offset + size].tobytes()

    def section(self, name: str) -> bytes:
        """The bytes of a section."""
        return self.bytes(*self.sections[name][1:])

    def callers(self, symbol: bytes) -> set[str]:
        """The functions that call a symbol of another library or its own."""
        numbers = [i for i, (name, *_) in enumerate(self.symbols) if name == symbol]
        relocations = struct.iter_unpack("<QQq", self.section(".rela.plt"))
        slots = {slot for slot, info, _ in relocations if info >> 32 in numbers}
        stubs = [at for at, slot in self.jumps(".plt", b"\xff\x25", slots)]
        calls = self.jumps(".text", b"\xe8", stubs) + self.jumps(".text", b"\xe9", stubs)
        return {self.function_at(at) for at, _ in calls}

    def jumps(self, name: str, code: bytes, targets: Collection[int]) -> list[tuple[int, int]]:
        """The places where the code of a jump comes before the distance of one of the targets."""
        address, offset, size = self.sections[name]
        jumps, length = [], len(code) + 4
        for start in range(0, size, AT_ONCE):
            part = self.data[offset + start : offset + min(size, start + AT_ONCE + length)]
            ends = len(part) - length + 1
            at = np.flatnonzero(np.all([part[i : ends + i] == b for i, b in enumerate(code)], 0))
            distances = sum(part[at + len(code) + i].astype(np.int32) << 8 * i for i in range(4))
            reached = address + start + at + length + distances
            jumps += [
                (address + start + int(at[i]), int(reached[i]))
                for i in np.flatnonzero(np.isin(reached, list(targets)))
            ]
        return jumps

    def function_at(self, address: int) -> str:
        """The exported function whose code has an address, or the address."""
        names = (name for name, begin, size in self.symbols if begin <= address < begin + size)
        return next(names, hex(address).encode()).decode()


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="code for x86-64 is read")
@pytest.mark.skipif(platform.system() != "Linux", reason="an ELF file is read")
def test_the_functions_that_read_it() -> None:
    """Nothing else of the installed library asks for it: a new reader needs a look."""
    version = parse_version(torch.__version__)
    expected = [
        fact["function"]
        for fact in FACTS["libtorch_cpu"]
        if parse_version(fact.get("until", "9.9")) >= version
    ]
    callers = Library(LIBRARIES / "libtorch_cpu.so").callers(GETTER)
    assert len(callers) == len(expected)
    assert all(any(name in caller for caller in callers) for name in expected), callers
