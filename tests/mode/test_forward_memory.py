"""Autograd's own threads number their nodes anew: what is remembered of them stays apart."""

import threading
from types import SimpleNamespace

import pytest

from detmode import allow
from detmode.cuda.undo import Undo
from detmode.sites.forward_memory import ForwardMemory, forward_memory
from detmode.sites.module_path import ModulePaths


@pytest.fixture
def numbered(monkeypatch):
    """A trace whose next node, and whose node in backward, has the number that the test sets."""
    memory = ForwardMemory()
    state = {"next": 0, "current": None}
    monkeypatch.setattr("detmode.sites.forward_memory._get_sequence_nr", lambda: state["next"])
    monkeypatch.setattr("detmode.sites.forward_memory._current_node", lambda: state["current"])
    return memory, state


class Node:
    def __init__(self, number, name="GatherBackward0"):
        self._number = number
        self._name = name

    def name(self):
        return self._name

    def _sequence_nr(self):
        return self._number


def call_of(*names):
    return SimpleNamespace(overload=SimpleNamespace(names=names), notes=None, site=None)


def allows(memory, *names):
    return memory.allows(call_of(*names))


def make_node(memory, state, number, names):
    state["next"] = number + 1
    memory.remember_call(call_of(*names), ModulePaths())


def in_another_thread(function):
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()


def test_a_foreign_node_with_the_same_number_is_not_allowed(numbered):
    """A node may be either of two: allowed is what is allowed for both."""
    memory, state = numbered
    memory.open_region(memory, ("aten::gather",), Undo())
    make_node(memory, state, 5, ("aten::gather",))
    memory.close_region(memory)
    state["current"] = Node(5)
    assert allows(memory, "aten::scatter_add")
    state["current"] = None
    in_another_thread(lambda: make_node(memory, state, 5, ("aten::gather",)))
    state["current"] = Node(5)
    assert not allows(memory, "aten::scatter_add")


def test_a_call_in_a_doubtful_backward_inherits_what_holds_for_both(numbered):
    """A node made in a backward is allowed only what each node that may run there is allowed."""
    memory, state = numbered
    undo = Undo()
    memory.open_region(memory, ("aten::gather",), undo)
    in_another_thread(lambda: make_node(memory, state, 5, ("aten::gather",)))
    memory.close_region(memory)
    make_node(memory, state, 5, ("aten::gather",))
    state["current"] = Node(5)
    make_node(memory, state, 9, ("aten::gather",))
    state["current"] = Node(9)
    assert not allows(memory, "aten::scatter_add")


def test_a_foreign_node_keeps_its_own_allowance(numbered):
    """A region around a recomputation holds for the nodes that autograd's thread makes in it."""
    memory, state = numbered
    memory.open_region(memory, ("aten::gather",), Undo())
    in_another_thread(lambda: make_node(memory, state, 7, ("aten::gather",)))
    memory.close_region(memory)
    state["current"] = Node(7)
    assert allows(memory, "aten::scatter_add")


def test_each_thread_has_a_trace():
    """What a thread remembers is its own, open regions included."""
    seen = []
    with allow("aten::histc"):
        in_another_thread(lambda: seen.append(forward_memory()))
        assert seen[0] is not forward_memory()
        assert allows(forward_memory(), "aten::histc")
        assert not allows(seen[0], "aten::histc")


@pytest.mark.parametrize(
    ("operator", "node"),
    [
        ("aten::index_add_", "IndexAddBackward0"),
        ("aten::_adaptive_avg_pool2d_backward", "AdaptiveAvgPool2DBackwardBackward0"),
        ("aten::nll_loss2d_forward", "NllLoss2DBackward0"),
        ("aten::mul", "MulBackwardAutogradNestedTensor0"),
        ("torchvision::roi_align", "torch::autograd::CppNode<vision::ops::ROIAlignFunction>"),
        ("mine::sum", "GeneratedBackwardFor_mine_sum_defaultBackward"),
    ],
)
def test_a_node_that_the_operator_may_have_made(numbered, operator, node):
    """A node's name is that of its operator, or tells nothing: the note holds."""
    memory, state = numbered
    memory.open_region(memory, (operator,), Undo())
    make_node(memory, state, 5, (operator,))
    memory.close_region(memory)
    state["current"] = Node(5, node)
    assert memory.current_place() is not None
    assert allows(memory, "aten::scatter_add")


@pytest.mark.parametrize("node", ["AdaptiveAvgPool2DBackward0", "ScatterBackward0"])
def test_a_node_that_another_operator_made(numbered, node):
    """A graph of another thread may hold the same number: its node takes over nothing."""
    memory, state = numbered
    memory.open_region(memory, ("aten::scatter_add",), Undo())
    make_node(memory, state, 5, ("aten::scatter_add",))
    memory.close_region(memory)
    state["current"] = Node(5, node)
    assert memory.current_place() is None
    assert not allows(memory, "aten::_adaptive_avg_pool2d_backward")
