"""Which rows compiled code reaches, what it copies, and what is used again from caches."""

import fnmatch

import pytest
from compiled_functions import FUNCTIONS
from test_compiled import run

from detmode.audit.mode import Audit
from detmode.mode.row_counter import RowCounter
from detmode.rules import default_rules
from detmode.table.rule import Allow
from detmode.table.rule_table import TORCH_VERSION, resolve

NOT_REACHED = {
    "*c10d*": "several processes call it",
    "symm_mem::*": "several processes call it",
    "torchvision::*": "a package of its own",
    "aten::*cudnn*": "no call on a CPU reaches cuDNN",
    "aten::_scaled_dot_product_*": "its kernels are CUDA's alone",
    "aten::_flash_attention_backward *": "its kernels are CUDA's alone",
    "aten::_efficient_attention_backward *": "its kernels are CUDA's alone",
    "aten::_convolution*": "autograd calls it below aten::convolution",
    "aten::_index_put_impl *": "aten::index_put calls it",
    "aten::_unsafe_*": "only decompositions call it",
    "aten::adaptive_avg_pool3d_backward.grad_input *": "autograd calls the functional one",
    "aten::_embedding_bag_dense_backward *": "aten::_embedding_bag_backward calls it",
    "*cublas_workspace_unset*": "PyTorch 2.8 and 2.9 in a process without the variable",
    "*deterministic_flag(False)*": "the mode turns the flag on",
    "aten::resize *": "compiled code makes its own memory",
    "aten::empty_*": "compiled code makes its own memory",
}
"""Rows that no user's function reaches on a CPU, as globs of operator and condition, and why."""


@pytest.mark.filterwarnings("ignore")
def test_every_row_is_reached(monkeypatch):
    """The functions that are compiled reach each row of the table that may hold on CUDA."""
    reached = set()
    count = RowCounter.count

    def note(counter, call, decision):
        if call.row is not None:
            reached.add(call.row.rule)
        return count(counter, call, decision)

    monkeypatch.setattr(RowCounter, "count", note)
    for function, make in FUNCTIONS.values():
        with Audit():
            run(function, make())
    missing = [
        f"{rule.op} {rule.when}"
        for rule in (row.rule for row in default_rules())
        if rule.holds_for(TORCH_VERSION)
        and resolve(rule.op) is not None
        and not isinstance(rule.action, Allow)
        and "cuda" in (rule.when.devices or {"cuda"})
        and rule not in reached
        and not any(fnmatch.fnmatch(f"{rule.op} {rule.when}", each) for each in NOT_REACHED)
    ]
    assert missing == []
