"""The backward of the CTC loss, on the host runner and through the user's functions."""

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from detmode import DeterministicMode
from detmode.cuda import host
from detmode.rules.ctc_loss import launch
from detmode.rules.ctc_loss.launch import choose_threads, ctc_loss_backward, is_large
from detmode.table.samples import Maker
from detmode.verify.cases import samples_of
from tests.shared import needs
from tests.shared.strategies import SEEDS, SINGLE_OR_DOUBLE, in_schedules

pytestmark = needs.compiler

INF = math.inf


def reference(
    log_probs: Tensor, labels: Sequence[int], log_alpha: Tensor, nll: float, blank: int
) -> tuple[Tensor, Tensor]:
    """Probabilities, and the share of the likelihood of each time and class, (T, C), in float64.

    One sample: (T, C) and (T, 2 S + 1), T its own length. By logarithms, from the definition.
    """
    states = [blank]
    for label in labels:
        states += [label, blank]
    n, times = len(states), len(log_probs)
    wide, emitted = log_probs.double(), log_probs.double()[:, states]
    log_beta = torch.full((times, n), -INF, dtype=torch.float64)
    log_beta[-1, -2:] = emitted[-1, -2:]
    skips = torch.tensor(
        [s % 2 == 1 and s + 2 < n and states[s] != states[s + 2] for s in range(n)]
    )
    nothing = torch.full((2,), -INF, dtype=torch.float64)
    for t in range(times - 2, -1, -1):
        later = torch.cat([log_beta[t + 1], nothing])
        after = torch.where(skips, later[2:], -INF)
        log_beta[t] = torch.stack([later[:n], later[1 : n + 1], after]).logsumexp(0) + emitted[t]
    shares = (log_alpha[:, :n].double() + log_beta + nll - emitted).exp()
    share = torch.zeros_like(wide).index_add_(1, torch.tensor(states), shares)
    return wide.exp(), share


@st.composite
def problems(draw: st.DrawFn, dtype: torch.dtype, longest: int) -> dict[str, Any]:
    """A batch whose forward is ATen's, with labels of few classes, so that they repeat."""
    samples, classes = draw(st.integers(1, 5)), draw(st.integers(2, 7))
    blank = draw(st.integers(0, classes - 1))
    label = st.integers(0, draw(st.integers(1, classes)) - 1)
    counts = [draw(st.integers(0, longest)) for _ in range(samples - 1)] + [longest]
    targets = [draw(st.lists(label, min_size=n, max_size=n)) for n in counts]
    # Enough frames, mostly: each label and each blank between two equal ones takes one.
    least = [len(each) + sum(map(int.__eq__, each, each[1:])) for each in targets]
    inputs = [n + draw(st.integers(0, n + 3)) if draw(st.integers(0, 4)) else 1 for n in least]
    make = Maker(dtype, seed=draw(SEEDS))
    times = max(inputs) + draw(st.integers(1, 2))
    scores = make.normal(times, samples, classes) * draw(st.sampled_from([0.0, 1.0, 30.0]))
    log_probs = scores.log_softmax(2)
    layout = draw(st.sampled_from([(0, 1, 2), (1, 0, 2), (1, 2, 0), (2, 0, 1)]))
    back = [layout.index(i) for i in range(3)]
    log_probs = log_probs.permute(layout).contiguous().permute(back)
    lengths = [len(each) for each in targets]
    kind = draw(st.sampled_from([torch.int32, torch.int64]))
    if draw(st.booleans()):
        given = torch.tensor([each for target in targets for each in target], dtype=kind)
        given = given.repeat_interleave(2)[::2] if draw(st.booleans()) else given
    else:
        given = torch.full((samples, max(lengths) + draw(st.integers(1, 2))), -7, dtype=kind)
        for row, target in zip(given, targets, strict=True):
            row[: len(target)] = torch.tensor(target, dtype=kind)
        given = given.t().contiguous().t() if draw(st.booleans()) else given
    # ATen's forward checks all of a padded target.
    loss, log_alpha = torch.ops.aten._ctc_loss(
        log_probs, given.clamp(min=0), inputs, lengths, blank
    )
    return {
        "grad": make.normal(samples),
        "log_probs": log_probs,
        "targets": given,
        "input_lengths": inputs,
        "target_lengths": lengths,
        "neg_log_likelihood": loss,
        "log_alpha": log_alpha,
        "blank": blank,
        "zero_infinity": draw(st.booleans()),
        "labels": targets,
    }


# With 32 threads, a sequence has more states than a block.
@pytest.mark.parametrize(("threads", "longest"), [(512, (0, 9)), (32, (16, 33))])
@given(data=st.data(), dtype=SINGLE_OR_DOUBLE)
def test_backward(
    data: st.DataObject, dtype: torch.dtype, threads: int, longest: tuple[int, int]
) -> None:
    """The definition in float64, to a few roundings a frame; the bits of any schedule."""
    problem = data.draw(problems(dtype, data.draw(st.integers(*longest))))
    targets = problem.pop("labels")
    if data.draw(st.booleans()):
        kind = data.draw(st.sampled_from([torch.int16, torch.int32, torch.int64]))
        for name in ("input_lengths", "target_lengths"):
            problem[name] = torch.tensor(problem[name], dtype=kind)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launch, "THREADS", threads)
        got = in_schedules(lambda: ctc_loss_backward(**problem), data.draw(SEEDS))
    assert got.dtype == dtype
    assert got.is_contiguous()
    eps = torch.finfo(dtype).eps
    for b, (labels, length) in enumerate(zip(targets, problem["input_lengths"], strict=True)):
        mine = got[:, b].double()
        assert not mine[length:].any()
        nll = problem["neg_log_likelihood"][b].item()
        if length == 0 or (nll == INF and problem["zero_infinity"]):
            assert not mine.any()
            continue
        if nll == INF:
            assert mine[:length].isnan().all()
            continue
        alpha = problem["log_alpha"][b, :length]
        probability, share = reference(
            problem["log_probs"][:length, b], labels, alpha, nll, problem["blank"]
        )
        grad = problem["grad"][b].double()
        # The reference's logarithms are rounded in float64.
        logarithms = 64 * torch.finfo(torch.float64).eps * (abs(nll) + 30) * length
        bound = (
            4 * eps * probability + ((6 * length + 60) * eps + logarithms) * share
        ) * grad.abs()
        error = (mine[:length] - (probability - share) * grad).abs()
        assert (error <= bound + torch.finfo(dtype).tiny).all(), (error / bound).max()


def test_gradient_is_the_derivative() -> None:
    """Against differences of the loss, with repeated labels and a blank that is the last class."""
    scores = Maker(torch.float64, seed=3).normal(8, 2, 4) / 8
    targets = torch.tensor([[1, 1, 2], [0, 0, 0]])

    def loss(leaf: Tensor) -> Tensor:
        return F.ctc_loss(leaf.log_softmax(2), targets, [8, 6], [3, 2], blank=3, reduction="sum")

    with DeterministicMode(simulate="cuda"):
        assert torch.autograd.gradcheck(loss, scores.requires_grad_())


def small(**changes: Any) -> dict[str, Any]:
    """A batch of three, of at most 9 frames, 5 classes and 4 labels."""
    return samples_of("ctc_loss").cases[0].arguments(torch.float32) | changes


def test_a_large_call_leaves_classes_without_labels() -> None:
    """Infinities are as in ATen's CUDA kernels: no NaN in large calls, neither of classes that
    cannot occur nor of an infinite share beside another one.
    """
    problem = small()
    problem["log_probs"][:, :, 4] = -INF
    lengths = problem["input_lengths"], problem["target_lengths"]
    loss, log_alpha = torch.ops.aten._ctc_loss(problem["log_probs"], problem["targets"], *lengths)
    log_alpha[0, 2, 4] = 1000.0
    problem |= {"neg_log_likelihood": loss, "log_alpha": log_alpha}
    got = ctc_loss_backward(**problem)
    assert got[:5, :, 4].isnan().all()
    assert got[2, 0, 0].isnan()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launch, "is_large", lambda *sizes: True)
        got = ctc_loss_backward(**problem)
        assert not got[:, :, 4].any()
        assert got[2, 0, 0] == -INF
    # Twice the times, 2.4 times the samples, and a fifth of the classes: above 450.
    assert [is_large(*sizes) for sizes in ((200, 10, 135), (200, 10, 134))] == [True, False]


@pytest.mark.parametrize(
    ("longest", "threads"), [(0, 32), (15, 32), (16, 64), (256, 512), (9**4, 512)]
)
def test_threads_of_a_sample(longest: int, threads: int) -> None:
    """Whole warps, one thread for each label and blank, up to what registers allow."""
    assert choose_threads(longest) == threads


@pytest.mark.parametrize("label", [-1, 5, 2**40])
def test_a_label_that_is_no_class(label: int) -> None:
    """The kernel asserts; padding may hold anything."""
    problem = small()
    problem["targets"][0, 3] = label
    with pytest.raises(host.DeviceAssert):
        ctc_loss_backward(**problem)
    assert ctc_loss_backward(**problem | {"target_lengths": [3, 3, 2]}).isfinite().all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"input_lengths": [10, 8, 5]}, "input_lengths to have value"),
        ({"input_lengths": [9, 8]}, "input_lengths must be of size"),
        ({"target_lengths": [4, 3, -1]}, "target_lengths to have value"),
        ({"target_lengths": torch.tensor([4, 3, 6])}, "target_lengths to have value"),
        ({"target_lengths": torch.tensor([4, 3])}, "target_lengths must be of size"),
        ({"targets": torch.tensor([1, 2, 3])}, "add up to at most 3"),
        ({"targets": torch.tensor([[1, 2]])}, "Expected targets"),
        ({"log_alpha": torch.zeros(3, 8, 9)}, "Expected log_alpha"),
        ({"grad": torch.ones(2)}, "Expected grad"),
        ({"blank": 5}, "blank must be in label range"),
    ],
)
def test_what_does_not_go_together(changes: dict[str, Any], message: str) -> None:
    """Calls in which ATen would read beyond its tensors."""
    with pytest.raises(RuntimeError, match=message):
        ctc_loss_backward(**small(**changes))


@pytest.mark.parametrize("name", ["input_lengths", "target_lengths"])
@pytest.mark.parametrize("length", [-1, 10])
def test_a_wrong_length_is_an_error_on_the_device(
    name: str, length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lengths on a GPU are not read before the launch: the kernels assert."""

    def unchecked(asked: str, lengths: list[int], *_: object) -> Tensor:
        return torch.tensor([length, 1, 1] if asked == name else lengths)

    monkeypatch.setattr(launch, "lengths_of", unchecked)
    with pytest.raises(host.DeviceAssert):
        ctc_loss_backward(**small())
