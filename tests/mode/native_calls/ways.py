"""Calls in Python's way and with the player, and what the two are compared by."""

import contextlib
from collections import Counter
from itertools import product

import pytest
import torch
import torch.nn.functional as F
from torch.utils._pytree import tree_flatten

from detmode import DeterministicMode
from detmode.bits.difference import same_bits
from detmode.cuda import native
from tests.shared import selection

INTERCEPTS = ("all", "listed")
only_all = pytest.mark.parametrize("ways", ["all"], indirect=True)
only_listed = pytest.mark.parametrize("ways", ["listed"], indirect=True)
"""For what other threads do: a dispatch mode does not receive their calls."""


def in_turn(argument, values):
    """Parametrizes a test over values and ways to intercept: each day half of all pairs."""
    pairs = [
        pair
        for number, pair in enumerate(product(values, INTERCEPTS))
        if selection.PROFILE.thorough or (number // 2 + number + selection.SHARE) % 2 == 0
    ]
    return pytest.mark.parametrize((argument, "ways"), pairs, indirect=["ways"], ids=str)


class Ways:
    """Makes calls in Python's way (0) or with the player (1), and counts what that has replayed."""

    def __init__(self, player, monkeypatch, intercept):
        self._player, self._monkeypatch, self.intercept = player, monkeypatch, intercept
        self._start = player.dm_replayed()
        self.use(1)

    @property
    def replayed(self):
        return self._player.dm_replayed() - self._start

    def use(self, number):
        self._monkeypatch.setenv(native.VARIABLE, str(number))

    def mode(self, **arguments):
        return DeterministicMode(**{"intercept": self.intercept, "simulate": "cuda", **arguments})

    @contextlib.contextmanager
    def block(self, number, **arguments):
        self.use(number)
        with self.mode(**arguments) as mode:
            yield mode

    def by_player(self, **arguments):
        return self.block(1, **arguments)

    def same(self, program, **arguments):
        """Check that a program has the same results and rows in both ways; return the rows."""
        outcomes = []
        for number in (0, 1):
            torch.manual_seed(0)
            with self.block(number, **arguments) as mode:
                value = program()
            outcomes.append((value, rows(mode)))
        (expected, rows_in_python), (value, rows_by_player) = outcomes
        assert_same(value, expected)
        assert rows_by_player == rows_in_python
        return rows_by_player

    def as_with_a_dispatch_mode(self, program, **arguments):
        """Check that a program has the rows, native ones too, that Python's way has with one.

        Return the mode with the player.
        """
        modes = []
        for number, intercept in ((0, "all"), (1, self.intercept)):
            torch.manual_seed(0)
            with self.block(number, **{**arguments, "intercept": intercept}) as mode:
                program()
            modes.append(mode)
        assert rows_of_both(modes[1]) == rows_of_both(modes[0])
        return modes[1]


def assert_same(value, expected):
    """Tensors by their bits, all else by equality."""
    (leaves, form), (expected_leaves, expected_form) = map(tree_flatten, (value, expected))
    assert form == expected_form
    for leaf, known in zip(leaves, expected_leaves):
        assert same_bits(leaf, known) if isinstance(known, torch.Tensor) else leaf == known


def rows(mode):
    """The rows whole, with counts by module; native ones where Python's way has them, too."""
    return [
        (row.line, row.count, row.modules, row.outer_site)
        for row in mode.records
        if row.action != "native" or mode.policy.warn_only
    ]


def actions(mode):
    """The action and the count of each row."""
    return [(row.action, row.count) for row in mode.records]


def rows_of_both(mode):
    """The rows of calls that a dispatch mode and kernels see, under the functional names.

    In backward, PyTorch calls other variants while a dispatch mode is on.
    """
    counts = Counter()
    for row in mode.records:
        if row.family != "uninitialized_memory":
            name = row.overload.replace("_.", ".").replace(".Tensor", ".default")
            name = name.replace("aten::_index_put_impl", "aten::index_put")
            for module, count in (row.modules or {None: row.count}).items():
                counts[name, row.action, row.site, row.outer_site, module] += count
    return counts


def data(n=6, seed=0):
    generator = torch.Generator().manual_seed(seed)
    index = torch.randint(n, (5,), generator=generator)
    return torch.randn(n, 3, generator=generator), index, torch.randn(5, 3, generator=generator)


def added(x, index, source):
    return x.index_add(0, index, source)


def gathered(x):
    """Adds at indices in its backward."""
    return x.gather(0, torch.tensor([[0, 0, 2], [1, 1, 1]])).sin().sum()


def convolved(x=None):
    """A native call."""
    return F.conv1d(torch.ones(2, 1, 6) if x is None else x, torch.ones(1, 1, 2))


def again(function, times=4):
    """The last of several results; one line makes all the calls."""
    return [function() for _ in range(times)][-1]
