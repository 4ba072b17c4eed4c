"""The plugin of pytest: the marker, the fixture, and its options."""

import re

import pytest

from tests.shared import needs
from tests.testing.suites import HEAD

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

@deterministic
def test_saves(tmp_path):
    (tmp_path / "weights").mkdir()
    return torch.rand(2)

@deterministic
def test_saves_what_varies(tmp_path):
    return vary(torch.rand(2))

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
    "test_saves": ("PASSED", []),
    "test_saves_what_varies": ("FAILED", ["1 of 2 elements differ", "vary.default at "]),
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
