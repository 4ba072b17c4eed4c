"""The plugin of pytest: the marker, the fixture, the mode around a suite and its baseline."""

import itertools
import json
import re
import types
from fnmatch import fnmatch

import pytest
import torch
import torch._inductor.output_code  # loaded by recordings

import detmode.testing.suite
from detmode.process.files import FileError
from detmode.reports.report import Report
from detmode.reports.report_row import ReportRow
from detmode.testing import baseline, pytest_plugin
from detmode.testing.whole_suite import WholeSuite
from tests.shared import needs

_calls = itertools.count()


@torch.library.custom_op("detmode_plugin_tests::vary", mutates_args=())
def vary(x: torch.Tensor) -> torch.Tensor:
    """Adds to one element what no two calls add."""
    y = x.clone()
    y.view(-1)[0] += 1 + next(_calls)
    return y


HEAD = """
import pytest, random, torch
vary = torch.ops.detmode_plugin_tests.vary
"""


# Runs in this process forget what they import, and PyTorch's modules cannot be imported twice.
with detmode.DeterministicMode(simulate="cuda"):
    torch.zeros(1).index_add(0, torch.zeros(1, dtype=torch.int64), torch.zeros(1))


@pytest.fixture
def suite(pytester, monkeypatch):
    """Runs pytest with the plugin on the tests of a file, under -W error, in this process."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")

    def run(text, *options, name="test_inner.py", has_cache=False):
        if text is not None:
            pytester.makepyfile(**{name.removesuffix(".py"): HEAD + text})
        without_cache = () if has_cache else ("-p", "no:cacheprovider")
        return pytester.runpytest_inprocess(
            "-p", "detmode.testing.pytest_plugin", *without_cache, "--strict-markers",
            "-W", "error", "-W", "ignore::DeprecationWarning:torch.*", *options,
        )  # fmt: skip

    return run


@pytest.fixture
def other_process(pytester, monkeypatch):
    """Runs pytest with the plugin on the tests of a file, in another process."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)

    def run(text, *options):
        pytester.makepyfile(test_inner="import os, pytest, torch\n" + text)
        return pytester.runpytest_subprocess("-p", "detmode.testing.pytest_plugin", *options)

    return run


MARKED = """
import numpy, unittest
from detmode.testing.reproducible import assert_reproducible
deterministic = pytest.mark.deterministic
seen = []

@pytest.fixture
def model():
    seen.append("set up")
    yield torch.nn.Linear(2, 2)
    seen.append("torn down")

@pytest.fixture
def weight():
    return torch.zeros(2)

@deterministic
def test_random():
    seen.append("run")
    return torch.rand(3), {"a": [random.random()], "b": numpy.random.rand(2)}

@deterministic
def test_same(deterministic_mode):
    for _ in range(2):
        deterministic_mode.compare(a=torch.rand(2), b=[1, "x"])

@deterministic(repeats=4)
class TestClass:
    @pytest.mark.parametrize("n", [1, 2])
    def test_it(self, model, n, deterministic_mode):
        assert deterministic_mode.repeats == 4
        return model(torch.rand(n, 2))

    @deterministic(2, warn_only=True)
    def test_nearest(self, deterministic_mode):
        assert torch.is_deterministic_algorithms_warn_only_enabled()
        assert deterministic_mode.repeats == 2
        return 0

def test_unmarked(deterministic_mode):
    import detmode
    assert seen == ["run"] * 3 + ["set up", "torn down"] * 10  # one before the first repeat
    assert isinstance(deterministic_mode, detmode.DeterministicMode)
    assert torch.are_deterministic_algorithms_enabled()
    with pytest.raises(RuntimeError, match="mark it with @pytest.mark.deterministic"):
        deterministic_mode.compare(a=1)

@deterministic(repeats=2)
def test_varies():
    x = torch.zeros(3) + 1
    y = vary(x)  # here
    return {"loss": y.sum(), "x": x}

@deterministic
def test_other(deterministic_mode):
    x = torch.ones(2)
    deterministic_mode.compare(loss=x)
    deterministic_mode.compare(loss=vary(x))

@deterministic
def test_nothing():
    torch.rand(1)

@deterministic
def test_trains_a_fixture(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.rand(4, 2)).square().mean().backward()
    optimizer.step()
    return model

@pytest.fixture(scope="module")
def shared():
    return torch.nn.Linear(2, 2)

@deterministic
def test_changes_a_fixture(shared):
    with torch.no_grad():
        return shared.weight.add_(1) + 0

counts = torch.zeros(2)

@deterministic
def test_changes_a_global():
    return counts.add_(1) + 0

class TestSetUp:
    def setup_method(self):
        self.weight = torch.rand(2)

    @deterministic
    def test_it(self):
        return self.weight.add_(1) + 0

def test_by_function():
    assert_reproducible(vary, torch.zeros(2))

@deterministic
def test_skip():
    pytest.skip("not here")

@deterministic
def test_raises():
    raise LookupError("planted")

@pytest.mark.xfail(strict=True)
@deterministic
def test_expected():
    return vary(torch.ones(1))

@deterministic
async def test_async():
    return 1

async def later():
    return 1

@deterministic
def test_awaitable():
    return later()

class TestCase(unittest.TestCase):
    @deterministic
    def test_method(self):
        pass

@deterministic(repeats=1)
def test_repeats():
    return 1

@deterministic(simulate="tpu")
def test_simulate():
    return 1

@deterministic(nothing=1)
def test_option(deterministic_mode):
    return 1

@deterministic
def test_object():
    return object()

def test_after():
    assert not torch.are_deterministic_algorithms_enabled()
"""
HERE = (HEAD + MARKED).lstrip().partition("# here")[0].count("\n") + 1
NOT_SUPPORTED = "an async test, or one that yields, is not supported"
OUTCOMES = {
    # A test from the same random state passes, without a warning about what it returns.
    "test_random": ("PASSED", []),
    "test_same": ("PASSED", []),
    # Parameters, fixtures (set up once), classes and the nearest marker work as ever.
    "TestClass::test_it[1]": ("PASSED", []),
    "TestClass::test_it[2]": ("PASSED", []),
    "TestClass::test_nearest": ("PASSED", []),
    "test_unmarked": ("PASSED", []),
    # Which tensor, how many elements, by how much, and which operator where.
    "test_varies": (
        "FAILED",
        [
            "repeat 1 gave other bits than repeat 0",
            "'loss'",
            ": 1 of 1 elements differ (float32",
            "the largest difference is 1",
            "the runs diverge at detmode_plugin_tests::vary.default at ",
            f"test_inner.py:{HERE}\n",
            "the same inputs gave different outputs",
            "differing  output 0",
        ],
    ),
    "test_other": ("FAILED", ["loss (2): 1 of 2 elements differ"]),
    "test_nothing": ("FAILED", ["the repeats give nothing to compare: return tensors"]),
    # What a test's own fixtures make is made again for each repeat; what lives longer is named.
    "test_trains_a_fixture": ("PASSED", []),
    "test_changes_a_fixture": (
        "FAILED",
        ["the runs begin with objects that differ;", "  fixture shared.weight: 4 of 4 elements"],
    ),
    "test_changes_a_global": ("FAILED", ["  captured counts: 2 of 2 elements differ"]),
    "TestSetUp::test_it": ("PASSED", []),
    "test_by_function": ("FAILED", ["run 1 gave different bits from run 0"]),
    # Skipping and raising within a marked test mean what they mean elsewhere.
    "test_skip": ("SKIPPED", []),
    "test_raises": ("FAILED", ["LookupError: planted"]),
    "test_expected": ("XFAIL", []),
    "test_async": ("ERROR", [NOT_SUPPORTED]),
    "test_awaitable": ("FAILED", [NOT_SUPPORTED]),
    "TestCase::test_method": ("ERROR", ["does not reach methods of unittest.TestCase"]),
    "test_repeats": ("FAILED", ["repeats must be an int of at least 2, got 1"]),
    "test_simulate": ("FAILED", ["simulate must be 'cuda' or None, got 'tpu'"]),
    "test_option": ("ERROR", ["unexpected keyword argument 'nothing'"]),
    "test_object": ("FAILED", ["cannot compare result bit for bit: it is a object"]),
    "test_after": ("PASSED", []),
}


def test_marked_tests(suite):
    """Each has the outcome that its kind has, and a message that says why.

    It has neither the source of detmode nor an advice about recordings that are gone.
    """
    text = suite(MARKED, "-rA").stdout.str()
    ended = re.findall(r"^(\w+) (?:\[1\] )?test_inner.py(?:::|:\d+: )(\S*)", text, re.MULTILINE)
    assert {name: outcome for outcome, name in ended if name in OUTCOMES} == {
        name: outcome for name, (outcome, _) in OUTCOMES.items() if outcome != "SKIPPED"
    }
    assert "SKIPPED [1] test_inner.py" in text
    _, *sections = re.split(r"^_+ (?:ERROR at setup of )?([\w.]+) _+$", text, flags=re.MULTILINE)
    messages = dict(zip(sections[::2], sections[1::2]))
    for name, (_, words) in OUTCOMES.items():
        for word in words:
            assert word in messages[name.replace("::", ".")], name
    for word in ("def assert_reproducible", "--dump", "During handling"):
        assert word not in text


@needs.compiler
def test_each_repeat_has_a_schedule(suite):
    """With simulate="cuda" substitutes run on the host, in another order in each repeat."""
    result = suite(
        """
from detmode import cuda
seeds = []

@pytest.mark.deterministic(simulate="cuda")
def test_it(deterministic_mode):
    seeds.append(cuda.host._schedule.seed)
    x = torch.zeros(2).index_add(0, torch.zeros(300, dtype=torch.int64), torch.rand(300))
    assert "substitute" in [record.action for record in deterministic_mode.records]
    return x

@pytest.mark.deterministic(simulate="cuda", schedule_seed=7, repeats=2)
def test_seeded():
    seeds.append(cuda.host._schedule.seed)
    return 1

def test_seeds():
    assert seeds == [None, 1, 2, 7, 8]

@pytest.mark.deterministic(simulate="cuda", overrides={"aten::sin": "error"})
def test_refused():
    return torch.rand(2).sin()

@pytest.mark.deterministic(simulate="cuda", repeats=2)
def test_varies():
    return cuda.host._schedule.seed is None
"""
    )
    result.assert_outcomes(passed=3, failed=2)
    result.stdout.fnmatch_lines(["*aten::sin*", "*(schedule_seed None and 1)*"])


OFFENDING = """
def helper(x):
    return x.sin()

def test_a():
    helper(torch.ones(2))

def test_b():
    helper(torch.ones(2))
    torch.ones(2).cos()

def test_c():
    torch.ones(2).exp()
"""
ASK = ("--detmode-override", "aten::sin=error", "--detmode-override", "aten::cos=error")
BOTH = ("--detmode=error", *ASK)


@pytest.mark.parametrize(
    ("action", "outcomes", "lines"),
    [
        (
            "error",
            {"failed": 2, "passed": 1},
            [
                *("*= detmode =*", "test_inner.py:5*", "*2*error*aten::sin.default*"),
                *("1 place may vary", "0 calls substituted*"),
            ],
        ),
        (
            "warn",
            {"passed": 3},
            ["*2*warn*aten::sin.default*", "*1*warn*aten::cos.default*", "2 places may vary"],
        ),
    ],
)
def test_a_suite_under_a_mode(suite, action, outcomes, lines):
    """With error tests fail, with warn none, not even under -W error; a table has the places."""
    result = suite(OFFENDING, f"--detmode={action}", *ASK)
    result.assert_outcomes(**outcomes)
    found = result.stdout.str().splitlines()
    for line in lines:
        assert any(fnmatch(each, line) for each in found), line
    assert not torch.are_deterministic_algorithms_enabled()


REFUSED = """
class Net(torch.nn.Module):
    def forward(self, x):
        y = torch.nn.functional.threshold(x, 0.0, 0.0)
        return torch.nn.functional.hardtanh(y)

def test_forward():
    Net()(torch.ones(2))

def test_backward():
    x = torch.ones(2, requires_grad=True)
    y = x.gather(0, torch.tensor([1, 1]))
    y.sum().backward()

def test_other_error():
    Net()(torch.ones(2).tolist())

class TestCase(unittest.TestCase):
    def test_method(self):
        Net()(torch.ones(2))
"""
REFUSE = tuple(f"--detmode-override=aten::{op}=error" for op in ("hardtanh", "scatter_add"))


def test_refusals_show_the_line_of_the_program(suite):
    """A refused call fails at the program's lines alone, and the summary begins with its line.

    The call of backward is refused where it is called, and named by the line of its forward call.
    All frames are there with --full-trace, and in every other error.
    """
    text = "import unittest\n" + REFUSED
    lines = (HEAD + text).lstrip().splitlines()
    hardtanh, forward, gather, backward = (
        next(number for number, line in enumerate(lines, start=1) if part in line)
        for part in ("hardtanh(y)", "Net()(torch.ones(2))", "x.gather", "sum().backward()")
    )
    result = suite(text, "--detmode=error", "--detmode-simulate=cuda", *REFUSE)
    text = result.stdout.str()
    result.assert_outcomes(failed=4)
    _, *sections = re.split(r"^_+ ([\w.]+) _+$", text, flags=re.MULTILINE)
    shown = dict(zip(sections[::2], sections[1::2]))
    of_forward = [f"test_inner.py:{forward}: ", f"test_inner.py:{hardtanh}: RuntimeError"]
    places = re.compile(r"^(\S+\.py:\d+: .*)$", re.MULTILINE)
    assert places.findall(shown["test_forward"]) == of_forward
    assert places.findall(shown["test_backward"]) == [f"test_inner.py:{backward}: RuntimeError"]
    assert "torch" in str(places.findall(shown["test_other_error"]))
    assert "interception.py" not in text
    result.stdout.fnmatch_lines(
        [
            f"FAILED test_inner.py::test_forward - test_inner.py:{hardtanh}: RuntimeError: aten::*",
            f"FAILED test_inner.py::test_backward - test_inner.py:{gather}: RuntimeError: *",
            "FAILED test_inner.py::test_other_error - TypeError: *",
        ]
    )
    whole = suite(None, "--detmode=error", *REFUSE, "--full-trace", "-k", "test_forward")
    whole.stdout.fnmatch_lines(["*/torch/nn/functional.py*"])


def test_the_summary_is_sorted_by_line(suite):
    """Calls of one action are listed by line, whatever the order of the tests."""
    text = """
def test_a():
    later(torch.ones(2))
    torch.ones(2).cos()

def later(x):
    return x.sin()

def test_b():
    torch.ones(2).cos()
"""
    found = suite(text, "--detmode=warn", *ASK).stdout.str()
    assert re.findall(r"test_inner.py:(\d+).*\n +1 +warn .*(cos|sin)\.default", found) == [
        ("6", "cos"),
        ("9", "sin"),
        ("12", "cos"),
    ]


def test_a_suite_under_strict(suite):
    """A call about which PyTorch is silent goes on under error, and raises under strict."""
    silent = "def test_it():\n    torch.hspmm(torch.eye(2).to_sparse(), torch.ones(2, 2))\n"
    for asked, outcome in (("error", "passed"), ("strict", "failed")):
        result = suite(silent, f"--detmode={asked}", "--detmode-simulate=cuda")
        result.assert_outcomes(**{outcome: 1})
        result.stdout.fnmatch_lines(
            ["may vary: 1 call at 1 line (CUDA simulated)", "next: at test_inner.py:*hspmm*"]
        )
        assert "--detmode-override=aten::hspmm=allow" in result.stdout.str()
    assert "to get warnings instead of errors: --detmode=error" in result.stdout.str()
    coloured = suite(None, "--detmode=strict", "--detmode-simulate=cuda", "--color=yes")
    assert "\x1b[31mmay vary: 1 call at 1 line (CUDA simulated)\x1b[0m" in coloured.stdout.str()


def test_defaults_of_a_project(suite, pytester):
    """[tool.detmode] chooses for --detmode by itself; what is typed wins."""
    text = "def test_it():\n    torch.hspmm(torch.eye(2).to_sparse(), torch.ones(2, 2))\n"
    table = '[tool.detmode]\nstrict = true\nsimulate = "cuda"\n'
    pytester.makepyprojecttoml(table)
    suite(text, "--detmode").assert_outcomes(failed=1)
    suite(None, "--detmode=error").assert_outcomes(passed=1)
    pytester.makepyprojecttoml(table + 'override = ["aten::hspmm=allow"]\n')
    suite(None, "--detmode").assert_outcomes(passed=1)
    suite(None, "--detmode", "--detmode-override=aten::hspmm=error").assert_outcomes(failed=1)
    pytester.makepyprojecttoml("[tool.detmode]\nstrikt = true\n")
    result = suite(None, "--detmode")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*no option 'strikt'; did you mean 'strict'?"])


def test_a_suite_whose_calls_are_made_twice(suite):
    """The test fails whose call differs, and none that comes later; its marker can ask as well."""
    result = suite(
        """
numbers = iter(range(100))

@torch.library.custom_op("detmode_suite::number", mutates_args=())
def number(x: torch.Tensor) -> torch.Tensor:
    return x + next(numbers)

def test_other():
    torch.ones(3).neg()

def test_it():
    number(torch.ones(3))

def test_later():
    torch.ones(3).neg()

@pytest.mark.deterministic(repeats=1, recheck=1.0)
def test_marked():
    number(torch.ones(3))
""",
        *("--detmode=warn", "--detmode-recheck=1", "-v"),
    )
    result.assert_outcomes(passed=2, failed=2)
    lines = ["*test_it FAILED*", "*test_later PASSED*", "*test_marked FAILED*"]
    result.stdout.fnmatch_lines([*lines, "*test_inner.py:*: *RecheckError: detmode_suite::number*"])


NUMBERED = """
numbers = iter(range(100))

@torch.library.custom_op("detmode_suite::numbered", mutates_args=())
def numbered(x: torch.Tensor) -> torch.Tensor:
    return x + next(numbers)

@pytest.fixture
def faulty(request):
    before, after, error = request.param
    if before:
        numbered(torch.ones(3))
        assert error != "before"
    yield
    if after:
        numbered(torch.ones(3))
        assert error != "after"
"""


@pytest.mark.parametrize(
    ("when", "counts"),
    [
        ((True, False, ""), {"passed": 1, "errors": 1}),
        ((True, False, "before"), {"passed": 1, "errors": 1}),
        ((False, True, ""), {"passed": 2, "errors": 1}),
        ((False, True, "after"), {"passed": 2, "errors": 1}),
    ],
)
def test_a_call_of_a_fixture_that_differs(when, counts, suite):
    """The test that uses it ends with an error, whatever else fails in it, and none comes later."""
    monkey = f"@pytest.mark.parametrize('faulty', [{when!r}], indirect=True)\n"
    test = f"{NUMBERED}\n{monkey}def test_it(faulty):\n    pass\n\ndef test_later():\n    pass\n"
    result = suite(test, *("--detmode=warn", "--detmode-recheck=1", "-v"))
    result.assert_outcomes(**counts)
    result.stdout.fnmatch_lines(["*test_it* ERROR*", "*test_later PASSED*"])
    assert "RecheckError: detmode_suite::numbered" in result.stdout.str()


def test_fixtures_of_a_session(suite):
    """A mode that a session's fixture holds open ends within the suite's."""
    result = suite(
        """
import detmode

@pytest.fixture(scope="session", autouse=True)
def held():
    with detmode.DeterministicMode(warn_only=True) as mode:
        yield mode

def test_a(held):
    assert torch.is_deterministic_algorithms_warn_only_enabled()

def test_b(held):
    torch.ones(1).sin()
""",
        *BOTH,
    )
    result.assert_outcomes(passed=2)


def test_a_baseline(suite, pytester):
    """Calls that the baseline lists pass, wherever their line moves; new ones fail."""
    file = pytester.path / "known.json"
    result = suite(OFFENDING, *BOTH, "--detmode-baseline=known.json", "--detmode-update-baseline")
    result.assert_outcomes(passed=3)
    result.stdout.fnmatch_lines(["wrote 2 to *known.json"])
    data = json.loads(file.read_text())
    assert (data["format"], data["version"]) == ("detmode-baseline", 1)
    assert data["offenders"] == [
        {"overload": "aten::cos.default", "file": "test_inner.py", "code": "torch.ones(2).cos()"},
        {"overload": "aten::sin.default", "file": "test_inner.py", "code": "return x.sin()"},
    ]
    assert [path.name for path in pytester.path.glob("known*")] == ["known.json"]
    moved = "\n\n" + OFFENDING + "\ndef test_new():\n    torch.ones(2).cos_()\n"
    asked = (*BOTH, "--detmode-override=aten::cos_=error", "--detmode-baseline", "known.json")
    result = suite(moved, *asked, name="test_inner.py")
    result.assert_outcomes(passed=3, failed=1)
    result.stdout.fnmatch_lines(["1 new nondeterministic call (2 known, in the baseline)"])
    result = suite(None, *asked, "-k", "test_c")
    result.stdout.fnmatch_lines(["No new nondeterministic calls (0*); 2 of the baseline did not *"])


def test_a_baseline_of_a_strict_suite(suite):
    """It has calls on which PyTorch is silent, which raise without it."""
    silent = "def test_it():\n    torch.hspmm(torch.eye(2).to_sparse(), torch.ones(2, 2))\n"
    asked = ("--detmode=strict", "--detmode-simulate=cuda")
    suite(silent, *asked).assert_outcomes(failed=1)
    asked += ("--detmode-baseline=known.json",)
    result = suite(None, *asked, "--detmode-update-baseline")
    result.stdout.fnmatch_lines(["wrote 1 to *known.json"])
    suite(None, *asked).assert_outcomes(passed=1)


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("-x", "the run was cut short: *known.json is unchanged"),
        *((f"--{name}", "*") for name in ("collect-only", "setup-plan", "setup-only", "fixtures")),
    ],
)
def test_an_update_that_is_cut_short(option, said, suite, pytester):
    """A run that stops early, or a command that runs no test, leaves the baseline as it was."""
    file = pytester.path / "known.json"
    file.write_text("old")
    asked = ("--detmode", "--detmode-baseline=known.json", "--detmode-update-baseline")
    text = "def test_a():\n    assert 0\n\ndef test_b():\n    pass\n"
    suite(text, *asked, option).stdout.fnmatch_lines([said])
    assert file.read_text() == "old"


SEVERAL = """
def test_sin():
    torch.ones(2).sin()

def test_cos():
    torch.ones(2).cos()
"""
FAILING = SEVERAL.replace("    torch.ones(2).cos()", "    assert 0\n    torch.ones(2).cos()")
SKIPPED = SEVERAL.replace("def test_cos", "@pytest.mark.skip\ndef test_cos")


def overloads(file):
    return [each["overload"] for each in json.loads(file.read_text())["offenders"]]


@pytest.mark.parametrize(
    ("text", "options", "reason"),
    [
        (SEVERAL, ("-k", "sin"), "not all tests were selected"),
        (SEVERAL, ("--deselect", "test_inner.py::test_cos"), "not all tests were selected"),
        (SEVERAL, ("test_inner.py::test_sin",), "tests were selected by name"),
        (FAILING, (), "1 test did not run to the end"),
        (SKIPPED, (), "1 test did not run to the end"),
    ],
)
def test_an_update_by_a_part_of_the_suite(text, options, reason, suite, pytester):
    """Calls of tests that did not run to their ends stay in the baseline; the summary says so."""
    file = pytester.path / "known.json"
    update = (*BOTH, "--detmode-baseline=known.json", "--detmode-update-baseline")
    both = ["aten::cos.default", "aten::sin.default"]
    suite(SEVERAL, *update).stdout.fnmatch_lines(["wrote 2 to *known.json"])
    result = suite(text, *update, *options)
    result.stdout.fnmatch_lines([f"wrote 1 to *known.json; kept 1 more, as {reason}"])
    assert overloads(file) == both
    # A whole run drops what is no longer called.
    result = suite(SEVERAL.replace("cos()", "neg()").replace("test_cos", "test_neg"), *update)
    result.stdout.fnmatch_lines(["wrote 1 to *known.json"])
    assert overloads(file) == both[1:]


@pytest.mark.parametrize("options", [("--lf",), ("--stepwise",)])
def test_an_update_by_a_run_that_goes_on(options, suite, pytester):
    """Calls of tests that an earlier run has passed stay, and so where a run stops early."""
    file = pytester.path / "known.json"
    update = (*BOTH, "--detmode-baseline=known.json", "--detmode-update-baseline")
    suite(SEVERAL, *update, has_cache=True).stdout.fnmatch_lines(["wrote 2 to *known.json"])
    for text in (FAILING, SEVERAL):
        suite(text, *update, *options, has_cache=True)
        assert overloads(file) == ["aten::cos.default", "aten::sin.default"]


def test_a_way_to_distribute_without_workers(suite):
    """``--dist`` without ``-n`` runs the tests in this process, which must be under the mode."""
    pytest.importorskip("xdist", reason="pytest-xdist is not installed")
    result = suite(OFFENDING, "-p", "xdist", "--dist=loadscope", *BOTH)
    plain = suite(None, *BOTH)
    assert result.parseoutcomes() == plain.parseoutcomes()
    assert plain.parseoutcomes()["failed"]


def test_a_worker_that_crashes(suite, other_process, pytester):
    """Its rows are missing: the summary says so, and the baseline keeps what it had."""
    pytest.importorskip("xdist", reason="pytest-xdist is not installed")
    file = pytester.path / "known.json"
    asked = (*BOTH, "--detmode-baseline=known.json", "--detmode-update-baseline")
    suite(SEVERAL, *asked).stdout.fnmatch_lines(["wrote 2 to *known.json"])
    crashing = SEVERAL.replace("    torch.ones(2).cos()", "    os._exit(1)")
    result = other_process(crashing, *asked, "-p", "xdist", "-n1")
    result.stdout.fnmatch_lines(
        [
            "without the calls of 1 worker that crashed:",
            "wrote 0 to *known.json; kept 2 more, as 1 worker crashed",
        ]
    )
    assert overloads(file) == ["aten::cos.default", "aten::sin.default"]


def test_an_update_without_all_tests(suite, pytester):
    """A file that cannot be imported leaves the baseline as it was, also where the rest runs."""
    file = pytester.path / "known.json"
    file.write_text("old")
    pytester.makepyfile(test_broken="import no_such_module")
    result = suite(
        "def test_a():\n    pass\n",
        *("--detmode", "--detmode-baseline=known.json", "--detmode-update-baseline"),
        "--continue-on-collection-errors",
    )
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["not all tests could be collected: *known.json is unchanged"])
    assert file.read_text() == "old"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--detmode-baseline=x"], "--detmode-baseline needs --detmode"),
        (["--detmode-simulate=cuda"], "--detmode-simulate needs --detmode"),
        (["--detmode", "--detmode-update-baseline"], "needs --detmode-baseline FILE"),
        (["--detmode", "--detmode-baseline=none.json"], "cannot read the baseline"),
        (["--detmode", "--detmode-baseline=test_inner.py"], "is not JSON"),
        (["--detmode=loud"], "invalid choice: 'loud'"),
        (["--detmode", "--detmode-override=aten::sin=hide"], "hide"),
        (["--detmode", "--detmode-override=aten::sin"], "OP=ACTION"),
        (["--detmode-recheck=0.1"], "--detmode-recheck needs --detmode"),
        (["--detmode", "--detmode-recheck=2"], "from 0 to 1, got 2.0"),
    ],
)
def test_wrong_options(suite, options, message):
    """Options that cannot be are one line, and exit code 4."""
    result = suite("def test_it():\n    pass\n", *options)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert message in result.stderr.str() + result.stdout.str()
    assert "Traceback" not in result.stderr.str() + result.stdout.str()


def test_workers_of_xdist(pytester, monkeypatch):
    """A worker hands its rows on; the process that distributes tests enters no mode, and adds."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    config = pytester.parseconfig("-p", "detmode.testing.pytest_plugin")
    sin = ("aten::sin.default", None, "warn", None, None)
    rows = [
        ReportRow(*sin, 3, "/a.py:1", None, {"Net.a": 1}),
        ReportRow(*sin, 1, "/a.py:1", "Net.b"),
    ]
    config.pluginmanager.register(types.SimpleNamespace(), "dsession")
    boss = WholeSuite(config, "warn", {})
    loop = boss.pytest_runtestloop()
    next(loop)
    assert not torch.are_deterministic_algorithms_enabled()
    loop.close()
    for output in (*({"detmode": Report([row]).to_json()} for row in rows), {}):
        boss.pytest_testnodedown(types.SimpleNamespace(workeroutput=output))
    boss.pytest_testnodedown(types.SimpleNamespace())  # one that crashed
    (merged,) = boss._offenders()
    assert (merged.site, merged.count, merged.module) == ("/a.py:1", 4, "Net.*")
    assert merged.modules == {"Net.a": 1, "Net.b": 1}
    assert boss._completeness.crashed == 0  # pytest's own call of the hook would have counted
    config.pluginmanager.unregister(name="dsession")
    config.pluginmanager.unregister(name="detmode-completeness")
    config.workerinput, config.workeroutput = {}, {}
    worker = WholeSuite(config, "warn", {})
    loop = worker.pytest_runtestloop()
    next(loop)
    assert torch.are_deterministic_algorithms_enabled()
    with pytest.raises(StopIteration):
        loop.send(True)
    worker.pytest_sessionfinish(None, 0)
    assert json.loads(config.workeroutput["detmode"])["rows"] == []


BESIDE = """
def helper(x):
    return x.sin()

@pytest.mark.parametrize("number", range(6))
def test_many(number):
    helper(torch.ones(2))

def test_cos():
    torch.ones(2).cos()

@pytest.mark.deterministic(repeats=2, warn_only=True, overrides={"aten::sin": "allow"})
def test_again(deterministic_mode, repeats=[]):
    repeats.append(helper(torch.rand(2)))
    assert len(repeats) > 1, "the first run fails"
    (row,) = deterministic_mode.report()
    assert row.count == len(repeats) - 1
    return repeats[-1]
"""


@pytest.mark.thorough
def test_beside_other_plugins(pytester, monkeypatch):
    """Tests that are shuffled, distributed and run again give one summary and one baseline.

    A test that is run again has a new mode, whose report counts the new run alone.
    """
    plugins = ("xdist", "randomly", "rerunfailures")
    for name in ("xdist", "pytest_randomly", "pytest_rerunfailures"):
        pytest.importorskip(name, reason=f"{name} is not installed")
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.delenv("PYTEST_ADDOPTS")
    file = pytester.path / "known.json"
    pytester.makepyfile(test_inner="import pytest, torch\n" + BESIDE)

    def run(seed, *options):
        loaded = [word for each in (*plugins, pytest_plugin.__name__) for word in ("-p", each)]
        options = (*ASK, "--detmode-baseline=known.json", "--reruns=1", *options)
        return pytester.runpytest_subprocess(
            *loaded, "-n2", f"--randomly-seed={seed}", "-p", "no:cacheprovider", "--detmode=error",
            *options,
        )  # fmt: skip

    written = set()
    for seed in (1, 2):
        result = run(seed, "--detmode-update-baseline")
        result.stdout.fnmatch_lines(["wrote 2 to *known.json", "*8 passed, 1 rerun*"])
        written.add(file.read_text())
    assert len(written) == 1
    known = json.loads(written.pop())
    known["offenders"] = [each for each in known["offenders"] if "sin" in each["overload"]]
    file.write_text(json.dumps(known))
    result = run(3)
    result.assert_outcomes(passed=7, failed=1)
    result.stdout.fnmatch_lines(
        ["*cos.default*error*", "1 new nondeterministic call (1 known, in the baseline)"]
    )


def test_other_lines_are_untouched(suite):
    """A suite without marker and options has no mode, no summary, and the fixtures it had."""
    result = suite("def test_it():\n    assert not torch.are_deterministic_algorithms_enabled()\n")
    result.assert_outcomes(passed=1)
    result.stdout.no_fnmatch_line("*detmode*")


def test_the_plugin_imports_nothing_heavy(run_python, tmp_path):
    """Loaded and not used, the plugin brings neither PyTorch nor the mode."""
    (tmp_path / "test_it.py").write_text(
        "import sys\ndef test_it():\n    assert 'detmode.testing.pytest_plugin' in sys.modules\n"
        "    assert not {'torch', 'detmode.mode', 'tabulate', 'numpy'} & set(sys.modules)\n"
    )
    arguments = ("-m", "pytest", "-q", "-p", "detmode.testing.pytest_plugin")
    done = run_python(*arguments, PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")
    assert done.returncode == 0, done.stdout


def test_files_of_a_baseline(tmp_path):
    """A file is relative to the root or to site-packages; what has no line is as it is."""
    for file, name in (
        (tmp_path / "src" / "a.py", "src/a.py"),
        (tmp_path / "v" / "site-packages" / "lib" / "b.py", "lib/b.py"),
    ):
        file.parent.mkdir(parents=True)
        file.write_text("x = 1\n  y = 2  \n")
        assert baseline.key_of("aten::sin", f"{file}:2", tmp_path) == ("aten::sin", name, "y = 2")
    assert baseline.key_of("aten::sin", "/nowhere/c.py:3", tmp_path)[1:] == ("/nowhere/c.py", "")
    assert baseline.key_of("aten::sin", "<SinBackward0>", tmp_path)[1:] == ("<SinBackward0>", "")


def test_a_baseline_comes_back(tmp_path):
    """A written baseline is read again, sorted, through a link that stays one."""
    keys = {("b", "f.py", 'x = "é"'), ("a", "g.py", "")}
    file, link = tmp_path / "real.json", tmp_path / "link.json"
    baseline.write(file, [])
    assert baseline.read(file) == frozenset()
    link.symlink_to(file)
    baseline.write(link, [*keys, *keys])
    assert link.is_symlink()
    assert baseline.read(file) == keys
    assert [json.loads(file.read_text())["offenders"][0]["overload"]] == ["a"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.json", "real.json"]
    with pytest.raises(FileError, match="cannot write the baseline"):
        baseline.write(tmp_path / "no" / "such.json", keys)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "is not a baseline"),
        ('{"format": "detmode-baseline", "version": 2}', "has version 2"),
        ('{"format": "detmode-baseline", "version": 1}', "without overload"),
        ('{"format": "detmode-baseline", "version": 1, "offenders": [1]}', "without overload"),
        ("[" * 100000, "not JSON"),
        (b"\xff", "not JSON"),
    ],
)
def test_what_is_no_baseline(tmp_path, text, message):
    """A file that is not a baseline is refused on one line that names it."""
    file = tmp_path / "known.json"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(FileError, match=message) as error:
        baseline.read(file)
    assert str(file) in str(error.value)
