"""check_ranks: four gloo ranks, faults in one of them, and what every rank is told."""

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import distributed, nn

from detmode import check_ranks
from detmode.distributed.begun_check import digests_of, local_tensors
from detmode.distributed.check_verdict import verdict_on_tensors
from tests.shared import needs
from tests.shared.processes import run_ranks

pytestmark = needs.distributed

PROGRAM = Path(__file__).parent / "checked.py"
Results = dict[str, list[Any]]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """By scenario, what each of four ranks was told."""
    return run_ranks(PROGRAM, 4, tmp_path_factory.mktemp("checked"))


def agreed_on(of_ranks: list[Any]) -> Any:
    """Return the one error that all ranks got."""
    told = [{key: each[key] for key in ("text", "ranks", "tensor", "step")} for each in of_ranks]
    assert all(each == told[0] for each in told)
    return told[0]


def test_ranks_that_agree(results: Results) -> None:
    """Nothing is raised: own data and dropout, named values and shards without replicas differ not.

    Nor do the numbers of steps of another module's optimizer. A check is no call of the program:
    neither recorded nor counted.
    """
    assert results["agree"] == results["sharded"] == [None] * 4
    assert results["unseen"] == [[["aten::ones.default", "aten::neg.default"], []]] * 4


def test_fault_in_one_rank(results: Results) -> None:
    """A byte of the optimizer's state, changed at step 7, stops every rank by step 9.

    The majority tells which rank and which tensor; with ``every=10`` the next check but one does.
    """
    told = agreed_on(results["weight"])
    assert (told["ranks"], told["tensor"], told["step"]) == ([2], "module.2.weight", 7)
    assert told["text"] == (
        "check_ranks: rank 2 has other bytes than ranks 0, 1 and 3 in 'module.2.weight' "
        "(float32[2, 8]) after step 7; they agreed after step 6. These differ too: "
        "optimizer.module.2.weight.exp_avg"
    )
    assert all(each["stopped"] <= 9 for each in results["weight"])
    told = agreed_on(results["every"])
    assert (told["ranks"], told["tensor"], told["step"]) == ([1], "module.0.bias", 20)


def test_two_ranks_and_another_group(results: Results) -> None:
    """Of two ranks both are named; those of another group raise the same, at one step."""
    told = agreed_on(results["pairs"])
    assert (told["ranks"], told["tensor"], told["step"]) == ([0, 1], "module.0.weight", 3)
    assert told["text"].endswith("Two ranks cannot tell which of them is wrong")
    *here, there, beside = (each["stopped"] for each in results["pairs"])
    assert here == [4, 4]
    assert there == beside <= 6


def test_sharded_state(results: Results) -> None:
    """HSDP's replicas of a shard are compared, by FSDP2 and by FSDP1."""
    told = agreed_on(results["hybrid"])
    assert (told["ranks"], told["tensor"], told["step"]) == ([1, 3], "2.weight", 2)
    told = agreed_on(results["fsdp1"])
    assert (told["ranks"], told["step"]) == ([0, 2], 2)
    assert told["tensor"].endswith("_flat_param")


def test_what_else_may_differ(results: Results) -> None:
    """Running statistics (the text says what to do), options, generators, steps and names."""
    told = agreed_on(results["statistics"])
    assert (told["ranks"], told["tensor"]) == ([0, 1, 2, 3], "module.1.running_mean")
    assert "ignore=['*.running_mean', '*.running_var']" in told["text"]
    told = agreed_on(results["rate"])
    assert (told["ranks"], told["tensor"]) == ([1], "optimizer.0.lr")
    assert "(0.001 and 0.5)" in told["text"]
    told = agreed_on(results["named"])
    assert (told["ranks"], told["tensor"]) == ([0], "sampler")
    told = agreed_on(results["steps"])
    assert told["text"] == "check_ranks: ranks 0, 2 and 3 made 3 and rank 1 made 4 steps"
    assert told["ranks"] == [1]
    told = agreed_on(results["names"])
    assert told["ranks"] == [0]
    assert "rank 0 has 'mask' and ranks 1, 2 and 3 have not" in told["text"]


def test_rank_that_takes_no_part(results: Results) -> None:
    """It is named, after ``timeout`` seconds where it hangs, and at once where it has ended."""
    told = agreed_on([each for rank, each in enumerate(results["hangs"]) if rank != 1])
    assert told["ranks"] == [1]
    assert "rank 1 took no part; nothing came in 0.3 seconds" in told["text"]
    ended = [each for rank, each in enumerate(results["ends"]) if rank != 3]
    for each in ended:
        assert each["ranks"] == [3]
        assert "rank 3 took no part" in each["text"]
        assert each["seconds"] < 10


def test_rank_that_fails(results: Results) -> None:
    """It leaves the block with its error at once, though the others have not begun the check."""
    assert results["fails"] == [None, "out of memory", None, None]


def test_no_majority() -> None:
    """Two ranks against two: all four are suspects, and no list of names is without end.

    The error says the same in a process to which it is sent.
    """
    held = {
        rank: {f"weight{n}": (1, "float32[2]", str(rank // 2)) for n in range(9)}
        for rank in range(4)
    }
    verdict = verdict_on_tensors(held, 3, None)
    assert verdict is not None
    verdict = pickle.loads(pickle.dumps(verdict))
    assert verdict.ranks == (0, 1, 2, 3)
    assert str(verdict) == (
        "check_ranks: ranks 0 and 1, and ranks 2 and 3, have different bytes in 'weight0' "
        "(float32[2]) after step 3. Ranks without a majority cannot tell which of them is wrong. "
        "These differ too: weight1, weight2, weight3, weight4, weight5 and 3 more"
    )


@pytest.fixture
def group() -> Iterator[None]:
    """A process group of this process alone."""
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


WRONG: dict[str, tuple[dict[str, Any], type[Exception]]] = {
    "module must be an nn.Module, got Tensor": ({"module": torch.ones(1)}, TypeError),
    "every must be an int, got float": ({"every": 1.0}, TypeError),
    "every must be at least 1, got 0": ({"every": 0}, ValueError),
    "ignore must be a list of globs": ({"ignore": "*"}, TypeError),
    "timeout must be above 0 seconds": ({"timeout": 0}, ValueError),
}


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize("words", WRONG)
def test_wrong_arguments(words: str) -> None:
    """Each is refused in words."""
    arguments, error = WRONG[words]
    with pytest.raises(error, match=words):
        check_ranks(**{"module": nn.Linear(2, 2), **arguments})


def test_without_a_group() -> None:
    """The error says what to call first."""
    with pytest.raises(RuntimeError, match="call torch.distributed.init_process_group first"):
        check_ranks(nn.Linear(2, 2))


def local(module: nn.Module, **also: object) -> list[tuple[str, str]]:
    return [(each.name, each.form) for each in local_tensors(module, [], also, ["*.skipped"])]


def test_what_is_compared() -> None:
    """Values of every kind have names; what has no bytes, or is unknown, is refused by name."""
    module = nn.Linear(2, 1, bias=False)
    also = {"state": nn.Linear(1, 1), "array": np.zeros(2), "value": lambda: [1, {"skipped": 2}]}
    assert local(module, **also) == [
        ("weight", "float32[1, 2]"),
        ("state.weight", "float32[1, 1]"),
        ("state.bias", "float32[1]"),
        ("array", "uint8[16]"),
        ("value.0", "1"),
    ]
    sparse = torch.eye(2).to_sparse()
    with pytest.raises(TypeError, match=r"'graph'.*sparse_coo.*ignore=\['graph'\]"):
        local(module, graph=sparse)
    with pytest.raises(TypeError, match="'thing' is of the type object; give a tensor"):
        local(module, thing=object())


def test_digests_tell_all_tensors_apart() -> None:
    """The root depends on every byte, of small tensors and of large ones, and not on strides."""
    values = torch.arange(12.0).reshape(3, 4)

    def root(**also: object) -> list[int]:
        (digests,) = digests_of(local_tensors(nn.Module(), [], also, []))
        found: list[int] = digests.root.tolist()
        return found

    assert root(a=values, b=torch.ones(0)) == root(a=values.T.contiguous().T, b=torch.ones(0))
    large = torch.zeros(1 << 14)
    changed = large.clone()
    changed[-1] = -0.0
    roots = [
        root(a=values, b=large),
        root(a=values, b=changed),
        root(a=values.flip(0), b=large),
        root(a=large, b=values),
    ]
    assert len(set(map(tuple, roots))) == 4
