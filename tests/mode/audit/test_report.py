"""An audit's estimates, and the list of what it cannot see."""

import json
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import detmode
from detmode import Native, Refuse, Report, RuleTable, Substitute
from detmode.mode.audit import Audit, AuditReport
from detmode.mode.audit.blind_spots import ALWAYS_UNSEEN, runs_on_cpu
from detmode.rules import default_rules, families
from detmode.table.rule import Allow
from detmode.table.rule_table import resolve
from tests.shared.programs import rule

neg = partial(rule, "aten::neg", alert="neg_cuda")


def audited(function, *rules, **options):
    mode = Audit(rules=RuleTable(rules), **options)
    with mode:
        function()
    return mode.report()


class Net(nn.Module):
    """Enlarges twice, by one line of code in two modules."""

    class Up(nn.Module):
        def __init__(self, channels):
            super().__init__()
            self.conv = nn.Conv2d(channels, 2, 1)

        def forward(self, x):
            return F.interpolate(self.conv(x), scale_factor=2, mode="bilinear")

    def __init__(self):
        super().__init__()
        self.first, self.second = self.Up(3), self.Up(2)

    def forward(self, x):
        between = self.first(x)
        # A call that makes no autograd node is not taken for the one before it.
        between.detach().neg()
        return self.second(between)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_bytes_of_a_program(device):
    """The totals are the sums that one counts by hand; a substitute adds its traffic."""
    x = torch.ones(4, 6, device=device)

    def function():
        y = (x + x).t()  # 96 twice read, 96 written; a view
        for _ in range(3):
            y.neg()  # 96 read, 96 written, of which a substitute makes 2.5 times as much

    report = audited(function, neg(Substitute(torch.neg, traffic=2.5)))
    (cost,) = report.costs
    assert (cost.calls, cost.bytes, cost.extra_bytes) == (3, 3 * 192, 3 * 288)
    assert (report.total.calls, report.total_bytes) == (5, 288 + 3 * 192)
    assert (report.extra_bytes, report.fill_bytes) == (3 * 288, 0)
    assert "5 calls move at least 864 bytes" in str(report)
    assert "at most about 100.0%" in str(report)


@pytest.mark.parametrize(
    ("action", "extra"),
    [
        (Native(), None),
        (Substitute(torch.neg), None),
        (Substitute(torch.neg, traffic=1.0), 0),
        (Refuse(), 0),
    ],
)
def test_what_is_not_counted_is_null(action, extra):
    """PyTorch's own path and a substitute without a count have no extra bytes, and it is said."""
    report = audited(lambda: torch.ones(4).neg(), neg(action))
    (row,) = json.loads(report.to_json())["rows"]
    assert (row["bytes"], row["extra_bytes"]) == (32, extra)
    assert report.total.uncounted_bytes == (32 if extra is None else 0)
    assert ("Not counted" in str(report)) == (extra is None)


@pytest.mark.parametrize("fill", [True, False])
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_the_fill(device, fill):
    """New memory costs one write while the fill is on, and grown memory what it grew by."""

    def function():
        x = torch.empty(10, device=device)
        torch.empty_like(x)
        x.resize_(25)

    mode = Audit(fill_uninitialized_memory=fill)
    with mode:
        function()
    expected = 40 + 40 + 60 if fill else 0
    report = mode.report()
    assert (report.fill_bytes, report.extra_bytes, report.total_bytes) == (expected, expected, 0)
    assert ("to save filling new memory" in report.next_step) == fill


def test_sparse_memory_is_not_filled():
    """A sparse tensor without elements has no memory to fill."""
    report = detmode.audit(lambda: torch.empty(3, 3, layout=torch.sparse_coo))
    assert (len(report), report.fill_bytes) == (1, 0)


def test_a_call_that_fails():
    """A call that raises is a row without bytes, and the report is made all the same."""
    mode = Audit(rules=RuleTable([rule("aten::view", Native())]))
    with pytest.raises(RuntimeError, match="shape"), mode:
        torch.ones(3).view(2)
    report = mode.report()
    assert [(record.count, cost.bytes) for record, cost in zip(report.records, report.costs)] == [
        (1, 0)
    ]


def test_a_composite_is_what_it_is_made_of():
    """In inference mode a composite operator comes whole, and its parts are counted once."""
    x = torch.ones(2, 3)
    with torch.inference_mode():
        inference = audited(lambda: F.linear(x, torch.ones(4, 3)))
    plain = audited(lambda: F.linear(x, torch.ones(4, 3)))
    assert inference.total_bytes == plain.total_bytes > 0


def test_modules():
    """Each module has its calls and those of their backward, also where two share a line."""
    net = Net()
    report = detmode.audit(lambda: net(torch.ones(1, 3, 4, 4)).sum().backward())
    modules = report.modules
    assert set(modules) == {
        "",
        "Net",
        "Net.first",
        "Net.first.conv",
        "Net.second",
        "Net.second.conv",
    }
    # [1, 2, 4, 4] to [1, 2, 8, 8] to [1, 2, 16, 16], and back.
    assert modules["Net.first"].bytes == 2 * (128 + 512)
    assert modules["Net"].bytes == 2 * 512
    # Into its backward comes the gradient of sum, one number expanded.
    assert modules["Net.second"].bytes == (512 + 2048) + (4 + 512)
    assert modules["Net.first.conv"].uncounted_bytes == modules["Net.first.conv"].bytes > 0
    for name in ("calls", "bytes", "extra_bytes", "uncounted_bytes"):
        total = sum(getattr(cost, name) for cost in modules.values())
        assert total == getattr(report.total, name)
    assert "Net.second.conv" in str(report)


def test_module_of_a_write_to_a_view():
    """Its backward, whose node PyTorch puts around another one, is its module's, too."""

    class Scales(torch.nn.Module):
        def forward(self, x):
            y = 2 * x
            y[0].mul_(3)
            return y

    x = torch.ones(3, 3, requires_grad=True)
    forward = detmode.audit(lambda: Scales()(x)).modules["Scales"].calls
    modules = detmode.audit(lambda: Scales()(x).backward(x.detach())).modules
    # Outside of it are the copy of the gradient and what accumulates it.
    assert modules["Scales"].calls - forward > modules[""].calls


def test_a_cnn_without_and_with_substitutes():
    """``substitute=False`` is what PyTorch itself does: the backward of interpolation raises."""
    net, x = Net(), torch.ones(1, 3, 4, 4)
    actions = {}
    for substitute in (True, False):
        mode = Audit(substitute=substitute)
        with mode:
            net(x).sum().backward()
        report = mode.report()
        actions[substitute] = {record.overload: record.action for record in report.records}
        assert report.raises is not substitute
    name = "aten::upsample_bilinear2d_backward.default"
    assert (actions[True].pop(name), actions[False].pop(name)) == ("substitute", "error")
    assert actions[True] == actions[False]


@pytest.mark.parametrize(
    ("action", "options", "expected"),
    [
        (Refuse(), {}, "error"),
        (Refuse(), {"warn_only": True}, "warn"),
        (Refuse(), {"overrides": {"aten::neg": "allow"}}, "allow"),
        (Native(), {"overrides": {"aten::neg": "error"}}, "error"),
        (Substitute(len), {"warn_only": True}, "substitute"),
        (Substitute(len), {"substitute": False}, "error"),
        (Substitute(len), {"substitute": False, "warn_only": True}, "warn"),
        (Substitute(len), {"substitute": False, "overrides": {"aten::neg": "native"}}, "native"),
        (
            Substitute(len),
            {"substitute": False, "overrides": {"aten::neg": "substitute"}},
            "substitute",
        ),
        (Substitute(len, otherwise=Native()), {"substitute": False}, "native"),
    ],
)
def test_options_are_the_modes(action, options, expected):
    """An audit takes the mode's options, and nothing is raised or warned."""
    report = audited(lambda: torch.ones(3).neg(), neg(action), **options)
    assert [record.action for record in report.records] == [expected]
    assert report.raises == (expected == "error")


def test_where_the_program_turns_the_flag_off():
    """Without the flag nothing guards PyTorch's own path: the mode would warn."""

    def function():
        torch.use_deterministic_algorithms(False)
        torch.ones(3).neg()

    report = audited(function, neg(Native()))
    assert [record.action for record in report.records] == ["warn"]


def attention(device, **options):
    q = torch.ones(1, 2, 4, 8, device=device, requires_grad=True)
    F.scaled_dot_product_attention(q, q, q, **options).sum().backward()


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("options", [{}, {"is_causal": True, "dropout_p": 0.5}])
def test_attention_names_its_rows(device, options):
    """Attention by another backend names the rows that a CUDA run chooses among."""
    unseen = detmode.audit(attention, device, **options).unseen
    (told,) = (each for each in unseen if each.calls)
    assert told.what == "attention on CUDA"
    assert [(row.op, row.action, row.guarantee) for row in told.rows] == [
        ("aten::_scaled_dot_product_flash_attention_backward", "native", "run_to_run"),
        ("aten::_scaled_dot_product_efficient_attention_backward", "native", "run_to_run"),
        ("aten::_scaled_dot_product_cudnn_attention_backward", "warn", None),
    ]


def test_the_rows_follow_the_options():
    """The audit applies the options that it is given."""
    op = "aten::_scaled_dot_product_flash_attention_backward"
    mode = Audit(overrides={op: "error"})
    with mode:
        attention("cpu")
    rows = {row.op: row for each in mode.report().unseen for row in each.rows}
    assert (rows[op].action, rows[op].guarantee) == ("error", None)


@pytest.mark.parametrize("module", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_modules_name_cudnn(module):
    """A recurrent module on the CPU names the rows of cuDNN's."""
    net = module(2, 2)
    unseen = detmode.audit(lambda: net(torch.ones(3, 1, 2))).unseen
    (told,) = (each for each in unseen if each.calls)
    assert {row.op for row in told.rows} == {"aten::_cudnn_rnn", "aten::_cudnn_rnn_backward"}


def test_rows_that_no_cpu_run_meets_are_derived():
    """All operators without a CPU kernel that may vary here are named once, whatever ran."""
    table = default_rules()
    expected = {
        row.rule.op
        for row in table
        if (func := resolve(row.rule.op)) is not None
        and not runs_on_cpu(func)
        and any(not isinstance(each.rule.action, Allow) for each in table.get(func))
    }
    for function in (lambda: attention("cpu"), lambda: None):
        named = [each.rows for each in detmode.audit(function).unseen]
        ops = [op for rows in named for op in dict.fromkeys(row.op for row in rows)]
        assert sorted(ops) == sorted(expected)
    assert "aten::_cudnn_rnn" in expected
    assert not {"aten::index_add", "aten::hspmm", "aten::_sparse_addmm"} & expected


def test_what_no_audit_sees_is_said():
    """Also an audit of nothing counts what it cannot see, and lists it where asked."""
    report = detmode.audit(lambda: None)
    assert set(ALWAYS_UNSEEN) <= set(report.unseen)
    assert "operators of CUDA only and" in str(report)
    assert len(str(report).splitlines()) < 12
    for each in ALWAYS_UNSEEN:
        assert each.what not in str(report)
        assert each.what in report.text(long=True)


@pytest.mark.parametrize("name", families())
def test_stand_ins_are_for_rows_of_their_family(name):
    """STANDS_FOR names operators that no CPU run calls, of rows of its family."""
    listed = {rule.op for rule in families()[name].RULES}
    for ops in getattr(families()[name], "STANDS_FOR", {}).values():
        assert set(ops) <= listed
        assert not any(runs_on_cpu(func) for op in ops if (func := resolve(op)) is not None)


def test_json_round_trip():
    """``from_json`` reads what ``to_json`` wrote: a report's object, and what an audit adds."""
    report = detmode.audit(attention, "cpu")
    again = AuditReport.from_json(report.to_json())
    assert str(again) == str(report)
    assert again.to_json() == report.to_json()
    whole = json.loads(report.to_json())
    plain = json.loads(Report(report.records).to_json())
    added = [whole["rows"][0].pop(name) for name in ("bytes", "extra_bytes")]
    assert added == [report.costs[0].bytes, report.costs[0].extra_bytes]
    assert whole["rows"][0] == plain.pop("rows")[0]
    del plain["verdict"]  # an audit has met no call on a GPU
    assert whole.items() >= plain.items()
