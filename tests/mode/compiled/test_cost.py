"""Work that compiled code is spared under the mode, without a decision being lost."""

import pytest
import torch
import torch._dynamo
from torch._dynamo import convert_frame

from detmode import RUN_TO_RUN, DeterministicMode, Native, Rule, audit, default_rules
from detmode.mode.compiled import hooks
from detmode.table.rule_table import TORCH_VERSION
from tests.shared import needs

pytestmark = [
    needs.compiler,
    # The compiler warns, of Python and of itself, by version.
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(not hooks.CAN_COMPILE, reason="PyTorch 2.8 compiles nothing"),
    pytest.mark.usefixtures("cublas_workspace", "no_caches"),
]


def product(x):
    return x @ x


def rows(mode):
    return [(row.overload, row.action, row.count) for row in mode.records]


@pytest.mark.skipif(TORCH_VERSION < (2, 10), reason="its rows ask for the workspace of cuBLAS")
def test_a_dense_product_has_no_twin():
    """Only sparse products may vary, so that a dense one is called as without the mode.

    Where a row of the user's concerns it, it is counted as in eager code: the graph that was made
    for a table with the same operators is not used.
    """
    function, x = torch.compile(product), torch.eye(3)
    with DeterministicMode(simulate="cuda") as mode:
        function(x)
    assert rows(mode) == []
    assert not [each for each in mode.overloads.values() if each is not None and each.twin]
    because = "a row of the user's"
    rule = Rule(op="aten::mm", action=Native(), guarantee=RUN_TO_RUN, because=because)
    with DeterministicMode(simulate="cuda", rules=default_rules() + [rule]) as mode:
        function(x)
    assert rows(mode) == [("aten::mm.default", "native", 1)]


def test_an_audit_counts_dense_products():
    """An audit counts the bytes of every call: two inputs read, one output written."""
    assert audit(torch.mm, torch.eye(3), torch.eye(3)).total_bytes == 3 * 36


def test_sparse_products_meet_their_rows():
    """A dense product is spared a look at its rows, a sparse one never, wherever it stands."""
    dense, sparse = torch.eye(3), torch.eye(3).to_sparse()
    with DeterministicMode(True, simulate="cuda") as mode:
        torch.mm(dense, dense)
        torch.mm(sparse, dense)
        torch.ops.aten.mm.default(self=dense, mat2=sparse)
    assert [(row.overload, row.count) for row in mode.records if "mm" in row.overload] == [
        ("aten::mm.default", 1),
        ("aten::mm.default", 1),
    ]


def test_the_mode_itself_is_not_compiled(monkeypatch):
    """Dynamo compiles what a frame that it leaves to Python calls, but not the mode."""
    compiled = []

    def note(self, frame, *others, **more):
        compiled.append(frame.f_code.co_filename)
        return convert(self, frame, *others, **more)

    convert = convert_frame.ConvertFrameAssert.__call__
    monkeypatch.setattr(convert_frame.ConvertFrameAssert, "__call__", note)

    def stepwise(x, index, source):
        for _ in range(2):
            torch._dynamo.graph_break()
            x = x.index_add(0, index, source)
        return x

    with DeterministicMode(simulate="cuda") as mode:
        torch.compile(stepwise, backend="eager")(
            torch.zeros(4), torch.tensor([1, 1]), torch.ones(2)
        )
    assert rows(mode) == [("aten::index_add.default", "substitute", 2)]
    assert set(compiled) == {__file__}
