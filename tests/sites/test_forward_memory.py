"""Autograd's own threads number their nodes anew: what is remembered of them stays apart."""

from types import SimpleNamespace

import pytest
import torch

from detmode import allow
from detmode.process.undo import Undo
from detmode.sites.forward_memory import ForwardMemory, forward_memory
from detmode.sites.module_path import ModulePaths
from detmode.table.call_site import CallSite, Note, Site
from tests.shared.programs import in_another_thread

pytestmark = pytest.mark.usefixtures("nothing_left_behind")


class Numbered(ForwardMemory):
    """A memory whose next node, and whose node in backward, has the number that the test sets."""

    number, node = 0, None

    def make_node(self, number, name="aten::gather", allowed=False):
        """The operator's call makes a node, in a region that allows it or in none."""
        undo = Undo()
        if allowed:
            self.open_region((name,), undo)
        self.number = number + 1
        self._receive(call_of(name))
        undo.run()

    def _receive(self, call):
        """Stand for the mode, whose frames are not looked at."""
        self.remember_call(call, ModulePaths())

    def allows_in_backward_of(self, number, node="GatherBackward0"):
        self.node = node_of(number, node)
        return allows(self, "aten::take")


@pytest.fixture
def memory(monkeypatch):
    memory = Numbered()
    monkeypatch.setattr("detmode.sites.forward_memory._get_sequence_nr", lambda: memory.number)
    monkeypatch.setattr("detmode.sites.forward_memory._current_node", lambda: memory.node)
    return memory


def node_of(number, name):
    return SimpleNamespace(name=lambda: name, _sequence_nr=lambda: number)


def call_of(*names):
    return SimpleNamespace(names=names, notes=None, site=None)


def allows(memory, *names):
    return memory.allows(call_of(*names))


def test_a_foreign_node_with_the_same_number_is_not_allowed(memory):
    """A node may be either of two: allowed is what is allowed for both."""
    memory.make_node(5, allowed=True)
    assert memory.allows_in_backward_of(5)
    memory.node = None
    in_another_thread(memory.make_node, 5)
    assert not memory.allows_in_backward_of(5)


def test_a_call_in_a_doubtful_backward_inherits_what_holds_for_both(memory):
    """A node made in a backward is allowed only what each node that may run there is allowed."""
    memory.open_region(("aten::gather",), undo := Undo())
    in_another_thread(memory.make_node, 5)
    undo.run()
    memory.make_node(5)
    memory.node = node_of(5, "GatherBackward0")
    memory.make_node(9)
    assert not memory.allows_in_backward_of(9)


def test_a_foreign_node_keeps_its_own_allowance(memory):
    """A region around a recomputation holds for the nodes that autograd's thread makes in it."""
    memory.open_region(("aten::gather",), undo := Undo())
    in_another_thread(memory.make_node, 7)
    undo.run()
    assert memory.allows_in_backward_of(7)


def test_each_thread_has_a_trace():
    """A thread's memory is its own, open regions included."""
    with allow("aten::histc"):
        other = in_another_thread(forward_memory)
        assert other is not forward_memory()
        assert allows(forward_memory(), "aten::histc")
        assert not allows(other, "aten::histc")


@pytest.mark.parametrize(
    ("operator", "node", "holds"),
    [
        ("aten::index_add_", "IndexAddBackward0", True),
        ("aten::_adaptive_avg_pool2d_backward", "AdaptiveAvgPool2DBackwardBackward0", True),
        ("aten::nll_loss2d_forward", "NllLoss2DBackward0", True),
        ("aten::mul", "MulBackwardAutogradNestedTensor0", True),
        ("torchvision::roi_align", "torch::autograd::CppNode<vision::ops::ROIAlignFunction>", True),
        ("mine::sum", "GeneratedBackwardFor_mine_sum_defaultBackward", True),
        ("aten::_adaptive_avg_pool2d_backward", "AdaptiveAvgPool2DBackward0", False),
        ("aten::scatter_add", "ScatterBackward0", False),
    ],
)
def test_a_node_that_the_operator_may_have_made(memory, operator, node, holds):
    """A node's name is that of its operator, or tells nothing: only then the note holds.

    A graph of another thread may hold the same number: its node takes over nothing.
    """
    memory.make_node(5, operator, allowed=True)
    assert memory.allows_in_backward_of(5, node) == holds
    assert (memory.current_place() is not None) == holds


def test_only_what_every_candidate_allows_is_taken_over(monkeypatch):
    """A call in a backward whose node may be one of two takes over what both were allowed."""
    place, memory = CallSite(Site("here"), None), ForwardMemory()
    notes = [Note(place, ("aten::put",), each) for each in ((("a",), ("b",)), (("b",),))]
    call = SimpleNamespace(site=place, notes=notes, names=("aten::put",))
    node = SimpleNamespace(_sequence_nr=lambda: 0)
    monkeypatch.setattr("detmode.sites.forward_memory._current_node", lambda: node)
    monkeypatch.setattr(memory, "find_site", lambda *args, **kwargs: None)
    torch.ones(1, requires_grad=True).exp()  # an earlier test's node may have a note
    memory.remember_call(call, ModulePaths())
    (kept,) = memory._notes[0].values()
    assert kept.allowed == (("b",),)
