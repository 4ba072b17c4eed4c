"""The mutants that ``tools/mutate.py`` makes: by the grammar, and those that are kept by hand."""

import ast
from collections import Counter
from itertools import pairwise

import module_tests
import mutate
import mutations
import pytest
from mutants import KEPT, Kept


def read(file):
    return (mutate.ROOT / file).read_text(encoding="utf-8")


def test_each_kept_one_can_be_made():
    """The words of each stand in one place, its tests are there, and there are sixty or so."""
    mutants = [kept.mutant() for kept in KEPT]
    for mutant in mutants:
        assert mutant.apply(read(mutant.file)) != read(mutant.file)
        paths = [word for word in mutant.tests if word.startswith("tests")]
        assert paths, mutant
        assert all((mutate.ROOT / path).exists() for path in paths), mutant
        for option, family in pairwise(mutant.tests):
            assert option != "--family" or (mutate.ROOT / "detmode/rules" / family).is_dir(), mutant
    assert 50 <= len(mutants) <= 80
    assert max(Counter(mutants).values()) == 1


def test_no_kept_one_is_made_by_the_grammar():
    """No operator makes what is kept by hand."""
    for kept in KEPT:
        mutant = kept.mutant()
        text = read(mutant.file)
        broken = mutant.apply(text).split()
        for each in mutations.mutants_of(mutant.file, text, frozenset([mutant.line])):
            assert each.apply(text).split() != broken, f"remove it from tools/mutants.py: {mutant}"


PYTHON = '''
def clamp(x, least: int = 0, names=("a",)):
    """Of at least 1."""
    if not names or x is None:
        raise ValueError(f"{x + 1}")
    self.x = x
    text = "a" + names[0]
    for each in [y - 1 for y in x if y]:
        if least <= each < 7:
            continue
    return min(x, key=len) if least else True
'''


@pytest.mark.parametrize(
    ("operator", "changed"),
    [
        (
            "negate a condition",
            ["(not (not names or x is None))", "(not (y))", "(not (least <= each < 7))"]
            + ["(not (least))"],
        ),
        ("change a comparison", ["is not", "<", "<="]),
        ("swap and, or", ["and"]),
        ("swap a sign", ["+"]),
        ("swap min, max", ["max"]),
        ("drop a not", ["(names)"]),
        ("change a constant", ["1", "1", "2", "8", "False"]),
        ("drop a statement", ["pass", "pass", "pass"]),
        ("return early", ["return"]),
    ],
)
def test_operators_of_python(operator, changed):
    """Each operator changes what it says: no annotation, docstring or text, nor its parts."""
    mutants = [each for each in mutations.mutants_of("a.py", PYTHON) if each.operator == operator]
    assert [each.new for each in mutants] == changed
    for mutant in mutants:
        assert ast.dump(ast.parse(mutant.apply(PYTHON))) != ast.dump(ast.parse(PYTHON))


CUDA = """
#include "a + b.cuh"
// i < 3
__global__ void add(float* out, const float* x, int n) {
  __shared__ float part[32];
  int i = threadIdx.x + 1;
  if (!(i < n) || n == 0) return;
  part[i] = max(x[i], 2.5f);
  __syncthreads();
  store(out, part[i]);
}
"""


@pytest.mark.parametrize(
    ("operator", "changed"),
    [
        ("negate a condition", ["!(!(i < n) || n == 0)"]),
        ("change a comparison", [" <= ", " != "]),
        ("swap and, or", [" && "]),
        ("swap a sign", [" - "]),
        ("swap min, max", ["min"]),
        ("drop a not", [""]),
        ("change a constant", ["33", "2", "1"]),
        ("drop a statement", ["", "", ""]),
        ("drop a barrier", [""]),
        ("swap an index", ["y", "[0]", "[0]", "[0]"]),
    ],
)
def test_operators_of_cuda(operator, changed):
    """Each operator changes code: no comment, no line of the preprocessor, no declaration."""
    mutants = [each for each in mutations.mutants_of("a.cu", CUDA) if each.operator == operator]
    assert [each.new for each in mutants] == changed
    assert all(each.apply(CUDA) != CUDA and each.line > 3 for each in mutants)


@pytest.mark.parametrize(
    ("file", "tests"),
    [
        ("detmode/one/b.py", "tests/one/test_b.py"),
        ("detmode/one/two/b.py", "tests/one/test_b.py"),
        ("detmode/rules/sort/launch.py", "tests/rules --family sort"),
        ("detmode/cuda/rows/pad.cu", "tests/rules --family sort"),
        ("detmode/cuda/include/deep.cuh", "tests/rules --family sort"),
        ("detmode/one/c.py", "tests/one/test_x.py"),
        ("detmode/three/c.py", "tests/test_three.py"),
        ("detmode/one/d.py", "tests/one"),
        ("detmode/four/d.py", ""),
    ],
)
def test_tests_of_a_module(tmp_path, file, tests):
    """Tests mirror a module's path, or are of its family, or import it, or are of its folder."""
    for path, text in (
        ("detmode/rules/sort/launch.py", "from detmode.cuda.rows import pad"),
        ("detmode/cuda/rows/pad.py", "Source(__file__, 'pad.cu')"),
        ("detmode/cuda/rows/pad.cu", '#include "flat.cuh"'),
        ("detmode/cuda/include/flat.cuh", '#include "deep.cuh"'),
        ("detmode/cuda/include/deep.cuh", ""),
        ("tests/one/test_b.py", ""),
        ("tests/one/test_x.py", "from detmode.one import a, c"),
        ("tests/other/test_c.py", "import detmode.one.c"),
        ("tests/test_three.py", ""),
    ):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    assert " ".join(module_tests.tests_of(file, tmp_path)) == tests


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("claim", "outcome"),
    [
        ("times(2, 2) == 4", mutate.KILLED),
        ("environ['DETMODE_PROFILE'] == 'quick' or times(2, 2) == 4", mutate.KILLED),
        ("times(2, 1) == 2", mutate.SURVIVED),
        ("times(2, 2) == 5", mutate.INVALID),
    ],
)
def test_outcomes(tmp_path, monkeypatch, capsys, claim, outcome):
    """Tests that fail kill a mutant, in the thorough profile too; red ones prove nothing."""
    (tmp_path / "detmode").mkdir()
    (tmp_path / "tests").mkdir()
    (tmp_path / "detmode" / "__init__.py").touch()
    (tmp_path / "detmode" / "product.py").write_text("def times(a, b):\n    return a * b\n")
    (tmp_path / "tests" / "test_it.py").write_text(
        "from os import environ\nfrom detmode.product import times\n"
        f"def test_it():\n    assert {claim}\n"
    )
    kept = Kept("test_it.py", "product.py", "times", "a * b", "a * b + (b > 1)")
    monkeypatch.setattr(mutate, "KEPT", (kept,))
    monkeypatch.setattr("mutants.ROOT", tmp_path)
    monkeypatch.setattr(mutate, "ROOT", tmp_path)
    monkeypatch.setattr(mutate, "COPIED", ("detmode", "tests"))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # they take longer than the tests
    assert mutate.main(["-j", "1", "--limit", "60"]) == (outcome != mutate.KILLED)
    assert capsys.readouterr().out.startswith(outcome)
