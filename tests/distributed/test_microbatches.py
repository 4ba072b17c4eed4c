"""One gradient on any number of ranks: bits, errors, what is refused, and what is restored."""

import json
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed

from detmode.distributed import MicrobatchReducer
from tests.distributed import elastic_training
from tests.distributed.elastic_training import EVEN, MICROBATCHES, QUICK, RANKS, TRAININGS
from tests.shared.processes import run_program
from tests.shared.selection import PROFILE

pytestmark = pytest.mark.skipif(
    not (distributed.is_available() and distributed.is_gloo_available()),
    reason="this PyTorch is built without gloo",
)

CHOSEN = [name for name in TRAININGS if PROFILE.thorough or name in QUICK]


def in_profiles(names: Collection[str]) -> list[Any]:
    """Parameters; those that the quick profile leaves out are thorough."""
    return [
        pytest.param(name, marks=() if name in QUICK else pytest.mark.thorough)
        for name in TRAININGS
        if name in names
    ]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The findings of each of four ranks."""
    folder = tmp_path_factory.mktemp("ranks")
    program = Path(elastic_training.__file__)
    run_program(program, [(rank, folder, *CHOSEN) for rank in range(RANKS)], timeout=500)
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(RANKS)]


def digests(found: list[dict[str, Any]], training: str) -> set[str]:
    """The digests of a training on all numbers of ranks, of all of those."""
    names = [f"{training} on {size}" for size in range(1, RANKS + 1)]
    made = [[each[name] for name in names if name in each] for each in found]
    numbers = [4, 3, 2, 1] if training not in EVEN else [3, 2, 1, 0]
    assert [len(each) for each in made] == numbers
    return {digest for each in made for digest in each}


@pytest.mark.parametrize("training", in_profiles(TRAININGS.keys() - {"added by DDP"}))
def test_one_digest_on_any_number_of_ranks(found: list[dict[str, Any]], training: str) -> None:
    """Weights, buffers, optimizer state, losses and norms have the same bits on 1 to 4 ranks."""
    assert len(digests(found, training)) == 1


def test_ddp_gives_other_bits_on_each_number_of_ranks(found: list[dict[str, Any]]) -> None:
    """The control: with DDP's own mean of the same microbatches each number has bits of its own."""
    assert len(digests(found, "added by DDP")) == 3


ALIKE = {
    "in FSDP2": "transformer",
    "small buckets, no overlap, in DDP": "transformer",
    "convolutions in DDP": "convolutions",
}


@pytest.mark.parametrize("way", in_profiles(ALIKE))
def test_ways_that_do_not_change_bits(found: list[dict[str, Any]], way: str) -> None:
    """Buckets, overlap, and DDP or FSDP2 around the model change no bit."""
    assert digests(found, way) == digests(found, ALIKE[way])


def test_stops_do_not_change_bits(found: list[dict[str, Any]]) -> None:
    """A training that goes on from a checkpoint on fewer ranks is one without a stop."""
    assert digests(found, "transformer") == {found[0]["resumed"]}


@pytest.mark.thorough
def test_another_seed(found: list[dict[str, Any]]) -> None:
    """The seed of the reducer reaches dropout: another one trains to other bits."""
    assert digests(found, "another seed") != digests(found, "transformer")


SUMS = [
    (torch.float32, torch.int64, 2.0**-24, 2.0**-32),
    (torch.bfloat16, torch.int64, 2.0**-8, 2.0**-32),
    (torch.float16, torch.int64, 2.0**-11, 0.0),
    (torch.bfloat16, torch.int32, 2.0**-8, 2.0**-16),
    (torch.float16, torch.int32, 2.0**-11, 2.0**-16),
]


@pytest.mark.parametrize(("dtype", "sum_dtype", "rounding", "dropped"), SUMS, ids=str)
def test_error_of_a_gradient(
    found: list[dict[str, Any]],
    dtype: torch.dtype,
    sum_dtype: torch.dtype,
    rounding: float,
    dropped: float,
) -> None:
    """It is at most DDP's, and within the bound that the documentation states."""
    errors = found[0][f"errors of {dtype} in {sum_dtype}"]
    tensors = {name: torch.tensor(each, dtype=torch.float64) for name, each in errors.items()}
    largest = tensors["largest"]
    if sum_dtype == torch.int32:
        largest = largest.view(-1, 64).amax(1).repeat_interleave(64)
    # Of numbers below the smallest normal one, float16 rounds to multiples of 2**-24.
    bound = rounding * tensors["mean"] * (1 + 2**-12) + dropped * largest
    bound = bound.clamp(min=2.0**-25) if dtype == torch.float16 else bound
    assert (tensors["exact"] <= bound).all()
    assert tensors["exact"].norm() <= tensors["ddp"].norm()
    assert tensors["exact"].amax() <= tensors["ddp"].amax()


def test_not_finite(found: list[dict[str, Any]]) -> None:
    """NaN arrives on all ranks, infinities as such; elements of their block are NaN in int32."""
    for each in found:
        assert each["special values in torch.int64"] == ["nan", "inf", "-inf", "nan", "1.75"]
        assert each["special values in torch.int32"] == ["nan", "inf", "-inf", "nan", "1.75"]


REFUSED = {
    "SyncBatchNorm": "TypeError: .*use BatchNorm",
    "float64": "TypeError: the parameter weight is of torch.float64",
    "too few": "ValueError: microbatches must be at least 4, the number of ranks",
    "too many": "ValueError: microbatches must be .* at most 128",
    "arguments differ": "RuntimeError: the ranks disagree on the reducer's arguments",
    "steps differ": "RuntimeError: the ranks disagree on the step",
    "gradients before": "RuntimeError: .*call optimizer.zero_grad()",
    "backward twice": "RuntimeError: .*overlap=False",
    "sparse": "TypeError: .*sparse=False",
    "integer buffer": "RuntimeError: .*different values, one of .*steps",
    "values": "ValueError: got 6 values, but this rank computes [12] microbatches",
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(found: list[dict[str, Any]], case: str) -> None:
    """Every rank refuses, in words, parts that depend on the ranks, and gradients without sums."""
    for each in found:
        assert re.match(REFUSED[case], each["refusals"][case])


def test_alone() -> None:
    """Without a process group, one process has all microbatches; a loop that is left says so."""
    model = torch.nn.Linear(1, 1)
    reducer = MicrobatchReducer(model, 3)
    for index in reducer.microbatches(0):
        model(torch.full((1,), float(index))).backward()
    assert (model.weight.grad.item(), model.bias.grad.item()) == (1.0, 1.0)
    model.zero_grad()
    with pytest.warns(UserWarning, match="left at microbatch 0 of 3: .* no gradients"):
        for _ in reducer.microbatches(1):
            model(torch.ones(1)).backward()
            break
    assert model.weight.grad is None


@pytest.mark.parametrize("fails_at", [0, 1, 2])
@pytest.mark.parametrize("held", [False, True], ids=["let go", "held"])
# Each attempt that fails leaves its loop, and says so.
@pytest.mark.filterwarnings("ignore:the loop was left:UserWarning")
def test_a_step_that_failed_can_be_made_again(fails_at: int, held: bool) -> None:
    """Nothing of it stays: gradients, running statistics and generators are those of one step.

    The loop that failed may be alive still, as in a progress bar's frame that a traceback holds.
    """

    def made_of(*steps: int | None) -> tuple[list[Any], Any]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.BatchNorm1d(1), torch.nn.Linear(1, 1))
        reducer = MicrobatchReducer(model, 3)
        for step in steps:
            loop = reducer.microbatches(0)
            holders.append(loop)
            try:
                while (index := next(loop, None)) is not None:
                    model(torch.tensor([[1.0 + index], [4.0]])).pow(2).sum().backward()
                    if index == step:
                        raise RuntimeError("out of memory")
            except RuntimeError:
                holders[:] = holders if held else []
                del loop
        state = [each.tolist() for each in model.state_dict().values()]
        return [*state, *(each.grad.tolist() for each in model.parameters())], torch.rand(2)

    holders: list[Any] = []
    (again, drawn), (once, expected) = made_of(fails_at, None), made_of(None)
    assert again == once
    assert torch.equal(drawn, expected)
    holders.clear()


def test_a_loop_that_is_let_go_late_changes_nothing() -> None:
    """It ended when the next one began, and said so."""
    model = torch.nn.Linear(1, 1)
    reducer = MicrobatchReducer(model, 3)
    abandoned = reducer.microbatches(0)
    next(abandoned)
    model(torch.ones(1)).backward()
    next(abandoned)
    with pytest.warns(UserWarning, match="left at microbatch 1 of 3"):
        loop = reducer.microbatches(0)
    for index in loop:
        model(torch.full((1,), float(index))).backward()
    del abandoned
    assert (model.weight.grad.item(), model.bias.grad.item()) == (1.0, 1.0)


def test_clipping() -> None:
    """A norm below the largest that is allowed is left as it is, and another is brought to it."""
    model = torch.nn.Linear(1, 1)
    reducer = MicrobatchReducer(model, 2)
    for index in reducer.microbatches(0):
        model(torch.full((1,), float(index))).backward()
    assert reducer.clip_grad_norm_(10.0).item() == pytest.approx(1.25**0.5)
    assert (model.weight.grad.item(), model.bias.grad.item()) == (0.5, 1.0)
    reducer.clip_grad_norm_(0.5)
    assert model.weight.grad.item() ** 2 + model.bias.grad.item() ** 2 == pytest.approx(
        0.25, rel=1e-5
    )


def test_memory_between_gradients_counts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """New memory is full of NaN, which would spread in a block; of int32 sums it is shared."""
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *args, **how: empty(*args, **how).fill_(torch.nan))
    model = torch.nn.Linear(1, 1, dtype=torch.bfloat16)
    for index in MicrobatchReducer(model, 2, sum_dtype=torch.int32).microbatches(0):
        model(torch.full((1,), float(index), dtype=torch.bfloat16)).backward()
    assert (model.weight.grad.item(), model.bias.grad.item()) == (0.5, 1.0)


def test_backward_twice(found: list[dict[str, Any]]) -> None:
    """Without overlap, a microbatch may have several backward passes."""
    assert {each["refusals"]["backward twice, no overlap"] for each in found} == {"[3.0]"}


def test_generators_and_gradients_of_one_microbatch(found: list[dict[str, Any]]) -> None:
    """One of six microbatches counts a sixth; unused parameters get none; generators come back."""
    parts = [each["of one microbatch"] for each in found]
    sixth = torch.tensor(1 / MICROBATCHES).item()
    assert [(part["used"], part["unused"], part["restored"]) for part in parts] == [
        (sixth, None, True)
    ] * RANKS
    drawn = [pair for part in parts for pair in part["drawn"]]
    assert [index for index, _ in drawn] == list(range(MICROBATCHES))
    assert len({number for _, number in drawn}) == MICROBATCHES
    assert {part["sum"] for part in parts} == {15.0}
