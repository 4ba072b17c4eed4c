"""The table names every alert that PyTorch's binaries can raise, and no other."""

import pytest
import table_facts as facts

from detmode.environment.versions import parse_version
from detmode.table.rule import CUBLAS, Refuse

UNREACHABLE = {
    "adaptive_avg_pool2d_backward_out_cuda": "the out variant is a wrapper of the functional one, "
    "and alerts with that one's name",
    "scatter_cuda_": "under the flag scatter with a tensor goes to index_put before it could alert",
    "scatter_add_cuda_kernel": "under the flag scatter_add goes to index_put before it could alert",
    "scatter_reduce_cuda_sum_": "under the flag sums go to index_put before they could alert",
    "scatter_reduce_cuda_mean_": "under the flag means go to index_put before they could alert",
}
"""Strings in the binaries that no call of an aten operator reaches under the flag, and why."""

OTHER_HOMES = ("torchvision::",)
"""Operators whose alerts are not PyTorch's own."""


def alerts(version: str, *, mps: bool) -> dict[str, str]:
    """The caller names of the rows that hold for a version, each with its family's file."""
    found = {}
    for row in facts.rows():
        rule = row.rule
        if rule.op.startswith(OTHER_HOMES) or not rule.holds_for(parse_version(version)):
            continue
        if ("'mps'" in str(rule.when)) != mps:
            continue
        names = rule.alert if isinstance(rule.alert, tuple) else (rule.alert,)
        found.update({name: facts.family_file(row) for name in names if name is not None})
    return found


@pytest.mark.parametrize("version", facts.VERSIONS)
def test_cuda_and_cpu_alerts(version: str) -> None:
    """For each version the table's caller names are those of the CUDA and CPU libraries."""
    known = {*facts.FACTS[version]["cpu"], *facts.FACTS[version]["cuda"]}
    named = alerts(version, mps=False)
    named.pop(CUBLAS, None)
    unknown = {name: file for name, file in named.items() if name not in known}
    assert not unknown, (
        f"{', '.join(f'{file}: {name!r}' for name, file in unknown.items())}: "
        f"PyTorch {version} has no such caller; correct the name, or its since and until"
    )
    missing = sorted(known - set(named) - set(UNREACHABLE))
    assert not missing, (
        f"no row has the alerts {missing} of PyTorch {version}: add it to the row of its operator "
        "in detmode/rules/<family>/__init__.py, or say in UNREACHABLE why no call reaches it"
    )


@pytest.mark.parametrize("version", facts.VERSIONS)
def test_no_alert_is_the_last_word(version: str) -> None:
    """Whatever PyTorch alerts on, on CUDA or the CPU, runs: no row with its name refuses."""
    known = {*facts.FACTS[version]["cpu"], *facts.FACTS[version]["cuda"]}
    refused = {
        row.rule.op: facts.family_file(row)
        for row in facts.rows()
        if row.rule.holds_for(parse_version(version))
        and isinstance(row.rule.action, Refuse)
        and "'mps'" not in str(row.rule.when)
        and not known.isdisjoint(
            row.rule.alert if isinstance(row.rule.alert, tuple) else (row.rule.alert,)
        )
    }
    assert not refused, f"{refused}: give the row a substitute"


@pytest.mark.parametrize("version", facts.VERSIONS)
def test_cublas_alert(version: str) -> None:
    """The cuBLAS message is in the table for the versions whose binaries raise it."""
    assert (CUBLAS in alerts(version, mps=False)) == bool(facts.FACTS[version].get("cublas")), (
        "detmode/rules/matmul/__init__.py: correct `until` of the rows with alert=CUBLAS"
    )


@pytest.mark.parametrize("version", [v for v in facts.VERSIONS if "mps" in facts.FACTS[v]])
def test_mps_alerts(version: str) -> None:
    """The same for MPS; names that are built at run time may be there or not."""
    known, unsure = facts.FACTS[version]["mps"], facts.FACTS[version]["mps_unverified"]
    named = alerts(version, mps=True)
    unknown = {name: file for name, file in named.items() if name not in (*known, *unsure)}
    assert not unknown, (
        f"{', '.join(f'{file}: {name!r}' for name, file in unknown.items())}: "
        f"the MPS library of PyTorch {version} has no such caller; correct the name"
    )
    missing = sorted(set(known) - set(named))
    assert not missing, (
        f"no row has the MPS alerts {missing}: add a row with when=on('mps') to the chain of its "
        "operator in detmode/rules/<family>/__init__.py"
    )


def test_unreachable_are_facts() -> None:
    """Every alert that is excused as unreachable is in some binary."""
    known = {name for facts_of in facts.FACTS.values() for name in facts_of["cuda"]}
    assert set(UNREACHABLE) <= known, "remove from UNREACHABLE what no binary has"
