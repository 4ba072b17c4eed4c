"""Rows of a mode: what was called, what was done, where, and in which modules."""

import copy
import gc
import json
import re
import weakref
from contextlib import nullcontext, suppress

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from detmode import DeterminismWarning, allow
from detmode.sites import lines
from detmode.sites.graph_nodes import INTERPRETER
from tests.shared import ROOT
from tests.shared.programs import cumsum, enlarged, histc, image, index_add, put


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
