"""A long process: what a mode remembers has a bound."""

import gc
import tracemalloc
import weakref

import pytest
import torch

from detmode import Substitute
from detmode.mode.audit import Audit
from detmode.runs.probing import Probe
from tests.shared.programs import in_another_thread, index_add, table_of
from tests.shared.selection import todays_forms

CALLS = 80
SOURCE = "def generated(x):\n    x.cumsum(0).index_add_(0, index, source).sum().backward()\n"


@pytest.mark.parametrize("looking", todays_forms([None, Audit, Probe]))
def test_generated_code(mode, table, looking, monkeypatch):
    """Code that is generated for each call is freed after its use."""
    # These have bounds, which are too far away for a test.
    monkeypatch.setattr("detmode.mode.row_counter.RECENT", 8)
    monkeypatch.setattr("detmode.mode.row_counter._STRETCHES", 8)
    monkeypatch.setattr("detmode.sites.forward_memory._NOTES", 8)
    x = torch.ones(2, requires_grad=True)
    names = {"index": torch.tensor([0]), "source": torch.ones(1)}

    def call():
        exec(SOURCE, names)
        names["generated"](x)
        return weakref.ref(names.pop("generated").__code__)

    def growth():
        observer = Audit(rules=table) if looking is Audit else Probe(1)
        with observer if looking else mode():
            for _ in range(20):
                call()
            tracemalloc.start()
            codes = [call() for _ in range(CALLS)]
            gc.collect()
            assert not any(code() for code in codes)
            del codes
            before, _ = tracemalloc.get_traced_memory()
            for _ in range(CALLS):
                call()
            gc.collect()
            after, _ = tracemalloc.get_traced_memory()
            tracemalloc.stop()
        return (after - before) / CALLS

    # A new thread remembers no calls of other tests, which would make room for these.
    # Other threads of the process allocate too, now and then.
    assert min(in_another_thread(growth) for _ in range(3)) < 1000


def test_substitutes_are_freed(mode):
    """A mode for each step, with a rule of its own, keeps none of their functions."""

    def step():
        def substitute(self, dim, index, source, alpha):
            return self

        with mode(rules=table_of("aten::index_add", Substitute(substitute))):
            index_add()
        return weakref.ref(substitute)

    kept = step()
    gc.collect()
    assert kept() is None
