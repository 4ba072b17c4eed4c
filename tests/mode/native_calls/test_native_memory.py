"""The memory of the player: by which key, how much of it, and for how long."""

import gc
import os

import torch
import torch.nn.functional as F

from detmode.cuda import host
from detmode.cuda.native import host_steps
from detmode.mode import native_calls, native_log, native_ops
from detmode.verify.claims import same_bits
from tests.mode.native_calls.ways import actions, added, again, data
from tests.shared.selection import PROFILE_NAME

IS_FULL = PROFILE_NAME == "full"


class First(torch.nn.Module):
    """Calls a function."""

    def forward(self, function, *arguments):
        return function(*arguments)


class Second(First):
    """Has another name."""


def test_code_and_modules_come_and_go(ways):
    """Addresses are reused by new code and new modules: lines and paths are those of the calls."""
    x, index, source = data()
    addresses = []

    def use(i):
        """Call a new function in a new module, three times, and note their addresses."""
        text = "\n" * i + "def use(x, index, source): return x.index_add(0, index, source)"
        names = {}
        exec(compile(text, "/program/file.py", "exec"), names)
        module = (First, Second)[i % 2]()
        function = names.pop("use")  # else it is in a cycle
        for _ in range(3):
            module(function, x, index, source)
        addresses.append((id(function.__code__), id(module)))

    def program():
        addresses.clear()
        for i in range(40):
            use(i)

    rows = ways.same(program)
    assert all(len(set(of_one_kind)) < 40 for of_one_kind in zip(*addresses))
    assert ways.replayed >= 40
    assert len(rows) == 40
    gc.collect()
    assert not native_ops._known & {address for pair in addresses for address in pair}


def test_ever_new_shapes(ways, monkeypatch):
    """The player's plans are bounded: it forgets them, learns again, and stays right."""
    shapes = 100_000 if IS_FULL else 40
    monkeypatch.setattr(native_calls, "_PLANS", shapes // 5)
    with ways.by_player() as mode:
        for n in range(1, shapes + 1):
            arguments = data(n)
            bits = [added(*arguments) for _ in range(4)]
            assert same_bits(bits, bits[:1] * 4)
            assert native_calls._PLANS - mode.taught._table.left["plans"] <= shapes // 5
    assert ways.replayed > shapes
    assert actions(mode) == [("substitute", 4 * shapes)]


def test_a_mode_that_is_entered_after_many_others(ways, monkeypatch):
    """It goes on with what it has learned, and the others leave nothing behind."""
    arguments = data()

    def use(mode):
        with mode:
            again(lambda: added(*arguments))

    first = ways.mode()
    use(first)
    gc.collect()
    monkeypatch.setattr(native_log, "_MOST_NOTES", 8)  # of what may be forgotten
    entries, before = len(native_log._entries), ways.replayed
    for _ in range(20):
        use(ways.mode())
    gc.collect()
    assert len(native_log._entries) == entries
    of_others = ways.replayed
    assert of_others >= before + 20
    use(first)
    assert actions(first) == [("substitute", 8)]
    assert ways.replayed == of_others + 3  # Python sees the first one, in a block of another table


def size():
    """The kilobytes of the process."""
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024


def test_calls_do_not_grow_memory(ways, player, monkeypatch):
    """Neither the process nor an argument's references grow: 10^6 calls in the full profile."""
    times = 1_000_000 if IS_FULL else 10_000
    monkeypatch.setattr(host, "launch_blocks", lambda *_: None)
    arguments = data()
    uses = [torch._C._storage_Use_Count(x.untyped_storage()._cdata) for x in arguments]
    x, weight = torch.ones(1, 1, 4), torch.ones(1, 1, 2)

    def call(times):
        for _ in range(times):
            added(*arguments)
            F.conv1d(x, weight)

    with ways.by_player() as mode:
        call(4)
        player.dm_host_step(None)
        try:
            call(2000)
            before = size()
            call(times)
            assert size() - before < 2048
        finally:
            player.dm_host_step(host_steps.make)
    assert ways.replayed >= times
    assert actions(mode) == [("substitute", times + 2004), ("native", times + 2004)]
    assert [torch._C._storage_Use_Count(x.untyped_storage()._cdata) for x in arguments] == uses
