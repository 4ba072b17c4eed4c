"""Launchers that check all arguments themselves refuse what PyTorch's shape functions refuse."""

import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from detmode.cuda.rows import positions
from detmode.mode.handled import Handled
from detmode.mode.overload_info import OverloadInfo
from detmode.mode.substitution import run_validated, validate
from detmode.rules import default_rules
from detmode.table.rule import Substitute
from detmode.table.rule_table import resolve
from detmode.table.samples import Sample
from detmode.table.variants import functional_signature
from detmode.verify.cases import cases
from tests.shared.selection import PROFILE, families, todays_share

Given = dict[str, Any]
REFUSED_IN_PYTHON = (
    # PyTorch 2.8's shape functions fail at a volume without a batch that lies channels last.
    "to use channels_last_3d format",
    # The weights of nll_loss2d_forward, which its kernel takes in any shape.
    "shape '[1, 1, 1, 1]' is invalid",
)
"""Of calls that ATen's kernels take."""
CRASHES = re.compile(r"fractional_max_pool2d_backward\S* .*output_size \[\]$")
"""Calls that PyTorch reads beyond the end of, with or without detmode."""
SHARES = 1 if PROFILE.thorough else 7
"""Of how many shares of the calls like one a run makes one."""


def changed(value: object) -> Iterator[tuple[str, Any]]:
    """Values like one of a good call, of which many are wrong, by what was changed."""
    if isinstance(value, Tensor):
        for dtype in (torch.float64, torch.float16, torch.int32, torch.int64, torch.bool):
            yield str(dtype), value.to(dtype)
        sizes = list(value.shape)
        yield from ((f"of {new}", value.new_zeros(new)) for new in ([], [0], [1, *sizes]))
        for dim, size in enumerate(sizes):
            for new in ([], [0], [1], [size - 1], [size + 1], [2 * size], [size, 1]):
                if min(new, default=0) >= 0 and new != [size]:
                    shape = [*sizes[:dim], *new, *sizes[dim + 1 :]]
                    yield f"of {shape}", value.new_zeros(shape)
            yield (
                f"expanded in {dim}",
                value.narrow(dim, 0, min(size, 1)).expand(
                    *(-1,) * dim, 3 * min(size, 1), *(-1,) * (len(sizes) - dim - 1)
                ),
            )
        if len(sizes) > 1:
            yield "transposed", value.transpose(0, -1)
    elif isinstance(value, (list, tuple)):
        yield from ((str(new), new) for new in ([], [*value, *value[-1:]], [*value[:-1]]))
        for i, item in enumerate(value):
            yield from (
                (f"{i}: {how}", [*value[:i], new, *value[i + 1 :]]) for how, new in changed(item)
            )
    elif isinstance(value, bool):
        yield str(not value), not value
    elif isinstance(value, int):
        yield from ((str(new), new) for new in (-100, -9, -1, 0, 1, 2, 99) if new != value)


def calls_like(given: Given) -> Iterator[tuple[str, Given]]:
    """A call with one argument changed, or all tensors of one shape changed alike."""
    for name, value in given.items():
        yield from ((f"{name} {how}", {**given, name: new}) for how, new in changed(value))
    alike: dict[torch.Size, list[str]] = defaultdict(list)
    for name, value in given.items():
        if isinstance(value, Tensor):
            alike[value.shape].append(name)
    for names in alike.values():
        for each in zip(*(changed(given[name]) for name in names)) if len(names) > 1 else ():
            news = dict(zip(names, (new for _, new in each)))
            yield f"{', '.join(names)} {each[0][0]}", {**given, **news}


def overloads(sample: Sample) -> Iterator[OverloadInfo]:
    """The operator of a sample and its in-place variant."""
    func = resolve(sample.op)
    assert func is not None
    packet = getattr(torch.ops.aten, f"{func._schema.name.partition('::')[2]}_", None)
    found = (getattr(packet, name) for name in packet.overloads()) if packet is not None else ()
    for each in (func, *found):
        if functional_signature(each) == functional_signature(func) and each.namespace == "aten":
            yield OverloadInfo(each, default_rules().get(each))


def calls_of(family: str) -> Iterator[tuple[str, Handled]]:
    """Calls of marked launchers, many of them wrong."""
    for case in {case.sample.op + case.sample.name: case for case in cases(family)}.values():
        given = case.sample.arguments(case.dtype)
        if sum(each.numel() for each in given.values() if isinstance(each, Tensor)) > 5000:
            continue
        for overload in overloads(case.sample):
            like = calls_like(overload.signature.bind((), given))
            for how, arguments in todays_share(like, SHARES):
                call = Handled(overload, (), arguments, "cuda")
                action = call.rule.action if call.rule else None
                if isinstance(action, Substitute) and action.raises_like_aten:
                    yield f"{overload.name} ({case.sample.name}): {how}", call


def refusal(func: Any, *given: Any) -> Exception | None:
    """The error of a call; ``None`` if it is accepted."""
    try:
        func(*given)
    except Exception as error:
        return error
    return None


def marked(family: str) -> bool:
    actions = (row.rule.action for row in default_rules() if row.family == family)
    return any(isinstance(action, Substitute) and action.raises_like_aten for action in actions)


MARKED = [family for family in families() if marked(family)]


# PyTorch warns of many wrong arguments before it refuses them.
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("family", MARKED)
def test_what_pytorch_refuses_is_refused(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With PyTorch's words, and before anything is launched or written.

    Indices are not looked at: on a GPU neither PyTorch's shape functions nor launchers see them.
    """
    launched: list[str] = []
    monkeypatch.setattr(
        sys.modules["detmode.cuda.launch"], "_start", lambda what, *_: launched.append(what[1])
    )
    monkeypatch.setattr(positions, "out_of_range", lambda *_, **__: None)
    wrong, seen = [], 0
    for what, call in calls_of(family):
        seen += 1
        if CRASHES.search(what):
            continue
        expected = refusal(validate, call)
        if expected is None or any(text in str(expected) for text in REFUSED_IN_PYTHON):
            continue
        launched.clear()
        tensors = [each for each in call.arguments.values() if isinstance(each, Tensor)]
        versions = [each._version for each in tensors]
        found = refusal(run_validated, call)
        if (type(found), str(found)) != (type(expected), str(expected)):
            wrong.append(f"{what}: {found!r}, where PyTorch says {expected!r}")
        if launched or versions != [each._version for each in tensors]:
            wrong.append(f"{what}: launches {launched}, or writes; PyTorch says {expected!r}")
    assert not wrong, "\n".join(wrong[:20])
    assert seen
