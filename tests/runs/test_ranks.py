"""Runs of four ranks compared: the rank, the operator and the line of the earliest cause."""

import json
import shutil
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint

from detmode import TraceError, diff
from detmode.cli import parser as cli
from detmode.environment.lock import lock_file
from detmode.runs.collectives import ANY, Collective, GroupIdentity
from detmode.runs.trace_file import Reader
from tests.runs import rank_training
from tests.runs.rank_training import FAULTY, WORLD
from tests.shared import needs
from tests.shared.processes import run_program

pytestmark = needs.distributed
PROGRAM = Path(rank_training.__file__)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The recordings of all runs of :mod:`rank_training`."""
    folder = tmp_path_factory.mktemp("runs")
    run_program(PROGRAM, [(folder, rank) for rank in range(WORLD)], timeout=300)
    return folder


def line(comment: str) -> str:
    (found,) = (
        number
        for number, text in enumerate(PROGRAM.read_text().splitlines(), start=1)
        if text.endswith(f"  # {comment}")
    )
    return f"{PROGRAM}:{found}"


@pytest.mark.parametrize(
    ("name", "kind", "overload", "comment", "module"),
    [
        ("bit_flip", "outputs", "aten::mm.default", "the last layer", "last"),
        ("operator", "calls", "aten::relu.default", "the activation", None),
        ("data_order", "generator", "aten::randperm.generator", "the order of data", None),
        ("seed", "seed", "aten::uniform_.default", "the first layer", None),
        ("bucket_size", None, "aten::copy_.default", "the forward pass", None),
        ("transport", "collective", "c10d::allreduce_.default", "the loss of all ranks", None),
    ],
)
def test_a_fault_on_one_rank_of_four(runs, name, kind, overload, comment, module):
    """Its rank, operator and line are named, although it reaches the others by collectives.

    A collective is blamed only where the inputs of all members of its group agree.
    """
    comparison = diff(runs / "none", runs / name)
    assert not comparison.identical
    (cause,) = comparison.causes
    assert cause.ranks == (FAULTY[name],)
    call = cause.divergence.call
    assert (call.overload, call.site) == (overload, line(comment))
    assert kind in (None, cause.divergence.kind)
    assert module is None or call.module.endswith(f".{module}")
    assert cause.unknown == ()
    reached = {rank: FAULTY[name] for rank in range(WORLD) if rank != FAULTY[name]}
    if name not in ("bucket_size", "transport"):  # these two change nothing for the others
        assert comparison.reached == reached
        others = [comparison.comparisons[rank].divergence for rank in reached]
        assert {each.kind for each in others} == {"received"}
    assert f"The runs diverge at this call of rank {FAULTY[name]}:" in str(comparison)
    data = json.loads(comparison.to_json())
    assert data["causes"][0]["ranks"] == [FAULTY[name]]
    assert data["divergence"]["site"] == line(comment)


def test_runs_without_a_fault_are_identical(runs):
    """Also where each group has its own numbers: no rank has a difference of its own."""
    comparison = diff(runs / "none", runs / "again")
    assert comparison.identical
    assert comparison.verdict == "the runs of 4 ranks are identical"
    assert comparison.same > 500


def test_the_last_attempt_of_a_rank_counts(runs, tmp_path):
    """Of ranks that a launcher has started again, what earlier attempts recorded is left out."""
    for rank in range(WORLD):
        shutil.copytree(runs / "bit_flip" / f"rank{rank}", tmp_path / f"rank{rank}")
        for attempt, name in ((2, "bit_flip"), (10, "again")):
            again = tmp_path / f"rank{rank}.attempt{attempt}"
            shutil.copytree(runs / name / f"rank{rank}", again)
    assert diff(runs / "none", tmp_path).identical
    assert not diff(runs / "none", runs / "bit_flip").identical


def test_a_difference_of_all_ranks_is_one_cause(runs):
    """Other buckets on all ranks are said once, for all of them, and not for each."""
    comparison = diff(runs / "none", runs / "buckets")
    (cause, *_) = comparison.causes
    assert cause.ranks == (0, 1, 2, 3)
    assert "at this call of ranks 0-3:" in str(comparison)


def test_causes_are_in_the_order_of_collectives(runs, tmp_path):
    """Of two ranks that diverge by themselves, the one comes first that called fewer of them."""
    second = shutil.copytree(runs / "none", tmp_path / "second")
    for name in ("transport", "bit_flip"):
        rank = second / f"rank{FAULTY[name]}"
        shutil.rmtree(rank)
        shutil.copytree(runs / name / rank.name, rank)
    comparison = diff(runs / "none", second)
    assert [cause.ranks for cause in comparison.causes] == [(2,), (0,)]
    assert "The runs also diverge at this call of rank 0:" in str(comparison)


def test_groups_and_numbers_of_collectives(runs):
    """All members of a group number its collectives alike, and know it by its name and ranks."""
    keys = {}
    for rank in range(WORLD):
        calls = Reader(runs / "sharded" / f"rank{rank}").calls()
        keys[rank] = [call.collective.key for call in calls if call.collective]
    groups = {key[0][1] for found in keys.values() for key in found}
    assert {(0, 1), (2, 3), (0, 2), (1, 3)} <= groups
    for rank, found in keys.items():
        assert len(set(found)) == len(found)
        for member, others in keys.items():
            shared = [key for key in found if {rank, member} <= set(key[0][1])]
            assert shared == [key for key in others if {rank, member} <= set(key[0][1])]


def test_ranks_of_one_run(runs):
    """Data and dropout of their own are no difference of ranks; what they share is the same."""
    comparison = diff(runs / "none" / "rank0", runs / "none" / "rank1")
    assert comparison.identical
    assert comparison.ranks == ("0", "1")
    assert comparison.different > 20
    assert comparison.drift is None
    assert str(comparison).startswith("ranks 0 and 1 have the same results of collectives")
    assert "Ranks 0 and 1 have the same" in comparison.to_html()
    data = json.loads(comparison.to_json())
    assert (data["ranks"], data["drift"]) == (["0", "1"], None)


def test_collective_that_gave_two_results(runs):
    """It is named, and its line."""
    divergence = diff(runs / "transport" / "rank0", runs / "transport" / "rank1").divergence
    assert (divergence.kind, divergence.call.overload) == ("replica", "c10d::allreduce_.default")
    assert divergence.differing == ("mutated 0",)
    assert divergence.call.site == line("the loss of all ranks")


def test_weights_that_part(runs):
    """The call after which ranks do not have the same is named, though it may be meant so."""
    comparison = diff(runs / "drift" / "rank0", runs / "drift" / "rank1")
    assert comparison.identical
    assert comparison.drift.call.overload == "aten::_foreach_mul_.Scalar"
    assert comparison.drift.differing == ("([_, _, _, _], 1.0)", "([_, _, _, _], 1.125)")
    assert "The first call after which the ranks have different bytes:" in str(comparison)


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_ranks_of_different_groups_share_no_results(runs, rank):
    """HSDP without a fault: what one group gathers is no replica of what another one does."""
    comparison = diff(runs / "sharded" / "rank0", runs / "sharded" / f"rank{rank}")
    assert comparison.identical, str(comparison)
    assert comparison.ranks == ("0", str(rank))


def test_a_member_without_a_recording(runs, tmp_path):
    """Its rank is named, a collective that it took part in is not blamed, and exit code 1."""
    second = shutil.copytree(runs / "operator", tmp_path / "second")
    shutil.rmtree(second / "rank1")
    comparison = diff(runs / "none", second)
    assert comparison.missing == ((1,), ())
    (cause,) = comparison.causes
    assert (cause.ranks, cause.divergence.kind, cause.unknown) == ((0, 2, 3), "received", (1,))
    assert "only the first run has recordings of rank 1" in str(comparison)
    assert "the inputs of rank 1 could not be compared" in str(comparison)
    shutil.copytree(runs / "none", tmp_path / "third")
    shutil.rmtree(tmp_path / "third" / "rank3")
    whole = diff(runs / "none", tmp_path / "third")
    assert (whole.identical, whole.causes) == (False, ())
    assert whole.verdict == "ranks 0-2 are identical, and others are missing"


def test_coarse_recordings_name_the_step(runs):
    """For each rank the first step that differs, and the options that find the call in it."""
    assert diff(runs / "coarse_none", runs / "coarse_again").identical
    comparison = diff(runs / "coarse_none", runs / "coarse_bit_flip")
    assert not comparison.identical
    step = diff(runs / "none", runs / "bit_flip").divergence.step
    assert (comparison.step, comparison.next) == (step, f"--steps {step}:{step + 1}")
    assert list(comparison.firsts) == [0, 1, 2, 3]
    assert f"step {step} on ranks 0-3: parameters, gradients" in str(comparison)
    with pytest.raises(
        TraceError, match="rank0 was recorded with --level call .* with the same --level"
    ):
        diff(runs / "none", runs / "coarse_none")


def test_checkpoint_has_the_digest_of_all_ranks(runs):
    """It is the same for two runs without a fault, and another one after a fault on one rank."""
    found = {}
    for name in ("none", "again", "bit_flip"):
        checkpoint = runs / f"checkpoint_{name}"
        metadata = torch.distributed.checkpoint.FileSystemReader(checkpoint).read_metadata()
        found[name] = metadata.planner_data["detmode.run_digest"]
        for rank in range(WORLD):
            of_rank = checkpoint.with_name(f"{checkpoint.name}.rank{rank}")
            assert of_rank.read_text() == found[name]
    assert len(bytes.fromhex(found["none"])) == 16
    assert found["none"] == found["again"] != found["bit_flip"]


def change_lock(trace: Path, *, gpus: list[str], **variables: str) -> None:
    lock = lock_file.read(trace / "detmode.lock")
    sections = {name: dict(section) for name, section in lock.items()}
    sections["machine"]["gpus"] = gpus
    sections["variables"].update(variables)
    lock_file.write(sections, trace / "detmode.lock")


def test_starts_are_compared_first(runs, tmp_path):
    """World size, backend and NCCL's variables stand beside the trace, and differences are said."""
    second = shutil.copytree(runs / "again", tmp_path / "second")
    for rank in range(WORLD):
        file = second / f"rank{rank}" / "trace.json"
        about = json.loads(file.read_text())
        assert (about["rank"], about["world_size"]) == (str(rank), "4")
        about["world_size"] = "8"
        file.write_text(json.dumps(about))
        algorithm = "ring" if rank == 1 else "tree"
        change_lock(file.parent, gpus=["NVIDIA H100"], NCCL_ALGO=algorithm)
        lines = second / f"rank{rank}" / "calls.jsonl"
        lines.write_text(lines.read_text().replace("cpu:gloo", "cpu:mpi"))
    first = shutil.copytree(runs / "none", tmp_path / "first")
    for rank in range(WORLD):
        change_lock(first / f"rank{rank}", gpus=["NVIDIA A100"])
    started = {name: both for name, *both in diff(first, second).started}
    assert started["world size"] == ["4", "8"]
    assert started["GPUs"] == ["NVIDIA A100", "NVIDIA H100"]
    assert started["NCCL_ALGO of rank 1"][1] == "ring"
    assert started["NCCL_ALGO of ranks 0, 2, 3"][1] == "tree"
    assert "cpu:gloo" in started["groups"][0]
    assert "cpu:mpi" in started["groups"][1]


def test_command_line(runs, tmp_path, capsys):
    """Exit codes 0, 1 and 2, JSON and a page, as for the traces of one process."""
    assert cli.main(["diff", str(runs / "none"), str(runs / "again")]) == 0
    capsys.readouterr()
    page = tmp_path / "page.html"
    command = ["diff", "--format", "json", "--html", str(page)]
    assert cli.main([*command, str(runs / "none"), str(runs / "bit_flip")]) == 1
    assert json.loads(capsys.readouterr().out)["causes"][0]["overload"] == "aten::mm.default"
    assert "The runs diverge at this call of rank 2" in page.read_text()
    assert cli.main(["diff", str(runs / "none"), str(runs / "none" / "rank0")]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert said.endswith(f"several ranks: name one of them, such as {runs / 'none' / 'rank0'}")
    with pytest.raises(TraceError, match="no trace at"):
        diff(runs / "none", tmp_path / "missing")


@pytest.mark.parametrize(
    ("peers", "ranks"), [((), (4, 6, 7)), ((1, 2, 0), (6,)), ((ANY, 2, 0), (4, 6, 7))]
)
def test_whose_inputs_decide_results(peers, ranks):
    """Those of all members, but those of the sender alone where one sends to one, and is known."""
    group = GroupIdentity("2", "mesh_dp", "cpu:gloo", (4, 6, 7))
    assert Collective(group, 0, peers).sources == ranks
