"""``--detmode-baseline``: calls that are known pass, and an update keeps what it did not see."""

import json

import pytest

from detmode.process.files import FileError
from detmode.testing import baseline
from tests.testing.suites import BOTH, OFFENDING


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


CRASHED = [
    "without the calls of 1 worker that crashed:",
    "wrote 0 to *known.json; kept 2 more, as 1 worker crashed",
]
UPDATE = (*BOTH, "--detmode-baseline=known.json", "--detmode-update-baseline")


def test_a_worker_that_crashes(suite, pytester):
    """Its rows are missing: the summary says so, and the baseline keeps what it had."""
    suite(SEVERAL, *UPDATE).stdout.fnmatch_lines(["wrote 2 to *known.json"])
    # What pytest-xdist tells of it.
    pytester.makeconftest("""
from types import SimpleNamespace
def pytest_collection_finish(session):
    session.config.hook.pytest_testnodedown(node=SimpleNamespace(), error="crashed")
""")
    idle = SEVERAL.replace("sin()", "neg()").replace("cos()", "neg()")
    result = suite(idle, *UPDATE, "-p", "xdist")
    result.stdout.fnmatch_lines(CRASHED)
    assert overloads(pytester.path / "known.json") == ["aten::cos.default", "aten::sin.default"]


@pytest.mark.thorough
def test_a_process_that_crashes(suite, other_process, pytester):
    """A worker of pytest-xdist that ends in a test is told of in the same words."""
    pytest.importorskip("xdist", reason="pytest-xdist is not installed")
    suite(SEVERAL, *UPDATE).stdout.fnmatch_lines(["wrote 2 to *known.json"])
    crashing = SEVERAL.replace("    torch.ones(2).cos()", "    os._exit(1)")
    result = other_process(crashing, *UPDATE, "-p", "xdist", "-n1")
    result.stdout.fnmatch_lines(CRASHED)
    assert overloads(pytester.path / "known.json") == ["aten::cos.default", "aten::sin.default"]


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
