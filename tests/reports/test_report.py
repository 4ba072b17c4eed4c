"""Records, the report's table, and JSON."""

import copy
import gc
import json
import re
import sys
import weakref
from contextlib import nullcontext, suppress
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import detmode
from detmode import DeterminismWarning, Report, ReportRow, allow
from detmode.mode.audit import AuditReport
from detmode.sites import lines
from detmode.sites.graph_nodes import INTERPRETER
from tests.shared import ROOT
from tests.shared.programs import cumsum, enlarged, histc, image, index_add, put

pytestmark = pytest.mark.usefixtures("nothing_left_behind")

ROW = ReportRow(
    overload="aten::put_.default",
    family="put",
    action="warn",
    guarantee=None,
    alert="put_",
    count=3,
    site="train.py:7",
    module="Net.head",
)


def put_refused_by_pytorch():
    with pytest.raises(RuntimeError):
        put()


def enlarged_backward():
    torch.ops.aten.upsample_bilinear2d_backward(torch.ones(1, 1, 4, 4), [4, 4], [1, 1, 2, 2], False)


ENLARGED_ALERT = "upsample_bilinear2d_backward_out_cuda"


class Net(torch.nn.Module):
    def forward(self, x):
        return F.interpolate(x, scale_factor=2, mode="bilinear")


@pytest.mark.parametrize(
    ("arguments", "call", "expected"),
    [
        ({}, cumsum, ("cumsum", "native", "run_to_run", None)),
        ({}, index_add, ("index_add", "substitute", "gpu_to_gpu", None)),
        ({"substitute": False}, index_add, ("index_add", "native", "run_to_run", None)),
        (
            {"overrides": {"aten::histc": "allow"}},
            histc,
            ("histc", "allow", None, "_histc_cuda with floating point input"),
        ),
        (
            {"overrides": {"aten::put": "native"}},
            put_refused_by_pytorch,
            ("put_", "native", None, "put_"),
        ),
        (
            {"overrides": {"aten::index_add": "allow"}},
            index_add,
            ("index_add", "allow", None, None),
        ),
        # The row's guarantee is the substitute's: beside it PyTorch can only refuse.
        (
            {"overrides": {"aten::upsample_bilinear2d_backward": "native"}},
            enlarged_backward,
            ("upsample_bilinear2d_backward", "native", None, ENLARGED_ALERT),
        ),
        (
            {"substitute": False, "warn_only": True},
            enlarged_backward,
            ("upsample_bilinear2d_backward", "warn", None, ENLARGED_ALERT),
        ),
    ],
)
# The rows are the subject; the warnings are that of test_messages.py.
@pytest.mark.filterwarnings("ignore::detmode.DeterminismWarning")
def test_fields(mode, arguments, call, expected):
    """A row says what was called, what was done, and what may be relied on."""
    with mode(**arguments) as made:
        call()
    (record,) = made.records
    name, *rest = expected
    assert record.overload == f"aten::{name}.default"
    assert [record.action, record.guarantee, record.alert] == rest
    assert record.family == "small"
    assert record.count == 1
    assert record.module is None
    assert record.site.startswith(str(ROOT / "tests"))


def test_one_row_for_overload_action_and_site(mode, line):
    """Calls are counted in rows; another overload, action or site is another row."""

    def user():
        for _ in range(3):
            torch.ones(3).cumsum(0)  # here
        torch.ones(3).cumsum(0)  # here
        with allow("aten::cumsum"):
            torch.ones(3).cumsum(0)  # here
        torch.ones(3).cumsum_(0)  # here
        for region in (nullcontext(), allow("aten::cumsum")):
            with region:
                torch.ones(3).cumsum(0)  # here

    with mode() as made:
        user()
        user()
    assert [(r.overload, r.action, r.count, r.site) for r in made.records] == [
        ("aten::cumsum.default", "native", 6, line(user)[0]),
        ("aten::cumsum.default", "native", 2, line(user)[1]),
        ("aten::cumsum.default", "allow", 2, line(user)[2]),
        ("aten::cumsum_.default", "native", 2, line(user)[3]),
        ("aten::cumsum.default", "native", 2, line(user)[4]),
        ("aten::cumsum.default", "allow", 2, line(user)[4]),
    ]


def test_a_backward_has_the_line_of_the_call_that_made_its_node(mode, line):
    """Not that of a later listed call, which makes no node, nor that of ``backward``."""

    def user():
        y = F.interpolate(image(), scale_factor=2.0, mode="bilinear")  # here
        torch.empty_like(y)
        y.square().sum().backward()

    with mode(overrides={"aten::empty_like": "allow"}) as made:
        user()
    (site,) = (r.site for r in made.records if "upsample_bilinear2d_backward" in r.overload)
    assert [site] == line(user)


def test_two_calls_on_one_line_are_one_row(mode):
    """A row is a line of code: two calls on it are counted together, and warned of once."""
    x, i, y = torch.zeros(3), torch.tensor([0]), torch.ones(1)
    with mode(True) as made, pytest.warns(DeterminismWarning) as caught:
        x.put_(i, y).put_(i, y)
    assert [record.count for record in made.records] == [2]
    assert len(caught) == 1


def test_module_path(mode):
    """A row of a module's forward, and of its backward, has the module's path."""
    net = torch.nn.ModuleDict({"head": Net()})

    class Whole(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.parts = net

        def forward(self, x):
            return self.parts["head"](x.cumsum(0))

    with mode() as made:
        Whole()(image()).sum().backward()
    modules = {record.overload: record.module for record in made.records}
    assert modules["aten::upsample_bilinear2d_backward.default"] == "Whole.parts.head"
    assert modules["aten::cumsum.default"] == "Whole"


def test_modules_that_one_line_calls(mode):
    """Each row of a line that calls several modules has the module of its own call."""
    net = torch.nn.Sequential(
        torch.nn.Upsample(scale_factor=2, mode="bilinear"),
        torch.nn.Upsample(scale_factor=2, mode="bicubic"),
    )
    with mode(overrides={"aten::upsample_bicubic2d_backward": "allow"}) as made:
        net(image()).sum().backward()
    assert {record.overload: record.module for record in made.records} == {
        "aten::upsample_bilinear2d_backward.default": "Sequential.0",
        "aten::upsample_bicubic2d_backward.default": "Sequential.1",
    }


class Counted(torch.autograd.Function):
    """The identity, whose backward is the user's and calls a listed operator."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        cumsum()
        return grad


def test_a_module_that_calls_backward_has_not_made_its_calls(mode):
    """They belong to the modules of the forward calls, or to none."""

    class Penalized(torch.nn.Module):
        def forward(self, x):
            cumsum()
            return torch.autograd.grad(Counted.apply(x).sum(), x)[0]

    with mode() as made:
        Penalized()(image())
    (row,) = made.records
    assert (row.overload, row.count) == ("aten::cumsum.default", 2)
    assert row.modules == {"Penalized": 1}


class Block(torch.nn.Module):
    """A layer whose innermost frame is the user's; ``Upsample``'s is PyTorch's."""

    def forward(self, x):
        return F.interpolate(x, scale_factor=1, mode="bilinear")


class Layers(torch.nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.layers = torch.nn.ModuleList(layers)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


# Calls that warn are in the report, with their modules.
@pytest.mark.filterwarnings("ignore::detmode.DeterminismWarning")
@pytest.mark.parametrize("checkpointed", [False, True], ids=["plain", "checkpointed"])
@pytest.mark.parametrize(
    "layer", [Block, lambda: torch.nn.Upsample(scale_factor=1, mode="bilinear")]
)
def test_modules_of_one_line_are_counted_apart(mode, layer, checkpointed):
    """A loop over layers is one row: its modules are all that were called, forward and backward."""
    net = Layers(layer() for _ in range(3))
    x = image()
    with mode(overrides={"aten::upsample_bilinear2d": "warn"}) as made:
        net(x)
        (checkpoint(net, x, use_reentrant=True) if checkpointed else net(x)).sum().backward()
    forward, backward = made.records
    for record, times in ((forward, 2 + checkpointed), (backward, 1)):
        assert record.module == "Layers.layers.*"
        assert record.modules == {f"Layers.layers.{i}": times for i in range(3)}
        assert record.count == 3 * times


# Calls that warn are in the report, with their modules.
@pytest.mark.filterwarnings("ignore::detmode.DeterminismWarning")
def test_modules_that_come_and_go(mode):
    """A module has nothing of one that died at its address; another mode looks its path up anew."""
    overrides, x = {"aten::upsample_bilinear2d": "warn"}, torch.ones(1, 1, 2, 2)
    with mode(overrides=overrides) as made:
        for i in range(20):
            Layers([torch.nn.Identity()] * (i % 2) + [Block()])(x)
        net = Layers([torch.nn.Identity(), Block()])
        net(x)
    (record,) = made.records
    assert record.modules == {"Layers.layers.0": 10, "Layers.layers.1": 11}
    del net.layers[0]
    with mode(overrides=overrides) as made:
        net(x)
    assert made.records[0].modules == {"Layers.layers.0": 1}


def test_the_place_in_a_library_call_is_the_users(mode, line):
    """A call inside torch's own modules, or Python's library, is at the user's line."""
    net = torch.nn.Sequential(torch.nn.Upsample(scale_factor=2, mode="bilinear"))

    def user():
        copy.deepcopy({"counts": torch.nn.Parameter(torch.ones(2))})  # here
        return net(image()).sum()  # here

    with mode(overrides={"aten::clone": "allow"}) as made:
        user().backward()
    assert [record.site for record in made.records] == line(user)


def test_graphs_that_the_program_interprets(mode, line):
    """A node of the compiler's graph has the line it was made of; others, that of the program."""
    compiled, own = (torch.fx.symbolic_trace(lambda x: x.cumsum(0)) for _ in range(2))
    for node in compiled.graph.nodes:
        node.meta["stack_trace"] = 'File "net.py", line 7'

    def user():
        torch.fx.Interpreter(own).run(torch.ones(3))  # here
        torch.fx.Interpreter(compiled).run(torch.ones(3))
        torch.fx.Interpreter(own).run(torch.ones(3))  # here

    # Of the interpreter no other test has left anything.
    lines._places.pop(id(INTERPRETER), None)
    with mode() as made:
        user()
    first, last = line(user)
    assert [record.site for record in made.records] == [first, "net.py:7", last]


def test_the_report_is_a_copy(mode):
    """A mode counts on over several blocks; a report that was taken earlier stays as it was."""
    made, reports = mode(), []
    for _ in range(2):
        with made:
            cumsum()
        reports.append(made.report())
    assert [[record.count for record in report.records] for report in reports] == [[1], [2]]
    assert made.records == reports[1].records


DETERMINISTIC = "deterministic on this GPU model with this software: every call met is covered"
RUN_TO_RUN = {"action": "native", "guarantee": "run_to_run"}


@pytest.mark.parametrize(
    ("changes", "verdict", "step"),
    [
        (
            [{}, {"count": 1, "site": "x.py:1"}],
            "may vary: 4 calls at 2 lines",
            "train.py:7, aten::put",
        ),
        ([{}, {"action": "error", "count": 1}], "may vary: 4 calls at 1 line", "a remedy of 1"),
        (
            [{"action": "allow"}, {"outer_site": "own.py:2", "count": 9}],
            "may vary: 12 ",
            "at own.py:2",
        ),
        # PyTorch's own path by an override, of an operator for which nobody promises anything.
        ([{"action": "native"}], "may vary: 3 calls at 1 line", "a remedy of 3"),
        ([RUN_TO_RUN], f"{DETERMINISTIC}", "detmode record"),
        (
            [{"guarantee": "gpu_to_gpu"}, {**RUN_TO_RUN, "family": "uninitialized_memory"}],
            DETERMINISTIC,
            "detmode record",
        ),
        ([], "not checked: no call ran on a GPU", "detmode audit"),
    ],
)
def test_the_verdict(changes, verdict, step):
    """One line says what was seen; the step is that of the worst row with most calls."""
    rows = [replace(ROW, modules={}, **each) for each in changes]
    report = Report(replace(row, remedy=f"a remedy of {row.count}") for row in rows)
    assert report.verdict.startswith(verdict)
    assert step in report.next_step
    assert str(report).startswith(f"{report.verdict}\nnext: {report.next_step}")


@pytest.mark.parametrize(
    ("rows", "head", "verdict", "severity"),
    [
        ([RUN_TO_RUN], {"devices": []}, "not checked: no call ran on a GPU", "warning"),
        ([], {"devices": ["cuda"]}, DETERMINISTIC, "note"),
        (
            [RUN_TO_RUN],
            {"not_seen": ["2 calls of other threads"]},
            "not checked: 2 calls of other threads",
            "warning",
        ),
        ([RUN_TO_RUN], {"missing": {"it died": [1]}}, "not checked: rank 1", "warning"),
        (
            [{}],
            {"not_seen": ["2 calls of other threads"], "missing": {"it died": [1]}},
            "may vary: 3 calls at 1 line (without rank 1; without 2 calls of other threads)",
            "warning",
        ),
        (
            [],
            {"failure": "OSError at a.py:1", "devices": []},
            "not finished: OSError at a.py:1; until then: not checked: no call ran on a GPU",
            "error",
        ),
        (
            [RUN_TO_RUN],
            {"failure": "exit code 3"},
            f"not finished: exit code 3; until then: {DETERMINISTIC}",
            "error",
        ),
        (
            [RUN_TO_RUN],
            {"simulate": "cuda"},
            f"{DETERMINISTIC} (CUDA simulated)",
            "note",
        ),
    ],
)
def test_a_verdict_says_no_more_than_was_seen(rows, head, verdict, severity):
    """Its first word is `deterministic` only if every call was met; JSON keeps what it is from."""
    report = Report([replace(ROW, modules={}, **changes) for changes in rows], head=head)
    assert (report.verdict, report.page().severity) == (verdict, severity)
    assert Report.from_json(report.to_json()).verdict == verdict


@pytest.mark.parametrize(
    ("head", "is_named"),
    [
        ({"devices": ["cuda"], "interface": "command"}, True),
        ({"devices": ["cuda"]}, True),
        ({"devices": ["cuda"], "simulate": "cuda"}, False),
        ({"devices": ["cuda"], "interface": "pytest"}, False),
    ],
    ids=["command", "python", "simulated", "pytest"],
)
def test_the_step_where_filling_costs(head, is_named):
    """On a GPU the step names the recording that tells whether new memory must be filled."""
    row = replace(ROW, modules={}, **RUN_TO_RUN, family="uninitialized_memory")
    step = Report([row], head=head).next_step
    assert step.startswith("to prove it, ")
    assert ("`detmode record` says whether anything reads it" in step) == is_named


WIDE = "3        aten::put_.default  warn                   put       train.py:7  Net.head"
NARROW = ["    3  warn        aten::put_.default", "                   train.py:7  Net.head"]


def test_the_text(monkeypatch):
    """A line a row, or two where the terminal is narrow; what only fills memory is one line."""
    filled = replace(ROW, **RUN_TO_RUN, family="uninitialized_memory")
    library = "/env/lib/python3.13/site-packages/lib/conv.py:3"
    long = replace(ROW, site=library, outer_site="train.py:9", because="it races", ranks=[0, 2])
    report = Report([ROW, filled, replace(filled, site="x.py:2", count=1000)])
    for columns in (None, 120):
        assert WIDE in report.text(width=columns).splitlines()
    for columns in (60, 119):
        monkeypatch.setenv("COLUMNS", str(columns))
        lines = str(report).splitlines()
        assert lines[lines.index(NARROW[0]) + 1] == NARROW[1]
        assert max(map(len, lines)) <= columns
        assert lines[-1] == "1,003 more calls at 2 lines only fill new memory"
    assert "  family     uninitialized_memory" in report.text(long=True)
    # A table that is wider than a wide terminal takes two lines a row too.
    wider = Report([ROW, replace(ROW, overload="aten::" + "x" * 100)])
    assert NARROW[0] in wider.text(width=150)
    told = Report([long]).text(long=True, width=80).partition("\n\n")[2].splitlines()
    assert told[0] == "aten::put_.default"
    assert {
        "  site        lib/conv.py:3",
        "  outer_site  train.py:9",
        "  because     it races",
        "  ranks       0, 2",
    } <= set(told)


def test_json_round_trip(mode):
    """``from_json`` gives back what ``to_json`` wrote: an object that says what made it."""
    with mode() as made:
        cumsum()
        index_add()
    report = Report([*made.records, ROW])
    again = Report.from_json(report.to_json())
    assert again.records == report.records
    assert str(again) == str(report)
    whole = json.loads(report.to_json())
    other = {**whole, "detmode": "0.2", "torch": "2.0", "command": ["python", "x.py"]}
    assert json.loads(Report.from_json(json.dumps(other)).to_json()) == other
    (*_, last) = whole.pop("rows")
    assert whole == {
        "version": 3,
        "detmode": detmode.__version__,
        "torch": torch.__version__,
        "command": sys.orig_argv,
        "verdict": "may vary: 3 calls at 1 line",
    }
    assert last == {
        "overload": "aten::put_.default",
        "family": "put",
        "action": "warn",
        "guarantee": None,
        "alert": "put_",
        "count": 3,
        "site": "train.py:7",
        "module": "Net.head",
        "modules": {"Net.head": 3},
        "because": None,
        "remedy": None,
        "outer_site": None,
        "ranks": [],
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "Expecting property"),
        ("3", "make it again with this detmode"),
        ("[]", "make it again with this detmode"),
        ('{"version": 2}', "not a report of version 3"),
        ('{"version": 3}', "not a report of detmode"),
        ('{"version": 3, "detmode": "", "torch": "", "command": [], "rows": [{}]}', "not a report"),
    ],
)
@pytest.mark.parametrize("kind", [Report, AuditReport])
def test_json_that_is_no_report(kind, text, message):
    """Anything else is a ValueError that says what was expected, or what to do."""
    with pytest.raises(ValueError, match=f"{message}|not a report of an audit"):
        kind.from_json(text)


@pytest.mark.parametrize(
    ("action", "arguments", "remedy"),
    [
        ("warn", {"warn_only": True}, "accept it without a warning.*detmode.allow"),
        ("allow", {"overrides": {"aten::put_": "allow"}}, "allowed by name.*warns about it"),
        (
            "native",
            {"overrides": {"aten::put": "native"}},
            "gives it this action: 'native'",
        ),
    ],
)
# The rows are the subject; the warnings are that of test_messages.py.
@pytest.mark.filterwarnings("ignore::detmode.DeterminismWarning")
def test_because_and_remedy(mode, action, arguments, remedy):
    """A row says why its calls vary, and what to do about them; substituted ones need nothing."""
    with mode(**arguments) as made:
        with suppress(RuntimeError):  # under "native" PyTorch itself refuses
            put()
        index_add()
    refused, add = made.records
    assert (refused.action, add.action) == (action, "substitute")
    assert refused.because
    assert re.search(remedy, refused.remedy)
    assert (bool(add.because), add.remedy) == (True, None)


def test_the_line_outside_installed_packages(mode, tmp_path, monkeypatch, line):
    """Rows of a library have the program's own line that led there, backward that of forward."""
    site_packages = tmp_path / "site-packages"
    (site_packages / "lib").mkdir(parents=True)
    (site_packages / "lib" / "__init__.py").write_text(
        "import torch\n"
        "def enlarge(x):\n"
        "    return torch.nn.functional.interpolate(x, scale_factor=2, mode='bilinear')\n"
        "def add(function):\n"
        "    return function().cumsum(0)\n"
    )
    monkeypatch.syspath_prepend(site_packages)
    import lib

    def user():
        x = image()
        y = lib.enlarge(x)  # here
        lib.add(lambda: torch.ones(2).cumsum_(0))  # here
        y.sum().backward()

    with mode() as made:
        user()
    enlarged, added = line(user)
    rows = {row.overload.split(".")[0]: (row.site, row.outer_site) for row in made.records}
    library = site_packages / "lib" / "__init__.py"
    assert rows == {
        "aten::upsample_bilinear2d_backward": (f"{library}:3", enlarged),
        "aten::cumsum_": (added, added),
        "aten::cumsum": (f"{library}:5", added),
    }
    assert " lib/__init__.py:3" in str(made.report())
    result = json.loads(made.report().to_sarif())["runs"][0]["results"][0]
    where, related = (
        [each["physicalLocation"] for each in result[name]]
        for name in ("locations", "relatedLocations")
    )
    assert [each["region"]["startLine"] for each in where] == [int(enlarged.rpartition(":")[2])]
    assert [each["artifactLocation"]["uri"] for each in related] == [library.as_uri()]


def test_the_notes_do_not_keep_tensors_alive(mode):
    """The mode's memory of calls holds no tensor: memory is freed as without it."""
    with mode() as made:
        x = image()
        y = enlarged(x)
        y.sum().backward()
        references = [weakref.ref(x), weakref.ref(y)]
        del x, y
        gc.collect()
        assert [reference() for reference in references] == [None, None]
    assert len(made.records) == 1


def test_a_guarantee_is_an_enum_that_stays_its_text():
    """A row has it after a run and from JSON; it equals, hashes, prints and filters as text."""
    with detmode.DeterministicMode(simulate="cuda") as mode:
        index_add()
    report = mode.report()
    for row in (report.records[0], Report.from_json(report.to_json()).records[0]):
        assert row.guarantee is detmode.GPU_TO_GPU
        assert {row.guarantee} == {"gpu_to_gpu"}
        assert f"{row.guarantee}" == str(row.guarantee) == "gpu_to_gpu"
    assert '"guarantee": "gpu_to_gpu"' in report.to_json()
    assert len(report.where(guarantee="gpu_*")) == 1


@pytest.mark.parametrize(("field", "value"), [("action", "permit"), ("guarantee", "always")])
def test_a_row_of_a_file_has_an_action_and_a_guarantee_that_there_are(field, value):
    """JSON with another word is no report; the row as it was is one."""
    whole = json.loads(Report([ROW]).to_json())
    whole["rows"][0][field] = value
    with pytest.raises(ValueError, match="not a report of detmode"):
        Report.from_json(json.dumps(whole))
    whole["rows"][0] |= {"action": "warn", "guarantee": "run_to_run"}
    assert Report.from_json(json.dumps(whole)).records[0].guarantee is detmode.RUN_TO_RUN
