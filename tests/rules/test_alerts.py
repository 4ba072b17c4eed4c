"""The table names every alert that PyTorch's binaries can raise, and no other."""

import pytest

from detmode.process.versions import parse_version
from detmode.table.rule import CUBLAS, Refuse, Rule
from detmode.table.rule_table import Row
from tests.shared import table_facts as facts

UNREACHABLE = {
    "adaptive_avg_pool2d_backward_out_cuda": "the out variant is a wrapper of the functional one, "
    "and alerts with that one's name",
    "scatter_cuda_": "under the flag scatter with a tensor goes to index_put before it could alert",
    "scatter_add_cuda_kernel": "under the flag scatter_add goes to index_put before it could alert",
    "scatter_reduce_cuda_sum_": "under the flag sums go to index_put before they could alert",
    "scatter_reduce_cuda_mean_": "under the flag means go to index_put before they could alert",
}
"""Strings in the binaries that no call of an aten operator reaches under the flag, and why."""


def names_of(rule: Rule) -> set[str]:
    """The caller names of a row."""
    return set(rule.alert if isinstance(rule.alert, tuple) else (rule.alert,)) - {None}


def rows(version: str, *, mps: bool) -> list[Row]:
    """The rows that hold for a version, on MPS or elsewhere."""
    return [
        row
        for row in facts.rows()
        if row.rule.holds_for(parse_version(version)) and ("'mps'" in str(row.rule.when)) == mps
    ]


def alerts(version: str, *, mps: bool = False) -> dict[str, str]:
    """The caller names of the rows, each with its family's file."""
    # The alerts of torchvision's operators are not PyTorch's own.
    own = (row for row in rows(version, mps=mps) if not row.rule.op.startswith("torchvision::"))
    return {name: facts.family_file(row) for row in own for name in names_of(row.rule)}


def known_to(version: str) -> set[str]:
    """The caller names of the CUDA and CPU libraries."""
    return {*facts.FACTS[version]["cpu"], *facts.FACTS[version]["cuda"]}


def check(version: str, named: dict[str, str], known: set[str], may: set[str], more: str) -> None:
    """Named are all names that are known, and beside them only some that may be named."""
    unknown = {name: file for name, file in named.items() if name not in known | may}
    assert not unknown, (
        f"{', '.join(f'{file}: {name!r}' for name, file in unknown.items())}: "
        f"PyTorch {version} has no such caller there; correct the name, or its since and until"
    )
    missing = sorted(known - set(named))
    assert not missing, (
        f"no row has the alerts {missing} of PyTorch {version}: add it to the row of its operator "
        f"in detmode/rules/<family>/__init__.py, {more}"
    )


@pytest.mark.parametrize("version", facts.VERSIONS)
def test_cuda_and_cpu_alerts(version: str) -> None:
    """For each version the table's caller names are those of the CUDA and CPU libraries."""
    known, unreachable = known_to(version), set(UNREACHABLE)
    named = alerts(version)
    named.pop(CUBLAS, None)
    more = "or say in UNREACHABLE why no call reaches it"
    check(version, named, known - unreachable, known & unreachable, more)


@pytest.mark.parametrize("version", facts.VERSIONS)
def test_no_alert_is_the_last_word(version: str) -> None:
    """Whatever PyTorch alerts on, on CUDA or the CPU, runs: no row with its name refuses."""
    refused = {
        row.rule.op: facts.family_file(row)
        for row in rows(version, mps=False)
        if isinstance(row.rule.action, Refuse) and names_of(row.rule) & known_to(version)
    }
    assert not refused, f"{refused}: give the row a substitute"


@pytest.mark.parametrize("version", facts.VERSIONS)
def test_cublas_alert(version: str) -> None:
    """The cuBLAS message is in the table for the versions whose binaries raise it."""
    assert (CUBLAS in alerts(version)) == bool(facts.FACTS[version].get("cublas")), (
        "detmode/rules/matmul/__init__.py: correct `until` of the rows with alert=CUBLAS"
    )


@pytest.mark.parametrize("version", [v for v in facts.VERSIONS if "mps" in facts.FACTS[v]])
def test_mps_alerts(version: str) -> None:
    """The same for MPS; names that are built at run time may be there or not."""
    known, unsure = (set(facts.FACTS[version][name]) for name in ("mps", "mps_unverified"))
    check(version, alerts(version, mps=True), known, unsure, "with when=on('mps')")


def test_unreachable_are_facts() -> None:
    """Every alert that is excused as unreachable is in some binary."""
    known = {name for facts_of in facts.FACTS.values() for name in facts_of["cuda"]}
    assert set(UNREACHABLE) <= known, "remove from UNREACHABLE what no binary has"
