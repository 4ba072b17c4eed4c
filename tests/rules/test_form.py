"""Every family has the same form: files, headings, budgets, whole chains, derived variants."""

import ast
import inspect
import re
import sys
from pathlib import Path

import pytest
import torch

from detmode import rules
from detmode.rules import default_rules, families, family_table
from detmode.table.conditions import ALWAYS
from detmode.table.rule import Substitute
from detmode.table.rule_table import resolve
from detmode.table.variants import functional_signature, variant_of
from detmode.verify.cases import samples_of
from tests.shared import selection
from tests.shared import table_facts as facts

HEADINGS = ("What varies", "What happens instead", "Cost", "Limits")
BUDGET = {"__init__.py": 80, "samples.py": 160, ".py": 150, ".cu": 300, ".cuh": 300}
"""Lines below the docstring and the imports; past it a family is two families."""

OTHER_OVERLOADS = {
    "aten::empty": "its out= form makes no memory itself, and calls resize_",
    "aten::median": "without dim no index is returned, and nothing varies",
    "aten::nanmedian": "without dim no index is returned, and nothing varies",
}
"""Operators with out= or in-place overloads that belong to none of the listed ones, and why."""


@pytest.fixture(params=selection.families())
def family(request: pytest.FixtureRequest) -> str:
    return request.param


def folder(family: str) -> Path:
    return Path(rules.__path__[0], family)


def section(family: str, heading: str) -> str:
    """The text under a heading of a family's docstring, on one line."""
    text = (families()[family].__doc__ or "").partition(f"## {heading}\n")[2]
    return " ".join(text.partition("\n## ")[0].split())


def test_every_folder_is_a_family() -> None:
    """To list detmode/rules is to see the coverage: each folder is a family with its rows."""
    base = Path(rules.__path__[0])
    folders = {path.name for path in base.iterdir() if path.is_dir() and path.name[0] not in "._"}
    strangers = sorted(folders - set(families()))
    assert not strangers, (
        f"detmode/rules/{strangers[0]}/ is no family: add an __init__.py with RULES, or remove it"
    )
    files = sorted(path.name for path in base.iterdir() if path.is_file())
    assert files == ["__init__.py"], (
        "detmode/rules/ holds families only: move the file into its family"
    )


def test_files(family: str) -> None:
    """A family has samples, and beside them nothing but launchers and CUDA files."""
    where = f"detmode/rules/{family}/"
    names = {path.name for path in folder(family).iterdir() if path.name != "__pycache__"}
    assert "samples.py" in names, f"{where}: add samples.py with SAMPLES = Samples(...)"
    odd = sorted(file for file in names if not file.endswith((".py", ".cu", ".cuh")))
    assert not odd, f"{where}{odd[0]}: a family holds *.py, *.cu and *.cuh, and no folders"


def test_headings(family: str) -> None:
    """A family's docstring is its page: a first line, a paragraph, four headings with text."""
    where = f"detmode/rules/{family}/__init__.py"
    text = (families()[family].__doc__ or "").strip()
    headings = tuple(re.findall(r"^## (.+)$", text, re.MULTILINE))
    assert headings == HEADINGS, (
        f"{where}: its docstring has the headings {headings}; write {HEADINGS}, in this order"
    )
    first, *sections = re.split(r"^## .+$", text, flags=re.MULTILINE)
    assert first.strip(), f"{where}: begin the docstring with what the family covers"
    empty = [HEADINGS[i] for i, section in enumerate(sections) if not section.strip()]
    assert not empty, f"{where}: say something under the heading {empty[0]!r}"


def test_what_varies_is_said(family: str) -> None:
    """A family is there because results may vary: its page says which, and how it comes."""
    said = section(family, "What varies")
    says_nothing = len(said.split()) < 10 or re.match(r"nothing\b", said, re.IGNORECASE)
    assert not says_nothing, (
        f"detmode/rules/{family}/__init__.py: 'What varies' is {said!r}; say which result "
        "comes to depend on the order of threads and how, or remove the family: an operator "
        "whose result does not vary needs no row"
    )


def test_substitutes_are_refused_and_timed(family: str) -> None:
    """A family with a substitute has inputs that ATen rejects, and sizes from real models."""
    samples = samples_of(family)
    if not any(isinstance(rule.action, Substitute) for rule in families()[family].RULES):
        return
    for field, content in (("errors", "inputs that ATen rejects"), ("bench", "sizes of models")):
        assert getattr(samples, field) or field in samples.not_applicable, (
            f"detmode/rules/{family}/samples.py: SAMPLES has no {field}: give it {content}, or "
            f"say in not_applicable[{field!r}] why there are none"
        )


def test_is_data(family: str) -> None:
    """A family's __init__.py holds data: no functions, no lambdas."""
    tree = ast.parse((folder(family) / "__init__.py").read_text())
    code = [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda))
    ]
    assert not code, (
        f"detmode/rules/{family}/__init__.py:{code[0]}: rows are data; "
        "a predicate belongs into detmode/conditions.py, a function into launch.py"
    )
    assert isinstance(families()[family].RULES, tuple)
    assert families()[family].RULES, f"detmode/rules/{family}/__init__.py: RULES is empty"


def test_budgets(family: str) -> None:
    """Rows, launcher, CUDA and samples fit their budgets."""
    for path in folder(family).iterdir():
        budget = BUDGET.get(path.name) or BUDGET.get(path.suffix)
        if budget is None:
            continue
        text = path.read_text()
        lines = len(text.splitlines())
        if path.suffix == ".py":
            head = (ast.Import, ast.ImportFrom)
            body = ast.parse(text).body
            above = [node for node in body if node is body[0] or isinstance(node, head)]
            lines -= above[-1].end_lineno or 0
        assert lines <= budget, (
            f"detmode/rules/{family}/{path.name} has {lines} lines where {budget} are meant: "
            "make two families of it, or say it shorter"
        )


def test_no_blank_is_left(family: str) -> None:
    """The blanks that tools/new_rule.py marks FILL IN are for the family's author to write."""
    blanks = [
        f"detmode/rules/{family}/{path.name}:{number}: {line.strip().replace('FILL IN: ', '')}"
        for path in sorted(filter(Path.is_file, folder(family).iterdir()))
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if "FILL IN" in line
    ]
    if blanks:
        pytest.fail("\n".join(["write what is asked for:", *blanks]), pytrace=False)


def test_assignments_are_named(family: str) -> None:
    """A family that assigns says where its sources go: ATen is no measure of the one that stays."""
    assigns = any("assign_rows" in path.read_text() for path in folder(family).glob("*.py"))
    assert assigns == bool(samples_of(family).assignments), (
        f"detmode/rules/{family}/samples.py: assignments maps each operator that assigns to "
        "what is written to, where each element goes, and the elements"
    )


@pytest.mark.parametrize("version", facts.VERSIONS)
def test_chains_are_whole(version: str) -> None:
    """In every version each chain ends with a row without condition, and only there."""
    for op, chain in facts.chains(version).items():
        where = f"{facts.family_file(chain[0])}: {op} on PyTorch {version}"
        assert chain[-1].rule.when == ALWAYS, (
            f"{where}: give the last row no `when`; say what happens with all other calls"
        )
        early = [row for row in chain[:-1] if row.rule.when == ALWAYS]
        assert not early, f"{where}: rows after {facts.label(early[0].rule)} are never met"


def test_conditions_name_arguments(family: str) -> None:
    """A condition reads arguments that the operator's schema has."""
    for row in facts.rows_of(family):
        func = resolve(row.rule.op)
        if func is None:
            continue  # another PyTorch's, or an extension's that is not installed
        known = [argument.name for argument in func._schema.arguments]
        unknown = [argument for argument in row.rule.when.arguments if argument not in known]
        assert not unknown, (
            f"{facts.family_file(row)}: {facts.label(row.rule)} reads {unknown[0]!r}; "
            f"the schema has {known}"
        )


def test_alerts_fit_the_operator(family: str) -> None:
    """A pair of alerts belongs to an operator with an out variant.

    Where PyTorch has no alert, a row says what the call is without its substitute.
    """
    for row in facts.rows_of(family):
        func, where = resolve(row.rule.op), f"{facts.family_file(row)}: {facts.label(row.rule)}"
        if func is not None and isinstance(row.rule.alert, tuple):
            assert any(
                variant_of(other) == "out"
                and functional_signature(other) == functional_signature(func)
                for other in overloads(func._schema.name)
            ), f"{where} has two alerts, but the operator has no out variant: name one"
        if isinstance(row.rule.action, Substitute) and row.rule.alert is None:
            assert row.rule.action.otherwise is not None, (
                f"{where}: give Substitute otherwise=Native() or Refuse()"
            )


def test_launchers_are_functions_of_their_operator(family: str) -> None:
    """A row's function is found by its name, says what it gives, and has the schema's arguments."""
    for row in facts.rows_of(family):
        func, function = resolve(row.rule.op), getattr(row.rule.action, "function", None)
        if func is None or not inspect.isfunction(function):
            continue
        where = f"{facts.family_file(row)}: {facts.label(row.rule)}"
        module = sys.modules[function.__module__]
        assert getattr(module, function.__qualname__, None) is function, where
        assert function.__doc__, f"{where}: give {function.__qualname__} a docstring"
        parameters = inspect.signature(function).parameters
        names = [argument.name for argument in func._schema.arguments if not argument.is_out]
        assert [name for name in parameters if name in names] == names, where
        more = [each for name, each in parameters.items() if name not in names]
        assert all(each.default is not each.empty for each in more), where


def test_traffic_is_stated(family: str) -> None:
    """Every Substitute says its traffic, or None, and the docstring's Cost the same figure."""
    where = f"detmode/rules/{family}/__init__.py"
    for node in ast.walk(ast.parse((folder(family) / "__init__.py").read_text())):
        if isinstance(node, ast.Call) and getattr(node.func, "id", None) == "Substitute":
            assert any(keyword.arg == "traffic" for keyword in node.keywords), (
                f"{where}:{node.lineno}: give Substitute traffic=, the bytes that it moves as a "
                "multiple of the floor, or None and the reason under Cost"
            )
    cost = section(family, "Cost")
    actions = [
        rule.action for rule in families()[family].RULES if isinstance(rule.action, Substitute)
    ]
    for traffic in {action.traffic for action in actions}:
        words = "not counted" if traffic is None else f"{traffic} times the floor"
        assert words in cost, f"{where}: a row has traffic={traffic}; say {words!r} under Cost"
        assert traffic is None or "once" in cost or "bytes" in cost, (
            f"{where}: a row has traffic={traffic}; say under Cost how it was counted: what is "
            "read and written once, which is the floor, and the bytes that are moved beside it"
        )


def overloads(base: str) -> list[torch._ops.OpOverload]:
    """All overloads of an operator and of its in-place twin."""
    namespace, _, name = base.partition("::")
    found = []
    for each in (name, f"{name}_"):
        packet = getattr(getattr(torch.ops, namespace), each, None)
        if packet is not None:
            found += [getattr(packet, overload) for overload in packet.overloads()]
    return found


def test_variants_are_derived(family: str) -> None:
    """In-place and out= overloads of listed operators find their functional one's chain only."""
    where = f"detmode/rules/{family}/__init__.py"
    table = family_table(family)
    for op in dict.fromkeys(rule.op for rule in families()[family].RULES):
        func = resolve(op)
        if func is None:
            continue
        base = func._schema.name
        functional = [other for other in overloads(base) if variant_of(other) == "functional"]
        for other in overloads(base):
            # TorchScript's hacked_twin only calls the plain overload.
            if variant_of(other) == "functional" or other._overloadname == "hacked_twin":
                continue
            signature = functional_signature(other)
            alike = [each for each in functional if functional_signature(each) == signature]
            for each in alike:
                assert table.get(other) == table.get(each), (
                    f"{where}: {other} does not find the chain of {each}"
                )
            assert alike or table.get(other) or base in OTHER_OVERLOADS, (
                f"{where}: {other} is a variant of no functional overload; list it, "
                f"or say in OTHER_OVERLOADS of {Path(__file__).name} why not"
            )


def test_substitutes_read_memory_as_it_is() -> None:
    """PyTorch resolves lazy conj and neg before all operators with a substitute, but for products.

    The launchers of these do it themselves, and resize_ and what makes new memory read no numbers.
    Any other launcher would read wrong ones.
    """
    lazy = {
        f"{func._schema.name}, {key}"
        for row in facts.rows()
        if isinstance(row.rule.action, Substitute) and resolve(row.rule.op) is not None
        for func in overloads(row.rule.op.partition(".")[0])
        for key in ("Conjugate", "Negative")
        # TorchScript's hacked_twin has no kernels.
        if func._overloadname != "hacked_twin"
        and torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), key)
        and torch._C._dispatch_kernel_for_dispatch_key_is_fallthrough(func.name(), key)
    }
    products = {f"aten::{name}, Conjugate" for name in ("mm", "addmm", "addmm_")}
    reads_none = ("resize_", "empty", "empty_like", "empty_strided")
    assert lazy == products | {
        f"aten::{name}, {key}" for name in reads_none for key in ("Conjugate", "Negative")
    }


def test_forwards_exist(family: str) -> None:
    """FORWARDS names operators of PyTorch, and operators whose name does not tell it already."""
    for op in getattr(families()[family], "FORWARDS", ()):
        namespace, _, base = op.partition("::")
        packet = getattr(getattr(torch.ops, namespace), base.partition(".")[0], None)
        assert packet is not None or namespace not in ("aten", "c10d"), (
            f"detmode/rules/{family}/__init__.py: FORWARDS names {op}, which PyTorch has not"
        )


def test_families_are_disjoint() -> None:
    """The default table is the union of the families: no operator has two homes."""
    assert {row.family for row in default_rules()} >= set(families())
