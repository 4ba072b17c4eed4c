"""``--detmode``: the mode around a suite, its summary, and workers of pytest-xdist."""

import json
import re
import types
from fnmatch import fnmatch

import pytest
import torch
import torch._inductor.output_code  # loaded by recordings

from detmode.reports.report import Report
from detmode.reports.report_row import ReportRow
from detmode.testing import pytest_plugin
from detmode.testing.whole_suite import WholeSuite
from tests.testing.suites import ASK, BOTH, HEAD, OFFENDING


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
    assert "detmode/mode/" not in text
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


def test_a_way_to_distribute_without_workers(suite):
    """``--dist`` without ``-n`` runs the tests in this process, which must be under the mode."""
    pytest.importorskip("xdist", reason="pytest-xdist is not installed")
    result = suite(OFFENDING, "-p", "xdist", "--dist=loadscope", *BOTH)
    plain = suite(None, *BOTH)
    assert result.parseoutcomes() == plain.parseoutcomes()
    assert plain.parseoutcomes()["failed"]


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
